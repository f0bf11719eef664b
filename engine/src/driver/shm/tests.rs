//! Two engines that share memory, and a hostile peer.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, SealFlags};
use zerocopy::IntoBytes;
use zeroize::Zeroizing;

use super::doorbell::{DOORBELL_BYTES, DOORBELLS};
use super::local_peers::{EXCHANGE_LIMIT, EXCHANGES_MAX};
use super::ring_pair::{RING_PAIR_BYTES, RingPair};
use super::*;
use crate::driver::traits::{DATAGRAM_BYTES_MAX, RingEntry};
use crate::wire::frame_range::{FrameRange, RING_SHORT_BYTES, RingBytes, RingHead};
use crate::wire::local_peer::{
    KIND_ADMITTED, KIND_CHALLENGE, KIND_JOIN, KIND_LOCAL_HELLO, KIND_MEMORY, KIND_READY,
    LocalPeerMessage, SIGNAL_POLL,
};
use crate::wire::packet::{KIND_PACKET, PacketHeader};

pub(super) const KEY: [u8; 32] = [7; 32];
pub(super) const LONG: Duration = Duration::from_secs(20);

/// An engine id, unique on this host.
pub(super) fn engine() -> u64 {
    rand::random()
}

fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

pub(super) fn peer(session: u64, engine: u64, is_initiator: bool, key: [u8; 32]) -> LocalPeer {
    let address = address(session as u16);
    LocalPeer { session, engine, address, key: Zeroizing::new(key), is_initiator }
}

/// A packet of a session's first path.
pub(super) fn datagram(session: u64, text: &[u8]) -> Vec<u8> {
    let header = PacketHeader {
        kind: KIND_PACKET,
        flags: 0,
        path: 0.into(),
        number: 0.into(),
        session: session.into(),
    };
    [header.as_bytes(), text].concat()
}

/// Two engines with a session of this number, whose sides have these keys.
fn two(session: u64, keys: [[u8; 32]; 2]) -> [Shm; 2] {
    let ids = [engine(), engine()];
    let mut both = ids.map(|id| Shm::open(id, true, None, false).unwrap());
    both[0].connect_peer(peer(session, ids[1], true, keys[0]));
    both[1].connect_peer(peer(session, ids[0], false, keys[1]));
    both
}

/// Serves all until `is_done`.
fn until<const N: usize>(all: &mut [Shm; N], is_done: impl Fn(&[Shm; N]) -> bool) {
    let start = Instant::now();
    while !is_done(all) {
        assert!(start.elapsed() < LONG, "nothing happens");
        serve(all);
    }
}

pub(super) fn serve(all: &mut [Shm]) {
    for shm in all {
        shm.mark_socket_events();
        shm.serve(false);
    }
}

fn shared(session: u64) -> [Shm; 2] {
    let mut both = two(session, [KEY; 2]);
    until(&mut both, |both| both.iter().all(Shm::is_up));
    both
}

pub(super) fn take(shm: &mut Shm) -> Option<(SocketAddr, Vec<u8>)> {
    // Only hostile peers write segments here.
    let _ = shm.receive_entry(&mut DriverCounters::default());
    let from = shm.take_packet()?;
    Some((from, shm.payload().to_vec()))
}

/// The next segment, and its session.
pub(super) fn segment(shm: &mut Shm) -> Option<(u64, Vec<u8>)> {
    match shm.receive_entry(&mut DriverCounters::default())? {
        (session, RingEntry::Segment(bytes)) => Some((session, bytes.to_vec())),
        (_, entry) => panic!("{entry:?}"),
    }
}

/// The next frames of a segment without its header.
fn frames(shm: &mut Shm) -> Option<KeptFrames> {
    let mut counters = DriverCounters::default();
    match shm.receive_entry(&mut counters)? {
        (5, RingEntry::Frames(range, bytes)) => Some(KeptFrames { range, bytes: bytes.to_vec() }),
        (5, RingEntry::Message(message)) => {
            let range = message.range;
            Some(KeptFrames { range, bytes: shm.message(&mut counters).to_vec() })
        }
        (_, entry) => panic!("{entry:?}"),
    }
}

/// Writes frames of several lengths, until `most` are written or the ring is full.
fn write_frames(shm: &mut Shm, most: u32) -> Vec<KeptFrames> {
    let mut written = Vec::new();
    for first in 0..most {
        let range = FrameRange { first, count: 1 };
        let length = [8, RING_SHORT_BYTES, 0, 57, 130][first as usize % 5];
        let mut bytes = vec![first as u8; length.max(RING_SHORT_BYTES)];
        let all = match bytes.first_chunk() {
            Some(short) if length <= RING_SHORT_BYTES => RingBytes::Short(short, length),
            _ => RingBytes::Parts([&bytes, &[]]),
        };
        let segment = RingSegment { frames: Some(range), bytes: all, is_last: true };
        if !shm.write_segment(shm.ring_name(5), segment, &mut DriverCounters::default()) {
            break;
        }
        bytes.truncate(length);
        written.push(KeptFrames { range, bytes });
    }
    written
}

