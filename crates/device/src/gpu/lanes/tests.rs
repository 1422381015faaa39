use super::super::driver::Address;
use super::super::text;
use super::*;

fn at(number: u64) -> Place {
    Place::At(Address(number << 8))
}

fn kernel(beside: bool, writes: u32) -> Access {
    Access { beside, writes, ..Access::default() }
}

fn plan(launches: &[(Access, Vec<Place>)]) -> Plan {
    let mut planner = Planner::default();
    for (access, places) in launches {
        planner.push(*access, places);
    }
    planner.finish()
}

fn order(lane: usize, waits: &[usize], awaited: bool) -> Order {
    Order { lane, waits: waits.to_vec(), awaited }
}

/// A makes x; B beside the others makes y of x; C makes z of x; D reads y and z; E writes x again.
#[test]
fn readers_wait_for_writers_and_writers_for_readers() {
    let found = plan(&[
        (kernel(false, 1), vec![at(1)]),
        (kernel(true, 2), vec![at(1), at(2)]),
        (kernel(false, 2), vec![at(1), at(3)]),
        (kernel(false, 4), vec![at(2), at(3), at(4)]),
        (kernel(false, 1), vec![at(1)]),
    ]);
    let wanted = [
        order(0, &[], true),
        order(1, &[0], true),
        order(0, &[], false),
        order(0, &[1], false),
        order(0, &[], false),
    ];
    assert_eq!(found.orders, wanted);
    assert_eq!(found.last, [1], "the end waits for the side lane");
    assert_eq!(reordered(&found), [0, 2, 1, 3, 4], "C before B");
    // Without D, what writes x waits for B itself.
    let found = plan(&[
        (kernel(false, 1), vec![at(1)]),
        (kernel(true, 2), vec![at(1), at(2)]),
        (kernel(false, 1), vec![at(1)]),
    ]);
    assert_eq!(found.orders[2], order(0, &[1], false));
}

/// What comes behind the main lane waits for its last launch, though it has nothing of it.
#[test]
fn behind_the_main_lane() {
    let late = Access { behind: true, ..kernel(true, 1) };
    let found = plan(&[
        (kernel(false, 1), vec![at(1)]),
        (late, vec![at(2)]),
        (kernel(false, 1), vec![at(3)]),
    ]);
    let wanted = [order(0, &[], true), order(1, &[0], true), order(0, &[], false)];
    assert_eq!(found.orders, wanted);
}

/// What begins afresh is no neighbour in a lane of what it waits for, which others go on behind.
#[test]
fn afresh_behind_what_it_waits_for() {
    let fresh = Access { fresh: true, ..kernel(true, 2) };
    let list = |second| {
        plan(&[
            (kernel(true, 1), vec![at(1)]),
            (second, vec![at(1), at(2)]),
            (kernel(false, 1), vec![at(3)]),
        ])
    };
    assert_eq!(list(kernel(true, 2)).orders[1], order(1, &[], true));
    assert_eq!(list(fresh).orders[1], order(2, &[0], true));
}

/// Nothing passes a launch of which nothing is known, and memory behind tables counts too.
#[test]
fn what_is_not_known_is_passed_by_nobody() {
    let unknown = Access { unknown: true, beside: true, ..Access::default() };
    let tables =
        |reads, writes| Access { beside: true, hidden: [reads, writes], ..kernel(true, 0) };
    let found = plan(&[
        (kernel(true, 1), vec![at(1)]),
        (unknown, vec![]),
        (kernel(true, 1), vec![at(2)]),
        (tables(0, hidden::RINGS), vec![]),
        (tables(0, hidden::ROWS), vec![]),
        (tables(hidden::RINGS, 0), vec![]),
    ]);
    assert_eq!(found.orders[1], order(0, &[0], true));
    assert_eq!(found.orders[2].waits, [1]);
    assert_eq!((found.orders[3].lane, found.orders[5].lane), (2, 2), "it goes on in the lane");
    assert_eq!(found.orders[4].lane, 3);
    let read_only = plan(&[(kernel(true, 0), vec![at(1)]), (kernel(true, 0), vec![at(1)])]);
    assert_eq!(read_only.orders[1].waits, []);
}

