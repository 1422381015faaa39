use super::*;
use crate::backend::fits;
use ironstar_model::testing::Tiny;

fn room(number: u32, free: u64) -> Room {
    Room { number, name: "a card".into(), free }
}

#[test]
fn parts_that_no_card_can_hold_are_refused_with_how_many_could() {
    const GIB: u64 = 1 << 30;
    let most_of = |ranks: usize| (ranks < 8).then(|| 160 * GIB / ranks as u64);
    let cards = |free: u64| [room(0, free), room(1, free)];
    check_rooms(&cards(90 * GIB), &[80 * GIB; 2], &most_of).expect("room for both");
    let text = |rooms: &[Room], part: u64| {
        check_rooms(rooms, &vec![part; rooms.len()], &most_of).expect_err("too little").to_string()
    };
    let error = text(&cards(70 * GIB), 80 * GIB);
    assert!(error.contains("card 0, a card, of which 70.0 GiB are free"), "{error}");
    assert!(error.contains("4 such cards (--ranks 4) need"), "{error}");
    let error = text(&cards(30 * GIB), 80 * GIB);
    assert!(error.contains("use a smaller mix"), "{error}");
    // One card for both parts.
    let error = text(&[room(3, 90 * GIB), room(3, 90 * GIB)], 80 * GIB);
    assert!(error.contains("card 3") && error.contains("needs 16"), "{error}");
    check_rooms(&[], &[u64::MAX; 4], &most_of).expect("nothing is known of the cards");
}

/// A model that is too large for one card: it is refused there before anything is loaded, two such
/// cards take it with its drafter, and the plan says what each will hold.
#[test]
fn what_one_card_cannot_hold_two_can() {
    let tiny = Tiny::small(3);
    let (gguf, drafter) = (tiny.gguf(), tiny.drafter());
    let files = (&gguf, Some(&drafter));
    let all = parts(files, 1).expect("one rank")[0];
    let bytes = |file: &Gguf| -> u64 {
        let of = |tensor| file.bytes(tensor).expect("in the file").len() as u64;
        file.tensors().iter().map(of).sum()
    };
    assert_eq!(all, bytes(&gguf) + bytes(&drafter));
    let half = parts_most(files, 2).expect("two ranks");
    assert!(half < all);
    // A byte more than a part of two needs, far less than all.
    let free = RESERVE_BYTES + half + 1;
    let error = fits("a card", RESERVE_BYTES + all, free).expect_err("too little").to_string();
    assert!(error.contains("--ranks 2"), "{error}");
    let cards = |count: u32| Cards {
        ranks: usize::try_from(count).expect("few"),
        make: Arc::new(|_: usize| -> Result<Gpu, DeviceError> {
            unreachable!("nothing is opened for a plan")
        }),
        peers: None,
        nccl: None,
        refused: None,
        rooms: (0..count).map(|number| room(number, free)).collect(),
    };
    let error = cards(1).plan(&gguf, Some(&drafter)).expect_err("too little").to_string();
    assert!(error.contains("2 such cards (--ranks 2) need"), "{error}");
    let lines = cards(2).plan_lines(&gguf, Some(&drafter)).expect("room for both");
    assert_eq!(lines.len(), 2);
    for (rank, line) in lines.iter().enumerate() {
        assert!(line.starts_with(&format!("rank {rank} on card {rank} (a card) will hold")));
    }
}
