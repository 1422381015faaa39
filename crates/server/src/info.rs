//! What is told about the server, its model and texts; no engine is asked.

use super::app::App;
use ironstar_wire::{ApiError, ErrorKind};
use serde::Deserialize;
use serde_json::{Value, json};

/// `GET /health`.
pub(crate) fn health(app: &App) -> String {
    let status = app.client.status();
    json!({
        "status": "ok",
        "model": app.model.name,
        "requests_queued": status.queued,
        "requests_running": status.running,
    })
    .to_string()
}

/// `GET /ready`: whether one more request would be taken now. A router that asks sends requests
/// elsewhere while this server stops or its queue is full.
pub(crate) fn ready(app: &App) -> Result<String, ApiError> {
    let (open, most) = (app.open(), app.options.requests_max);
    let refuse = |text: String| Err(ApiError::new(ErrorKind::Stopping, "not_ready", text));
    if app.is_stopping() {
        return refuse("this server is stopping; what runs may end".into());
    }
    if open >= most {
        return refuse(format!("{open} requests wait or run, and no more than {most} may"));
    }
    Ok(json!({"status": "ready", "requests_open": open, "requests_max": most}).to_string())
}

/// `GET /version`.
pub(crate) fn version() -> String {
    json!({"name": "ironstar", "version": env!("CARGO_PKG_VERSION")}).to_string()
}

/// `GET /v1/models`: the form of one protocol with the fields of the other beside it.
pub(crate) fn models(app: &App) -> String {
    let names = std::iter::once(&app.model.name).chain(&app.model.aliases);
    let list: Vec<Value> = names.map(|name| model_object(app, name)).collect();
    json!({
        "object": "list",
        "data": list,
        "has_more": false,
        "first_id": app.model.name,
        "last_id": app.model.aliases.last().unwrap_or(&app.model.name),
    })
    .to_string()
}

/// `GET /v1/models/NAME`; a name may have slashes.
pub(crate) fn model(app: &App, wanted: &str) -> Result<String, ApiError> {
    let mut names = std::iter::once(&app.model.name).chain(&app.model.aliases);
    match names.find(|name| *name == wanted) {
        Some(name) => Ok(model_object(app, name).to_string()),
        None => {
            let text = format!("there is no model {wanted:?}; GET /v1/models lists what there is");
            Err(ApiError::new(ErrorKind::NotFound, "model_not_found", text))
        }
    }
}

fn model_object(app: &App, name: &str) -> Value {
    json!({
        "id": name,
        "object": "model",
        "type": "model",
        "created": app.started,
        "owned_by": "ironstar",
        "display_name": name,
        "context_length": app.model.context,
        "max_model_len": app.model.context,
        "input_modalities": ["text"],
    })
}

/// `GET` and `DELETE /v1/responses/ID`. It may read a file.
pub(crate) fn stored(app: &App, id: &str, delete: bool) -> Result<String, ApiError> {
    let body = if delete {
        let deleted = || json!({"id": id, "object": "response", "deleted": true}).to_string();
        app.answers.remove(id).then(deleted)
    } else {
        app.answers.get(id).map(|answer| answer.body)
    };
    body.ok_or_else(|| {
        let text = format!("no answer {id:?} is stored");
        ApiError::new(ErrorKind::NotFound, "response_not_found", text)
    })
}

/// `POST /v1/embeddings`.
pub(crate) fn embeddings() -> ApiError {
    let text = "this server has a model that writes, none that makes embeddings; use a server for \
                embeddings beside it";
    ApiError { param: None, ..ApiError::unsupported("", text) }
}

#[derive(Deserialize)]
struct Tokenize {
    #[serde(alias = "content", alias = "prompt")]
    text: String,
    /// Whether markers written in the text become control tokens.
    #[serde(default)]
    special: bool,
}

#[derive(Deserialize)]
struct Detokenize {
    #[serde(alias = "ids")]
    tokens: Vec<u32>,
}

/// `POST /tokenize`.
pub(crate) fn tokenize(app: &App, body: &[u8]) -> Result<String, ApiError> {
    let asked: Tokenize = from_json(body, "an object with `text`, and perhaps `special`")?;
    let tokenizer = &app.model.tokenizer;
    let tokens = if asked.special {
        tokenizer.encode_rendered(&asked.text)
    } else {
        tokenizer.encode(&asked.text)
    };
    Ok(json!({"tokens": tokens, "count": tokens.len()}).to_string())
}

/// `POST /detokenize`.
pub(crate) fn detokenize(app: &App, body: &[u8]) -> Result<String, ApiError> {
    let asked: Detokenize = from_json(body, "an object with `tokens`, a list of ids")?;
    let vocabulary = app.model.tokenizer.vocab_size();
    if let Some(wrong) = asked.tokens.iter().find(|&&id| id >= vocabulary) {
        let text = format!("token {wrong} is outside the vocabulary of {vocabulary} tokens");
        return Err(ApiError::invalid("tokens", text));
    }
    let bytes = app.model.tokenizer.decode(&asked.tokens);
    let text = String::from_utf8_lossy(&bytes);
    Ok(json!({"text": text, "whole": matches!(text, std::borrow::Cow::Borrowed(_))}).to_string())
}

fn from_json<'a, T: Deserialize<'a>>(body: &'a [u8], wanted: &str) -> Result<T, ApiError> {
    serde_json::from_slice(body).map_err(|error| {
        let text = format!("the body is not what is wanted here, {wanted}: {error}");
        ApiError::new(ErrorKind::Invalid, "invalid_body", text)
    })
}
