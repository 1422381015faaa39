//! Grammars of answers, as text in the Lark dialect of llguidance.
use crate::ApiError;
/// x
pub(crate) fn check_schema(_s: &str, _p: &str, _strict: bool) -> Result<(), ApiError> {
    Ok(())
}
