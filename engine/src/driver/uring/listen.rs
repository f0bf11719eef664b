//! Listeners and link notifications: watched by the ring, handled by direct calls.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

use io_uring::{opcode, types};

use super::super::rails::DriverRails;
use super::super::{ACCEPT_PAUSE, tcp};
use super::UringDriver;
use super::features::Name;
use super::slots::RequestKind;
use crate::forks::EngineFd;

/// A listening socket.
#[derive(Debug)]
pub(super) struct RingListener {
    socket: EngineFd<TcpListener>,
    /// A poll request is outstanding.
    is_watched: bool,
    /// Accepting is paused until then: the process ran out of descriptors, a flood is throttled, or
    /// more connections are pending than one poll accepts.
    paused_until: Option<Instant>,
}

impl RingListener {
    pub(super) fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Whether it is not paused.
    pub(super) fn is_awake(&self) -> bool {
        self.paused_until.is_none()
    }
}

impl UringDriver {
    pub(super) fn add_listener(&mut self, socket: TcpListener) -> io::Result<()> {
        self.rails.note_listener(&socket);
        let index = self.listeners.len();
        let socket = EngineFd::new(socket);
        self.listeners.push(RingListener { socket, is_watched: false, paused_until: None });
        let watched = self.watch_listener(index);
        if watched.is_err() {
            self.listeners.pop();
        }
        watched
    }

    /// See [`crate::driver::traits::ConnectionIo::rebind_listener`].
    pub(super) fn replace_listener(
        &mut self,
        rail: u8,
        everywhere: &TcpListener,
    ) -> Option<TcpListener> {
        let all = self.listeners.iter().map(|listener| &*listener.socket);
        let (socket, place) =
            self.rails.reopen_listener(rail, everywhere, all, &mut self.counters)?;
        let copy = socket.try_clone().ok()?;
        let listening = match place {
            None => self.add_listener(socket),
            Some(index) => {
                for request in self.slots.select(|kind| kind == RequestKind::Listen(index)) {
                    // Its completion would be taken for one of the new listener.
                    self.slots.ignore_completion(request);
                    self.cancel(vec![request]);
                }
                let socket = EngineFd::new(socket);
                self.listeners[index] =
                    RingListener { socket, is_watched: false, paused_until: None };
                self.watch_listener(index)
            }
        };
        listening.inspect_err(|error| tracing::warn!("cannot listen on a rail: {error}")).ok()?;
        Some(copy)
    }

    /// Watches for connections, unless already requested.
    pub(super) fn watch_listener(&mut self, index: usize) -> io::Result<()> {
        if self.listeners[index].is_watched {
            return Ok(());
        }
        let fd = self.listeners[index].socket.as_raw_fd();
        let entry = opcode::PollAdd::new(types::Fd(fd), libc::POLLIN as u32)
            .multi(self.features.has(Name::MultishotPoll))
            .build();
        // SAFETY: a poll request points to nothing.
        unsafe { self.request(RequestKind::Listen(index), entry)? };
        self.listeners[index].is_watched = true;
        Ok(())
    }

    /// Watches link notifications.
    pub(super) fn watch_links(&mut self, fd: RawFd) -> io::Result<()> {
        let entry = opcode::PollAdd::new(types::Fd(fd), libc::POLLIN as u32).build();
        // SAFETY: a poll request points to nothing.
        unsafe { self.request(RequestKind::Links, entry) }
    }

    /// The poll request of link notifications completed.
    pub(super) fn links_ready(&mut self, result: i32) {
        if self.is_stopped || result == -libc::ECANCELED {
            return;
        }
        self.handle_link_events();
        if let Some(fd) = self.rails.links_fd()
            && let Err(error) = self.watch_links(fd)
        {
            DriverRails::warn_no_link_events(&error);
        }
    }

    /// A poll request of a listener completed.
    pub(super) fn listener_ready(&mut self, index: usize, result: i32, has_more: bool) {
        let listener = &mut self.listeners[index];
        listener.is_watched = has_more;
        // Connections pending when the driver stops are left for the next driver.
        if self.is_stopped || result == -libc::ECANCELED || listener.paused_until.is_some() {
            return;
        }
        if result < 0 {
            tracing::warn!(
                "cannot watch a listener for now: {}",
                io::Error::from_raw_os_error(-result)
            );
            self.pause_listener(index, ACCEPT_PAUSE);
            return;
        }
        self.accept_some(index);
    }

    /// Accepts some pending connections, and watches for more.
    pub(super) fn accept_some(&mut self, index: usize) {
        let listeners = std::mem::take(&mut self.listeners);
        let accepted = tcp::accept_some(&listeners[index].socket, |socket, remote| {
            self.accept_connection(socket, remote)
        });
        self.listeners = listeners;
        self.counters.syscalls += accepted.syscalls;
        if let Some(rest) = accepted.rest {
            self.pause_listener(index, rest);
            return;
        }
        if let Err(error) = self.watch_listener(index) {
            tracing::warn!("cannot watch a listener for now: {error}");
            self.pause_listener(index, ACCEPT_PAUSE);
        }
    }

    fn pause_listener(&mut self, index: usize, pause: Duration) {
        let paused_until = &mut self.listeners[index].paused_until;
        *paused_until = (*paused_until).max(Some(Instant::now() + pause));
        self.has_paused = true;
    }

    /// Repeats a refused request for the list of links.
    #[inline]
    pub(super) fn retry_link_request(&mut self) {
        if self.rails.links_retry_in() == Some(Duration::ZERO) {
            self.handle_link_events();
        }
    }

    /// Pauses all listeners.
    pub(super) fn pause_all(&mut self, pause: Duration) {
        (0..self.listeners.len()).for_each(|index| self.pause_listener(index, pause));
    }

    /// Resumes listeners whose pause is over.
    #[inline]
    pub(super) fn resume_listeners(&mut self) {
        if self.has_paused {
            self.resume_due();
        }
    }

    #[cold]
    fn resume_due(&mut self) {
        self.has_paused = false;
        for index in 0..self.listeners.len() {
            match self.listeners[index].paused_until {
                Some(until) if until <= Instant::now() => {
                    self.listeners[index].paused_until = None;
                    self.accept_some(index);
                }
                Some(_) => self.has_paused = true,
                None => {}
            }
        }
    }

    /// Time until a listener, or the list of links, must be retried.
    pub(super) fn next_wake(&self) -> Option<Duration> {
        let ends = self.listeners.iter().filter_map(|listener| listener.paused_until);
        let wake = ends.min().map(|until| until.saturating_duration_since(Instant::now()));
        wake.into_iter().chain(self.rails.links_retry_in()).min()
    }
}
