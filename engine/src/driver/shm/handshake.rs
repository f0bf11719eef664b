//! What is said before two engines share memory; see [`crate::wire::neighbour`].

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use subtle::ConstantTimeEq;
use zerocopy::IntoBytes;
use zerocopy::byteorder::little_endian::U32;

use super::cma::{self, Attached, Witness};
use super::doorbell_page::Doorbell;
use super::meeting::Meeting;
use super::segment::Segment;
use super::socket;
use super::untrusted::Untrusted;
use crate::driver::lanes::Neighbour;
use crate::driver::random::random_bytes;
use crate::wire::neighbour::{
    KIND_ADMITTED, KIND_CHALLENGE, KIND_JOIN, KIND_MEMORY, KIND_NEIGHBOUR_HELLO, KIND_READS,
    KIND_READY, NeighbourMessage, SIGN_READS, WitnessPlace,
};

/// A random number that is used once.
type Nonce = [u8; 16];

/// How far an exchange is.
enum Phase {
    /// Who connected has said which session, and waits for a proof.
    Asked { nonce: Nonce },
    /// It has proved the same, and waits to be admitted.
    Joining { nonces: [Nonce; 2] },
    /// Its memory is on its way.
    Offered { segment: Box<Segment>, nonces: [Nonce; 2] },
    /// Who listens does not know yet who has connected.
    Accepted,
    /// It does not know the session yet: that is just being established.
    Waiting { nonce: Nonce },
    /// It waits for the other side's proof.
    Challenged { nonces: [Nonce; 2] },
    /// It waits for the other side's memory.
    Admitted { nonces: [Nonce; 2] },
}

/// A connection that has not brought a channel yet.
pub(super) struct Exchange {
    pub(super) socket: Untrusted,
    /// The session, once one is named.
    pub(super) session: Option<u64>,
    phase: Phase,
    pub(super) since: Instant,
    /// This side connected.
    pub(super) is_own: bool,
    /// Where its channel will be; the other side rings the doorbell of this number.
    pub(super) place: u32,
}

/// What this engine shows to the other side.
#[derive(Clone, Copy)]
pub(super) struct Own<'a> {
    /// By what others know this engine's memory; `None`: they may not read it.
    pub(super) witness: Option<&'a Witness>,
    pub(super) doorbells: BorrowedFd<'a>,
}

/// What came of a packet.
pub(super) enum Outcome {
    /// It goes on.
    Going,
    /// The memory is shared.
    Done {
        segment: Box<Segment>,
        /// Which ring this side writes.
        writes: u8,
        /// What both call the rings.
        number: u32,
        /// By what the other side hears.
        doorbell: Doorbell,
        /// What this side can read of the other one's process.
        memory: Option<Attached>,
        /// The other side can read this one's.
        is_read: bool,
    },
    /// It has failed.
    Failed(&'static str),
}

/// What is proved: by which side, and of MEMORY and READY what they say.
#[derive(Clone, Copy)]
enum Claim {
    Connected(Shown),
    Listening,
    Joining,
    Ready { kind: u16, shown: Shown },
}

/// Where a side's witness is, and which of its doorbells is the other side's.
#[derive(Clone, Copy)]
struct Shown {
    witness: WitnessPlace,
    doorbell: U32,
}

impl Shown {
    fn new(witness: Option<&Witness>, doorbell: u32) -> Self {
        let nowhere = WitnessPlace { address: 0.into(), word: 0.into() };
        Self { witness: witness.map_or(nowhere, Witness::place), doorbell: doorbell.into() }
    }

    fn of(message: &NeighbourMessage) -> Self {
        Self { witness: zerocopy::transmute!(message.nonce), doorbell: message.doorbell }
    }

    /// The message that says it.
    fn message(self, kind: u16, session: u64, proof: [u8; 16]) -> NeighbourMessage {
        let place = zerocopy::transmute!(self.witness);
        let message = NeighbourMessage::new(kind, session, place, proof);
        NeighbourMessage { doorbell: self.doorbell, ..message }
    }

