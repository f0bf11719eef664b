//! The regions of an engine, their keys, and what a peer may do by which key.
//!
//! ```text
//!  request of a peer: key, offset, length, access
//!    throttled? ── a peer that named too many wrong keys is refused unlooked
//!    index[hash of the key] ──> one line of five keys, all compared
//!    entries[position] ──────> one line: region, range, rights, peers
//!  granted: region, offset in it, name of the key
//! ```
//!
//! A look-up reads two cache lines and allocates nothing. Whether a key is unknown, was revoked, or
//! is not for this peer is not told apart. What does not come from a peer (regions, keys, their
//! revocation) may allocate.
//!
//! *Placements* are accesses that last: the kernel writes or reads a region's memory for a peer.
//! Each is counted under its key from [`Regions::begin`] to [`Regions::end`], so that whoever
//! revokes the key can wait for the last of them.

mod access;
mod index;
#[cfg(test)]
mod tests;
mod throttle;

use std::collections::HashMap;

pub use self::access::{Access, KeyError, Refusal};
use self::index::Index;
use self::throttle::Throttle;
use super::late::Hashing;
use super::table::{Id, Table};

/// Bounds of the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RegionLimits {
    /// Most regions.
    pub(crate) regions: usize,
    /// Most keys, with those that are revoked and wait for placements.
    pub(crate) keys: usize,
}

impl RegionLimits {
    /// More than any program is known to have: what there is costs memory, what there may be none.
    pub(crate) const DEFAULT: Self = Self { regions: 1 << 20, keys: 1 << 20 };
}

/// What a key is to open.
#[derive(Clone, Debug)]
pub(crate) struct KeyRequest {
    /// A chosen key; `None`: a random one.
    pub(crate) key: Option<u64>,
    /// Where the range starts in the region, in bytes. Offsets that peers give count from here.
    pub(crate) offset: u64,
    /// The length of the range, in bytes.
    pub(crate) length: u64,
    pub(crate) access: Access,
    /// The engines that may use it; `None`: all of the job.
    pub(crate) peers: Option<Box<[u64]>>,
}

/// Names a key that was added, also after it is revoked, until its last placement has ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct KeyName {
    position: u32,
    generation: u32,
}

/// What [`Regions::check`] grants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Granted {
    pub(crate) region: Id,
    /// Where the access starts in the region, in bytes.
    pub(crate) start: u64,
    /// For [`Regions::begin`], if the access lasts.
    pub(crate) key: KeyName,
}

/// How often peers were refused, by reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Violations {
    /// The key is unknown, revoked, or not for this peer.
    pub(crate) key: u64,
    /// The key does not give this right.
    pub(crate) rights: u64,
    /// Not inside the range of the key.
    pub(crate) range: u64,
    /// Unlooked, for too many wrong keys.
    pub(crate) throttled: u64,
}

/// A region of memory that keys may open.
#[derive(Debug)]
struct Region {
    length: u64,
    /// Placements under its keys, revoked ones too.
    placements: u32,
    /// No more keys; forgotten with the last placement.
    closing: bool,
    /// Some peer has its memory mapped, or had: nothing says when that ends.
    is_mapped: bool,
}

/// What a key opens: one cache line.
#[derive(Debug)]
#[repr(C, align(64))]
struct Entry {
    region: Id,
    start: u64,
    length: u64,
    /// In ascending order.
    peers: Option<Box<[u64]>>,
    key: u64,
    placements: u32,
    generation: u32,
    access: Access,
    state: State,
}

const _: () = assert!(size_of::<Entry>() == 64);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Peers may use it.
    Valid,
    /// In no index; placements of before are under way.
    Revoked,
    /// Free for another key.
    Vacant,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Regions {
    limits: RegionLimits,
    regions: Table<Region>,
    index: Index,
    entries: Vec<Entry>,
    vacant: Vec<u32>,
    /// How many placements of which session are under way by which key.
    placements: HashMap<(KeyName, u32), u32, Hashing>,
    throttle: Throttle,
    violations: Violations,
}

impl Regions {
    /// `seed` is random: nobody is to know which keys share a line of the index.
    pub(crate) fn new(limits: RegionLimits, seed: u64) -> Self {
        Self {
            limits: RegionLimits { keys: limits.keys.min(u32::MAX as usize), ..limits },
            regions: Table::new(limits.regions),
            index: Index::new(seed),
            entries: Vec::new(),
            vacant: Vec::new(),
            placements: HashMap::with_hasher(Hashing::with_seed(seed)),
            throttle: Throttle::new(seed),
            violations: Violations::default(),
        }
    }

    /// A region of `length` bytes, without keys. `None`: at the limit.
    pub(crate) fn open(&mut self, length: u64) -> Option<Id> {
        self.regions.insert(Region { length, placements: 0, closing: false, is_mapped: false }).ok()
    }

