//! Operations on the memory of other processes, at random, and what has to be in that memory.
//!
//! Each process exposes one region, under a key that all know:
//!
//! ```text
//!  guard | cells of host 0 | cells of host 1 | ... | counter | guard
//! ```
//!
//! Host `n` writes and reads its own cells, one operation at a time in each, so what has to be
//! there is known but for puts whose outcome is unknown: each byte is of the last put that was
//! done, or of one of these. All add 1 to the counter. The guards are never written.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Run;
use super::form::content;
use super::oracle::Process;
use crate::driver::sim::random::Random;
use crate::memory::{Buffer, Shape, Window};
use crate::progress::completions::CompletionRoute;
use crate::progress::post::Memory;
use crate::progress::registered_memory::RegionCounts;
use crate::proto::effects::CompletionLevel;
use crate::proto::failure::PeerFailure;
use crate::proto::hint::Hint;
use crate::proto::regions::{Access, KeyName, KeyRequest, Refusal};
use crate::proto::session::one_sided::Verb;
use crate::proto::session::one_sided::origin::OneSidedRequest;
use crate::proto::table::Id;
use crate::types::{AtomicOp, Completion, Datatype, Error, OperationKind};
use crate::wire::one_sided::FLAG_FETCH;

/// Hosts that have cells.
const HOSTS: usize = 16;
/// In one datagram, in several or by a stream, and pulled.
const CELLS: [usize; 4] = [8, 300, 3000, 20_000];
const CELLS_BYTES: usize = CELLS[0] + CELLS[1] + CELLS[2] + CELLS[3];
const GUARD: usize = 64;
const GUARDED: u8 = 0x5a;
/// The bytes that the simulated kernel leaves where a request was cancelled.
const SCRIBBLED: u8 = 0xee;
const COUNTER: usize = GUARD + HOSTS * CELLS_BYTES;
const REGION_BYTES: usize = COUNTER + 8 + GUARD;

/// One of so many operations is beside what the key opens.
const WRONG: usize = 12;
/// Before one of so many operations a process takes its key back.
const REVOCATIONS: usize = 40;

/// Where in a region a cell is, and how long.
fn range_of(host: usize, cell: usize) -> (usize, usize) {
    let before: usize = CELLS[..cell].iter().sum();
    (GUARD + host * CELLS_BYTES + before, CELLS[cell])
}

/// The key to the region of a process.
fn key_of(process: Process) -> u64 {
    process ^ 0x6b65_795f_6f66_5f70
}

/// The purpose of one operation.
#[derive(Clone, Copy, Debug)]
struct Asked {
    /// It is beside what the key opens, and to be refused.
    is_wrong: bool,
    origin: Process,
    target: Process,
    host: usize,
    /// Which cell; `None`: the counter.
    cell: Option<usize>,
    kind: OperationKind,
    /// It ends when its memory is free, wherever its bytes are.
    is_early: bool,
    is_over: bool,
    has_failed: bool,
}

/// The known state of a cell: names of contents, 0 before the first.
#[derive(Clone, Debug, Default)]
struct Cell {
    last: u64,
    /// Puts whose outcome is unknown since then.
    unknown: Vec<u64>,
    /// Whose puts, of these, may be on their way still: their peer was forgotten and their session
    /// goes on, or no flush followed them. Nothing orders them and later
    /// ones.
    late_of: Option<Process>,
    is_busy: bool,
}

impl Cell {
    /// Returns the index of a byte of `bytes` that no put wrote.
    ///
    /// `may_be_garbled`: a put that failed may leave anything.
    fn wrong_byte(&self, bytes: &[u8], may_be_garbled: bool) -> Option<usize> {
        if may_be_garbled && !self.unknown.is_empty() {
            return None;
        }
        let contents: Vec<Vec<u8>> = std::iter::once(self.last)
            .chain(self.unknown.iter().copied())
            .map(|name| content_of(name, bytes.len()))
            .collect();
        let may_be_cut = !self.unknown.is_empty();
        let is_written = |&at: &usize| {
            let is_scribbled = may_be_cut && bytes[at] == SCRIBBLED;
            is_scribbled || contents.iter().any(|content| content[at] == bytes[at])
        };
        (0..bytes.len()).find(|at| !is_written(at))
    }
}

fn content_of(name: u64, length: usize) -> Vec<u8> {
    if name == 0 { vec![0; length] } else { content(name, length) }
}

