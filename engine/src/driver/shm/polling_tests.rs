//! An engine with more local peers than it polls.

use std::os::fd::AsFd;
use std::time::Instant;

use super::super::ring::WakeupHint;
use super::super::tests::{
    KEY, LONG, datagram, engine, is_readable, peer, segment, send, serve, take,
};
use super::super::{DriverCounters, RingSegment, Shm, socket};
use super::{DOORBELL_POLLS_PER_CHECK, POLLED, STREAK};
use crate::wire::local_peer::SIGNAL_POLL;

/// Writes a packet and notifies the reader.
fn write_packet(shm: &mut Shm, datagram: &[u8]) {
    assert!(send(shm, datagram));
    shm.flush(&mut DriverCounters::default());
}

/// An engine with `count` local peers, of sessions 1 to `count`; it has opened every other one.
fn hub(count: u64) -> (Shm, Vec<Shm>) {
    let id = engine();
    let mut hub = Shm::open(id, true, None, false).unwrap();
    let mut others = Vec::new();
    for session in 1..=count {
        let other = engine();
        let mut shm = Shm::open(other, true, None, false).unwrap();
        let is_opened = session.is_multiple_of(2);
        shm.connect_peer(peer(session, id, !is_opened, KEY));
        hub.connect_peer(peer(session, other, is_opened, KEY));
        others.push(shm);
    }
    let start = Instant::now();
    while hub.figures().local_peers < count as usize || !others.iter().all(Shm::is_up) {
        assert!(start.elapsed() < LONG);
        serve(&mut others);
        serve(std::slice::from_mut(&mut hub));
    }
    (hub, others)
}

/// The sessions whose rings are polled.
fn polled(shm: &Shm) -> Vec<u64> {
    let of = |&place: &u32| shm.channels[place as usize].as_ref().unwrap().session;
    shm.polling.polled().iter().map(of).collect()
}

/// The session of the next packet.
fn next_session(shm: &mut Shm) -> Option<u64> {
    take(shm).map(|(from, _)| u64::from(from.port()))
}

/// RR-SHM-11
#[test]
fn all_rings_are_served_without_polling_each() {
    const COUNT: u64 = 70;
    let (mut hub, mut others) = hub(COUNT);
    // A polling engine receives each in the next call.
    for session in 1..=COUNT {
        assert!(!hub.has_received(false) && next_session(&mut hub).is_none());
        write_packet(&mut others[session as usize - 1], &datagram(session, b"here"));
        assert!(hub.has_received(true) && hub.has_received(false));
        assert_eq!(next_session(&mut hub), Some(session));
    }
    assert!(!hub.has_received(false) && next_session(&mut hub).is_none());
    // All of them at a time, each once.
    for (session, shm) in (1..=COUNT).zip(&mut others) {
        write_packet(shm, &datagram(session, b"and here"));
    }
    let mut served: Vec<u64> = std::iter::from_fn(|| next_session(&mut hub)).collect();
    served.sort_unstable();
    assert!(served.into_iter().eq(1..=COUNT));
    assert!(!hub.has_received(true));
    // The background thread sleeps after the first poll that finds nothing.
    hub.begin_detached();
    for session in [4_u64, 21, 40, COUNT] {
        write_packet(&mut others[session as usize - 1], &datagram(session, b"are you there?"));
        assert_eq!(next_session(&mut hub), Some(session));
        assert!(next_session(&mut hub).is_none());
    }
    hub.end_detached();
    // It sleeps, is woken by one, and receives from the others.
    for session in [5_u64, COUNT - 1] {
        hub.serve(true);
        write_packet(&mut others[session as usize - 1], &datagram(session, b"wake up"));
        assert!(is_readable(hub.epoll.as_fd()));
        serve(std::slice::from_mut(&mut hub));
        assert_eq!(next_session(&mut hub), Some(session));
        for other in [session - 1, session] {
            write_packet(&mut others[other as usize - 1], &datagram(other, b"and now?"));
            assert_eq!(next_session(&mut hub), Some(other));
        }
    }
}

