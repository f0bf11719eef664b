//! The regions of an engine, their keys, and the permitted accesses of peers.
//!
//! ```text
//!  request of a peer: key, offset, length, access
//!    throttled? ── after too many wrong keys a peer is refused without a look-up
//!    index[hash of the key] ──> one line of five keys, all compared
//!    entries[position] ──────> one line: region, range, rights, peers
//!  granted: region, offset in it, name of the key
//! ```
//!
//! A look-up reads two cache lines and allocates nothing. Whether a key is unknown, was revoked, or
//! is not for this peer is not distinguished. Operations that are not on behalf of a peer (regions,
//! keys, their revocation) may allocate.
//!
//! *Placements* are accesses that last: the kernel writes or reads a region's memory for a peer.
//! Each is counted under its key from [`Regions::begin`] to [`Regions::end`], so that a revocation
//! can wait for the last of them.

mod access;
mod index;
#[cfg(test)]
mod tests;
mod throttle;

use std::collections::HashMap;

pub use self::access::{Access, KeyError, Refusal};
use self::index::Index;
use self::throttle::Throttle;
use super::session::late::Hashing;
use super::table::{Id, Table};

/// Limits of the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RegionLimits {
    /// Maximum number of regions.
    pub(crate) regions: usize,
    /// Maximum number of keys, those included that are revoked and wait for placements.
    pub(crate) keys: usize,
}

impl RegionLimits {
    /// More than any program is known to use; unused entries cost no memory.
    pub(crate) const DEFAULT: Self = Self { regions: 1 << 20, keys: 1 << 20 };
}

/// A key to be created.
#[derive(Clone, Debug)]
pub(crate) struct KeyRequest {
    /// A chosen key; `None`: a random one.
    pub(crate) key: Option<u64>,
    /// Start of the range in the region, in bytes. Offsets that peers give count from here.
    pub(crate) offset: u64,
    /// The length of the range, in bytes.
    pub(crate) length: u64,
    pub(crate) access: Access,
    /// The engines that may use it; `None`: all of the job.
    pub(crate) peers: Option<Box<[u64]>>,
}

/// Identifies a key, also after it is revoked, until its last placement has ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct KeyName {
    position: u32,
    generation: u32,
}

/// What [`Regions::check`] grants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Granted {
    pub(crate) region: Id,
    /// Start of the access in the region, in bytes.
    pub(crate) start: u64,
    /// For [`Regions::begin`], if the access lasts.
    pub(crate) key: KeyName,
}

/// Numbers of refusals, by reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Violations {
    /// The key is unknown, revoked, or not for this peer.
    pub(crate) key: u64,
    /// The key does not give this right.
    pub(crate) rights: u64,
    /// Not inside the range of the key.
    pub(crate) range: u64,
    /// Not checked, after too many wrong keys.
    pub(crate) throttled: u64,
}

/// A region of memory that keys refer to.
#[derive(Debug)]
struct Region {
    length: u64,
    /// Placements under its keys, revoked ones included.
    placements: u32,
    /// It takes no more keys; removed with the last placement.
    closing: bool,
}

/// Range and rights of a key: one cache line.
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
    /// In no index; earlier placements are in progress.
    Revoked,
    /// Free for another key.
    Vacant,
}

/// Regions and keys; see the module.
#[derive(Debug)]
pub(crate) struct Regions {
    limits: RegionLimits,
    regions: Table<Region>,
    index: Index,
    entries: Vec<Entry>,
    vacant: Vec<u32>,
    /// Number of placements in progress, by key and session.
    placements: HashMap<(KeyName, u32), u32, Hashing>,
    throttle: Throttle,
    violations: Violations,
}

impl Regions {
    /// Creates an empty table. `seed` is random, so that no peer knows which keys share a line of
    /// the index.
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

    /// Adds a region of `length` bytes, without keys. `None`: at the limit.
    pub(crate) fn open(&mut self, length: u64) -> Option<Id> {
        self.regions.insert(Region { length, placements: 0, closing: false }).ok()
    }

    /// Revokes all keys of a region; it takes no more. Its id is valid until the last placement has
    /// ended, or ends at once if there is none. An unknown id has no effect.
    ///
    /// Scans all keys.
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

    /// Returns whether a region's memory may be in use: it is not closed, or placements are in
    /// progress.
    #[cfg(test)]
    pub(crate) fn is_open(&self, region: Id) -> bool {
        self.regions.get(region).is_some()
    }

