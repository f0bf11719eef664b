//! Registered memory of this engine: regions by their protocol ids.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::memory::{AtomicError, Fault};
use crate::memory::{Shape, Window};
use crate::proto::regions::{Access, Refusal};
use crate::proto::table::Id;
use crate::types::{AtomicOp, Datatype};

/// Counters of peers' accesses to a region. Written by the threads that hold the engine, one at a
/// time; read by any thread.
#[derive(Debug, Default)]
pub(crate) struct RegionCounts {
    pub(crate) puts: AtomicU64,
    pub(crate) gets: AtomicU64,
    pub(crate) atomics: AtomicU64,
    pub(crate) bytes: AtomicU64,
}

/// Adds to a counter, which publishes earlier writes to the region.
#[inline]
fn add(counter: &AtomicU64, more: u64) {
    // One writer at a time.
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(more), Ordering::Release);
}

#[derive(Debug)]
struct KnownMemory {
    name: Id,
    window: Arc<Window>,
    counts: Arc<RegionCounts>,
}

/// Registered memory; see the module.
#[derive(Debug, Default)]
pub(crate) struct RegisteredMemory {
    known: Vec<Option<KnownMemory>>,
    /// The completion queues of endpoints, for remote data.
    queues: Vec<Option<u32>>,
}

impl RegisteredMemory {
    pub(crate) fn insert(&mut self, name: Id, window: Arc<Window>, counts: Arc<RegionCounts>) {
        let index = name.index();
        if index >= self.known.len() {
            self.known.resize_with(index + 1, || None);
        }
        self.known[index] = Some(KnownMemory { name, window, counts });
    }

    pub(crate) fn remove(&mut self, name: Id) {
        if let Some(place) = self.known.get_mut(name.index())
            && place.as_ref().is_some_and(|known| known.name == name)
        {
            *place = None;
        }
    }

    #[inline]
    fn get(&self, name: Id) -> Option<&KnownMemory> {
        self.known.get(name.index())?.as_ref().filter(|known| known.name == name)
    }

    #[inline]
    pub(super) fn put(&self, region: Id, offset: u64, bytes: &[u8]) -> Result<(), Refusal> {
        let known = self.get(region).ok_or(Refusal::Fault)?;
        known.window.store(offset as usize, bytes).map_err(refusal_of_fault)
    }

    pub(super) fn atomic(
        &self,
        region: Id,
        offset: u64,
        (op, datatype): (u8, u8),
        (compare, operands): (&[u8], &[u8]),
        before: Option<&mut [u8]>,
    ) -> Result<(), Refusal> {
        let known = self.get(region).ok_or(Refusal::Fault)?;
        let op = AtomicOp::from_code(op).ok_or(Refusal::Unsupported)?;
        let datatype = Datatype::from_code(datatype).ok_or(Refusal::Unsupported)?;
        let done = known.window.atomic(offset as usize, op, datatype, operands, compare, before);
        done.map_err(|error| match error {
            AtomicError::Fault(fault) => refusal_of_fault(fault),
            AtomicError::Misaligned { .. } => Refusal::Misaligned,
            AtomicError::Unsupported { .. } => Refusal::Unsupported,
            AtomicError::Length { .. } => Refusal::Length,
        })
    }

    /// Returns memory for an operation that does not end at once. Memory that may be unmapped is
    /// accessed before: the kernel moves its bytes, and a lane is lost where it finds none.
    pub(super) fn bind(
        &self,
        region: Id,
        offset: u64,
        length: u64,
        is_write: bool,
    ) -> Result<(Arc<Window>, Shape), Refusal> {
        let known = self.get(region).ok_or(Refusal::Fault)?;
        let (offset, length) = (offset as usize, length as usize);
        let span = known.window.present(offset, length, is_write).map_err(refusal_of_fault)?;
        Ok((Arc::clone(&known.window), Shape::contiguous(span.ptr, span.len)))
    }

    #[inline]
    pub(super) fn count(&self, region: Id, access: Access, bytes: u64) {
        let Some(known) = self.get(region) else { return };
        let counter = match access {
            Access::REMOTE_READ => &known.counts.gets,
            Access::REMOTE_ATOMIC => &known.counts.atomics,
            _ => &known.counts.puts,
        };
        add(&known.counts.bytes, bytes);
        add(counter, 1);
    }

    /// Sets the queue for the remote data of endpoint `number`.
    pub(crate) fn set_queue(&mut self, number: u16, queue: Option<u32>) {
        let index = usize::from(number);
        if index >= self.queues.len() {
            self.queues.resize(index + 1, None);
        }
        self.queues[index] = queue;
    }

    pub(super) fn queue_of(&self, number: u16) -> Option<u32> {
        self.queues.get(usize::from(number)).copied().flatten()
    }
}

fn refusal_of_fault(fault: Fault) -> Refusal {
    match fault {
        Fault::Range { .. } => Refusal::Range,
        Fault::Memory { .. } | Fault::System { .. } => Refusal::Fault,
    }
}
