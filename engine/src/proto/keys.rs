//! Keys: their derivation from the job's secret, and their use in proofs and tags.
//!
//! ```text
//!  job secret ──┬── hello key     tags hellos of control lanes
//!  (or a public ├── proof key     proofs in replies, also in refusals, and of the initiator
//!  key)         └── session root ──┐
//!                                  v
//!        both nonces, both engine ids, session id, epoch
//!                                  ├── join key ──┬──── tags joins of bulk lanes and their replies
//!                                  │              └──── proofs before memory is shared
//!                                  ├── forward key  ──┐
//!                                  └── backward key ──┤
//!                                                     ├── lane number ── chunk key
//!                                                     └── path number ── packet key
//! ```
//!
//! Derivation is BLAKE3's `derive_key` with one context text per use, proofs are BLAKE3 keyed
//! hashes cut to 16 bytes, tags of chunks and packets are HighwayHash-64. "Forward" is from the
//! side that connected, the initiator.

use std::fmt;

use highway::{HighwayHash, HighwayHasher};
use subtle::ConstantTimeEq;
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use crate::secret::JobSecret;
use crate::wire::chunk::CHUNK_TAG_BYTES;
use crate::wire::packet::PACKET_TAG_BYTES;

/// Length of nonces, in bytes.
pub(crate) const NONCE_BYTES: usize = 16;
/// Length of proofs and of the tags of hellos, in bytes.
pub(crate) const PROOF_TAG_BYTES: usize = 16;

/// A random number for a single use.
pub(crate) type Nonce = [u8; NONCE_BYTES];
/// A truncated keyed hash.
pub(crate) type ProofTag = [u8; PROOF_TAG_BYTES];

const KEY_BYTES: usize = 32;

/// Used in place of the secret where there is none.
const NO_SECRET: &[u8] = b"ringrail: insecure, a key that everybody knows";

/// A key that is overwritten when it is dropped.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub(crate) struct Key([u8; KEY_BYTES]);

impl fmt::Debug for Key {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Key(hidden)")
    }
}

impl Key {
    fn derive(context: &str, material: &[u8]) -> Self {
        Self(blake3::derive_key(context, material))
    }

    /// Returns the keyed hash of the concatenated `parts`: lengths of all but the last are fixed by
    /// the caller.
    pub(super) fn tag(&self, parts: &[&[u8]]) -> ProofTag {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        for part in parts {
            hasher.update(part);
        }
        let mut tag = [0; PROOF_TAG_BYTES];
        tag.copy_from_slice(&hasher.finalize().as_bytes()[..PROOF_TAG_BYTES]);
        hasher.zeroize();
        tag
    }
}

/// Returns whether two tags are equal, in constant time.
pub(super) fn is_equal(a: &[u8], b: &[u8]) -> bool {
    a.ct_eq(b).into()
}

/// The keys of a job.
#[derive(Clone, Debug)]
pub(crate) struct JobKeys {
    pub(super) hello: Key,
    pub(super) proof: Key,
    session_root: Key,
    is_insecure: bool,
}

impl JobKeys {
    /// Derives the keys from `secret`; `None`: the job runs insecure.
    pub(crate) fn new(secret: Option<&JobSecret>) -> Self {
        let material = secret.map_or(NO_SECRET, |secret| &secret.bytes()[..]);
        Self {
            hello: Key::derive("ringrail wire 6: hello of a control lane", material),
            proof: Key::derive("ringrail wire 6: proof of the job secret", material),
            session_root: Key::derive("ringrail wire 6: root of session keys", material),
            is_insecure: secret.is_none(),
        }
    }

    /// Returns whether they are the publicly known ones.
    pub(crate) fn is_insecure(&self) -> bool {
        self.is_insecure
    }

    /// Derives the keys of a session.
    ///
    /// RR-AUTH-5.
    pub(super) fn session(&self, names: &SessionNames) -> SessionKeys {
        let SessionNames { initiator, acceptor, session, epoch, .. } = names;
        let mut hasher = blake3::Hasher::new_derive_key("ringrail wire 6: keys of a session");
        hasher.update(&self.session_root.0);
        hasher.update(&names.initiator_nonce).update(&names.acceptor_nonce);
        hasher.update(&initiator.to_le_bytes()).update(&acceptor.to_le_bytes());
        hasher.update(&session.to_le_bytes()).update(&epoch.to_le_bytes());
        let mut bytes = Zeroizing::new([0; 3 * KEY_BYTES]);
        let mut output = hasher.finalize_xof();
        output.fill(&mut *bytes);
        output.zeroize();
        hasher.zeroize();
        let key = |index: usize| {
            let mut key = Key([0; KEY_BYTES]);
            key.0.copy_from_slice(&bytes[index * KEY_BYTES..(index + 1) * KEY_BYTES]);
            key
        };
        SessionKeys { join: key(0), forward: key(1), backward: key(2) }
    }
}

