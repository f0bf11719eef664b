//! The handshake before two engines share memory; see [`crate::wire::local_peer`].

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use subtle::ConstantTimeEq;
use zerocopy::IntoBytes;
use zerocopy::byteorder::little_endian::U32;

use super::cma::{self, AttachedProcess, ProcessCookie};
use super::discovery::Discovery;
use super::doorbell_page::PeerDoorbell;
use super::ring_pair::RingPair;
use super::socket;
use super::untrusted::Untrusted;
use crate::driver::random::random_bytes;
use crate::driver::traits::LocalPeer;
use crate::wire::local_peer::{
    CookieLocation, KIND_ADMITTED, KIND_CHALLENGE, KIND_JOIN, KIND_LOCAL_HELLO, KIND_MEMORY,
    KIND_READS, KIND_READY, LocalPeerMessage, SIGNAL_READS,
};

/// A random number that is used once.
type Nonce = [u8; 16];

/// State of a handshake.
enum HandshakePhase {
    /// Client: has named the session, and waits for the server's proof.
    Asked { nonce: Nonce },
    /// Client: has sent its own proof, and waits to be admitted.
    Joining { nonces: [Nonce; 2] },
    /// Client: has sent its memory.
    Offered { segment: Box<RingPair>, nonces: [Nonce; 2] },
    /// Server: no message yet.
    Accepted,
    /// Server: the session is not known yet, as it is just being established.
    Waiting { nonce: Nonce },
    /// Server: waits for the client's proof.
    Challenged { nonces: [Nonce; 2] },
    /// Server: waits for the client's memory.
    Admitted { nonces: [Nonce; 2] },
}

/// A connection that is in the handshake.
pub(super) struct Exchange {
    pub(super) socket: Untrusted,
    /// The session, once named.
    pub(super) session: Option<u64>,
    phase: HandshakePhase,
    pub(super) since: Instant,
    /// This side connected.
    pub(super) is_own: bool,
    /// The index of the future channel; the peer uses the doorbell of this number.
    pub(super) slot: u32,
}

/// The offer of this engine to the peer.
#[derive(Clone, Copy)]
pub(super) struct LocalSide<'a> {
    /// The cookie of this engine's memory; `None`: the peer may not read it.
    pub(super) cookie: Option<&'a ProcessCookie>,
    pub(super) doorbells: BorrowedFd<'a>,
}

/// The result of handling a message.
pub(super) enum HandshakeOutcome {
    /// The handshake continues.
    Pending,
    /// The memory is shared.
    Done {
        segment: Box<RingPair>,
        /// The ring that this side writes.
        writes: u8,
        /// The number of the rings.
        number: u32,
        /// The peer's doorbell.
        doorbell: PeerDoorbell,
        /// The memory of the peer's process, if this side can read it.
        memory: Option<AttachedProcess>,
        /// The peer can read this process's memory.
        is_read: bool,
    },
    /// The handshake has failed.
    Failed(&'static str),
}

/// The content of a proof: the side, and for MEMORY and READY their content.
#[derive(Clone, Copy)]
enum ProofKind {
    Connected(Credentials),
    Listening,
    Joining,
    Ready { kind: u16, credentials: Credentials },
}

/// Location of a side's cookie, and the doorbell it assigns to the other side.
#[derive(Clone, Copy)]
struct Credentials {
    cookie: CookieLocation,
    doorbell: U32,
}

impl Credentials {
    fn new(cookie: Option<&ProcessCookie>, doorbell: u32) -> Self {
        let nowhere = CookieLocation { address: 0.into(), word: 0.into() };
        Self { cookie: cookie.map_or(nowhere, ProcessCookie::location), doorbell: doorbell.into() }
    }

    fn of(message: &LocalPeerMessage) -> Self {
        Self { cookie: zerocopy::transmute!(message.nonce), doorbell: message.doorbell }
    }

    /// The message that carries it.
    fn message(self, kind: u16, session: u64, proof: [u8; 16]) -> LocalPeerMessage {
        let slot = zerocopy::transmute!(self.cookie);
        let message = LocalPeerMessage::new(kind, session, slot, proof);
        LocalPeerMessage { doorbell: self.doorbell, ..message }
    }