    fn add_to(self, hasher: &mut blake3::Hasher) -> &mut blake3::Hasher {
        hasher.update(self.witness.as_bytes()).update(self.doorbell.as_bytes())
    }
}

/// RR-SHM-2: only who has the keys of the session can make it, and only for this exchange.
fn proof(neighbour: &Neighbour, claim: Claim, nonces: [&Nonce; 2]) -> [u8; 16] {
    let mut hasher = blake3::Hasher::new_keyed(&neighbour.key);
    match claim {
        Claim::Connected(shown) => shown.add_to(hasher.update(b"connected")),
        Claim::Listening => hasher.update(b"listening"),
        Claim::Joining => hasher.update(b"joining"),
        Claim::Ready { kind, shown } => {
            shown.add_to(hasher.update(b"ready").update(&kind.to_le_bytes()))
        }
    };
    hasher.update(&neighbour.session.to_le_bytes()).update(nonces[0]).update(nonces[1]);
    let mut proof = [0; 16];
    proof.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    proof
}

/// The proof of who connects, and whose memory is not to be read.
#[cfg(test)]
pub(super) fn proof_of_connected(
    neighbour: &Neighbour,
    doorbell: u32,
    nonces: [&Nonce; 2],
) -> [u8; 16] {
    proof(neighbour, Claim::Connected(Shown::new(None, doorbell)), nonces)
}

/// The proof by which who connects is admitted.
#[cfg(test)]
pub(super) fn proof_of_joining(neighbour: &Neighbour, nonces: [&Nonce; 2]) -> [u8; 16] {
    proof(neighbour, Claim::Joining, nonces)
}

/// What both sides call the rings that they agree on.
fn number_of(nonces: &[Nonce; 2]) -> u32 {
    let [_, [a, b, c, d, ..]] = *nonces;
    u32::from_le_bytes([a, b, c, d])
}

fn fits(given: &[u8; 16], right: [u8; 16]) -> bool {
    given.ct_eq(&right).into()
}

impl Exchange {
    /// One that a neighbour has begun.
    pub(super) fn accepted(socket: Untrusted, place: u32, now: Instant) -> Self {
        Self { socket, session: None, phase: Phase::Accepted, since: now, is_own: false, place }
    }

    /// Begins one.
    pub(super) fn begin(
        meeting: &Meeting,
        neighbour: &Neighbour,
        place: u32,
        now: Instant,
    ) -> std::io::Result<Self> {
        let socket = socket::connect(meeting, neighbour.engine)?;
        let nonce = random_bytes()?;
        let hello = NeighbourMessage::new(KIND_NEIGHBOUR_HELLO, neighbour.session, nonce, [0; 16]);
        send(&socket, &hello, &[])?;
        let phase = Phase::Asked { nonce };
        let session = Some(neighbour.session);
        Ok(Self { socket, session, phase, since: now, is_own: true, place })
    }

    /// Takes a packet. `find`: the session of that number, if there is one.
    pub(super) fn handle<'a>(
        &mut self,
        packet: socket::Packet,
        own: Own<'_>,
        find: impl FnOnce(u64) -> Option<&'a Neighbour>,
    ) -> Outcome {
        if matches!(self.phase, Phase::Accepted) {
            let hello = NeighbourMessage::parse(packet.bytes(), KIND_NEIGHBOUR_HELLO);
            let Some(hello) = hello.filter(|_| packet.descriptor.is_none()) else {
                return Outcome::Failed("a stranger");
            };
            self.session = Some(hello.session.get());
            self.phase = Phase::Waiting { nonce: hello.nonce };
            return match find(hello.session.get()) {
                Some(neighbour) => self.challenge(neighbour),
                None => Outcome::Going,
            };
        }
        let Some(neighbour) = self.session.and_then(find) else {
            return Outcome::Failed("the session has ended");
        };
        match std::mem::replace(&mut self.phase, Phase::Accepted) {
            Phase::Asked { nonce } => self.join(&packet, neighbour, nonce),
            Phase::Joining { nonces } => self.offer(&packet, own, neighbour, nonces),
            Phase::Offered { segment, nonces } => {
                let ready = [KIND_READY, KIND_READS]
                    .into_iter()
                    .find_map(|kind| NeighbourMessage::parse(packet.bytes(), kind));
                let Some(ready) = ready else {
                    return Outcome::Failed("it refused the memory");
                };
                let kind = ready.kind.get();
                let shown = Shown::of(&ready);
                let claim = Claim::Ready { kind, shown };
                if !fits(&ready.proof, proof(neighbour, claim, [&nonces[0], &nonces[1]])) {
                    return Outcome::Failed("its proof does not fit the session");
                }
                let Some(doorbell) = doorbell_of(packet.descriptor.as_ref(), shown) else {
                    return Outcome::Failed("its doorbells are not what is shared");
                };
                let memory = self.attach(shown, own);
                if memory.is_some() {
                    socket::sign(&self.socket, SIGN_READS);
                }
                let is_read = own.witness.is_some() && kind == KIND_READS;
                let number = number_of(&nonces);
                Outcome::Done { segment, writes: 0, number, doorbell, memory, is_read }
            }
            Phase::Challenged { nonces } => self.admit(&packet, neighbour, nonces),
            Phase::Admitted { nonces } => self.take(&packet, own, neighbour, &nonces),
            Phase::Accepted | Phase::Waiting { .. } => Outcome::Failed("it does not wait"),
        }
    }

