//! `fi_av`: which peer of the engine an address of the application is, and the other way round.
//!
//! Both types (`FI_AV_TABLE`, `FI_AV_MAP`) number their entries from 0. An address that is inserted
//! twice has one entry, and is gone when it was removed twice. Peers are the engine's: all
//! endpoints of a domain know them, and several vectors of a domain may have the same.

mod calls;
mod table;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use ringrail::Peer;

pub(crate) use calls::av_open;
use table::Table;

use crate::abi::consts::{FI_ADDR_NOTAVAIL, FI_CLASS_AV};
use crate::abi::fids::fid_av;
use crate::abi::messages::fi_addr_t;
use crate::address::{Encoded, Format, Location};
use crate::domain::Domain;
use crate::eq::Eq;
use crate::errno::Errno;
use crate::fid::{Header, Object};

/// How many entries of address vectors mean a peer of a domain.
#[derive(Default)]
pub(crate) struct Peers(Mutex<HashMap<Peer, usize>>);

impl Peers {
    fn uses(&self) -> MutexGuard<'_, HashMap<Peer, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One entry more means the peer that `insert` gives. No other thread lets the peer go between
    /// that and its count: the lock is held for both.
    fn add<E>(&self, insert: impl FnOnce() -> Result<Peer, E>) -> Result<Peer, E> {
        let mut uses = self.uses();
        let peer = insert()?;
        *uses.entry(peer).or_default() += 1;
        Ok(peer)
    }

    /// One entry less means the peer; behind the last one `remove` is called, with the lock held.
    fn take(&self, peer: Peer, remove: impl FnOnce()) {
        let mut uses = self.uses();
        let Some(count) = uses.get_mut(&peer) else { return };
        *count -= 1;
        if *count == 0 {
            uses.remove(&peer);
            remove();
        }
    }
}

/// An entry, as it was inserted.
struct Entry {
    address: Encoded,
    peer: Peer,
    uses: usize,
}

/// The state that inserts change.
#[derive(Default)]
struct Entries {
    list: Vec<Option<Entry>>,
    /// Places in the list that are free.
    free: Vec<usize>,
}

impl Entries {
    /// The place that the next entry has. It is taken by [`Self::fill`] and not before.
    fn vacant(&self) -> usize {
        self.free.last().copied().unwrap_or(self.list.len())
    }

    /// Puts an entry at the place that [`Self::vacant`] gave.
    fn fill(&mut self, index: usize, entry: Entry) {
        match self.list.get_mut(index) {
            Some(place) => {
                *place = Some(entry);
                // It was the last one, and the caller holds the lock.
                let _taken = self.free.pop();
            }
            None => self.list.push(Some(entry)),
        }
    }
}

/// An address vector.
#[repr(C)]
pub(crate) struct Av {
    header: Header<fid_av>,
    domain: Arc<Domain>,
    format: Format,
    /// Inserts end as events of its queue (`FI_EVENT`).
    is_asynchronous: bool,
    eq: Mutex<Option<Arc<Eq>>>,
    table: Table,
    entries: Mutex<Entries>,
    by_peer: RwLock<HashMap<Peer, fi_addr_t>>,
}

// SAFETY: it is `repr(C)`, and begins with its header.
unsafe impl Object for Av {
    type Fid = fid_av;
    const CLASS: usize = FI_CLASS_AV;
}

impl Av {
    pub(crate) fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    /// The peer that the application calls so.
    #[inline]
    pub(crate) fn peer(&self, address: fi_addr_t) -> Option<Peer> {
        self.table.get(address)
    }

