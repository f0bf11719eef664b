//! Peers, as users name them.

use super::engine::EngineState;
use crate::types::{Address, Error, Peer};

impl EngineState {
    /// Returns the address of a peer.
    pub(crate) fn address_of(&self, peer: Peer) -> Option<Address> {
        let core = &self.core;
        core.shared().peers().get(peer.0)?;
        let name = core.shared().peers().name_of(core.sessions(), peer.0.index() as u32)?;
        Some(Address::new(name.engine, name.locators, name.endpoint))
    }

    /// Clears the failure of a session with a peer.
    pub(crate) fn forget_failure(&mut self, peer: Peer) -> Result<(), Error> {
        let session = self.core.shared().peers().get(peer.0).ok_or(Error::UnknownPeer)?.session;
        self.core.with(session, |it, _| it.reset_failure());
        Ok(())
    }

    /// Returns whether a session is established, or the error if it failed.
    pub(crate) fn connected(&mut self, peer: Peer) -> Result<bool, Error> {
        match self.core.destination(peer.0) {
            Ok(to) => {
                let known = self.core.session(to.session);
                Ok(known.is_some_and(|known| known.is_connected() && !known.ending().is_leaving()))
            }
            Err(refusal) => Err(self.error_of(Some(peer), refusal)),
        }
    }
}
