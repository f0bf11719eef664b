//! The handshake: two sides prove to each other that they know the job's secret, and derive the
//! keys of a session.
//!
//! ```text
//!  initiator                                        acceptor
//!     │ hello: nonce, tag(hello key)                   │
//!     ├───────────────────────────────────────────────>│ tag valid? accepted? no state yet
//!     │          reply: nonce, proof(both hellos)      │
//!     │<───────────────────────────────────────────────┤
//!     │ proof valid: the acceptor is authenticated     │
//!     │ proof(both hellos), first segments             │
//!     ├───────────────────────────────────────────────>│ proof valid: the session is established
//! ```
//!
//! The tag of a hello rejects unauthenticated peers at once but can be replayed; the proofs cover
//! both nonces and all fields of both messages, so they cannot. A refusal carries a proof, too.
//! Joins of bulk lanes are one exchange: hello and reply are tagged with the session's join key,
//! and the lane number, which is unique in a session ([`JoinWindow`]), prevents replays.
//!
//! The handshake is independent of the transport of its messages; the state between two of them is
//! an [`Initiator`] or an [`Acceptor`].

use std::net::SocketAddr;

use zerocopy::IntoBytes;

use super::keys::{JobKeys, Key, Nonce, ProofTag, SessionKeys, SessionNames, is_equal};
use crate::wire::hello::{FLAG_INSECURE, HelloStatus, KIND_BULK, KIND_MOVE};
use crate::wire::locators::Locators;
use crate::wire::proof::PROOF_MAGIC;
use crate::wire::{Hello, HelloReply, Proof, VERSION};

const LABEL_ACCEPTOR: &[u8] = b"acceptor";
const LABEL_INITIATOR: &[u8] = b"initiatr";
const LABEL_JOIN_REPLY: &[u8] = b"joinrply";
const LABEL_HELLO: &[u8] = b"hello...";

/// Why a message of the handshake is rejected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Distrust {
    /// The peer uses another wire version, so nothing else could be checked.
    Version(u16),
    /// A proof or a tag does not verify: the peer does not know the secret.
    Secret,
    /// Another engine of the job replied than the one at the contacted address: it listens at this
    /// address, and received the hello from a third party that forwarded it.
    Elsewhere(SocketAddr),
}

fn hello_tag(key: &Key, hello: &Hello) -> ProofTag {
    let bare = Hello { tag: [0; 16], ..*hello };
    key.tag(&[LABEL_HELLO, bare.as_bytes()])
}

fn transcript_tag(key: &Key, label: &[u8], hello: &Hello, reply: &HelloReply) -> ProofTag {
    let bare = HelloReply { proof: [0; 16], ..*reply };
    key.tag(&[label, hello.as_bytes(), bare.as_bytes()])
}

fn session_keys(keys: &JobKeys, hello: &Hello, reply: &HelloReply) -> SessionKeys {
    keys.session(&SessionNames {
        initiator: hello.source.get(),
        acceptor: hello.target.get(),
        initiator_nonce: hello.nonce,
        acceptor_nonce: reply.nonce,
        session: hello.session.get(),
        epoch: hello.epoch.get(),
    })
}

/// The initiating side of a handshake, from the hello to the reply.
#[derive(Clone, Debug)]
pub(crate) struct Initiator {
    hello: Hello,
    /// The address that the hello was sent to.
    remote: SocketAddr,
}

/// What the initiator has once the hello of a control lane is accepted. It is computed for a
/// refused one, too, and not used.
#[derive(Debug)]
pub(crate) struct AcceptedHello {
    /// The proof to send before the first segment.
    pub(crate) proof: Proof,
    /// The keys of the session.
    pub(crate) keys: SessionKeys,
}

impl Initiator {
    /// Completes the hello of a control lane; send [`Self::hello`] to `remote`. `nonce` is random.
    pub(crate) fn start(keys: &JobKeys, hello: Hello, nonce: Nonce, remote: SocketAddr) -> Self {
        let flags = hello.flags | if keys.is_insecure() { FLAG_INSECURE } else { 0 };
        let mut hello = Hello { nonce, flags, ..hello };
        hello.tag = hello_tag(&keys.hello, &hello);
        Self { hello, remote }
    }

    /// Completes the hello of another lane of a session; send [`Self::hello`] to `remote`. `nonce`
    /// is random.
    pub(crate) fn join(keys: &SessionKeys, hello: Hello, nonce: Nonce, remote: SocketAddr) -> Self {
        let mut hello = Hello { nonce, ..hello };
        hello.tag = hello_tag(&keys.join, &hello);
        Self { hello, remote }
    }

    /// Returns the hello to send.
    pub(crate) fn hello(&self) -> &Hello {
        &self.hello
    }

    /// Handles the reply to the hello of a control lane.
    ///
    /// # Errors
    ///
    /// It cannot be authenticated, whatever its content: it may be forged, or the secrets differ.
    pub(crate) fn handle_reply(
        &self,
        keys: &JobKeys,
        reply: &HelloReply,
    ) -> Result<(HelloStatus, AcceptedHello), Distrust> {
        if reply.version.get() != VERSION {
            return Err(Distrust::Version(reply.version.get()));
        }
        let expected = transcript_tag(&keys.proof, LABEL_ACCEPTOR, &self.hello, reply);
        if !is_equal(&expected, &reply.proof) {
            return Err(Distrust::Secret);
        }
        let status = self.status_of(reply)?;
        let proof = Proof {
            magic: PROOF_MAGIC,
            reserved: 0.into(),
            proof: transcript_tag(&keys.proof, LABEL_INITIATOR, &self.hello, reply),
        };
        Ok((status, AcceptedHello { proof, keys: session_keys(keys, &self.hello, reply) }))
    }