/// Random lists: two launches that touch the same memory, one of them to write, keep their order in
/// the other order that the plan allows.
#[test]
fn conflicting_launches_keep_their_order() {
    let mut state = 1u64;
    let mut below = |bound: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (state >> 33) % bound
    };
    let mut moved = 0;
    for _ in 0..50 {
        let launches: Vec<(Access, Vec<Place>)> = (0..40)
            .map(|_| {
                let mut access = kernel(below(2) == 0, u32::try_from(below(8)).expect("small"));
                access.unknown = below(30) == 0;
                access.hidden = [0, 1].map(|_| u8::try_from(1 << below(9) & 7).expect("3 bits"));
                (access, (0..3).map(|_| at(1 + below(12))).collect())
            })
            .collect();
        let touches = |index: usize| {
            let (access, places) = &launches[index];
            let hidden = |bit: u8| access.hidden.map(|mask| mask >> bit & 1 == 1);
            let own = places.iter().enumerate().map(|(i, p)| (*p, access.writes >> i & 1 == 1));
            let behind = (0..3u8).filter(move |bit| hidden(*bit) != [false, false]);
            own.chain(behind.map(|b| (Place::hidden(b), hidden(b)[1]))).collect::<Vec<_>>()
        };
        let conflict = |a: usize, b: usize| {
            let either = launches[a].0.unknown || launches[b].0.unknown;
            let (a, b) = (touches(a), touches(b));
            let same = |x: &(Place, bool)| b.iter().any(|y| x.0 == y.0 && (x.1 || y.1));
            either || a.iter().any(same)
        };
        let made = reordered(&plan(&launches));
        let mut place = vec![0; made.len()];
        made.iter().enumerate().for_each(|(index, own)| place[*own] = index);
        for b in 0..launches.len() {
            for a in 0..b {
                assert!(!conflict(a, b) || place[a] < place[b], "{a} and {b} of {launches:?}");
                moved += usize::from(place[a] > place[b]);
            }
        }
    }
    assert!(moved > 1000, "{moved} pairs changed places, which shows little");
}

/// The table says of every kernel in it what the text says: `OUT` are written, `IN` are not.
#[test]
fn the_table_is_the_text() {
    let text = text::host("");
    let written = |parameters: &str| {
        let outs = parameters.split("OUT(").skip(1).map(|rest| {
            let inside = rest.split(')').next().expect("a bracket closes");
            let index = inside.rsplit(',').next().expect("three words").trim();
            1u32 << index.parse::<u32>().expect("the index of a buffer")
        });
        outs.fold(0, |mask, bit| mask | bit)
    };
    let names: Vec<&str> = WRITES.iter().map(|(name, _)| *name).collect();
    assert!(names.is_sorted(), "the table is searched by name");
    for (name, mask) in WRITES {
        // A kernel, or a macro that makes it; its buffers may be a macro too.
        let found = [format!("{name})("), format!("{name})\n("), format!("{name}) \\\n    (")];
        let direct = found.iter().find_map(|start| text.split_once(start.as_str()));
        let parameters = match direct {
            Some((_, rest)) => rest.split("GRID_ARGS").next().expect("never empty").to_owned(),
            None if name.starts_with("hc_post_pre_") => "CLUSTER_BUFFERS".to_owned(),
            None => {
                assert!(name.starts_with("hc_pre_"), "{name} is not in the text");
                let rest = text.split_once("(name)(IN(float, x, 0), IN(float, mixes, 1)");
                let rest = rest.expect("the macro of these kernels").1;
                rest.split("GRID_ARGS").next().expect("never empty").to_owned()
            }
        };
        let macros = [
            "DECODE_BUFFERS",
            "PRODUCT_BUFFERS",
            "SHARDS_BUFFERS",
            "POST_SHARDS_BUFFERS",
            "ATTEND_MIX_BUFFERS",
            "COMPRESS_BUFFERS",
            "CLUSTER_BUFFERS",
            "RING_BUFFERS",
            "SHARED_BUFFERS",
            "AHEAD_BUFFERS",
        ];
        let buffers = macros.into_iter().rfind(|own| parameters.starts_with(own));
        let parameters = match buffers {
            Some(own) => {
                let rest = text.split_once(&format!("#define {own} "));
                let rest = rest.expect("the macro of the buffers").1;
                // Behind those of clusters there may be more.
                let more = if own == "CLUSTER_BUFFERS" { &*parameters } else { "" };
                rest.split("GRID_ARGS").next().expect("never empty").to_owned() + more
            }
            None => parameters,
        };
        assert_eq!(written(&parameters), *mask, "{name}: {parameters}");
    }
}
