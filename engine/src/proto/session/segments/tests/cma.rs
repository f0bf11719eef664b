//! Long messages read from the sender's memory (CMA).

use zerocopy::{FromZeros, IntoBytes};

use crate::proto::core::Config;
use crate::proto::effects::{CompletionLevel, Effects, Ended};
use crate::proto::failure::PeerFailure;
use crate::proto::sim::{Flow, Net};
use crate::wire::CmaSource;

const FLOW: Flow = Flow { from: 0, source: 0, to: 1, target: 0, context: 1 };

fn net() -> Net {
    let mut net = Net::new(2, &Config::for_tests(), 1200, 1);
    net.use_streams(1);
    net.use_cma(true);
    net
}

/// RR-SHM-7
#[test]
fn long_messages_are_read_posted_or_unexpected_and_truncated() {
    let mut net = net();
    for (number, (length, capacity)) in
        [(1000, 1000), (1300, 1300), (1300, 1100), (100_000, 100_000), (70_000, 500), (0, 0)]
            .into_iter()
            .enumerate()
    {
        if number % 2 == 0 {
            net.send(FLOW, length, CompletionLevel::Delivery);
            net.steps(10);
            net.receive_of(FLOW, capacity);
        } else {
            net.receive_of(FLOW, capacity);
            net.send(FLOW, length, CompletionLevel::Match);
        }
        net.settle(200);
    }
    assert_eq!(net.cma_bytes, 1300 + 1100 + 100_000 + 500);
    assert_eq!(net.by_stream(), 0, "the stream was not used");
    net.check();
}

/// RR-SHM-7
#[test]
fn failed_cma_read_falls_back_to_grants() {
    let mut net = net();
    for number in 0..20 {
        net.receive_of(FLOW, 20_000);
        net.send(FLOW, 20_000, CompletionLevel::Delivery);
        // Half of some messages is read.
        net.steps(number);
        net.cma_failure_ppm = 1_000_000;
        net.settle(300);
        net.cma_failure_ppm = 0;
    }
    assert!(net.cma_bytes > 20_000);
    // The last one was announced while its peer could still read.
    net.send(FLOW, 20_000, CompletionLevel::Delivery);
    net.stage(0);
    net.use_cma(false);
    net.receive_of(FLOW, 20_000);
    net.settle(300);
    let before = net.cma_bytes;
    net.send(FLOW, 20_000, CompletionLevel::Delivery);
    net.receive_of(FLOW, 20_000);
    net.settle(300);
    assert_eq!(net.cma_bytes, before);
    net.check();
}

/// RR-SHM-7
#[test]
fn cancelled_send_revokes_its_memory_first() {
    let mut net = net();
    let first = net.send(FLOW, 90_000, CompletionLevel::Delivery).unwrap();
    let got = net.receive_of(FLOW, 90_000);
    net.steps(4);
    assert!(net.cma_bytes > 0, "the read is in progress");
    // No chunk is passed to the kernel, which would have to complete it.
    (net.has_refused_grants, net.has_bulk) = (true, false);
    // Its endpoint is closed while the session continues; that memory is reused.
    let engine = &mut net.engines[0];
    engine.core.close_endpoint(0, &mut engine.memory);
    engine.core.cancel_closed(|_| true, &mut engine.memory);
    assert_eq!(engine.memory.revocations, 1);
    assert_eq!(net.end_of(0, first), Some(&Ended::Cancelled));
    net.steps(300);
    let ended = net.end_of(1, got).expect("its sender is closed");
    assert!(matches!(ended, Ended::Failed(PeerFailure::Left, _)), "{ended:?}");
}

/// RR-SHM-7
#[test]
fn pending_cma_falls_back_to_grants_after_revoke() {
    let mut net = net();
    net.send(FLOW, 5000, CompletionLevel::Delivery);
    net.stage(0);
    net.engines[0].memory.revoke();
    net.receive_of(FLOW, 5000);
    net.settle(300);
    assert_eq!(net.cma_bytes, 0);
    net.send(FLOW, 5000, CompletionLevel::Delivery);
    net.receive_of(FLOW, 5000);
    net.settle(300);
    assert_eq!(net.cma_bytes, 5000);
    net.check();
}

/// RR-SHM-7
#[test]
fn cma_source_with_wrong_length_or_null_address_is_rejected() {
    let mut net = net();
    net.send(FLOW, 5000, CompletionLevel::Delivery);
    let engine = &mut net.engines[0];
    let id = engine.core.poll_waiting().unwrap();
    let crate::proto::session::send::Staged::Source { room } = engine.core.stage(id, 0) else {
        panic!()
    };
    assert_eq!(room.len(), 16);
    // In several pieces.
    room.copy_from_slice(CmaSource::new_zeroed().as_bytes());
    net.receive_of(FLOW, 5000);
    net.settle(300);
    assert_eq!(net.cma_bytes, 0);
    net.check();
}

/// RR-SHM-7
#[test]
fn messages_go_in_pieces_or_are_read_whichever_is_faster() {
    const LENGTH: usize = 100_000;
    let config = Config { pieces_bytes_max: 30_000, ..Config::for_tests() };
    let mut net = Net::new(2, &config, 1200, 1);
    net.use_streams(1);
    net.use_rings();
    net.use_cma(true);
    // Nanoseconds and messages: in pieces, and read.
    let mut ways = [(0, 0); 2];
    let mut last = None;
    for number in 0..600 {
        let before = net.cma_bytes;
        net.receive_of(FLOW, LENGTH);
        net.send(FLOW, LENGTH, CompletionLevel::Delivery);
        let begun_ns = net.now_ns();
        net.settle(300);
        let elapsed_ns = net.now_ns() - begun_ns;
        let is_read = net.cma_bytes > before;
        ways[usize::from(is_read)].0 += elapsed_ns;
        ways[usize::from(is_read)].1 += 1;
        assert!(number < 350 || last == Some(is_read), "decided at message {number}");
        last = Some(is_read);
    }
    let [pieces, read] = ways.map(|(elapsed_ns, count)| {
        assert!(count > 80, "both are tried: {ways:?}");
        elapsed_ns / count
    });
    assert_eq!(last, Some(8 * read < 9 * pieces), "{ways:?}");
    net.receive_of(FLOW, 1 << 18);
    net.send(FLOW, 1 << 18, CompletionLevel::Delivery);
    let before = net.cma_bytes;
    net.settle(300);
    assert_eq!(net.cma_bytes, before + (1 << 18), "longer ones are read");
    net.check();
}
