//! Shared-memory ring and doorbell, in every order that the memory model allows.
//!
//! The files under test are the engine's own, over memory of `loom`'s.

#![allow(dead_code, reason = "the models do not need all of the file")]

#[path = "../../../engine/src/driver/shm/doorbell.rs"]
mod doorbell;
#[path = "../../../engine/src/driver/shm/entry.rs"]
mod entry;
#[path = "../../../engine/src/driver/shm/ring.rs"]
mod ring;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use loom::sync::atomic::{AtomicBool, AtomicU64, fence};
use loom::thread;

use crate::wire::frame_range::RING_SHORT_BYTES;
use doorbell::{DoorbellWords, PendingDoorbells};
use ring::{
    DATAGRAM_MAX, EntryKind, LINE_BYTES, LINES, Lines, PollState, Reader, WakeupHint, Writer,
};

/// The first lines of a ring: `loom` has no room for all. A model goes no further.
const WORDS: usize = 8 * LINE_BYTES / 8;

/// Where the first datagram begins.
const FIRST_WORD: usize = 2 * LINE_BYTES / 8;

const _: () = assert!(WORDS < LINES * LINE_BYTES / 8);

/// Only words that a model touches are made.
struct Memory(Vec<AtomicU64>);

impl Memory {
    fn new() -> Arc<Self> {
        // Words 0, 8, 16 ... and what follows those of datagrams.
        Arc::new(Self((0..WORDS / 4).map(|_| AtomicU64::new(0)).collect()))
    }

    /// With a datagram so long that its reader publishes its position at once; its bytes are not
    /// checked.
    fn full() -> Arc<Self> {
        let memory = Self::new();
        memory.store(FIRST_WORD, DATAGRAM_MAX as u64 + 1, Ordering::Relaxed);
        memory
    }

    /// A line has two words here: of short datagrams nothing else is used.
    fn at(&self, word: usize) -> &AtomicU64 {
        assert!(word % 8 < 2, "word {word} of a line");
        &self.0[word / 8 * 2 + word % 8]
    }
}

impl Lines for Memory {
    fn load(&self, word: usize, order: Ordering) -> u64 {
        self.at(word).load(order)
    }

    fn store(&self, word: usize, value: u64, order: Ordering) {
        self.at(word).store(value, order);
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        let word = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        self.at(offset / 8).store(word, Ordering::Relaxed);
    }

    fn read(&self, offset: usize, into: &mut [u8]) {
        if into.len() > 8 {
            return;
        }
        into.copy_from_slice(&self.at(offset / 8).load(Ordering::Relaxed).to_le_bytes());
    }

    // Of short entries the models use one word.
    fn write_line(&self, line: usize, bytes: &[u8; RING_SHORT_BYTES]) {
        self.write(line * LINE_BYTES + 8, &bytes[..8]);
    }

