//! A file for each request: what was asked, what the model read, what it wrote, and when.
//!
//! Keys travel in headers, which are never written; the server's own keys are taken out of bodies
//! too, should a client repeat them there.

use super::answer::Job;
use super::app::{App, now};
use ironstar_engine::scheduler::Event;
use serde_json::{Value, json};
use std::time::Instant;

/// Events of a request that are written at most.
const EVENTS_MAX: usize = 10_000;

pub(crate) struct Trace {
    name: String,
    head: Value,
    events: Vec<Value>,
    begun: Instant,
}

impl Trace {
    /// Begins the file of a request, where there are traces.
    pub fn begin(app: &App, job: &Job, seed: u64) -> Option<Trace> {
        app.options.trace.as_ref()?;
        let body = job.body.as_deref().unwrap_or_default();
        let mut body = String::from_utf8_lossy(body).into_owned();
        for key in &app.options.keys {
            body = body.replace(key.as_str(), "[key]");
        }
        let prompts: Vec<Value> = job
            .prompts
            .iter()
            .map(|prompt| {
                let text = app.model.tokenizer.decode(&prompt.tokens);
                json!({
                    "text": String::from_utf8_lossy(&text),
                    "tokens": prompt.tokens,
                    "constrained": prompt.constraint.is_some(),
                })
            })
            .collect();
        let head = json!({
            "request": job.request_id,
            "time": now(),
            "protocol": format!("{:?}", job.call.protocol),
            "model": app.model.name,
            "body": body,
            "seed": seed,
            "ignored": job.call.notes,
            "thinking": format!("{:?}", job.call.thinking),
            "sampling": format!("{:?}", job.call.sampling),
            "prompts": prompts,
        });
        let (name, begun) = (job.request_id.clone(), Instant::now());
        Some(Trace { name, head, events: Vec::new(), begun })
    }

    /// Something happened to a choice.
    pub fn event(&mut self, choice: usize, event: &Event) {
        if self.events.len() >= EVENTS_MAX {
            return;
        }
        let ms = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.events.push(match event {
            Event::Queued { ahead } => json!({"ms": ms, "choice": choice, "ahead": ahead}),
            Event::Progress { done, total } => {
                json!({"ms": ms, "choice": choice, "read": done, "of": total})
            }
            Event::Prompt(tokens) => json!({"ms": ms, "choice": choice, "scored": tokens.len()}),
            Event::Token(token) => {
                json!({"ms": ms, "choice": choice, "token": token.id, "logprob": token.logprob})
            }
            Event::Done { finish, stats } => json!({
                "ms": ms,
                "choice": choice,
                "finish": format!("{finish:?}"),
                "prompt": stats.prompt,
                "reused": stats.reused,
                "drafted": stats.speculation.drafted,
                "accepted": stats.speculation.accepted,
            }),
            Event::Failed { failure, .. } => {
                json!({"ms": ms, "choice": choice, "failed": failure.to_string()})
            }
        });
    }

    /// Writes the file. A disk that is full costs a line of the log and nothing else.
    pub fn end(mut self, app: &App, answers: Vec<Vec<u32>>, outcome: &str) {
        let Some(folder) = &app.options.trace else { return };
        let answers: Vec<Value> = answers
            .into_iter()
            .map(|ids| {
                let text = app.model.tokenizer.decode(&ids);
                json!({"text": String::from_utf8_lossy(&text), "tokens": ids})
            })
            .collect();
        if let Value::Object(head) = &mut self.head {
            head.insert("answers".into(), answers.into());
            head.insert("outcome".into(), outcome.into());
            head.insert("events".into(), self.events.into());
        }
        let path = folder.join(format!("{}.json", self.name));
        let written = std::fs::create_dir_all(folder)
            .and_then(|()| std::fs::write(&path, format!("{:#}\n", self.head)));
        if let Err(error) = written {
            app.log(&format!("writing {}: {error}", path.display()));
        }
    }
}
