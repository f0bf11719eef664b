//! Listeners, watched by the ring, accepted from by direct calls; and news of links, likewise.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

use io_uring::{opcode, types};

use super::super::rails::Rails;
use super::super::{ACCEPT_PAUSE, tcp};
use super::UringDriver;
use super::features::Name;
use super::slots::Kind;
use crate::forks::EngineFd;

/// A listening socket.
#[derive(Debug)]
pub(super) struct Listener {
    socket: EngineFd<TcpListener>,
    /// A request waits for connections.
    is_watched: bool,
    /// Nothing is accepted before: the process ran out of descriptors, strangers crowd, or what
    /// waits is more than one poll accepts.
    rests_until: Option<Instant>,
}

impl Listener {
    pub(super) fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Whether it does not rest.
    pub(super) fn is_awake(&self) -> bool {
        self.rests_until.is_none()
    }
}

impl UringDriver {
    pub(super) fn add_listener(&mut self, socket: TcpListener) -> io::Result<()> {
        self.rails.listening(&socket);
        let index = self.listeners.len();
        let socket = EngineFd::new(socket);
        self.listeners.push(Listener { socket, is_watched: false, rests_until: None });
        let watched = self.watch_listener(index);
        if watched.is_err() {
            self.listeners.pop();
        }
        watched
    }

    /// See [`crate::driver::lanes::ControlLanes::listen_anew`].
    pub(super) fn replace_listener(
        &mut self,
        rail: u8,
        everywhere: &TcpListener,
    ) -> Option<TcpListener> {
        let all = self.listeners.iter().map(|listener| &*listener.socket);
        let (socket, place) =
            self.rails.listener_anew(rail, everywhere, all, &mut self.counters)?;
        let copy = socket.try_clone().ok()?;
        let listening = match place {
            None => self.add_listener(socket),
            Some(index) => {
                for request in self.slots.select(|kind| kind == Kind::Listen(index)) {
                    // What it still says would be taken for the new one's.
                    self.slots.disown(request);
                    self.cancel(vec![request]);
                }
                let socket = EngineFd::new(socket);
                self.listeners[index] = Listener { socket, is_watched: false, rests_until: None };
                self.watch_listener(index)
            }
        };
        listening.inspect_err(|error| tracing::warn!("a rail is not listened at: {error}")).ok()?;
        Some(copy)
    }

    /// Asks for connections, unless that is asked already.
    pub(super) fn watch_listener(&mut self, index: usize) -> io::Result<()> {
        if self.listeners[index].is_watched {
            return Ok(());
        }
        let fd = self.listeners[index].socket.as_raw_fd();
        let entry = opcode::PollAdd::new(types::Fd(fd), libc::POLLIN as u32)
            .multi(self.features.has(Name::MultishotPoll))
            .build();
        let user_data = self.slots.insert(Kind::Listen(index));
        // SAFETY: a poll request points to nothing.
        if let Err(error) = unsafe { self.push(&entry.user_data(user_data)) } {
            self.slots.remove(user_data);
            return Err(error);
        }
        self.listeners[index].is_watched = true;
        Ok(())
    }

    /// Asks for news of links.
    pub(super) fn watch_links(&mut self, fd: RawFd) -> io::Result<()> {
        let entry = opcode::PollAdd::new(types::Fd(fd), libc::POLLIN as u32).build();
        let user_data = self.slots.insert(Kind::Links);
        // SAFETY: a poll request points to nothing.
        let pushed = unsafe { self.push(&entry.user_data(user_data)) };
        if pushed.is_err() {
            self.slots.remove(user_data);
        }
        pushed
    }

    /// The request for news of links completed.
    pub(super) fn links_ready(&mut self, result: i32) {
        if self.is_stopped || result == -libc::ECANCELED {
            return;
        }
        self.hear_of_links();
        if let Some(fd) = self.rails.news_fd()
            && let Err(error) = self.watch_links(fd)
        {
            Rails::warn_of_silence(&error);
        }
    }

    /// A completion of a listener's request came.
    pub(super) fn listener_ready(&mut self, index: usize, result: i32, has_more: bool) {
        let listener = &mut self.listeners[index];
        listener.is_watched = has_more;
        // What waits when the driver stops is left for the next one that listens.
        if self.is_stopped || result == -libc::ECANCELED || listener.rests_until.is_some() {
            return;
        }
        if result < 0 {
            tracing::warn!(
                "cannot wait for connections now: {}",
                io::Error::from_raw_os_error(-result)
            );
            self.rest(index, ACCEPT_PAUSE);
            return;
        }
        self.accept_some(index);
    }

    /// Accepts some of what waits, and sees to it that what comes next is heard of.
    pub(super) fn accept_some(&mut self, index: usize) {
        let listeners = std::mem::take(&mut self.listeners);
        let accepted = tcp::accept_some(&listeners[index].socket, |socket, remote| {
            self.welcome(socket, remote)
        });
        self.listeners = listeners;
        self.counters.syscalls += accepted.syscalls;
        if let Some(rest) = accepted.rest {
            self.rest(index, rest);
            return;
        }
        if let Err(error) = self.watch_listener(index) {
            tracing::warn!("cannot wait for connections now: {error}");
            self.rest(index, ACCEPT_PAUSE);
        }
    }

    fn rest(&mut self, index: usize, pause: Duration) {
        let rests_until = &mut self.listeners[index].rests_until;
        *rests_until = (*rests_until).max(Some(Instant::now() + pause));
        self.has_resting = true;
    }

    /// Asks for news of links again where that was refused.
    pub(super) fn ask_for_owed_news(&mut self) {
        if self.rails.news_owed_in() == Some(Duration::ZERO) {
            self.hear_of_links();
        }
    }

    /// No listener accepts for `pause`.
    pub(super) fn rest_all(&mut self, pause: Duration) {
        (0..self.listeners.len()).for_each(|index| self.rest(index, pause));
    }

    /// Tries listeners again whose rest is over.
    #[inline]
    pub(super) fn wake_listeners(&mut self) {
        if !self.has_resting {
            return;
        }
        self.has_resting = false;
        for index in 0..self.listeners.len() {
            match self.listeners[index].rests_until {
                Some(until) if until <= Instant::now() => {
                    self.listeners[index].rests_until = None;
                    self.accept_some(index);
                }
                Some(_) => self.has_resting = true,
                None => {}
            }
        }
    }

    /// How long until a listener, or news of links, are to be tried again.
    pub(super) fn next_wake(&self) -> Option<Duration> {
        let ends = self.listeners.iter().filter_map(|listener| listener.rests_until);
        let wake = ends.min().map(|until| until.saturating_duration_since(Instant::now()));
        wake.into_iter().chain(self.rails.news_owed_in()).min()
    }
}
