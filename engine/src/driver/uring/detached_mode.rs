//! Detached mode, while the owner is not in the engine: another thread may neither enter the ring
//! nor register with it, as `SINGLE_ISSUER` binds it to the owner's task, and deferred completions
//! run only there.
//!
//! So requests are deferred for the owner, in order, and `poll(2)` replaces the ring's poll
//! requests: those stay outstanding, and complete again for the owner.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsRawFd;

use io_uring::squeue;

use super::super::datagrams::WatchSource;
use super::UringDriver;
use super::lane::UringLane;
use crate::driver::traits::{DriverEvent, LaneKey};
use crate::driver::udp::SocketInterest;

/// Work deferred for the owner.
#[derive(Default)]
pub(super) struct DetachedMode {
    is_on: bool,
    requests: VecDeque<squeue::Entry>,
    /// Indices of registered files to close.
    files: Vec<u32>,
}

impl DetachedMode {
    pub(super) fn begin(&mut self) {
        self.is_on = true;
    }

    pub(super) fn end(&mut self) {
        self.is_on = false;
    }

    pub(super) fn is_on(&self) -> bool {
        self.is_on
    }

    /// Whether no request is deferred.
    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Defers a request in detached mode, or if earlier ones are still deferred.
    pub(super) fn defer(&mut self, entry: &squeue::Entry) -> bool {
        let keeps = self.is_on || !self.requests.is_empty();
        if keeps {
            self.requests.push_back(entry.clone());
        }
        keeps
    }

    /// Removes the deferred ones among `targets`, and returns them.
    fn remove_deferred(&mut self, targets: &[u64]) -> Vec<u64> {
        let mut withdrawn = Vec::new();
        self.requests.retain(|entry| {
            let user_data = entry.get_user_data();
            let is_hit = targets.contains(&user_data);
            if is_hit {
                withdrawn.push(user_data);
            }
            !is_hit
        });
        withdrawn
    }
}

/// The reason why a descriptor is polled.
#[derive(Clone, Copy)]
enum PollTarget {
    Connect(LaneKey),
    Watch(LaneKey, usize),
    Listener(usize),
    DatagramRoom,
    Links,
}

impl UringDriver {
    /// Stages deferred requests, as far as there is room.
    pub(super) fn stage_deferred(&mut self) {
        while let Some(entry) = self.detached.requests.front() {
            // SAFETY: the caller of `push` keeps what the entry points to until its slot is freed.
            if unsafe { self.ring.submission().push(entry) }.is_err() {
                return;
            }
            self.staged += 1;
            self.detached.requests.pop_front();
        }
    }

    /// Completes the deferred ones among `targets` as cancelled, and returns the others.
    /// Unauthenticated connections come and go in detached mode: none may keep its descriptor until
    /// the owner is back.
    pub(super) fn cancel_deferred(&mut self, targets: Vec<u64>) -> Vec<u64> {
        let kept = self.detached.remove_deferred(&targets);
        for &user_data in &kept {
            self.complete(user_data, -libc::ECANCELED, 0);
        }
        targets.into_iter().filter(|target| !kept.contains(target)).collect()
    }

    /// Ends the streams of lanes that the owner was closing, so that their peers notice now.
    /// Requests that only the owner can cancel keep the sockets open.
    pub(super) fn end_streams(&mut self) {
        let is_open = |lane: &UringLane| lane.closing.is_some() && lane.ended != lane.closing;
        let open = self.lanes.iter().filter(|(_, lane)| is_open(lane)).map(|(key, _)| key);
        for key in open.collect::<Vec<_>>() {
            self.end_stream_detached(key);
        }
    }

    /// The same for a lane closed in detached mode.
    pub(super) fn end_stream_detached(&mut self, key: LaneKey) {
        let Some(lane) = self.lanes.get_mut(key).filter(|_| self.detached.is_on) else { return };
        if let Some(mode) = lane.closing {
            self.counters.syscalls += lane.end_stream(mode);
        }
    }

