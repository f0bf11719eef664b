//! Memory that one neighbour asks the other for, to map it: by the socket of their channel.
//!
//! Whether it is given, the engine decides; here its descriptor moves. A neighbour may ask as often
//! as its socket lets it, and answer what nobody asked: both are only passed on.

use std::io;
use std::os::fd::AsFd;

use zerocopy::{FromBytes, IntoBytes};

use super::socket::{self, Packet};
use super::{Channel, Shm};
use crate::driver::lanes::{DriverEvent, GivenMemory, MemoryPiece};
use crate::wire::neighbour::{MemoryAnswer, MemoryRequest, SIGN_ASKS, SIGN_GIVES};

/// What a packet of a neighbour says of memory; `None`: it says something else, or nothing.
pub(super) fn event_of(session: u64, packet: Packet) -> Option<DriverEvent> {
    let bytes = packet.bytes();
    match *bytes.first()? {
        SIGN_ASKS if packet.descriptor.is_none() => {
            let asked = MemoryRequest::read_from_bytes(bytes).ok()?;
            let (token, key) = (asked.token.get(), asked.key.get());
            Some(DriverEvent::MemoryAsked { session, token, key })
        }
        SIGN_GIVES => {
            let given = MemoryAnswer::read_from_bytes(bytes).ok()?;
            let answer = match (given.code, packet.descriptor) {
                (0, Some(descriptor)) => {
                    let (offset, length) = (given.offset.get(), given.length.get());
                    Ok(GivenMemory { descriptor, offset, length })
                }
                (0, None) | (_, Some(_)) => return None,
                (code, None) => Err(code),
            };
            Some(DriverEvent::MemoryGiven { session, token: given.token.get(), answer })
        }
        _ => None,
    }
}

impl Shm {
    /// The next question for memory, or answer to one.
    #[inline]
    pub(in crate::driver) fn next_memory_news(&mut self) -> Option<DriverEvent> {
        self.memory_news.pop_front()
    }

    /// The channel of a session that has not ended.
    fn channel_of(&self, session: u64) -> io::Result<&Channel> {
        let index = self.by_session.get(&session).copied();
        let channel = index.and_then(|index| self.channels.get(index as usize)?.as_ref());
        let channel = channel.filter(|channel| !channel.is_ending());
        channel.ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// See [`crate::driver::lanes::DatagramPort::ask_for_memory`].
    pub(in crate::driver) fn ask_for_memory(
        &mut self,
        session: u64,
        token: u32,
        key: u64,
    ) -> io::Result<()> {
        let channel = self.channel_of(session)?;
        let (token, key) = (token.into(), key.into());
        let asked = MemoryRequest { sign: SIGN_ASKS, reserved: [0; 3], token, key };
        socket::send(channel.socket.as_fd(), asked.as_bytes(), None)
    }

    /// See [`crate::driver::lanes::DatagramPort::give_memory`].
    pub(in crate::driver) fn give_memory(
        &mut self,
        session: u64,
        token: u32,
        answer: Result<MemoryPiece<'_>, u8>,
    ) -> io::Result<()> {
        let channel = self.channel_of(session)?;
        let (code, offset, length) = match answer {
            Ok(piece) => (0, piece.offset, piece.length),
            Err(code) => (code, 0, 0),
        };
        let given = MemoryAnswer {
            sign: SIGN_GIVES,
            code,
            reserved: [0; 2],
            token: token.into(),
            offset: offset.into(),
            length: length.into(),
        };
        let descriptor = answer.ok().map(|piece| piece.descriptor);
        socket::send(channel.socket.as_fd(), given.as_bytes(), descriptor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::os::fd::{AsRawFd, OwnedFd};

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    /// What comes of a packet of a neighbour that may be hostile.
    fn heard(bytes: &[u8], has_descriptor: bool) -> Option<DriverEvent> {
        let (flags, kind) = (SocketFlags::CLOEXEC, SocketType::SEQPACKET);
        let (ours, theirs) = socketpair(AddressFamily::UNIX, kind, flags, None).unwrap();
        let descriptor: Option<OwnedFd> = has_descriptor.then(|| ours.try_clone().unwrap());
        let descriptor = descriptor.as_ref().map(AsFd::as_fd);
        socket::send(theirs.as_fd(), bytes, descriptor).unwrap();
        event_of(9, socket::receive(ours.as_fd()).unwrap())
    }

    fn answer(code: u8) -> MemoryAnswer {
        let (offset, length) = (5.into(), 6.into());
        MemoryAnswer { sign: SIGN_GIVES, code, reserved: [0; 2], token: 3.into(), offset, length }
    }

    /// RR-SHM-9
    #[test]
    fn questions_and_answers_arrive_and_anything_else_is_none() {
        let (token, key) = (3.into(), 4.into());
        let asked = MemoryRequest { sign: SIGN_ASKS, reserved: [0; 3], token, key };
        let asked = asked.as_bytes();
        let event = heard(asked, false);
        let Some(DriverEvent::MemoryAsked { session: 9, token: 3, key: 4 }) = event else {
            panic!("{event:?}");
        };
        let event = heard(answer(0).as_bytes(), true);
        let Some(DriverEvent::MemoryGiven { session: 9, token: 3, answer: Ok(given) }) = event
        else {
            panic!("{event:?}");
        };
        assert_eq!((given.offset, given.length), (5, 6));
        assert!(given.descriptor.as_raw_fd() >= 0);
        let event = heard(answer(11).as_bytes(), false);
        let Some(DriverEvent::MemoryGiven { session: 9, token: 3, answer: Err(11) }) = event else {
            panic!("{event:?}");
        };
        for (bytes, has_descriptor) in [
            (asked, true),
            (&asked[..15], false),
            (&[asked, &[0]].concat()[..], false),
            (answer(0).as_bytes(), false),
            (answer(1).as_bytes(), true),
            (&answer(1).as_bytes()[..23], false),
            (&[5; 24][..], false),
            (&[0][..], false),
        ] {
            let event = heard(bytes, has_descriptor);
            assert!(event.is_none(), "{bytes:?} {has_descriptor}: {event:?}");
        }
    }
}
