//! One request for an answer: from its body to the engine, and from the engine's tokens to the
//! bytes that go out.
//!
//! `ask.rs` turns a body into a [`Job`]: everything that can be refused is refused there, before a
//! byte of a stream. `relay.rs` runs it; `choice.rs` is one answer of it, `out.rs` the way out.

mod ask;
mod choice;
mod out;
mod relay;

pub(crate) use ask::{Job, ask, count};

use super::app::App;
use super::body;
use super::failure::{json, refusal};
use axum::body::Body;
use axum::http::Response;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};
use ironstar_wire::Protocol;
use out::Out;
use relay::Relay;
use std::sync::Arc;

/// Answers a request of one of the protocols.
pub(crate) async fn respond(
    app: Arc<App>,
    protocol: Protocol,
    request_id: String,
    body: Body,
) -> Response<Body> {
    let bytes = match body::read(&app, body).await {
        Ok(bytes) => bytes,
        Err(error) => return refusal(protocol, &error),
    };
    match ask(&app, protocol, request_id, bytes).await {
        Err(error) => refusal(protocol, &error),
        Ok(job) if job.call.stream => stream(app, job),
        Ok(job) => {
            let out = Out::whole(&job);
            match Relay::new(app, job, out).run().await {
                Ok(body) => json(200, body),
                Err(error) => refusal(protocol, &error),
            }
        }
    }
}

/// The head goes out now; the answer has a task of its own.
fn stream(app: Arc<App>, job: Job) -> Response<Body> {
    let (writer, body) = body::stream();
    let out = Out::stream(&job, writer);
    tokio::spawn(async move {
        // What went wrong was told in the stream.
        let _told = Relay::new(app, job, out).run().await;
    });
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Proxies that would collect the stream must not.
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response
}
