//! The paths of a session without a network: what they answer, and how they fare, tests say.

use super::super::keys::SessionKeys;
use super::super::packet::{Filled, Path, PathConfig, Payload};
use super::super::rails::health::{Evidence, Health as RailHealth, Witness};
use super::Paths;
use super::path::{Health, SessionPath};
use crate::wire::packet::Packet;

/// No segments.
pub(super) struct Nothing;

impl Payload for Nothing {
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

/// See the module.
#[derive(Debug)]
pub(crate) struct PathsByHand {
    pub(crate) paths: Paths,
    /// The other ends, by position.
    peers: Vec<Path>,
}

impl PathsByHand {
    /// So many, all of them healthy, none of which was asked. The one at position 0 carries
    /// segments, and the TCP lane goes by it.
    pub(crate) fn new(count: u8) -> Self {
        let path = |at: u8| {
            let keys = SessionKeys::for_tests().path(at.into(), true);
            let remote = ([192, 0, 2, at], 1).into();
            let mut path = SessionPath::new(Path::new(PathConfig::default()), keys, remote);
            (path.at, path.health, path.is_held) = (at, Health::Good, at > 0);
            let mut health = RailHealth::new(0);
            health.observe(1, &evidence(0), None, false).unwrap();
            path.rail_health = (count > 1).then(|| Box::new(health));
            Box::new(path)
        };
        let paths = Paths {
            carrier: Some(path(0)),
            standby: (1..count).map(path).collect(),
            ..Paths::default()
        };
        let peers = (0..count).map(|_| Path::new(PathConfig::default())).collect();
        Self { paths, peers }
    }

    fn path(&mut self, at: u8) -> &mut SessionPath {
        self.paths.all_mut().find(|path| path.at == at).unwrap()
    }

    /// The path at a position answers what it was asked at `sent_ns`.
    pub(crate) fn answer(&mut self, at: u8, sent_ns: u64) {
        let mut room = [0; 1500];
        let packets = &mut self.path(at).packets;
        packets.ask();
        let (length, _) = packets.poll_transmit(sent_ns, &mut Nothing, &mut room).unwrap();
        let peer = &mut self.peers[usize::from(at)];
        peer.handle_packet(sent_ns, &Packet::decode(&room[..length]).unwrap()).unwrap();
        peer.quickack();
        let (length, _) = peer.poll_transmit(sent_ns, &mut Nothing, &mut room).unwrap();
        let answer = Packet::decode(&room[..length]).unwrap();
        self.path(at).packets.handle_packet(sent_ns, &answer).unwrap();
    }

    /// The session gets a ring in shared memory, or loses it.
    pub(crate) fn share(&mut self, has_ring: bool) {
        self.paths.has_ring = has_ring;
    }

    /// The path at a position is down.
    pub(crate) fn fail(&mut self, now_ns: u64, at: u8) {
        let health = self.path(at).rail_health.as_mut().unwrap();
        health.observe(now_ns, &evidence(3), None, false).unwrap();
        if !self.paths.has_active() {
            self.paths.silent_since_ns = Some(now_ns);
        }
    }

    /// The path at a position is suspect.
    pub(crate) fn doubt(&mut self, now_ns: u64, at: u8) {
        let health = self.path(at).rail_health.as_mut().unwrap();
        health.suspect();
        let witness = Some(Witness { sent_ns: now_ns, came_ns: now_ns });
        health.observe(now_ns, &evidence(0), witness, false).unwrap();
    }

    /// The path at a position carries segments.
    pub(crate) fn carry(&mut self, now_ns: u64, at: u8) {
        let Paths { carrier: Some(carrier), standby, .. } = &mut self.paths else { return };
        let other = standby.iter_mut().find(|path| path.at == at).unwrap();
        std::mem::swap(carrier, other);
        (carrier.is_held, other.is_held) = (false, true);
        self.paths.choice.get_or_insert_default().carries_since_ns = now_ns;
    }

    /// The TCP lane goes by the path at a position, and takes long segments.
    pub(crate) fn stream(&mut self, at: u8) {
        (self.paths.stream_at, self.paths.has_streamed) = (at, true);
    }
}
