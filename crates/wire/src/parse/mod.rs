//! Requests.

use crate::{ApiError, Call, Limits, Protocol};

/// Reads a request. The body is hostile: errors name the field.
pub fn parse(_protocol: Protocol, _body: &[u8], _limits: &Limits) -> Result<Call, ApiError> {
    Err(ApiError::unsupported("temperature", "requests are not read yet"))
}
