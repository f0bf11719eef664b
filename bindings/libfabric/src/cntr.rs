//! Counters.

use std::ffi::{c_int, c_void};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use ringrail::{CompletionQueue, Shared};

use crate::abi::consts::{
    FI_CLASS_CNTR, FI_CNTR_EVENTS_COMP, FI_GETWAIT, FI_GETWAITOBJ, FI_REMOTE_READ, FI_REMOTE_WRITE,
    FI_WAIT_FD, FI_WAIT_NONE, FI_WAIT_UNSPEC, FI_WAIT_YIELD,
};
use crate::abi::fids::{fid, fid_cntr, fid_domain};
use crate::abi::info::fi_cntr_attr;
use crate::abi::ops::{fi_ops, fi_ops_cntr};
use crate::cq::Sink;
use crate::domain::Domain;
use crate::errno::Errno;
use crate::fid::{Header, Object, border, border_unit, close, hand_out, object, share};
use crate::mr::RegisteredRegion;

/// How long a sleep lasts before it checks whether the counter was set.
const NAP: Duration = Duration::from_millis(5);

/// The two values of a counter.
#[derive(Debug, Default)]
pub(crate) struct Count {
    value: AtomicU64,
    errors: AtomicU64,
}

impl Count {
    /// An operation has ended.
    pub(crate) fn note(&self, has_succeeded: bool) {
        let counted = if has_succeeded { &self.value } else { &self.errors };
        counted.fetch_add(1, Ordering::AcqRel);
    }

    #[cfg(test)]
    pub(crate) fn successes(&self) -> u64 {
        self.value.load(Ordering::Acquire)
    }

    #[cfg(test)]
    pub(crate) fn failures(&self) -> u64 {
        self.errors.load(Ordering::Acquire)
    }
}

/// A counter.
#[repr(C)]
pub(crate) struct Cntr {
    header: Header<fid_cntr>,
    count: Arc<Count>,
    /// Where completions of the operations that it counts are reported.
    sinks: Mutex<Vec<Weak<Sink>>>,
    /// What peers do, as far as it counts that.
    remote: Mutex<Vec<Remote>>,
    /// Of the engine, to sleep by.
    sleeper: CompletionQueue<Shared>,
    wait_object: c_int,
    domain: Arc<Domain>,
}

/// Memory of which a counter counts what peers do to it.
struct Remote {
    registered: Weak<RegisteredRegion>,
    flags: u64,
    /// The changes to it before that.
    before: u64,
}

// SAFETY: it is `repr(C)`, and begins with its header.
unsafe impl Object for Cntr {
    type Fid = fid_cntr;
    const CLASS: usize = FI_CLASS_CNTR;
}