/// RR-SHM-5
#[test]
fn long_message_is_copied_once_and_makes_room_when_it_is() {
    let mut counters = DriverCounters::default();
    let mut both = shared(5);
    let [ours, theirs] = &mut both;
    let payload = [7; 6000];
    for (number, length) in [992, 1000, 6000].into_iter().cycle().take(60).enumerate() {
        let range = FrameRange { first: number as u32, count: 1 };
        let kind = [RingHead::Header, RingHead::HeaderAndData][number / 3 % 2];
        let head = vec![9; kind.bytes()];
        let bytes = RingBytes::Parts([&head, &payload[..length]]);
        assert_eq!(bytes.head(), kind);
        let segment = RingSegment { frames: Some(range), bytes, is_last: true };
        assert!(ours.write_segment(ours.ring_name(5), segment, &mut counters), "{number}");
        match theirs.receive_entry(&mut counters) {
            Some((5, RingEntry::Message(got))) => {
                assert_eq!((got.range, got.head()), (range, &head[..]));
                assert_eq!(got.length, head.len() + length);
            }
            other => panic!("{other:?}"),
        }
        if number % 2 == 0 {
            let mut room = vec![0; length];
            theirs.read_body(&mut room, &mut counters);
            assert_eq!(room, payload[..length]);
        } else {
            assert_eq!(theirs.message(&mut counters), [&head[..], &payload[..length]].concat());
        }
    }
    let several = FrameRange { first: 60, count: 2 };
    let bytes = RingBytes::Parts([&payload, &[]]);
    let segment = RingSegment { frames: Some(several), bytes, is_last: true };
    assert!(ours.write_segment(ours.ring_name(5), segment, &mut counters));
    let read = frames(theirs).expect("it was written");
    assert_eq!((read.range, &read.bytes[..]), (several, &payload[..]));
}

/// The number of the ring gained or lost.
fn ring_change(shm: &mut Shm, session: u64, is_up: bool) -> Option<u32> {
    let change = shm.next_ring_change()?;
    assert_eq!((change.session, change.is_up), (session, is_up));
    Some(change.number)
}

pub(super) fn send(shm: &mut Shm, datagram: &[u8]) -> bool {
    shm.send(datagram, &mut DriverCounters::default())
}

pub(super) fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
}

/// RR-SHM-8
#[test]
fn ring_keeps_order_and_reports_when_full() {
    let mut counters = DriverCounters::default();
    let mut both = shared(5);
    let numbers = both.each_mut().map(|shm| ring_change(shm, 5, true));
    assert!(numbers[0].is_some() && numbers[0] == numbers[1], "{numbers:?}");
    assert!(both.iter_mut().all(|shm| shm.next_ring_change().is_none()));
    let [ours, theirs] = &mut both;
    assert!(!ours.write_segment(
        ours.ring_name(6),
        RingSegment::whole(b"no channel", false),
        &mut counters
    ));
    let text = datagram(5, b"a packet");
    assert!(ours.write_segment(
        ours.ring_name(5),
        RingSegment::whole(b"first", false),
        &mut counters
    ));
    assert!(send(ours, &text));
    assert!(ours.write_segment(
        ours.ring_name(5),
        RingSegment::whole(b"second", false),
        &mut counters
    ));
    assert_eq!(theirs.take_packet(), None);
    assert_eq!(segment(theirs), Some((5, b"first".to_vec())));
    assert_eq!(segment(theirs), None, "a packet goes first");
    assert_eq!(segment(theirs), None);
    assert!(theirs.has_received(true));
    assert_eq!(theirs.take_packet(), Some(address(5)));
    assert_eq!(theirs.payload(), text);
    assert_eq!(segment(theirs), Some((5, b"second".to_vec())));
    let mut written = 0_u32;
    while ours.write_segment(
        ours.ring_name(5),
        RingSegment::whole(&[written as u8; RING_SEGMENT_BYTES_MAX], false),
        &mut counters,
    ) {
        written += 1;
    }
    assert!(written >= 2, "{written}");
    for number in 0..written {
        assert_eq!(segment(theirs), Some((5, vec![number as u8; RING_SEGMENT_BYTES_MAX])));
    }
    assert_eq!(segment(theirs), None);
    assert!(ours.write_segment(
        ours.ring_name(5),
        RingSegment::whole(b"there is room again", false),
        &mut counters
    ));
}

