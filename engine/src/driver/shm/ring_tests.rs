use super::*;
use crate::wire::frame_range::FrameRange;

use std::cell::RefCell;
use std::collections::VecDeque;

use proptest::prelude::*;

/// Memory for one thread. Accesses outside panic.
struct Plain(RefCell<Vec<u64>>);

impl Plain {
    fn new() -> Self {
        Self(RefCell::new(vec![0; RING_BYTES / WORD_BYTES]))
    }
}

impl Lines for Plain {
    fn load(&self, word: usize, _: Ordering) -> u64 {
        self.0.borrow()[word]
    }

    fn store(&self, word: usize, value: u64, _: Ordering) {
        self.0.borrow_mut()[word] = value;
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset.is_multiple_of(WORD_BYTES) && offset >= FIRST * LINE_BYTES);
        for (at, piece) in bytes.chunks(WORD_BYTES).enumerate() {
            let mut word = [0; WORD_BYTES];
            word[..piece.len()].copy_from_slice(piece);
            self.0.borrow_mut()[offset / WORD_BYTES + at] = u64::from_le_bytes(word);
        }
    }

    fn read(&self, offset: usize, into: &mut [u8]) {
        assert!(offset.is_multiple_of(WORD_BYTES) && offset >= FIRST * LINE_BYTES);
        for (at, piece) in into.chunks_mut(WORD_BYTES).enumerate() {
            let word = self.0.borrow()[offset / WORD_BYTES + at].to_le_bytes();
            piece.copy_from_slice(&word[..piece.len()]);
        }
    }

    fn write_line(&self, line: usize, bytes: &[u8; RING_SHORT_BYTES]) {
        self.write(line * LINE_BYTES + WORD_BYTES, bytes);
    }

    fn read_line(&self, line: usize, into: &mut [u8; RING_SHORT_BYTES]) {
        self.read(line * LINE_BYTES + WORD_BYTES, into);
    }

    fn fence(&self) {}
}

/// Bytes that look like lengths, so that mistaking payload for a length shows.
fn payload(number: u64, length: usize) -> Vec<u8> {
    let words = (1..).map(|at: u64| if at.is_multiple_of(2) { number } else { at % 60 + 1 });
    words.flat_map(u64::to_le_bytes).take(length).collect()
}

fn entry(number: u64) -> EntryKind {
    let range = FrameRange { first: (number as u32).wrapping_mul(0x4000_0001), count: 0x7fff };
    let head = [RingHead::Header, RingHead::HeaderAndData][(number / 4 % 2) as usize];
    [EntryKind::Segment, EntryKind::Packet, EntryKind::Piece, EntryKind::Frames(range, head)]
        [(number % 4) as usize]
}

/// Returns an entry as it is read: short frames have no head.
fn of_length(entry: EntryKind, length: usize) -> EntryKind {
    match entry {
        EntryKind::Frames(range, _) if length <= RING_SHORT_BYTES => {
            EntryKind::Frames(range, RingHead::Header)
        }
        entry => entry,
    }
}

/// Writes an entry; a piece uses the first bytes of its payload as header, a segment is given in
/// two parts.
fn write(writer: &mut Writer, ring: &Plain, entry: EntryKind, payload: &[u8]) -> Option<bool> {
    match (entry, payload.split_first_chunk()) {
        (EntryKind::Piece, Some((header, bytes))) if bytes.len() <= PIECE_BYTES_MAX => {
            writer.write_piece(ring, header, bytes).ok()
        }
        (EntryKind::Piece, _) => Some(false),
        (EntryKind::Frames(range, _), _) if payload.len() <= RING_SHORT_BYTES => {
            let mut short = [9; RING_SHORT_BYTES];
            short[..payload.len()].copy_from_slice(payload);
            writer.write_short(ring, range, &short, payload.len()).ok()
        }
        (EntryKind::Segment | EntryKind::Frames(..), _) => {
            let words = payload.len() / WORD_BYTES;
            let first = words * (payload.len() * 7 % 11) / 10 * WORD_BYTES;
            let (first, second) = payload.split_at(first.min(payload.len()));
            let both = if second.is_empty() { [payload, &[]] } else { [first, second] };
            writer.write_bytes(ring, entry, RingBytes::Parts(both)).ok()
        }
        _ => writer.write(ring, entry, payload).ok(),
    }
}

