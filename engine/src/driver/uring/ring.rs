//! Entering the kernel: the submission and the completion queue.

use std::io;

use io_uring::squeue;

use super::UringDriver;
use super::features::Name;

/// `IORING_ENTER_GETEVENTS`.
const GETEVENTS: u32 = 1;

impl UringDriver {
    /// Enters the kernel: submits what is staged and runs what it has deferred.
    pub(super) fn enter(&mut self) -> io::Result<()> {
        loop {
            self.counters.syscalls += 1;
            // SAFETY: no argument is passed; the flag only asks for completions.
            let entered = unsafe {
                self.ring.submitter().enter::<libc::sigset_t>(self.staged, 0, GETEVENTS, None)
            };
            match entered {
                Ok(submitted) => {
                    self.staged -= (submitted as u32).min(self.staged);
                    if self.staged == 0 {
                        return Ok(());
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The completion queue is full: what is in it must be handled first.
                Err(error) if matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EAGAIN)) => {
                    self.copy_completions();
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Stages a request.
    ///
    /// # Safety
    ///
    /// What the entry points to stays valid until its slot retires.
    pub(super) unsafe fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        loop {
            // SAFETY: passed on to the caller.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                self.staged += 1;
                return Ok(());
            }
            self.enter()?;
        }
    }

    fn copy_completions(&mut self) {
        let Self { ring, completions, .. } = self;
        let queue = ring.completion();
        completions.extend(queue.map(|entry| (entry.user_data(), entry.result(), entry.flags())));
        if self.ring.submission().cq_overflow() {
            self.counters.cq_overflows += 1;
        }
    }

    fn needs_call(&mut self) -> bool {
        if self.staged > 0 {
            return true;
        }
        if self.features.announces() {
            let queue = self.ring.submission();
            return queue.taskrun() || queue.cq_overflow();
        }
        // Without the announcement only a call tells, where completions are deferred.
        self.features.defers() || self.features.has(Name::CoopTaskrun)
    }

    pub(super) fn reap(&mut self) -> io::Result<()> {
        if self.needs_call() {
            self.enter()?;
        }
        self.copy_completions();
        let mut completions = std::mem::take(&mut self.completions);
        for (user_data, result, flags) in completions.drain(..) {
            self.complete(user_data, result, flags);
        }
        self.completions = completions;
        Ok(())
    }
}
