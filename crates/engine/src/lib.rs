//! Engine and sessions: a loaded model on a backend, and timelines of tokens that move on it.
//!
//! The caller hands a session the whole token prefix it wants; the session finds the cheapest way
//! there. It draws tokens with a sampler that is a pure function, guesses ahead where that pays,
//! keeps checkpoints, and comes back to them. However work is cut, the tokens and their
//! probabilities are the same, bit for bit.
//!
//! This crate knows models only through `ironstar_model`, and devices only as a `Backend`. It must
//! not know prompts and protocols, sockets, or what a token means.
//!
//! Start reading at [`Session::sync`], then [`Session::generate`], then [`sampler`]; [`store`] is
//! what sessions come back from.
//!
//! ```
//! use ironstar_engine::{CancelFlag, Control, Engine, EngineOptions, Generate};
//! let (model, go) = (ironstar_model::testing::Tiny::small(7).gguf(), CancelFlag::default());
//! let mut engine = Engine::from_gguf(&model, None, EngineOptions::default(), &mut |_| {})?;
//! let mut session = engine.session(100)?;
//! session.sync(&mut engine, &[0, 12, 7], &mut |_| {}, &go)?;
//! let what = Generate { seed: 1, tokens_max: Some(5), ..Generate::default() };
//! session.generate(&mut engine, &what, &mut |_token| Control::Continue, &go)?;
//! assert_eq!(session.tokens().len(), 8);
//! # Ok::<(), ironstar_engine::Error>(())
//! ```
//!
//! With a file and text, in another program:
//!
//! ```no_run
//! use ironstar_engine::{CancelFlag, Control, Engine, EngineOptions, Error, Generate};
//! fn main() -> Result<(), Error> {
//!     let path = std::path::Path::new("models/nano.gguf");
//!     let mut engine = Engine::open(path, EngineOptions::default(), &mut |_| {})?;
//!     let tokens = engine.tokenizer().expect("in the file").encode("Once upon a time");
//!     let (mut session, mut answer) = (engine.session(4096)?, Vec::new());
//!     session.sync(&mut engine, &tokens, &mut |_| {}, &CancelFlag::default())?;
//!     let what = Generate { tokens_max: Some(50), ..Generate::default() };
//!     let mut on_token = |token: &ironstar_engine::Token| {
//!         answer.push(token.id);
//!         Control::Continue
//!     };
//!     session.generate(&mut engine, &what, &mut on_token, &CancelFlag::default())?;
//!     let text = engine.tokenizer().expect("in the file").decode(&answer);
//!     assert!(!text.is_empty());
//!     Ok(())
//! }
//! ```

mod backend;
mod cancel;
mod draft;
mod engine;
mod error;
mod generate;
pub mod sampler;
pub mod scheduler;
mod score;
mod session;
mod snapshot;
mod speculation;
mod spelled;
pub mod store;

pub use backend::BackendChoice;
pub use cancel::CancelFlag;
pub use draft::{Speculation, SpeculationReport};
pub use engine::{DrafterChoice, Engine, EngineOptions, drafter_beside, named_beside, tokenizer};
pub use error::{Blame, Error};
pub use generate::{Control, Finish, Generate, Generated, Token};
pub use score::{Score, Scored};
pub use session::{OnProgress, Session, SyncProgress, SyncReport};
pub use snapshot::Snapshot;
pub use speculation::Drafter;