    /// Revokes all keys of a region; it takes no more. Its name is good until the last placement
    /// has ended, at once if there is none. A name that finds nothing changes
    /// nothing.
    ///
    /// It looks at all keys there are.
    pub(crate) fn close(&mut self, region: Id) {
        let Some(closing) = self.regions.get_mut(region) else { return };
        closing.closing = true;
        for position in 0..self.entries.len() as u32 {
            let entry = &self.entries[position as usize];
            if entry.region == region && entry.state == State::Valid {
                self.revoke_at(position);
            }
        }
        self.forget_closed(region);
    }

    /// Whether a region's memory may be in use: it is not closed, or placements are under way.
    #[cfg(test)]
    pub(crate) fn is_open(&self, region: Id) -> bool {
        self.regions.get(region).is_some()
    }

    /// A key for a range of a region. `random` gives random numbers of 64 bits, from a generator
    /// that nobody can predict.
    ///
    /// # Errors
    ///
    /// See [`KeyError`].
    pub(crate) fn add_key(
        &mut self,
        region: Id,
        request: KeyRequest,
        mut random: impl FnMut() -> u64,
    ) -> Result<u64, KeyError> {
        let opened = self.regions.get(region).filter(|region| !region.closing);
        let opened = opened.ok_or(KeyError::Closed)?;
        let KeyRequest { key, offset, length, access, peers } = request;
        if offset.checked_add(length).is_none_or(|end| end > opened.length) {
            return Err(KeyError::Range { offset, length, region_bytes: opened.length });
        }
        if access.is_empty() {
            return Err(KeyError::NoAccess);
        }
        if self.entries.len() - self.vacant.len() >= self.limits.keys {
            return Err(KeyError::Full { limit: self.limits.keys });
        }
        let key = match key {
            Some(key) if self.index.find(key).is_some() => return Err(KeyError::Taken { key }),
            Some(key) => key,
            None => loop {
                // The largest number stands for no key in libfabric.
                let key = random();
                if key != u64::MAX && self.index.find(key).is_none() {
                    break key;
                }
            },
        };
        let mut peers = peers;
        if let Some(peers) = &mut peers {
            peers.sort_unstable();
        }
        let position = self.vacant.last().copied().unwrap_or(self.entries.len() as u32);
        if !self.index.insert(key, position) {
            return Err(KeyError::Full { limit: self.limits.keys });
        }
        let generation = match self.vacant.pop() {
            Some(position) => self.entries[position as usize].generation,
            None => 0,
        };
        let state = State::Valid;
        let start = offset;
        let entry =
            Entry { region, start, length, peers, key, placements: 0, generation, access, state };
        match self.entries.get_mut(position as usize) {
            Some(vacant) => *vacant = entry,
            None => self.entries.push(entry),
        }
        Ok(key)
    }

    /// What a key opens, for a peer that wants to map it: the region, and the range in it. Who maps
    /// memory can do anything to it, so the key has to allow everything.
    ///
    /// # Errors
    ///
    /// As for [`Self::check`].
    pub(crate) fn check_whole(
        &mut self,
        peer: u64,
        key: u64,
        now_ns: u64,
    ) -> Result<(Granted, u64), Refusal> {
        let all = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let granted = self.check(peer, key, 0, 0, all, now_ns)?;
        match self.entries[granted.key.position as usize].length {
            // There is no mapping of nothing.
            0 => Err(Refusal::Range),
            length => Ok((granted, length)),
        }
    }

    /// A peer has a region mapped, for as long as it likes.
    pub(crate) fn note_mapped(&mut self, region: Id) {
        if let Some(region) = self.regions.get_mut(region) {
            region.is_mapped = true;
        }
    }

    /// Whether some peer has mapped a region, whatever became of its key.
    pub(crate) fn is_mapped(&self, region: Id) -> bool {
        self.regions.get(region).is_some_and(|region| region.is_mapped)
    }

    /// Makes a key unknown. `None`: it was. Placements that are under way go on: the name says
    /// (`is_busy`) when the last has ended.
    pub(crate) fn revoke(&mut self, key: u64) -> Option<KeyName> {
        let position = self.index.find(key)?;
        let generation = self.entries[position as usize].generation;
        self.revoke_at(position);
        Some(KeyName { position, generation })
    }

    fn revoke_at(&mut self, position: u32) {
        let entry = &mut self.entries[position as usize];
        entry.state = State::Revoked;
        self.index.remove(entry.key);
        self.forget_unused(position);
    }

    /// Whether a peer may access `length` bytes at `offset` of what `key` opens. `access` is all
    /// that the operation needs.
    ///
    /// # Errors
    ///
    /// See [`Refusal`]; each is counted ([`Self::violations`]).
    #[inline]
    pub(crate) fn check(
        &mut self,
        peer: u64,
        key: u64,
        offset: u64,
        length: u64,
        access: Access,
        now_ns: u64,
    ) -> Result<Granted, Refusal> {
        if self.throttle.is_any() && self.throttle.is_throttled(peer, now_ns) {
            self.violations.throttled += 1;
            return Err(Refusal::Throttled);
        }
        let found =
            self.index.find(key).map(|position| (position, &self.entries[position as usize]));
        let Some((position, entry)) = found.filter(|(_, entry)| entry.is_for(peer)) else {
            return self.wrong_key(peer, now_ns);
        };
        if !entry.access.contains(access) {
            self.violations.rights += 1;
            return Err(Refusal::Rights);
        }
        let is_inside = offset <= entry.length && length <= entry.length - offset;
        if !is_inside && !planted!(SkipRange) {
            self.violations.range += 1;
            return Err(Refusal::Range);
        }
        let key = KeyName { position, generation: entry.generation };
        // Inside the region, whose length is a `u64`.
        Ok(Granted { region: entry.region, start: entry.start + offset, key })
    }

