//! Properties on any network. Each run ends with a fault-free one, on which everything must finish.

use proptest::prelude::*;

use super::*;
use crate::proto::packet::path::Path;
use crate::wire::ack::NUMBERS_MAX;
use crate::wire::packet::{FLAG_ACK, FLAG_ACK_NOW, FLAG_ELICITS, FLAG_FLOOR, Packet, PacketError};

#[derive(Clone, Debug)]
struct Conditions {
    links: [LinkConfig; 2],
    sleeps: [Option<(u64, u64)>; 2],
    rtt_ns: u64,
    message_bytes: u32,
    seed: u64,
}

fn link(rtt_ns: u64) -> impl Strategy<Value = LinkConfig> {
    (
        prop_oneof![Just(50_000_000u64), Just(GBIT), Just(10 * GBIT)],
        0..400_000u64,
        0..100_000u64,
        0..rtt_ns,
        (0..50_000u64, 0..4 * rtt_ns),
        prop::option::of((0..20 * rtt_ns, rtt_ns..60 * rtt_ns)),
        prop_oneof![Just(usize::MAX), 1200..1472usize],
    )
        .prop_map(move |(rate, loss_ppm, duplicate_ppm, jitter_ns, late, dead, bytes_max)| {
            LinkConfig {
                loss_ppm,
                duplicate_ppm,
                jitter_ns,
                late_ppm: late.0,
                late_ns: late.1,
                dead_ns: dead.map_or(0..0, |(from, length)| from..from + length),
                bytes_max,
                ..LinkConfig::new(rate, rtt_ns)
            }
        })
}

fn conditions() -> impl Strategy<Value = Conditions> {
    let rtts = prop_oneof![Just(10 * MICRO), Just(100 * MICRO), Just(5 * MILLI)];
    rtts.prop_flat_map(|rtt_ns| {
        let sleep = || prop::option::of((1..3 * MILLI, 3 * MILLI..20 * MILLI));
        let bytes = prop_oneof![Just(1u32), Just(64), Just(5000), Just(100_000)];
        (link(rtt_ns), link(rtt_ns), sleep(), sleep(), bytes, any::<u64>()).prop_map(
            move |(forth, back, first, second, message_bytes, seed)| Conditions {
                links: [forth, back],
                sleeps: [first, second],
                rtt_ns,
                message_bytes,
                seed,
            },
        )
    })
}

fn run(conditions: &Conditions) -> PathPair {
    let config = config(conditions.rtt_ns);
    let messages = 4 + 400_000 / conditions.message_bytes.max(4000);
    let sender = Sender::new(conditions.message_bytes, 3, messages);
    let mut pair = PathPair::new(&config, conditions.links.clone(), sender, conditions.seed);
    pair.answer_with(Sender::new(700, 2, 40));
    (pair.ends[0].sleeps, pair.ends[1].sleeps) = (conditions.sleeps[0], conditions.sleeps[1]);
    pair.finish(40 * conditions.rtt_ns);
    // All faults end; sleeping loops remain.
    for link in &mut pair.links {
        link.config = LinkConfig::new(link.config.bits_per_second, conditions.rtt_ns);
    }
    pair
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// The pair checks at every step: window respected, timers armed, no token reported twice.
    ///
    /// RR-PKT-1, RR-PKT-9, RR-PKT-11.
    #[test]
    fn everything_completes_after_faults_end(conditions in conditions()) {
        let mut pair = run(&conditions);
        let healed_ns = pair.now_ns();
        prop_assert!(pair.finish(healed_ns + 30 * SECOND), "not done");
        for end in 0..2 {
            let begun = pair.ends[end].sender.begun_ns.len();
            prop_assert_eq!(pair.ends[1 - end].receiver.whole.len(), begun);
        }
        // Every token is reported, those of the last probes included.
        let until_ns = pair.now_ns() + 30 * SECOND;
        let all = pair.run(until_ns, |pair| {
            pair.ends.iter().all(|end| end.sender.open_tokens() == 0 && end.path.load().1 == 0)
        });
        prop_assert!(all, "tokens stay open");
    }

    #[test]
    fn runs_are_reproducible_by_seed(conditions in conditions()) {
        let (mut first, mut second) = (run(&conditions), run(&conditions));
        first.finish(30 * SECOND);
        second.finish(30 * SECOND);
        prop_assert_eq!(first.now_ns(), second.now_ns());
        prop_assert_eq!(first.links[0].sent(), second.links[0].sent());
        prop_assert_eq!(&first.ends[1].receiver.whole, &second.ends[1].receiver.whole);
    }

    /// The fast path for packets and acknowledgements leaves the same state as the general path, in
    /// every field.
    #[test]
    fn fast_path_and_general_path_have_equal_effects(conditions in conditions()) {
        let short = run(&conditions);
        let long = crate::hooks::simulated::by_long_ways(|| run(&conditions));
        prop_assert_eq!(short.now_ns(), long.now_ns());
        for (short, long) in short.ends.iter().zip(&long.ends) {
            prop_assert_eq!(format!("{:?}", short.path), format!("{:?}", long.path));
            prop_assert_eq!(&short.receiver.whole, &long.receiver.whole);
        }
    }

    /// Packets that only an authenticated, faulty peer sends: no panic, and bounded memory.
    #[test]
    fn faulty_peer_is_rejected_or_tolerated(
        packets in proptest::collection::vec(
            (0u8..32, any::<[u32; 3]>(), 0u64..9000, any::<u64>(), 0usize..4),
            1..80,
        ),
    ) {
        let mut path = Path::new(PathConfig::default());
        let mut payload = Bytes(u64::MAX);
        let mut out = vec![0; 1472];
        for (at, (flags, [number, floor, ack], word, bits, near)) in
            packets.into_iter().enumerate()
        {
            let now_ns = at as u64 * 10_000;
            path.poll_transmit(now_ns, &mut payload, &mut out);
            let near = |value: u32| if near > 0 { value % 300 } else { value };
            let mut bytes = packet(flags, near(number));
            if flags & FLAG_FLOOR != 0 {
                bytes.extend(near(floor).to_le_bytes());
            }
            if flags & FLAG_ACK != 0 {
                bytes.extend(super::ack(near(ack).into(), 5000, &[(word, &[bits, !bits])]));
            }
            if let Ok(packet) = Packet::decode(&bytes) {
                let _ = path.handle_packet(now_ns, &packet);
            }
            path.handle_timeout(now_ns, true);
            while path.poll_event().is_some() {}
            prop_assert!(path.load().1 == 0 || path.poll_timeout().is_some());
        }
    }
}

