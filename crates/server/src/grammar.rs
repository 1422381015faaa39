//! Grammars that bound an answer: llguidance's matcher as a scheduler's constraint.

use super::Model;
use ironstar_engine::scheduler::Constraint;
use ironstar_text::Tokenizer;
use ironstar_wire::ApiError;
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{TokEnv, TokRxInfo, TokTrie, TokenizerEnv};
use llguidance::{Matcher, ParserFactory};
use std::sync::{Arc, OnceLock};

/// What llguidance must know of a vocabulary.
struct Environment {
    tokenizer: Arc<Tokenizer>,
    trie: TokTrie,
}

impl TokenizerEnv for Environment {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<u32> {
        self.tokenizer.encode_bytes(bytes)
    }

    // Masks only: no token is ever forced, so that sampling sees every position.
    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}

/// Compiles grammars for one vocabulary, which is prepared when the first is wanted.
pub(crate) struct Grammars {
    tokenizer: Arc<Tokenizer>,
    vocabulary: usize,
    factory: OnceLock<Result<ParserFactory, String>>,
}

impl Grammars {
    pub fn new(model: &Model) -> Self {
        let (tokenizer, vocabulary) = (model.tokenizer.clone(), model.vocabulary);
        Grammars { tokenizer, vocabulary, factory: OnceLock::new() }
    }

    fn factory(&self) -> Result<&ParserFactory, ApiError> {
        let made = self.factory.get_or_init(|| {
            let environment = environment(&self.tokenizer, self.vocabulary)?;
            let mut factory =
                ParserFactory::new_simple(&environment).map_err(|error| error.to_string())?;
            factory.quiet();
            factory.limits_mut().verbose_errors = false;
            Ok(factory)
        });
        made.as_ref().map_err(|text| {
            ApiError::unsupported(
                "response_format",
                format!("no grammar can bound this model: {text}"),
            )
        })
    }

    /// A constraint from the text of a grammar in the Lark dialect. `after` is the token before
    /// which everything may come: the end of the reasoning.
    pub fn constraint(
        &self,
        lark: &str,
        after: Option<u32>,
    ) -> Result<Box<dyn Constraint>, ApiError> {
        let parser = self.factory()?.create_parser(TopLevelGrammar::from_lark(lark.to_owned()));
        let refused = |text: String| {
            let text = format!(
                "this schema cannot be enforced: {text}; remove what it names, or ask without \
                 strict"
            );
            ApiError::unsupported("response_format", text)
        };
        let parser = parser.map_err(|error| refused(first_line(&format!("{error:#}"))))?;
        let matcher = Matcher::new(Ok(parser));
        if let Some(error) = matcher.get_error() {
            return Err(refused(first_line(&error)));
        }
        Ok(Box::new(Bound { matcher, after }))
    }
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().chars().take(400).collect()
}

fn environment(tokenizer: &Arc<Tokenizer>, vocabulary: usize) -> Result<TokEnv, String> {
    let eos = tokenizer.eos().ok_or("its vocabulary has no token that ends an answer")?;
    let count = u32::try_from(vocabulary).map_err(|error| error.to_string())?;
    let words: Vec<Vec<u8>> = (0..count)
        .map(|id| match tokenizer.token_bytes(id) {
            // Control tokens are none of the texts that a grammar can spell.
            bytes if tokenizer.is_control(id) => [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes].concat(),
            bytes => bytes.to_vec(),
        })
        .collect();
    let trie = TokTrie::from(&TokRxInfo::new(count, eos), &words);
    Ok(Arc::new(Environment { tokenizer: tokenizer.clone(), trie }))
}

/// A grammar within an answer.
struct Bound {
    matcher: Matcher,
    /// The token that everything may precede, until it came.
    after: Option<u32>,
}

impl Constraint for Bound {
    fn mask(&mut self, logits: &mut [f32]) -> Result<(), String> {
        if self.after.is_some() {
            return Ok(());
        }
        let mask = self.matcher.compute_mask_or_eos().map_err(|error| error.to_string())?;
        for (id, logit) in (0..).zip(logits.iter_mut()) {
            if (id as usize) >= mask.len() || !mask.is_allowed(id) {
                *logit = f32::NEG_INFINITY;
            }
        }
        Ok(())
    }

    fn accept(&mut self, token: u32) -> Result<(), String> {
        match self.after {
            Some(after) if after == token => self.after = None,
            Some(_) => {}
            None => self.matcher.consume_token(token).map_err(|error| error.to_string())?,
        }
        Ok(())
    }

