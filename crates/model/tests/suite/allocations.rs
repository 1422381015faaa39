//! A step of decoding allocates nothing on the CPU: lists and scratch are those of earlier steps,
//! and the logits lie where the last ones did once the caller has given those back.
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use crate::common::default_mode;
use ironstar_device::{Cpu, Step};
use ironstar_gguf::Gguf;
use ironstar_model::{LogitsFor, Model};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::path::PathBuf;

thread_local! {
    /// Allocations of this thread.
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

/// The system's allocator, counting for each thread, since other tests run beside this one.
struct Counting;

// SAFETY: everything is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(start, layout, size) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn decoding_allocates_nothing() {
    const PROMPT: usize = 300;
    const WARM: usize = 4;
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models/nano.gguf");
    let gguf = Gguf::open(&path).unwrap();
    for threads in [1, 2] {
        let (config, options) = default_mode(threads, None);
        let mut cpu = Cpu::new(config).unwrap();
        let mut model = Model::load(&gguf, None, &mut cpu, options, &mut |_| {}).unwrap();
        let mut state = model.new_state(&mut cpu, 1024).unwrap();
        let prompt: Vec<u32> = (0..PROMPT).map(|i| u32::try_from(10 + i * 7).unwrap()).collect();
        let step = Step::single(&prompt, 0);
        model.forward(&mut cpu, &step, &mut [&mut state], LogitsFor::None).unwrap();
        model.commit(&mut state, PROMPT).unwrap();
        // Over a border of 128 positions, where all kinds of compressed rows close.
        let mut counts = Vec::with_capacity(128);
        let mut token = 17;
        for _ in 0..128 {
            let step = Step::single(&[token], state.position());
            let before = COUNT.get();
            let out = model.forward(&mut cpu, &step, &mut [&mut state], LogitsFor::Last).unwrap();
            model.commit(&mut state, 1).unwrap();
            counts.push(COUNT.get() - before);
            token = u32::try_from(crate::common::argmax(out.values())).unwrap();
            model.take_back(out);
        }
        let late: Vec<usize> = (WARM..counts.len()).filter(|&i| counts[i] > 0).collect();
        assert!(late.is_empty(), "{threads} threads: steps {late:?} of {counts:?}");
        assert!(counts[0] > 0, "the first step has no memory for its logits yet");
    }
}
