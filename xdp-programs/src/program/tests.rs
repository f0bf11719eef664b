//! The program against frames, without a NIC: the kernel runs it on what it is given.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use libbpf_rs::{MapCore as _, MapFlags};
use proptest::prelude::*;

use super::*;
use crate::claim::{Entry, key_bytes};
use crate::{Counters, Missing};

const XDP_PASS: u32 = 2;

/// Skips the calling test, with a message, where programs cannot be loaded.
macro_rules! require_bpf {
    () => {
        if let Some(missing) = Missing::of_this_thread() {
            ringrail_tests::skip("ringrail_xdp", &missing);
            return;
        }
    };
}

fn loaded(kind: Kind) -> Loaded {
    load(kind, "none").unwrap_or_else(|error| panic!("{error}"))
}

/// Runs `frame` through; the action, and what was counted.
fn run(loaded: &Loaded, frame: &mut [u8]) -> (u32, Counters) {
    let before = Counters::read(&loaded.maps.counters).unwrap();
    let action = bpf::test_run(loaded.program.as_fd(), frame).unwrap();
    (action, Counters::read(&loaded.maps.counters).unwrap() - before)
}

/// Claims `addr` on queue 0, with no socket: what is claimed counts as `no_socket`.
fn claim(loaded: &Loaded, addr: &str) {
    let addr: SocketAddr = addr.parse().unwrap();
    let value = Entry::of_this_process(0).to_bytes();
    loaded.maps.claims.update(&key_bytes(addr, 0), &value, MapFlags::ANY).unwrap();
}

fn ethernet(tags: &[u16], protocol: u16) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    for (at, tag) in tags.iter().enumerate() {
        let outer = if at + 1 < tags.len() { 0x88a8_u16 } else { 0x8100 };
        frame.extend(outer.to_be_bytes());
        frame.extend(tag.to_be_bytes());
    }
    frame.extend(protocol.to_be_bytes());
    frame
}

fn udp(port: u16, payload: usize) -> Vec<u8> {
    let length = (8 + payload) as u16;
    let mut datagram = Vec::new();
    for field in [4000, port, length, 0] {
        datagram.extend(u16::to_be_bytes(field));
    }
    datagram.resize(8 + payload, 0x55);
    datagram
}

fn ipv4(options: usize, fragment: u16, protocol: u8, content: &[u8]) -> Vec<u8> {
    let header = 20 + options;
    let total = (header + content.len()) as u16;
    let mut packet = vec![0x40 | (header / 4) as u8, 0];
    packet.extend(total.to_be_bytes());
    packet.extend([0, 1]);
    packet.extend(fragment.to_be_bytes());
    packet.extend([64, protocol, 0, 0]);
    packet.extend(Ipv4Addr::new(10, 0, 0, 1).octets());
    packet.extend(Ipv4Addr::new(10, 0, 0, 2).octets());
    packet.resize(header, 1);
    packet.extend(content);
    packet
}

fn ipv6(next: u8, content: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend((content.len() as u16).to_be_bytes());
    packet.extend([next, 64]);
    packet.extend(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1).octets());
    packet.extend(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2).octets());
    packet.extend(content);
    packet
}

fn frame(tags: &[u16], protocol: u16, packet: &[u8]) -> Vec<u8> {
    let mut frame = ethernet(tags, protocol);
    frame.extend(packet);
    frame
}

#[test]
fn the_program_loads_through_the_verifier() {
    require_bpf!();
    let verified = verify().unwrap();
    assert!((50..4096).contains(&verified.instructions), "{verified:?}");
    // As on kernels that have no frames in several buffers.
    let plain = try_load(Kind::Plain, false).unwrap();
    assert!(!plain.has_frags);
    claim(&plain, "10.0.0.2:7000");
    let mut good = frame(&[], 0x0800, &ipv4(0, 0, 17, &udp(7000, 64)));
    assert_eq!(run(&plain, &mut good).1.no_socket, 1);
}

