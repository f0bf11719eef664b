//! Regions: memory that peers may access, and their keys.

use std::io;
use std::sync::Arc;

use rand::rngs::{StdRng, SysRng};
use rand::{RngExt, SeedableRng};

use super::engine::EngineState;
use super::registered_memory::RegionCounts;
use crate::memory::Window;
use crate::proto::regions::{KeyName, KeyRequest};
use crate::proto::table::Id;
use crate::refused_call::refused;
use crate::types::{Address, Error, Peer, TimeOut, TimeOutOutcome};

impl EngineState {
    /// Registers this memory as `region`.
    pub(crate) fn lend_region(
        &mut self,
        length: u64,
        window: Arc<Window>,
        counts: Arc<RegionCounts>,
    ) -> Result<Id, Error> {
        let region = self.core.shared_mut().regions_mut().open(length);
        let region = region.ok_or(Error::Limit("as many regions as one engine may have"))?;
        self.completions.regions_mut().insert(region, window, counts);
        Ok(region)
    }

    /// Returns the engines of peers.
    pub(crate) fn engines_of(&self, peers: &[Peer]) -> Result<Box<[u64]>, Error> {
        let core = &self.core;
        let engine_of = |peer: &Peer| {
            let remote = core.shared().peers().get(peer.0).ok_or(Error::UnknownPeer)?;
            let session = core.session(remote.session).ok_or(Error::UnknownPeer)?;
            Ok(session.peer().id())
        };
        peers.iter().map(engine_of).collect()
    }

    /// Returns a handle of each peer with one-sided operations of this engine.
    pub(crate) fn peers_operated_on(&self) -> Vec<Peer> {
        self.core.peers_operated_on().map(Peer).collect()
    }

    /// Adds a key to a region.
    pub(crate) fn add_key(&mut self, region: Id, request: KeyRequest) -> Result<u64, Error> {
        // The generators that a process has are the same in all of its children of `fork`.
        let generator = request.key.is_none().then(|| StdRng::try_from_rng(&mut SysRng));
        let mut generator = generator
            .transpose()
            .map_err(|error| refused("getrandom")(io::Error::from(error)))
            .map_err(|error| Error::system("no key can be made", error))?;
        let random = || generator.as_mut().map_or(0, |generator| generator.random());
        let key = self.core.shared_mut().regions_mut().add_key(region, request, random);
        key.map_err(|error| Error::misuse(error.to_string()))
    }

    /// Revokes a key; returns its name while an access by it is in progress.
    pub(crate) fn revoke_key(&mut self, region: Id, key: u64) -> Result<KeyName, Error> {
        let regions = self.core.shared_mut().regions_mut();
        let known = regions.region_of(key) == Some(region);
        match known.then(|| regions.revoke(key)).flatten() {
            Some(name) => Ok(name),
            None => Err(Error::misuse("this is no key of this region, or it was revoked before")),
        }
    }

    /// Returns a session whose operations use memory of a region: by a revoked key, or by any.
    pub(crate) fn user_of_region(&self, region: Id, by: Option<KeyName>) -> Option<u32> {
        let regions = self.core.shared().regions();
        if planted!(ForgetLent) {
            return None;
        }
        match by {
            Some(key) => regions.busy(key).next(),
            None => regions.busy_region(region).next(),
        }
    }

    /// Returns the error that names the users of a region's memory.
    pub(crate) fn busy_region(&self, region: Id, by: Option<KeyName>) -> Error {
        let user = self.user_of_region(region, by);
        let session = user.and_then(|slot| self.core.session(slot));
        let Some(session) = session else {
            return TimeOut::new("the wait for a region", None, TimeOutOutcome::GoesOn).into();
        };
        let address = Address::new(session.peer().id(), *session.peer().locators(), 0);
        Error::Busy { address: Box::new(address) }
    }
}