/// Inputs that the keys of a session are bound to.
#[derive(Clone, Copy, Debug)]
pub(super) struct SessionNames {
    pub(super) initiator: u64,
    pub(super) acceptor: u64,
    pub(super) initiator_nonce: Nonce,
    pub(super) acceptor_nonce: Nonce,
    pub(super) session: u64,
    pub(super) epoch: u32,
}

/// The keys of a session.
#[derive(Clone, Debug)]
pub(crate) struct SessionKeys {
    pub(super) join: Key,
    forward: Key,
    backward: Key,
}

impl SessionKeys {
    /// Returns keys of a session without a handshake.
    #[cfg(test)]
    pub(crate) fn for_tests() -> Self {
        JobKeys::new(None).session(&SessionNames {
            initiator: 1,
            acceptor: 2,
            initiator_nonce: [3; NONCE_BYTES],
            acceptor_nonce: [4; NONCE_BYTES],
            session: 5,
            epoch: 6,
        })
    }

    /// Returns the key with which both sides authenticate before they share memory.
    ///
    /// RR-SHM-2.
    pub(crate) fn shared_memory(&self) -> Zeroizing<[u8; KEY_BYTES]> {
        Zeroizing::new(blake3::derive_key(
            "ringrail wire 8: shared memory of a session",
            &self.join.0,
        ))
    }

    /// Derives the keys of bulk lane `number`, for the side that connected the session or the other
    /// one.
    pub(crate) fn lane(&self, number: u32, is_initiator: bool) -> LaneKeys {
        self.tag_keys("ringrail wire 6: chunks of a lane", number, is_initiator)
    }

    /// Derives the keys of path `number`, likewise.
    ///
    /// RR-PKT-14.
    pub(crate) fn path(&self, number: u16, is_initiator: bool) -> LaneKeys {
        self.tag_keys("ringrail wire 6: packets of a path", number.into(), is_initiator)
    }

    fn tag_keys(&self, context: &str, number: u32, is_initiator: bool) -> LaneKeys {
        let key = |direction: &Key| {
            let mut hasher = blake3::Hasher::new_derive_key(context);
            hasher.update(&direction.0).update(&number.to_le_bytes());
            let key = Zeroizing::new(*hasher.finalize().as_bytes());
            hasher.zeroize();
            let mut words = [0; 4];
            for (word, bytes) in words.iter_mut().zip(key.chunks_exact(8)) {
                *word = bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
            }
            TagKey(words)
        };
        let (forward, backward) = (key(&self.forward), key(&self.backward));
        if is_initiator {
            LaneKeys { send: forward, receive: backward }
        } else {
            LaneKeys { send: backward, receive: forward }
        }
    }
}

/// The keys of a bulk lane or a path, as one of its sides uses them.
#[derive(Clone, Debug)]
pub(crate) struct LaneKeys {
    pub(crate) send: TagKey,
    pub(crate) receive: TagKey,
}

/// Tags chunk headers of one direction of one lane, or packets of one direction of one path.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub(crate) struct TagKey([u64; 4]);

impl fmt::Debug for TagKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("TagKey(hidden)")
    }
}

impl TagKey {
    /// Returns the tag of a header without its tag. The chunk's number in it makes each different.
    #[inline]
    pub(crate) fn tag(&self, header: &[u8]) -> [u8; CHUNK_TAG_BYTES] {
        // `hash64` is these two, but not necessarily inlined.
        let mut hasher = HighwayHasher::new(highway::Key(self.0));
        hasher.append(header);
        hasher.finalize64().to_le_bytes()
    }

    /// Appends the tag of packet `number` to its first `length` bytes, where there is space.
    #[inline(always)]
    pub(crate) fn seal_packet(&self, datagram: &mut [u8], length: usize, number: u64) {
        let end = length + PACKET_TAG_BYTES;
        datagram[length..end].copy_from_slice(&number.to_le_bytes());
        let tag = self.tag(&datagram[..end]);
        datagram[length..end].copy_from_slice(&tag);
    }

