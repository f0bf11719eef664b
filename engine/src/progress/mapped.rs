//! Memory of local peers that is mapped here, and memory of this engine that local peers map.

use std::io::ErrorKind;
use std::os::fd::AsFd as _;
use std::time::Duration;

use super::engine::Engine;
use super::traits::{MappableMemory, ReceivedMemory};
use crate::memory::Window;
use crate::proto::regions::Refusal;
use crate::types::{Address, Error, Peer};

/// Limit on outstanding requests of one engine.
const ASKED_MAX: usize = 64;

/// Time for a ring with a connected peer to be established, if there will be one.
pub(crate) const MEETING_LIMIT: Duration = Duration::from_secs(2);

/// An outstanding request, or its reply until the caller takes it.
#[derive(Debug)]
struct Asked {
    token: u32,
    peer: Peer,
    /// The session's id in packets.
    session: u64,
    answer: Option<Answer>,
}

#[derive(Debug)]
enum Answer {
    Given(ReceivedMemory),
    Refused(Refusal),
    /// The ring has ended before it arrived.
    Lost,
}

/// Requests of an engine to local peers for memory.
#[derive(Debug, Default)]
pub(crate) struct MemoryQuestions {
    last: u32,
    asked: Vec<Asked>,
}

impl MemoryQuestions {
    fn answer(&mut self, session: u64, token: u32, answer: Answer) {
        let mut asked = self.asked.iter_mut();
        let found = asked.find(|asked| (asked.session, asked.token) == (session, token));
        match found {
            Some(asked) if asked.answer.is_none() => asked.answer = Some(answer),
            // The caller has cancelled, or there was no request.
            _ => tracing::debug!(session, token, "unexpected reply to a memory request"),
        }
    }
}

impl Engine {
    /// Returns whether memory can be shared with a peer: there is a ring.
    ///
    /// # Errors
    ///
    /// This engine shares none, or there is no such peer.
    pub(crate) fn shares_memory(&self, peer: Peer) -> Result<bool, Error> {
        if !self.driver.accepts_local_peers() {
            return Err(Error::misuse(
                "this engine shares no memory: set shared_memory to auto or rings, and \
                 control_lane to another lane than tcp; Endpoint::shared_memory says what the host \
                 refused",
            ));
        }
        let remote = self.state.core.remotes().get(peer.0).ok_or(Error::UnknownPeer)?;
        Ok(self.state.paths.ring_of(remote.session).is_some())
    }

    /// Requests the memory of a key from a peer with a ring; returns the id of the request.
    pub(crate) fn request_memory(&mut self, peer: Peer, key: u64) -> Result<u32, Error> {
        let state = &mut *self.state;
        let remote = state.core.remotes().get(peer.0).ok_or(Error::UnknownPeer)?;
        let Some(session) = state.paths.ring_of(remote.session) else {
            return Err(self.lost(peer));
        };
        let questions = &mut state.questions;
        if questions.asked.len() >= ASKED_MAX {
            return Err(Error::WouldBlock("64 outstanding memory requests"));
        }
        questions.last = questions.last.wrapping_add(1);
        let token = questions.last;
        match self.driver.request_memory(session, token, key) {
            Ok(()) => {
                questions.asked.push(Asked { token, peer, session, answer: None });
                Ok(token)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                Err(Error::WouldBlock("unsent memory requests to a local peer"))
            }
            Err(_) => Err(self.lost(peer)),
        }
    }

    /// Returns the reply to a request, once it has arrived: the mapped memory of the key.
    pub(crate) fn take_memory(&mut self, token: u32) -> Option<Result<Window, Error>> {
        let asked = &mut self.state.questions.asked;
        let at = asked.iter().position(|asked| asked.token == token)?;
        let answer = asked[at].answer.take()?;
        let Asked { peer, .. } = asked.swap_remove(at);
        Some(match answer {
            Answer::Lost => Err(self.lost(peer)),
            Answer::Refused(cause) => {
                let name = self.state.core.name_of(peer.0.index() as u32);
                let address = name.map(|it| Address::new(it.engine, it.locators, it.endpoint));
                address.map_or(Err(Error::UnknownPeer), |address| {
                    Err(Error::Refused { address: Box::new(address), cause, status: None })
                })
            }
            Answer::Given(ReceivedMemory { descriptor, offset, length }) => {
                let length = usize::try_from(length).unwrap_or(usize::MAX);
                Window::of_peer(descriptor.as_fd(), offset, length)
                    .map_err(|error| Error::system("cannot map the memory of a peer", error))
            }
        })
    }

    /// Returns the error of a peer whose ring has ended.
    fn lost(&mut self, peer: Peer) -> Error {
        let ended = || {
            let cause = std::io::Error::from(ErrorKind::ConnectionReset);
            Error::system("memory is not shared with the peer any more; try again", cause)
        };
        self.connected(peer).err().unwrap_or_else(ended)
    }

    /// Cancels a request.
    pub(crate) fn forget_question(&mut self, token: u32) {
        self.state.questions.asked.retain(|asked| asked.token != token);
    }

    /// Handles a local peer's request for the memory of a key. Mapped memory cannot be revoked.
    ///
    /// RR-SHM-9.
    pub(super) fn handle_memory_asked(&mut self, name: u64, token: u32, key: u64) {
        let state = &mut *self.state;
        let session = state.paths.session_of(name).and_then(|slot| state.core.session(slot));
        let peer = session.filter(|it| it.is_connected()).map(|it| it.engine);
        let checked = match peer {
            Some(peer) => state.core.regions_mut().check_whole(peer, key, state.now_ns),
            None => Err(Refusal::Key),
        };
        let window = checked.and_then(|(granted, length)| {
            let window = state.completions.regions.window(granted.region);
            let descriptor = window.and_then(|window| window.descriptor());
            let piece = descriptor.ok_or(Refusal::NotShareable)?;
            Ok((granted, MappableMemory { descriptor: piece, offset: granted.start, length }))
        });
        let (given, answer) = match window {
            Ok((granted, piece)) => (Some(granted.region), Ok(piece)),
            Err(refusal) => (None, Err(refusal.code())),
        };
        if let Err(error) = self.driver.answer_memory_request(name, token, answer) {
            tracing::debug!(name, "memory request of a local peer refused: {error}");
            if given.is_some() {
                // The peer still waits. If no reply can be sent, the ring ends.
                let _ = self.driver.answer_memory_request(name, token, Err(Refusal::Busy.code()));
            }
        } else if let Some(region) = given {
            state.core.regions_mut().note_mapped(region);
        }
    }

    /// Handles a local peer's reply, if there was a request.
    pub(super) fn handle_memory_given(
        &mut self,
        name: u64,
        token: u32,
        answer: Result<ReceivedMemory, u8>,
    ) {
        let answer = match answer {
            Ok(given) => Answer::Given(given),
            Err(code) => Answer::Refused(Refusal::from_code(code).unwrap_or(Refusal::Unknown)),
        };
        self.state.questions.answer(name, token, answer);
    }

    /// Fails the requests on a ring that has ended.
    pub(super) fn lose_questions(&mut self, name: u64) {
        let asked = self.state.questions.asked.iter_mut();
        for asked in asked.filter(|asked| asked.session == name && asked.answer.is_none()) {
            asked.answer = Some(Answer::Lost);
        }
    }
}
