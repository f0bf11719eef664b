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

    fn add(&self, peer: Peer) {
        *self.uses().entry(peer).or_default() += 1;
    }

    /// Whether that was the last entry.
    fn take(&self, peer: Peer) -> bool {
        let mut uses = self.uses();
        let Some(count) = uses.get_mut(&peer) else { return false };
        *count -= 1;
        let is_last = *count == 0;
        if is_last {
            uses.remove(&peer);
        }
        is_last
    }
}

/// An entry, as it was inserted.
struct Entry {
    address: Encoded,
    peer: Peer,
    uses: usize,
}

/// What changes with an insert.
#[derive(Default)]
struct Entries {
    list: Vec<Option<Entry>>,
    /// Places in the list that are free.
    free: Vec<usize>,
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
    /// The peer that the application calls so.
    #[inline]
    pub(crate) fn peer(&self, address: fi_addr_t) -> Option<Peer> {
        self.table.get(address)
    }

    /// What the application calls a peer: `FI_ADDR_NOTAVAIL` if it has not inserted it.
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
        let peer = self.domain.engine().insert(&address).map_err(|error| {
            tracing::warn!("{address} cannot be inserted: {error}");
            Errno::of(&error)
        })?;
        let known = self.fi_addr_of(peer);
        if known != FI_ADDR_NOTAVAIL {
            if let Some(Some(entry)) = entries.list.get_mut(known as usize) {
                entry.uses += 1;
            }
            return Ok(known);
        }
        let index = match entries.free.pop() {
            Some(index) => index,
            None => {
                entries.list.push(None);
                entries.list.len() - 1
            }
        };
        if !self.table.set(index as u64, Some(peer)) {
            return Err(Errno::NOSPC);
        }
        entries.list[index] = Some(Entry { address: written, peer, uses: 1 });
        self.domain.peers.add(peer);
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
        self.let_go(peer);
        Ok(())
    }

    /// An entry less means the peer.
    fn let_go(&self, peer: Peer) {
        if self.domain.peers.take(peer)
            && let Err(error) = self.domain.engine().remove(peer)
        {
            tracing::debug!("a peer is gone already: {error}");
        }
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
            self.domain.peers.take(entry.peer);
        }
    }
}
