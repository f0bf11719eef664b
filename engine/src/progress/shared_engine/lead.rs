//! Waiting: one thread leads and makes the progress of all.

use std::cell::RefCell;
use std::io;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use crossbeam_utils::Backoff;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::inside::{Inside, PostRequest};
use super::place::{EnginePlace, PendingWakeups};
use super::{SharedEngine, nanoseconds};
use crate::progress::caretaker::Membership;
use crate::progress::engine::Engine;
use crate::progress::shared::{Keys, Progress};
use crate::progress::wait_object::WaitObject;
use crate::progress::wakers::survive;
use crate::types::Error;

/// Busy turns of a leader between two turns for other engines of the domain.
const TURNS: u32 = 64;

/// Interval of checks that need the lock.
const LOOK: Duration = Duration::from_micros(200);

/// How long a thread sleeps where the kernel refuses to let it wait for descriptors.
const REFUSED_PAUSE: Duration = Duration::from_millis(1);

impl SharedEngine {
    /// Waits until `ready` returns a value, which is notified for one of `classes`; `None`:
    /// `deadline` has passed.
    pub(crate) fn wait_for<R>(
        &self,
        classes: u32,
        deadline: Option<Instant>,
        mut ready: impl FnMut() -> Option<R>,
    ) -> Result<Option<R>, Error> {
        self.refuse_inherited()?;
        let place = &self.place;
        let keys = Keys::of_classes(classes).unwrap_or(Keys::ALL);
        let mut leading = Leading::new(&self.place, self.membership.as_ref());
        let answer = self.place.shared().wait(
            keys,
            deadline,
            || match ready() {
                Some(answer) => Some(Ok(answer)),
                None => place.failure().map(|error| Err(error.clone())),
            },
            &mut leading,
        );
        // There may be no leader any more, on which others relied.
        self.after_call(RefCell::new(leading.pending.take()));
        if leading.has_led {
            self.place.ring();
        }
        answer.transpose()
    }

    /// Returns how long to spin before sleeping.
    pub(crate) fn spin(&self) -> Duration {
        self.place.spin()
    }

    /// Creates an object to sleep on, for one thread.
    pub(crate) fn new_wait_object(&self) -> io::Result<Arc<WaitObject>> {
        self.place.new_wait_object()
    }

    /// Prepares the engine for a sleep on `wait_object`. After this the caller checks whether there
    /// is something to sleep for.
    pub(crate) fn arm(&self, wait_object: &WaitObject) -> Result<(), Error> {
        // First of all, so that a thread that shortens the sleep wakes it.
        wait_object.begin_arming();
        self.refuse_inherited()?;
        let left = self.with_inside(|inside| {
            let left = inside.engine().arm()?;
            let now_ns = inside.engine().state.now_ns;
            let until_ns = now_ns + nanoseconds(left);
            // One that has passed has woken its sleeper.
            let others_ns = inside.armed_until_ns.filter(|&known_ns| known_ns > now_ns);
            let earliest_ns = others_ns.map_or(until_ns, |known_ns| known_ns.min(until_ns));
            inside.armed_until_ns = Some(earliest_ns);
            Ok::<_, Error>(left)
        })?;
        let failed = |error| Error::system("cannot wait by a descriptor", error);
        wait_object.set_timer(left).map_err(failed)
    }

    /// Registers a task to be woken when there is work. Returns `false` if nothing could wake it.
    pub(crate) fn wake_when_readable(&self, waker: &Waker) -> bool {
        let Some(membership) = &self.membership else { return self.thread.is_some() };
        let tasks = self.place.tasks();
        // Registered before others take the events that it sleeps for.
        tasks.wake_when_readable(waker);
        if let Err(error) = self.arm(tasks) {
            tracing::debug!("a task is polled again at once: {error}");
            return false;
        }
        membership.wake();
        true
    }

    /// Makes progress until `done`, called under the lock, returns a value, or `deadline` passes.
    pub(crate) fn wait<T>(
        &self,
        deadline: Option<Instant>,
        mut done: impl FnMut(&mut Engine) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        self.refuse_inherited()?;
        loop {
            if let Some(answer) = self.with(&mut done) {
                return Ok(Some(answer));
            }
            let now = Instant::now();
            if deadline.is_some_and(|deadline| now >= deadline) {
                return Ok(None);
            }
            let until = deadline.map_or(now + LOOK, |deadline| deadline.min(now + LOOK));
            self.wait_for(0, Some(until), || None::<()>)?;
        }
    }
}