    fn allowed(&mut self, guesses: &[u32]) -> usize {
        let free = match self.after {
            None => 0,
            Some(after) => match guesses.iter().position(|guess| *guess == after) {
                None => return guesses.len(),
                Some(at) => at + 1,
            },
        };
        // A matcher that has failed says so when the next token is drawn.
        free + self.matcher.validate_tokens(&guesses[free..]).unwrap_or(0)
    }

    fn duplicate(&self) -> Box<dyn Constraint> {
        Box::new(Bound { matcher: self.matcher.deep_clone(), after: self.after })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scripted::tiny_tokenizer;

    fn grammars() -> (Grammars, Arc<Tokenizer>) {
        let tokenizer = Arc::new(tiny_tokenizer());
        let vocabulary = usize::try_from(tokenizer.vocab_size()).expect("it is small") + 6;
        (Grammars { tokenizer: tokenizer.clone(), vocabulary, factory: OnceLock::new() }, tokenizer)
    }

    /// Bytes and markers that may follow.
    fn next(constraint: &mut Box<dyn Constraint>, vocabulary: usize) -> Vec<u32> {
        let mut logits = vec![0.0; vocabulary];
        constraint.mask(&mut logits).expect("the grammar goes on");
        (0..).zip(logits).filter(|(_, logit)| *logit == 0.0).map(|(id, _)| id).collect()
    }

    #[test]
    fn only_what_the_grammar_says_may_follow_and_then_the_end() {
        let (grammars, tokenizer) = grammars();
        let lark = r#"start: "ab" | "ac""#;
        let mut bound = grammars.constraint(lark, None).expect("a grammar");
        assert_eq!(next(&mut bound, grammars.vocabulary), [u32::from(b'a')]);
        let guesses = tokenizer.encode("acx");
        assert_eq!(bound.allowed(&guesses), 2);
        bound.accept(guesses[0]).expect("it may follow");
        let mut twin = bound.duplicate();
        bound.accept(guesses[1]).expect("it may follow");
        let end = tokenizer.eos().expect("the tiny vocabulary has one");
        assert_eq!(next(&mut bound, grammars.vocabulary), [end]);
        assert_eq!(next(&mut twin, grammars.vocabulary), [u32::from(b'b'), u32::from(b'c')]);
        assert!(twin.accept(u32::from(b'z')).is_err());
    }

    #[test]
    fn everything_may_come_before_the_end_of_the_reasoning() {
        let (grammars, tokenizer) = grammars();
        let after = tokenizer.special("</think>");
        let mut bound = grammars.constraint(r#"start: "yes""#, after).expect("a grammar");
        assert_eq!(next(&mut bound, grammars.vocabulary).len(), grammars.vocabulary);
        let guesses = tokenizer.encode_rendered("hm</think>yep");
        assert_eq!(bound.allowed(&guesses), 5, "two letters, the marker, and `ye`");
        assert_eq!(bound.allowed(&guesses[..2]), 2);
        guesses[..4].iter().for_each(|id| bound.accept(*id).expect("it may follow"));
        assert_eq!(next(&mut bound, grammars.vocabulary), [u32::from(b'e')]);
    }

    #[test]
    fn a_marker_is_a_token_and_never_its_letters() {
        let (grammars, tokenizer) = grammars();
        let marker = tokenizer.special("｜DSML｜").expect("the tiny vocabulary has it");
        let lark = format!("start: \"<\" <[{marker}]> \"x\"");
        let mut bound = grammars.constraint(&lark, None).expect("a grammar");
        bound.accept(u32::from(b'<')).expect("it may follow");
        assert_eq!(next(&mut bound, grammars.vocabulary), [marker]);
        let mut any = grammars.constraint("start: /(?s:.*)/", None).expect("a grammar");
        assert!(!next(&mut any, grammars.vocabulary).contains(&marker));
    }

    /// Bug reports H24: enforced or refused, never ignored; and a refusal says what is wrong.
    #[test]
    fn a_grammar_that_cannot_be_is_refused() {
        let (grammars, _) = grammars();
        for wrong in ["start: nothing", "start: /(/", "%%%", "start: %json {\"type\": \"sting\"}"] {
            let refused = grammars.constraint(wrong, None).expect_err("it cannot be");
            assert_eq!(refused.status(), 400, "{wrong}");
            assert!(refused.message.contains("cannot be enforced: "), "{}", refused.message);
        }
    }
}
