//! Requests for memory to map, between local peers, by the socket of their channel.
//!
//! The engine decides whether to grant a request; this module passes the descriptor. A peer may
//! send requests as long as its socket takes them; an unsolicited answer ends the channel.

use std::io;
use std::os::fd::AsFd;
use std::time::Instant;

use zerocopy::{FromBytes, IntoBytes};

use super::socket::{self, Packet};
use super::{Channel, Shm};
use crate::driver::traits::{DriverEvent, MappableMemory, ReceivedMemory};
use crate::wire::local_peer::{MemoryAnswer, MemoryRequest, SIGNAL_ANSWER, SIGNAL_REQUEST};

/// Parses a local peer's packet about memory; `pending_requests` have no answer yet. `None`: the
/// packet is of another kind, answers no request, or is malformed.
pub(super) fn parse_event(
    session: u64,
    pending_requests: &mut u32,
    packet: Packet,
) -> Option<DriverEvent> {
    let bytes = packet.bytes();
    if packet.second.is_some() {
        return None;
    }
    match *bytes.first()? {
        SIGNAL_REQUEST if packet.descriptor.is_none() => {
            let asked = MemoryRequest::read_from_bytes(bytes).ok()?;
            let (token, key) = (asked.token.get(), asked.key.get());
            (asked.reserved == [0; 3]).then_some(DriverEvent::MemoryRequested {
                session,
                token,
                key,
            })
        }
        SIGNAL_ANSWER => {
            let given = MemoryAnswer::read_from_bytes(bytes).ok()?;
            // A descriptor that was not requested is not accepted.
            *pending_requests = pending_requests.checked_sub(1)?;
            let answer = match (given.code, packet.descriptor) {
                (0, Some(descriptor)) => {
                    let (offset, length) = (given.offset.get(), given.length.get());
                    Ok(ReceivedMemory { descriptor, offset, length })
                }
                (0, None) | (_, Some(_)) => return None,
                (code, None) => Err(code),
            };
            let event = DriverEvent::MemoryAnswered { session, token: given.token.get(), answer };
            (given.reserved == [0; 2]).then_some(event)
        }
        _ => None,
    }
}

impl Shm {
    /// The next request for memory, or answer to one.
    #[inline]
    pub(in crate::driver) fn next_memory_event(&mut self) -> Option<DriverEvent> {
        self.memory_events.pop_front()
    }

    /// Index and channel of a session, unless it is closing.
    fn channel_of(&mut self, session: u64) -> io::Result<(u32, &mut Channel)> {
        let index = self.by_session.get(&session).copied();
        let channel = index.and_then(|index| {
            let channel = self.channels.get_mut(index as usize)?.as_mut()?;
            (!channel.is_ending()).then_some((index, channel))
        });
        channel.ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// See [`crate::driver::traits::DatagramIo::request_memory`].
    pub(in crate::driver) fn request_memory(
        &mut self,
        session: u64,
        token: u32,
        key: u64,
    ) -> io::Result<()> {
        let (_, channel) = self.channel_of(session)?;
        let (token, key) = (token.into(), key.into());
        let asked = MemoryRequest { sign: SIGNAL_REQUEST, reserved: [0; 3], token, key };
        socket::send(channel.socket.as_fd(), asked.as_bytes(), &[])?;
        channel.pending_requests += 1;
        Ok(())
    }

    /// See [`crate::driver::traits::DatagramIo::answer_memory_request`].
    pub(in crate::driver) fn answer_memory_request(
        &mut self,
        session: u64,
        token: u32,
        answer: Result<MappableMemory<'_>, u8>,
    ) -> io::Result<()> {
        let (index, channel) = self.channel_of(session)?;
        let given = MemoryAnswer {
            sign: SIGNAL_ANSWER,
            code: answer.err().unwrap_or(0),
            reserved: [0; 2],
            token: token.into(),
            offset: answer.map_or(0, |piece| piece.offset).into(),
            length: answer.map_or(0, |piece| piece.length).into(),
        };
        let descriptor = answer.ok().map(|piece| piece.descriptor);
        let sent = socket::send(channel.socket.as_fd(), given.as_bytes(), descriptor.as_slice());
        if sent.is_err() && descriptor.is_none() {
            // The peer must not wait for ever.
            self.end_channel(index, Instant::now());
        }
        sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::os::fd::{AsRawFd, OwnedFd};

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    /// A message as received from a peer.
    fn packet(bytes: &[u8], has_descriptor: bool) -> Packet {
        let (flags, kind) = (SocketFlags::CLOEXEC, SocketType::SEQPACKET);
        let (ours, theirs) = socketpair(AddressFamily::UNIX, kind, flags, None).unwrap();
        let descriptor: Option<OwnedFd> = has_descriptor.then(|| ours.try_clone().unwrap());
        let descriptor = descriptor.as_ref().map(AsFd::as_fd);
        socket::send(theirs.as_fd(), bytes, descriptor.as_slice()).unwrap();
        socket::receive(ours.as_fd()).unwrap()
    }

    /// The event parsed after one request.
    fn parsed(bytes: &[u8], has_descriptor: bool) -> Option<DriverEvent> {
        parse_event(9, &mut 1, packet(bytes, has_descriptor))
    }

    fn answer(code: u8) -> MemoryAnswer {
        let (offset, length) = (5.into(), 6.into());
        MemoryAnswer {
            sign: SIGNAL_ANSWER,
            code,
            reserved: [0; 2],
            token: 3.into(),
            offset,
            length,
        }
    }

    /// RR-SHM-9
    #[test]
    fn memory_requests_and_answers_parse_and_others_are_rejected() {
        let (token, key) = (3.into(), 4.into());
        let asked = MemoryRequest { sign: SIGNAL_REQUEST, reserved: [0; 3], token, key };
        let asked = asked.as_bytes();
        let event = parsed(asked, false);
        let Some(DriverEvent::MemoryRequested { session: 9, token: 3, key: 4 }) = event else {
            panic!("{event:?}");
        };
        let event = parsed(answer(0).as_bytes(), true);
        let Some(DriverEvent::MemoryAnswered { session: 9, token: 3, answer: Ok(given) }) = event
        else {
            panic!("{event:?}");
        };
        assert_eq!((given.offset, given.length), (5, 6));
        assert!(given.descriptor.as_raw_fd() >= 0);
        let event = parsed(answer(11).as_bytes(), false);
        let Some(DriverEvent::MemoryAnswered { session: 9, token: 3, answer: Err(11) }) = event
        else {
            panic!("{event:?}");
        };
        let mut pending_requests = 1;
        assert!(
            parse_event(9, &mut pending_requests, packet(answer(1).as_bytes(), false)).is_some()
        );
        let again = parse_event(9, &mut pending_requests, packet(answer(1).as_bytes(), false));
        assert!(again.is_none(), "unsolicited");
        let mut dirty = answer(1);
        dirty.reserved[1] = 1;
        for (bytes, has_descriptor) in [
            (dirty.as_bytes(), false),
            (asked, true),
            (&asked[..15], false),
            (&[asked, &[0]].concat()[..], false),
            (answer(0).as_bytes(), false),
            (answer(1).as_bytes(), true),
            (&answer(1).as_bytes()[..23], false),
            (&[5; 24][..], false),
            (&[0][..], false),
        ] {
            let event = parsed(bytes, has_descriptor);
            assert!(event.is_none(), "{bytes:?} {has_descriptor}: {event:?}");
        }
    }
}
