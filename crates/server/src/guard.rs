//! Who may ask: keys, and pages of other sites.
//!
//! Without a key, anybody who can connect may ask. That is meant for programs of this machine, not
//! for any web page that its browser shows: a page of another site is refused by its `Origin`, and
//! a name that somebody else's DNS made point here by its `Host`.

use super::app::App;
use axum::extract::Request;
use axum::http::HeaderMap;
use axum::http::Method;
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, AUTHORIZATION, HOST, HeaderName, HeaderValue, ORIGIN, VARY,
};
use ironstar_wire::{ApiError, ErrorKind};
use std::hint::black_box;
use std::net::IpAddr;

/// Paths that everybody may read: a probe has no key, and the page asks for one.
const FREE: [&str; 5] = ["/", "/index.html", "/health", "/healthz", "/ready"];

/// Refuses who may not ask.
pub(crate) fn check(app: &App, request: &Request) -> Result<(), ApiError> {
    let headers = request.headers();
    check_host(app, headers)?;
    check_origin(app, headers)?;
    let free = FREE.contains(&request.uri().path()) || request.method() == Method::OPTIONS;
    if app.options.keys.is_empty() || free || has_key(&app.options.keys, headers) {
        return Ok(());
    }
    let text = "this server wants a key: send `Authorization: Bearer KEY` or `x-api-key: KEY`, \
                with one of the keys that it was started with";
    Err(ApiError::new(ErrorKind::Unauthorized, "invalid_api_key", text))
}

fn has_key(keys: &[String], headers: &HeaderMap) -> bool {
    let bearer = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let bearer = bearer.and_then(|value| {
        let (scheme, key) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
    });
    let plain = headers.get("x-api-key").and_then(|value| value.to_str().ok());
    // Every key is compared with every offer, so that the time says nothing.
    let mut found = false;
    for offer in bearer.into_iter().chain(plain) {
        for key in keys {
            found |= same(key.as_bytes(), offer.as_bytes());
        }
    }
    found
}

/// Compares in a time that depends on the length of the offer only.
fn same(key: &[u8], offer: &[u8]) -> bool {
    let mut difference = usize::from(key.len() != offer.len());
    for (index, byte) in offer.iter().enumerate() {
        let other = key.get(index % key.len().max(1)).copied().unwrap_or(0);
        difference |= black_box(usize::from(byte ^ other));
    }
    black_box(difference) == 0
}

fn check_host(app: &App, headers: &HeaderMap) -> Result<(), ApiError> {
    if !app.address.ip().is_loopback() || !app.options.keys.is_empty() {
        return Ok(());
    }
    let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let name = host_name(host);
    let own = name.is_empty()
        || name.eq_ignore_ascii_case("localhost")
        || name.to_ascii_lowercase().ends_with(".localhost")
        || name.parse::<IpAddr>().is_ok();
    if own {
        return Ok(());
    }
    let text = format!(
        "this server knows itself as localhost, not as {name:?}; use http://localhost, or start \
         it with --api-key-file"
    );
    Err(ApiError::new(ErrorKind::Forbidden, "unknown_host", text))
}

/// The name of `name:port` or `[address]:port`.
fn host_name(host: &str) -> &str {
    match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => address,
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    }
}

fn check_origin(app: &App, headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(origin) = headers.get(ORIGIN).and_then(|origin| origin.to_str().ok()) else {
        return Ok(());
    };
    let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let place = origin.split_once("://").map_or(origin, |(_, place)| place);
    let allowed = match app.options.cors.as_deref() {
        Some("*") => true,
        Some(one) => one == origin,
        None => false,
    };
    if allowed || place.eq_ignore_ascii_case(host) {
        return Ok(());
    }
    let text = format!(
        "pages of {origin} may not use this server; start it with --cors {origin} to allow that"
    );
    Err(ApiError::new(ErrorKind::Forbidden, "origin_not_allowed", text))
}

/// Headers that let a page of an allowed origin read the answer; none by default.
pub(crate) fn cors(app: &App, headers: &HeaderMap) -> Vec<(HeaderName, HeaderValue)> {
    let origin = headers.get(ORIGIN);
    let (Some(allowed), Some(origin)) = (app.options.cors.as_deref(), origin) else {
        return Vec::new();
    };
    if allowed != "*" && allowed.as_bytes() != origin.as_bytes() {
        return Vec::new();
    }
    let fixed = HeaderValue::from_static;
    vec![
        (ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone()),
        (VARY, fixed("origin")),
        (ACCESS_CONTROL_ALLOW_METHODS, fixed("GET, POST, DELETE, OPTIONS")),
        (
            ACCESS_CONTROL_ALLOW_HEADERS,
            fixed("authorization, content-type, x-api-key, anthropic-version, anthropic-beta"),
        ),
        (ACCESS_CONTROL_EXPOSE_HEADERS, fixed("x-request-id, retry-after")),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_key_is_the_key() {
        let keys = ["a-long-key".to_owned(), "another-key".to_owned()];
        let asks = |name: &'static str, value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, HeaderValue::from_static(value));
            has_key(&keys, &headers)
        };
        assert!(asks("authorization", "Bearer a-long-key"));
        assert!(asks("authorization", "bearer another-key"));
        assert!(asks("x-api-key", "a-long-key"));
        for wrong in ["", "a-long-ke", "a-long-keya-long-key", "a-long-kez", "A-long-key"] {
            assert!(!asks("x-api-key", wrong), "{wrong}");
        }
        assert!(!asks("authorization", "a-long-key"), "no scheme");
        assert!(!asks("authorization", "Basic a-long-key"));
        assert!(!has_key(&keys, &HeaderMap::new()));
    }

    #[test]
    fn names_of_hosts() {
        for (host, name) in [
            ("localhost:8080", "localhost"),
            ("127.0.0.1", "127.0.0.1"),
            ("[::1]:80", "::1"),
            ("evil.example:8080", "evil.example"),
            ("", ""),
        ] {
            assert_eq!(host_name(host), name);
        }
    }
}