/// Reads an entry.
fn read(reader: &mut Reader, ring: &Plain, into: &mut [u8]) -> Option<(EntryKind, Vec<u8>)> {
    let (entry, length) = reader.read(ring, into).unwrap()?;
    let Some((head, rest)) = first_read(entry, length) else {
        return Some((entry, into[..length].to_vec()));
    };
    let mut all = into[..head].to_vec();
    reader.read_body(ring, &mut into[..rest]);
    all.extend_from_slice(&into[..rest]);
    Some((entry, all))
}

/// Returns how many bytes of an entry are read first, and how many are left, if there are two
/// reads.
fn first_read(entry: EntryKind, length: usize) -> Option<(usize, usize)> {
    match entry {
        EntryKind::Piece => Some((HEADER_BYTES, length)),
        EntryKind::Frames(_, head) if length >= BODY_BYTES_MIN => {
            Some((head.bytes(), length - head.bytes()))
        }
        _ => None,
    }
}

#[derive(Clone, Debug)]
enum Step {
    Write(usize),
    Read,
    ReadAll,
}

fn step() -> impl Strategy<Value = Step> {
    let length = prop_oneof![
        4 => 0..=200_usize,
        1 => 0..=DATAGRAM_MAX,
        1 => Just(DATAGRAM_MAX),
        2 => (0..=DATAGRAM_MAX / LINE_BYTES, 0..=2_usize)
            .prop_map(|(lines, more)| ((lines + 1) * LINE_BYTES - 9 + more).min(DATAGRAM_MAX)),
    ];
    prop_oneof![
        6 => length.prop_map(Step::Write),
        5 => Just(Step::Read),
        1 => Just(Step::ReadAll),
    ]
}

proptest! {
    #[test]
    fn ring_behaves_like_a_fifo(steps in prop::collection::vec(step(), 0..400)) {
        let (ring, mut writer, mut reader) = (Plain::new(), Writer::new(), Reader::new());
        let (mut model, mut into) = (VecDeque::new(), vec![0; DATAGRAM_MAX]);
        let mut held_lines = 0;
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Write(length) => {
                    let datagram = payload(number as u64, length);
                    let entry = of_length(entry(number as u64), length);
                    let written = write(&mut writer, &ring, entry, &datagram);
                    prop_assert!(written.is_some());
                    let is_piece = entry == EntryKind::Piece;
                    if written == Some(true) {
                        held_lines += lines_of_entry(entry, length);
                        model.push_back((entry, datagram));
                        prop_assert!(!is_piece || held_lines < ROOM - RESERVED_LINES);
                    } else if !is_piece {
                        let needed = lines_of_entry(entry, length) + 1;
                        prop_assert!(held_lines + needed > ROOM - PUBLISH_EVERY);
                    }
                    prop_assert!(held_lines < ROOM);
                }
                Step::Read | Step::ReadAll => loop {
                    let expected: Option<(EntryKind, Vec<u8>)> = model.pop_front();
                    prop_assert_eq!(reader.has_some(&ring), expected.is_some());
                    let got = read(&mut reader, &ring, &mut into);
                    prop_assert_eq!(&got, &expected);
                    let Some(got) = got else { break };
                    held_lines -= lines_of_entry(got.0, got.1.len());
                    if matches!(step, Step::Read) {
                        break;
                    }
                },
            }
        }
    }

    /// RR-SHM-8
    #[test]
    fn unread_is_what_the_reader_has_not_reported(
        steps in prop::collection::vec(step(), 0..400),
    ) {
        let (ring, mut writer, mut reader) = (Plain::new(), Writer::new(), Reader::new());
        let (mut written, mut into) = (VecDeque::new(), vec![0; DATAGRAM_MAX]);
        for (number, step) in steps.into_iter().enumerate() {
            let number = number as u64;
            match step {
                Step::Write(length) => {
                    let (at, bytes) = (writer.at.passed, payload(number, length));
                    if write(&mut writer, &ring, entry(number), &bytes) == Some(true) {
                        written.push_back((at, entry(number), bytes));
                    }
                }
                Step::Read => {
                    read(&mut reader, &ring, &mut into);
                }
                Step::ReadAll => while read(&mut reader, &ring, &mut into).is_some() {},
            }
            let reported = reader.reported_tail();
            written.retain(|&(at, ..)| at >= reported);
            let expected: Vec<KeptFrames> = written
                .iter()
                .filter_map(|(_, entry, bytes)| match *entry {
                    EntryKind::Frames(range, _) => Some(KeptFrames { range, bytes: bytes.clone() }),
                    _ => None,
                })
                .collect();
            prop_assert_eq!(writer.unread(&ring), Ok(expected));
        }
    }

    /// RR-SHM-5: the other side may write anything, anywhere, at any time.
    #[test]
    fn corrupted_ring_never_panics_or_overruns(
        steps in prop::collection::vec(
            (step(), prop::collection::vec((0..RING_BYTES / WORD_BYTES, corrupt_value()), 0..4)),
            0..300,
        ),
    ) {
        let (ring, mut into) = (Plain::new(), vec![0; DATAGRAM_MAX]);
        let (mut writer, mut reader) = (Some(Writer::new()), Some(Reader::new()));
        for (step, scribbles) in steps {
            for (word, value) in scribbles {
                ring.store(word, value, Ordering::Relaxed);
            }
            match step {
                Step::Write(length) => {
                    let Some(side) = &mut writer else { continue };
                    let entry = entry(length as u64);
                    let written = write(side, &ring, entry, &payload(1, length));
                    if written.is_none() || side.unread(&ring).is_err() {
                        writer = None;
                    }
                }
                Step::Read | Step::ReadAll => {
                    // At most one lap is read of what was not written.
                    for _ in 0..ROOM {
                        let Some(side) = &mut reader else { break };
                        match side.read(&ring, &mut into) {
                            Ok(None) => break,
                            Ok(Some((entry, length))) => {
                                prop_assert!(length <= DATAGRAM_MAX);
                                if let Some((_, rest)) = first_read(entry, length) {
                                    side.read_body(&ring, &mut into[..rest]);
                                }
                            }
                            Err(RingViolation) => reader = None,
                        }
                    }
                }
            }
        }
    }
}

