//! One request for an answer: from its body to the engine, and from the engine's tokens to the
//! bytes that go out.
//!
//! `ask.rs` turns a body into a [`Job`]: everything that can be refused is refused there, before a
//! byte of a stream. `relay.rs` runs it; `choice.rs` is one answer of it, `out.rs` the way out.

mod ask;
mod choice;
mod out;
mod relay;

pub(crate) use ask::{Job, ask, blocking, count};

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
use tokio::time::{sleep, timeout};

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
        Ok(job) => whole(app, job).await,
    }
}

/// One body. An answer that takes long gets its head and now and then a space, which JSON allows
/// before it: clients and proxies give up on connections on which nothing comes.
async fn whole(app: Arc<App>, job: Job) -> Response<Body> {
    let (protocol, out) = (job.call.protocol, Out::whole(&job));
    let (patience, pause) = (app.options.whole_patience, app.options.keepalive);
    let mut run = Box::pin(Relay::new(app, job, out).run());
    match timeout(patience, &mut run).await {
        Ok(Ok(body)) => return json(200, body),
        Ok(Err(error)) => return refusal(protocol, &error),
        Err(_takes_long) => {}
    }
    let (writer, body) = body::stream();
    tokio::spawn(async move {
        while writer.write(" ".to_owned()).await {
            tokio::select! {
                biased;
                () = writer.closed() => return,
                result = &mut run => {
                    return match result {
                        Ok(body) => writer.end(body),
                        Err(error) => writer.fail(error.body(protocol).to_string()),
                    };
                }
                () = sleep(pause) => {}
            }
        }
    });
    let mut response = Response::new(body);
    let kind = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
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