    /// Removes a closed socket from the table of registered files, now or when the owner is back.
    pub(super) fn unregister(&mut self, index: u32) {
        self.detached.files.push(index);
        self.unregister_deferred();
    }

    /// Executes deferred [`Self::unregister`] calls; required before an index is reused.
    #[inline]
    pub(super) fn unregister_deferred(&mut self) {
        if !self.detached.is_on && !self.detached.files.is_empty() {
            self.unregister_now();
        }
    }

    #[cold]
    fn unregister_now(&mut self) {
        while let Some(index) = self.detached.files.pop() {
            self.counters.syscalls += 1;
            if let Err(error) = self.ring.submitter().register_files_update(index, &[-1]) {
                tracing::warn!("cannot unregister a socket, it stays open: {error}");
            }
        }
    }

    /// Polls all watched descriptors, without the ring.
    pub(super) fn poll_detached(&mut self) -> io::Result<()> {
        let (mut fds, questions) = self.poll_set();
        if fds.is_empty() {
            return Ok(());
        }
        self.counters.syscalls += 1;
        // SAFETY: pointer and length are those of the list, which outlives the call.
        let rc = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, 0) };
        if rc < 0 {
            let error = io::Error::last_os_error();
            let is_passing = matches!(error.raw_os_error(), Some(libc::EINTR | libc::ENOMEM));
            return if is_passing { Ok(()) } else { Err(error) };
        }
        for (fd, question) in fds.iter().zip(questions) {
            if fd.revents == 0 {
                continue;
            }
            match question {
                PollTarget::Connect(lane) => {
                    let Some(found) = self.lanes.get(lane) else { continue };
                    self.counters.syscalls += 1;
                    let outcome = super::tcp::connect_error(&found.socket);
                    self.connect_ended(lane, outcome);
                }
                PollTarget::Watch(lane, 0) => self.ready.push(DriverEvent::Readable { lane }),
                PollTarget::Watch(lane, _) => self.ready.push(DriverEvent::Writable { lane }),
                PollTarget::Listener(index) => self.accept_some(index),
                PollTarget::Links => self.handle_link_events(),
                PollTarget::DatagramRoom => {
                    let room = SocketInterest { readable: false, writable: true };
                    self.datagrams.on_ready(WatchSource::Socket, room, &mut self.ready);
                }
            }
        }
        Ok(())
    }

    /// Everything that the ring watches and another thread can poll.
    fn poll_set(&self) -> (Vec<libc::pollfd>, Vec<PollTarget>) {
        let (mut fds, mut questions) = (Vec::new(), Vec::new());
        let mut ask = |fd, events, question| {
            fds.push(libc::pollfd { fd, events, revents: 0 });
            questions.push(question);
        };
        for (key, lane) in self.lanes.iter().filter(|(_, lane)| lane.closing.is_none()) {
            let fd = lane.socket.as_raw_fd();
            if lane.is_connecting {
                ask(fd, libc::POLLOUT, PollTarget::Connect(key));
            }
            if lane.watched[0] {
                ask(fd, libc::POLLIN | libc::POLLRDHUP, PollTarget::Watch(key, 0));
            }
            if lane.watched[1] {
                ask(fd, libc::POLLOUT, PollTarget::Watch(key, 1));
            }
        }
        for (index, listener) in self.listeners.iter().enumerate() {
            if listener.is_awake() {
                ask(listener.fd(), libc::POLLIN, PollTarget::Listener(index));
            }
        }
        if let Some(fd) = self.datagrams.fd(WatchSource::Socket)
            && self.datagrams.wants(WatchSource::Socket, false).writable
        {
            ask(fd, libc::POLLOUT, PollTarget::DatagramRoom);
        }
        if let Some(fd) = self.rails.links_fd() {
            ask(fd, libc::POLLIN, PollTarget::Links);
        }
        (fds, questions)
    }
}
