//! Counts of pause frames of NICs, read through ethtool's netlink family.
//!
//! ```text
//! nlmsghdr (16) | genlmsghdr (4) | attributes, each: length u16, type u16, value, padding to 4
//! ```
//!
//! Everything is in the byte order of the host.

use std::io;

use netlink_sys::protocols::NETLINK_GENERIC;
use netlink_sys::{Socket, SocketAddr};

use super::odd_answer;

const NLM_F_REQUEST: u16 = 1;
/// The type of an error message.
const NLMSG_ERROR: u16 = 2;
/// The family that resolves the numbers of others.
const CONTROL: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const ETHTOOL_MSG_PAUSE_GET: u8 = 21;
const ETHTOOL_A_PAUSE_HEADER: u16 = 1;
const ETHTOOL_A_PAUSE_STATS: u16 = 5;
const ETHTOOL_A_HEADER_DEV_INDEX: u16 = 1;
const ETHTOOL_A_HEADER_FLAGS: u16 = 3;
const ETHTOOL_FLAG_STATS: u32 = 4;
const ETHTOOL_A_PAUSE_STAT_TX_FRAMES: u16 = 2;
const ETHTOOL_A_PAUSE_STAT_RX_FRAMES: u16 = 3;
/// The flag of an attribute that contains other attributes.
const NESTED: u16 = 0x8000;
/// The mask of the type within an attribute's type field.
const TYPE_MASK: u16 = 0x3fff;
const HEADER_BYTES: usize = 20;
/// Buffer size for one answer, which has a few hundred bytes.
const ANSWER_BYTES: usize = 4096;
/// How many answers to earlier requests are skipped.
const STALE_ANSWERS_MAX: usize = 16;

/// Frames that ask the other end of a link to wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pauses {
    pub(crate) sent: u64,
    pub(crate) received: u64,
}

/// A socket for ethtool, of one network namespace.
#[derive(Debug)]
pub(crate) struct Ethtool {
    socket: Socket,
    family: u16,
    sequence: u32,
}

impl Ethtool {
    /// Opens the socket, in the network namespace of the calling thread.
    ///
    /// # Errors
    ///
    /// No descriptor is left, or the kernel has no ethtool netlink (before 5.6).
    pub(crate) fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_GENERIC)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        socket.set_non_blocking(true)?;
        let mut netlink = Self { socket, family: CONTROL, sequence: 0 };
        let name = attribute(CTRL_ATTR_FAMILY_NAME, b"ethtool\0");
        let answer = netlink.ask(CTRL_CMD_GETFAMILY, &name)?;
        let family = find(&answer, CTRL_ATTR_FAMILY_ID).and_then(|value| value.try_into().ok());
        netlink.family = u16::from_ne_bytes(family.ok_or_else(odd_answer)?);
        Ok(netlink)
    }

    /// Returns the counts of the NIC with this index; `None` if its driver does not count pause
    /// frames. Takes two system calls.
    ///
    /// # Errors
    ///
    /// There is no such NIC, or the kernel does not answer.
    pub(crate) fn pauses(&mut self, nic_index: u32) -> io::Result<Option<Pauses>> {
        let index = attribute(ETHTOOL_A_HEADER_DEV_INDEX, &nic_index.to_ne_bytes());
        let flags = attribute(ETHTOOL_A_HEADER_FLAGS, &ETHTOOL_FLAG_STATS.to_ne_bytes());
        let header = attribute(ETHTOOL_A_PAUSE_HEADER | NESTED, &[index, flags].concat());
        match self.ask(ETHTOOL_MSG_PAUSE_GET, &header) {
            Ok(answer) => Ok(pauses_in(&answer)),
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sends one request and returns the attributes of its answer.
    fn ask(&mut self, command: u8, attributes: &[u8]) -> io::Result<Vec<u8>> {
        self.sequence = self.sequence.wrapping_add(1).max(1);
        let request = message(self.family, self.sequence, command, attributes);
        self.socket.send(&request, libc::MSG_DONTWAIT)?;
        let mut answer = Vec::with_capacity(ANSWER_BYTES);
        for _ in 0..STALE_ANSWERS_MAX {
            answer.clear();
            let length = self.socket.recv(&mut answer, libc::MSG_DONTWAIT)?;
            if let Some(body) = body_of(&answer[..length.min(answer.len())], self.sequence)? {
                return Ok(body.to_vec());
            }
        }
        Err(odd_answer())
    }
}

fn message(family: u16, sequence: u32, command: u8, attributes: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES + attributes.len());
    bytes.extend_from_slice(&((HEADER_BYTES + attributes.len()) as u32).to_ne_bytes());
    bytes.extend_from_slice(&family.to_ne_bytes());
    bytes.extend_from_slice(&NLM_F_REQUEST.to_ne_bytes());
    bytes.extend_from_slice(&sequence.to_ne_bytes());
    bytes.extend_from_slice(&[0; 4]);
    // Version 1 of either family.
    bytes.extend_from_slice(&[command, 1, 0, 0]);
    bytes.extend_from_slice(attributes);
    bytes
}

