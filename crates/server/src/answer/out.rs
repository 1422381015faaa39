//! The way out of an answer: a stream of events, or one body.

use super::ask::Job;
use crate::body::Writer;
use ironstar_wire::{ApiError, Collector, Encoder, ErrorKind, Finish, Frame, Output, Usage};

pub(super) enum Out {
    /// Events, as they come.
    Stream(Box<Stream>),
    /// One body at the end.
    Whole(Collector),
}

/// A stream that cannot end without its closing event: the one place that writes it is `drop`,
/// which also runs where a task is thrown away or panics.
pub(super) struct Stream {
    encoder: Encoder,
    writer: Writer,
    pending: String,
    /// The same answer as one body, where it is stored.
    kept: Option<Collector>,
}

impl Out {
    pub fn stream(job: &Job, writer: Writer) -> Out {
        let collector = || Collector::new(&job.call, job.identity.clone());
        Out::Stream(Box::new(Stream {
            encoder: Encoder::new(&job.call, job.identity.clone()),
            writer,
            pending: String::new(),
            kept: super::relay::stores(&job.call).then(collector),
        }))
    }

    pub fn whole(job: &Job) -> Out {
        Out::Whole(Collector::new(&job.call, job.identity.clone()))
    }

    pub fn start(&mut self, usage: &Usage) {
        if let Out::Stream(stream) = self {
            let frames = stream.encoder.start(usage);
            stream.push(&frames);
        }
    }

    pub fn output(&mut self, choice: usize, output: &Output) {
        match self {
            Out::Whole(collector) => collector.output(choice, output),
            Out::Stream(stream) => {
                let frames = stream.encoder.output(choice, output);
                stream.push(&frames);
                if let Some(kept) = &mut stream.kept {
                    kept.output(choice, output);
                }
            }
        }
    }

    pub fn finish(&mut self, choice: usize, finish: Finish, usage: &Usage) {
        match self {
            Out::Whole(collector) => collector.finish(choice, finish, usage),
            Out::Stream(stream) => {
                if let Some(kept) = &mut stream.kept {
                    kept.finish(choice, finish.clone(), usage);
                }
                let frames = stream.encoder.finish(choice, finish, usage);
                stream.push(&frames);
            }
        }
    }

    pub fn fail(&mut self, error: &ApiError) {
        if let Out::Stream(stream) = self {
            let frames = stream.encoder.fail(error);
            stream.push(&frames);
        }
    }

    pub fn keepalive(&mut self) {
        if let Out::Stream(stream) = self {
            let frame = stream.encoder.keepalive();
            stream.push(&[frame]);
        }
    }

    pub fn is_stream(&self) -> bool {
        matches!(self, Out::Stream(_))
    }

    /// Comes back when nobody reads any more. A body that is made at the end has no reader yet:
    /// who waits for it is dropped.
    pub async fn closed(&self) {
        match self {
            Out::Stream(stream) => stream.writer.closed().await,
            Out::Whole(_) => std::future::pending().await,
        }
    }

    /// Sends what is there; false if nobody reads any more.
    pub async fn flush(&mut self) -> bool {
        let Out::Stream(stream) = self else { return true };
        // The closing event is left to `drop`.
        if stream.pending.is_empty() || stream.encoder.closed() {
            return true;
        }
        let text = std::mem::take(&mut stream.pending);
        stream.writer.write(text).await
    }

    /// The whole answer, where there is one body, or one is kept.
    pub fn body(&self) -> Option<String> {
        match self {
            Out::Whole(collector) => Some(collector.body()),
            Out::Stream(stream) => stream.kept.as_ref().map(Collector::body),
        }
    }
}

impl Stream {
    fn push(&mut self, frames: &[Frame]) {
        for frame in frames {
            self.pending.push_str(&frame.to_sse());
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if !self.encoder.closed() {
            let text = "the answer was given up inside; please report this";
            let error = ApiError::new(ErrorKind::Internal, "answer_lost", text);
            let frames = self.encoder.fail(&error);
            self.push(&frames);
        }
        self.writer.end(std::mem::take(&mut self.pending));
    }
}
