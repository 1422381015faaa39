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
use axum::http::header::{
    ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue,
};
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
/// What is served, for programs: `GET /openapi.json`.
const OPENAPI: &str = include_str!("../openapi.json");
/// Name of the header with a request's id.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Headers of every response: no page of another site may show ours in a frame, guess at types, or
/// learn of addresses here.
const FIXED_HEADERS: [(&str, &str); 4] = [
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
];
/// What the page itself adds; the rest of its policy is within it. A page of an older server must
/// not stay in use.
const PAGE_HEADERS: [(HeaderName, &str); 2] =
    [(CONTENT_SECURITY_POLICY, "frame-ancestors 'none'"), (CACHE_CONTROL, "no-cache")];

/// What a path is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Page,
    OpenApi,
    Health,
    Ready,
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
    for (name, value) in FIXED_HEADERS {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
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

const GET: &[&str] = &["GET", "HEAD"];
const POST: &[&str] = &["POST"];

/// Everything that is served, as `openapi.json` names it. A last part in braces is any text that is
/// not empty.
const ROUTES: [(&str, Target, &[&str]); 19] = [
    ("/", Target::Page, GET),
    ("/openapi.json", Target::OpenApi, GET),
    ("/health", Target::Health, GET),
    ("/ready", Target::Ready, GET),
    ("/version", Target::Version, GET),
    ("/metrics", Target::Metrics, GET),
    ("/tokenize", Target::Tokenize, POST),
    ("/detokenize", Target::Detokenize, POST),
    ("/v1/models", Target::Models, GET),
    ("/v1/models/{name}", Target::Model, GET),
    ("/v1/chat/completions", Target::Answer(Protocol::Chat), POST),
    ("/v1/completions", Target::Answer(Protocol::Completions), POST),
    ("/v1/responses", Target::Answer(Protocol::Responses), POST),
    ("/v1/responses/{id}", Target::Stored, &["GET", "HEAD", "DELETE"]),
    ("/v1/messages", Target::Answer(Protocol::Messages), POST),
    ("/v1/messages/count_tokens", Target::Count, POST),
    ("/v1/embeddings", Target::Embeddings, POST),
    // Other names of the same.
    ("/index.html", Target::Page, GET),
    ("/healthz", Target::Health, GET),
];

/// What a path is for, its methods, and its last part where that is a name. Clients differ in
/// whether they add `/v1`.
fn target(path: &str) -> Option<(Target, &'static [&'static str], &str)> {
    let short = |path| str::strip_prefix(path, "/v1").unwrap_or(path);
    let path = if path.len() > 1 { path.trim_end_matches('/') } else { path };
    ROUTES.into_iter().find_map(|(route, target, methods)| match route.split_once('{') {
        None => (short(route) == short(path)).then_some((target, methods, "")),
        Some((start, _)) => {
            let name = short(path).strip_prefix(short(start)).filter(|name| !name.is_empty());
            name.map(|name| (target, methods, name))
        }
    })
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
    let Some((target, methods, name)) = target(path) else {
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
    let answer = match target {
        Target::Page => return page(),
        Target::OpenApi => Ok(OPENAPI.to_owned()),
        Target::Health => Ok(info::health(app)),
        Target::Ready => info::ready(app),
        Target::Version => Ok(info::version()),
        Target::Metrics => {
            let page = app.metrics.page(&app.client.status(), app.open());
            return text("text/plain; version=0.0.4; charset=utf-8", page);
        }
        Target::Models => Ok(info::models(app)),
        Target::Model => info::model(app, name),
        Target::Answer(protocol) => {
            return answer::respond(app.clone(), protocol, id, body).await;
        }
        Target::Stored => {
            let (app, id) = (app.clone(), name.to_owned());
            let delete = parts.method == Method::DELETE;
            answer::blocking(move || info::stored(&app, &id, delete)).await
        }
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

fn page() -> Response<Body> {
    let mut response = text("text/html; charset=utf-8", PAGE.to_owned());
    for (name, value) in PAGE_HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

fn text(kind: &'static str, text: String) -> Response<Body> {
    let mut response = Response::new(Body::from(text));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests {
    use super::{OPENAPI, ROUTES, target};
    use std::collections::BTreeSet;

    /// Both ways: nothing is served that the file does not have, and nothing is promised.
    #[test]
    fn the_openapi_file_has_every_route_and_no_other() {
        let file: serde_json::Value = serde_json::from_str(OPENAPI).expect("it is JSON");
        let mut documented = BTreeSet::new();
        for (path, item) in file["paths"].as_object().expect("it has paths") {
            let methods = item.as_object().expect("it has methods").keys();
            let methods = methods.filter(|method| *method != "parameters");
            documented.extend(methods.map(|method| (path.clone(), method.to_uppercase())));
        }
        let others = ["/index.html", "/healthz"];
        let served: BTreeSet<(String, String)> = ROUTES
            .iter()
            .filter(|(path, ..)| !others.contains(path))
            .flat_map(|(path, _, methods)| methods.iter().map(move |m| (*path, *m)))
            .filter(|(_, method)| *method != "HEAD")
            .map(|(path, method)| (path.to_owned(), method.to_owned()))
            .collect();
        assert_eq!(documented, served);
    }

    /// References that lead nowhere, and parts that nobody uses.
    #[test]
    fn the_parts_of_the_openapi_file_are_there_and_used() {
        let file: serde_json::Value = serde_json::from_str(OPENAPI).expect("it is JSON");
        let used: BTreeSet<&str> = OPENAPI
            .split("\"$ref\": \"#/components/")
            .skip(1)
            .filter_map(|rest| rest.split('"').next())
            .collect();
        let mut there = BTreeSet::new();
        for kind in ["schemas", "responses"] {
            let parts = file["components"][kind].as_object().expect("they are there");
            there.extend(parts.keys().map(|name| format!("{kind}/{name}")));
        }
        let there: BTreeSet<&str> = there.iter().map(String::as_str).collect();
        assert_eq!(used, there);
    }

    #[test]
    fn paths_find_their_targets() {
        let name = |path| target(path).map(|(_, _, name)| name);
        assert_eq!(name("/v1/models/a/b"), Some("a/b"));
        assert_eq!(name("/models/a"), Some("a"));
        assert_eq!(name("/v1/responses/resp_1/"), Some("resp_1"));
        assert_eq!(name("/v1/health"), Some(""));
        assert_eq!(
            target("/responses/").map(|(found, ..)| found),
            target("/v1/responses").map(|(found, ..)| found)
        );
        for nothing in ["/v1/", "//", "/v1/none", "/v2/models", "", "/models2"] {
            assert!(target(nothing).is_none(), "{nothing}");
        }
    }
}