#[test]
fn the_number_of_an_error_is_found() {
    let error = MapHandle::from_pinned_path("/nowhere").unwrap_err();
    assert_eq!(plain(error).raw_os_error(), Some(libc::ENOENT));
}

#[test]
fn what_is_claimed_is_found() {
    require_bpf!();
    let loaded = loaded(Kind::Plain);
    claim(&loaded, "10.0.0.2:7000");
    claim(&loaded, "[fd00::2]:7000");
    let (v4, v6) = (ipv4(0, 0x4000, 17, &udp(7000, 64)), ipv6(17, &udp(7000, 64)));
    for tags in [&[][..], &[5], &[7, 5]] {
        for (protocol, packet) in [(0x0800, &v4), (0x86dd, &v6)] {
            let mut frame = frame(tags, protocol, packet);
            let before = frame.clone();
            let (action, counted) = run(&loaded, &mut frame);
            assert_eq!(action, XDP_PASS, "no socket is there to take it");
            assert_eq!((counted.no_socket, counted.total()), (1, 1), "{tags:?} {counted}");
            assert_eq!(frame, before, "the program changes nothing");
        }
    }
    // Options, no payload, and the padding of short frames.
    let mut with_options = frame(&[], 0x0800, &ipv4(40, 0, 17, &udp(7000, 64)));
    assert_eq!(run(&loaded, &mut with_options).1.no_socket, 1);
    let mut padded = frame(&[], 0x0800, &ipv4(0, 0, 17, &udp(7000, 0)));
    padded.resize(60, 0);
    assert_eq!(run(&loaded, &mut padded).1.no_socket, 1);
}

#[test]
fn what_is_not_claimed_passes_by_reason() {
    require_bpf!();
    let loaded = loaded(Kind::Plain);
    claim(&loaded, "10.0.0.2:7000");
    claim(&loaded, "[fd00::2]:7000");
    let good = udp(7000, 64);
    let change = |at: usize, to: &[u8]| {
        let mut frame = frame(&[], 0x0800, &ipv4(0, 0, 17, &good));
        frame[at..at + to.len()].copy_from_slice(to);
        frame
    };
    let cut = |length: usize| change(0, &[])[..length].to_vec();
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("not_claimed", frame(&[], 0x0800, &ipv4(0, 0, 17, &udp(7001, 64)))),
        ("not_claimed", change(33, &[3])),
        ("not_udp", frame(&[], 0x0800, &ipv4(0, 0, 6, &good))),
        ("not_udp", frame(&[], 0x86dd, &ipv6(58, &good))),
        ("not_ip", frame(&[], 0x0806, &good)),
        ("not_ip", frame(&[1, 2, 3], 0x0800, &ipv4(0, 0, 17, &good))),
        // The first one, one in between, and the last one.
        ("fragment", frame(&[], 0x0800, &ipv4(0, 0x2000, 17, &good))),
        ("fragment", frame(&[], 0x0800, &ipv4(0, 0x2010, 17, &good))),
        ("fragment", frame(&[], 0x0800, &ipv4(0, 0x0010, 17, &good))),
        ("fragment", frame(&[], 0x86dd, &ipv6(44, &good))),
        ("extension_header", frame(&[], 0x86dd, &ipv6(0, &good))),
        ("extension_header", frame(&[], 0x86dd, &ipv6(43, &good))),
        ("extension_header", frame(&[], 0x86dd, &ipv6(60, &good))),
        // In the IP header, in the UDP header, and in the payload.
        ("too_short", cut(20)),
        ("too_short", cut(38)),
        ("too_short", cut(105)),
        ("too_short", frame(&[5], 0x0800, &[])),
        ("too_short", ethernet(&[], 0x86dd)),
        ("too_short", change(16, &u16::to_be_bytes(93))),
        // A UDP header that the IP packet has no room for.
        ("too_long", change(16, &u16::to_be_bytes(27))),
        ("too_long", change(38, &u16::to_be_bytes(73))),
        ("too_long", change(38, &[0xff, 0xff])),
        ("malformed", change(14, &[0x55])),
        ("malformed", change(14, &[0x44])),
        ("malformed", change(16, &u16::to_be_bytes(19))),
        ("malformed", change(38, &u16::to_be_bytes(7))),
        ("malformed", change(38, &[0, 0])),
        ("malformed", frame(&[], 0x86dd, &ipv4(0, 0, 17, &[0; 64]))),
    ];
    for (at, (reason, mut frame)) in cases.into_iter().enumerate() {
        let (action, counted) = run(&loaded, &mut frame);
        let seen = counted.by_name().into_iter().find(|&(_, count)| count != 0).unwrap();
        assert_eq!((seen.0, counted.total()), (reason, 1), "case {at}: {counted}");
        assert_eq!(action, XDP_PASS, "case {at}");
    }
}

