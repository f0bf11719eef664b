//! The paths of a session without a network: tests set their answers and states.

use super::super::keys::SessionKeys;
use super::super::packet::{Filled, Path, PathConfig, PayloadSource};
use super::super::session::rails::health::{Evidence, ReferenceAck};
use super::Paths;
use super::path::{PathId, SessionPath};
use crate::wire::packet::Packet;

/// No segments.
pub(super) struct Nothing;

impl PayloadSource for Nothing {
    fn waiting_bytes(&self) -> usize {
        0
    }

    fn fill(&mut self, _: &mut [u8]) -> Option<Filled> {
        None
    }

    fn fill_again(&mut self, _: u64, _: &mut [u8]) -> Option<Filled> {
        None
    }
}

/// Returns a path that was never probed.
pub(super) fn new_path(at: u8) -> SessionPath {
    let keys = SessionKeys::for_tests().path(at.into(), true);
    let id = PathId { number: at.into(), at, ..PathId::default() };
    let remote = ([192, 0, 2, at], 1).into();
    SessionPath::new(Path::new(PathConfig::default()), keys, id, remote, false)
}

fn evidence(probes: u32) -> Evidence {
    Evidence {
        probes,
        probed_ns: 1,
        answered_sent_ns: Some(1),
        unanswered_since_ns: 1,
        round_trip_max_ns: 1,
        arrived: 0,
        bulk_ns: 0,
        is_stalled: false,
    }
}

/// Paths of a session under test; see the module.
#[derive(Debug)]
pub(crate) struct PathsByHand {
    pub(crate) paths: Paths,
    /// The remote ends, by position.
    peers: Vec<Path>,
}

impl PathsByHand {
    /// Creates `count` healthy paths, none of which was probed. The one at position 0 is the
    /// primary path, and carries the TCP lane; without any the session has no datagrams.
    pub(crate) fn new(count: u8) -> Self {
        let path = |at: u8| {
            let mut path = new_path(at);
            path.prove();
            path.hold(at > 0);
            if count > 1 {
                path.begin_comparison(0, true);
                path.observe(1, &evidence(0), None, false).unwrap();
            }
            Box::new(path)
        };
        let paths = Paths {
            primary: (count > 0).then(|| path(0)),
            standby: (1..count).map(path).collect(),
            ..Paths::default()
        };
        let peers = (0..count).map(|_| Path::new(PathConfig::default())).collect();
        Self { paths, peers }
    }

    fn path(&mut self, at: u8) -> &mut SessionPath {
        self.paths.at_mut(at).unwrap()
    }

    /// Lets the path at a position answer a probe sent at `sent_ns`.
    pub(crate) fn answer(&mut self, at: u8, sent_ns: u64) {
        let mut room = [0; 1500];
        let packets = self.path(at).packets_mut();
        packets.ask();
        let (length, _) = packets.poll_transmit(sent_ns, &mut Nothing, &mut room).unwrap();
        let peer = &mut self.peers[usize::from(at)];
        peer.handle_packet(sent_ns, &Packet::decode(&room[..length]).unwrap()).unwrap();
        peer.quickack();
        let (length, _) = peer.poll_transmit(sent_ns, &mut Nothing, &mut room).unwrap();
        let answer = Packet::decode(&room[..length]).unwrap();
        self.path(at).packets_mut().handle_packet(sent_ns, &answer).unwrap();
    }

    /// Adds or removes a shared-memory ring.
    pub(crate) fn share(&mut self, has_ring: bool) {
        self.paths.ring = has_ring.then_some(0);
    }

    /// Sets the path at a position down.
    pub(crate) fn fail(&mut self, now_ns: u64, at: u8) {
        self.path(at).observe(now_ns, &evidence(3), None, false).unwrap();
        if !self.paths.has_active() {
            self.paths.silent_since_ns = Some(now_ns);
        }
    }

    /// Makes the path at a position suspect.
    pub(crate) fn doubt(&mut self, now_ns: u64, at: u8) {
        let reference = Some(ReferenceAck { sent_ns: now_ns, came_ns: now_ns });
        let path = self.path(at);
        path.suspect();
        path.observe(now_ns, &evidence(0), reference, false).unwrap();
    }

    /// Makes the path at a position carry segments.
    pub(crate) fn carry(&mut self, now_ns: u64, at: u8) {
        let Paths { primary: Some(primary), standby, .. } = &mut self.paths else { return };
        let other = standby.iter_mut().find(|path| path.position() == at).unwrap();
        std::mem::swap(primary, other);
        primary.hold(false);
        other.hold(true);
        self.paths.choice.get_or_insert_default().carries_since_ns = now_ns;
    }

    /// Moves the TCP lane, with long segments, to the path at a position.
    pub(crate) fn stream(&mut self, at: u8) {
        (self.paths.stream_at, self.paths.has_streamed) = (at, true);
    }
}