static FID_OPS: fi_ops = fi_ops { close: close_cntr, control, ..fi_ops::ENOSYS };
static OPS: fi_ops_cntr =
    fi_ops_cntr { read, readerr, add, set, wait, adderr, seterr, ..fi_ops_cntr::ENOSYS };

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Cntr {
    fn open(
        domain: &Arc<Domain>,
        attr: &fi_cntr_attr,
        context: *mut c_void,
    ) -> Result<Arc<Self>, Errno> {
        if attr.events != FI_CNTR_EVENTS_COMP || attr.flags != 0 {
            return Err(Errno::NOSYS);
        }
        let wait_object = match attr.wait_obj {
            FI_WAIT_UNSPEC => FI_WAIT_FD,
            known @ (FI_WAIT_NONE | FI_WAIT_FD | FI_WAIT_YIELD) => known,
            _ => return Err(Errno::NOSYS),
        };
        let sleeper = domain.engine().transmit_queue();
        if wait_object == FI_WAIT_FD {
            // The descriptors are there, or the counter is not.
            sleeper.wait_fd()?;
        }
        let fid = fid { fclass: FI_CLASS_CNTR, context, ops: &FID_OPS };
        Ok(Arc::new(Self {
            header: Header::new(fid_cntr { fid, ops: &OPS }),
            count: Arc::default(),
            sinks: Mutex::default(),
            remote: Mutex::default(),
            sleeper,
            wait_object,
            domain: Arc::clone(domain),
        }))
    }

    pub(crate) fn count(&self) -> &Arc<Count> {
        &self.count
    }

    pub(crate) fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    /// Completions of some of the operations that it counts are reported to `sink`.
    pub(crate) fn reads(&self, sink: &Arc<Sink>) {
        let mut sinks = locked(&self.sinks);
        sinks.retain(|known| known.strong_count() > 0);
        if !sinks.iter().any(|known| known.as_ptr() == Arc::as_ptr(sink)) {
            sinks.push(Arc::downgrade(sink));
        }
    }

    /// Counts operations of peers on `registered` from now on.
    pub(crate) fn watches(&self, registered: &Arc<RegisteredRegion>, flags: u64) {
        let before = registered.done(flags);
        locked(&self.remote).push(Remote { registered: Arc::downgrade(registered), flags, before });
    }

    /// The memory is about to be taken back: what was done to it stays counted.
    pub(crate) fn keeps(&self, registered: &Arc<RegisteredRegion>) {
        let is_of = |remote: &Remote| remote.registered.as_ptr() == Arc::as_ptr(registered);
        let mut remote = locked(&self.remote);
        for known in remote.extract_if(.., |remote| is_of(remote)) {
            let done = registered.done(known.flags).wrapping_sub(known.before);
            self.count.value.fetch_add(done, Ordering::AcqRel);
        }
    }

    /// Returns the operations of peers on the memory that is watched.
    fn done_by_peers(&self) -> u64 {
        let mut remote = locked(&self.remote);
        remote.retain(|known| known.registered.strong_count() > 0);
        remote.iter().fold(0, |sum, known| {
            let done =
                known.registered.upgrade().map_or(0, |registered| registered.done(known.flags));
            sum.wrapping_add(done.wrapping_sub(known.before))
        })
    }

    /// Counts what has come; makes progress.
    fn progress(&self) -> Result<(), Errno> {
        let sinks = locked(&self.sinks).iter().filter_map(Weak::upgrade).collect::<Vec<_>>();
        if sinks.is_empty() {
            self.domain.engine().progress()?;
        }
        for sink in sinks {
            sink.drain()?;
        }
        Ok(())
    }

    fn value(&self) -> u64 {
        self.count.value.load(Ordering::Acquire).wrapping_add(self.done_by_peers())
    }

    fn errors(&self) -> u64 {
        self.count.errors.load(Ordering::Acquire)
    }

    fn set(&self, value: u64) {
        // What peers have done counts on top of it.
        let value = value.wrapping_sub(self.done_by_peers());
        self.count.value.store(value, Ordering::Release);
    }

    /// Waits until the value is `threshold` at the least.
    ///
    /// # Errors
    ///
    /// [`Errno::AVAIL`] when an operation fails meanwhile; [`Errno::TIMEDOUT`].
    fn wait(&self, threshold: u64, timeout: Option<Duration>) -> Result<(), Errno> {
        let started = Instant::now();
        let deadline = timeout.and_then(|timeout| started.checked_add(timeout));
        let spin = self.domain.engine().domain().settings().spin();
        let errors = self.errors();
        loop {
            self.progress()?;
            if self.value() >= threshold {
                return Ok(());
            }
            if self.errors() != errors {
                return Err(Errno::AVAIL);
            }
            let now = Instant::now();
            if deadline.is_some_and(|deadline| now >= deadline) {
                return Err(Errno::TIMEDOUT);
            }
            if now - started < spin {
                std::hint::spin_loop();
                continue;
            }
            self.sleep(deadline.map_or(NAP, |deadline| NAP.min(deadline - now)))?;
        }
    }

    /// Sleeps until the engine has something, or `nap` has passed.
    fn sleep(&self, nap: Duration) -> Result<(), Errno> {
        let (value, errors) = (self.value(), self.errors());
        self.sleeper.arm()?;
        self.progress()?;
        if (value, errors) != (self.value(), self.errors()) {
            return Ok(());
        }
        let fd = self.sleeper.wait_fd()?.as_raw_fd();
        let mut polled = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let milliseconds = i32::try_from(nap.as_millis()).unwrap_or(i32::MAX).max(1);
        // SAFETY: it is one descriptor, which the queue keeps open. Interrupted is as good as
        // woken.
        let _ = unsafe { libc::poll(&raw mut polled, 1, milliseconds) };
        Ok(())
    }

    /// Prepares a sleep by the descriptor of the counter.
    ///
    /// # Errors
    ///
    /// [`Errno::AGAIN`]: it has changed meanwhile.
    pub(crate) fn trywait(&self) -> Result<(), Errno> {
        let before = (self.value(), self.errors());
        self.sleeper.arm()?;
        self.progress()?;
        match before == (self.value(), self.errors()) {
            true => Ok(()),
            false => Err(Errno::AGAIN),
        }
    }
}

/// All memory of a domain that peers may reach, and the counters of endpoints that count what they
/// do there (`FI_RMA_EVENT`).
#[derive(Default)]
pub(crate) struct RemoteCounts(Mutex<Known>);

#[derive(Default)]
struct Known {
    registered: Vec<Weak<RegisteredRegion>>,
    counters: Vec<(Weak<Cntr>, u64)>,
}

impl RemoteCounts {
    /// Peers can access `registered` from now on.
    pub(crate) fn add(&self, registered: &Arc<RegisteredRegion>) {
        let mut known = locked(&self.0);
        known.registered.retain(|registered| registered.strong_count() > 0);
        known.registered.push(Arc::downgrade(registered));
        known.counters.retain(|(counter, _)| counter.strong_count() > 0);
        for (counter, flags) in &known.counters {
            if let Some(counter) = counter.upgrade() {
                counter.watches(registered, *flags);
            }
        }
    }

