//! Corrupted chunks.

use super::super::session::rendezvous::pull::lanes::BAD_CHUNKS_MAX;
use super::super::session::segments::append_segment;
use super::super::session::segments::split;
use super::*;
use crate::wire::chunk::ChunkHeader;
use crate::wire::segment::SEGMENT_SUMS_BYTES;

/// Delivers the next chunk, intact or corrupted.
pub(super) fn chunk_comes(bench: &mut Bench, lane: Id, is_intact: bool) -> bool {
    let chunk = bench.core.shared_mut().next_receive(lane).unwrap();
    let sum = checksum(chunk.offset, chunk.length) ^ u32::from(!is_intact);
    let header = bench.core.shared.lanes.get(lane).unwrap().first_header(sum).unwrap();
    bench.core.handle_chunk_received(lane, chunk, Some(&header), 0, &mut bench.results)
}

/// RR-SUM-4, RR-SUM-5
#[test]
fn corrupted_chunks_are_granted_again_up_to_a_limit() {
    let mut bench = Bench::new(Config::for_tests());
    bench.use_checksums(true);
    let lane = bench.lane();
    let receive = bench.receive(6000);
    bench.deliver(&rts(0, 6000)).unwrap();
    assert_eq!(bench.transmit(), [frame::KIND_GRANT; 2]);
    for round in 1..BAD_CHUNKS_MAX {
        assert!(chunk_comes(&mut bench, lane, false), "the lane is in step");
        assert_eq!(bench.transmit(), [frame::KIND_GRANT], "round {round}");
        bench.acknowledge();
        assert!(!bench.results.ended.contains_key(&receive));
    }
    assert!(chunk_comes(&mut bench, lane, true));
    assert!(bench.transmit().is_empty());
    for _ in 1..BAD_CHUNKS_MAX {
        assert!(chunk_comes(&mut bench, lane, false));
        assert_eq!(bench.transmit(), [frame::KIND_GRANT], "the count restarts");
        bench.acknowledge();
    }
    assert!(chunk_comes(&mut bench, lane, true));
    assert_eq!(bench.transmit(), [frame::KIND_DONE]);
    assert!(matches!(bench.results.ended[&receive], Ended::Received(_)));
    assert_eq!(bench.core.shared.counters().corrupted_chunks, 2 * u64::from(BAD_CHUNKS_MAX - 1));
    assert_eq!(
        bench.core.shared_mut().poll_action(),
        Some(Action::Established { session: bench.slot })
    );
    assert_eq!(bench.core.shared_mut().poll_action(), None);

    bench.receive(1000);
    bench.deliver(&rts(0, 1000)).unwrap();
    for round in 1..=BAD_CHUNKS_MAX {
        assert_eq!(bench.core.shared_mut().poll_action(), None, "round {round}");
        bench.transmit();
        chunk_comes(&mut bench, lane, false);
    }
    let Some(Action::GiveUp { session, failure }) = bench.core.shared_mut().poll_action() else {
        panic!("too many")
    };
    assert!(session == bench.slot && matches!(failure, PeerFailure::Corrupted(_)), "{failure}");
}

/// RR-SUM-2, RR-SUM-3
#[test]
fn checksums_of_a_segment_detect_any_changed_bit() {
    let header = SegmentHeader {
        length: 32.into(),
        frames: 3.into(),
        flags: 0.into(),
        first_frame: 7.into(),
        ack: 0.into(),
        envelope_limit: 0.into(),
        byte_limit: 0.into(),
    };
    let mut bytes = b"before".to_vec();
    append_segment(&mut bytes, &[header.as_bytes(), b"abcdefgh"].concat(), true);
    let mut bytes = bytes.split_off(6);
    assert_eq!(bytes.len(), SEGMENT_HEADER_BYTES + SEGMENT_SUMS_BYTES + 8);
    let (read, body, length) = split(&bytes, true).unwrap().unwrap();
    assert_eq!((read.frames.get(), body, length), (3, &b"abcdefgh"[..], bytes.len()));
    for length in 0..bytes.len() {
        let is_whole = split(&bytes[..length], true).map(|whole| whole.is_some());
        assert_eq!(is_whole, Ok(false));
    }
    for bit in 0..8 * bytes.len() {
        bytes[bit / 8] ^= 1 << (bit % 8);
        let split = split(&bytes, true);
        assert!(matches!(split, Err(FrameError::Corrupted { .. })), "bit {bit}: {split:?}");
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
    // A segment without frames has them, too; one without checksums is refused.
    let empty = SegmentHeader { length: 24.into(), frames: 0.into(), ..header };
    let mut checked = Vec::new();
    append_segment(&mut checked, empty.as_bytes(), true);
    assert!(split(&checked, true).unwrap().unwrap().1.is_empty());
    let mut plain = Vec::new();
    append_segment(&mut plain, &[empty.as_bytes(), &[0; 8]].concat(), false);
    assert!(matches!(split(&plain, true), Err(FrameError::Corrupted { .. })));
}

/// RR-SUM-4
#[test]
fn chunks_have_checksums_only_where_agreed() {
    for has_checksums in [true, false] {
        let mut bench = Bench::new(Config::for_tests());
        bench.use_checksums(has_checksums);
        let lane = bench.lane();
        let send = bench.send(5000, CompletionLevel::Inject);
        bench.transmit();
        bench.deliver(&grant(send, 100, 4000, 0)).unwrap();
        let chunk = bench.core.next_send(lane, &bench.results).unwrap();
        let header = ChunkHeader::ref_from_bytes(&chunk.header).unwrap();
        let expected = if has_checksums { checksum(100, 4000) } else { 0 };
        assert_eq!(header.checksum.get(), expected);
        bench.receive(1000);
        bench.deliver(&rts(0, 1000)).unwrap();
        bench.transmit();
        let is_in_step = chunk_comes(&mut bench, lane, true);
        assert_eq!(is_in_step, has_checksums, "a checksum that was not agreed on is invalid");
    }
}
