//! `gpu_check --compare`: what each shortcut of a card is worth, on one model that stays where it
//! is. A round measures with all shortcuts, without each of the named ones in turn, and with all
//! again; the next round goes the other way. So what changes in the meantime (heat, others on the
//! machine) meets all alike, and how far two equal measurements of a round lie apart is seen.

use super::{Outcome, WARM, answer, count, filled, milliseconds, together};
use ironstar_device::Shortcuts;
use ironstar_engine::{CancelFlag, Engine};
use std::time::Instant;

/// Shortcuts by their names.
type Named = Vec<(&'static str, Shortcuts)>;

/// What `--compare` and its sisters ask for: which shortcuts count for what.
#[derive(Default)]
pub struct Compare {
    pub token: Named,
    pub depth: Named,
    pub prompt: Named,
    pub session: Named,
    /// What is left out in all measurements.
    pub base: Shortcuts,
    pub rounds: usize,
    pub tokens: usize,
    pub sessions: usize,
    pub depths: Vec<usize>,
}

/// The shortcuts of a list of names: `all` stands for all of them, and `-name` takes one out again.
pub fn named(list: &str) -> Outcome<Named> {
    let mut named = Named::new();
    let known = |name: &str| {
        let one = Shortcuts::named(name)?;
        let own = Shortcuts::names().iter().find(|own| **own == name);
        Outcome::Ok((*own.ok_or("a name of the table")?, one))
    };
    for word in list.split(',') {
        match word.strip_prefix('-') {
            Some(name) => {
                let (name, _) = known(name)?;
                named.retain(|(own, _)| *own != name);
            }
            None if word == "all" => {
                for name in Shortcuts::names() {
                    named.push(known(name)?);
                }
            }
            None => named.push(known(word)?),
        }
    }
    Ok(named)
}

/// A measurement: milliseconds, and what must not differ.
type Measure<'a> = dyn FnMut(&mut Engine) -> Outcome<(f64, Vec<u32>)> + 'a;

/// All measurements that were asked for.
pub fn all(engine: &mut Engine, prompt: &[u32], what: &Compare) -> Outcome<()> {
    if !engine.leave_out(what.base)? {
        return Err("--compare is for a card: this backend has no shortcuts".into());
    }
    let own = std::iter::once((prompt.len(), &what.token));
    for (depth, named) in own.chain(what.depths.iter().map(|depth| (*depth, &what.depth))) {
        let behind: Vec<u32> = prompt.iter().copied().cycle().take(depth).collect();
        let title = format!("token behind {depth}");
        let mut one = |engine: &mut Engine| token(engine, &behind, what.tokens);
        rounds(engine, &title, (named, what), &mut one)?;
    }
    let title = format!("prompt of {}", prompt.len());
    rounds(engine, &title, (&what.prompt, what), &mut |engine| reading(engine, prompt))?;
    let title = format!("step of {} sessions", what.sessions);
    let mut many = |engine: &mut Engine| steps(engine, prompt, what);
    rounds(engine, &title, (&what.session, what), &mut many)
}

/// Measures with all shortcuts and without each in turn, and shows what each is worth.
fn rounds(
    engine: &mut Engine,
    title: &str,
    (named, what): (&Named, &Compare),
    measure: &mut Measure<'_>,
) -> Outcome<()> {
    if named.is_empty() {
        return Ok(());
    }
    let mut turns: Vec<Option<usize>> = vec![None];
    turns.extend((0..named.len()).map(Some));
    turns.push(None);
    // By shortcut: times without it over the mean of the round's times with all.
    let mut ratios = vec![Vec::new(); named.len()];
    let (mut with, mut apart, mut wanted) = (Vec::new(), Vec::new(), None);
    for round in 0..what.rounds {
        let (mut own, mut without) = (Vec::new(), vec![0.0; named.len()]);
        for at in 0..turns.len() {
            let turn = if round % 2 == 0 { turns[at] } else { turns[turns.len() - 1 - at] };
            let left = turn.map_or(Shortcuts::NONE, |index| named[index].1);
            engine.leave_out(what.base.with(left))?;
            let (time, seen) = measure(engine)?;
            if *wanted.get_or_insert_with(|| seen.clone()) != seen {
                return Err(format!("{title}: without {left:?} the answer is another").into());
            }
            match turn {
                Some(index) => without[index] = time,
                None => own.push(time),
            }
        }
        let mean = own.iter().sum::<f64>() / count(own.len());
        with.push(mean);
        apart.push((own[1] - own[0]).abs() / mean);
        for (ratios, time) in ratios.iter_mut().zip(without) {
            ratios.push(time / mean);
        }
    }
    engine.leave_out(what.base)?;
    let (_, middle, _) = spread(&mut with);
    let (_, _, apart) = spread(&mut apart);
    let each = named.iter().zip(&mut ratios).map(|((name, _), ratios)| {
        let (least, middle, most) = spread(ratios);
        format!("{name} {middle:.3} ({least:.3} to {most:.3})")
    });
    println!(
        "compare {title}: {middle:.3} ms, equal ones at most {:.1} % apart, one answer; so many \
         times as long without {}",
        100.0 * apart,
        each.collect::<Vec<_>>().join(", ")
    );
    Ok(())
}

/// Least, middle and most.
fn spread(values: &mut [f64]) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    let middle = values[values.len() / 2];
    (values[0], middle, values[values.len() - 1])
}

/// The time of a token that the card draws.
fn token(engine: &mut Engine, behind: &[u32], tokens: usize) -> Outcome<(f64, Vec<u32>)> {
    let mut one = filled(engine, behind, (0..1, WARM + tokens + 8))?;
    let session = &mut one[0];
    // The first tokens capture what the others replay.
    session.push(engine, 1)?;
    let mut told = answer(engine, session, WARM)?;
    let begun = Instant::now();
    told.extend(answer(engine, session, tokens)?);
    Ok((milliseconds(begun) / count(tokens), told))
}

/// The time of a prompt, and the bits of its logits.
fn reading(engine: &mut Engine, prompt: &[u32]) -> Outcome<(f64, Vec<u32>)> {
    engine.forget_checkpoints();
    let mut session = engine.session(prompt.len() + 8)?;
    let begun = Instant::now();
    session.sync(engine, prompt, &mut |_| {}, &CancelFlag::default())?;
    let time = milliseconds(begun);
    let logits = session.logits().ok_or("no logits")?;
    Ok((time, logits.iter().map(|logit| logit.to_bits()).collect()))
}

/// The time of a common step.
fn steps(engine: &mut Engine, prompt: &[u32], what: &Compare) -> Outcome<(f64, Vec<u32>)> {
    // A step of many takes as long as some of one.
    let tokens = what.tokens.div_ceil(2);
    let room = WARM + tokens + 1;
    let mut sessions = filled(engine, prompt, (0..what.sessions, room))?;
    let first = (0..what.sessions).map(|at| [prompt[11 * at % prompt.len()]]).collect();
    let (time, last) = together(engine, &mut sessions, first, tokens)?;
    Ok((time, last.into_iter().flatten().collect()))
}
