//! The interactive chat: lines from an editor with history, answers as they come.

use super::{Output, fresh_seed, from_editor, history_file, note};
use crate::answer::Answerer;
use crate::asking;
use crate::failure::{Blame, Failure};
use crate::flags::Run;
use ironstar_engine::{CancelFlag, Finish};
use ironstar_model::SteeringScales;
use ironstar_text::chat::{self, Assistant, Conversation, Message, Thinking};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;

const HELP: &str = "\
/help            this text
/think           reason before answering; /no-think: answer directly
/system TEXT     a new system text; starts afresh
/new             starts afresh
/read FILE       ask what is in a file
/steer F [G]     scale of the steering directions at FFN outputs, and at attention's (G)
/quit            leave; Ctrl-D does too. Ctrl-C stops an answer.";

/// What a line asks for.
enum Line {
    Help,
    Think(bool),
    New,
    System(String),
    Steer(SteeringScales),
    Ask(String),
    Quit,
    Nothing,
    Unknown(String),
    Failed(String),
}

/// Runs the chat until the person leaves.
pub fn run(flags: &Run, answerer: Answerer, cancel: &CancelFlag) -> Result<(), Failure> {
    let mut editor = DefaultEditor::new().map_err(|error| from_editor(&error))?;
    let history = history_file();
    if let Some(file) = &history {
        // A first chat has no history yet.
        let _ = editor.load_history(file);
    }
    note(&format!("Chat with {}. /help lists what can be typed, Ctrl-D leaves.", answerer.name));
    let system = flags.prompt.system.clone();
    let conversation = asking::conversation(system.as_deref());
    let thinking = asking::thinking(&flags.prompt);
    let mut chat = Chat { flags, answerer, cancel, system, conversation, thinking };
    loop {
        match editor.readline("> ") {
            Ok(line) => {
                let _ = editor.add_history_entry(line.as_str());
                if !chat.line(&line)? {
                    break;
                }
            }
            Err(ReadlineError::Interrupted) => {}
            Err(ReadlineError::Eof) => break,
            Err(error) => return Err(from_editor(&error)),
        }
    }
    if let Some(file) = &history {
        let saved = file.parent().map_or(Ok(()), std::fs::create_dir_all);
        if let Err(error) =
            saved.map_err(ReadlineError::from).and_then(|()| editor.save_history(file))
        {
            note(&format!("the history was not saved to {}: {error}", file.display()));
        }
    }
    Ok(())
}

struct Chat<'a> {
    flags: &'a Run,
    answerer: Answerer,
    cancel: &'a CancelFlag,
    system: Option<String>,
    conversation: Conversation,
    thinking: Thinking,
}

impl Chat<'_> {
    /// Does what a line asks for; false when the person leaves.
    fn line(&mut self, line: &str) -> Result<bool, Failure> {
        match parse(line) {
            Line::Help => note(HELP),
            Line::Think(on) => {
                self.thinking = if on { Thinking::On(chat::Effort::Low) } else { Thinking::Off };
            }
            Line::New => self.conversation = asking::conversation(self.system.as_deref()),
            Line::System(text) => {
                self.system = Some(text).filter(|text| !text.is_empty());
                self.conversation = asking::conversation(self.system.as_deref());
            }
            Line::Steer(scales) => match self.answerer.engine.set_steering_scales(scales) {
                Ok(()) => note("What was read stays as it is; /new reads it again."),
                Err(error) => note(&format!("{error} (--dir-steering-file FILE)")),
            },
            Line::Ask(text) => self.ask(text)?,
            Line::Quit => return Ok(false),
            Line::Nothing => {}
            Line::Failed(message) => note(&message),
            Line::Unknown(what) => note(&format!("{what}: not known. {HELP}")),
        }
        Ok(true)
    }

    /// Asks and prints the answer; what is the caller's or the machine's fault is said and the chat
    /// goes on.
    fn ask(&mut self, text: String) -> Result<(), Failure> {
        let before = self.conversation.messages.len();
        let fits = self.answerer.check_length(&text);
        self.conversation.messages.push(Message::User(text));
        match fits.and_then(|()| self.answer()) {
            Ok(()) => Ok(()),
            Err(failure) if failure.blame == Blame::Interrupt => {
                self.cancel.clear();
                self.conversation.messages.truncate(before);
                note("[stopped while reading; your last line was taken back]");
                Ok(())
            }
            Err(failure) if matches!(failure.blame, Blame::Caller | Blame::Environment) => {
                self.conversation.messages.truncate(before);
                note(&format!("{failure}\nYour last line was taken back; /new starts afresh."));
                Ok(())
            }
            Err(failure) => Err(failure),
        }
    }

    fn answer(&mut self) -> Result<(), Failure> {
        let ids = asking::render(&self.answerer.tokenizer, &self.conversation, self.thinking)?;
        let seed = self.flags.sampling.seed.unwrap_or_else(fresh_seed);
        let settings = self.answerer.settings(&self.flags.sampling);
        let thinks = self.thinking != Thinking::Off;
        let mut output = Output::new(false);
        self.cancel.clear();
        let answer = self.answerer.answer(
            &ids,
            thinks,
            (settings, seed, self.flags.prompt.tokens),
            self.cancel,
            &mut |channel, text| output.text(channel, text, self.cancel),
        )?;
        output.end()?;
        self.cancel.clear();
        let stopped = match answer.finish {
            Finish::Cancelled => "stopped; ",
            Finish::Context => "the context is full (--ctx N makes room); ",
            _ => "",
        };
        note(&format!("[{stopped}{}]", answer.summary(seed)));
        let reasoning = thinks.then_some(answer.reasoning);
        let turn = Assistant { reasoning, content: answer.content, ..Assistant::default() };
        self.conversation.messages.push(Message::Assistant(turn));
        output.failure.map_or(Ok(()), Err)
    }
}

fn parse(line: &str) -> Line {
    let line = line.trim();
    let (command, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    match command {
        "" => Line::Nothing,
        "/help" => Line::Help,
        "/think" => Line::Think(true),
        "/no-think" | "/nothink" => Line::Think(false),
        "/new" => Line::New,
        "/system" => Line::System(rest.trim().to_owned()),
        "/read" => match read(std::path::Path::new(rest.trim())) {
            Ok(text) => Line::Ask(text),
            Err(message) => Line::Failed(message),
        },
        "/steer" => match scales(rest) {
            Some(scales) => Line::Steer(scales),
            None => Line::Failed("/steer wants one or two numbers, as in /steer 0.5".to_owned()),
        },
        "/quit" | "/exit" => Line::Quit,
        command if command.starts_with('/') => Line::Unknown(command.to_owned()),
        _ => Line::Ask(line.to_owned()),
    }
}

/// The text of a regular file; what else has a path may never end.
fn read(path: &std::path::Path) -> Result<String, String> {
    match std::fs::metadata(path) {
        Ok(about) if !about.is_file() => Err(format!("{} is not a regular file", path.display())),
        _ => crate::commands::read_text(path).map_err(|failure| failure.message),
    }
}

/// One or two numbers: the FFN's scale, then attention's.
fn scales(text: &str) -> Option<SteeringScales> {
    let numbers: Result<Vec<f32>, _> = text.split_whitespace().map(str::parse).collect();
    match numbers.ok()?[..] {
        [ffn] => Some(SteeringScales { ffn, attention: 0.0 }),
        [ffn, attention] => Some(SteeringScales { ffn, attention }),
        _ => None,
    }
}