/// Returns the payload of an answer; `None` if it answers another request.
fn body_of(answer: &[u8], sequence: u32) -> io::Result<Option<&[u8]>> {
    let field = |at: usize| answer.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
    let number = |at: usize| field(at).map(u32::from_ne_bytes).ok_or_else(odd_answer);
    let (length, kind) = (number(0)? as usize, (number(4)?.to_ne_bytes()));
    if number(8)? != sequence {
        return Ok(None);
    }
    if u16::from_ne_bytes([kind[0], kind[1]]) == NLMSG_ERROR {
        return Err(io::Error::from_raw_os_error((number(16)? as i32).wrapping_neg()));
    }
    answer.get(HEADER_BYTES..length).map(Some).ok_or_else(odd_answer)
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = (4 + value.len()) as u16;
    let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend_from_slice(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Returns the value of the first attribute of a kind.
fn find(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let (&[a, b, c, d], _) = attributes.split_first_chunk()?;
        let (length, kind) = (u16::from_ne_bytes([a, b]), u16::from_ne_bytes([c, d]));
        let value = attributes.get(4..usize::from(length))?;
        if kind & TYPE_MASK == wanted {
            return Some(value);
        }
        attributes = attributes.get(usize::from(length).next_multiple_of(4)..)?;
    }
}

fn pauses_in(answer: &[u8]) -> Option<Pauses> {
    let counted = find(answer, ETHTOOL_A_PAUSE_STATS)?;
    let number = |kind| {
        let value = find(counted, kind)?.try_into().ok()?;
        Some(u64::from_ne_bytes(value))
    };
    let (sent, received) =
        (number(ETHTOOL_A_PAUSE_STAT_TX_FRAMES), number(ETHTOOL_A_PAUSE_STAT_RX_FRAMES));
    // A driver may count one direction only.
    (sent.is_some() || received.is_some())
        .then(|| Pauses { sent: sent.unwrap_or(0), received: received.unwrap_or(0) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(sequence: u32, attributes: &[u8]) -> Vec<u8> {
        message(30, sequence, 23, attributes)
    }

    #[test]
    fn pauses_are_found_behind_padding_and_other_attributes() {
        let counted = [
            attribute(1, &[]),
            attribute(ETHTOOL_A_PAUSE_STAT_TX_FRAMES, &7u64.to_ne_bytes()),
            attribute(ETHTOOL_A_PAUSE_STAT_RX_FRAMES, &9u64.to_ne_bytes()),
        ]
        .concat();
        let all = [attribute(2, &[1]), attribute(ETHTOOL_A_PAUSE_STATS | NESTED, &counted)];
        let bytes = answer(5, &all.concat());
        let body = body_of(&bytes, 5).unwrap().unwrap();
        assert_eq!(pauses_in(body), Some(Pauses { sent: 7, received: 9 }));
        assert!(body_of(&bytes, 6).unwrap().is_none(), "it answers another question");
        // A driver without counters sends an empty attribute, or none.
        assert_eq!(pauses_in(&all[0]), None);
        assert_eq!(pauses_in(&attribute(ETHTOOL_A_PAUSE_STATS | NESTED, &[])), None);
    }

    #[test]
    fn truncated_answers_are_errors_or_none() {
        let counted = attribute(ETHTOOL_A_PAUSE_STAT_TX_FRAMES, &7u64.to_ne_bytes());
        let whole = answer(5, &attribute(ETHTOOL_A_PAUSE_STATS | NESTED, &counted));
        for length in 0..whole.len() {
            assert!(body_of(&whole[..length], 5).is_err(), "{length}");
            let body = &whole[HEADER_BYTES.min(length)..length];
            assert_eq!(pauses_in(body), None, "{length}");
        }
        // A length of zero does not loop forever.
        assert_eq!(find(&[0; 64], 3), None);
        let mut error = answer(5, &(-libc::ENODEV).to_ne_bytes());
        error[4..6].copy_from_slice(&NLMSG_ERROR.to_ne_bytes());
        error.drain(16..20);
        let refused = body_of(&error, 5).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::ENODEV));
    }

    #[test]
    fn loopback_has_no_pauses_and_missing_nic_is_an_error() {
        let mut netlink = match Ethtool::open() {
            Ok(netlink) => netlink,
            // A kernel without the family returns this error.
            Err(error) => return assert_eq!(error.raw_os_error(), Some(libc::ENOENT), "{error}"),
        };
        assert_eq!(netlink.pauses(1).unwrap(), None);
        let error = netlink.pauses(0x7fff_fff0).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV), "{error}");
        assert_eq!(netlink.pauses(1).unwrap(), None, "it goes on after an error");
    }
}