fn corrupt_value() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..3_u64,
        (0..4_u64, 0..99_u64).prop_map(|(kind, length)| kind << EntryWord::KIND_SHIFT | length),
        0..=DATAGRAM_MAX as u64 + 2,
        Just(u64::MAX),
        any::<u64>()
    ]
}

#[test]
fn impossible_length_or_tail_is_a_violation() {
    let (ring, mut into) = (Plain::new(), vec![0; DATAGRAM_MAX]);
    let kinds = [0, 1, 2, 3].map(|kind| kind << EntryWord::KIND_SHIFT);
    let too_long = kinds.map(|kind| kind | (DATAGRAM_MAX as u64 + 2));
    // Without a length, with numbers that only frames have, and a piece shorter than its header.
    let others = [kinds[1], kinds[2], kinds[3], 1 << 33, 1 << 16 | 5, kinds[2] | 24, u64::MAX];
    for word in too_long.into_iter().chain(others) {
        ring.store(Position::START.word(), word, Ordering::Relaxed);
        assert_eq!(Reader::new().read(&ring, &mut into), Err(RingViolation), "{word}");
    }
    for (consumed, expected) in
        [(0, Ok(false)), (1 << 40, Err(RingViolation)), (u64::MAX, Err(RingViolation))]
    {
        let (ring, mut writer) = (Plain::new(), Writer::new());
        while writer.write(&ring, EntryKind::Packet, &[7; 1000]) == Ok(true) {}
        ring.store(CONSUMED, consumed, Ordering::Relaxed);
        assert_eq!(writer.write(&ring, EntryKind::Packet, &[7; 1000]), expected, "{consumed}");
    }
    let (ring, mut writer) = (Plain::new(), Writer::new());
    while writer.write(&ring, EntryKind::Packet, &[7; 56]) == Ok(true) {}
    ring.store(CONSUMED, 100, Ordering::Relaxed);
    assert_eq!(writer.write(&ring, EntryKind::Packet, &[7; 56]), Ok(true));
    while writer.at.passed < 100 + ROOM as u64 - 1 {
        assert_eq!(writer.write(&ring, EntryKind::Packet, &[7; 56]), Ok(true));
    }
    // The published position must not decrease.
    ring.store(CONSUMED, 99, Ordering::Relaxed);
    assert_eq!(writer.write(&ring, EntryKind::Packet, &[7; 56]), Err(RingViolation));
}

