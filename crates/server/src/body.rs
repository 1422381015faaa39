//! Bodies: of requests, read within limits; of streamed answers, written as they come.

use super::app::App;
use axum::body::Body;
use hyper::body::{Body as HttpBody, Bytes, Frame};
use ironstar_wire::{ApiError, ErrorKind};
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

/// What a body ends with, whatever happens to who writes it.
#[derive(Debug)]
enum Tail {
    /// Its last bytes; nothing is missing then.
    Whole(String),
    /// Its last bytes, and the connection breaks: nobody may take it for a whole one. This is also
    /// the end of a body whose writer is gone without a word.
    Broken(String),
    /// The last bytes of a broken one are on their way.
    Leaving,
}

#[derive(Clone, Debug)]
struct SharedTail(Arc<Mutex<Tail>>);

impl SharedTail {
    fn set(&self, tail: Tail) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = tail;
    }
}

/// Writes a streamed body.
#[derive(Debug)]
pub(crate) struct Writer {
    parts: mpsc::Sender<Bytes>,
    tail: SharedTail,
}

/// A body that comes from a [`Writer`].
struct Streamed {
    parts: mpsc::Receiver<Bytes>,
    tail: SharedTail,
}

/// A body and who writes it.
pub(crate) fn stream() -> (Writer, Body) {
    let (sender, parts) = mpsc::channel(PARTS);
    let tail = SharedTail(Arc::new(Mutex::new(Tail::Broken(String::new()))));
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
        self.tail.set(Tail::Whole(text));
    }

    /// Ends the body with this, and breaks the connection: the status that the head gave does not
    /// hold.
    pub fn fail(&self, text: String) {
        self.tail.set(Tail::Broken(text));
    }
}

impl HttpBody for Streamed {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        match self.parts.poll_recv(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Some(part)) => Poll::Ready(Some(Ok(Frame::data(part)))),
            Poll::Ready(None) => {
                let tail = {
                    let mut tail = self.tail.0.lock().unwrap_or_else(PoisonError::into_inner);
                    std::mem::replace(&mut *tail, Tail::Whole(String::new()))
                };
                match tail {
                    Tail::Whole(text) if text.is_empty() => Poll::Ready(None),
                    Tail::Whole(text) => Poll::Ready(Some(Ok(Frame::data(Bytes::from(text))))),
                    Tail::Broken(text) if text.is_empty() => Poll::Ready(Some(Err(broken()))),
                    Tail::Broken(text) => {
                        self.tail.set(Tail::Leaving);
                        Poll::Ready(Some(Ok(Frame::data(Bytes::from(text)))))
                    }
                    Tail::Leaving => {
                        // Once more round: the socket gets the last bytes before it is closed.
                        self.tail.set(Tail::Broken(String::new()));
                        context.waker().wake_by_ref();
                        Poll::Pending
                    }
                }
            }
        }
    }
}

fn broken() -> std::io::Error {
    std::io::Error::other("the answer failed after its head was sent")
}
