//! Bodies: of requests, read within limits; of streamed answers, written as they come.

use super::app::App;
use axum::body::Body;
use hyper::body::{Body as HttpBody, Bytes, Frame};
use ironstar_wire::{ApiError, ErrorKind};
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

/// Reads a whole body, within the limits of bytes and of time.
pub(crate) async fn read(app: &App, mut body: Body) -> Result<Vec<u8>, ApiError> {
    let most = app.options.limits.body_bytes;
    let too_large = || {
        let text = format!(
            "the body is larger than {most} bytes, which is the most this server takes; send less"
        );
        ApiError::new(ErrorKind::TooLarge, "body_too_large", text)
    };
    // A body that says its length is refused before it is read.
    if body.size_hint().lower() > u64::try_from(most).unwrap_or(u64::MAX) {
        return Err(too_large());
    }
    let end = Instant::now() + app.options.body_timeout;
    let mut bytes = Vec::new();
    loop {
        let pause = (Instant::now() + app.options.body_pause).min(end);
        let next = poll_fn(|context| Pin::new(&mut body).poll_frame(context));
        let frame = match timeout_at(pause, next).await {
            Ok(Some(Ok(frame))) => frame,
            Ok(None) => return Ok(bytes),
            Ok(Some(Err(error))) => {
                let text = format!("the body ended early: {error}");
                return Err(ApiError::new(ErrorKind::Invalid, "body_incomplete", text));
            }
            Err(_) => {
                let (pause, whole) =
                    (app.options.body_pause.as_secs(), app.options.body_timeout.as_secs());
                let text = format!(
                    "the body came too slowly: no pause may be longer than {pause} s, and all of \
                     it must be there in {whole} s"
                );
                return Err(ApiError::new(ErrorKind::Timeout, "body_timeout", text));
            }
        };
        if let Ok(data) = frame.into_data() {
            if bytes.len() + data.len() > most {
                return Err(too_large());
            }
            bytes.extend_from_slice(&data);
        }
    }
}

/// Parts of a stream that may wait for the socket.
const PARTS: usize = 4;

/// What a stream ends with, whatever happens to who writes it.
#[derive(Clone, Debug, Default)]
struct Tail(Arc<Mutex<Option<String>>>);

/// Writes a streamed body.
#[derive(Debug)]
pub(crate) struct Writer {
    parts: mpsc::Sender<Bytes>,
    tail: Tail,
}

/// A body that comes from a [`Writer`].
struct Streamed {
    parts: mpsc::Receiver<Bytes>,
    tail: Tail,
}

/// A body and who writes it.
pub(crate) fn stream() -> (Writer, Body) {
    let (sender, parts) = mpsc::channel(PARTS);
    let tail = Tail::default();
    (Writer { parts: sender, tail: tail.clone() }, Body::new(Streamed { parts, tail }))
}

impl Writer {
    /// Writes, waiting for the socket; false if nobody reads any more.
    pub async fn write(&self, text: String) -> bool {
        self.parts.send(Bytes::from(text)).await.is_ok()
    }

    /// Comes back when nobody reads any more.
    pub async fn closed(&self) {
        self.parts.closed().await;
    }

    /// Ends the body with this; it does not wait and cannot fail.
    pub fn end(&self, text: String) {
        *self.tail.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
    }
}

impl HttpBody for Streamed {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.parts.poll_recv(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Some(part)) => Poll::Ready(Some(Ok(Frame::data(part)))),
            Poll::Ready(None) => {
                let tail = self.tail.0.lock().unwrap_or_else(PoisonError::into_inner).take();
                let tail = tail.filter(|text| !text.is_empty());
                Poll::Ready(tail.map(|text| Ok(Frame::data(Bytes::from(text)))))
            }
        }
    }
}
