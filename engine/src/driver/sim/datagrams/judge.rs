//! What no engine may send, whatever the network does to it.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;

use super::super::net::Net;
use super::Datagram;
use crate::wire::packet::{PACKET_TAG_BYTES, Packet};

/// Remembers what was sent: a run has fewer packets than numbers have low halves.
#[derive(Debug, Default)]
pub(super) struct Judge {
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
    pub(crate) fn judge_datagrams(&mut self) {
        self.air.judge.get_or_insert_default();
    }

    /// Looks at what somebody sends who is no host.
    pub(super) fn note_injected(&mut self, bytes: &[u8]) {
        let Some(judge) = &mut self.air.judge else { return };
        if let Some(place) = judge.questions.get(bytes) {
            judge.relays.insert(*place);
        }
    }

    /// Looks at what `host` sends.
    pub(super) fn judge(&mut self, host: usize, datagram: &Datagram) {
        let Some(mut judge) = self.air.judge.take() else { return };
        if let Err(what) = self.verdict(&mut judge, host, datagram) {
            self.violation(format!("host {host} sends {datagram:?}: {what}"));
        }
        self.air.judge = Some(judge);
    }

    fn verdict(&self, judge: &mut Judge, host: usize, datagram: &Datagram) -> Result<(), String> {
        let length = datagram.length.saturating_sub(PACKET_TAG_BYTES);
        let packet = Packet::decode(&datagram.bytes[..length]).map_err(|it| it.to_string())?;
        let (number, session) = (packet.header.number.get(), packet.header.session.get());
        let path = packet.header.path.get();
        let target = self.air.routes.get(&datagram.to).map(|route| route.at.host);
        if let Some(before) = judge.numbers.insert((session, path, host), number)
            && number <= before
        {
            return Err(format!("packet {number} of its session after {before}"));
        }
        let meant = *judge.targets.entry((session, host)).or_insert(target);
        if target == meant {
            return Ok(());
        }
        // Questions, which carry nothing, go wherever somebody pretends to be.
        let place = (session, host, datagram.to);
        if packet.payload.is_empty() {
            judge.questions.insert(datagram.content().to_vec(), place);
        } else if !judge.relays.contains(&place) {
            return Err(format!("content for host {meant:?} goes to host {target:?} unasked"));
        }
        Ok(())
    }
}
