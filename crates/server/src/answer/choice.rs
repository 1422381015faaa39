//! One of the answers of a request.

use super::ask::Asked;
use crate::app::App;
use ironstar_engine::scheduler::{Request, Stats};
use ironstar_engine::{CancelFlag, Finish as Ended, Token};
use ironstar_text::Utf8Stream;
use ironstar_text::chat::{Assistant, ToolCall};
use ironstar_wire::{Finish, Output, OutputParser, TokenLogprobs, TopLogprob, Usage};

/// Where a choice is.
pub(super) enum State {
    /// It waits for another one to read the prompt that they share.
    Waiting(Box<Request>),
    /// The engine has it.
    Asked,
    /// It ended, as far as the client is told.
    Done,
}

pub(super) struct Choice {
    pub state: State,
    pub cancel: CancelFlag,
    decoder: Utf8Stream,
    parser: OutputParser,
    stop: Vec<u32>,
    /// The tokens that begin and end reasoning, where the parser is told of them.
    think: [Option<u32>; 2],
    pub usage: Usage,
    /// What a later request may go on from.
    pub message: Assistant,
    /// What the engine says of it at the end.
    pub stats: Stats,
    /// Ids of its tokens, for the trace.
    pub ids: Vec<u32>,
}

impl Choice {
    pub fn new(app: &App, asked: &Asked, request: Request) -> Choice {
        let mut options = asked.parser.clone();
        options.call_ids = app.fresh_id();
        let marker =
            |text: &str| app.model.tokenizer.special(text).filter(|_| options.think_tokens);
        let think = [marker("<think>"), marker("</think>")];
        Choice {
            think,
            cancel: request.cancel.clone(),
            decoder: Utf8Stream::default(),
            parser: OutputParser::new(options),
            stop: request.what.stop.clone(),
            usage: Usage { prompt: request.prompt.len(), ..Usage::default() },
            message: Assistant::default(),
            stats: Stats::default(),
            ids: Vec::new(),
            state: State::Waiting(Box::new(request)),
        }
    }

    /// Takes a token of the answer.
    pub fn token(&mut self, app: &App, token: &Token) -> Vec<Output> {
        self.usage.completion += 1;
        self.usage.reasoning += usize::from(self.parser.reasoning());
        if app.options.trace.is_some() {
            self.ids.push(token.id);
        }
        if self.stop.contains(&token.id) {
            return Vec::new();
        }
        let logprobs = token.logprob.is_some().then(|| logprobs(app, token));
        if let Some(begins) = self.think.iter().position(|id| *id == Some(token.id)) {
            // The token decides, not its letters. No character spans it.
            self.decoder = Utf8Stream::default();
            let outputs = self.parser.push_think(begins == 0, logprobs);
            self.remember(&outputs);
            return outputs;
        }
        let text = self.decoder.push(app.model.tokenizer.token_bytes(token.id));
        if text.is_empty() && logprobs.is_none() {
            return Vec::new();
        }
        let outputs = self.parser.push(&text, logprobs);
        self.remember(&outputs);
        outputs
    }

    /// The stop string that came, if one did.
    pub fn stopped(&self) -> Option<String> {
        self.parser.stopped().map(str::to_owned)
    }

    /// The end: what was held back, and why.
    pub fn end(&mut self, app: &App, ended: Option<Ended>) -> (Vec<Output>, Finish) {
        let cut = matches!(ended, Some(Ended::TokensMax | Ended::Context));
        let outputs = self.parser.end(cut);
        self.remember(&outputs);
        let finish = match self.stopped() {
            Some(stop) => Finish::StopString(stop),
            None if cut => Finish::Length,
            None if self.parser.calls() > 0 => Finish::ToolCalls,
            None => Finish::Stop,
        };
        if let Some(calls) = self.parser.sampled_calls() {
            let mut memory = app.memory.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            memory.remember(calls);
        }
        self.state = State::Done;
        (outputs, finish)
    }

    fn remember(&mut self, outputs: &[Output]) {
        for output in outputs {
            match output {
                Output::Reasoning(text) => {
                    self.message.reasoning.get_or_insert_default().push_str(text);
                }
                Output::Text(text) => self.message.content.push_str(text),
                Output::CallStart { id, name, .. } => {
                    let (id, name, arguments) = (id.clone(), name.clone(), String::new());
                    self.message.calls.push(ToolCall { id, name, arguments });
                }
                Output::CallArguments { index, json_fragment } => {
                    if let Some(call) = self.message.calls.get_mut(*index) {
                        call.arguments.push_str(json_fragment);
                    }
                }
                _ => {}
            }
        }
    }
}

/// The prompt, for an answer that begins with it.
pub(super) struct Echo {
    decoder: Utf8Stream,
}

impl Echo {
    pub fn new() -> Echo {
        Echo { decoder: Utf8Stream::default() }
    }

    /// The next tokens of the prompt. The one that begins a text is the server's, not the client's.
    pub fn tokens(&mut self, app: &App, tokens: &[Token]) -> Vec<Output> {
        let mut outputs = Vec::new();
        for token in tokens.iter().filter(|token| app.model.tokenizer.bos() != Some(token.id)) {
            let text = self.decoder.push(app.model.tokenizer.token_bytes(token.id));
            if !text.is_empty() {
                outputs.push(Output::Text(text));
            }
            outputs.push(Output::Logprobs { reasoning: false, token: logprobs(app, token) });
        }
        outputs
    }

    /// The whole prompt, where no log probabilities are wanted.
    pub fn text(mut self, app: &App, tokens: &[u32]) -> Vec<Output> {
        let tokens = tokens.iter().filter(|id| app.model.tokenizer.bos() != Some(**id));
        let text = tokens.map(|id| self.decoder.push(app.model.tokenizer.token_bytes(*id)));
        vec![Output::Text(text.collect())]
    }
}

/// A token that is the first of a prompt has no probability: NaN.
fn logprobs(app: &App, token: &Token) -> TokenLogprobs {
    let bytes = |id: u32| app.model.tokenizer.token_bytes(id).to_vec();
    let top = token.top.iter().map(|&(id, logprob)| TopLogprob { bytes: bytes(id), logprob });
    let logprob = token.logprob.unwrap_or(f64::NAN);
    TokenLogprobs { bytes: bytes(token.id), logprob, top: top.collect() }
}
