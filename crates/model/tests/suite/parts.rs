//! A state taken apart into blocks and a checkpoint, and put together again, is the same state.
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use crate::common::{default_mode, exact, room};
use ironstar_device::{Cpu, CpuConfig};
use ironstar_model::testing::Tiny;
use ironstar_model::{BLOCK_TOKENS, Error, LogitsFor, Model, Options, State, Step};

struct Bench {
    cpu: Cpu,
    model: Model,
    tokens: Vec<u32>,
}

impl Bench {
    fn new((config, options): (CpuConfig, Options), drafter: bool) -> Bench {
        let tiny = Tiny::small(5);
        let mut cpu = Cpu::new(config).unwrap();
        let drafter = drafter.then(|| tiny.drafter());
        let model =
            Model::load(&tiny.gguf(), drafter.as_ref(), &mut cpu, options, &mut |_| {}).unwrap();
        Bench { cpu, model, tokens: tiny.tokens(420) }
    }

    fn state(&mut self, context: usize) -> State {
        self.model.new_state(&mut self.cpu, context).unwrap()
    }

    /// Evaluates up to a position and gives the bits of the last logits.
    fn go(&mut self, state: &mut State, to: usize) -> Vec<u32> {
        let tokens = self.tokens[state.position()..to].to_vec();
        let step = Step::single(&tokens, state.position());
        let logits = self.model.forward(&mut self.cpu, &step, &mut [state], LogitsFor::Last);
        self.model.commit(state, tokens.len()).unwrap();
        logits.unwrap().row(0).iter().map(|l| l.to_bits()).collect()
    }

    /// The bits of the logits of all rows up to a position, in one step.
    fn all_rows(&mut self, to: usize) -> Vec<Vec<u32>> {
        let mut state = self.state(to);
        let step = Step::single(&self.tokens[..to], 0);
        let states = &mut [&mut state];
        let logits = self.model.forward(&mut self.cpu, &step, states, LogitsFor::All).unwrap();
        (0..to).map(|row| logits.row(row).iter().map(|l| l.to_bits()).collect()).collect()
    }

    /// A saved state after other tokens.
    fn others(&mut self, state: &mut State, to: usize) -> Vec<u8> {
        self.tokens.reverse();
        self.go(state, to);
        self.tokens.reverse();
        state.save(&mut self.cpu).unwrap()
    }

    /// Blocks and checkpoint of a state.
    fn take_apart(&mut self, state: &State) -> (Vec<Vec<u8>>, Vec<u8>) {
        let count = state.position() / BLOCK_TOKENS;
        let blocks = state.export_blocks(&mut self.cpu, 0..count, &mut room).unwrap();
        for (block, together) in blocks.iter().enumerate() {
            let alone = state.export_blocks(&mut self.cpu, block..block + 1, &mut room).unwrap();
            assert!(alone[..] == [together.clone()], "block {block}");
        }
        (blocks, state.export_checkpoint(&mut self.cpu, &mut room).unwrap())
    }
}

fn taken_apart_and_put_together(mode: (CpuConfig, Options), drafter: bool) {
    let mut bench = Bench::new(mode, drafter);
    let (mut state, mut other) = (bench.state(420), bench.state(411));
    let (wanted, others) = (bench.all_rows(411), bench.others(&mut other, 350));
    let mut bytes_of_rows = 0;
    for position in [1, 2, 5, 63, 127, 128, 129, 131, 200, 255, 256, 257, 300, 383, 384, 400] {
        bench.go(&mut state, position);
        let whole = state.save(&mut bench.cpu).unwrap();
        let (blocks, checkpoint) = bench.take_apart(&state);
        // Other rows lie where these come to.
        other.restore(&mut bench.cpu, &others).unwrap();
        other.truncate(0).unwrap();
        for (at, block) in blocks.iter().enumerate() {
            other.import_block(&mut bench.cpu, at, block).unwrap();
            bytes_of_rows = block.len();
        }
        other.import_checkpoint(&mut bench.cpu, position, &checkpoint).unwrap();
        assert_eq!(other.position(), position);
        assert!(other.save(&mut bench.cpu).unwrap() == whole, "{position}");
        let again = bench.take_apart(&other);
        assert!(again == (blocks, checkpoint), "{position}: parts");
        bench.go(&mut other, position + 10);
        let next = bench.go(&mut other, position + 11);
        assert_eq!(next, wanted[position + 10], "{position}");
    }
    assert!(bytes_of_rows > 0);
}

