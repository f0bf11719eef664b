//! Messages that are sent eagerly where receives keep up with them, up to the longest.

use super::*;
use crate::wire::EAGER_BYTES_MAX;

/// Longer than the limit at first, which is 64 KiB.
const LENGTH: usize = 200 << 10;
const LONGEST: u32 = EAGER_BYTES_MAX as u32;
const FIRST: u32 = 64 << 10;
/// Time of a segment on the stream.
const STREAM: u64 = 3;

/// The limits of a domain without settings.
fn usual() -> Config {
    Config {
        eager_limit: LONGEST,
        is_eager_limit_advised: true,
        inject_limit: 16 << 10,
        rts_bytes: 0,
        chunk_bytes: 254 << 10,
        busy_chunk_bytes: 111 << 10,
        horizon_chunks: 4,
        envelope_credits: 16_384,
        eager_credit_bytes: 256 << 10,
        unexpected_bytes: 64 << 20,
        unexpected_messages: 16 << 20,
        staging_bytes: 64 << 10,
        staging_buffers_max: 1024,
        ..Config::for_tests()
    }
}

fn net_of(config: &Config) -> Net {
    let mut net = Net::new(2, config, CONTENT, 1);
    net.use_streams(STREAM);
    net
}

/// Returns the limit of an engine to the other one.
fn limit(net: &Net, engine: usize) -> u32 {
    let here = &net.engines[engine];
    here.core.session(here.slots[&(1 - engine)]).unwrap().segments.eager_limit_now()
}

fn class(net: &Net, engine: usize) -> u8 {
    net.engines[engine].core.session(0).unwrap().segments.eager_limit().class()
}

/// Returns the window of bytes of an engine's peer.
fn window(net: &Net, engine: usize) -> u32 {
    net.engines[engine].core.session(0).unwrap().segments.receive_credits().both()[1].window()
}

fn flow_from(from: usize) -> Flow {
    Flow::between(from, 1 - from)
}

/// Sends a message, whose receive is posted. Returns whether it was sent eagerly.
fn send_expected(net: &mut Net, from: usize, length: usize) -> bool {
    let before = net.by_stream();
    let receive = net.receive_of(flow_from(from), length);
    net.send(flow_from(from), length, CompletionLevel::Inject);
    while net.end_of(1 - from, receive).is_none() {
        net.step();
    }
    assert!(net.by_stream() - before <= 1);
    net.by_stream() > before
}

/// Sends so many messages, whose receives are posted later. Returns how many were sent eagerly.
fn send_unexpected(net: &mut Net, messages: usize, length: usize) -> usize {
    let before = net.by_stream();
    for _ in 0..messages {
        net.send(flow_from(0), length, CompletionLevel::Inject);
        net.steps(2 * STREAM);
    }
    (0..messages).for_each(|_| _ = net.receive_of(flow_from(0), length));
    net.settle(100);
    net.by_stream() - before
}

/// RR-RDV-10
#[test]
fn messages_of_a_ping_pong_become_eager() {
    let mut net = net_of(&usual());
    assert_eq!([0, 1].map(|it| limit(&net, it)), [FIRST; 2]);
    let mut pulled = [0; 2];
    while [0, 1].iter().any(|&it| limit(&net, it) < LONGEST) {
        for from in [0, 1] {
            let was_short = limit(&net, from) < LONGEST;
            assert_eq!(send_expected(&mut net, from, LENGTH), !was_short);
            pulled[from] += usize::from(was_short);
        }
        assert!(pulled.iter().sum::<usize>() <= 40, "{pulled:?}");
    }
    assert!(pulled.iter().all(|&it| it > 8), "two steps of eight votes: {pulled:?}");
    assert_eq!([0, 1].map(|it| window(&net, it)), [4 * LONGEST; 2]);
    // One in 64 is pulled: grants carry advice.
    let mut since = [0; 2];
    for message in 0..400 {
        let from = message % 2;
        match send_expected(&mut net, from, LENGTH) {
            true => since[from] += 1,
            false => assert_eq!(std::mem::take(&mut since[from]), 63, "message {message}"),
        }
    }
    assert!(since.iter().all(|&it| it < 63));
    assert_eq!([0, 1].map(|it| limit(&net, it)), [LONGEST; 2]);
    net.settle(100);
    net.check();
}

/// RR-RDV-10
#[test]
fn messages_that_wait_for_their_receives_alone_become_eager() {
    let mut net = net_of(&usual());
    let mut pulled = 0;
    while limit(&net, 0) < LONGEST {
        pulled += 1 - send_unexpected(&mut net, 1, LENGTH);
        assert!(pulled <= 20, "{pulled}");
    }
    let eager: usize = (0..64).map(|_| send_unexpected(&mut net, 1, LENGTH)).sum();
    assert!(eager >= 62, "{eager} of 64");
    net.check();
}

/// RR-RDV-10
#[test]
fn messages_of_which_several_wait_for_their_receives_do_not_become_eager() {
    for waiting in [2, 3, 8] {
        let mut net = net_of(&usual());
        for _ in 0..100 {
            assert_eq!(send_unexpected(&mut net, waiting, LENGTH), 0);
            assert!(limit(&net, 0) <= FIRST && class(&net, 1) <= 16);
            assert_eq!(window(&net, 1), LONGEST);
        }
        net.check();
    }
}

/// RR-RDV-10
#[test]
fn messages_are_pulled_again_when_several_wait_for_their_receives() {
    let mut net = net_of(&usual());
    (0..20).for_each(|_| _ = send_expected(&mut net, 0, LENGTH));
    assert_eq!(limit(&net, 0), LONGEST);
    // Two steps of eight votes, and a grant with the advice: one message in 64, at the latest.
    let messages = (0..17 * 64).step_by(8).find(|_| {
        send_unexpected(&mut net, 8, LENGTH);
        limit(&net, 0) <= FIRST
    });
    assert!(messages.is_some());
    assert_eq!(send_unexpected(&mut net, 8, LENGTH), 0);
    net.check();
}

/// With and without remote data, and a posted receive.
///
/// RR-DGRAM-12, RR-DATA-1
#[test]
fn the_longest_eager_message_is_whole_and_a_longer_one_is_pulled() {
    for is_posted in [false, true] {
        let mut net = net_of(&Config { is_eager_limit_advised: false, ..usual() });
        assert_eq!([0, 1].map(|it| limit(&net, it)), [LONGEST; 2]);
        // One in three has remote data.
        for length in [0, 0, 0, 1, 1, 1, 2, 2, 2].map(|it| EAGER_BYTES_MAX - 1 + it) {
            let before = net.by_stream();
            exchange_between(&mut net, is_posted, length);
            let eager = net.by_stream() - before;
            assert_eq!(eager, usize::from(length <= EAGER_BYTES_MAX), "{length} bytes");
        }
        net.check();
    }
}

/// Sends a message of the first context until all is at rest.
fn exchange_between(net: &mut Net, is_posted: bool, length: usize) {
    if is_posted {
        net.receive_of(flow_from(0), length);
    }
    net.send(flow_from(0), length, CompletionLevel::Delivery);
    if !is_posted {
        net.steps(2 * STREAM);
        net.receive_of(flow_from(0), length);
    }
    net.settle(100);
}
