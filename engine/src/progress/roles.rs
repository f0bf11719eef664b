//! Roles of the driver's connections.

use std::net::SocketAddr;

use super::datagram::Announced;
use super::traits::LaneKey;
use crate::proto::handshake::{Acceptor, Initiator};
use crate::proto::peers::Admission;
use crate::proto::session::Limits;
use crate::proto::session::late::{AtRest, Late};
use crate::proto::session::rendezvous::pull::lanes::ChunkReceive;
use crate::proto::silence::Silence;
use crate::proto::table::{Id, reserve_for};
use crate::wire::hello::{HELLO_BYTES, HELLO_REPLY_BYTES};
use crate::wire::proof::PROOF_BYTES;

/// Received bytes of a hello, a reply or a proof.
#[derive(Debug)]
pub(crate) struct PartialMessage {
    /// Boxed, since lasting roles do not need it.
    pub(crate) bytes: Box<[u8; HELLO_BYTES]>,
    pub(crate) length: usize,
}

impl PartialMessage {
    pub(crate) fn new() -> Self {
        Self { bytes: Box::new([0; HELLO_BYTES]), length: 0 }
    }
}

/// State of an accepted hello until the proof arrives.
#[derive(Debug)]
pub(crate) struct HalfOpen {
    pub(crate) admission: Admission,
    pub(crate) acceptor: Acceptor,
    pub(crate) ours: Limits,
    pub(crate) theirs: Limits,
    /// The peer's announcement of its datagrams.
    pub(crate) datagrams: Announced,
}

/// The role of a connection.
#[derive(Debug)]
pub(crate) enum ConnectionRole {
    /// An attempt for the control lane of a session, before TCP is connected.
    Connecting { session: u32, remote: SocketAddr },
    /// The hello of this side is sent.
    AwaitReply { session: u32, ours: Limits, initiator: Box<Initiator>, partial: PartialMessage },
    /// An incoming connection without a hello yet.
    AwaitHello { remote: SocketAddr, since_ns: u64, partial: PartialMessage },
    /// Its hello is accepted; the proof is expected.
    AwaitProof { remote: SocketAddr, since_ns: u64, half: Box<HalfOpen>, partial: PartialMessage },
    /// The control lane of a session.
    Control { session: u32 },
    /// A bulk lane of ours, before TCP is connected.
    LaneConnecting { lane: Id, remote: SocketAddr },
    /// The hello of this side for a bulk lane is sent.
    LaneAwaitReply { lane: Id, initiator: Box<Initiator>, partial: PartialMessage },
    /// Another control lane of a session, on another rail, before TCP is connected.
    MoveConnecting { session: u32, remote: SocketAddr },
    /// The hello of this side for it is sent.
    MoveAwaitReply { session: u32, initiator: Box<Initiator>, partial: PartialMessage },
    /// A bulk lane.
    Bulk { lane: Id, traffic: Late<Traffic> },
    /// Being closed; only its last events matter.
    Closing { lane: Option<Id>, traffic: Late<Traffic> },
}

impl ConnectionRole {
    /// Returns whether it is connecting or in a handshake.
    fn is_handshake(&self) -> bool {
        !matches!(self, Self::Control { .. } | Self::Bulk { .. } | Self::Closing { .. })
    }

    /// Returns the received part of the expected message, and its full length.
    pub(crate) fn awaited(&mut self) -> Option<(&mut PartialMessage, usize)> {
        match self {
            Self::AwaitHello { partial, .. } => Some((partial, HELLO_BYTES)),
            Self::AwaitProof { partial, .. } => Some((partial, PROOF_BYTES)),
            Self::AwaitReply { partial, .. }
            | Self::LaneAwaitReply { partial, .. }
            | Self::MoveAwaitReply { partial, .. } => Some((partial, HELLO_REPLY_BYTES)),
            _ => None,
        }
    }
}

/// Being closed, with nothing outstanding.
pub(crate) const CLOSING: ConnectionRole =
    ConnectionRole::Closing { lane: None, traffic: Late::NONE };

/// Outstanding driver operations of a bulk lane.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) receiving: Option<ChunkReceive>,
    /// Length of the chunk being sent, and when it was passed to the driver.
    pub(crate) sending: Option<(u32, u64, super::traits::SendMode)>,
    /// Chunks were sent since the kernel was last requested not to delay acknowledgements.
    pub(crate) has_sent: bool,
    /// That is requested soon, unless another chunk is sent first.
    pub(crate) is_ack_due: bool,
    /// Chunks that the peer's kernel has not acknowledged.
    pub(super) silence: Silence,
}

impl AtRest for Traffic {
    const AT_REST: &'static Self = &Self {
        receiving: None,
        sending: None,
        has_sent: false,
        is_ack_due: false,
        silence: Silence::NONE,
    };
}

/// Roles by lane, with generations checked.
#[derive(Debug, Default)]
pub(crate) struct Roles {
    slots: Vec<Option<(u32, ConnectionRole)>>,
    /// Closed lanes whose slot is reused, while their last events are still to be reported.
    outlived: Vec<(LaneKey, ConnectionRole)>,
    /// Lanes that were in a handshake at the last check, and new ones.
    handshakes: Vec<LaneKey>,
}

