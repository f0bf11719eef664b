//! What no engine may send, whatever the network does to it.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;

use super::super::net::Net;
use super::Datagram;
use crate::wire::packet::{PACKET_TAG_BYTES, Packet};

/// Remembers what was sent: a run has fewer packets than numbers have low halves.
#[derive(Debug, Default)]
pub(super) struct DatagramChecker {
    /// Number of the last packet that a host sent by a path of a session.
    numbers: HashMap<(u64, u16, usize), u32>,
    /// The host that the first packet of a session went to, which is by the first path: the first
    /// by another one may be a question to who pretends to be the peer.
    targets: HashMap<(u64, usize), Option<usize>>,
    /// Questions to addresses that the peer does not have: the datagram, and who asked where.
    questions: HashMap<Vec<u8>, (u64, usize, SocketAddr)>,
    /// Addresses that such a question came back from: somebody passes packets on there, as a
    /// translator does, and cannot be told from one.
    relays: HashSet<(u64, usize, SocketAddr)>,
}

impl Net {
    /// Packets are looked at from now on: their numbers rise, for a number that is used twice
    /// gives a tag away, and content goes nowhere but to the host that the session is with.
    ///
    /// RR-PKT-1, RR-PATH-4.
    pub(crate) fn check_datagrams(&mut self) {
        self.datagram_net.checker.get_or_insert_default();
    }

    /// Looks at what somebody sends who is no host.
    pub(super) fn note_injected(&mut self, bytes: &[u8]) {
        let Some(checker) = &mut self.datagram_net.checker else { return };
        if let Some(place) = checker.questions.get(bytes) {
            checker.relays.insert(*place);
        }
    }

    /// Looks at what `host` sends.
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
        // Questions, which carry nothing, go wherever somebody pretends to be.
        let place = (session, host, datagram.to);
        if packet.payload.is_empty() {
            checker.questions.insert(datagram.content().to_vec(), place);
        } else if !checker.relays.contains(&place) {
            return Err(format!("content for host {meant:?} goes to host {target:?} unasked"));
        }
        Ok(())
    }
}