    /// `registered` is about to be closed.
    pub(crate) fn remove(&self, registered: &Arc<RegisteredRegion>) {
        let known = locked(&self.0);
        for counter in known.counters.iter().filter_map(|(counter, _)| counter.upgrade()) {
            counter.keeps(registered);
        }
    }

    /// `counter` counts what peers do anywhere, of what `flags` say.
    pub(crate) fn count_by(&self, counter: &Arc<Cntr>, flags: u64) {
        let flags = flags & (FI_REMOTE_READ | FI_REMOTE_WRITE);
        if flags == 0 {
            return;
        }
        let mut known = locked(&self.0);
        known
            .registered
            .iter()
            .filter_map(Weak::upgrade)
            .for_each(|registered| counter.watches(&registered, flags));
        known.counters.push((Arc::downgrade(counter), flags));
    }
}

/// `fi_cntr_open`.
pub(crate) unsafe extern "C" fn cntr_open(
    domain: *mut fid_domain,
    attr: *mut fi_cntr_attr,
    cntr: *mut *mut fid_cntr,
    context: *mut c_void,
) -> c_int {
    border_unit(|| {
        // SAFETY: libfabric's caller passes a domain, an attribute and a place for the counter.
        unsafe {
            let domain = share::<Domain>(domain.cast()).ok_or(Errno::INVAL)?;
            let attr = attr.as_ref().ok_or(Errno::INVAL)?;
            *cntr = hand_out(Cntr::open(&domain, attr, context)?);
        }
        Ok(())
    })
}

unsafe extern "C" fn close_cntr(fid: *mut fid) -> c_int {
    // SAFETY: libfabric's caller closes a counter once.
    border_unit(|| unsafe { close::<Cntr>(fid) })
}

unsafe extern "C" fn control(fid: *mut fid, command: c_int, argument: *mut c_void) -> c_int {
    border_unit(|| {
        // SAFETY: libfabric's caller passes a counter that is open.
        let cntr = unsafe { object::<Cntr>(fid.cast()) };
        let copy = match command {
            FI_GETWAIT if cntr.wait_object == FI_WAIT_FD => cntr.sleeper.wait_fd()?.as_raw_fd(),
            FI_GETWAIT => return Err(Errno::NODATA),
            FI_GETWAITOBJ => cntr.wait_object,
            _ => return Err(Errno::NOSYS),
        };
        // SAFETY: the argument of these commands is a place for a number.
        unsafe { argument.cast::<c_int>().write(copy) };
        Ok(())
    })
}

unsafe extern "C" fn read(cntr: *mut fid_cntr) -> u64 {
    border(|| {
        // SAFETY: libfabric's caller passes a counter that is open.
        let cntr = unsafe { object::<Cntr>(cntr) };
        // A driver that has failed for good ends operations with errors, which are counted.
        let _ = cntr.progress();
        Ok(cntr.value())
    })
}

unsafe extern "C" fn readerr(cntr: *mut fid_cntr) -> u64 {
    border(|| {
        // SAFETY: as for `read`.
        let cntr = unsafe { object::<Cntr>(cntr) };
        let _ = cntr.progress();
        Ok(cntr.errors())
    })
}

unsafe extern "C" fn add(cntr: *mut fid_cntr, value: u64) -> c_int {
    border_unit(|| {
        // SAFETY: as for `read`.
        unsafe { object::<Cntr>(cntr) }.count.value.fetch_add(value, Ordering::AcqRel);
        Ok(())
    })
}

unsafe extern "C" fn set(cntr: *mut fid_cntr, value: u64) -> c_int {
    border_unit(|| {
        // SAFETY: as for `read`.
        unsafe { object::<Cntr>(cntr) }.set(value);
        Ok(())
    })
}

unsafe extern "C" fn wait(cntr: *mut fid_cntr, threshold: u64, timeout_ms: c_int) -> c_int {
    border_unit(|| {
        let timeout = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
        // SAFETY: as for `read`.
        unsafe { object::<Cntr>(cntr) }.wait(threshold, timeout)
    })
}

unsafe extern "C" fn adderr(cntr: *mut fid_cntr, value: u64) -> c_int {
    border_unit(|| {
        // SAFETY: as for `read`.
        unsafe { object::<Cntr>(cntr) }.count.errors.fetch_add(value, Ordering::AcqRel);
        Ok(())
    })
}

unsafe extern "C" fn seterr(cntr: *mut fid_cntr, value: u64) -> c_int {
    border_unit(|| {
        // SAFETY: as for `read`.
        unsafe { object::<Cntr>(cntr) }.count.errors.store(value, Ordering::Release);
        Ok(())
    })
}