/// The header of a piece of the message at `offset`.
fn piece_header(offset: u64) -> PieceHeader {
    PieceHeader { operation: 7.into(), offset: offset.into(), ring: 1.into(), flags: 0.into() }
}

/// RR-SHM-10
#[test]
fn pieces_keep_order_and_leave_room_for_segments() {
    let mut counters = DriverCounters::default();
    let mut both = shared(5);
    let [ours, theirs] = &mut both;
    assert!(!ours.write_piece(6, &piece_header(0), b"no channel"));
    let length_of = |round: usize| match round % 4 {
        0 => PIECE_BYTES_MAX,
        1 => 1,
        2 => 64 * (round % 100),
        _ => (round * 977) % PIECE_BYTES_MAX,
    };
    let bytes_of = |round: usize, length: usize| {
        (0..length).map(move |at| (at ^ (at >> 8) ^ round) as u8).collect::<Vec<_>>()
    };
    let (mut due, mut written) = (0, 0);
    for round in 0..3000 {
        let length = length_of(written);
        let header = piece_header(written as u64);
        if ours.write_piece(5, &header, &bytes_of(written, length)) {
            written += 1;
        } else {
            let long = [3; DATAGRAM_BYTES_MAX];
            if round % 3 == 0 {
                assert!(
                    ours.write_segment(
                        ours.ring_name(5),
                        RingSegment::whole(&long, false),
                        &mut counters
                    ),
                    "pieces fill the ring"
                );
            }
            loop {
                let (header, length) = match theirs.receive_entry(&mut counters) {
                    Some((5, RingEntry::Piece(header, length))) => (header, length),
                    Some((5, RingEntry::Segment(bytes))) => {
                        assert_eq!(bytes, long);
                        continue;
                    }
                    None => break,
                    other => panic!("{other:?}"),
                };
                assert_eq!((header.offset.get(), header.ring.get()), (due as u64, 1));
                assert_eq!(length, length_of(due));
                match due % 3 {
                    0 => {
                        let mut into = vec![0; length];
                        theirs.read_body(&mut into, &mut counters);
                        assert_eq!(into, bytes_of(due, length));
                    }
                    1 => assert_eq!(theirs.piece(&mut counters), bytes_of(due, length)),
                    // The piece is skipped.
                    _ => {
                        theirs.piece(&mut counters);
                    }
                }
                due += 1;
            }
            assert_eq!(due, written);
        }
    }
    assert!(due > 1000, "{due}");
    let figures = theirs.figures();
    assert_eq!(figures.pieces_received, due as u64);
    assert_eq!(ours.figures().pieces_sent, written as u64);
}

/// RR-SHM-6
#[test]
fn writer_waiting_for_room_is_woken_once() {
    let mut counters = DriverCounters::default();
    let mut both = shared(5);
    let [ours, theirs] = &mut both;
    let fill = |ours: &mut Shm| {
        let mut written = 0;
        while ours.write_piece(5, &piece_header(0), &[7; PIECE_BYTES_MAX]) {
            written += 1;
        }
        written
    };
    let read = |theirs: &mut Shm, counters: &mut DriverCounters| {
        let entry = theirs.receive_entry(counters);
        assert!(matches!(entry, Some((5, RingEntry::Piece(..)))), "{entry:?}");
        theirs.piece(counters);
    };
    let has_socket_events = |ours: &Shm| is_readable(ours.epoll.as_fd());
    let written = fill(ours);
    // It is awake and reads.
    read(theirs, &mut counters);
    assert!(!has_socket_events(ours));
    assert_eq!(fill(ours), 1);
    ours.serve(true);
    assert!(!ours.has_received(true) && !has_socket_events(ours));
    read(theirs, &mut counters);
    assert!(has_socket_events(ours), "there is room");
    assert_eq!(theirs.figures().wakes, 1);
    // Woken once.
    (1..written).for_each(|_| read(theirs, &mut counters));
    assert_eq!(theirs.figures().wakes, 1);
    ours.mark_socket_events();
    ours.serve(false);
    assert!(!has_socket_events(ours));
    assert!(ours.has_received(false), "the engine is notified");
    assert!(!ours.has_received(false), "once");
    // A writer that wants no room sleeps on.
    assert!(ours.write_piece(5, &piece_header(0), &[7; PIECE_BYTES_MAX]));
    ours.serve(true);
    read(theirs, &mut counters);
    assert!(!has_socket_events(ours));
    ours.serve(false);
    // A writer that is woken for another reason, and sleeps again, still wants room.
    assert_eq!(fill(ours), written);
    ours.serve(true);
    ours.serve(false);
    assert!(!ours.has_received(false));
    ours.serve(true);
    (0..written).for_each(|_| read(theirs, &mut counters));
    assert!(has_socket_events(ours));
    ours.mark_socket_events();
    ours.serve(false);
    assert!(ours.has_received(false));
    assert_eq!(theirs.figures().wakes, 2);
    // Room made before it fell asleep is found when it does.
    assert_eq!(fill(ours), written);
    (0..written).for_each(|_| read(theirs, &mut counters));
    ours.serve(true);
    assert!(ours.has_received(true), "it does not sleep");
    assert_eq!(theirs.figures().wakes, 2);
}