#[derive(Debug)]
struct Target {
    window: Arc<Window>,
    region: Id,
    /// The key is taken back.
    revoked: Option<KeyName>,
    /// The contents when no operation used the memory any more.
    frozen: Option<Vec<u8>>,
    cells: Vec<[Cell; CELLS.len()]>,
    /// Additions that are done.
    added: u64,
    /// Additions that may have been done.
    perhaps: u64,
    /// Values that were fetched.
    fetched: BTreeSet<u64>,
}

impl Asked {
    /// An addition to the counter, or a put beside everything.
    fn new(origin: Process, target: Process, host: usize) -> Self {
        Self {
            is_wrong: false,
            origin,
            target,
            host,
            cell: None,
            kind: OperationKind::Put,
            is_early: false,
            is_over: false,
            has_failed: false,
        }
    }
}

impl Target {
    fn bytes(&self) -> Result<Vec<u8>, String> {
        let mut bytes = vec![0; REGION_BYTES];
        self.window.load(0, &mut bytes).map_err(|error| error.to_string())?;
        Ok(bytes)
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct OneSidedWorld {
    random: Random,
    targets: BTreeMap<Process, Target>,
    asked: Vec<Asked>,
}

impl OneSidedWorld {
    pub(super) fn new(seed: u64) -> Self {
        let random = Random::new(seed.rotate_left(48) ^ 0x0f0f);
        Self { random, targets: BTreeMap::new(), asked: Vec::new() }
    }

    /// Operations of a process that have not ended.
    fn outstanding(&self, process: Process) -> usize {
        self.asked.iter().filter(|it| it.origin == process && !it.is_over).count()
    }
}

impl Run {
    /// A process that was just started opens its region.
    pub(super) fn open_region(&mut self, host: usize) -> Result<(), String> {
        let process = self.residents[host].process;
        let Some(engine) = self.world.engine(host) else { return Ok(()) };
        let window = Window::allocate(REGION_BYTES).map_err(|error| error.to_string())?;
        for offset in [0, COUNTER + 8] {
            window.store(offset, &[GUARDED; GUARD]).map_err(|error| error.to_string())?;
        }
        let (window, counts) = (Arc::new(window), Arc::new(RegionCounts::default()));
        let length = REGION_BYTES as u64;
        let region = engine.state.lend_region(length, Arc::clone(&window), counts);
        let region = region.map_err(|error| error.to_string())?;
        let (offset, length) = (GUARD as u64, (COUNTER + 8 - GUARD) as u64);
        let (key, access, peers) = (Some(key_of(process)), Access::all(), None);
        let request = KeyRequest { key, offset, length, access, peers };
        engine.state.add_key(region, request).map_err(|error| error.to_string())?;
        let cells = vec![<[Cell; CELLS.len()]>::default(); HOSTS];
        let (added, perhaps, fetched) = (0, 0, BTreeSet::new());
        let (revoked, frozen) = (None, None);
        let target = Target { window, region, revoked, frozen, cells, added, perhaps, fetched };
        self.one_sided.targets.insert(process, target);
        Ok(())
    }

    /// A process puts, gets or adds.
    pub(super) fn reach_memory(&mut self, host: usize) -> Result<(), String> {
        let origin = self.residents[host].process;
        let to = self.one_sided.random.below(self.residents.len());
        let target = self.residents[to].process;
        let (is_known, hosts) = (self.one_sided.targets.contains_key(&target), host < HOSTS);
        let room = self.one_sided.outstanding(origin) < self.plan.backlog_max;
        if !is_known || !hosts || !room || !self.leaves_room_to_receive(host) {
            return Ok(());
        }
        self.freeze_memory()?;
        if self.one_sided.random.one_in(REVOCATIONS) {
            self.revoke_own_key(host)?;
        }
        if self.one_sided.random.one_in(WRONG) {
            return self.put_beside(host, (origin, target));
        }
        let cell = self.one_sided.random.below(CELLS.len() + 1);
        if cell == CELLS.len() {
            return self.add_to_counter(host, (origin, target));
        }
        let known = self.one_sided.targets.get_mut(&target).map(|it| &mut it.cells[host][cell]);
        if known.is_none_or(|known| known.is_busy) {
            return Ok(());
        }
        let number = cell;
        let (offset, length) = range_of(host, number);
        let name = self.one_sided.asked.len() as u64 + 1;
        let (verb, kind, bytes) = match self.one_sided.random.below(3) {
            0 => (Verb::Get, OperationKind::Get, vec![0; length]),
            _ => (Verb::Put, OperationKind::Put, content_of(name, length)),
        };
        let is_flushed = verb == Verb::Put && self.one_sided.random.one_in(2);
        let level = if is_flushed { CompletionLevel::Inject } else { CompletionLevel::Delivery };
        let at = (key_of(target), (offset - GUARD) as u64, length as u64);
        let posted = self.ask(host, target, (verb, at, level), Some(bytes), &[])?;
        if !posted {
            return Ok(());
        }
        let (is_early, cell) = (is_flushed, Some(cell));
        let asked = Asked { cell, kind, is_early, ..Asked::new(origin, target, host) };
        self.one_sided.asked.push(asked);
        if let Some(known) = self.one_sided.targets.get_mut(&target) {
            let known = &mut known.cells[host][number];
            known.is_busy = true;
            if kind == OperationKind::Put {
                // It counts as done when it has ended well.
                known.unknown.push(name);
            }
        }
        if is_flushed {
            let flush = (Verb::Flush, (0, 0, 0), CompletionLevel::Delivery);
            if self.ask(host, target, flush, None, &[])? {
                // The put's own end frees nothing, that of the flush does.
                self.one_sided.asked.push(Asked { kind: OperationKind::Flush, ..asked });
            }
        }
        Ok(())
    }

    fn add_to_counter(
        &mut self,
        host: usize,
        (origin, target): (Process, Process),
    ) -> Result<(), String> {
        let (atomic, datatype) = (AtomicOp::Sum.code(), Datatype::U64.code());
        let verb = Verb::Atomic { atomic, datatype, flags: FLAG_FETCH };
        let at = (key_of(target), (COUNTER - GUARD) as u64, 8);
        let what = (verb, at, CompletionLevel::Delivery);
        if self.ask(host, target, what, Some(vec![0; 8]), &1u64.to_ne_bytes())? {
            let kind = OperationKind::Atomic;
            self.one_sided.asked.push(Asked { kind, ..Asked::new(origin, target, host) });
        }
        Ok(())
    }

    /// Puts a word behind what the key opens.
    fn put_beside(
        &mut self,
        host: usize,
        (origin, target): (Process, Process),
    ) -> Result<(), String> {
        let offset = (COUNTER + 8 - GUARD + self.one_sided.random.below(GUARD - 8)) as u64;
        let what = (Verb::Put, (key_of(target), offset, 8), CompletionLevel::Delivery);
        if self.ask(host, target, what, Some(vec![1; 8]), &[])? {
            let asked = Asked { is_wrong: true, ..Asked::new(origin, target, host) };
            self.one_sided.asked.push(asked);
        }
        Ok(())
    }

    /// A process takes the key to its memory back.
    fn revoke_own_key(&mut self, host: usize) -> Result<(), String> {
        let process = self.residents[host].process;
        let Some(engine) = self.world.engine(host) else { return Ok(()) };
        let Some(target) = self.one_sided.targets.get_mut(&process) else { return Ok(()) };
        if target.revoked.is_none() {
            let name = engine.state.revoke_key(target.region, key_of(process));
            target.revoked = Some(name.map_err(|error| error.to_string())?);
        }
        Ok(())
    }

    /// Records memory whose key is revoked and that no operation uses any more: it must not change.
    fn freeze_memory(&mut self) -> Result<(), String> {
        for (host, resident) in self.residents.iter().enumerate() {
            let Some(target) = self.one_sided.targets.get_mut(&resident.process) else { continue };
            let (Some(name), None) = (target.revoked, &target.frozen) else { continue };
            let Some(engine) = self.world.engine(host) else { continue };
            if engine.state.user_of_region(target.region, Some(name)).is_none() {
                target.frozen = Some(target.bytes()?);
            }
        }
        Ok(())
    }

    /// Posts an operation, whose name is its place in the list. `false`: it was not taken.
    fn ask(
        &mut self,
        host: usize,
        target: Process,
        (verb, (key, offset, length), level): (Verb, (u64, u64, u64), CompletionLevel),
        memory: Option<Vec<u8>>,
        operands: &[u8],
    ) -> Result<bool, String> {
        let Some(peer) = self.name_of(host, (target, 0)) else { return Ok(false) };
        let process = self.residents[host].process;
        let user_data = self.one_sided.asked.len() as u64;
        let Some(engine) = self.world.engine(host) else { return Ok(false) };
        let request = OneSidedRequest {
            endpoint: 0,
            peer,
            verb,
            key,
            offset,
            length,
            level,
            hint: Hint::None,
            invalidates: false,
            data: None,
            fence: false,
            operands: operands.into(),
        };
        let memory = match memory {
            None => Memory::nothing(),
            Some(mut bytes) => {
                let shape = Shape::contiguous(bytes.as_mut_ptr(), bytes.len());
                Memory { buffer: Some(Buffer::Heap(bytes)), shape }
            }
        };
        let route = CompletionRoute::Queue { queue: 0, user_data, silent: false };
        match engine.post_one_sided(request, memory, route, false) {
            Ok(_) => Ok(true),
            Err((error, _)) => self.oracle.check_error(process, &error).map(|()| false),
        }
    }

    /// The end of an operation on memory. `false`: it is of another kind.
    pub(super) fn end_one_sided(&mut self, completion: &Completion) -> Result<bool, String> {
        let is_it = matches!(
            completion.kind,
            OperationKind::Put | OperationKind::Get | OperationKind::Atomic | OperationKind::Flush
        );
        if !is_it {
            return Ok(false);
        }
        let index = completion.user_data as usize;
        let Some(asked) = self.one_sided.asked.get_mut(index) else {
            return Err(format!("{completion:?} is of no operation"));
        };
        if asked.is_over || asked.kind != completion.kind {
            return Err(format!("{completion:?} of {asked:?}"));
        }
        asked.is_over = true;
        if asked.is_wrong && completion.result.is_ok() {
            return Err(format!("{asked:?} was not refused"));
        }
        asked.has_failed = completion.result.is_err();
        let (asked, garbles) = (*asked, self.may_leave_anything());
        // A flush does not confirm a put that has failed by itself.
        let of_flush = asked.kind == OperationKind::Flush;
        let has_put_failed = of_flush && self.one_sided.asked[index - 1].has_failed;
        // Nor does it report that a put was refused, if another one has reported that.
        let may_be_refused = of_flush && self.is_revoked(asked.target);
        let is_done = completion.result.is_ok() && !has_put_failed && !may_be_refused;
        if let Err(error) = &completion.result {
            self.check_refusal(&asked, error)?;
        }
        self.freeze_memory()?;
        if asked.is_wrong {
            return Ok(true);
        }
        let is_flushed = self.one_sided.asked.get(index + 1).is_some_and(|next| {
            asked.kind == OperationKind::Put && next.kind == OperationKind::Flush && !next.is_over
        });
        let bytes = completion.buffer.as_ref().and_then(Buffer::as_slice).unwrap_or_default();
        let Some(target) = self.one_sided.targets.get_mut(&asked.target) else { return Ok(true) };
        let Some(number) = asked.cell else {
            if !is_done {
                target.perhaps += 1;
                return Ok(true);
            }
            target.added += 1;
            let before = bytes.first_chunk().map_or(0, |value| u64::from_ne_bytes(*value));
            if !target.fetched.insert(before) {
                return Err(format!("{before} was fetched twice of the counter: {asked:?}"));
            }
            return Ok(true);
        };
        let cell = &mut target.cells[asked.host][number];
        // There was no room for a flush behind it, and its own end means only that its memory is
        // free: it may come after a later put to the cell, and before the flush of that.
        let is_put = asked.kind == OperationKind::Put;
        let is_unordered = is_put && asked.is_early && !is_flushed && completion.result.is_ok();
        if is_unordered {
            cell.late_of.get_or_insert(asked.origin);
        }
        let is_forgotten =
            matches!(completion.result, Err(Error::Peer { failure: PeerFailure::Removed, .. }));
        if is_forgotten && asked.kind != OperationKind::Get {
            cell.late_of.get_or_insert(asked.origin);
            let (offset, length) = range_of(asked.host, number);
            let span = target.window.span(offset, length).map_err(|error| error.to_string())?;
            self.world.net.borrow_mut().allow_races(span);
        }
        if asked.kind == OperationKind::Get {
            cell.is_busy = false;
            // Its target may still wait for the completion of the last request that read there.
            let (offset, length) = range_of(asked.host, number);
            let span = target.window.span(offset, length).map_err(|error| error.to_string())?;
            self.world.net.borrow_mut().mark_delivered(span);
            let wrong = is_done.then(|| cell.wrong_byte(bytes, garbles)).flatten();
            return match wrong {
                Some(at) => Err(format!("byte {at} of {asked:?} was never put there: {cell:?}")),
                None => Ok(true),
            };
        }
        // Its bytes may be on their way; the flush behind it decides.
        cell.is_busy = is_flushed;
        if asked.kind == OperationKind::Put && asked.is_early {
            return Ok(true);
        }
        // A flush confirms that the put before it is done, if that ended well.
        let name = if asked.kind == OperationKind::Flush { index } else { index + 1 } as u64;
        if !is_done || cell.unknown.last() != Some(&name) {
            return Ok(true);
        }
        cell.last = name;
        if let Some(of) = cell.late_of {
            cell.unknown.pop();
            // All that its process sent before a flush has come. What a process sent that lived on
            // this host before may still be in the network.
            if asked.kind == OperationKind::Flush && of == asked.origin {
                cell.late_of = None;
            }
        } else {
            cell.unknown.clear();
        }
        let (offset, length) = range_of(asked.host, number);
        let mut there = vec![0; length];
        target.window.load(offset, &mut there).map_err(|error| error.to_string())?;
        match cell.wrong_byte(&there, garbles) {
            Some(at) => Err(format!("byte {at} is not there yet, and {asked:?} is done")),
            None => Ok(true),
        }
    }

    /// Whether a put that fails may leave bytes that are none of its own: chunks are garbled on
    /// their way, or the target reads the memory of the origin, finds out after that that the
    /// origin has taken it back, and never completes the put.
    fn may_leave_anything(&self) -> bool {
        let reads = self.plan.local_peers.as_ref().is_some_and(|it| it.reads);
        reads || self.plan.garble.chunks_ns.is_some()
    }

    /// An operation may fail with its peer, and be refused for want of room.
    fn check_refusal(&self, asked: &Asked, error: &Error) -> Result<(), String> {
        match error {
            Error::Refused { cause: Refusal::Busy | Refusal::Endpoint, .. }
            | Error::Unflushed(_)
            | Error::Cancelled => Ok(()),
            Error::Refused { cause: Refusal::Range, .. } if asked.is_wrong => Ok(()),
            Error::Refused { cause: Refusal::Key | Refusal::Throttled, .. }
                if self.is_revoked(asked.target) =>
            {
                Ok(())
            }
            Error::Refused { cause, .. } => Err(format!("{asked:?} was refused: {cause}")),
            other => self.oracle.check_error(asked.origin, other),
        }
    }

    fn is_revoked(&self, target: Process) -> bool {
        self.one_sided.targets.get(&target).is_some_and(|it| it.revoked.is_some())
    }

    /// Whether a process that lives waits for an operation on memory.
    pub(super) fn is_reaching_memory(&self) -> bool {
        let mut processes = self.residents.iter().map(|resident| resident.process);
        processes.any(|it| self.is_alive(it) && self.one_sided.outstanding(it) > 0)
    }

    /// Everything has ended: what has to be in memory.
    pub(super) fn check_memory(&self) -> Result<(), String> {
        let garbles = self.may_leave_anything();
        for (process, target) in &self.one_sided.targets {
            if !self.is_alive(*process) {
                continue;
            }
            let bytes = target.bytes()?;
            if target.frozen.as_ref().is_some_and(|frozen| *frozen != bytes) {
                return Err(format!("memory of {process:#x} was written without a key"));
            }
            let guards = [&bytes[..GUARD], &bytes[COUNTER + 8..]];
            if guards.iter().any(|guard| guard.iter().any(|&byte| byte != GUARDED)) {
                return Err(format!("something was written beside the memory of {process:#x}"));
            }
            for (host, cells) in target.cells.iter().enumerate() {
                for (number, cell) in cells.iter().enumerate() {
                    let (offset, length) = range_of(host, number);
                    if let Some(at) = cell.wrong_byte(&bytes[offset..][..length], garbles) {
                        let whose = format!("cell {number} of host {host} at {process:#x}");
                        let there = &bytes[offset + at..][..8.min(length - at)];
                        return Err(format!("byte {at} in {whose} is {there:x?}: {cell:?}"));
                    }
                }
            }
            let value = bytes[COUNTER..][..8].first_chunk().map_or(0, |it| u64::from_ne_bytes(*it));
            let most = target.added + target.perhaps + self.lost_additions(*process);
            if value < target.added || value > most {
                let added = target.added;
                return Err(format!("{added} to {most} additions gave {value}"));
            }
        }
        Ok(())
    }

    /// Additions of processes that were killed meanwhile.
    fn lost_additions(&self, target: Process) -> u64 {
        let asked = self.one_sided.asked.iter();
        asked
            .filter(|it| it.target == target && it.cell.is_none() && !it.is_over && !it.is_wrong)
            .count() as u64
    }
}

/// Whether the processes of a run use each other's memory.
pub(super) fn has_one_sided(seed: u64) -> bool {
    !seed.is_multiple_of(3)
}