    /// Adds a key for a range of a region. `random` returns unpredictable random numbers of 64
    /// bits.
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
                // The largest number means no key in libfabric.
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
            Some(vacant) => {
                debug_assert!(vacant.state == State::Vacant, "no key uses a vacant entry");
                debug_assert_eq!(vacant.placements, 0, "placements end before their entry");
                *vacant = entry;
            }
            None => self.entries.push(entry),
        }
        debug_assert_eq!(
            self.index.find(key),
            Some(position),
            "the index has the positions of all valid keys"
        );
        Ok(key)
    }

    /// Revokes a key. `None`: it is unknown. Placements in progress continue: `is_busy` of the
    /// returned name shows when the last has ended.
    pub(crate) fn revoke(&mut self, key: u64) -> Option<KeyName> {
        let position = self.index.find(key)?;
        let generation = self.entries[position as usize].generation;
        self.revoke_at(position);
        Some(KeyName { position, generation })
    }

    fn revoke_at(&mut self, position: u32) {
        let entry = &mut self.entries[position as usize];
        debug_assert!(entry.state == State::Valid, "a key is revoked once");
        entry.state = State::Revoked;
        self.index.remove(entry.key);
        self.forget_unused(position);
    }

    /// Checks whether a peer may access `length` bytes at `offset` of the range of `key`. `access`
    /// is all that the operation needs.
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

    /// Checks the common case: `None` is no refusal, but that [`Self::check`] has to decide.
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

    /// Returns the region of a valid key.
    pub(crate) fn region_of(&self, key: u64) -> Option<Id> {
        self.index.find(key).map(|position| self.entries[position as usize].region)
    }

    /// Returns the region of a key, which may be revoked, while an access by it is in progress.
    pub(crate) fn region_named(&self, key: KeyName) -> Option<Id> {
        let entry = &self.entries[key.position as usize];
        (entry.generation == key.generation).then_some(entry.region)
    }

    /// Returns the numbers of refusals.
    pub(crate) fn violations(&self) -> Violations {
        self.violations
    }

    /// Begins a placement of a session, under a key that [`Self::check`] has just granted. Returns
    /// `false` if the key is not valid any more, and the placement must not begin.
    pub(crate) fn begin(&mut self, key: KeyName, session: u32) -> bool {
        // Entries stay, and so does the position of each name.
        let entry = &mut self.entries[key.position as usize];
        if entry.generation != key.generation || entry.state != State::Valid {
            return false;
        }
        entry.placements += 1;
        let region = self.regions.get_mut(entry.region);
        if let Some(region) = debug_assert_some!(region, "a valid key is of an open region") {
            region.placements += 1;
            debug_assert!(region.placements >= entry.placements, "a region has those of its keys");
        }
        *self.placements.entry((key, session)).or_default() += 1;
        true
    }

    /// Ends a placement: nothing accesses the memory for it any more. A placement that never began
    /// has no effect.
    pub(crate) fn end(&mut self, key: KeyName, session: u32) {
        let count = self.placements.get_mut(&(key, session));
        let Some(count) = debug_assert_some!(count, "a placement ends once") else { return };
        *count -= 1;
        if *count == 0 {
            self.placements.remove(&(key, session));
        }
        let entry = &mut self.entries[key.position as usize];
        debug_assert_eq!(entry.generation, key.generation, "an entry in use is not given away");
        entry.placements -= 1;
        let region = entry.region;
        self.forget_unused(key.position);
        let open = self.regions.get_mut(region);
        if let Some(open) = debug_assert_some!(open, "a region stays while it is accessed") {
            open.placements -= 1;
        }
        self.forget_closed(region);
    }

    /// Returns whether placements under a key are in progress.
    #[cfg(test)]
    pub(crate) fn is_busy(&self, key: KeyName) -> bool {
        let entry = self.entries.get(key.position as usize);
        entry.is_some_and(|entry| entry.generation == key.generation && entry.placements > 0)
    }

    /// Returns the sessions with placements under a key in progress, unordered. Scans all
    /// placements.
    pub(crate) fn busy(&self, key: KeyName) -> impl Iterator<Item = u32> {
        let of_key = move |(name, session): &(KeyName, u32)| (*name == key).then_some(*session);
        self.placements.keys().filter_map(of_key)
    }

    /// Returns the sessions with placements under any key of a region in progress, unordered,
    /// possibly repeated. Scans all placements.
    pub(crate) fn busy_region(&self, region: Id) -> impl Iterator<Item = u32> {
        let is_of = move |name: &KeyName| self.entries[name.position as usize].region == region;
        self.placements.keys().filter(move |(name, _)| is_of(name)).map(|&(_, session)| session)
    }

    /// Frees the entry of a revoked key without placements.
    fn forget_unused(&mut self, position: u32) {
        let entry = &mut self.entries[position as usize];
        if entry.state == State::Revoked && entry.placements == 0 {
            entry.state = State::Vacant;
            entry.generation = entry.generation.wrapping_add(1);
            entry.peers = None;
            self.vacant.push(position);
        }
    }

    /// Checks that keys, placements and regions agree.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn check_counts(&self) {
        let count = |state| self.entries.iter().filter(|entry| entry.state == state).count();
        assert_eq!(count(State::Vacant), self.vacant.len(), "vacant entries are listed");
        assert_eq!(count(State::Valid), self.index.len(), "valid keys are in the index");
        let sum: u32 = self.placements.values().sum();
        let of_entries: u32 = self.entries.iter().map(|entry| entry.placements).sum();
        let of_regions: u32 = self.regions.iter().map(|(_, region)| region.placements).sum();
        assert_eq!((sum, sum), (of_entries, of_regions), "placements are counted alike");
        for (_, region) in self.regions.iter() {
            assert!(!region.closing || region.placements > 0, "a closed region is accessed");
        }
        self.throttle.check();
    }

    fn forget_closed(&mut self, region: Id) {
        if self.regions.get(region).is_some_and(|it| it.closing && it.placements == 0) {
            self.regions.remove(region);
        }
    }
}

impl Entry {
    /// Returns whether a peer is one of those that may use it.
    #[inline]
    fn is_for(&self, peer: u64) -> bool {
        self.peers.as_ref().is_none_or(|peers| peers.binary_search(&peer).is_ok())
    }
}