/// RR-SHM-8
#[test]
fn ring_end_is_reported_once() {
    let [mut ours, mut theirs] = shared(5);
    let number = ring_change(&mut ours, 5, true);
    assert!(theirs.write_segment(
        theirs.ring_name(5),
        RingSegment::whole(b"last words", false),
        &mut DriverCounters::default()
    ));
    drop(theirs);
    let start = Instant::now();
    let ended = loop {
        if let Some(number) = ring_change(&mut ours, 5, false) {
            break number;
        }
        assert!(start.elapsed() < LONG, "the end is not reported");
        serve(std::slice::from_mut(&mut ours));
    };
    assert_eq!(number, Some(ended));
    assert!(!ours.write_segment(
        ours.ring_name(5),
        RingSegment::whole(b"no channel", false),
        &mut DriverCounters::default()
    ));
    assert_eq!(segment(&mut ours), Some((5, b"last words".to_vec())));
    assert_eq!(segment(&mut ours), None);
    assert!(!ours.is_up());
    assert_eq!(ours.next_ring_change(), None);
}

/// RR-SHM-8
#[test]
fn unread_frames_are_returned_once_when_the_ring_ends() {
    // Of the frames read in the last case, the reader has reported some.
    for (most, read) in [(0, 0), (12, 0), (12, 5), (12, 12), (u32::MAX, 100)] {
        let [mut ours, mut theirs] = shared(5);
        let written = write_frames(&mut ours, most);
        for expected in &written[..read] {
            assert_eq!(frames(&mut theirs).as_ref(), Some(expected));
        }
        assert_eq!(ours.take_unread(5), Some(vec![]), "the ring has not ended");
        // Other entries are not returned.
        assert!(most == u32::MAX || send(&mut ours, &datagram(5, b"a packet")));
        drop(theirs);
        let mut ours = [ours];
        until(&mut ours, |[ours]| !ours.is_up());
        let [mut ours] = ours;
        assert_eq!(ours.take_unread(6), Some(vec![]));
        let unread = ours.take_unread(5).unwrap();
        assert!(unread.len() >= written.len() - read && written.ends_with(&unread));
        assert_eq!(unread.len() < written.len(), read == 100);
        assert_eq!(ours.take_unread(5), Some(vec![]));
    }
}

/// RR-SHM-5, RR-SHM-8
#[test]
fn unread_frames_are_returned_after_a_violation() {
    let [mut ours, mut theirs] = shared(5);
    let written = write_frames(&mut ours, 12);
    assert!(frames(&mut theirs).is_some());
    // A length in the other direction that is too long.
    let line = theirs.channels[0].as_ref().map(|channel| channel.map_again()).unwrap();
    let first = RING_PAIR_BYTES / 8 / 2 + 2 * 8;
    line.corrupt_word(first, u64::from(u16::MAX >> 2));
    assert_eq!(frames(&mut ours), None);
    assert_eq!((ours.figures().broken, ours.is_up()), (1, false));
    assert_eq!(ours.take_unread(5), Some(written));
    assert_eq!(ours.take_unread(5), Some(vec![]));
}

/// RR-SHM-8
#[test]
fn overwritten_frames_are_reported() {
    for (word, value) in [(2 * 8, 0), (3 * 8, u64::MAX), (0, 1 << 20)] {
        let [mut ours, theirs] = shared(5);
        write_frames(&mut ours, 3);
        theirs.channels[0].as_ref().unwrap().map_again().corrupt_word(word, value);
        drop(theirs);
        let mut ours = [ours];
        until(&mut ours, |[ours]| !ours.is_up());
        assert_eq!(ours[0].take_unread(5), None, "{word}");
        assert_eq!(ours[0].take_unread(5), Some(vec![]));
    }
}

