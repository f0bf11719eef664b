//! Completion queues.

mod backoff;
mod entry;
pub(crate) mod name;
mod sink;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use self::backoff::Backoff;
pub(crate) use self::entry::Entry;
pub(crate) use self::sink::Sink;
use crate::abi::consts::{
    FI_ADDR_NOTAVAIL, FI_CLASS_CQ, FI_CQ_FORMAT_CONTEXT, FI_CQ_FORMAT_DATA, FI_CQ_FORMAT_MSG,
    FI_CQ_FORMAT_TAGGED, FI_CQ_FORMAT_UNSPEC, FI_GETWAIT, FI_GETWAITOBJ, FI_WAIT_FD, FI_WAIT_NONE,
    FI_WAIT_UNSPEC, FI_WAIT_YIELD, version,
};
use crate::abi::fids::{fid, fid_cq, fid_domain};
use crate::abi::info::fi_cq_attr;
use crate::abi::messages::{fi_addr_t, fi_cq_err_entry, fi_cq_tagged_entry};
use crate::abi::ops::{fi_ops, fi_ops_cq};
use crate::av::Av;
use crate::domain::Domain;
use crate::errno::Errno;
use crate::fid::{Header, Object, border, border_unit, close, hand_out, object};

/// A completion queue.
#[repr(C)]
pub(crate) struct Cq {
    header: Header<fid_cq>,
    sink: Arc<Sink>,
    /// Bytes of an entry: all formats are beginnings of the longest.
    entry_bytes: usize,
    wait_object: c_int,
    /// The address vector that names the sources of messages.
    av: Mutex<Weak<Av>>,
    backoff: Backoff,
    domain: Arc<Domain>,
}

// SAFETY: it is `repr(C)`, and begins with its header.
unsafe impl Object for Cq {
    type Fid = fid_cq;
    const CLASS: usize = FI_CLASS_CQ;
}

static FID_OPS: fi_ops = fi_ops { close: close_cq, control, ..fi_ops::ENOSYS };
static OPS: fi_ops_cq =
    fi_ops_cq { read, readfrom, readerr, sread, sreadfrom, signal, strerror, ..fi_ops_cq::ENOSYS };

impl Cq {
    fn open(
        domain: &Arc<Domain>,
        attr: &fi_cq_attr,
        context: *mut c_void,
    ) -> Result<Arc<Self>, Errno> {
        let entry_bytes = match attr.format {
            FI_CQ_FORMAT_UNSPEC | FI_CQ_FORMAT_CONTEXT => 8,
            FI_CQ_FORMAT_MSG => 24,
            FI_CQ_FORMAT_DATA => 40,
            FI_CQ_FORMAT_TAGGED => 48,
            _ => return Err(Errno::NOSYS),
        };
        let wait_object = match attr.wait_obj {
            FI_WAIT_UNSPEC => FI_WAIT_FD,
            known @ (FI_WAIT_NONE | FI_WAIT_FD | FI_WAIT_YIELD) => known,
            _ => return Err(Errno::NOSYS),
        };
        let sink = Arc::new(Sink::new(domain.open_queue(), true));
        if wait_object == FI_WAIT_FD {
            // The descriptors are there, or the queue is not.
            sink.queue().wait_fd()?;
        }
        let fid = fid { fclass: FI_CLASS_CQ, context, ops: &FID_OPS };
        let (header, domain) = (Header::new(fid_cq { fid, ops: &OPS }), Arc::clone(domain));
        let av = Mutex::default();
        let backoff = Backoff::default();
        Ok(Arc::new(Self { header, sink, entry_bytes, wait_object, av, backoff, domain }))
    }

    pub(crate) fn sink(&self) -> &Arc<Sink> {
        &self.sink
    }

    pub(crate) fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    /// Sources of messages are named by `av`, of an endpoint that ends here.
    pub(crate) fn name_by(&self, av: &Arc<Av>) {
        *self.av.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(av);
    }

    fn av(&self) -> Option<Arc<Av>> {
        self.av.lock().unwrap_or_else(PoisonError::into_inner).upgrade()
    }

    /// Prepares a sleep by the descriptor of the queue.
    ///
    /// # Errors
    ///
    /// [`Errno::AGAIN`]: there is something to read.
    pub(crate) fn trywait(&self) -> Result<(), Errno> {
        self.sink.arm()
    }

