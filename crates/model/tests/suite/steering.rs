//! Directional steering: what it changes, what it must not, and that cuts do not show.
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use ironstar_device::{Cpu, CpuConfig, Step};
use ironstar_model::testing::Tiny;
use ironstar_model::{
    At, Directions, Error, LogitsFor, Model, Observer, Options, State, SteeringScales, Wanted, What,
};

struct Setup {
    cpu: Cpu,
    model: Model,
}

fn setup(threads: usize) -> Setup {
    let gguf = Tiny::small(7).gguf();
    let mut cpu = Cpu::new(CpuConfig { threads, ..CpuConfig::default() }).unwrap();
    let model = Model::load(&gguf, None, &mut cpu, Options::default(), &mut |_| {}).unwrap();
    Setup { cpu, model }
}

/// One unit row a layer, each of other numbers.
fn directions(model: &Model) -> Directions {
    let (layers, width) = (model.shape().layers, model.shape().width);
    let mut values = Vec::new();
    for layer in 0..layers {
        let row: Vec<f32> =
            (0..width).map(|i| ((i * 31 + layer * 17) % 23) as f32 - 11.0).collect();
        let length = row.iter().map(|v| v * v).sum::<f32>().sqrt();
        values.extend(row.iter().map(|v| v / length));
    }
    Directions::new(layers, width, values).unwrap()
}

const TOKENS: [u32; 12] = [0, 5, 9, 3, 7, 2, 11, 4, 8, 6, 1, 10];

impl Setup {
    fn run(&mut self, state: &mut State, tokens: &[u32]) -> Vec<u32> {
        let step = Step::single(tokens, state.position());
        let states = &mut [&mut *state];
        let logits = self.model.forward(&mut self.cpu, &step, states, LogitsFor::Last).unwrap();
        self.model.commit(state, tokens.len()).unwrap();
        logits.values().iter().map(|v| v.to_bits()).collect()
    }

    fn fresh(&mut self, cuts: &[usize]) -> Vec<u32> {
        let mut state = self.model.new_state(&mut self.cpu, 64).unwrap();
        let (mut at, mut last) = (0, Vec::new());
        for cut in cuts {
            last = self.run(&mut state, &TOKENS[at..at + cut]);
            at += cut;
        }
        last
    }
}

fn scales(attention: f32, ffn: f32) -> SteeringScales {
    SteeringScales { attention, ffn }
}

#[test]
fn each_scale_changes_the_answer_and_none_changes_nothing() {
    let mut setup = setup(1);
    let plain = setup.fresh(&[12]);
    let all = directions(&setup.model);
    setup.model.steer(&mut setup.cpu, Some((&all, scales(0.0, 0.0)))).unwrap();
    assert_eq!(setup.fresh(&[12]), plain, "scales of 0");
    let mut seen = vec![plain.clone()];
    for scale in [scales(1.0, 0.0), scales(0.0, 1.0), scales(0.0, -2.0), scales(1.0, 1.0)] {
        setup.model.set_steering_scales(scale).unwrap();
        let steered = setup.fresh(&[12]);
        assert!(!seen.contains(&steered), "{scale:?} is one of the others");
        seen.push(steered);
    }
    setup.model.steer(&mut setup.cpu, None).unwrap();
    assert_eq!(setup.fresh(&[12]), plain, "without directions");
}

#[test]
fn cuts_and_threads_do_not_show() {
    let mut wanted = None;
    for threads in [1, 2, 3] {
        let mut setup = setup(threads);
        let all = directions(&setup.model);
        setup.model.steer(&mut setup.cpu, Some((&all, scales(0.5, -1.0)))).unwrap();
        for cuts in [vec![12], vec![1; 12], vec![5, 1, 6], vec![2, 10]] {
            let found = setup.fresh(&cuts);
            assert_eq!(*wanted.get_or_insert(found.clone()), found, "{cuts:?}");
        }
    }
}

