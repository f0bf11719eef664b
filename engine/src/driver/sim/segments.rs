//! Links that silently pass short packets only, and what that means for streams.
//!
//! A host does not know of it: its NIC takes more. A segment that is longer vanishes each time the
//! kernel sends it, and nothing behind it is ever acknowledged. What is written in shorter pieces
//! passes.

use super::net::Net;
use super::rails::{At, RETRANSMIT_NS};
use crate::driver::traits::Resent;

/// Bytes of a stream in one segment where no connection has asked for less: those of a packet of
/// 9000 bytes.
pub(super) const SEGMENT_BYTES_USUAL: usize = 8948;
/// Headers of IP and TCP, with time stamps.
const STREAM_HEADER_BYTES: usize = 52;
/// Headers of IP and UDP.
const DATAGRAM_HEADER_BYTES: usize = 28;
/// Bytes of options that a limit of segments includes.
const OPTION_BYTES: usize = 12;

/// Bytes of a stream in one segment of a connection that was opened with a limit.
pub(super) fn within(limit: Option<u16>) -> usize {
    limit.map_or(SEGMENT_BYTES_USUAL, |bytes| usize::from(bytes) - OPTION_BYTES)
}

impl Net {
    /// Longer IP packets than this vanish on the links of a host from now on, in either direction;
    /// 0: none.
    pub(crate) fn limit_packets(&mut self, host: usize, bytes: usize) {
        self.hosts[host].links.iter_mut().for_each(|link| link.packet_bytes_max = bytes);
    }

    /// Longest IP packet that comes from one link to another.
    fn passes(&self, from: At, to: At) -> usize {
        let limit = |at: At| match self.hosts[at.host].links[at.link].packet_bytes_max {
            0 => usize::MAX,
            bytes => bytes,
        };
        limit(from).min(limit(to))
    }

    /// Whether a datagram is too long for two links.
    pub(super) fn is_too_long(&self, from: At, to: At, length: usize) -> bool {
        length + DATAGRAM_HEADER_BYTES > self.passes(from, to)
    }

    /// Whether `count` bytes that `side` of a connection writes never arrive: their segments are
    /// too long, or those before were.
    pub(super) fn swallows(&self, index: usize, side: usize, count: usize) -> bool {
        let connection = &self.connections[index];
        let ends = &connection.ends;
        let Some((from, to)) = ends[side].at().zip(ends[1 - side].at()) else { return false };
        let longest = connection.segment_bytes.min(count) + STREAM_HEADER_BYTES;
        connection.pipes[side].held_since_ns().is_some() || longest > self.passes(from, to)
    }

    /// Retransmissions of what is held back; `None`: there are none.
    pub(super) fn resent(&self, index: usize, side: usize) -> Option<Resent> {
        let connection = &self.connections[index];
        let silent_ns = self.now_ns() - connection.pipes[side].held_since_ns()?;
        let times = (silent_ns / RETRANSMIT_NS + 1).ilog2();
        let segment_bytes = connection.segment_bytes as u32;
        (times > 0).then_some(Resent { times, segment_bytes })
    }
}