    /// The same of the common case: `None` is no refusal, but that [`Self::check`] has to say.
    #[inline]
    pub(crate) fn grant(
        &self,
        peer: u64,
        key: u64,
        offset: u64,
        length: u64,
        access: Access,
    ) -> Option<(Id, u64)> {
        let entry = self.entries.get(self.index.find(key)? as usize)?;
        let is_inside = offset <= entry.length && length <= entry.length - offset;
        let is_granted = !self.throttle.is_any()
            && is_inside
            && entry.access.contains(access)
            && entry.is_for(peer);
        is_granted.then(|| (entry.region, entry.start + offset))
    }

    #[cold]
    fn wrong_key(&mut self, peer: u64, now_ns: u64) -> Result<Granted, Refusal> {
        self.violations.key += 1;
        self.throttle.wrong_key(peer, now_ns);
        Err(Refusal::Key)
    }

    /// Which region a valid key opens.
    pub(crate) fn region_of(&self, key: u64) -> Option<Id> {
        let position = self.index.find(key)?;
        self.entries.get(position as usize).map(|entry| entry.region)
    }

    /// The region of a key, which may be revoked, while something by it is under way.
    pub(crate) fn region_named(&self, key: KeyName) -> Option<Id> {
        let entry = self.entries.get(key.position as usize)?;
        (entry.generation == key.generation).then_some(entry.region)
    }

    /// How often peers were refused.
    pub(crate) fn violations(&self) -> Violations {
        self.violations
    }

    /// A placement of a session begins, under a key that [`Self::check`] has just granted.
    /// `false`: the name finds nothing that is valid, and the placement must not begin.
    pub(crate) fn begin(&mut self, key: KeyName, session: u32) -> bool {
        let Some(entry) = self.entries.get_mut(key.position as usize) else { return false };
        if entry.generation != key.generation || entry.state != State::Valid {
            return false;
        }
        entry.placements += 1;
        if let Some(region) = self.regions.get_mut(entry.region) {
            region.placements += 1;
        }
        *self.placements.entry((key, session)).or_default() += 1;
        true
    }

    /// A placement has ended that began: nothing accesses the memory for it any more. What never
    /// began changes nothing.
    pub(crate) fn end(&mut self, key: KeyName, session: u32) {
        let Some(count) = self.placements.get_mut(&(key, session)) else {
            debug_assert!(false, "no placement of session {session} under {key:?}");
            return;
        };
        *count -= 1;
        if *count == 0 {
            self.placements.remove(&(key, session));
        }
        let entry = &mut self.entries[key.position as usize];
        entry.placements -= 1;
        let region = entry.region;
        self.forget_unused(key.position);
        if let Some(region) = self.regions.get_mut(region) {
            region.placements -= 1;
        }
        self.forget_closed(region);
    }

    /// Whether placements under a key are under way.
    #[cfg(test)]
    pub(crate) fn is_busy(&self, key: KeyName) -> bool {
        let entry = self.entries.get(key.position as usize);
        entry.is_some_and(|entry| entry.generation == key.generation && entry.placements > 0)
    }

    /// The sessions whose placements under a key are under way, in no order. It looks at all
    /// placements there are.
    pub(crate) fn busy(&self, key: KeyName) -> impl Iterator<Item = u32> {
        let of_key = move |(name, session): &(KeyName, u32)| (*name == key).then_some(*session);
        self.placements.keys().filter_map(of_key)
    }

    /// The sessions whose placements under any key of a region are under way, in no order; one may
    /// come several times. It looks at all placements there are.
    pub(crate) fn busy_region(&self, region: Id) -> impl Iterator<Item = u32> {
        let is_of = move |name: &KeyName| self.entries[name.position as usize].region == region;
        self.placements.keys().filter(move |(name, _)| is_of(name)).map(|&(_, session)| session)
    }

    /// Frees what a revoked key without placements occupies.
    fn forget_unused(&mut self, position: u32) {
        let entry = &mut self.entries[position as usize];
        if entry.state == State::Revoked && entry.placements == 0 {
            entry.state = State::Vacant;
            entry.generation = entry.generation.wrapping_add(1);
            entry.peers = None;
            self.vacant.push(position);
        }
    }

    fn forget_closed(&mut self, region: Id) {
        if self.regions.get(region).is_some_and(|it| it.closing && it.placements == 0) {
            self.regions.remove(region);
        }
    }
}

impl Entry {
    /// Whether a peer is one of those that may use it.
    #[inline]
    fn is_for(&self, peer: u64) -> bool {
        self.peers.as_ref().is_none_or(|peers| peers.binary_search(&peer).is_ok())
    }
}
