//! Failures by blame, and the exit code of each.

use std::fmt;
use std::io;
use std::path::Path;
use std::process::ExitCode;

/// Whose fault it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// What was asked cannot be: exit 2.
    Caller,
    /// The machine, a file, the network: exit 1; another try may help.
    Environment,
    /// A bug of ours: exit 1, and the message says so.
    Ours,
    /// Whoever read our output has gone: exit 0, silently.
    Reader,
    /// Ctrl-C: exit 130, silently.
    Interrupt,
}

/// A message for the person at the terminal, with its blame.
#[derive(Debug)]
pub struct Failure {
    /// Whose fault.
    pub blame: Blame,
    /// What was found, what was wanted, what to do.
    pub message: String,
}

impl Failure {
    /// The command line or an input is wrong.
    pub fn caller(message: impl Into<String>) -> Self {
        Failure { blame: Blame::Caller, message: message.into() }
    }

    /// The machine would not let us.
    pub fn environment(message: impl Into<String>) -> Self {
        Failure { blame: Blame::Environment, message: message.into() }
    }

    /// A bug.
    pub fn ours(message: impl Into<String>) -> Self {
        Failure { blame: Blame::Ours, message: message.into() }
    }

    /// A file that could not be read or written.
    pub fn file(doing: &str, path: &Path, error: &io::Error) -> Self {
        Failure::environment(format!("{doing} {}: {error}", path.display()))
    }

    /// Standard output could not be written.
    pub fn output(error: &io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Failure { blame: Blame::Reader, message: String::new() };
        }
        Failure::environment(format!("writing standard output: {error}"))
    }

    /// The person stopped us.
    #[must_use]
    pub fn interrupted() -> Self {
        Failure { blame: Blame::Interrupt, message: String::new() }
    }

    /// The process's exit code.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self.blame {
            Blame::Caller => 2,
            Blame::Environment | Blame::Ours => 1,
            Blame::Reader => 0,
            Blame::Interrupt => crate::interrupt::EXIT_CODE,
        })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if self.blame == Blame::Ours {
            f.write_str("\nThis is a fault of ironstar; please report it with the command line.")?;
        }
        Ok(())
    }
}
