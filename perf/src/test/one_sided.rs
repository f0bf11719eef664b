//! Operations on the memory of the other side: puts, gets, atomic operations.
//!
//! Each side has a region that the other one has a key to: slots for what is put or read, and
//! behind them a word that says that the other side is done. Nobody waits for a message; who waits
//! makes progress and looks at its own memory.

mod latency;
mod rate;
mod stream;

use std::sync::atomic::{AtomicU64, Ordering};

use ringrail::{
    Access, Attached, CompletionLevel, KeyOptions, Region, RemoteAddress, RemoteKey, SendOptions,
};

use super::{Side, message};
use crate::cli::TestName;
use crate::output::Report;
use crate::stamp;

/// Most bytes of one atomic operation.
pub(crate) const ATOMIC_BYTES_MAX: usize = ringrail::Atomic::BYTES_MAX;
/// Bytes of one element of an atomic operation.
pub(crate) const ELEMENT_BYTES: usize = size_of::<u64>();
/// Turns without news after which it is asked whether the other side is still there.
const PATIENCE: u32 = 1 << 16;

pub(super) fn run(side: &mut Side<'_, impl Attached>) -> Result<Report, String> {
    match side.job.test {
        TestName::PutBw => stream::run(side, stream::Direction::Put),
        TestName::GetBw => stream::run(side, stream::Direction::Get),
        TestName::PutMr => rate::run(side),
        TestName::GetLatency => latency::gets(side),
        TestName::AtomicLatency => latency::atomics(side),
        _ => latency::puts(side),
    }
}

/// The regions of both sides.
pub(super) struct Memory<M: Attached> {
    ours: Region<M>,
    theirs: RemoteKey,
    slots: usize,
    /// From one slot to the next.
    stride: usize,
    size: usize,
    /// Puts of the other side that are no part of the test.
    puts_before: u64,
}

impl<M: Attached> Memory<M> {
    /// So many slots of the job's size. Both sides call this, and the memory of both can be reached
    /// when it returns.
    pub(super) fn exchange(side: &mut Side<'_, M>, slots: usize) -> Result<Self, String> {
        let size = side.job.size;
        let page = if size < super::PAGE_BYTES { ELEMENT_BYTES } else { super::PAGE_BYTES };
        let stride = size.next_multiple_of(page).max(page);
        let length = slots * stride + ELEMENT_BYTES;
        let ours = side.endpoint.allocate_region(length).map_err(message)?;
        let key = ours.key(&KeyOptions::new(Access::all())).map_err(message)?;
        side.link.put(&key.0)?;
        let theirs = RemoteKey(side.get()?);
        let mut memory = Self { ours, theirs, slots, stride, size, puts_before: 0 };
        for slot in 0..slots {
            // Its pages are there.
            (0..stride)
                .step_by(super::PAGE_BYTES)
                .try_for_each(|page| memory.ours.write(slot * stride + page, &[0]))
                .map_err(message)?;
        }
        // A put that is refused would be waited for in vain: this one tells.
        let options = SendOptions::at(CompletionLevel::Delivery);
        side.endpoint
            .put_blocking(side.peer, memory.done_there(), &[0; ELEMENT_BYTES], options)
            .map_err(message)?;
        side.barrier()?;
        memory.puts_before = memory.ours.counters().puts;
        Ok(memory)
    }

    /// Where a message is in a slot: it ends with the slot, where the word is that is looked at.
    fn offset(&self, slot: usize) -> usize {
        (slot + 1) * self.stride - self.size
    }

    /// A slot of the other side.
    fn there(&self, slot: usize) -> RemoteAddress {
        self.theirs.at(self.offset(slot) as u64)
    }

    /// Sets the word of this side that the other one would set when it is done.
    pub(super) fn set_done(&self, value: u64) -> Result<(), String> {
        self.word(self.slots * self.stride)?.store(value, Ordering::Release);
        Ok(())
    }

    /// The word of the other side that says that this one is done.
    pub(super) fn done_there(&self) -> RemoteAddress {
        self.theirs.at((self.slots * self.stride) as u64)
    }