    fn add_to(self, hasher: &mut blake3::Hasher) -> &mut blake3::Hasher {
        hasher.update(self.cookie.as_bytes()).update(self.doorbell.as_bytes())
    }
}

/// RR-SHM-2: only the holder of the session's keys can compute it, and only for this handshake.
fn proof(peer: &LocalPeer, claim: ProofKind, nonces: [&Nonce; 2]) -> [u8; 16] {
    let mut hasher = blake3::Hasher::new_keyed(&peer.key);
    match claim {
        ProofKind::Connected(credentials) => credentials.add_to(hasher.update(b"connected")),
        ProofKind::Listening => hasher.update(b"listening"),
        ProofKind::Joining => hasher.update(b"joining"),
        ProofKind::Ready { kind, credentials } => {
            credentials.add_to(hasher.update(b"ready").update(&kind.to_le_bytes()))
        }
    };
    hasher.update(&peer.session.to_le_bytes()).update(nonces[0]).update(nonces[1]);
    let mut proof = [0; 16];
    proof.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    proof
}

/// The proof of a client whose memory may not be read.
#[cfg(test)]
pub(super) fn proof_of_connected(peer: &LocalPeer, doorbell: u32, nonces: [&Nonce; 2]) -> [u8; 16] {
    proof(peer, ProofKind::Connected(Credentials::new(None, doorbell)), nonces)
}

/// The proof by which a client is admitted.
#[cfg(test)]
pub(super) fn proof_of_joining(peer: &LocalPeer, nonces: [&Nonce; 2]) -> [u8; 16] {
    proof(peer, ProofKind::Joining, nonces)
}

/// The number both sides give to the rings.
fn ring_number(nonces: &[Nonce; 2]) -> u32 {
    let [_, [a, b, c, d, ..]] = *nonces;
    u32::from_le_bytes([a, b, c, d])
}

fn proof_matches(given: &[u8; 16], right: [u8; 16]) -> bool {
    given.ct_eq(&right).into()
}

impl Exchange {
    /// Makes an exchange that a local peer has begun.
    pub(super) fn accepted(socket: Untrusted, slot: u32, now: Instant) -> Self {
        Self {
            socket,
            session: None,
            phase: HandshakePhase::Accepted,
            since: now,
            is_own: false,
            slot,
        }
    }

    /// Opens a connection and sends HELLO.
    pub(super) fn begin(
        discovery: &Discovery,
        peer: &LocalPeer,
        slot: u32,
        now: Instant,
    ) -> std::io::Result<Self> {
        let socket = socket::connect(discovery, peer.engine)?;
        let nonce = random_bytes()?;
        let hello = LocalPeerMessage::new(KIND_LOCAL_HELLO, peer.session, nonce, [0; 16]);
        send(&socket, &hello, &[])?;
        let phase = HandshakePhase::Asked { nonce };
        let session = Some(peer.session);
        Ok(Self { socket, session, phase, since: now, is_own: true, slot })
    }

    /// Handles a message. `find`: looks a session up.
    pub(super) fn handle<'a>(
        &mut self,
        packet: socket::SocketPacket,
        own: LocalSide<'_>,
        find: impl FnOnce(u64) -> Option<&'a LocalPeer>,
    ) -> HandshakeOutcome {
        if matches!(self.phase, HandshakePhase::Accepted) {
            let hello = LocalPeerMessage::parse(packet.bytes(), KIND_LOCAL_HELLO);
            let Some(hello) = hello.filter(|_| packet.descriptor.is_none()) else {
                return HandshakeOutcome::Failed("unexpected message of an unauthenticated peer");
            };
            self.session = Some(hello.session.get());
            self.phase = HandshakePhase::Waiting { nonce: hello.nonce };
            return match find(hello.session.get()) {
                Some(peer) => self.challenge(peer),
                None => HandshakeOutcome::Pending,
            };
        }
        let Some(peer) = self.session.and_then(find) else {
            return HandshakeOutcome::Failed("the session has ended");
        };
        match std::mem::replace(&mut self.phase, HandshakePhase::Accepted) {
            HandshakePhase::Asked { nonce } => self.join(&packet, peer, nonce),
            HandshakePhase::Joining { nonces } => self.offer(&packet, own, peer, nonces),
            HandshakePhase::Offered { segment, nonces } => {
                let ready = [KIND_READY, KIND_READS]
                    .into_iter()
                    .find_map(|kind| LocalPeerMessage::parse(packet.bytes(), kind));
                let Some(ready) = ready else {
                    return HandshakeOutcome::Failed("the peer refused the memory");
                };
                let kind = ready.kind.get();
                let credentials = Credentials::of(&ready);
                let claim = ProofKind::Ready { kind, credentials };
                if !proof_matches(&ready.proof, proof(peer, claim, [&nonces[0], &nonces[1]])) {
                    return HandshakeOutcome::Failed("the proof does not match the session");
                }
                let Some(doorbell) = doorbell_of(packet.descriptor.as_ref(), credentials) else {
                    return HandshakeOutcome::Failed("the memory of doorbells is invalid");
                };
                let memory = self.attach(credentials, own);
                if memory.is_some() {
                    socket::send_signal(&self.socket, SIGNAL_READS);
                }
                let is_read = own.cookie.is_some() && kind == KIND_READS;
                let number = ring_number(&nonces);
                HandshakeOutcome::Done { segment, writes: 0, number, doorbell, memory, is_read }
            }
            HandshakePhase::Challenged { nonces } => self.admit(&packet, peer, nonces),
            HandshakePhase::Admitted { nonces } => self.take(&packet, own, peer, &nonces),
            HandshakePhase::Accepted | HandshakePhase::Waiting { .. } => {
                HandshakeOutcome::Failed("unexpected message")
            }
        }
    }