/// RR-PKT-5
#[test]
fn ack_of_unsent_packets_has_no_effect() {
    let mut path = Path::new(PathConfig::default());
    let mut out = vec![0; 1472];
    let mut payload = Bytes(u64::MAX);
    for _ in 0..3 {
        path.poll_transmit(0, &mut payload, &mut out).unwrap();
    }
    let forge = |cumulative: u64, windows: &[(u64, &[u64])]| {
        [packet(FLAG_ACK | FLAG_ELICITS, 0), ack(cumulative, 0, windows)].concat()
    };
    let before = path.load();
    for (bytes, unsent) in
        [(forge(4, &[]), 3), (forge(0, &[(0, &[0b1001])]), 3), (forge(1, &[(0, &[1 << 63])]), 63)]
    {
        let error = path.handle_packet(0, &Packet::decode(&bytes).unwrap()).unwrap_err();
        assert_eq!(error, PacketError::AckOfUnsent(unsent));
        assert_eq!((path.load(), path.poll_event()), (before, None));
    }
    let bytes = forge(3, &[]);
    path.handle_packet(0, &Packet::decode(&bytes).unwrap()).unwrap();
    assert_eq!(path.load().1, 0);
}

/// Two deferred acknowledgements, reordered by the network: the sample is that of the newer one,
/// which arrived first.
#[test]
fn reordered_ack_gives_no_rtt_sample() {
    let mut path = Path::new(config(100 * MICRO));
    let (mut payload, mut out) = (Bytes(u64::MAX), vec![0; 1472]);
    let answer = |number: u32, cumulative: u64, delay_ns: u64| {
        let packet = packet(FLAG_ACK | FLAG_ELICITS, number);
        [&packet, &ack(cumulative, delay_ns, &[])[..], b"payload"].concat()
    };
    let handle = |path: &mut Path, now_ns: u64, bytes: &[u8]| {
        path.handle_packet(now_ns, &Packet::decode(bytes).unwrap()).unwrap();
    };
    path.poll_transmit(0, &mut payload, &mut out).unwrap();
    handle(&mut path, 100 * MICRO, &answer(0, 1, 0));
    for number in 1..4 {
        path.poll_transmit(number * MICRO + SECOND, &mut payload, &mut out).unwrap();
    }
    // All were sent at about 1 s; the second acknowledgement was delayed by a millisecond at its
    // sender.
    let came_ns = SECOND + 104 * MICRO;
    handle(&mut path, came_ns, &answer(2, 4, 0));
    handle(&mut path, came_ns + MICRO, &answer(1, 2, 1000 * MICRO));
    path.apply_deferred_ack();
    assert_eq!(path.load().1, 0, "all are acknowledged");
    let least_ns = path.least_round_trip_ns().unwrap();
    assert!(least_ns >= 99 * MICRO, "{least_ns}");
}

/// RR-PKT-4
#[test]
fn one_way_outage_does_not_exhaust_packet_numbers() {
    // End 0's packets are dropped while it acknowledges far more than the span of numbers.
    let rtt_ns = 100 * MICRO;
    let mut path = Path::new(config(rtt_ns));
    let mut out = vec![0; 1472];
    let mut payload = Bytes(u64::MAX);
    let (mut now_ns, mut lost) = (0, 0);
    for number in 0..NUMBERS_MAX + 1000 {
        now_ns += 1000;
        let asking = packet(FLAG_ELICITS | FLAG_ACK_NOW, number as u32);
        path.handle_packet(now_ns, &Packet::decode(&asking).unwrap()).unwrap();
        path.handle_timeout(now_ns, true);
        while path.poll_transmit(now_ns, &mut payload, &mut out).is_some() {}
        while path.poll_event().is_some() {
            lost += 1;
        }
    }
    assert!(lost > 0, "the packet at the floor was abandoned");
}
