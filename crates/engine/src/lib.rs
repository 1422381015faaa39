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
//! With a file and text, in another program: open, go to a prompt, stream the answer, save.
//!
//! ```no_run
//! use ironstar_engine::{CancelFlag, Control, Engine, EngineOptions, Error, Generate, Token};
//! fn main() -> Result<(), Error> {
//!     let options = EngineOptions { store_dir: Some("states".into()), ..Default::default() };
//!     let mut engine = Engine::open("models/nano.gguf".as_ref(), options, &mut |_| {})?;
//!     let tokenizer = engine.tokenizer().expect("in the file").clone();
//!     let (mut session, go) = (engine.session(4096)?, CancelFlag::default());
//!     session.sync(&mut engine, &tokenizer.encode("Once upon a time"), &mut |_| {}, &go)?;
//!     let (mut text, what) = (tokenizer.stream(), Generate::default());
//!     let mut print = |token: &Token| { print!("{}", text.push(token.id)); Control::Continue };
//!     session.generate(&mut engine, &what, &mut print, &go)?;
//!     assert!(session.checkpoint(&mut engine)?.wait(), "the next run goes on from here");
//!     Ok(())
//! }
//! ```

mod backend;
mod cancel;
mod cards;
mod draft;
pub mod dump;
mod engine;
mod error;
mod generate;
mod room;
pub mod sampler;
pub mod scheduler;
mod score;
mod session;
mod snapshot;
mod speculation;
mod spelled;
pub mod store;

pub use backend::{BackendChoice, RESERVE_BYTES, check_host, open_backend};
pub use cancel::CancelFlag;
pub use cards::{Cards, OpenFiles, ProcessCard, SumsBy};
pub use draft::{Speculation, SpeculationReport};
pub use engine::{DrafterChoice, Engine, EngineOptions, drafter_beside, named_beside, tokenizer};
pub use error::{Blame, Error};
pub use generate::{Control, Finish, Generate, Generated, Token};
pub use score::{Score, Scored};
pub use session::{OnProgress, Session, SyncProgress, SyncReport};
pub use snapshot::Snapshot;
pub use speculation::Drafter;
