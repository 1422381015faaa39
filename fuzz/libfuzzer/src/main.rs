//! Every target of the table under libFuzzer; the environment variable `TARGET` names the one to
//! run.
#![no_main]

use ironstar_fuzz::{Target, find};
use std::sync::OnceLock;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    static CHOSEN: OnceLock<&'static Target> = OnceLock::new();
    let target = CHOSEN.get_or_init(|| {
        let name = std::env::var("TARGET").unwrap_or_default();
        find(&name).expect("TARGET names a row of the table: cargo xtask fuzz --list")
    });
    (target.run)(data);
});