/// What a layer gives has nothing of the direction left at scale 1: the next layer's entry does not
/// depend on how much of it there was.
#[test]
fn a_removed_direction_does_not_come_through() {
    struct Push<'a>(&'a Directions);
    impl Observer for Push<'_> {
        fn floats(&mut self, at: At, width: usize, values: &mut [f32]) -> bool {
            if at.what != What::FfnOut {
                return false;
            }
            for row in values.chunks_mut(width) {
                row.iter_mut().zip(self.0.row(at.layer)).for_each(|(x, v)| *x += 3.0 * v);
            }
            true
        }
        fn ids(&mut self, _: At, _: usize, _: &[u32]) {}
    }
    let mut setup = setup(1);
    let all = directions(&setup.model);
    let logits_of = |setup: &mut Setup, push: bool| -> Vec<f32> {
        let mut state = setup.model.new_state(&mut setup.cpu, 64).unwrap();
        let step = Step::single(&TOKENS, 0);
        let wanted = Wanted { logits: LogitsFor::Last, drafts: LogitsFor::None };
        let mut pushing = Push(&all);
        let observer = push.then_some(&mut pushing as &mut dyn Observer);
        let (cpu, states) = (&mut setup.cpu, &mut [&mut state]);
        let output = setup.model.forward_observed(cpu, &step, states, &wanted, observer).unwrap();
        output.logits.values().to_vec()
    };
    let far =
        |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    let apart = far(&logits_of(&mut setup, true), &logits_of(&mut setup, false));
    setup.model.steer(&mut setup.cpu, Some((&all, scales(0.0, 1.0)))).unwrap();
    let removed = far(&logits_of(&mut setup, true), &logits_of(&mut setup, false));
    assert!(apart > 1e-2, "without steering the push shows: {apart}");
    assert!(removed < apart / 50.0, "{removed} of {apart} came through");
}

#[test]
fn a_change_in_the_middle_is_seen() {
    let mut setup = setup(1);
    let all = directions(&setup.model);
    let mut state = setup.model.new_state(&mut setup.cpu, 64).unwrap();
    setup.run(&mut state, &TOKENS[..4]);
    assert!(!state.is_mixed());
    setup.model.steer(&mut setup.cpu, Some((&all, scales(0.0, 0.0)))).unwrap();
    setup.run(&mut state, &TOKENS[4..6]);
    assert!(!state.is_mixed(), "scales of 0 change nothing");
    setup.model.set_steering_scales(scales(0.0, 0.25)).unwrap();
    setup.run(&mut state, &TOKENS[6..8]);
    assert!(state.is_mixed());
    setup.model.set_steering_scales(scales(0.0, 0.0)).unwrap();
    setup.run(&mut state, &TOKENS[8..9]);
    assert!(state.is_mixed(), "its rows remember");
    state.truncate(0).unwrap();
    setup.run(&mut state, &TOKENS[..1]);
    assert!(!state.is_mixed(), "a new start");
}

#[test]
fn files_are_not_believed() {
    let setup = setup(1);
    let (layers, width) = (setup.model.shape().layers, setup.model.shape().width);
    let good = directions(&setup.model).to_bytes();
    assert_eq!(Directions::from_bytes(&good, layers, width).unwrap().to_bytes(), good);
    let refused = |bytes: &[u8], layers| {
        let error = Directions::from_bytes(bytes, layers, width).unwrap_err();
        assert!(matches!(error, Error::Steering { .. }), "{error}");
        error.to_string()
    };
    assert!(refused(&good[..good.len() - 1], layers).contains("bytes"));
    assert!(refused(&good, layers + 1).contains("bytes"));
    for value in [f32::NAN, f32::INFINITY, 2.0] {
        let mut bytes = good.clone();
        bytes[4 * width..4 * width + 4].copy_from_slice(&value.to_le_bytes());
        assert!(refused(&bytes, layers).contains("layer 1"));
    }
    let mut none = good.clone();
    none[..4 * width].fill(0);
    assert!(Directions::from_bytes(&none, layers, width).is_ok(), "a layer that is left alone");
}

#[test]
fn scales_have_limits() {
    let mut setup = setup(1);
    let all = directions(&setup.model);
    let none = setup.model.set_steering_scales(scales(0.0, 1.0));
    assert!(matches!(none, Err(Error::Steering { .. })));
    for wrong in [scales(f32::NAN, 0.0), scales(0.0, 100.5), scales(-101.0, 0.0)] {
        let result = setup.model.steer(&mut setup.cpu, Some((&all, wrong)));
        assert!(matches!(result, Err(Error::Steering { .. })), "{wrong:?}");
    }
    assert_eq!(setup.model.steering_scales(), None);
}