/// RR-SHM-8
#[test]
fn unread_frames_are_returned_once_after_a_disconnection() {
    let [mut ours, theirs] = shared(5);
    let written = write_frames(&mut ours, 3);
    ours.disconnect_peer(5);
    assert_eq!(ours.take_unread(5), Some(written));
    assert_eq!(ours.take_unread(5), Some(vec![]));
    // If the ring has ended before, too.
    let [mut ours, other] = shared(5);
    let written = write_frames(&mut ours, 3);
    drop((theirs, other));
    let mut ours = [ours];
    until(&mut ours, |[ours]| !ours.is_up());
    ours[0].disconnect_peer(5);
    assert_eq!(ours[0].take_unread(5), Some(written));
    assert_eq!(ours[0].take_unread(5), Some(vec![]));
}

/// RR-SHM-8
#[test]
fn segment_for_an_earlier_ring_is_refused() {
    let [mut ours, _theirs] = shared(5);
    let RingName { session, number } = ours.ring_name(5);
    let (segment, mut counters) = (RingSegment::whole(b"late", false), DriverCounters::default());
    let earlier = RingName { session, number: number.wrapping_add(1) };
    assert!(!ours.write_segment(earlier, segment, &mut counters));
    assert!(ours.write_segment(RingName { session, number }, segment, &mut counters));
}

#[test]
fn channel_carries_datagrams_of_its_session_only() {
    let mut both = shared(5);
    for number in 0..1000_u32 {
        let text = datagram(5, &number.to_le_bytes());
        let at = number as usize % 2;
        assert!(send(&mut both[at], &text));
        assert_eq!(take(&mut both[1 - at]), Some((address(5), text)));
        assert_eq!(take(&mut both[1 - at]), None);
    }
    // Another session, another path, no packet.
    assert!(!send(&mut both[0], &datagram(6, b"")));
    let mut other_path = datagram(5, b"");
    other_path[2] = 1;
    assert!(!send(&mut both[0], &other_path));
    assert!(!send(&mut both[0], b"short"));
    assert_eq!(take(&mut both[1]), None);
    let figures = both.map(|shm| shm.figures());
    let (sent, received) = (figures[0].sent, figures[0].received);
    assert_eq!((sent, received, figures[0].local_peers), (500, 500, 1));
}

#[test]
fn early_connection_waits_for_the_session() {
    let ids = [engine(), engine()];
    let mut both = ids.map(|id| Shm::open(id, true, None, false).unwrap());
    both[0].connect_peer(peer(9, ids[1], true, KEY));
    for _ in 0..10 {
        serve(&mut both);
    }
    assert!(!both[0].is_up() && !both[1].is_up());
    both[1].connect_peer(peer(9, ids[0], false, KEY));
    until(&mut both, |both| both.iter().all(Shm::is_up));
}

/// RR-SHM-2
#[test]
fn wrong_session_key_is_rejected() {
    for keys in [[KEY, [8; 32]], [[8; 32], KEY]] {
        let mut both = two(5, keys);
        until(&mut both, |both| both[0].figures().refused > 0);
        for _ in 0..100 {
            serve(&mut both);
        }
        assert!(!both[0].is_up() && !both[1].is_up());
        assert!(!send(&mut both[0], &datagram(5, b"x")));
    }
}

#[test]
fn listener_name_is_exclusive_until_released() {
    let id = engine();
    let first = Shm::open(id, true, None, false).unwrap();
    assert!(Shm::open(id, true, None, false).is_err());
    drop(first);
    assert!(Shm::open(id, true, None, false).is_ok());
}

/// RR-SHM-5
#[test]
fn entries_written_before_the_end_are_read() {
    let [mut left, right] = shared(5);
    let mut right = Some(right);
    let text = datagram(5, b"last words");
    assert!(send(right.as_mut().unwrap(), &text));
    right = None;
    assert!(right.is_none());
    left.mark_socket_events();
    left.serve(false);
    assert!(!send(&mut left, &text), "the channel has ended");
    assert_eq!(take(&mut left).map(|(_, text)| text), Some(text));
    assert_eq!(take(&mut left), None);
    assert!(!left.is_up());
    assert_eq!(left.figures().local_peers, 0);
}

#[test]
fn restarted_peer_is_reconnected() {
    let ids = [engine(), engine()];
    let mut left = Shm::open(ids[0], true, None, false).unwrap();
    let mut right = Shm::open(ids[1], true, None, false).unwrap();
    left.connect_peer(peer(5, ids[1], true, KEY));
    right.connect_peer(peer(5, ids[0], false, KEY));
    let mut both = [left, right];
    until(&mut both, |both| both.iter().all(Shm::is_up));
    let [mut left, right] = both;
    drop(right);
    left.mark_socket_events();
    left.serve(false);
    assert!(!left.is_up());
    let mut right = Shm::open(ids[1], true, None, false).unwrap();
    right.connect_peer(peer(5, ids[0], false, KEY));
    let mut both = [left, right];
    until(&mut both, |both| both.iter().all(Shm::is_up));
    let text = datagram(5, b"again");
    assert!(send(&mut both[0], &text));
    assert_eq!(take(&mut both[1]).map(|(_, text)| text), Some(text));
}