    fn read_line(&self, line: usize, into: &mut [u8; RING_SHORT_BYTES]) {
        self.read(line * LINE_BYTES + 8, &mut into[..8]);
    }

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

#[test]
fn entries_are_read_as_written() {
    loom::model(|| {
        let memory = Memory::new();
        let theirs = Arc::clone(&memory);
        let writing = thread::spawn(move || {
            let mut writer = Writer::new();
            for number in 1..=3_u64 {
                assert_eq!(
                    writer.write(&*theirs, EntryKind::Packet, &number.to_le_bytes()),
                    Ok(true)
                );
            }
        });
        let (mut reader, mut into, mut due) = (Reader::new(), vec![0; DATAGRAM_MAX], 1_u64);
        for _ in 0..4 {
            match reader.read(&*memory, &mut into).expect("a writer that keeps the rules") {
                Some((_, length)) => {
                    assert_eq!(into[..length], due.to_le_bytes());
                    due += 1;
                }
                None => thread::yield_now(),
            }
        }
        writing.join().unwrap();
        while let Some((_, length)) = reader.read(&*memory, &mut into).unwrap() {
            assert_eq!(into[..length], due.to_le_bytes());
            due += 1;
        }
        assert_eq!(due, 4);
    });
}

/// A writer sleeps after its announcement only if the reader, which makes room, wakes it.
#[test]
fn published_room_is_never_missed() {
    loom::model(|| {
        let (memory, is_woken) = (Memory::full(), Arc::new(AtomicBool::new(false)));
        let (theirs, wakes) = (Arc::clone(&memory), Arc::clone(&is_woken));
        let reading = thread::spawn(move || {
            let (mut reader, mut into) = (Reader::new(), vec![0; DATAGRAM_MAX]);
            let reported_tail = reader.reported_tail();
            assert!(reader.read(&*theirs, &mut into).unwrap().is_some());
            assert!(reader.reported_tail() > reported_tail, "so much is told at once");
            if reader.take_waiting_writer(&*theirs) {
                wakes.store(true, Ordering::Release);
            }
        });
        let writer = Writer::new();
        let falls_asleep = || {
            writer.prepare_sleep(&*memory);
            memory.fence();
            !writer.has_new_room(&*memory)
        };
        // It wakes for another reason, and sleeps again.
        let first = falls_asleep();
        writer.end_sleep(&*memory);
        let sleeps = falls_asleep();
        reading.join().unwrap();
        assert!(!sleeps || is_woken.load(Ordering::Acquire), "asleep for ever ({first})");
    });
}

/// Announces something, and says whether nothing was there then.
fn announces(reader: &Reader, memory: &Memory, state: PollState) -> bool {
    reader.set_poll_state(memory, state);
    memory.fence();
    !reader.has_some(memory)
}

/// A reader sleeps after its announcement only if the writer wakes it.
#[test]
fn wake_ups_are_never_lost() {
    loom::model(|| {
        let (memory, is_woken) = (Memory::new(), Arc::new(AtomicBool::new(false)));
        let (theirs, wakes) = (Arc::clone(&memory), Arc::clone(&is_woken));
        let writing = thread::spawn(move || {
            let mut writer = Writer::new();
            assert_eq!(writer.write(&*theirs, EntryKind::Packet, &7_u64.to_le_bytes()), Ok(true));
            if writer.wakeup_hint(&*theirs) == WakeupHint::WakeUp {
                wakes.store(true, Ordering::Release);
            }
        });
        let reader = Reader::new();
        // It wakes for another reason, and sleeps again.
        let first = announces(&reader, &memory, PollState::Sleeping);
        reader.set_poll_state(&*memory, PollState::Polling);
        let sleeps = announces(&reader, &memory, PollState::Sleeping);
        writing.join().unwrap();
        assert!(!sleeps || is_woken.load(Ordering::Acquire), "asleep for ever ({first})");
    });
}

/// The doorbells of one engine.
struct Bell(AtomicU64);

impl DoorbellWords for Bell {
    fn load(&self, word: usize, order: Ordering) -> u64 {
        assert_eq!(word, 0);
        self.0.load(order)
    }

    fn fetch_or(&self, _: usize, bits: u64, order: Ordering) -> u64 {
        self.0.fetch_or(bits, order)
    }