    /// Handles the reply to the hello of a bulk lane. A peer that does not know the session replies
    /// with the job's key.
    ///
    /// # Errors
    ///
    /// It cannot be authenticated.
    pub(crate) fn handle_join_reply(
        &self,
        keys: &JobKeys,
        session: &SessionKeys,
        reply: &HelloReply,
    ) -> Result<HelloStatus, Distrust> {
        if reply.version.get() != VERSION {
            return Err(Distrust::Version(reply.version.get()));
        }
        let status = HelloStatus::from_wire(reply.status).unwrap_or(HelloStatus::Malformed);
        let key = match status {
            HelloStatus::Accepted | HelloStatus::Busy => &session.join,
            _ => &keys.proof,
        };
        let expected = transcript_tag(key, LABEL_JOIN_REPLY, &self.hello, reply);
        if !is_equal(&expected, &reply.proof) {
            return Err(Distrust::Secret);
        }
        self.status_of(reply)
    }

    /// Returns the status of a reply with a valid proof, if its sender may report that: the peer
    /// for itself, another engine for the contacted address.
    ///
    /// RR-AUTH-10.
    fn status_of(&self, reply: &HelloReply) -> Result<HelloStatus, Distrust> {
        let Some(locators) = Locators::from_wire(&reply.address) else {
            return Ok(HelloStatus::Malformed);
        };
        let status = HelloStatus::from_wire(reply.status).unwrap_or(HelloStatus::Malformed);
        let is_peer = reply.address.engine.get() == self.hello.target.get();
        let (ip, port) = (self.remote.ip(), self.remote.port());
        let is_entitled = match status {
            HelloStatus::WrongEngine => {
                !is_peer && locators.iter().any(|own| (own.ip(), own.port()) == (ip, port))
            }
            _ => is_peer,
        };
        if is_entitled { Ok(status) } else { Err(Distrust::Elsewhere(locators.first())) }
    }
}

/// Returns whether a hello of a control lane was made with the secret, in any exchange.
pub(crate) fn is_of_job(keys: &JobKeys, hello: &Hello) -> bool {
    is_equal(&hello_tag(&keys.hello, hello), &hello.tag)
}

/// Returns whether a hello of a bulk lane was made with the session's join key. Check its lane
/// number with the session's [`JoinWindow`] next.
pub(crate) fn is_of_session(keys: &SessionKeys, hello: &Hello) -> bool {
    matches!(hello.kind, KIND_BULK | KIND_MOVE)
        && is_equal(&hello_tag(&keys.join, hello), &hello.tag)
}

/// The accepting side of a handshake, from the reply to the proof.
#[derive(Clone, Debug)]
pub(crate) struct Acceptor {
    expected: ProofTag,
    keys: SessionKeys,
}

impl Acceptor {
    /// Completes the reply to the hello of a control lane, an accepting or a refusing one, with
    /// `nonce`, which is random. A proof is expected after an accepting one only.
    pub(crate) fn answer(
        keys: &JobKeys,
        hello: &Hello,
        reply: HelloReply,
        nonce: Nonce,
    ) -> (HelloReply, Self) {
        let flags = reply.flags | if keys.is_insecure() { FLAG_INSECURE } else { 0 };
        let mut reply = HelloReply { nonce, flags, ..reply };
        reply.proof = transcript_tag(&keys.proof, LABEL_ACCEPTOR, hello, &reply);
        let expected = transcript_tag(&keys.proof, LABEL_INITIATOR, hello, &reply);
        (reply, Self { expected, keys: session_keys(keys, hello, &reply) })
    }

    /// Returns the keys of the session, if the proof is valid.
    pub(crate) fn handle_proof(self, proof: &Proof) -> Result<SessionKeys, Distrust> {
        let is_right = proof.magic == PROOF_MAGIC && is_equal(&self.expected, &proof.proof);
        if is_right { Ok(self.keys) } else { Err(Distrust::Secret) }
    }
}

/// Completes the reply to the hello of a bulk lane: `session` are the keys of its session where the
/// status depends on it.
pub(crate) fn answer_join(
    keys: &JobKeys,
    session: Option<&SessionKeys>,
    hello: &Hello,
    reply: HelloReply,
    nonce: Nonce,
) -> HelloReply {
    let mut reply = HelloReply { nonce, ..reply };
    let key = session.map_or(&keys.proof, |session| &session.join);
    reply.proof = transcript_tag(key, LABEL_JOIN_REPLY, hello, &reply);
    reply
}

/// The used lane numbers of a session: each joins once.
///
/// The network may reorder joins, so the last 64 numbers are tracked individually; older ones count
/// as used.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct JoinWindow {
    /// One more than the highest number used.
    next: u64,
    /// Bit `n`: number `next - 1 - n` was used.
    used: u64,
}

impl JoinWindow {
    /// Marks a number as used. Returns `false` if it was used before, or is too old to be checked.
    pub(crate) fn use_up(&mut self, number: u32) -> bool {
        debug_assert!(self.next == 0 || self.used & 1 == 1, "the highest number was used");
        let number = u64::from(number);
        if number >= self.next {
            let ahead = number + 1 - self.next;
            self.used = if ahead < 64 { self.used << ahead } else { 0 } | 1;
            self.next = number + 1;
            return true;
        }
        let behind = self.next - 1 - number;
        if behind >= 64 || self.used >> behind & 1 == 1 {
            return false;
        }
        self.used |= 1 << behind;
        true
    }
}

#[cfg(test)]
mod tests;
