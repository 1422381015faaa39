//! Model architectures: shapes read from files, one table of tensors, session state, and the
//! forward pass.
//!
//! A model here is a description that calls [`ironstar_device::Backend`] operations in the paper's
//! order. It must not know block formats (a `Matrix` carries its own), instruction sets,
//! tokenizers, sampling, sessions, files on disk or sockets.
//!
//! Start reading at [`deepseek_v4`], whose page draws one layer, then `deepseek_v4/forward.rs`.
//!
//! ```
//! use ironstar_device::{Cpu, CpuConfig, Step};
//! use ironstar_model::{LogitsFor, Model, Options, testing::Tiny};
//! let (gguf, mut cpu) = (Tiny::small(7).gguf(), Cpu::new(CpuConfig::default()).unwrap());
//! let mut model = Model::load(&gguf, None, &mut cpu, Options::default(), &mut |_| {}).unwrap();
//! let mut state = model.new_state(&mut cpu, 64).unwrap();
//! let step = Step::single(&[0, 5, 9], state.position());
//! let logits = model.forward(&mut cpu, &step, &mut [&mut state], LogitsFor::Last).unwrap();
//! model.commit(&mut state, 3).unwrap();
//! assert_eq!((logits.len(), state.position()), (1, 3));
//! ```

pub mod deepseek_v4;
mod error;
mod fingerprint;
mod options;
mod request;
mod steering;
#[doc(hidden)]
pub mod testing;

pub use deepseek_v4::{
    BLOCK_TOKENS, Followed, Model, Pipeline, Room, Shape, Sharing, Stages, State, Wire,
    balanced_stages,
};
pub use error::{Blame, Error};
pub use fingerprint::Fingerprint;
pub use ironstar_device::{ROLLBACK_ROWS, Span, Step};
pub use options::{Options, PlanLine, Progress, RowStorage};
pub use request::{At, Drafted, Logits, LogitsFor, Observer, Output, Wanted, What};
pub use steering::{Directions, STEERING_SCALE_MAX, SteeringScales};