#[test]
fn full_ring_queues_packets_in_order_and_then_refuses() {
    let mut both = shared(5);
    let mut counters = DriverCounters::default();
    let text = |number: u32| datagram(5, &[&number.to_le_bytes()[..], &[3; 1000]].concat());
    let (mut sent, mut due) = (0, 0);
    while send(&mut both[0], &text(sent)) {
        sent += 1;
        assert!(sent < 10_000);
    }
    assert!(sent > 100 && both[0].figures().full == 1);
    // Some of them arrive, and others after them.
    for _ in 0..10 {
        while let Some((_, got)) = take(&mut both[1]) {
            assert_eq!(got, text(due));
            due += 1;
        }
        both[0].flush(&mut counters);
        assert!(both[0].is_behind());
        assert!(send(&mut both[0], &text(sent)));
        sent += 1;
    }
    let mut spilled = Vec::new();
    both[0].spill(|to, datagram| {
        assert_eq!(to, address(5));
        spilled.push(datagram.to_vec());
        true
    });
    while let Some((_, got)) = take(&mut both[1]) {
        assert_eq!(got, text(due));
        due += 1;
    }
    for got in spilled {
        assert_eq!(got, text(due));
        due += 1;
    }
    assert_eq!(due, sent);
    both[0].flush(&mut counters);
    assert!(!both[0].is_behind());
}

#[test]
fn ended_session_has_no_channel() {
    let mut both = shared(5);
    let text = datagram(5, b"goodbye");
    assert!(send(&mut both[0], &text));
    both[0].disconnect_peer(5);
    assert!(!both[0].is_up() && !send(&mut both[0], &text));
    until(&mut both, |both| both[1].channels.iter().flatten().all(Channel::is_ending));
    assert_eq!(take(&mut both[1]).map(|(_, text)| text), Some(text));
    assert_eq!(take(&mut both[1]), None);
    assert!(!both[1].is_up());
}

#[test]
fn only_a_sleeping_reader_is_woken() {
    let mut both = shared(5);
    let mut counters = DriverCounters::default();
    let text = datagram(5, b"wake up");
    let mut exchange = |both: &mut [Shm; 2]| {
        assert!(both[0].send(&text, &mut counters));
        assert!(both[0].is_behind());
        both[0].flush(&mut counters);
        assert!(!both[0].is_behind());
        let is_woken = is_readable(both[1].epoll.as_fd());
        both[1].mark_socket_events();
        both[1].serve(false);
        assert!(take(&mut both[1]).is_some());
        is_woken
    };
    assert!(!exchange(&mut both));
    both[1].serve(true);
    assert!(exchange(&mut both));
    assert!(!exchange(&mut both), "it is awake");
    // In detached mode.
    both[1].begin_detached();
    both[1].end_detached();
    assert!(exchange(&mut both));
    // An entry not taken while detached wakes the owner at the end.
    both[1].begin_detached();
    assert!(send(&mut both[0], &datagram(5, b"x")));
    both[1].end_detached();
    assert!(is_readable(both[1].epoll.as_fd()));
    assert!(take(&mut both[1]).is_some());
    both[1].mark_socket_events();
    both[1].serve(false);
    // An entry after those taken while detached, whose wake-up was consumed there, wakes the owner.
    both[1].begin_detached();
    assert!(exchange(&mut both));
    both[1].end_detached();
    assert!(!is_readable(both[1].epoll.as_fd()));
    assert!(exchange(&mut both));
}

// ---- Unauthenticated and hostile peers ----

/// A connection to `shm` that claims to be the peer of session 5.
pub(super) fn fake_peer(shm: &mut Shm, id: u64) -> OwnedFd {
    shm.connect_peer(peer(5, 99, false, KEY));
    connect(id)
}

/// A connection to that engine that accepts descriptors.
pub(super) fn connect(id: u64) -> OwnedFd {
    let mut socket = socket::connect(&Discovery::Network, id).unwrap();
    socket.admit().unwrap();
    socket.into_trusted().unwrap().into_inner()
}

/// The answer, if any.
fn answer(shm: &mut Shm, socket: &OwnedFd) -> Option<Vec<u8>> {
    for _ in 0..5 {
        serve(std::slice::from_mut(shm));
    }
    let packet = socket::receive(socket.as_fd()).ok()?;
    Some(packet.bytes().to_vec())
}