/// RR-SHM-6, RR-SHM-11
#[test]
fn sleeping_reader_is_woken_once_and_doorbell_is_set_each_time() {
    let (ring, mut writer, reader) = (Plain::new(), Writer::new(), Reader::new());
    assert_eq!(writer.wakeup_hint(&ring), WakeupHint::None);
    reader.set_poll_state(&ring, PollState::Sleeping);
    assert!(!reader.has_some(&ring));
    assert_eq!(writer.write(&ring, EntryKind::Packet, b"x"), Ok(true));
    assert_eq!(writer.wakeup_hint(&ring), WakeupHint::WakeUp);
    assert_eq!(writer.wakeup_hint(&ring), WakeupHint::None);
    reader.set_poll_state(&ring, PollState::Sleeping);
    assert!(reader.has_some(&ring));
    reader.set_poll_state(&ring, PollState::Doorbell);
    assert_eq!([writer.wakeup_hint(&ring), writer.wakeup_hint(&ring)], [WakeupHint::Doorbell; 2]);
    reader.set_poll_state(&ring, PollState::Polling);
    assert_eq!(writer.wakeup_hint(&ring), WakeupHint::None);
    // An invalid state.
    ring.store(POLL_STATE, 3, Ordering::Relaxed);
    assert_eq!(writer.wakeup_hint(&ring), WakeupHint::None);
}

const H: u64 = 1 << EntryWord::HEAD_SHIFT;

const RANGE: FrameRange = FrameRange { first: 7, count: 1 };

/// Returns an empty ring whose next entry begins at this line, and both sides.
fn ring_at(line: usize) -> (Plain, Writer, Reader) {
    let (ring, at) = (Plain::new(), Position::START.after(line - FIRST));
    assert_eq!(at.line, line);
    ring.store(CONSUMED, at.passed, Ordering::Relaxed);
    (ring, Writer { at, consumed: at.passed }, Reader { at, reported_tail: at.passed })
}

/// RR-SHM-5
#[test]
fn a_long_head_of_an_entry_without_frames_is_a_violation() {
    let (ring, mut into) = (Plain::new(), vec![0; DATAGRAM_MAX]);
    for entry in [EntryKind::Packet, EntryKind::Segment, EntryKind::Piece] {
        for length in [HEADER_BYTES, RING_SHORT_BYTES, BODY_BYTES_MIN, PIECE_BYTES_MAX] {
            let EntryWord(word) = EntryWord::new(entry, length);
            ring.store(Position::START.word(), word, Ordering::Relaxed);
            assert!(Reader::new().read(&ring, &mut into).is_ok(), "{entry:?}, {length}");
            ring.store(Position::START.word(), word | H, Ordering::Relaxed);
            let read = Reader::new().read(&ring, &mut into);
            assert_eq!(read, Err(RingViolation), "{entry:?}, {length}");
        }
    }
}

/// RR-SHM-5
#[test]
fn short_frames_with_a_long_head_are_read_like_those_without() {
    for length in [0, 1, 32, 40, 55, RING_SHORT_BYTES] {
        for line in [FIRST, LINES - 1] {
            let (ring, mut writer, mut reader) = ring_at(line);
            let (entry, word) = (EntryKind::Frames(RANGE, RingHead::Header), writer.at.word());
            let [bytes, last] = [payload(1, length), payload(2, length)];
            assert_eq!(write(&mut writer, &ring, entry, &bytes), Some(true));
            assert_eq!(write(&mut writer, &ring, entry, &last), Some(true));
            ring.store(word, ring.load(word, Ordering::Relaxed) | H, Ordering::Relaxed);
            let kept = [&bytes, &last].map(|it| KeptFrames { range: RANGE, bytes: it.clone() });
            assert_eq!(writer.unread(&ring), Ok(kept.into()));
            let mut into = vec![0; DATAGRAM_MAX];
            assert_eq!(read(&mut reader, &ring, &mut into), Some((entry, bytes)), "{length}");
            assert_eq!(read(&mut reader, &ring, &mut into), Some((entry, last)), "{length}");
        }
    }
}

