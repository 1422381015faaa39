//! From a body to requests for the engine.

use crate::answers::Answer;
use crate::app::{App, Place, now};
use ironstar_engine::sampler::{Adjust, Settings};
use ironstar_engine::scheduler::{Constraint, Request};
use ironstar_engine::{CancelFlag, Generate};
use ironstar_text::Segment;
use ironstar_text::chat::{Conversation, Message};
use ironstar_wire::grammar::{Bounds, of_answer};
use ironstar_wire::{
    ApiError, Call, ErrorKind, Identity, ParserOptions, PlainPrompt, Prompt, Protocol, parse,
    prepare,
};
use std::sync::{Arc, PoisonError};

/// A prompt of at most so many tokens, with a limit of at most [`SIDE_ANSWER`], is a side request:
/// a title for a conversation, which may pass a few waiting ones.
const SIDE_PROMPT: usize = 1024;
const SIDE_ANSWER: usize = 256;

/// A checked request, ready for the engine.
pub(crate) struct Job {
    pub call: Call,
    pub identity: Identity,
    pub request_id: String,
    pub prompts: Vec<Asked>,
    /// Held as long as the request waits or runs.
    pub _place: Place,
    /// For the trace: the body as it came.
    pub body: Option<Vec<u8>>,
}

/// One prompt of a request.
#[derive(Clone)]
pub(crate) struct Asked {
    pub tokens: Vec<u32>,
    pub parser: ParserOptions,
    pub constraint: Option<Box<dyn Constraint>>,
}

/// Reads a request and makes its prompts; the work is done beside the threads that serve.
pub(crate) async fn ask(
    app: &Arc<App>,
    protocol: Protocol,
    request_id: String,
    body: Vec<u8>,
) -> Result<Job, ApiError> {
    let app = app.clone();
    blocking(move || {
        let place = app.admit()?;
        let mut call = parse(protocol, &body, &app.options.limits)?;
        go_on(&app, &mut call)?;
        let prompts = prompts(&app, &call)?;
        for prompt in &prompts {
            check_length(&app, &call, prompt.tokens.len())?;
        }
        let identity =
            Identity { id: app.fresh_id(), created: now(), model: app.model.name.clone() };
        for note in &call.notes {
            app.log(&format!("{request_id}: {note}"));
        }
        let body = app.options.trace.is_some().then_some(body);
        Ok(Job { call, identity, request_id, prompts, _place: place, body })
    })
    .await
}

/// Tokens of a request's prompt, as an answer's usage would have them.
pub(crate) async fn count(app: &Arc<App>, body: Vec<u8>) -> Result<usize, ApiError> {
    let app = app.clone();
    blocking(move || {
        let call = parse(Protocol::Messages, &body, &app.options.limits)?;
        Ok(prompts(&app, &call)?.iter().map(|prompt| prompt.tokens.len()).sum())
    })
    .await
}

/// Work that may take long or wait for a disk, beside the threads that serve.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|_panic| {
        let text = "the request failed inside; please report this";
        Err(ApiError::new(ErrorKind::Internal, "request_failed", text))
    })
}

fn prompts(app: &App, call: &Call) -> Result<Vec<Asked>, ApiError> {
    match &call.prompt {
        Prompt::Conversation(_) => Ok(vec![conversation(app, call)?]),
        Prompt::Plain(prompts) => prompts.iter().map(|prompt| plain(app, call, prompt)).collect(),
    }
}

fn conversation(app: &App, call: &Call) -> Result<Asked, ApiError> {
    let model = &app.model;
    let prepared = {
        let memory = app.memory.lock().unwrap_or_else(PoisonError::into_inner);
        prepare(call, &model.profile, &memory, "")?
    };
    let tokens = encode(app, &prepared.segments)?;
    let constraint = match &prepared.grammar {
        None => None,
        Some(grammar) => {
            let think_end = model.tokenizer.special("</think>");
            let after = think_end.filter(|_| prepared.parser.reasoning);
            Some(app.grammars.constraint(grammar, after)?)
        }
    };
    Ok(Asked { tokens, parser: prepared.parser, constraint })
}

fn plain(app: &App, call: &Call, prompt: &PlainPrompt) -> Result<Asked, ApiError> {
    let tokens = match prompt {
        PlainPrompt::Tokens(tokens) => tokens.clone(),
        PlainPrompt::Text(text) => {
            // As the vendor's tokenizer does: a text begins with the token that begins one.
            let mut tokens: Vec<u32> = app.model.tokenizer.bos().into_iter().collect();
            tokens.extend(app.model.tokenizer.encode(text));
            tokens
        }
    };
    let vocabulary = app.model.vocabulary;
    if let Some(wrong) = tokens.iter().find(|&&token| token as usize >= vocabulary) {
        let text = format!("token {wrong} is outside the vocabulary of {vocabulary} tokens");
        return Err(ApiError::invalid("prompt", text));
    }
    if tokens.is_empty() {
        return Err(ApiError::invalid("prompt", "the prompt is empty; send at least one token"));
    }
    let parser = ParserOptions {
        release: app.model.profile.release,
        stop: call.stop.clone(),
        ..ParserOptions::default()
    };
    let bounds = Bounds {
        release: app.model.profile.release,
        dsml_token: app.model.profile.dsml_token,
        in_calls: false,
        tools: &call.tools,
        format: &call.format,
    };
    let grammar = of_answer(&bounds);
    let constraint = grammar.map(|text| app.grammars.constraint(&text, None)).transpose()?;
    Ok(Asked { tokens, parser, constraint })
}