fn writes(socket: &OwnedFd, message: &LocalPeerMessage, memory: &[&OwnedFd]) {
    let memory: Vec<_> = memory.iter().map(AsFd::as_fd).collect();
    let _ = socket::send(socket.as_fd(), message.as_bytes(), &memory);
}

/// RR-SHM-2
#[test]
fn unauthenticated_connections_are_rejected_and_bounded() {
    let id = engine();
    let mut shm = Shm::open(id, true, None, false).unwrap();
    let hello = LocalPeerMessage::new(KIND_LOCAL_HELLO, 5, [1; 16], [0; 16]);
    let garbage: [&[u8]; 4] = [b"", b"hello", &[0; 56], &hello.as_bytes()[..55]];
    for bytes in garbage {
        let socket = fake_peer(&mut shm, id);
        let _ = socket::send(socket.as_fd(), bytes, &[]);
        assert_eq!(answer(&mut shm, &socket), None);
    }
    // Another version, another kind, an unexpected descriptor.
    for change in 0..3 {
        let socket = fake_peer(&mut shm, id);
        let (mut message, mut memory) = (hello, None);
        match change {
            0 => message.version = 1.into(),
            1 => message.kind = KIND_READY.into(),
            _ => memory = Some(socket.try_clone().unwrap()),
        }
        writes(&socket, &message, memory.as_ref().as_slice());
        assert_eq!(answer(&mut shm, &socket), None, "{change}");
    }
    // A replayed proof, or none.
    let socket = fake_peer(&mut shm, id);
    writes(&socket, &hello, &[]);
    let challenge = answer(&mut shm, &socket).unwrap();
    let challenge = LocalPeerMessage::parse(&challenge, KIND_CHALLENGE).unwrap();
    let (_, memory) = RingPair::create().unwrap();
    let offer = LocalPeerMessage::new(KIND_MEMORY, 5, [0; 16], challenge.proof);
    writes(&socket, &offer, &[&memory, &memory]);
    writes(&socket, &LocalPeerMessage { kind: KIND_JOIN.into(), ..offer }, &[]);
    assert_eq!(answer(&mut shm, &socket), None);
    assert!(!shm.is_up());
    // Unknown sessions.
    let silent: Vec<_> = (0..2 * EXCHANGES_MAX)
        .map(|number| {
            let socket = connect(id);
            let session = 1000 + number as u64;
            let hello = LocalPeerMessage::new(KIND_LOCAL_HELLO, session, [1; 16], [0; 16]);
            writes(&socket, &hello, &[]);
            serve(std::slice::from_mut(&mut shm));
            socket
        })
        .collect();
    assert!(shm.exchanges.len() <= EXCHANGES_MAX);
    for (_, exchange) in &mut shm.exchanges {
        exchange.since -= EXCHANGE_LIMIT * 2;
    }
    serve(std::slice::from_mut(&mut shm));
    assert!(shm.exchanges.is_empty());
    drop(silent);
}

/// RR-SHM-2
#[test]
fn peer_reconnects_after_a_connection_flood() {
    let ids = [engine(), engine()];
    let mut both = ids.map(|id| Shm::open(id, true, None, false).unwrap());
    both[0].connect_peer(peer(5, ids[1], true, KEY));
    both[1].connect_peer(peer(5, ids[0], false, KEY));
    let connections: Vec<_> = (0..EXCHANGES_MAX)
        .map(|_| {
            // As many as the backlog takes.
            serve(&mut both[1..]);
            socket::connect(&Discovery::Network, ids[1]).unwrap()
        })
        .collect();
    until(&mut both, |both| both.iter().all(Shm::is_up));
    assert_eq!(both[0].figures().refused, 1);
    assert_eq!(both[1].exchanges.len(), EXCHANGES_MAX - 1);
    drop(connections);
}

/// Memory of that many bytes, sealed or not.
fn memory(bytes: usize, is_sealed: bool) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = rustix::fs::memfd_create("ringrail-test", flags).unwrap();
    rustix::fs::ftruncate(&memory, bytes as u64).unwrap();
    if is_sealed {
        rustix::fs::fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW).unwrap();
    }
    memory
}

