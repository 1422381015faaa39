use super::*;

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
