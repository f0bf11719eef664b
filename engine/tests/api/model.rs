//! Random sequences of calls on two endpoints, against a model of what must come of them.

mod request;
mod world;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use ringrail::CompletionLevel;

use request::{Kind, Lane, Message, Receive, Shape};
use world::{CAPACITY_MAX, World};

#[derive(Clone, Debug)]
enum Step {
    Send(Message, How),
    Receive(Receive, How),
    /// Cancels one of the operations so far, counted from the latest.
    Cancel {
        kind: Kind,
        back: usize,
    },
    Turn {
        side: usize,
        turns: usize,
    },
    Peek {
        side: usize,
        lane: Lane,
    },
}

/// Which of the calls for the same thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Handle,
    Queue,
    /// Sends only; a receive goes to the queue.
    Silent,
    /// Sends only; a receive goes to the queue.
    Inject,
}

/// Settings and their values.
type Choice = &'static [(&'static str, &'static str)];

/// A domain takes one choice of each group, in any combination; the first is the defaults.
const GROUPS: [&[Choice]; 8] = [
    &[
        &[],
        &[
            ("eager_limit_bytes", "1000"),
            ("inject_limit_bytes", "1000"),
            ("eager_credit_bytes", "1000"),
            ("staging_bytes", "2K"),
            ("staging_buffers_max", "2"),
        ],
        &[("eager_limit_bytes", "0"), ("inject_limit_bytes", "0"), ("eager_credit_bytes", "1")],
        &[("eager_limit_bytes", "1000"), ("inject_limit_bytes", "50"), ("staging_bytes", "2K")],
    ],
    &[&[], &[("rts_bytes", "500")], &[("rts_bytes", "1700")]],
    &[
        &[],
        &[("envelope_credits", "1")],
        &[("envelope_credits", "3")],
        &[("unexpected_messages", "4")],
    ],
    &[&[], &[("send_queue_ops", "3")], &[("operations_max", "16")], &[("cq_entries", "16")]],
    &[
        &[],
        &[("chunk_bytes", "4K"), ("busy_chunk_bytes", "4K"), ("grant_horizon_chunks", "1")],
        &[("bulk_lanes", "3"), ("chunk_bytes", "8K"), ("busy_chunk_bytes", "8K")],
        &[("bulk_lanes_max", "1"), ("bulk_idle_timeout", "1ms")],
    ],
    &[&[], &[("zero_copy", "on")], &[("zero_copy", "off")]],
    &[&[], &[("hot_lanes", "0")]],
    &[&[], &[("receive_buffer_bytes", "4K")], &[("ring_entries", "8")]],
];

/// A choice of each group.
fn setup() -> impl Strategy<Value = Vec<Choice>> {
    GROUPS.map(|group| select(group.to_vec())).to_vec()
}

/// On both sides of every limit in [`GROUPS`], and anything between.
fn length() -> impl Strategy<Value = usize> {
    prop_oneof![
        3 => 0usize..100,
        2 => select(vec![499usize, 500, 501, 999, 1000, 1001, 4096, 8193, 16_384, 16_385]),
        1 => 0usize..60_000,
        1 => 131_072..CAPACITY_MAX,
    ]
}

fn shape() -> impl Strategy<Value = Shape> {
    prop_oneof![
        4 => Just(Shape::Heap),
        1 => Just(Shape::Region),
        1 => (1usize..2000).prop_map(Shape::List),
        1 => (1usize..2000).prop_map(Shape::Strided),
    ]
}

fn how() -> impl Strategy<Value = How> {
    let inject = How::Inject;
    select(vec![How::Handle, How::Handle, How::Queue, How::Queue, How::Silent, inject])
}

fn lane() -> impl Strategy<Value = Lane> {
    prop_oneof![6 => Just(Lane::Tagged), 1 => Just(Lane::Own), 1 => Just(Lane::Untagged)]
}

fn send() -> impl Strategy<Value = Step> {
    let level =
        select(vec![CompletionLevel::Inject, CompletionLevel::Delivery, CompletionLevel::Match]);
    let more = prop::bool::weighted(0.3);
    (0usize..2, lane(), 0u64..4, length(), level, more, shape(), how()).prop_map(
        |(side, lane, tag, length, level, more, shape, how)| {
            Step::Send(Message { side, lane, tag, length, level, more, shape }, how)
        },
    )
}

fn receive() -> impl Strategy<Value = Step> {
    let ignore = select(vec![0u64, 0, 1, 2, u64::MAX]);
    let fields = (0usize..2, lane(), 0u64..4, ignore, any::<bool>(), length(), shape(), how());
    fields.prop_map(|(side, lane, tag, ignore, directed, short, shape, how)| {
        // Most receives are long enough for anything.
        let capacity = if short % 4 == 0 { short } else { CAPACITY_MAX };
        Step::Receive(Receive { side, lane, tag, ignore, directed, capacity, shape }, how)
    })
}

fn step() -> impl Strategy<Value = Step> {
    let kind = select(vec![Kind::Send, Kind::Receive]);
    prop_oneof![
        6 => send(),
        6 => receive(),
        3 => (kind, 0usize..6).prop_map(|(kind, back)| Step::Cancel { kind, back }),
        5 => (0usize..2, 1usize..20).prop_map(|(side, turns)| Step::Turn { side, turns }),
        1 => (0usize..2, lane()).prop_map(|(side, lane)| Step::Peek { side, lane }),
    ]
}

fn run(lanes: &[(&str, &str)], setup: &[Choice], steps: &[Step]) {
    let mut settings = vec![("close_linger", "10ms"), ("arena_bytes", "4M")];
    settings.extend(lanes.iter().chain(setup.iter().copied().flatten()));
    let mut world = World::new(&settings);
    for step in steps {
        match step {
            Step::Send(message, How::Handle) => world.send(message),
            Step::Send(message, How::Queue) => world.post_send(message, false),
            Step::Send(message, How::Silent) => world.post_send(message, true),
            Step::Send(message, How::Inject) => world.inject(message),
            Step::Receive(receive, How::Handle) => world.receive(receive),
            Step::Receive(receive, _) => world.post_receive(receive),
            Step::Cancel { kind, back } => world.cancel(*kind, *back),
            Step::Turn { side, turns } => (0..*turns).for_each(|_| world.turn(*side)),
            Step::Peek { side, lane } => world.peek(*side, *lane),
        }
    }
    world.finish();
}

fn cases() -> ProptestConfig {
    // `PROPTEST_CASES` wins over the number here.
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|count| count.parse().ok());
    ProptestConfig {
        cases: cases.unwrap_or(50),
        failure_persistence: None,
        max_shrink_iters: 500,
        max_shrink_time: 60_000,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn any_calls_with_the_automatic_driver_match_the_model(
        setup in setup(),
        steps in vec(step(), 1..80),
    ) {
        run(&[], &setup, &steps);
    }

    #[test]
    fn any_calls_over_plain_sockets_match_the_model(
        setup in setup(),
        steps in vec(step(), 1..80),
    ) {
        run(&[("lanes", "sockets")], &setup, &steps);
    }
}