    fn word(&self, offset: usize) -> Result<&AtomicU64, String> {
        self.ours.atomic_u64(offset).ok_or_else(|| format!("there is no word at {offset}"))
    }

    /// The last word of a slot of this side.
    fn last_word(&self, slot: usize) -> Result<&AtomicU64, String> {
        self.word((slot + 1) * self.stride - ELEMENT_BYTES)
    }

    /// Puts of the other side that are in place here.
    fn puts(&self) -> u64 {
        self.ours.counters().puts - self.puts_before
    }

    /// Tells the other side that this one is done.
    fn tell_done(&self, side: &Side<'_, M>) -> Result<(), String> {
        inject(side, self.done_there(), &1u64.to_ne_bytes(), false)
    }

    /// Waits for the same.
    fn wait_done(&self, side: &mut Side<'_, M>) -> Result<(), String> {
        let done = self.word(self.slots * self.stride)?;
        wait(side, || done.load(Ordering::Acquire) != 0)
    }

    /// Writes a message to a slot of this side.
    fn fill(&self, slot: usize, bytes: &[u8]) -> Result<(), String> {
        self.ours.write(self.offset(slot), bytes).map_err(message)
    }

    /// Whether a slot of this side has this message: its stamps, or all of it.
    fn holds(&self, slot: usize, number: u64, is_whole: bool) -> bool {
        let at = self.offset(slot);
        let mut is_read = true;
        let stamps = stamp::check_by(self.size, number, |offset, into| {
            is_read &= self.ours.read(at + offset, into).is_ok();
        });
        if !is_whole || !stamps || !is_read {
            return stamps && is_read;
        }
        let mut bytes = vec![0; self.size];
        self.ours.read(at, &mut bytes).is_ok() && stamp::check_between(&bytes, number)
    }

    /// The number of the message of 8 bytes or more in a slot of this side.
    fn number_in(&self, slot: usize) -> Option<u64> {
        let mut first = [0; 8];
        self.ours.read(self.offset(slot), &mut first).ok()?;
        Some(stamp::number(u64::from_le_bytes(first)))
    }

    /// Whether so many puts are in place, and the slots of this side hold messages that belong
    /// there, or none. Puts have no order: any of those to a slot may be the last.
    fn holds_all(&self, total: u64, is_whole: bool) -> bool {
        let belongs = |slot| {
            self.number_in(slot).is_some_and(|number| {
                let is_there = number % self.slots as u64 == slot as u64;
                number == 0 || is_there && self.holds(slot, number, is_whole)
            })
        };
        self.puts() == total && (self.size < 8 || (0..self.slots).all(belongs))
    }

    /// The number of the message to a slot that was used so often before: never 0.
    fn number(&self, slot: usize, uses: u64) -> u64 {
        (uses + 1) * self.slots as u64 + slot as u64
    }
}

/// A message: its stamps, and with `--verify` what is between them.
fn prepare(bytes: &mut [u8], number: u64, is_whole: bool) {
    if is_whole {
        stamp::fill(bytes, number);
    }
    stamp::write(bytes, number);
}

/// Makes progress until it is so.
#[inline]
fn wait<M: Attached>(
    side: &mut Side<'_, M>,
    mut is_so: impl FnMut() -> bool,
) -> Result<(), String> {
    let mut idle = 0;
    while !is_so() {
        if side.endpoint.progress().map_err(message)? {
            idle = 0;
            continue;
        }
        side.relax();
        idle += 1;
        if idle >= PATIENCE {
            idle = 0;
            side.link.check_presence()?;
        }
    }
    Ok(())
}

/// Puts a copy of `bytes`.
#[inline]
fn inject<M: Attached>(
    side: &Side<'_, M>,
    at: RemoteAddress,
    bytes: &[u8],
    more: bool,
) -> Result<(), String> {
    let options = SendOptions::new().more(more);
    loop {
        match side.endpoint.inject_put(side.peer, at, bytes, options) {
            Ok(()) => return Ok(()),
            Err(error) if error.is_would_block() => {
                if !side.endpoint.progress().map_err(message)? {
                    side.relax();
                }
            }
            Err(error) => return Err(error.to_string()),
        }
    }
}