/// RR-SHM-3
#[test]
fn invalid_memory_is_refused_after_a_valid_proof() {
    let rings = memory(RING_PAIR_BYTES, true);
    let bells = memory(DOORBELL_BYTES, true);
    let (no_rings, no_bells) = (memory(RING_PAIR_BYTES, false), memory(DOORBELL_BYTES, false));
    let (short, long) = (memory(RING_PAIR_BYTES / 2, true), memory(2 * DOORBELL_BYTES, true));
    let given: [(&[&OwnedFd], u32, bool); 9] = [
        (&[&no_rings, &bells], 0, false),
        (&[&short, &bells], 0, false),
        (&[], 0, false),
        (&[&rings], 0, false),
        (&[&rings, &no_bells], 0, false),
        (&[&rings, &long], 0, false),
        (&[&bells, &rings], 0, false),
        (&[&rings, &bells], DOORBELLS, false),
        (&[&rings, &bells], DOORBELLS - 1, true),
    ];
    for (at, (descriptors, doorbell, is_right)) in given.into_iter().enumerate() {
        let id = engine();
        let mut shm = Shm::open(id, true, None, false).unwrap();
        let socket = fake_peer(&mut shm, id);
        let hello = LocalPeerMessage::new(KIND_LOCAL_HELLO, 5, [1; 16], [0; 16]);
        writes(&socket, &hello, &[]);
        let challenge = answer(&mut shm, &socket).unwrap();
        let challenge = LocalPeerMessage::parse(&challenge, KIND_CHALLENGE).unwrap();
        let known = peer(5, id, true, KEY);
        let nonces = [&[1; 16], &challenge.nonce];
        let proof = handshake::proof_of_joining(&known, nonces);
        writes(&socket, &LocalPeerMessage::new(KIND_JOIN, 5, [0; 16], proof), &[]);
        let admitted = answer(&mut shm, &socket).unwrap();
        assert!(LocalPeerMessage::parse(&admitted, KIND_ADMITTED).is_some());
        let proof = handshake::proof_of_connected(&known, doorbell, nonces);
        let mut offer = LocalPeerMessage::new(KIND_MEMORY, 5, [0; 16], proof);
        offer.doorbell = doorbell.into();
        writes(&socket, &offer, descriptors);
        assert_eq!(answer(&mut shm, &socket).is_some(), is_right, "{at}");
        assert_eq!(shm.is_up(), is_right, "{at}");
    }
}

/// RR-SHM-4
#[test]
fn packet_of_another_session_is_rejected() {
    let mut both = shared(5);
    let forged = datagram(6, b"not mine");
    let channel = both[0].channels[0].as_mut().unwrap();
    assert_eq!(channel.send(&forged), Ok(true));
    assert_eq!(take(&mut both[1]), None);
    assert_eq!(both[1].figures().strays, 1);
    let text = datagram(5, b"mine");
    assert!(send(&mut both[0], &text));
    assert_eq!(take(&mut both[1]).map(|(_, text)| text), Some(text));
}

/// RR-SHM-5
#[test]
fn unknown_packet_in_the_socket_of_a_channel_closes_it() {
    let memory = memory(4096, true);
    let descriptor = [memory.as_fd()];
    let packets: [(&[u8], &[BorrowedFd<'_>]); 4] =
        [(&[3], &[]), (&[SIGNAL_POLL; 2], &[]), (&[0; 24], &[]), (&[SIGNAL_POLL], &descriptor)];
    for (bytes, descriptors) in packets {
        let mut both = shared(5);
        let channel = both[0].channels[0].as_ref().unwrap();
        socket::send(channel.socket.as_fd(), bytes, descriptors).unwrap();
        let number = ring_change(&mut both[1], 5, true);
        until(&mut both, |both| !both[1].is_up());
        assert!(number.is_some() && ring_change(&mut both[1], 5, false) == number, "{bytes:?}");
    }
}

/// RR-SHM-5
#[test]
fn channel_of_a_corrupting_peer_is_closed() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    for seed in 0..20_u64 {
        let [mut victim, hostile] = shared(5);
        let channel = hostile.channels[0].as_ref().unwrap();
        let (memory, is_over) = (channel.map_again(), Arc::new(AtomicBool::new(false)));
        let scribbling = std::thread::spawn({
            let is_over = Arc::clone(&is_over);
            move || {
                let mut random = seed * 2 + 1;
                while !is_over.load(Ordering::Relaxed) {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let word = (random >> 33) as usize % (RING_PAIR_BYTES / 8);
                    memory.corrupt_word(word, random >> (random & 63));
                }
            }
        });
        let start = Instant::now();
        let text = datagram(5, &[1; 300]);
        while victim.is_up() && start.elapsed() < Duration::from_millis(200) {
            send(&mut victim, &text);
            take(&mut victim);
            victim.serve(start.elapsed().as_nanos().is_multiple_of(3));
        }
        is_over.store(true, Ordering::Relaxed);
        scribbling.join().unwrap();
        // No packet is of the session, or all are.
        let figures = victim.figures();
        assert!(figures.broken == 1 || victim.is_up(), "{figures:?}");
        if figures.broken == 1 {
            assert!(!send(&mut victim, &text) && take(&mut victim).is_none());
        }
    }
}