#[test]
fn busiest_rings_are_polled() {
    const COUNT: u64 = POLLED as u64 + 4;
    let (mut hub, mut others) = hub(COUNT);
    let busy = (1..=COUNT).find(|it| !polled(&hub).contains(it)).unwrap();
    let mut count = 0;
    while !polled(&hub).contains(&busy) {
        assert!(count < 40, "it is not polled");
        count += 1;
        write_packet(&mut others[busy as usize - 1], &datagram(busy, b"busy"));
        assert_eq!(next_session(&mut hub), Some(busy));
    }
    assert!(count > 10, "a few entries are no reason");
    let rings = |shm: &Shm| {
        let channel = shm.channels.iter().flatten().next().unwrap();
        channel.wakeup_hint() == WakeupHint::Doorbell
    };
    for round in 0..3 {
        assert_eq!(polled(&hub).len(), POLLED);
        for session in 1..=COUNT {
            let is_polled = polled(&hub).contains(&session);
            assert_eq!(rings(&others[session as usize - 1]), !is_polled, "{round} {session}");
            write_packet(&mut others[session as usize - 1], &datagram(session, b"still served"));
            assert_eq!(next_session(&mut hub), Some(session));
        }
        if round == 0 {
            // Not while it sleeps: then all wake it.
            hub.serve(true);
            serve(std::slice::from_mut(&mut hub));
        }
    }
    // A closed channel is replaced by another one.
    for gone in polled(&hub) {
        hub.disconnect_peer(gone);
        let expected = POLLED.min(hub.figures().local_peers);
        assert_eq!(polled(&hub).len(), expected);
        assert!(!polled(&hub).contains(&gone));
        let left: Vec<u64> = hub.channels.iter().flatten().map(|it| it.session).collect();
        for session in left {
            let is_polled = polled(&hub).contains(&session);
            assert_eq!(rings(&others[session as usize - 1]), !is_polled, "{gone} {session}");
            write_packet(&mut others[session as usize - 1], &datagram(session, b"served"));
            assert_eq!(next_session(&mut hub), Some(session));
        }
    }
}

/// A peer that found this engine asleep marks it as polling, after it has stopped polling.
///
/// RR-SHM-11
#[test]
fn late_wakeup_does_not_disable_the_doorbell() {
    const COUNT: u64 = POLLED as u64 + 1;
    let (mut hub, mut others) = hub(COUNT);
    let silent = (1..=COUNT).find(|it| !polled(&hub).contains(it)).unwrap();
    let other = &mut others[silent as usize - 1];
    let channel = other.channels.iter().flatten().next().unwrap();
    channel.mark_reader_awake();
    assert_eq!(channel.wakeup_hint(), WakeupHint::None);
    socket::send_signal(&channel.socket, SIGNAL_POLL);
    serve(std::slice::from_mut(&mut hub));
    assert_eq!(channel.wakeup_hint(), WakeupHint::Doorbell);
    write_packet(other, &datagram(silent, b"served"));
    assert_eq!(next_session(&mut hub), Some(silent));
    // What it wrote before is found when the wake-up is handled.
    let channel = other.channels.iter().flatten().next().unwrap();
    channel.mark_reader_awake();
    assert!(send(other, &datagram(silent, b"before")));
    let channel = other.channels.iter().flatten().next().unwrap();
    socket::send_signal(&channel.socket, SIGNAL_POLL);
    serve(std::slice::from_mut(&mut hub));
    assert_eq!(next_session(&mut hub), Some(silent));
}

/// Entries that a peer wrote before it ended are read, and then its slot is free.
#[test]
fn unpolled_channel_is_drained_before_it_closes() {
    const COUNT: u64 = POLLED as u64 + 2;
    for polls in [true, false] {
        let (mut hub, mut others) = hub(COUNT);
        let gone = (1..=COUNT).find(|it| !polled(&hub).contains(it)).unwrap();
        for text in [b"one", b"two"] {
            assert!(send(&mut others[gone as usize - 1], &datagram(gone, text)));
        }
        // Its doorbell is not set.
        others.remove(gone as usize - 1);
        serve(std::slice::from_mut(&mut hub));
        for _ in 0..2 {
            assert!(!polls || hub.has_received(false));
            assert_eq!(next_session(&mut hub), Some(gone));
        }
        assert!(!polls || hub.has_received(false), "its end is to be seen");
        assert_eq!(next_session(&mut hub), None);
        assert_eq!(hub.figures().local_peers, COUNT as usize - 1);
        assert!(!hub.has_received(false));
    }
}

