//! Cross-memory reads between two engines of one simulated host machine.

use std::io;

use super::lane;
use super::net::Net;
use crate::driver::shm::cma::AttachedProcess;
use crate::driver::traits::CmaLocation;
use crate::memory::Shape;

impl Net {
    /// Reads a part of a message from the memory of a session's peer.
    ///
    /// # Safety
    ///
    /// The memory behind `into` is live and writable, and nothing else accesses these bytes of it
    /// during the call.
    pub(super) unsafe fn read_peer_memory(
        &mut self,
        (host, session): (usize, u64),
        source: CmaLocation,
        into: &Shape,
        offset: usize,
        length: usize,
    ) -> io::Result<()> {
        let one_in = self.local_peers.impairments.unreadable_one_in;
        let is_refused = self.hosts[host].random.rings.one_in(one_in);
        let is_open = self.local_peers.has_rings(host, session);
        let cookie = self.local_peers.cookie_of_peer(host, session);
        let cookie = cookie.filter(|_| is_open && !is_refused);
        let cookie = cookie.ok_or_else(|| io::Error::other("refused by the simulation"))?;
        let address = cookie.resolve(source.address);
        let address = address.ok_or_else(|| io::Error::other("the address was never announced"))?;
        let source = CmaLocation { address, ..source };
        let spans = lane::spans_of(into, offset, length);
        self.take_memory(&spans, true);
        // SAFETY: the caller's contract.
        let read =
            unsafe { AttachedProcess::own_process(&cookie).read(source, into, offset, length) };
        self.release_memory(&spans, false);
        self.local_peers.count_memory_read(read.is_ok());
        read
    }
}
