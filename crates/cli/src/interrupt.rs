//! Ctrl-C: the first stops the answer, a second one the program.

use crate::failure::Failure;
use ironstar_engine::CancelFlag;

/// Exit code of a program that Ctrl-C ended.
pub const EXIT_CODE: u8 = 130;

/// A flag that Ctrl-C raises.
pub fn cancel_on_interrupt() -> Result<CancelFlag, Failure> {
    let flag = CancelFlag::default();
    let raised = flag.clone();
    ctrlc::set_handler(move || {
        if raised.is_raised() {
            std::process::exit(EXIT_CODE.into());
        }
        raised.raise();
    })
    .map_err(|error| Failure::environment(format!("cannot listen for Ctrl-C: {error}")))?;
    Ok(flag)
}