    /// The session that its other side has named is known now.
    pub(super) fn resume(&mut self, neighbour: &Neighbour) -> Outcome {
        match self.phase {
            Phase::Waiting { .. } => self.challenge(neighbour),
            _ => Outcome::Going,
        }
    }

    fn challenge(&mut self, neighbour: &Neighbour) -> Outcome {
        let Phase::Waiting { nonce } = self.phase else { return Outcome::Going };
        if neighbour.is_initiator {
            // Who opened the session connects, nobody else.
            return Outcome::Failed("it is not the side that connects");
        }
        let own = match random_bytes() {
            Ok(own) => own,
            Err(error) => {
                tracing::debug!("no shared memory with a neighbour: {error}");
                return Outcome::Failed("this host gives no random numbers");
            }
        };
        let proof = proof(neighbour, Claim::Listening, [&nonce, &own]);
        let challenge = NeighbourMessage::new(KIND_CHALLENGE, neighbour.session, own, proof);
        self.phase = Phase::Challenged { nonces: [nonce, own] };
        self.say(&challenge)
    }

    /// The memory of the other side's process, which reads this one's or does not want it.
    fn attach(&self, shown: Shown, own: Own<'_>) -> Option<Attached> {
        own.witness?;
        let attached = Attached::new(&self.socket, shown.witness);
        attached
            .inspect_err(|error| {
                let (session, cure) = (self.session, cma::cure(error));
                tracing::debug!(session, "a neighbour's memory cannot be read: {error}; {cure}");
            })
            .ok()
    }

    /// Whether the other side has proved that it has the session's keys, and descriptors may come.
    pub(super) fn is_admitted(&self) -> bool {
        let phase = &self.phase;
        matches!(phase, Phase::Joining { .. } | Phase::Offered { .. } | Phase::Admitted { .. })
    }

    /// Who connected proves itself, once the other side has.
    fn join(&mut self, packet: &socket::Packet, neighbour: &Neighbour, nonce: Nonce) -> Outcome {
        let Some(challenge) = NeighbourMessage::parse(packet.bytes(), KIND_CHALLENGE) else {
            return Outcome::Failed("no challenge came");
        };
        let nonces = [&nonce, &challenge.nonce];
        if !fits(&challenge.proof, proof(neighbour, Claim::Listening, nonces)) {
            return Outcome::Failed("its proof does not fit the session");
        }
        if self.socket.admit().is_err() {
            return Outcome::Failed("the kernel lets no descriptors in");
        }
        let proof = proof(neighbour, Claim::Joining, nonces);
        let join = NeighbourMessage::new(KIND_JOIN, neighbour.session, [0; 16], proof);
        self.phase = Phase::Joining { nonces: [nonce, challenge.nonce] };
        self.say(&join)
    }

