//! Memory of neighbours that is mapped here, and of this engine that neighbours map.

use std::io::ErrorKind;
use std::os::fd::AsFd as _;
use std::time::Duration;

use super::engine::Engine;
use super::traits::{MappableMemory, ReceivedMemory};
use crate::memory::Window;
use crate::proto::regions::Refusal;
use crate::types::{Address, Error, Peer};

/// Questions of one engine that wait for their answers.
const ASKED_MAX: usize = 64;

/// How long a ring with a peer that is connected may take to be there, if there will be one.
pub(crate) const MEETING_LIMIT: Duration = Duration::from_secs(2);

/// A question that waits for its answer, or its answer that waits for who asked.
#[derive(Debug)]
struct Asked {
    token: u32,
    peer: Peer,
    /// The session, as its packets name it.
    session: u64,
    answer: Option<Answer>,
}

#[derive(Debug)]
enum Answer {
    Given(ReceivedMemory),
    Refused(Refusal),
    /// The ring has ended before it came.
    Lost,
}

/// What an engine has asked neighbours for.
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
            // Who asked has given up, or nobody did.
            _ => tracing::debug!(session, token, "an answer that nobody waits for"),
        }
    }
}

impl Engine {
    /// Whether memory can be shared with a peer: there is a ring.
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

    /// Asks a peer with a ring for the memory that a key opens; the name of the question.
    pub(crate) fn request_memory(&mut self, peer: Peer, key: u64) -> Result<u32, Error> {
        let state = &mut *self.state;
        let remote = state.core.remotes().get(peer.0).ok_or(Error::UnknownPeer)?;
        let Some(session) = state.paths.ring_of(remote.session) else {
            return Err(self.lost(peer));
        };
        let questions = &mut state.questions;
        if questions.asked.len() >= ASKED_MAX {
            return Err(Error::WouldBlock("64 questions for memory at once"));
        }
        questions.last = questions.last.wrapping_add(1);
        let token = questions.last;
        match self.driver.request_memory(session, token, key) {
            Ok(()) => {
                questions.asked.push(Asked { token, peer, session, answer: None });
                Ok(token)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                Err(Error::WouldBlock("what a peer on this host has not heard yet"))
            }
            Err(_) => Err(self.lost(peer)),
        }
    }

    /// The answer to a question, once it is there: what the key opens, mapped.
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

    /// There is no ring with a peer any more.
    fn lost(&mut self, peer: Peer) -> Error {
        let ended = || {
            let cause = std::io::Error::from(ErrorKind::ConnectionReset);
            Error::system("memory is not shared with the peer any more; try again", cause)
        };
        self.connected(peer).err().unwrap_or_else(ended)
    }

    /// Nobody waits for an answer any more.
    pub(crate) fn forget_question(&mut self, token: u32) {
        self.state.questions.asked.retain(|asked| asked.token != token);
    }

    /// A neighbour asks for the memory that a key opens. What it is given cannot be taken back.
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
            tracing::debug!(name, "a neighbour is not given memory: {error}");
            if given.is_some() {
                // It still waits. Where nothing can be said, the ring ends over that.
                let _ = self.driver.answer_memory_request(name, token, Err(Refusal::Busy.code()));
            }
        } else if let Some(region) = given {
            state.core.regions_mut().note_mapped(region);
        }
    }

    /// A neighbour has answered a question, if one was asked.
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

    /// A ring has ended, and so have questions by its socket.
    pub(super) fn lose_questions(&mut self, name: u64) {
        let asked = self.state.questions.asked.iter_mut();
        for asked in asked.filter(|asked| asked.session == name && asked.answer.is_none()) {
            asked.answer = Some(Answer::Lost);
        }
    }
}
