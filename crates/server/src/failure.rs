//! Refusals and failures as responses.

use super::app::App;
use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use axum::http::{Response, StatusCode};
use ironstar_engine::Blame;
use ironstar_engine::scheduler::Failure;
use ironstar_wire::{ApiError, ErrorKind, Protocol};

/// Seconds after which a client that was turned away may come back.
const RETRY_SECONDS: &str = "5";

/// A JSON body.
pub(crate) fn json(status: u16, text: String) -> Response<Body> {
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
    let kind = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

/// An error in a protocol's envelope.
pub(crate) fn refusal(protocol: Protocol, error: &ApiError) -> Response<Body> {
    let mut response = json(error.status(), error.body(protocol).to_string());
    if matches!(error.kind, ErrorKind::Busy | ErrorKind::Stopping) {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static(RETRY_SECONDS));
    }
    response
}

/// What a client is told of an engine's failure; what is our fault is logged whole.
pub(crate) fn of_engine(app: &App, failure: &Failure) -> ApiError {
    let text = failure.to_string();
    match failure {
        Failure::QueueFull { .. } => ApiError::new(ErrorKind::Busy, "queue_full", text),
        Failure::Stopped => ApiError::new(ErrorKind::Stopping, "stopping", text),
        Failure::Deadline { .. } => ApiError::new(ErrorKind::Timeout, "deadline", text),
        _ => match failure.blame() {
            Blame::Input => ApiError::new(ErrorKind::Invalid, "invalid_value", text),
            Blame::Environment | Blame::Internal => {
                app.log(&format!("a request failed in the engine: {text}"));
                ApiError::new(ErrorKind::Internal, "engine_failed", text)
            }
        },
    }
}

/// A server that goes down.
pub(crate) fn stopping() -> ApiError {
    let text = "the server is stopping; ask again when it runs";
    ApiError::new(ErrorKind::Stopping, "stopping", text)
}
