//! Whether and how much the model is to reason: every way that clients ask for it.
//!
//! The table is in `docs/api.md`. A switch says on or off, an effort says how much; an effort of
//! `none` is a switch too. A switch wins over an effort unless they contradict each other outright;
//! both win over the name of the model.

use ironstar_text::chat::{Effort, Thinking};

use crate::ApiError;
use crate::json::{Fields, Kind, Node};

/// What was asked for so far.
#[derive(Debug, Default)]
pub(super) struct Asked {
    switch: Option<bool>,
    effort: Option<(Thinking, String)>,
}

/// Words for efforts. `minimal` is as little as there is: none.
const EFFORTS: [(&str, Thinking); 8] = [
    ("none", Thinking::Off),
    ("off", Thinking::Off),
    ("minimal", Thinking::Off),
    ("low", Thinking::On(Effort::Low)),
    ("medium", Thinking::On(Effort::High)),
    ("high", Thinking::On(Effort::High)),
    ("xhigh", Thinking::On(Effort::High)),
    ("max", Thinking::On(Effort::Max)),
];

/// Types of a `thinking` object.
const TYPES: [(&str, bool); 4] =
    [("enabled", true), ("adaptive", true), ("auto", true), ("disabled", false)];

/// Ends of model names that say whether to reason, the longest of those that fit first.
const NAMES: [(&str, bool); 6] = [
    ("deepseek-chat", false),
    ("deepseek-reasoner", true),
    ("-no-think", false),
    ("-nothink", false),
    ("-non-thinking", false),
    ("-reasoner", true),
];

impl Asked {
    /// Reads the fields that any protocol may have.
    pub(super) fn fields(&mut self, fields: &mut Fields<'_>) -> Result<(), ApiError> {
        for name in ["thinking", "think", "enable_thinking"] {
            if let Some(node) = fields.take(name) {
                self.switch_or_effort(&node)?;
            }
        }
        if let Some(node) = fields.take("reasoning_effort") {
            self.effort(&node)?;
        }
        if let Some(node) = fields.take("chat_template_kwargs") {
            let mut inner = node.object()?;
            for name in ["enable_thinking", "thinking", "reasoning_effort", "thinking_mode"] {
                if let Some(node) = inner.take(name) {
                    self.switch_or_effort(&node)?;
                }
            }
        }
        Ok(())
    }

    /// A boolean, an object with a `type`, or a word for an effort.
    fn switch_or_effort(&mut self, node: &Node<'_>) -> Result<(), ApiError> {
        match node.kind() {
            Kind::Bool => self.switch(node.bool()?),
            Kind::Object => {
                let mut inner = node.object()?;
                if let Some(kind) = inner.take("type") {
                    self.switch(kind.one_of(&TYPES)?);
                }
                if let Some(effort) = inner.take("effort") {
                    self.effort(&effort)?;
                }
            }
            _ => return self.effort(node),
        }
        Ok(())
    }

    /// Off wins where switches disagree: it is what somebody went out of their way to say.
    pub(super) fn switch(&mut self, on: bool) {
        self.switch = Some(self.switch.unwrap_or(true) && on);
    }

    /// An effort: a word, or a number from 0 to 100 as V4.1 has them.
    pub(super) fn effort(&mut self, node: &Node<'_>) -> Result<(), ApiError> {
        let word = if node.kind() == Kind::String { node.string()? } else { node.raw().to_owned() };
        let effort = match word.parse::<u32>() {
            Ok(0) => Thinking::Off,
            Ok(1..=62) => Thinking::On(Effort::Low),
            Ok(63..=87) => Thinking::On(Effort::High),
            Ok(88..=100) => Thinking::On(Effort::Max),
            _ => node.one_of(&EFFORTS)?,
        };
        self.effort = Some((effort, node.path().to_owned()));
        Ok(())
    }

    /// What all of it together means.
    pub(super) fn resolve(self, model: &str) -> Result<Option<Thinking>, ApiError> {
        Ok(match (self.switch, self.effort) {
            (Some(false), _) => Some(Thinking::Off),
            (Some(true), Some((Thinking::Off, path))) => {
                let message = format!("`{path}` turns thinking off and another field turns it on");
                return Err(ApiError::invalid(path, message));
            }
            (_, Some((effort, _))) => Some(effort),
            (Some(true), None) => Some(Thinking::On(Effort::High)),
            (None, None) => by_name(model),
        })
    }
}

fn by_name(model: &str) -> Option<Thinking> {
    let (_, on) = NAMES.iter().find(|(name, _)| model.ends_with(name))?;
    Some(if *on { Thinking::On(Effort::High) } else { Thinking::Off })
}