#[test]
fn any_position_comes_back_from_its_parts() {
    taken_apart_and_put_together(default_mode(1, None), true);
    taken_apart_and_put_together(default_mode(1, None), false);
    taken_apart_and_put_together(exact(), true);
}

#[test]
fn rows_that_are_there_need_not_come_again() {
    let mut bench = Bench::new(default_mode(1, None), true);
    let mut state = bench.state(420);
    bench.go(&mut state, 400);
    let whole = state.save(&mut bench.cpu).unwrap();
    let (blocks, checkpoint) = bench.take_apart(&state);
    let mut other = bench.state(420);
    bench.go(&mut other, 300);
    other.import_block(&mut bench.cpu, 2, &blocks[2]).unwrap();
    assert_eq!(other.position(), 300, "still where it was");
    bench.go(&mut other, 301);
    other.truncate(300).unwrap();
    other.import_block(&mut bench.cpu, 2, &blocks[2]).unwrap();
    other.import_checkpoint(&mut bench.cpu, 400, &checkpoint).unwrap();
    assert!(other.save(&mut bench.cpu).unwrap() == whole);
}

#[test]
fn wrong_parts_are_refused_and_change_nothing() {
    let mut bench = Bench::new(default_mode(1, None), true);
    let mut state = bench.state(300);
    bench.go(&mut state, 260);
    let (blocks, checkpoint) = bench.take_apart(&state);
    let whole = state.save(&mut bench.cpu).unwrap();
    let short = &blocks[0][1..];
    for (block, bytes) in [(0, short), (2, &blocks[0]), (usize::MAX, &blocks[0]), (1, &[])] {
        let error = state.import_block(&mut bench.cpu, block, bytes).unwrap_err();
        assert!(matches!(error, Error::Saved { .. }), "{error}");
    }
    for (position, bytes) in
        [(260, &checkpoint[1..]), (301, &checkpoint), (261, &checkpoint), (usize::MAX, &checkpoint)]
    {
        let error = state.import_checkpoint(&mut bench.cpu, position, bytes).unwrap_err();
        assert!(matches!(error, Error::Saved { .. }), "{error}");
    }
    assert!(state.export_blocks(&mut bench.cpu, 1..3, &mut room).is_err(), "not closed yet");
    assert!(state.save(&mut bench.cpu).unwrap() == whole);
}

#[test]
fn one_other_weight_is_another_model() {
    let load = |change: Option<usize>| {
        let tiny = Tiny::small(5);
        let count = std::cell::Cell::new(0);
        let gguf = tiny.gguf_as(&|spec, values| {
            let mut values = values.to_vec();
            if change == Some(count.get()) {
                let middle = values.len() / 2;
                values[middle] += 1.0;
            }
            count.set(count.get() + 1);
            ironstar_model::testing::floats(spec, &values)
        });
        let (config, options) = default_mode(1, None);
        let mut cpu = Cpu::new(config).unwrap();
        let model = Model::load(&gguf, None, &mut cpu, options, &mut |_| {}).unwrap();
        (model.state_identity(), count.get())
    };
    let (plain, tensors) = load(None);
    assert_eq!(load(None).0, plain);
    for tensor in 0..tensors {
        assert_ne!(load(Some(tensor)).0, plain, "tensor {tensor}");
    }
}