fn encode(app: &App, segments: &[Segment]) -> Result<Vec<u32>, ApiError> {
    app.model.tokenizer.encode_segments(segments).map_err(|error| {
        let text = format!("this model cannot read the prompt: {error}");
        ApiError::unsupported("messages", text)
    })
}

fn check_length(app: &App, call: &Call, tokens: usize) -> Result<(), ApiError> {
    let context = app.model.context;
    // At least one token of the answer must fit, where one is wanted.
    let wanted = tokens.saturating_add(usize::from(call.max_tokens != Some(0)));
    if wanted > context {
        return Err(ApiError::context_length(tokens, context));
    }
    let planned = call.max_tokens.map_or(context, |most| tokens.saturating_add(most).min(context));
    let most = app.client.session_tokens_max();
    if planned <= most {
        return Ok(());
    }
    let text = format!(
        "a session of {planned} tokens, {tokens} of them the prompt, has no room in the memory \
         that sessions may take; one of {most} tokens has: send a shorter prompt, or set a limit \
         of tokens that fits"
    );
    Err(ApiError::new(ErrorKind::Invalid, "session_too_large", text))
}

/// Puts the conversation of the answer that a request goes on from before its own.
fn go_on(app: &App, call: &mut Call) -> Result<(), ApiError> {
    let (Some(previous), Prompt::Conversation(conversation)) =
        (call.previous.clone(), &mut call.prompt)
    else {
        return Ok(());
    };
    let Some(Answer { messages, .. }) = app.answers.get(&previous) else {
        let text = format!(
            "no answer {previous:?} is stored: it was made without `store`, forgotten, or by \
             another server; send the whole conversation as `input`"
        );
        let mut error = ApiError::new(ErrorKind::NotFound, "previous_response_not_found", text);
        error.param = Some("previous_response_id".into());
        return Err(error);
    };
    let own = usize::from(has_instructions(call.repeated.as_slice(), conversation));
    conversation.messages.splice(own..own, messages);
    Ok(())
}

/// Whether the first message is what the field `instructions` says; those of earlier requests do
/// not count for later ones.
fn has_instructions(repeated: &[(&'static str, String)], conversation: &Conversation) -> bool {
    let given = repeated.iter().any(|(name, json)| *name == "instructions" && json != "null");
    given
        && matches!(conversation.messages.first(), Some(Message::System(_) | Message::Developer(_)))
}

/// The messages that a later request goes on from, without the answer.
pub(super) fn history(call: &Call) -> Vec<Message> {
    match &call.prompt {
        Prompt::Plain(_) => Vec::new(),
        Prompt::Conversation(conversation) => {
            let own = usize::from(has_instructions(&call.repeated, conversation));
            conversation.messages[own..].to_vec()
        }
    }
}

/// What the engine is asked for one choice.
pub(super) fn request(app: &App, call: &Call, asked: &Asked, seed: u64) -> Request {
    let (wish, model) = (&call.sampling, &app.model);
    let settings = Settings {
        temperature: wish.temperature.unwrap_or(model.settings.temperature),
        top_k: wish.top_k.unwrap_or(model.settings.top_k),
        top_p: wish.top_p.unwrap_or(model.settings.top_p),
        min_p: wish.min_p.unwrap_or(model.settings.min_p),
        logprobs: call.logprobs,
    };
    #[expect(clippy::cast_possible_truncation, reason = "f32 is what logits are")]
    let number = |wish: Option<f64>, default: f32| wish.map_or(default, |number| number as f32);
    let bias = wish.logit_bias.iter().flatten();
    let adjust = Adjust {
        bias: bias.map(|&(token, bias)| (token, number(Some(bias), 0.0))).collect(),
        repetition: number(wish.repetition_penalty, 1.0),
        presence: number(wish.presence_penalty, 0.0),
        frequency: number(wish.frequency_penalty, 0.0),
    };
    let what = Generate {
        settings,
        adjust,
        seed,
        tokens_max: call.max_tokens,
        stop: model.tokenizer.eos().into_iter().collect(),
        speculation: model.speculation,
    };
    let side = asked.tokens.len() <= SIDE_PROMPT
        && call.max_tokens.is_some_and(|most| most <= SIDE_ANSWER);
    Request {
        prompt: asked.tokens.clone(),
        what,
        side,
        deadline: None,
        cancel: CancelFlag::default(),
        constraint: asked.constraint.clone(),
        prompt_logprobs: call.logprobs.filter(|_| call.echo),
        // Who names a seed wants the same answer whatever was read before.
        is_text: wish.seed.is_none() && app.options.seed.is_none(),
    }
}
