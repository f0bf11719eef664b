//! What goes over a bootstrap connection.
//!
//! ```text
//! client: magic (8) | frame | frame ...        server: frame | frame ...
//! frame:  length (4) | kind (1) | body (length)
//! hello:  rank (4) | ranks (4) | instance (16) | label field | job field
//! result: one field for each rank              field: length (4) | bytes
//! ```
//! All numbers are little-endian.

use crate::bootstrap::collective::take_field;
use crate::bootstrap::{BootstrapError, KEY_BYTES_MAX, PART_BYTES_MAX};

/// The last byte is the version.
pub(super) const MAGIC: [u8; 8] = *b"RRBOOT\0\x01";

/// The random number of a process; distinguishes processes that claim the same rank.
pub(super) type Instance = [u8; 16];

/// Frame kinds.
pub(super) mod kind {
    /// Client: who I am.
    pub(crate) const HELLO: u8 = 1;
    /// Server: the rank is accepted.
    pub(crate) const ACCEPTED: u8 = 2;
    /// Server: not in this job; the body is a text.
    pub(crate) const REFUSED: u8 = 3;
    /// Client: my part of this round.
    pub(crate) const PART: u8 = 4;
    /// Server: the parts of all.
    pub(crate) const RESULT: u8 = 5;
    /// Client: I need nothing any more.
    pub(crate) const GOODBYE: u8 = 6;
    /// Server: the job failed; the body is an encoded error.
    pub(crate) const ABORT: u8 = 7;
}

pub(super) const FRAME_HEADER_BYTES: usize = 5;

/// A label and a job id at most, with the numbers in front.
pub(super) const HELLO_BYTES_MAX: usize = 24 + 2 * (4 + KEY_BYTES_MAX);

/// What a registered client may send in one frame.
pub(super) const CLIENT_BYTES_MAX: usize = PART_BYTES_MAX;

/// What the server may send in one frame: the parts of all ranks. With more, a shared directory
/// or the job's own launcher serves better.
pub(super) const RESULT_BYTES_MAX: usize = 1 << 30;

pub(super) fn frame(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(FRAME_HEADER_BYTES + body.len());
    // Bodies are bounded by the limits above, which fit 32 bits.
    bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
    bytes.push(kind);
    bytes.extend_from_slice(body);
    bytes
}

/// Length of the body and kind.
pub(super) fn parse_header(header: [u8; FRAME_HEADER_BYTES]) -> (usize, u8) {
    let [a, b, c, d, kind] = header;
    (u32::from_le_bytes([a, b, c, d]) as usize, kind)
}

/// Takes the next complete frame, if any, from the bytes that a client has sent; the magic precedes
/// the first. Returns `Err` if it is not a client, or if its frame is longer than `limit`.
pub(super) fn take_frame(
    incoming: &mut Vec<u8>,
    magic_seen: &mut bool,
    limit: usize,
) -> Result<Option<(u8, Vec<u8>)>, ()> {
    if !*magic_seen {
        let length = incoming.len().min(MAGIC.len());
        if incoming[..length] != MAGIC[..length] {
            return Err(());
        }
        if length < MAGIC.len() {
            return Ok(None);
        }
        *magic_seen = true;
        incoming.drain(..MAGIC.len());
    }
    let Some(header) = incoming.first_chunk::<FRAME_HEADER_BYTES>() else {
        return Ok(None);
    };
    let (length, kind) = parse_header(*header);
    if length > limit {
        return Err(());
    }
    if incoming.len() < FRAME_HEADER_BYTES + length {
        return Ok(None);
    }
    let frame: Vec<u8> = incoming.drain(..FRAME_HEADER_BYTES + length).collect();
    Ok(Some((kind, frame[FRAME_HEADER_BYTES..].to_vec())))
}

/// The identity that a client claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ClientHello {
    pub(super) rank: usize,
    pub(super) size: usize,
    pub(super) instance: Instance,
    pub(super) label: String,
    pub(super) job: String,
}

pub(super) fn push_field(bytes: &mut Vec<u8>, field: &[u8]) {
    bytes.extend_from_slice(&(field.len() as u32).to_le_bytes());
    bytes.extend_from_slice(field);
}

impl ClientHello {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&(self.rank as u32).to_le_bytes());
        bytes.extend_from_slice(&(self.size as u32).to_le_bytes());
        bytes.extend_from_slice(&self.instance);
        for text in [&self.label, &self.job] {
            push_field(&mut bytes, &text.as_bytes()[..text.len().min(KEY_BYTES_MAX)]);
        }
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (rank, rest) = bytes.split_first_chunk::<4>()?;
        let (size, rest) = rest.split_first_chunk::<4>()?;
        let (instance, rest) = rest.split_first_chunk::<16>()?;
        let (label, rest) = take_field(rest)?;
        let (job, rest) = take_field(rest)?;
        rest.is_empty().then(|| Self {
            rank: u32::from_le_bytes(*rank) as usize,
            size: u32::from_le_bytes(*size) as usize,
            instance: *instance,
            label: String::from_utf8_lossy(label).into_owned(),
            job: String::from_utf8_lossy(job).into_owned(),
        })
    }
}

/// Takes a result apart.
pub(super) fn decode_result(mut bytes: &[u8], size: usize) -> Result<Vec<Vec<u8>>, BootstrapError> {
    let mut parts = Vec::with_capacity(size.min(bytes.len()));
    while let Some((part, rest)) = take_field(bytes) {
        parts.push(part.to_vec());
        bytes = rest;
    }
    if bytes.is_empty() && parts.len() == size {
        return Ok(parts);
    }
    Err(BootstrapError::Malformed { detail: "a result of rank 0 cannot be read".into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn hello_roundtrip(
            rank: u32, size: u32, instance: [u8; 16], label in "\\PC{0,20}", job in "\\PC{0,20}",
        ) {
            let (rank, size) = (rank as usize, size as usize);
            let hello = ClientHello { rank, size, instance, label, job };
            let bytes = hello.encode();
            prop_assert!(bytes.len() <= HELLO_BYTES_MAX);
            prop_assert_eq!(ClientHello::decode(&bytes), Some(hello));
            prop_assert_eq!(ClientHello::decode(&bytes[..bytes.len() - 1]), None);
        }
    }
}