    /// Fills `into` with entries, and `sources` unless it is null.
    ///
    /// # Safety
    ///
    /// There is room for `count` entries, and sources.
    #[inline]
    unsafe fn fill(
        &self,
        into: *mut c_void,
        count: usize,
        sources: *mut fi_addr_t,
    ) -> Result<isize, Errno> {
        let av = if sources.is_null() { None } else { self.av() };
        let (mut at, mut source_at) = (into.cast::<u8>(), sources);
        let give = |entry: Entry| {
            let whole: fi_cq_tagged_entry = entry.to_c();
            // SAFETY: the caller promises room, of which each entry takes its bytes; a format is
            // the beginning of the whole.
            unsafe {
                // A constant length takes no call.
                if self.entry_bytes == size_of::<fi_cq_tagged_entry>() {
                    at.cast::<fi_cq_tagged_entry>().write_unaligned(whole);
                } else {
                    at.copy_from_nonoverlapping((&raw const whole).cast(), self.entry_bytes);
                }
                at = at.add(self.entry_bytes);
            }
            if !source_at.is_null() {
                let source = av.as_ref().zip(entry.source);
                let name = source.map_or(FI_ADDR_NOTAVAIL, |(av, peer)| av.fi_addr_of(peer));
                // SAFETY: as above.
                unsafe {
                    *source_at = name;
                    source_at = source_at.add(1);
                }
            }
        };
        let read = self.sink.read(count, give);
        match read {
            Err(Errno::AGAIN) => self.backoff.note_empty(|| self.engines_on_host()),
            _ => self.backoff.reset(),
        }
        read.map(|given| given as isize)
    }

    #[cold]
    fn engines_on_host(&self) -> usize {
        // A child of `fork` does not wait for the lock of its copy.
        if self.sink.is_inherited() { 0 } else { self.domain.engines_on_host() }
    }

    /// The same, after waiting for something to come.
    ///
    /// # Safety
    ///
    /// As for [`Self::fill`].
    unsafe fn fill_when_there(
        &self,
        into: *mut c_void,
        count: usize,
        sources: *mut fi_addr_t,
        timeout_ms: c_int,
    ) -> Result<isize, Errno> {
        if self.wait_object == FI_WAIT_NONE {
            return Err(Errno::NOSYS);
        }
        let timeout = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
        loop {
            // SAFETY: the caller guarantees it.
            match unsafe { self.fill(into, count, sources) } {
                Err(Errno::AGAIN) => self.sink.wait(timeout)?,
                read => return read,
            }
        }
    }

    /// Fills an error entry, as far as the application's version has it.
    ///
    /// # Safety
    ///
    /// `into` is an error entry of the version that the fabric was opened for.
    unsafe fn fill_error(&self, into: *mut fi_cq_err_entry) -> Result<isize, Errno> {
        let entry = self.sink.take_error().ok_or(Errno::AGAIN)?;
        let failure = entry.failure.ok_or(Errno::AGAIN)?;
        let api_version = self.domain.fabric().api_version;
        let known = entry.to_c();
        // SAFETY: the caller promises that all fields of its version are there.
        unsafe {
            (*into).op_context = known.op_context;
            (*into).flags = known.flags;
            (*into).len = known.len;
            (*into).buf = known.buf;
            (*into).data = known.data;
            (*into).tag = known.tag;
            (*into).olen = failure.overflow;
            (*into).err = failure.errno.number();
            (*into).prov_errno = failure.system;
            if api_version < version(1, 5) {
                (*into).err_data = std::ptr::null_mut();
            } else {
                // There is no more error data: neither for its buffer nor in one of this side.
                (*into).err_data_size = 0;
            }
            if api_version >= version(1, 20) {
                let source = self.av().zip(entry.source);
                let name = source.map_or(FI_ADDR_NOTAVAIL, |(av, peer)| av.fi_addr_of(peer));
                (*into).src_addr = name;
            }
        }
        Ok(1)
    }
}

/// `fi_cq_open`.
pub(crate) unsafe extern "C" fn cq_open(
    domain: *mut fid_domain,
    attr: *mut fi_cq_attr,
    cq: *mut *mut fid_cq,
    context: *mut c_void,
) -> c_int {
    border_unit(|| {
        // SAFETY: libfabric's caller passes a domain, an attribute and a place for the queue.
        unsafe {
            let domain = crate::fid::share::<Domain>(domain.cast()).ok_or(Errno::INVAL)?;
            let attr = attr.as_ref().ok_or(Errno::INVAL)?;
            *cq = hand_out(Cq::open(&domain, attr, context)?);
        }
        Ok(())
    })
}