    /// The session that the client named is known now.
    pub(super) fn resume(&mut self, peer: &LocalPeer) -> HandshakeOutcome {
        match self.phase {
            HandshakePhase::Waiting { .. } => self.challenge(peer),
            _ => HandshakeOutcome::Pending,
        }
    }

    fn challenge(&mut self, peer: &LocalPeer) -> HandshakeOutcome {
        let HandshakePhase::Waiting { nonce } = self.phase else {
            return HandshakeOutcome::Pending;
        };
        if peer.is_initiator {
            // Only the initiator of the session connects.
            return HandshakeOutcome::Failed("the peer is not the initiator of the session");
        }
        let own = match random_bytes() {
            Ok(own) => own,
            Err(error) => {
                tracing::debug!("no shared memory with a peer: {error}");
                return HandshakeOutcome::Failed("this host gives no random numbers");
            }
        };
        let proof = proof(peer, ProofKind::Listening, [&nonce, &own]);
        let challenge = LocalPeerMessage::new(KIND_CHALLENGE, peer.session, own, proof);
        self.phase = HandshakePhase::Challenged { nonces: [nonce, own] };
        self.send_message(&challenge)
    }

    /// Attaches the memory of the peer's process; `None`: the peer does not allow it, or it failed.
    fn attach(&self, credentials: Credentials, own: LocalSide<'_>) -> Option<AttachedProcess> {
        own.cookie?;
        let attached = AttachedProcess::new(&self.socket, credentials.cookie);
        attached
            .inspect_err(|error| {
                let (session, remedy) = (self.session, cma::remedy(error));
                tracing::debug!(
                    session,
                    "cannot read the memory of a local peer: {error}; {remedy}"
                );
            })
            .ok()
    }

    /// Whether the peer has proved that it has the session's keys, so that it may pass descriptors.
    pub(super) fn is_admitted(&self) -> bool {
        let phase = &self.phase;
        matches!(
            phase,
            HandshakePhase::Joining { .. }
                | HandshakePhase::Offered { .. }
                | HandshakePhase::Admitted { .. }
        )
    }

    /// Client: verifies the server's proof and sends its own.
    fn join(
        &mut self,
        packet: &socket::SocketPacket,
        peer: &LocalPeer,
        nonce: Nonce,
    ) -> HandshakeOutcome {
        let Some(challenge) = LocalPeerMessage::parse(packet.bytes(), KIND_CHALLENGE) else {
            return HandshakeOutcome::Failed("expected CHALLENGE");
        };
        let nonces = [&nonce, &challenge.nonce];
        if !proof_matches(&challenge.proof, proof(peer, ProofKind::Listening, nonces)) {
            return HandshakeOutcome::Failed("the proof does not match the session");
        }
        if self.socket.admit().is_err() {
            return HandshakeOutcome::Failed("cannot enable passing of descriptors");
        }
        let proof = proof(peer, ProofKind::Joining, nonces);
        let join = LocalPeerMessage::new(KIND_JOIN, peer.session, [0; 16], proof);
        self.phase = HandshakePhase::Joining { nonces: [nonce, challenge.nonce] };
        self.send_message(&join)
    }