impl Roles {
    pub(crate) fn insert(&mut self, key: LaneKey, role: ConnectionRole) {
        if role.is_handshake() && !self.get(key).is_some_and(ConnectionRole::is_handshake) {
            self.handshakes.push(key);
        }
        let index = key.index as usize;
        if index >= self.slots.len() {
            reserve_for(&mut self.slots, index + 1);
            self.slots.resize_with(index + 1, || None);
        }
        if self.slots[index].as_ref().is_some_and(|(generation, _)| *generation != key.generation) {
            if let Some((_, outlived)) = self.outlived.iter_mut().find(|(old, _)| *old == key) {
                *outlived = role;
                return;
            }
            if let Some((generation, role)) = self.slots[index].take() {
                self.outlived.push((LaneKey { generation, ..key }, role));
            }
        }
        self.slots[index] = Some((key.generation, role));
    }

    fn get(&self, key: LaneKey) -> Option<&ConnectionRole> {
        match self.slots.get(key.index as usize)? {
            Some((generation, role)) if *generation == key.generation => Some(role),
            _ => self.outlived.iter().find(|(old, _)| *old == key).map(|(_, role)| role),
        }
    }

    /// Returns the lanes that are connecting or in a handshake.
    pub(super) fn handshakes(&self) -> impl Iterator<Item = (LaneKey, &ConnectionRole)> {
        let all = self.handshakes.iter().filter_map(|&key| Some((key, self.get(key)?)));
        all.filter(|(_, role)| role.is_handshake())
    }

    /// Removes lanes that are in no handshake any more.
    pub(super) fn forget_completed(&mut self) {
        let mut handshakes = std::mem::take(&mut self.handshakes);
        handshakes.retain(|&key| self.get(key).is_some_and(ConnectionRole::is_handshake));
        self.handshakes = handshakes;
    }

    pub(crate) fn get_mut(&mut self, key: LaneKey) -> Option<&mut ConnectionRole> {
        match self.slots.get_mut(key.index as usize)? {
            Some((generation, role)) if *generation == key.generation => Some(role),
            _ => self.outlived.iter_mut().find(|(old, _)| *old == key).map(|(_, role)| role),
        }
    }

    /// Returns the driver operations of a bulk lane, which may be closing.
    pub(super) fn traffic(&mut self, key: LaneKey) -> Option<&mut Late<Traffic>> {
        match self.get_mut(key)? {
            ConnectionRole::Bulk { traffic, .. } | ConnectionRole::Closing { traffic, .. } => {
                Some(traffic)
            }
            _ => None,
        }
    }

    pub(crate) fn remove(&mut self, key: LaneKey) -> Option<ConnectionRole> {
        if let Some(at) = self.outlived.iter().position(|(old, _)| *old == key) {
            return Some(self.outlived.swap_remove(at).1);
        }
        self.get_mut(key)?;
        self.slots[key.index as usize].take().map(|(_, role)| role)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (LaneKey, &ConnectionRole)> {
        let slots = self.slots.iter().enumerate().filter_map(|(index, slot)| {
            let (generation, role) = slot.as_ref()?;
            Some((LaneKey { index: index as u32, generation: *generation }, role))
        });
        slots.chain(self.outlived.iter().map(|(key, role)| (*key, role)))
    }

    /// Empties the table, for another driver's keys.
    pub(crate) fn take_all(&mut self) -> Vec<(LaneKey, ConnectionRole)> {
        let slots = std::mem::take(&mut self.slots);
        self.handshakes.clear();
        let taken = slots.into_iter().enumerate().filter_map(|(index, slot)| {
            let (generation, role) = slot?;
            Some((LaneKey { index: index as u32, generation }, role))
        });
        taken.chain(std::mem::take(&mut self.outlived)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A driver may reuse the slot of a closed lane before its last events are reported.
    #[test]
    fn lane_keeps_its_role_when_its_slot_is_reused() {
        let key = |generation| LaneKey { index: 3, generation };
        let session_of = |role: Option<&mut ConnectionRole>| match role {
            Some(ConnectionRole::Control { session }) => Some(*session),
            _ => None,
        };
        let mut roles = Roles::default();
        for generation in 0..3 {
            roles.insert(key(generation), ConnectionRole::Control { session: generation });
        }
        roles.insert(key(1), ConnectionRole::Control { session: 10 });
        assert_eq!(session_of(roles.get_mut(key(0))), Some(0));
        assert_eq!(session_of(roles.get_mut(key(1))), Some(10));
        assert_eq!(session_of(roles.get_mut(key(2))), Some(2));
        assert!(roles.get_mut(key(3)).is_none());
        assert_eq!(roles.iter().count(), 3);
        assert!(roles.remove(key(1)).is_some() && roles.remove(key(1)).is_none());
        assert!(roles.remove(key(2)).is_some() && roles.remove(key(2)).is_none());
        assert_eq!(session_of(roles.get_mut(key(0))), Some(0));
        assert_eq!(roles.take_all().len(), 1);
        assert_eq!(roles.iter().count(), 0);
    }
}
