//! The peer's address on a path.
//!
//! A packet from another address may be from an attacker, who sent a copy of it first. So the new
//! address is only a candidate until it has answered a probe. RR-PATH-4.

use std::net::{IpAddr, SocketAddr};

/// Time within which a new address of the peer must answer before another one is probed.
const QUESTION_NS: u64 = 100_000_000;

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct PeerAddress {
    /// UDP port of the peer, as announced.
    announced_port: u16,
    /// Destination of datagrams.
    current: SocketAddr,
    /// Previous destination, once the peer has moved.
    fallback: Option<Box<SocketAddr>>,
    candidate: Option<Box<CandidateAddress>>,
}

/// A possible new address of the peer, from which an authentic packet arrived.
#[derive(Clone, Copy, Debug)]
struct CandidateAddress {
    address: SocketAddr,
    since_ns: u64,
    /// Number of the probe sent there.
    probe: Option<u64>,
}

impl PeerAddress {
    /// Creates the address of a peer that has announced it.
    pub(super) fn new(current: SocketAddr) -> Self {
        Self { announced_port: current.port(), current, fallback: None, candidate: None }
    }

    /// Returns the destination of datagrams.
    #[inline]
    pub(super) fn current(&self) -> SocketAddr {
        self.current
    }

    /// Returns whether this is the destination of datagrams.
    #[inline(always)]
    pub(super) fn is_current(&self, address: &SocketAddr) -> bool {
        self.current == *address
    }

    /// Returns the source address of the peer's datagrams.
    pub(super) fn ip(&self) -> IpAddr {
        self.current.ip()
    }

    /// Returns the UDP port of the peer, as announced.
    pub(super) fn announced_port(&self) -> u16 {
        self.announced_port
    }

    /// Returns whether the peer is, or was, at an address.
    pub(super) fn is_known(&self, from: SocketAddr) -> bool {
        from == self.current || self.fallback.as_deref() == Some(&from)
    }

    /// Moves to an address from which a packet came, if that answers the probe sent there:
    /// `is_answered` is called with the number of the probe. Returns whether it does.
    pub(super) fn validate(
        &mut self,
        from: SocketAddr,
        is_answered: impl FnOnce(u64) -> bool,
    ) -> bool {
        let candidate = self.candidate.as_ref().filter(|candidate| candidate.address == from);
        let is_answer = candidate.and_then(|candidate| candidate.probe).is_some_and(is_answered);
        if is_answer {
            self.fallback = Some(Box::new(std::mem::replace(&mut self.current, from)));
            self.candidate = None;
        }
        is_answer
    }

    /// Handles the source address of a packet with a higher number than all before it.
    pub(super) fn note_source(&mut self, now_ns: u64, from: SocketAddr) {
        let is_recent = |it: &CandidateAddress| now_ns.saturating_sub(it.since_ns) < QUESTION_NS;
        let is_asked = self.candidate.as_deref().is_some_and(is_recent);
        if planted!(MoveUnasked) {
            self.current = from;
        }
        if from != self.current && !is_asked {
            let candidate = CandidateAddress { address: from, since_ns: now_ns, probe: None };
            self.candidate = Some(Box::new(candidate));
        }
    }

    /// Returns whether there is a candidate.
    #[inline]
    pub(super) fn has_candidate(&self) -> bool {
        self.candidate.is_some()
    }

    /// Returns whether a probe is to be sent to the candidate.
    pub(super) fn is_probe_due(&self) -> bool {
        self.candidate.as_ref().is_some_and(|candidate| candidate.probe.is_none())
    }

    /// Notes the number of the probe that is sent to the candidate. Returns its destination.
    pub(super) fn handle_probe_sent(&mut self, number: u64) -> SocketAddr {
        let candidate = debug_assert_some!(&mut self.candidate, "the probe was due");
        candidate.as_mut().map_or(self.current, |candidate| {
            candidate.probe = Some(number);
            candidate.address
        })
    }

    /// Changes the current address and the previous one, if there is one: one of them may answer.
    pub(super) fn swap(&mut self) {
        if let Some(fallback) = self.fallback.as_deref_mut() {
            std::mem::swap(&mut self.current, fallback);
        }
    }

    /// Returns the current and the previous address.
    #[cfg(test)]
    pub(super) fn both(&self) -> [SocketAddr; 2] {
        [self.current, self.fallback.as_deref().copied().unwrap_or(self.current)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(last: u8) -> SocketAddr {
        ([192, 0, 2, last], 1).into()
    }

    /// RR-PATH-4
    #[test]
    fn address_changes_once_its_probe_is_answered() {
        let mut peer = PeerAddress::new(at(1));
        peer.note_source(0, at(1));
        assert!(!peer.has_candidate());
        peer.note_source(0, at(2));
        assert!(peer.is_probe_due() && !peer.validate(at(2), |_| true), "it is not probed yet");
        assert_eq!(peer.handle_probe_sent(7), at(2));
        // Another address may not take its place at once.
        peer.note_source(QUESTION_NS - 1, at(3));
        assert!(!peer.is_probe_due() && !peer.validate(at(3), |_| true));
        assert!(!peer.validate(at(2), |number| number != 7));
        assert!(peer.validate(at(2), |number| number == 7) && !peer.has_candidate());
        assert_eq!(peer.both(), [at(2), at(1)]);
        assert!(peer.is_known(at(1)) && peer.is_known(at(2)) && !peer.is_known(at(3)));
        peer.swap();
        assert_eq!((peer.both(), peer.announced_port()), ([at(1), at(2)], 1));
    }
}