    /// Server: verifies the client's proof, and lets it pass descriptors.
    ///
    /// RR-SHM-12.
    fn admit(
        &mut self,
        packet: &socket::SocketPacket,
        peer: &LocalPeer,
        nonces: [Nonce; 2],
    ) -> HandshakeOutcome {
        let Some(join) = LocalPeerMessage::parse(packet.bytes(), KIND_JOIN) else {
            return HandshakeOutcome::Failed("expected JOIN");
        };
        if !proof_matches(&join.proof, proof(peer, ProofKind::Joining, [&nonces[0], &nonces[1]])) {
            return HandshakeOutcome::Failed("the proof does not match the session");
        }
        if self.socket.admit().is_err() {
            return HandshakeOutcome::Failed("cannot enable passing of descriptors");
        }
        let admitted = LocalPeerMessage::new(KIND_ADMITTED, peer.session, [0; 16], [0; 16]);
        self.phase = HandshakePhase::Admitted { nonces };
        self.send_message(&admitted)
    }

    fn send_message(&self, message: &LocalPeerMessage) -> HandshakeOutcome {
        match send(&self.socket, message, &[]) {
            Ok(()) => HandshakeOutcome::Pending,
            Err(_) => HandshakeOutcome::Failed("the connection has ended"),
        }
    }

    fn offer(
        &mut self,
        packet: &socket::SocketPacket,
        own: LocalSide<'_>,
        peer: &LocalPeer,
        nonces: [Nonce; 2],
    ) -> HandshakeOutcome {
        if LocalPeerMessage::parse(packet.bytes(), KIND_ADMITTED).is_none() {
            return HandshakeOutcome::Failed("expected ADMITTED");
        }
        let Ok((segment, memory)) = RingPair::create() else {
            return HandshakeOutcome::Failed("cannot allocate shared memory");
        };
        let credentials = Credentials::new(own.cookie, self.slot);
        let proof = proof(peer, ProofKind::Connected(credentials), [&nonces[0], &nonces[1]]);
        let offer = credentials.message(KIND_MEMORY, peer.session, proof);
        self.phase = HandshakePhase::Offered { segment: Box::new(segment), nonces };
        match send(&self.socket, &offer, &[memory.as_fd(), own.doorbells]) {
            Ok(()) => HandshakeOutcome::Pending,
            Err(_) => HandshakeOutcome::Failed("the connection has ended"),
        }
    }

    fn take(
        &mut self,
        packet: &socket::SocketPacket,
        own: LocalSide<'_>,
        peer: &LocalPeer,
        nonces: &[Nonce; 2],
    ) -> HandshakeOutcome {
        let Some(offer) = LocalPeerMessage::parse(packet.bytes(), KIND_MEMORY) else {
            return HandshakeOutcome::Failed("expected MEMORY");
        };
        let both = [&nonces[0], &nonces[1]];
        let credentials = Credentials::of(&offer);
        let claim = ProofKind::Connected(credentials);
        if !proof_matches(&offer.proof, proof(peer, claim, both)) {
            return HandshakeOutcome::Failed("the proof does not match the session");
        }
        // Not accessed before the proof is verified.
        let segment = packet.descriptor.as_ref().map(|memory| RingPair::open(memory.as_fd()));
        let Some(Ok(segment)) = segment else {
            return HandshakeOutcome::Failed("the memory of rings is invalid");
        };
        let Some(doorbell) = doorbell_of(packet.second.as_ref(), credentials) else {
            return HandshakeOutcome::Failed("the memory of doorbells is invalid");
        };
        let memory = self.attach(credentials, own);
        let kind = if memory.is_some() { KIND_READS } else { KIND_READY };
        let credentials = Credentials::new(own.cookie, self.slot);
        let proof = proof(peer, ProofKind::Ready { kind, credentials }, both);
        let ready = credentials.message(kind, peer.session, proof);
        if send(&self.socket, &ready, &[own.doorbells]).is_err() {
            return HandshakeOutcome::Failed("the connection has ended");
        }
        let (segment, number) = (Box::new(segment), ring_number(nonces));
        HandshakeOutcome::Done { segment, writes: 1, number, doorbell, memory, is_read: false }
    }
}

/// The doorbell that the peer assigned, in the memory it passed.
fn doorbell_of(memory: Option<&OwnedFd>, credentials: Credentials) -> Option<PeerDoorbell> {
    PeerDoorbell::open(memory?.as_fd(), credentials.doorbell.get()).ok()
}

fn send(
    socket: &impl AsFd,
    message: &LocalPeerMessage,
    descriptors: &[BorrowedFd<'_>],
) -> std::io::Result<()> {
    socket::send(socket.as_fd(), message.as_bytes(), descriptors)
}
