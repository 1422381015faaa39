//! Black-box tests of the crate, one module a topic; see each module's first lines.

mod decode;
mod dot;
mod encode;
mod floats;
mod formats;
mod helpers;
mod hostile;
mod planes;
mod round_trip;