/// A peer can set all doorbells, and clear those of others.
///
/// RR-SHM-11
#[test]
fn corrupted_doorbells_do_not_starve_other_peers() {
    const COUNT: u64 = POLLED as u64 + 3;
    let (mut hub, mut others) = hub(COUNT);
    let silent: Vec<u64> = (1..=COUNT).filter(|it| !polled(&hub).contains(it)).collect();
    let [served, hostile] = [silent[0] as usize - 1, silent[1] as usize - 1];
    let scribble = |others: &[Shm], value| {
        let channel = others[hostile].channels.iter().flatten().next().unwrap();
        channel.corrupt_doorbells(value);
    };
    // The remaining bits may be none, unassigned ones, or the peer's own.
    for (round, left) in (0..20).zip([0, 1 << 40, 1 << (POLLED + 1)].into_iter().cycle()) {
        write_packet(&mut others[served], &datagram(silent[0], b"served"));
        scribble(&others, left);
        let calls = (0..).take(1000).position(|_: u32| {
            let from = next_session(&mut hub);
            scribble(&others, left);
            from == Some(silent[0])
        });
        let most = DOORBELL_POLLS_PER_CHECK as usize * COUNT as usize;
        assert!(calls.is_some_and(|calls| calls <= most), "{round} {left:x} {calls:?}");
        // The doorbell is set again.
        scribble(&others, u64::MAX);
        assert_eq!(next_session(&mut hub), None);
        scribble(&others, u64::MAX);
        write_packet(&mut others[served], &datagram(silent[0], b"served again"));
        assert_eq!(next_session(&mut hub), Some(silent[0]));
    }
    assert_eq!(hub.figures().broken, 0);
}

/// Whether busy peers are polled or not, others are served meanwhile.
#[test]
fn busy_peers_do_not_starve_others() {
    const COUNT: u64 = POLLED as u64 + 4;
    // The busy ones, polled and not, and how much they write.
    let mut random = rand::random::<u64>() | 1;
    let seed = random;
    let mut next = |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) % below
    };
    let (mut hub, mut others) = hub(COUNT);
    for round in 0..40 {
        let of_polled = polled(&hub);
        let (mut loud, mut of_others) = (Vec::new(), Vec::new());
        for session in 1..=COUNT {
            let is_polled = of_polled.contains(&session);
            (if is_polled { &mut loud } else { &mut of_others }).push(session);
        }
        let silent = of_others.pop().unwrap();
        loud.truncate(next(POLLED as u64 + 1) as usize);
        loud.extend(of_others.iter().take(next(4) as usize));
        let takes_before = next(100);
        let mut fill = |others: &mut [Shm]| {
            for &session in &loud {
                let other = &mut others[session as usize - 1];
                // Some find no room.
                let _ = (0..next(20)).all(|_| send(other, &datagram(session, b"me")));
                other.flush(&mut DriverCounters::default());
            }
        };
        fill(&mut others);
        for _ in 0..takes_before {
            next_session(&mut hub);
        }
        fill(&mut others);
        write_packet(&mut others[silent as usize - 1], &datagram(silent, b"and me"));
        let mut before = 0;
        while next_session(&mut hub) != Some(silent) {
            before += 1;
            // One turn of each, as polled and unpolled ones may change places, and as much of
            // polled ones between two turns.
            let most = STREAK * 2 * COUNT as u32;
            assert!(before <= most, "seed {seed}, round {round}: {silent} behind {loud:?}");
            fill(&mut others);
        }
        while others.iter().any(Shm::is_behind) | next_session(&mut hub).is_some() {
            others.iter_mut().for_each(|other| other.flush(&mut DriverCounters::default()));
        }
    }
    assert!(!hub.has_received(true) && !hub.has_received(false));
}