    fn swap(&self, _: usize, value: u64, order: Ordering) -> u64 {
        self.0.swap(value, order)
    }

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

/// Writes two datagrams to a reader, and notifies it.
fn write_twice(memory: &Memory, bells: &Bell, wake_ups: &AtomicU64) {
    let mut writer = Writer::new();
    for number in 1..=2_u64 {
        assert_eq!(writer.write(memory, EntryKind::Packet, &number.to_le_bytes()), Ok(true));
        match writer.wakeup_hint(memory) {
            WakeupHint::None => {}
            WakeupHint::Doorbell => doorbell::set_doorbell(bells, 5),
            WakeupHint::WakeUp => {
                wake_ups.fetch_add(1, Ordering::AcqRel);
            }
        }
    }
}

/// The doorbell is set for every entry left in a ring that is not polled.
#[test]
fn doorbells_are_never_lost() {
    loom::model(|| {
        let (memory, bells) = (Memory::new(), Arc::new(Bell(AtomicU64::new(0))));
        let (theirs, their_bells) = (Arc::clone(&memory), Arc::clone(&bells));
        let writing = thread::spawn(move || {
            write_twice(&theirs, &their_bells, &AtomicU64::new(0));
        });
        let (mut reader, mut rung, mut into) =
            (Reader::new(), PendingDoorbells::default(), vec![0; DATAGRAM_MAX]);
        rung.extend_to(64);
        let mut count = 0;
        // It polled before.
        if !announces(&reader, &memory, PollState::Doorbell) {
            rung.add(5);
        }
        let mut serve = |rung: &mut PendingDoorbells| {
            rung.collect(&*bells);
            while let Some(bell) = rung.current() {
                assert_eq!(bell, 5);
                match reader.read(&*memory, &mut into).unwrap() {
                    Some(_) => count += 1,
                    None => rung.remove(bell),
                }
            }
        };
        serve(&mut rung);
        writing.join().unwrap();
        serve(&mut rung);
        assert_eq!(count, 2, "a datagram that nobody is told of");
    });
}

/// The same for a reader that sleeps after polling doorbells, and for one that polls them after a
/// sleep: a state that a wake-up overwrites is published again when the wake-up is handled.
#[test]
fn notifications_are_never_lost_between_doorbell_and_sleep() {
    for [first, second] in [
        [PollState::Doorbell, PollState::Sleeping],
        [PollState::Sleeping, PollState::Doorbell],
        [PollState::Polling, PollState::Doorbell],
    ] {
        loom::model(move || {
            let (memory, bells) = (Memory::new(), Arc::new(Bell(AtomicU64::new(0))));
            let wake_ups = Arc::new(AtomicU64::new(0));
            let (theirs, their_bells) = (Arc::clone(&memory), Arc::clone(&bells));
            let wakes = Arc::clone(&wake_ups);
            let writing = thread::spawn(move || write_twice(&theirs, &their_bells, &wakes));
            let (mut reader, mut rung, mut into) =
                (Reader::new(), PendingDoorbells::default(), vec![0; DATAGRAM_MAX]);
            rung.extend_to(64);
            announces(&reader, &memory, first);
            let mut has_notice = !announces(&reader, &memory, second);
            if wake_ups.swap(0, Ordering::AcqRel) > 0 {
                has_notice |= !announces(&reader, &memory, second);
            }
            let mut count = 0;
            let mut read_all = || {
                while reader.read(&*memory, &mut into).unwrap().is_some() {
                    count += 1;
                }
            };
            if has_notice {
                read_all();
            }
            writing.join().unwrap();
            rung.collect(&*bells);
            // A sleeping reader polls no doorbell.
            let is_rung = second != PollState::Sleeping && rung.current().is_some();
            if is_rung || wake_ups.load(Ordering::Acquire) > 0 {
                read_all();
            }
            assert_eq!(count, 2, "a datagram that nobody is told of");
        });
    }
}

/// The same of two rings behind one fence, whose reader listened before.
#[test]
fn one_fence_serves_all_rings_of_a_sleeper() {
    loom::model(|| {
        let rings = [Memory::new(), Memory::new()];
        let bells = Arc::new(Bell(AtomicU64::new(0)));
        let wake_ups = Arc::new(AtomicU64::new(0));
        let (theirs, their_bells) = (rings.clone(), Arc::clone(&bells));
        let wakes = Arc::clone(&wake_ups);
        let writing = thread::spawn(move || {
            for (bell, ring) in (3..).zip(&theirs) {
                let mut writer = Writer::new();
                let text = 7_u64.to_le_bytes();
                assert_eq!(writer.write(&**ring, EntryKind::Packet, &text), Ok(true));
                match writer.wakeup_hint(&**ring) {
                    WakeupHint::None => {}
                    WakeupHint::Doorbell => doorbell::set_doorbell(&*their_bells, bell),
                    WakeupHint::WakeUp => {
                        wakes.fetch_add(1, Ordering::AcqRel);
                    }
                }
            }
        });
        let reader = Reader::new();
        for state in [PollState::Doorbell, PollState::Sleeping] {
            for ring in &rings {
                reader.set_poll_state(&**ring, state);
            }
        }
        rings[0].fence();
        let has_some = rings.iter().any(|ring| reader.has_some(&**ring));
        writing.join().unwrap();
        assert!(has_some || wake_ups.load(Ordering::Acquire) > 0, "asleep for ever");
    });
}
