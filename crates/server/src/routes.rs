//! What is served where, and who may ask.

use super::answer;
use super::app::App;
use super::body::read;
use super::failure::{json, refusal};
use super::guard;
use super::info;
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{ALLOW, CONTENT_TYPE, HeaderName, HeaderValue};
use axum::http::{Method, Response, StatusCode};
use ironstar_wire::{ApiError, ErrorKind, Protocol};
use std::sync::Arc;

/// The page at `/`: one document.
const PAGE: &str = concat!(
    include_str!("page/index.html"),
    include_str!("page/markdown.js"),
    include_str!("page/chat.js"),
    "</script>\n"
);
/// Name of the header with a request's id.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// What a path is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Page,
    Health,
    Version,
    Metrics,
    Models,
    Model,
    Tokenize,
    Detokenize,
    Answer(Protocol),
    Count,
    Stored,
    Embeddings,
}

/// One service for all requests.
pub(crate) fn router(app: Arc<App>) -> Router {
    Router::new().fallback(serve).with_state(app)
}

async fn serve(State(app): State<Arc<App>>, request: Request) -> Response<Body> {
    let id = format!("req_{}", app.fresh_id());
    let cors = guard::cors(&app, request.headers());
    let head_only = request.method() == Method::HEAD;
    let mut response = match guard::check(&app, &request) {
        Err(error) => refusal(protocol_of(request.uri().path()), &error),
        Ok(()) => dispatch(&app, id.clone(), request).await,
    };
    if head_only {
        *response.body_mut() = Body::empty();
    }
    app.metrics.responded(response.status().as_u16());
    let headers = response.headers_mut();
    if let Ok(value) = HeaderValue::from_str(&id) {
        headers.insert(REQUEST_ID, value.clone());
        // What one of the SDKs looks for.
        headers.insert(HeaderName::from_static("request-id"), value);
    }
    headers.insert(
        HeaderName::from_static("x-content-type-options"),
        HeaderValue::from_static("nosniff"),
    );
    for (name, value) in cors {
        headers.insert(name, value);
    }
    response
}

/// The protocol in whose envelope errors of a path are.
fn protocol_of(path: &str) -> Protocol {
    match path.trim_start_matches("/v1") {
        path if path.starts_with("/messages") => Protocol::Messages,
        path if path.starts_with("/responses") => Protocol::Responses,
        path if path.starts_with("/completions") => Protocol::Completions,
        _ => Protocol::Chat,
    }
}

/// What a path is for, and its methods. Clients differ in whether they add `/v1`.
fn target(path: &str) -> Option<(Target, &'static [&'static str])> {
    const GET: &[&str] = &["GET", "HEAD"];
    const POST: &[&str] = &["POST"];
    let path = if path.len() > 1 { path.trim_end_matches('/') } else { path };
    let found = match path.strip_prefix("/v1").unwrap_or(path) {
        "/" | "/index.html" => (Target::Page, GET),
        "/health" | "/healthz" => (Target::Health, GET),
        "/version" => (Target::Version, GET),
        "/metrics" => (Target::Metrics, GET),
        "/models" => (Target::Models, GET),
        "/tokenize" => (Target::Tokenize, POST),
        "/detokenize" => (Target::Detokenize, POST),
        "/chat/completions" => (Target::Answer(Protocol::Chat), POST),
        "/completions" => (Target::Answer(Protocol::Completions), POST),
        "/responses" => (Target::Answer(Protocol::Responses), POST),
        "/messages" => (Target::Answer(Protocol::Messages), POST),
        "/messages/count_tokens" => (Target::Count, POST),
        "/embeddings" => (Target::Embeddings, POST),
        path if path.starts_with("/models/") => (Target::Model, GET),
        path if path.starts_with("/responses/") => {
            (Target::Stored, &["GET", "HEAD", "DELETE"] as &[&str])
        }
        _ => return None,
    };
    Some(found)
}

async fn dispatch(app: &Arc<App>, id: String, request: Request) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path();
    let protocol = protocol_of(path);
    if parts.method == Method::OPTIONS {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NO_CONTENT;
        return response;
    }
    let Some((target, methods)) = target(path) else {
        let text = format!("nothing is served at {path}; see / for what is");
        return refusal(protocol, &ApiError::new(ErrorKind::NotFound, "unknown_path", text));
    };
    if !methods.contains(&parts.method.as_str()) {
        let methods = methods.join(", ");
        let text = format!("{path} does not know {}; it knows {methods}", parts.method);
        let error = ApiError::new(ErrorKind::Method, "unknown_method", text);
        let mut response = refusal(protocol, &error);
        if let Ok(value) = HeaderValue::from_str(&methods) {
            response.headers_mut().insert(ALLOW, value);
        }
        return response;
    }
    let last = path.rsplit('/').find(|part| !part.is_empty()).unwrap_or_default();
    let answer = match target {
        Target::Page => return text("text/html; charset=utf-8", PAGE.to_owned()),
        Target::Health => Ok(info::health(app)),
        Target::Version => Ok(info::version()),
        Target::Metrics => {
            let page = app.metrics.page(&app.client.status(), app.open());
            return text("text/plain; version=0.0.4; charset=utf-8", page);
        }
        Target::Models => Ok(info::models(app)),
        Target::Model => info::model(app, path),
        Target::Answer(protocol) => {
            return answer::respond(app.clone(), protocol, id, body).await;
        }
        Target::Stored => info::stored(app, last, parts.method == Method::DELETE),
        Target::Embeddings => Err(info::embeddings()),
        Target::Tokenize => match read(app, body).await {
            Ok(body) => info::tokenize(app, &body),
            Err(error) => Err(error),
        },
        Target::Detokenize => match read(app, body).await {
            Ok(body) => info::detokenize(app, &body),
            Err(error) => Err(error),
        },
        Target::Count => match read(app, body).await {
            Ok(body) => answer::count(app, body)
                .await
                .map(|tokens| format!("{{\"input_tokens\":{tokens}}}")),
            Err(error) => Err(error),
        },
    };
    match answer {
        Ok(body) => json(200, body),
        Err(error) => refusal(protocol, &error),
    }
}

fn text(kind: &'static str, text: String) -> Response<Body> {
    let mut response = Response::new(Body::from(text));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
