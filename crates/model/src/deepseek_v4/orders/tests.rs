use super::*;
use proptest::prelude::*;

fn samples() -> Vec<Order> {
    let spans = vec![Span { rows: 0..2, position: 7 }, Span { rows: 2..3, position: 0 }];
    let step = Step { tokens: vec![5, 6, 7], spans };
    vec![
        Order::Meet { identity: vec![1, 2, 3] },
        Order::Take { id: 3, context: 400, saved: vec![9; 40] },
        Order::Take { id: 4, context: 1, saved: Vec::new() },
        Order::Release { id: u32::MAX },
        Order::Step {
            ids: vec![3, 4],
            step: step.clone(),
            logits: vec![1, 2],
            drafts: None,
            shared: Shared { index: true, first_rows: 2, rows: true },
        },
        Order::Step {
            ids: vec![3, 4],
            step,
            logits: vec![],
            drafts: Some(vec![0]),
            shared: Shared::default(),
        },
        Order::Draft { id: 3, position: 12, token: 5, most: Some(4) },
        Order::Draft { id: 3, position: 12, token: 5, most: None },
        Order::Steer { directions: vec![1, 2, 3, 4], scales: [7, u32::MAX] },
        Order::Stop,
        Order::More { saved: vec![4; 9] },
        Order::Plan { ends: vec![2, 5], bits: 16, identity: vec![1, 2] },
        Order::Save { id: 3, position: 200, part: Part::Whole(200) },
        Order::Save { id: 3, position: 200, part: Part::Block(1) },
        Order::Load { id: 3, part: Part::Checkpoint(130) },
        Order::Look,
    ]
}

#[test]
fn orders_come_back_as_they_were() {
    for order in samples() {
        assert_eq!(Order::decode(&order.encode()).expect("our own bytes"), order);
    }
}

#[test]
fn shortened_and_lengthened_orders_are_refused() {
    for order in samples() {
        let bytes = order.encode();
        for end in 0..bytes.len() {
            assert!(Order::decode(&bytes[..end]).is_err(), "{order:?} cut at {end}");
        }
        assert!(Order::decode(&[&bytes[..], &[0]].concat()).is_err(), "{order:?} with one more");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_an_order_or_an_error(
        kind in 0u8..13,
        tail in prop::collection::vec(prop_oneof![Just(0u8), Just(1), any::<u8>()], 0..90),
    ) {
        if let Ok(order) = Order::decode(&[&[kind][..], &tail].concat()) {
            let again = Order::decode(&order.encode()).expect("our own bytes");
            prop_assert_eq!(again, order);
        }
    }
}

#[test]
fn a_status_names_the_first_that_refused() {
    let fine = status(Ok(()));
    let long = "ä".repeat(300);
    let bad = status(Err(&long));
    assert_eq!(refusal(&[fine, fine].concat()), None);
    let (rank, text) = refusal(&[fine, bad, bad].concat()).expect("rank 1 refused");
    assert!(rank == 1 && long.starts_with(&text) && text.len() >= 254, "{text}");
}