/// Operations of a leader.
pub(super) struct Leading<'a> {
    place: &'a EnginePlace,
    caretaker: Option<&'a Membership>,
    pending: RefCell<PendingWakeups>,
    turns: u32,
    idle_since: Option<Instant>,
    backoff: Backoff,
    /// Number of all turns, including those in which something happened.
    all_turns: u32,
    /// It has made a turn.
    has_led: bool,
    /// On a dedicated thread.
    is_for_ever: bool,
}

impl<'a> Leading<'a> {
    pub(super) fn new(place: &'a EnginePlace, caretaker: Option<&'a Membership>) -> Self {
        let (pending, backoff) = (RefCell::default(), Backoff::new());
        let (has_led, is_for_ever) = (false, false);
        Self {
            place,
            caretaker,
            pending,
            turns: 0,
            idle_since: None,
            backoff,
            all_turns: 0,
            has_led,
            is_for_ever,
        }
    }

    /// Creates one for a dedicated thread, on which all others rely.
    pub(super) fn for_ever(place: &'a EnginePlace) -> Self {
        Self { is_for_ever: true, ..Self::new(place, None) }
    }
}

impl Progress<Inside, PostRequest> for Leading<'_> {
    /// Duration of the sleep.
    type Plan = Duration;

    fn apply(&mut self, inside: &mut Inside, request: PostRequest) {
        self.place.apply(inside, request, &self.pending);
    }

    fn progress(&mut self, inside: &mut Inside) -> bool {
        (inside.armed_until_ns, inside.wants_wake) = (None, false);
        self.has_led = true;
        let happened = match inside.engine().progress() {
            Ok(happened) => happened,
            Err(error) => {
                self.place.fail(error);
                true
            }
        };
        self.place.count_call();
        inside.after(self.place, &self.pending);
        if happened {
            (self.idle_since, self.turns) = (None, 0);
            self.backoff.reset();
        }
        happened
    }

    fn arm(&mut self, inside: &mut Inside) -> Option<Duration> {
        self.turns += 1;
        if !self.turns.is_multiple_of(8) {
            return None;
        }
        let now = Instant::now();
        let since = *self.idle_since.get_or_insert(now);
        if now - since < self.place.spin() {
            return None;
        }
        if !self.pending.borrow().wakeups.is_empty() {
            return None;
        }
        // A driver that fails is detected by the next turn.
        let left = inside.engine().arm().ok().filter(|left| !left.is_zero())?;
        inside.armed_until_ns = Some(inside.engine().state.now_ns + nanoseconds(left));
        Some(left)
    }

    fn released(&mut self) {
        let pending = RefCell::new(self.pending.take());
        if self.is_for_ever {
            survive(|| self.place.after_call(None, pending));
        } else {
            self.place.after_call(self.caretaker, pending);
        }
        self.all_turns = self.all_turns.wrapping_add(1);
        let is_turn_of_others = self.turns > 0 || self.all_turns.is_multiple_of(TURNS);
        if is_turn_of_others && self.caretaker.is_some() {
            self.place.help(self.caretaker);
        }
        if self.idle_since.is_some() {
            // Where threads outnumber cores, the thread that is waited for gets a time slice.
            self.backoff.snooze();
        } else {
            std::hint::spin_loop();
        }
    }

    fn sleep(&mut self, left: Duration, until: Option<Instant>) {
        let limit = until.map(|until| until.saturating_duration_since(Instant::now()));
        let left = limit.map_or(left, |limit| limit.min(left));
        let timeout = Timespec::try_from(left).ok();
        let place = self.place;
        let bell = &place.shared().bell().0;
        let mut fds =
            [PollFd::new(place.wake_fd(), PollFlags::IN), PollFd::new(bell, PollFlags::IN)];
        place.count_sleep();
        #[cfg(any(test, feature = "sim"))]
        if place.sleeps_in_world() {
            self.turns = 0;
            return;
        }
        match poll(&mut fds, timeout.as_ref()) {
            // A signal wakes it.
            Ok(_) | Err(Errno::INTR) => {}
            // Out of memory, or RLIMIT_NOFILE is below the number of descriptors: do not spin
            // meanwhile.
            Err(_) => std::thread::sleep(left.min(REFUSED_PAUSE)),
        }
        if !fds[1].revents().is_empty() {
            let _ = rustix::io::read(bell, &mut [0; 8]);
        }
        self.turns = 0;
        self.idle_since = None;
    }
}