    /// Who listens lets descriptors in from who has proved itself, and says so.
    ///
    /// RR-SHM-12.
    fn admit(
        &mut self,
        packet: &socket::Packet,
        neighbour: &Neighbour,
        nonces: [Nonce; 2],
    ) -> Outcome {
        let Some(join) = NeighbourMessage::parse(packet.bytes(), KIND_JOIN) else {
            return Outcome::Failed("no proof came");
        };
        if !fits(&join.proof, proof(neighbour, Claim::Joining, [&nonces[0], &nonces[1]])) {
            return Outcome::Failed("its proof does not fit the session");
        }
        if self.socket.admit().is_err() {
            return Outcome::Failed("the kernel lets no descriptors in");
        }
        let admitted = NeighbourMessage::new(KIND_ADMITTED, neighbour.session, [0; 16], [0; 16]);
        self.phase = Phase::Admitted { nonces };
        self.say(&admitted)
    }

    fn say(&self, message: &NeighbourMessage) -> Outcome {
        match send(&self.socket, message, &[]) {
            Ok(()) => Outcome::Going,
            Err(_) => Outcome::Failed("it is gone"),
        }
    }

    fn offer(
        &mut self,
        packet: &socket::Packet,
        own: Own<'_>,
        neighbour: &Neighbour,
        nonces: [Nonce; 2],
    ) -> Outcome {
        if NeighbourMessage::parse(packet.bytes(), KIND_ADMITTED).is_none() {
            return Outcome::Failed("it does not admit this engine");
        }
        let Ok((segment, memory)) = Segment::create() else {
            return Outcome::Failed("this host gives no memory to share");
        };
        let shown = Shown::new(own.witness, self.place);
        let proof = proof(neighbour, Claim::Connected(shown), [&nonces[0], &nonces[1]]);
        let offer = shown.message(KIND_MEMORY, neighbour.session, proof);
        self.phase = Phase::Offered { segment: Box::new(segment), nonces };
        match send(&self.socket, &offer, &[memory.as_fd(), own.doorbells]) {
            Ok(()) => Outcome::Going,
            Err(_) => Outcome::Failed("it is gone"),
        }
    }

    fn take(
        &mut self,
        packet: &socket::Packet,
        own: Own<'_>,
        neighbour: &Neighbour,
        nonces: &[Nonce; 2],
    ) -> Outcome {
        let Some(offer) = NeighbourMessage::parse(packet.bytes(), KIND_MEMORY) else {
            return Outcome::Failed("no memory came");
        };
        let both = [&nonces[0], &nonces[1]];
        let shown = Shown::of(&offer);
        let claim = Claim::Connected(shown);
        if !fits(&offer.proof, proof(neighbour, claim, both)) {
            return Outcome::Failed("its proof does not fit the session");
        }
        // Not touched before the proof.
        let segment = packet.descriptor.as_ref().map(|memory| Segment::open(memory.as_fd()));
        let Some(Ok(segment)) = segment else {
            return Outcome::Failed("its memory is not what is shared");
        };
        let Some(doorbell) = doorbell_of(packet.second.as_ref(), shown) else {
            return Outcome::Failed("its doorbells are not what is shared");
        };
        let memory = self.attach(shown, own);
        let kind = if memory.is_some() { KIND_READS } else { KIND_READY };
        let shown = Shown::new(own.witness, self.place);
        let proof = proof(neighbour, Claim::Ready { kind, shown }, both);
        let ready = shown.message(kind, neighbour.session, proof);
        if send(&self.socket, &ready, &[own.doorbells]).is_err() {
            return Outcome::Failed("it is gone");
        }
        let (segment, number) = (Box::new(segment), number_of(nonces));
        Outcome::Done { segment, writes: 1, number, doorbell, memory, is_read: false }
    }
}

/// The doorbell that a side shows, in memory that came with it.
fn doorbell_of(memory: Option<&OwnedFd>, shown: Shown) -> Option<Doorbell> {
    Doorbell::open(memory?.as_fd(), shown.doorbell.get()).ok()
}

fn send(
    socket: &impl AsFd,
    message: &NeighbourMessage,
    descriptors: &[BorrowedFd<'_>],
) -> std::io::Result<()> {
    socket::send(socket.as_fd(), message.as_bytes(), descriptors)
}
