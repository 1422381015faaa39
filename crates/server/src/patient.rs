//! A socket that gives up on a client which takes nothing for too long.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// A stream whose writes fail when the other side accepts none of them in time.
pub(crate) struct Patient<S> {
    stream: S,
    timeout: Duration,
    /// Runs while a write waits.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<S> Patient<S> {
    pub fn new(stream: S, timeout: Duration) -> Self {
        Patient { stream, timeout, deadline: None }
    }

    fn watch<T>(
        &mut self,
        context: &mut Context<'_>,
        poll: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if poll.is_ready() {
            self.deadline = None;
            return poll;
        }
        let timeout = self.timeout;
        let deadline = self
            .deadline
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + timeout)));
        match deadline.as_mut().poll(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(()) => {
                let text = "the client takes nothing of what is sent";
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, text)))
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watch(context, poll)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.watch(context, poll)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    fn paused() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime needs no more than a thread")
    }

    #[test]
    fn a_reader_that_reads_nothing_is_given_up() {
        paused().block_on(async {
            let (mine, _theirs) = tokio::io::duplex(16);
            let mut mine = Patient::new(mine, Duration::from_secs(30));
            let start = Instant::now();
            let error = mine.write_all(&[0; 17]).await.expect_err("16 bytes fit");
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            assert_eq!(start.elapsed().as_secs(), 30);
        });
    }

    #[test]
    fn a_reader_that_is_slow_but_reads_is_not() {
        paused().block_on(async {
            let (mine, mut theirs) = tokio::io::duplex(16);
            let mut mine = Patient::new(mine, Duration::from_secs(30));
            let write = async { mine.write_all(&[7; 200]).await.map(|()| drop(mine)) };
            let read = async {
                let (mut all, mut part) = (Vec::new(), [0; 3]);
                loop {
                    tokio::time::sleep(Duration::from_secs(20)).await;
                    match theirs.read(&mut part).await {
                        Ok(0) | Err(_) => return all,
                        Ok(count) => all.extend_from_slice(&part[..count]),
                    }
                }
            };
            let (wrote, all) = tokio::join!(write, read);
            assert!(wrote.is_ok());
            assert_eq!(all, [7; 200]);
        });
    }
}
