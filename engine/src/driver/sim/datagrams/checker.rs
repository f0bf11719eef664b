//! Invariants of sent datagrams, whatever the network does.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;

use super::super::net::Net;
use super::Datagram;
use crate::wire::packet::{PACKET_TAG_BYTES, Packet};

/// State of the checks. (Low halves of packet numbers are unique within a run.)
#[derive(Debug, Default)]
pub(super) struct DatagramChecker {
    /// Number of the last packet that a host sent by a path of a session.
    numbers: HashMap<(u64, u16, usize), u32>,
    /// The host that the first packet of a session was sent to, by its first path. The first packet
    /// of another path may probe an address claimed by an attacker.
    targets: HashMap<(u64, usize), Option<usize>>,
    /// Probes to addresses that the peer does not have: the datagram, its session, sender and
    /// destination.
    questions: HashMap<Vec<u8>, (u64, usize, SocketAddr)>,
    /// Addresses from which such a probe came back: an attacker forwards packets there, like a NAT,
    /// and is indistinguishable from one.
    relays: HashSet<(u64, usize, SocketAddr)>,
}

impl Net {
    /// Enables the checks: packet numbers rise, as a reused number weakens the authentication, and
    /// content is sent only to the host of the session's peer.
    ///
    /// RR-PKT-1, RR-PATH-4.
    pub(crate) fn check_datagrams(&mut self) {
        self.datagram_net.checker.get_or_insert_default();
    }

    /// Inspects a datagram that was injected.
    pub(super) fn note_injected(&mut self, bytes: &[u8]) {
        let Some(checker) = &mut self.datagram_net.checker else { return };
        if let Some(place) = checker.questions.get(bytes) {
            checker.relays.insert(*place);
        }
    }

    /// Checks a datagram sent by `host`.
    pub(super) fn check(&mut self, host: usize, datagram: &Datagram) {
        let Some(mut checker) = self.datagram_net.checker.take() else { return };
        if let Err(what) = self.verdict(&mut checker, host, datagram) {
            self.violation(format!("host {host} sends {datagram:?}: {what}"));
        }
        self.datagram_net.checker = Some(checker);
    }

    fn verdict(
        &self,
        checker: &mut DatagramChecker,
        host: usize,
        datagram: &Datagram,
    ) -> Result<(), String> {
        let length = datagram.length.saturating_sub(PACKET_TAG_BYTES);
        let packet = Packet::decode(&datagram.bytes[..length]).map_err(|it| it.to_string())?;
        let (number, session) = (packet.header.number.get(), packet.header.session.get());
        let path = packet.header.path.get();
        let target = self.datagram_net.routes.get(&datagram.to).map(|route| route.at.host);
        if let Some(before) = checker.numbers.insert((session, path, host), number)
            && number <= before
        {
            return Err(format!("packet {number} of its session after {before}"));
        }
        let meant = *checker.targets.entry((session, host)).or_insert(target);
        if target == meant {
            return Ok(());
        }
        // Probes, which carry no content, may be sent to any claimed address.
        let place = (session, host, datagram.to);
        if packet.payload.is_empty() {
            checker.questions.insert(datagram.content().to_vec(), place);
        } else if !checker.relays.contains(&place) {
            return Err(format!("content for host {meant:?} goes to host {target:?} unasked"));
        }
        Ok(())
    }
}