/// Returns, by the standards and not by the program, whether a frame is a datagram for
/// 10.0.0.2:7000 or [fd00::2]:7000 that is to be redirected.
fn is_for_us(frame: &[u8]) -> bool {
    fn u16_at(bytes: &[u8], at: usize) -> Option<usize> {
        Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?).into())
    }
    let look = || -> Option<bool> {
        let mut rest = frame.get(12..)?;
        let mut tags = 0;
        while matches!(u16_at(rest, 0)?, 0x8100 | 0x88a8) && tags < 2 {
            rest = rest.get(4..)?;
            tags += 1;
        }
        let (protocol, packet) = (u16_at(rest, 0)?, rest.get(2..)?);
        let content = match (protocol, packet.first()? >> 4) {
            (0x0800, 4) => {
                let header = usize::from(packet[0] & 15) * 4;
                let content = packet.get(..u16_at(packet, 2)?)?.get(header..)?;
                let is_whole = u16_at(packet, 6)? & 0x3fff == 0;
                let is_ours = packet.get(16..20)? == [10, 0, 0, 2] && packet[9] == 17;
                (header >= 20 && is_whole && is_ours).then_some(content)?
            }
            (0x86dd, 6) => {
                let content = packet.get(40..)?.get(..u16_at(packet, 4)?)?;
                let target = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2).octets();
                (packet[6] == 17 && packet[24..40] == target).then_some(content)?
            }
            _ => return Some(false),
        };
        let length = u16_at(content, 4)?;
        let fits = content.len() >= 8 && (8..=content.len()).contains(&length);
        Some(fits && u16_at(content, 2)? == 7000)
    };
    look().unwrap_or(false)
}

#[test]
fn arbitrary_damage_is_judged_as_the_standards_do() {
    require_bpf!();
    let loaded = loaded(Kind::Plain);
    claim(&loaded, "10.0.0.2:7000");
    claim(&loaded, "[fd00::2]:7000");
    let tags = prop::collection::vec(any::<u16>(), 0..4);
    let damage = prop::collection::vec((0..80_usize, any::<u8>()), 0..3);
    let shape = (tags, any::<bool>(), 0..11_usize, 0..100_usize, damage, 14..200_usize);
    let (ours, others) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(20_000));
    let result = runner.run(&shape, |(tags, is_v4, options, payload, damage, length)| {
        let content = udp(7000, payload);
        let (protocol, packet) = match is_v4 {
            true => (0x0800, ipv4(options * 4, 0, 17, &content)),
            false => (0x86dd, ipv6(17, &content)),
        };
        let mut frame = frame(&tags, protocol, &packet);
        for (at, xor) in damage {
            if let Some(byte) = frame.get_mut(at) {
                *byte ^= xor;
            }
        }
        // Cut off, or padded.
        frame.resize(length.max(14), 0);
        let expected = is_for_us(&frame);
        let kind = if expected { &ours } else { &others };
        kind.set(kind.get() + 1);
        let (action, counted) = run(&loaded, &mut frame);
        prop_assert_eq!(action, XDP_PASS);
        prop_assert_eq!((counted.no_socket == 1, counted.total()), (expected, 1), "{}", counted);
        Ok(())
    });
    result.unwrap();
    // The judge is worth nothing if one of the answers never comes.
    assert!(ours.get() > 1000 && others.get() > 1000, "{ours:?} for us, {others:?} not");
}