    /// Returns the application's address of a peer: `FI_ADDR_NOTAVAIL` if it has not inserted it.
    pub(crate) fn fi_addr_of(&self, peer: Peer) -> fi_addr_t {
        let by_peer = self.by_peer.read().unwrap_or_else(PoisonError::into_inner);
        by_peer.get(&peer).copied().unwrap_or(FI_ADDR_NOTAVAIL)
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn eq(&self) -> MutexGuard<'_, Option<Arc<Eq>>> {
        self.eq.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Inserts one address.
    fn insert(&self, location: Location, written: Encoded) -> Result<fi_addr_t, Errno> {
        let address = location.peer_address()?;
        let mut entries = self.entries();
        let inserted = self.domain.peers.add(|| self.domain.engine().insert_peer(&address));
        let peer = inserted.map_err(|error| {
            tracing::warn!("{address} cannot be inserted: {error}");
            Errno::of(&error)
        })?;
        // To insert a peer again means to try again.
        if let Err(error) = self.domain.engine().forget_failure(peer) {
            tracing::debug!("{address} was removed meanwhile: {error}");
        }
        let known = self.fi_addr_of(peer);
        if known != FI_ADDR_NOTAVAIL {
            if let Some(Some(entry)) = entries.list.get_mut(known as usize) {
                entry.uses += 1;
            }
            // The entry of this vector means it already, and counts once.
            self.release_peer(peer);
            return Ok(known);
        }
        let index = entries.vacant();
        if !self.table.set(index as u64, Some(peer)) {
            self.release_peer(peer);
            return Err(Errno::NOSPC);
        }
        entries.fill(index, Entry { address: written, peer, uses: 1 });
        let mut by_peer = self.by_peer.write().unwrap_or_else(PoisonError::into_inner);
        by_peer.insert(peer, index as u64);
        Ok(index as u64)
    }

    /// Removes one address.
    fn remove(&self, address: fi_addr_t) -> Result<(), Errno> {
        let mut entries = self.entries();
        let index = usize::try_from(address).map_err(|_| Errno::INVAL)?;
        let Some(Some(entry)) = entries.list.get_mut(index) else { return Err(Errno::INVAL) };
        entry.uses -= 1;
        if entry.uses > 0 {
            return Ok(());
        }
        let peer = entry.peer;
        entries.list[index] = None;
        entries.free.push(index);
        self.table.set(address, None);
        self.by_peer.write().unwrap_or_else(PoisonError::into_inner).remove(&peer);
        self.release_peer(peer);
        Ok(())
    }

    /// An entry less means the peer.
    fn release_peer(&self, peer: Peer) {
        self.domain.peers.take(peer, || {
            if let Err(error) = self.domain.engine().remove_peer(peer) {
                tracing::debug!("a peer is gone already: {error}");
            }
        });
    }

    /// An address as it was inserted.
    fn lookup(&self, address: fi_addr_t) -> Result<Encoded, Errno> {
        let entries = self.entries();
        let index = usize::try_from(address).map_err(|_| Errno::INVAL)?;
        let entry = entries.list.get(index).and_then(Option::as_ref).ok_or(Errno::INVAL)?;
        Ok(entry.address)
    }
}

impl Drop for Av {
    fn drop(&mut self) {
        let list = std::mem::take(&mut self.entries().list);
        for entry in list.into_iter().flatten() {
            // The peers stay with the engine, which ends with its domain: MPI closes a vector
            // while its last messages are on their way.
            self.domain.peers.take(entry.peer, || ());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_peer_is_inserted_and_removed_under_the_lock_of_its_count() {
        let peers = Peers::default();
        let peer = Peer::from_bits(7);
        let is_locked = || peers.0.try_lock().is_err();
        for _ in 0..2 {
            let inserted = peers.add(|| {
                assert!(is_locked(), "another vector may remove the peer meanwhile");
                Ok::<_, Errno>(peer)
            });
            assert_eq!(inserted, Ok(peer));
        }
        let removed = Cell::new(0);
        for is_last in [false, true] {
            peers.take(peer, || {
                assert!(is_locked(), "another vector may insert the peer meanwhile");
                removed.set(removed.get() + 1);
            });
            assert_eq!(removed.get(), i32::from(is_last));
        }
        assert_eq!(peers.add(|| Err(Errno::NOSPC)), Err(Errno::NOSPC));
        assert!(peers.uses().is_empty());
    }

    #[test]
    fn an_insert_that_fails_takes_no_place() {
        let mut entries = Entries::default();
        let place = ([127, 0, 0, 1], 9).into();
        let entry = || Entry {
            address: Format::Ipv4.encode_place(place),
            peer: Peer::from_bits(7),
            uses: 1,
        };
        for index in 0..2 {
            assert_eq!((entries.vacant(), entries.vacant()), (index, index));
            entries.fill(index, entry());
        }
        entries.list[0] = None;
        entries.free.push(0);
        assert_eq!((entries.vacant(), entries.vacant()), (0, 0));
        entries.fill(0, entry());
        assert_eq!((entries.vacant(), entries.list.len()), (2, 2));
    }
}