/// A word does not tell whether there is one frame.
///
/// RR-SHM-5
#[test]
fn a_long_head_of_no_or_many_frames_is_read_within_bounds() {
    let lengths = [RING_SHORT_BYTES + 1, 100, BODY_BYTES_MIN - 1, BODY_BYTES_MIN, DATAGRAM_MAX];
    for count in [0, 2, EntryWord::COUNT_MAX] {
        for length in lengths {
            for line in FIRST..LINES {
                let (ring, mut writer, mut reader) = ring_at(line);
                let range = FrameRange { first: u32::MAX, count };
                let entry = EntryKind::Frames(range, RingHead::HeaderAndData);
                let bytes = payload(1, length);
                assert_eq!(write(&mut writer, &ring, entry, &bytes), Some(true));
                let mut into = vec![0; DATAGRAM_MAX];
                let got = read(&mut reader, &ring, &mut into);
                assert_eq!(got, Some((entry, bytes)), "{count} frames at line {line}");
                assert_eq!(reader.at.line, writer.at.line);
                assert_eq!(read(&mut reader, &ring, &mut into), None);
            }
        }
    }
}

/// RR-SHM-5, RR-SHM-8
#[test]
fn another_head_than_was_written_never_panics() {
    let heads = [RingHead::Header, RingHead::HeaderAndData];
    let lengths = (57..260).chain([BODY_BYTES_MIN - 1, BODY_BYTES_MIN, DATAGRAM_MAX]);
    for (head, length) in lengths.flat_map(|length| heads.map(|head| (head, length))) {
        let entry = EntryKind::Frames(RANGE, head);
        let other = heads[usize::from(head == RingHead::Header)];
        let lines = lines_of_entry(entry, length);
        let other_lines = lines_of_entry(EntryKind::Frames(RANGE, other), length);
        let fits = lines == other_lines;
        for line in [FIRST, LINES - 2 * lines, LINES - lines, LINES - 1] {
            for changed in 0..2 {
                let (ring, mut writer, mut reader) = ring_at(line);
                let words: Vec<_> = (0..2)
                    .map(|number| {
                        let word = writer.at.word();
                        let written = write(&mut writer, &ring, entry, &payload(number, length));
                        assert_eq!(written, Some(true));
                        word
                    })
                    .collect();
                let word = ring.load(words[changed], Ordering::Relaxed);
                ring.store(words[changed], word ^ H, Ordering::Relaxed);
                match writer.unread(&ring) {
                    Ok(kept) => {
                        assert!(kept.len() <= 2 && kept.iter().all(|it| it.bytes.len() == length));
                        assert!(kept.len() == 2 || !fits, "{kept:?}");
                        let is_beyond = changed == 1 && other_lines > lines;
                        assert!(!is_beyond, "it ends beyond the last entry");
                    }
                    Err(RingViolation) => assert!(!fits, "{length} bytes, {head:?}"),
                }
                let mut into = vec![0; DATAGRAM_MAX];
                for _ in 0..2 {
                    match reader.read(&ring, &mut into) {
                        Ok(Some((entry, length))) => {
                            assert!(length <= DATAGRAM_MAX);
                            if let Some((_, rest)) = first_read(entry, length) {
                                reader.read_body(&ring, &mut into[..rest]);
                            }
                        }
                        Ok(None) | Err(RingViolation) => {
                            assert!(!fits);
                            break;
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn both_heads_wrap_at_the_end_of_the_ring() {
    for head in [RingHead::Header, RingHead::HeaderAndData] {
        for length in [BODY_BYTES_MIN - 1, BODY_BYTES_MIN, DATAGRAM_MAX] {
            let entry = EntryKind::Frames(RANGE, head);
            for line in LINES - lines_of_entry(entry, length)..LINES {
                let (ring, mut writer, mut reader) = ring_at(line);
                let [first, second] = [payload(1, length), payload(2, length)];
                let apart = first.split_at(head.bytes()).into();
                let written = writer.write_bytes(&ring, entry, RingBytes::Parts(apart));
                assert_eq!(written, Ok(true));
                assert_eq!(writer.write(&ring, entry, &second), Ok(true));
                let all = [first, second];
                let kept = all.each_ref().map(|it| KeptFrames { range: RANGE, bytes: it.clone() });
                assert!(writer.unread(&ring) == Ok(kept.into()), "{length} bytes at line {line}");
                let mut into = vec![0; DATAGRAM_MAX];
                for bytes in all {
                    let got = read(&mut reader, &ring, &mut into);
                    assert!(got == Some((entry, bytes)), "{length} bytes at line {line}, {head:?}");
                }
                assert_eq!(read(&mut reader, &ring, &mut into), None);
            }
        }
    }
}
