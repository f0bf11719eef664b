//! How messages to a peer travel, by length.

use std::fmt;

/// How messages to a peer travel now, by length: see
/// [`Endpoint::send_protocol`](crate::Endpoint::send_protocol). `Display` describes it in one line:
///
/// ```text
/// up to 1400 bytes in one datagram, up to 64 KiB on the TCP connection,
/// longer ones pulled over TCP lanes
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SendProtocol {
    /// Ranges of lengths, in ascending order. The last one has no upper bound.
    pub ranges: Vec<SendRange>,
}

/// Messages that are longer than those of the range before, and how they travel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SendRange {
    /// The longest message of the range, in bytes, without remote data. `None`: there is no limit.
    pub longest: Option<u64>,
    /// What carries its messages.
    pub transport: SendTransport,
}

/// What carries a message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum SendTransport {
    /// A copy within the process: the peer is on the same engine.
    Loopback,
    /// One datagram, over the primary path.
    Datagram,
    /// One segment of the ring in shared memory.
    Ring,
    /// The session's TCP connection.
    Stream,
    /// The receiver reads it from the memory of this process (cross-memory attach).
    PulledFromMemory,
    /// The receiver asks for it, and it is copied through the ring in shared memory.
    PulledByRing,
    /// The receiver asks for it, and it goes over TCP lanes on all rails, into its buffer.
    PulledOverLanes,
    /// The receiver asks for it, and it goes in datagrams (`bulk_lane = datagram`).
    PulledInDatagrams,
}

impl fmt::Display for SendTransport {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Loopback => "copied within the process",
            Self::Datagram => "in one datagram",
            Self::Ring => "through shared memory",
            Self::Stream => "on the TCP connection",
            Self::PulledFromMemory => "read from the sender's memory",
            Self::PulledByRing => "pulled through shared memory",
            Self::PulledOverLanes => "pulled over TCP lanes",
            Self::PulledInDatagrams => "pulled in datagrams",
        })
    }
}

impl fmt::Display for SendProtocol {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, range) in self.ranges.iter().enumerate() {
            out.write_str(if at == 0 { "" } else { ", " })?;
            match range.longest {
                Some(bytes) if bytes >= 1024 && bytes.is_multiple_of(1024) => {
                    write!(out, "up to {} KiB ", bytes / 1024)?;
                }
                Some(bytes) => write!(out, "up to {bytes} bytes ")?,
                None => out.write_str(if at == 0 { "all messages " } else { "longer ones " })?,
            }
            range.transport.fmt(out)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_protocol_is_described_in_words() {
        let range = |longest, transport| SendRange { longest, transport };
        let ranges = vec![
            range(Some(1400), SendTransport::Datagram),
            range(Some(64 << 10), SendTransport::Stream),
            range(None, SendTransport::PulledOverLanes),
        ];
        assert_eq!(
            SendProtocol { ranges }.to_string(),
            "up to 1400 bytes in one datagram, up to 64 KiB on the TCP connection, \
             longer ones pulled over TCP lanes"
        );
        let ranges = vec![range(None, SendTransport::Loopback)];
        let all = SendProtocol { ranges }.to_string();
        assert_eq!(all, "all messages copied within the process");
    }
}