/// RR-SHM-6, RR-SHM-11
#[test]
fn last_segment_needs_a_flush_only_if_its_reader_sleeps() {
    const COUNT: u64 = POLLED as u64 + 1;
    let (mut hub, mut others) = hub(COUNT);
    let mut counters = DriverCounters::default();
    let silent = (1..=COUNT).find(|it| !polled(&hub).contains(it)).unwrap();
    for session in [polled(&hub)[0], silent] {
        assert_eq!(segment(&mut hub), None);
        let other = &mut others[session as usize - 1];
        assert!(other.write_segment(
            other.ring_name(session),
            RingSegment::whole(b"last", true),
            &mut counters
        ));
        assert!(!other.is_behind() && hub.has_received(false));
        assert_eq!(segment(&mut hub), Some((session, b"last".to_vec())));
        hub.serve(true);
        assert!(other.write_segment(
            other.ring_name(session),
            RingSegment::whole(b"wake up", true),
            &mut counters
        ));
        assert!(other.is_behind() && !is_readable(hub.epoll.as_fd()));
        other.flush(&mut counters);
        assert!(!other.is_behind() && is_readable(hub.epoll.as_fd()));
        serve(std::slice::from_mut(&mut hub));
        assert_eq!(segment(&mut hub), Some((session, b"wake up".to_vec())));
    }
}

/// RR-SHM-4
#[test]
fn rejected_packet_does_not_hide_later_entries() {
    const COUNT: u64 = POLLED as u64 + 2;
    let (mut hub, mut others) = hub(COUNT);
    for session in 1..=COUNT {
        let other = &mut others[session as usize - 1];
        let forged = datagram(session + 1, b"not mine");
        let channel = other.channels.iter_mut().flatten().next().unwrap();
        assert_eq!(channel.send(&forged), Ok(true));
        channel.flush().unwrap();
        write_packet(other, &datagram(session, b"mine"));
        assert!(hub.has_received(false));
        assert_eq!(next_session(&mut hub), None);
        assert!(hub.has_received(false), "{session}");
        assert_eq!(next_session(&mut hub), Some(session));
    }
    assert_eq!(hub.figures().strays, COUNT);
}

/// A closed channel must not hide the next one.
#[test]
fn closed_channel_does_not_skip_the_next_one() {
    for next in 0..3 {
        let (mut hub, mut others) = hub(3);
        // This one is next.
        let order = polled(&hub);
        write_packet(&mut others[order[next] as usize - 1], &datagram(order[next], b"first"));
        assert_eq!(next_session(&mut hub), Some(order[next]));
        for gone in 0..3 {
            if gone == next {
                continue;
            }
            let served = order[3 - gone - next];
            let channel = hub.channels.iter_mut().flatten().find(|it| it.session == order[gone]);
            channel.unwrap().end();
            write_packet(&mut others[served as usize - 1], &datagram(served, b"and me"));
            assert_eq!(next_session(&mut hub), Some(served), "{next} {gone}");
            break;
        }
    }
}

/// The channel read last comes first, until it is removed.
#[test]
fn removed_channel_does_not_hide_the_only_one() {
    let (mut hub, mut others) = hub(2);
    for (session, other) in (1..=2).zip(&mut others) {
        write_packet(other, &datagram(session, b"first"));
        assert_eq!(next_session(&mut hub), Some(session));
    }
    hub.disconnect_peer(2);
    write_packet(&mut others[0], &datagram(1, b"still here"));
    assert_eq!(next_session(&mut hub), Some(1));
    assert_eq!(next_session(&mut hub), None);
}

/// A pending doorbell hides nothing from the background thread.
#[test]
fn detached_mode_checks_all_rings() {
    const COUNT: u64 = POLLED as u64 + 2;
    let (mut hub, mut others) = hub(COUNT);
    let silent: Vec<u64> = (1..=COUNT).filter(|it| !polled(&hub).contains(it)).collect();
    write_packet(&mut others[silent[0] as usize - 1], &datagram(silent[0], b"rung"));
    assert_eq!(next_session(&mut hub), Some(silent[0]));
    hub.begin_detached();
    assert!(send(&mut others[silent[1] as usize - 1], &datagram(silent[1], b"without a bell")));
    assert_eq!(next_session(&mut hub), Some(silent[1]));
    assert_eq!(next_session(&mut hub), None);
    hub.end_detached();
}