#[cfg(feature = "faults")]
mod faults {
    use super::*;
    use crate::{Effect, Fault};

    const XDP_DROP: u32 = 1;

    fn set(loaded: &Loaded, rules: &[Fault]) {
        let map = loaded.maps.faults.as_ref().unwrap();
        for at in 0..8_u32 {
            let value = rules.get(at as usize).map_or([0; 40], |rule| rule.to_bytes());
            map.update(&at.to_ne_bytes(), &value, MapFlags::ANY).unwrap();
        }
    }

    /// Which of `count` datagrams from port 4000 to 7000 are dropped.
    fn dropped(loaded: &Loaded, count: usize) -> Vec<usize> {
        let mut frame = frame(&[], 0x0800, &ipv4(0, 0, 17, &udp(7000, 64)));
        (0..count).filter(|_| run(loaded, &mut frame).0 == XDP_DROP).collect()
    }

    #[test]
    fn the_program_that_ships_has_none() {
        require_bpf!();
        assert!(loaded(Kind::Plain).maps.faults.is_none());
        assert!(loaded(Kind::Faults).maps.faults.is_some());
    }

    #[test]
    fn every_nth_is_dropped() {
        require_bpf!();
        let loaded = loaded(Kind::Faults);
        assert!(dropped(&loaded, 100).is_empty());
        set(&loaded, &[Fault::drop_every(10)]);
        assert_eq!(dropped(&loaded, 30), [9, 19, 29]);
        set(&loaded, &[Fault { skip: 5, ..Fault::drop_every(10) }]);
        assert_eq!(dropped(&loaded, 30), [14, 24]);
        set(&loaded, &[Fault { to_port: 7001, ..Fault::drop_every(1) }]);
        assert!(dropped(&loaded, 30).is_empty());
        set(&loaded, &[Fault { from_port: 4000, to_port: 7000, ..Fault::drop_every(1) }]);
        assert_eq!(dropped(&loaded, 3), [0, 1, 2]);
    }

    #[test]
    fn a_share_is_dropped_at_random() {
        require_bpf!();
        let loaded = loaded(Kind::Faults);
        set(&loaded, &[Fault::drop_share(0.1)]);
        let count = dropped(&loaded, 10_000).len();
        // Ten standard deviations of the binomial distribution.
        assert!((700..1300).contains(&count), "{count} of 10000");
        set(&loaded, &[Fault::drop_share(1.0)]);
        assert_eq!(dropped(&loaded, 100).len(), 100);
    }

    #[test]
    fn one_bit_is_flipped() {
        require_bpf!();
        let loaded = loaded(Kind::Faults);
        set(&loaded, &[Fault { to_port: 7000, ..Fault::flip_every(2, 19) }]);
        for protocol in [0x0800, 0x86dd] {
            let packet = match protocol {
                0x0800 => ipv4(40, 0, 17, &udp(7000, 64)),
                _ => ipv6(17, &udp(7000, 64)),
            };
            let whole = frame(&[3, 4], protocol, &packet);
            let mut first = whole.clone();
            assert_eq!(run(&loaded, &mut first).0, XDP_PASS);
            assert_eq!(first, whole);
            let mut second = whole.clone();
            assert_eq!(run(&loaded, &mut second).0, XDP_PASS);
            let mut expected = whole.clone();
            let payload = whole.len() - 64;
            expected[payload + 2] ^= 8;
            assert_eq!(second, expected);
        }
        // What is too short for it stays as it is.
        set(&loaded, &[Fault::flip_every(1, 8 * 64)]);
        let mut short = frame(&[], 0x0800, &ipv4(0, 0, 17, &udp(7000, 64)));
        let before = short.clone();
        assert_eq!(run(&loaded, &mut short).0, XDP_PASS);
        assert_eq!(short, before);
        assert!(matches!(Fault::flip_every(1, 9).effect, Effect::Flip { bit: 9 }));
    }
}