    /// Returns whether the tag at the end of a datagram is that of packet `number`; it is
    /// overwritten. `datagram` is not shorter than a tag.
    ///
    /// RR-PKT-14.
    #[inline(always)]
    pub(crate) fn open_packet(&self, datagram: &mut [u8], number: u64) -> bool {
        let Some((_, end)) = datagram.split_last_chunk_mut::<PACKET_TAG_BYTES>() else {
            return false;
        };
        let tag = std::mem::replace(end, number.to_le_bytes());
        // One comparison of whole words takes constant time.
        u64::from_le_bytes(self.tag(datagram)) == u64::from_le_bytes(tag)
    }

    /// Returns whether `tag` is that of `header`.
    ///
    /// RR-AUTH-7.
    #[inline]
    pub(crate) fn fits(&self, header: &[u8], tag: &[u8; CHUNK_TAG_BYTES]) -> bool {
        is_equal(&self.tag(header), tag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RR-PKT-14
    #[test]
    fn packet_tag_depends_on_number_path_and_direction() {
        let keys = SessionKeys::for_tests();
        let (near, far) = (keys.path(0, true), keys.path(0, false));
        let number = 0x1_0000_0007;
        let mut datagram = [7; 40];
        near.send.seal_packet(&mut datagram, 32, number);
        assert!(far.receive.open_packet(&mut datagram.clone(), number));
        assert!(!far.receive.open_packet(&mut datagram.clone(), number & 0xffff_ffff));
        assert!(!near.receive.open_packet(&mut datagram.clone(), number));
        assert!(!keys.path(1, false).receive.open_packet(&mut datagram.clone(), number));
        for bit in 0..40 * 8 {
            let mut garbled = datagram;
            garbled[bit / 8] ^= 1 << (bit % 8);
            assert!(!far.receive.open_packet(&mut garbled, number), "bit {bit}");
        }
        let mut tag_alone = [0; PACKET_TAG_BYTES];
        assert!(!far.receive.open_packet(&mut tag_alone, 0));
    }

    fn names() -> SessionNames {
        SessionNames {
            initiator: 1,
            acceptor: 2,
            initiator_nonce: [3; NONCE_BYTES],
            acceptor_nonce: [4; NONCE_BYTES],
            session: 5,
            epoch: 6,
        }
    }

    /// RR-AUTH-5
    #[test]
    fn every_input_changes_the_session_keys() {
        let jobs = [None, Some(JobSecret::random()), Some(JobSecret::random())];
        let jobs = jobs.each_ref().map(|secret| JobKeys::new(secret.as_ref()));
        let base = names();
        let variants = [
            base,
            SessionNames { initiator: 9, ..base },
            SessionNames { acceptor: 9, ..base },
            SessionNames { initiator: 2, acceptor: 1, ..base },
            SessionNames { initiator_nonce: [9; NONCE_BYTES], ..base },
            SessionNames { acceptor_nonce: [9; NONCE_BYTES], ..base },
            SessionNames { session: 9, ..base },
            SessionNames { epoch: 9, ..base },
        ];
        let mut seen: std::collections::HashSet<Vec<u8>> = std::collections::HashSet::new();
        for job in &jobs {
            for names in variants {
                let keys = job.session(&names);
                assert!(seen.insert(keys.join.0.to_vec()));
                for number in [0, 1] {
                    let lane = keys.lane(number, true);
                    for key in [&lane.send, &lane.receive] {
                        assert!(seen.insert(key.0.iter().flat_map(|w| w.to_le_bytes()).collect()));
                    }
                }
            }
        }
    }

    #[test]
    fn send_keys_match_the_peer_receive_keys() {
        let keys = JobKeys::new(None).session(&names());
        let (connected, accepted) = (keys.lane(7, true), keys.lane(7, false));
        let tag = connected.send.tag(b"header");
        assert!(accepted.receive.fits(b"header", &tag));
        assert!(!accepted.receive.fits(b"headeR", &tag));
        // A reflected tag does not verify.
        assert!(!connected.receive.fits(b"header", &tag));
    }

    #[test]
    fn debug_output_contains_no_key() {
        let keys = JobKeys::new(Some(&JobSecret::random()));
        let shown = format!("{keys:?} {:?}", keys.session(&names()).lane(1, true));
        assert!(!shown.chars().any(|c| c.is_ascii_digit()), "{shown}");
    }
}