unsafe extern "C" fn close_cq(fid: *mut fid) -> c_int {
    // SAFETY: libfabric's caller closes a queue once.
    border_unit(|| unsafe { close::<Cq>(fid) })
}

unsafe extern "C" fn control(fid: *mut fid, command: c_int, argument: *mut c_void) -> c_int {
    border_unit(|| {
        // SAFETY: libfabric's caller passes a queue that is open.
        let cq = unsafe { object::<Cq>(fid.cast()) };
        match command {
            FI_GETWAIT if cq.wait_object == FI_WAIT_FD => {
                let number = cq.sink.queue().wait_fd()?.as_raw_fd();
                // SAFETY: this command's argument is a place for a descriptor.
                unsafe { argument.cast::<c_int>().write(number) };
                Ok(())
            }
            FI_GETWAIT => Err(Errno::NODATA),
            FI_GETWAITOBJ => {
                // SAFETY: this command's argument is a place for a kind of object.
                unsafe { argument.cast::<c_int>().write(cq.wait_object) };
                Ok(())
            }
            _ => Err(Errno::NOSYS),
        }
    })
}

unsafe extern "C" fn read(cq: *mut fid_cq, buf: *mut c_void, count: usize) -> isize {
    // SAFETY: libfabric's caller passes a queue that is open, and room for as many entries.
    border(|| unsafe { object::<Cq>(cq).fill(buf, count, std::ptr::null_mut()) })
}

unsafe extern "C" fn readfrom(
    cq: *mut fid_cq,
    buf: *mut c_void,
    count: usize,
    sources: *mut fi_addr_t,
) -> isize {
    // SAFETY: as for `read`, and as many sources.
    border(|| unsafe { object::<Cq>(cq).fill(buf, count, sources) })
}

unsafe extern "C" fn readerr(cq: *mut fid_cq, buf: *mut fi_cq_err_entry, _flags: u64) -> isize {
    // SAFETY: libfabric's caller passes a queue that is open, and an entry of its version.
    border(|| unsafe { object::<Cq>(cq).fill_error(buf) })
}

unsafe extern "C" fn sread(
    cq: *mut fid_cq,
    buf: *mut c_void,
    count: usize,
    _condition: *const c_void,
    timeout_ms: c_int,
) -> isize {
    let nowhere = std::ptr::null_mut();
    // SAFETY: as for `read`.
    border(|| unsafe { object::<Cq>(cq).fill_when_there(buf, count, nowhere, timeout_ms) })
}

unsafe extern "C" fn sreadfrom(
    cq: *mut fid_cq,
    buf: *mut c_void,
    count: usize,
    sources: *mut fi_addr_t,
    _condition: *const c_void,
    timeout_ms: c_int,
) -> isize {
    // SAFETY: as for `readfrom`.
    border(|| unsafe { object::<Cq>(cq).fill_when_there(buf, count, sources, timeout_ms) })
}

unsafe extern "C" fn signal(cq: *mut fid_cq) -> c_int {
    border_unit(|| {
        // SAFETY: libfabric's caller passes a queue that is open.
        unsafe { object::<Cq>(cq) }.sink.signal();
        Ok(())
    })
}

thread_local! {
    /// The text that `fi_cq_strerror` returns if its caller has no room for it.
    static TEXT: std::cell::UnsafeCell<[c_char; 128]> =
        const { std::cell::UnsafeCell::new([0; 128]) };
}

unsafe extern "C" fn strerror(
    _cq: *mut fid_cq,
    prov_errno: c_int,
    _err_data: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char {
    border(|| {
        let (room, bytes) = match buf.is_null() || len == 0 {
            true => (TEXT.with(|text| text.get().cast()), 128),
            false => (buf, len),
        };
        // SAFETY: the caller promises that much room, or it is the thread's own.
        let text = unsafe {
            libc::strerror_r(prov_errno, room, bytes);
            *room.add(bytes - 1) = 0;
            CStr::from_ptr(room)
        };
        Ok(text.as_ptr())
    })
}
