//! Entering the kernel: the submission and the completion queue.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use io_uring::{squeue, types};
use rustix::event::{EventfdFlags, eventfd};

use super::super::tcp;
use super::UringDriver;
use super::lane::UringLane;
use super::slots::RequestKind;
use crate::forks::EngineFd;
use crate::refused_call::refused;

/// Longer than packets wait in a NIC that sends.
const NIC_QUEUE: Duration = Duration::from_millis(100);
/// `IORING_ENTER_GETEVENTS`.
const GETEVENTS: u32 = 1;

impl UringDriver {
    /// Enters the kernel: submits staged requests and runs deferred completions.
    pub(super) fn enter(&mut self) -> io::Result<()> {
        loop {
            self.stage_deferred();
            self.counters.syscalls += 1;
            // SAFETY: no argument is passed; the flag only asks for completions.
            let entered = unsafe {
                self.ring.submitter().enter::<libc::sigset_t>(self.staged, 0, GETEVENTS, None)
            };
            match entered {
                Ok(submitted) => {
                    self.staged -= (submitted as u32).min(self.staged);
                    if self.staged == 0 && self.detached.is_empty() {
                        return Ok(());
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The completion queue is full and must be drained first.
                Err(error) if matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EAGAIN)) => {
                    self.copy_completions();
                    return Ok(());
                }
                Err(error) => return Err(refused("io_uring_enter")(error)),
            }
        }
    }

    /// Submits staged requests and sleeps until a completion arrives, for at most `limit`.
    pub(super) fn sleep(&mut self, limit: Duration) -> io::Result<()> {
        let timeout = types::Timespec::from(limit);
        let arguments = types::SubmitArgs::new().timespec(&timeout);
        self.counters.syscalls += 1;
        match self.ring.submitter().submit_with_args(1, &arguments) {
            Ok(submitted) => self.staged -= (submitted as u32).min(self.staged),
            Err(error) => match error.raw_os_error() {
                Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN) => {}
                _ => return Err(refused("io_uring_enter")(error)),
            },
        }
        Ok(())
    }

    /// Stages a request of this kind, which gets a slot.
    ///
    /// # Safety
    ///
    /// What the entry points to stays valid until the slot is freed.
    pub(super) unsafe fn request(
        &mut self,
        kind: RequestKind,
        entry: squeue::Entry,
    ) -> io::Result<()> {
        let user_data = self.slots.insert(kind);
        // SAFETY: passed on to the caller.
        let pushed = unsafe { self.push(&entry.user_data(user_data)) };
        if pushed.is_err() {
            self.slots.remove(user_data);
        }
        pushed
    }

    /// Stages a request.
    ///
    /// # Safety
    ///
    /// What the entry points to stays valid until its slot is freed.
    pub(super) unsafe fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        if self.detached.defer(entry) {
            return Ok(());
        }
        loop {
            // SAFETY: passed on to the caller.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                self.staged += 1;
                return Ok(());
            }
            self.enter()?;
        }
    }

    /// Copies the completion queue behind completions copied before.
    fn copy_completions(&mut self) {
        let Self { ring, completions, .. } = self;
        let queue = ring.completion();
        completions.extend(queue.map(|entry| (entry.user_data(), entry.result(), entry.flags())));
        if self.ring.submission().cq_overflow() {
            self.counters.cq_overflows += 1;
        }
    }

    /// Copies available completions before a sleep.
    pub(super) fn collect(&mut self) -> io::Result<()> {
        self.resume_listeners();
        self.retry_link_request();
        self.reap()?;
        self.serve_datagrams(true)
    }

    /// The eventfd that the ring signals from now on for completions and for work of its owner.
    /// (With deferred completions, the ring's own descriptor does not signal in all kernels.)
    pub(super) fn wake_signal(&self) -> io::Result<OwnedFd> {
        if let Some(known) = self.wake_signal.get() {
            return known.try_clone();
        }
        let signal = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let signal = signal.map_err(refused("eventfd"))?;
        let registered = self.ring.submitter().register_eventfd(signal.as_raw_fd());
        registered.map_err(refused("io_uring_register"))?;
        self.wake_signal.get_or_init(|| EngineFd::new(signal)).try_clone()
    }

    /// Resets the signal, before completions are handled.
    pub(super) fn clear_wake_signal(&self) {
        if let Some(signal) = self.wake_signal.get() {
            // An empty eventfd is fine.
            let _ = rustix::io::read(signal, &mut [0; 8]);
        }
    }

    #[inline]
    fn needs_call(&mut self) -> bool {
        if self.staged > 0 || !self.detached.is_empty() {
            return true;
        }
        let queue = self.ring.submission();
        // Overflowed completions stay in the kernel until a call.
        if queue.cq_overflow() {
            return true;
        }
        if self.features.announces() {
            return queue.taskrun();
        }
        // Without the flag only a call shows it, if completions are deferred.
        !self.features.completes_unasked()
    }

    /// Ends the connections of all requests, as the kernel takes no calls for the ring any more,
    /// and so never reports that it has released memory. Returns whether all of them could be
    /// ended.
    #[cold]
    pub(super) fn release_without_ring(&mut self, error: &io::Error) -> bool {
        tracing::error!("all connections are reset, for the ring cannot be asked: {error}");
        let is_busy = |lane: &&UringLane| lane.requests > 0 || lane.unreleased > 0;
        let has_zero_copy = self.lanes.iter().any(|(_, lane)| lane.unreleased > 0);
        let busy = self.lanes.iter().map(|(_, lane)| lane).filter(is_busy);
        // Each is dissolved, also after one that fails.
        let failed = busy.filter(|lane| tcp::dissolve(&lane.socket).is_err()).count();
        let are_ended = failed == 0;
        if has_zero_copy {
            // Packets that a NIC has may be read by it until they are sent.
            std::thread::sleep(NIC_QUEUE);
        }
        self.listeners.clear();
        self.ready.clear();
        are_ended
    }

    /// Submits what is staged and handles what has completed.
    #[inline]
    pub(super) fn reap(&mut self) -> io::Result<()> {
        let needs_call = self.needs_call();
        if !needs_call && self.completions.is_empty() && self.ring.completion().is_empty() {
            return Ok(());
        }
        self.reap_some(needs_call)
    }

    #[inline(never)]
    fn reap_some(&mut self, needs_call: bool) -> io::Result<()> {
        if needs_call {
            self.enter()?;
        }
        self.copy_completions();
        // A handler may stage requests, and a full submission queue collects more completions.
        while !self.completions.is_empty() {
            let mut batch = std::mem::take(&mut self.completions);
            for (user_data, result, flags) in batch.drain(..) {
                self.complete(user_data, result, flags);
            }
            if self.completions.is_empty() {
                self.completions = batch;
            }
        }
        Ok(())
    }
}
