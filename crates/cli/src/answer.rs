//! One model, one session, and answers from it: what `run`, the chat and `eval` share.

use crate::failure::Failure;
use crate::flags::{self, Speculate};
use crate::loading;
use crate::progress::Progress;
use ironstar_engine::sampler::Settings;
use ironstar_engine::store::Problem;
use ironstar_engine::{
    CancelFlag, Control, Engine, Finish, Generate, Session, Speculation, SpeculationReport, Token,
};
use ironstar_text::{Channel, ThinkSplitter, Tokenizer};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A model that answers.
pub struct Answerer {
    /// The model.
    pub engine: Engine,
    /// Its one timeline.
    pub session: Session,
    /// Its vocabulary.
    pub tokenizer: Arc<Tokenizer>,
    /// What to call the model.
    pub name: String,
    /// Temperature that the file recommends.
    pub default_temperature: Option<f64>,
    speculation: Speculation,
}

/// An answer and how it came about.
pub struct Answer {
    /// What the model thought.
    pub reasoning: String,
    /// What it said.
    pub content: String,
    /// Every token, the one that ended it included.
    pub tokens: Vec<Token>,
    /// Tokens of the prompt, and how many needed no work.
    pub prompt: (usize, usize),
    /// Why it ended.
    pub finish: Finish,
    /// What guessing gained.
    pub speculation: SpeculationReport,
    /// Time for the prompt and for the answer.
    pub times: (Duration, Duration),
}

impl Answerer {
    /// Loads the model that the flags name.
    pub fn open(flags: &flags::Model) -> Result<Self, Failure> {
        let (mut engine, opened) = loading::engine(flags)?;
        let most = engine.model().shape().context;
        if flags.ctx > most {
            return Err(Failure::caller(format!(
                "--ctx {}: this model was made for at most {most} tokens",
                flags.ctx
            )));
        }
        let session = engine.session(flags.ctx).map_err(loading::from_engine)?;
        let tokenizer = loading::engine_tokenizer(&engine, &opened)?;
        let temperature = opened.gguf.metadata().opt_f32("general.sampling.temp");
        Ok(Answerer {
            engine,
            session,
            tokenizer,
            name: opened.name,
            default_temperature: temperature
                .map_err(|error| loading::from_gguf(&error))?
                .map(f64::from),
            speculation: match flags.speculate {
                Speculate::Auto => Speculation::Auto,
                Speculate::Off => Speculation::Off,
                Speculate::Mtp => Speculation::Mtp,
                Speculate::Dspark => Speculation::Dspark,
                Speculate::Lookup => Speculation::Lookup,
            },
        })
    }

    /// Waits until what was read is on disk, and tells what went wrong with that.
    pub fn finish_storing(&mut self) -> Vec<String> {
        self.engine.flush_store();
        let problems = self.engine.store().status().problems;
        let line = |p: &Problem| match p.count {
            1 => p.text.clone(),
            n => format!("{} ({n} times)", p.text),
        };
        problems.iter().map(line).collect()
    }

    /// Refuses a text that has too many tokens for the context, whatever they are, before the work
    /// of finding them.
    pub fn check_length(&self, text: &str) -> Result<(), Failure> {
        let tokenizer = &self.tokenizer;
        let lengths = (0..tokenizer.vocab_size()).map(|id| tokenizer.token_bytes(id).len());
        let least = text.len() / lengths.max().unwrap_or(1).max(1);
        let context = self.session.context();
        if least < context {
            return Ok(());
        }
        Err(Failure::caller(format!(
            "the prompt has {} bytes, so {least} tokens or more, but the context has room for \
             {context}; give more with --ctx N, or a shorter prompt",
            text.len()
        )))
    }

    /// Settings of the flags, completed by the model file's.
    #[must_use]
    pub fn settings(&self, flags: &flags::Sampling) -> Settings {
        Settings {
            temperature: flags.temp.or(self.default_temperature).unwrap_or(1.0),
            top_k: flags.top_k,
            top_p: flags.top_p,
            min_p: flags.min_p,
            logprobs: flags.logprobs.map(usize::from),
        }
    }

    /// Reads a prompt and answers it; text is handed out as it comes.
    pub fn answer(
        &mut self,
        prompt: &[u32],
        thinking: bool,
        (settings, seed, tokens_max): (Settings, u64, Option<usize>),
        cancel: &CancelFlag,
        on_text: &mut dyn FnMut(Channel, &str),
    ) -> Result<Answer, Failure> {
        let context = self.session.context();
        if prompt.len() >= context {
            return Err(Failure::caller(format!(
                "the prompt has {} tokens, but the context has room for {context}, answer \
                 included; give more with --ctx N, or a shorter prompt",
                prompt.len()
            )));
        }
        let start = Instant::now();
        let bar = Progress::new("reading", prompt.len() as u64, "tokens");
        let reused = self
            .session
            .sync(&mut self.engine, prompt, &mut |progress| bar.at(progress.done as u64), cancel)
            .map_err(loading::from_engine)?
            .reused;
        drop(bar);
        let read = start.elapsed();
        let stop: Vec<u32> = self.tokenizer.eos().into_iter().collect();
        let what = Generate {
            settings,
            seed,
            tokens_max,
            stop: stop.clone(),
            speculation: self.speculation,
            ..Generate::default()
        };
        let mut splitter = ThinkSplitter::new(&self.tokenizer, thinking);
        let (mut reasoning, mut content, mut tokens) = (String::new(), String::new(), Vec::new());
        let mut on_token = |token: &Token| {
            tokens.push(token.clone());
            if !stop.contains(&token.id) {
                let (channel, text) = splitter.push(token.id);
                match channel {
                    Channel::Reasoning => reasoning.push_str(&text),
                    Channel::Content => content.push_str(&text),
                }
                on_text(channel, &text);
            }
            Control::Continue
        };
        let generated = self
            .session
            .generate(&mut self.engine, &what, &mut on_token, cancel)
            .map_err(loading::from_engine)?;
        Ok(Answer {
            reasoning,
            content,
            tokens,
            prompt: (prompt.len(), reused),
            finish: generated.finish,
            speculation: generated.speculation,
            times: (read, start.elapsed() - read),
        })
    }
}

impl Answer {
    /// One line of speeds and counts, for standard error.
    #[must_use]
    pub fn summary(&self, seed: u64) -> String {
        let (prompt, reused) = self.prompt;
        let rate = |count: usize, time: Duration| {
            #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
            let rate = count as f64 / time.as_secs_f64().max(1e-9);
            format!("{rate:.1} tokens/s")
        };
        let mut text = format!(
            "prompt {prompt} tokens ({reused} reused), {}; answer {} tokens, {}",
            rate(prompt - reused, self.times.0),
            self.tokens.len(),
            rate(self.tokens.len(), self.times.1),
        );
        let guessing = &self.speculation;
        if guessing.drafted > 0 {
            text.push_str(&format!("; {} of {} drafts right", guessing.accepted, guessing.drafted));
        }
        text.push_str(&format!("; seed {seed}"));
        text
    }

    /// Why it ended, as APIs call it.
    #[must_use]
    pub fn finish_name(&self) -> &'static str {
        match self.finish {
            Finish::StopToken(_) | Finish::Stopped => "stop",
            Finish::TokensMax | Finish::Context => "length",
            Finish::Cancelled => "cancelled",
        }
    }
}
