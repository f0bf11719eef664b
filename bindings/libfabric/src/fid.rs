//! Objects as an application holds them, and the border that its calls cross.
//!
//! # An object
//!
//! ```text
//! #[repr(C)]
//! pub(crate) struct Cq {
//!     header: Header<fid_cq>,       // the first field; the application has a pointer to it
//!     domain: Arc<Domain>,          // what must not be closed before it
//!     ...
//! }
//! // SAFETY: it is `repr(C)`, and begins with its header.
//! unsafe impl Object for Cq { type Fid = fid_cq; const CLASS: usize = FI_CLASS_CQ; }
//!
//! static FID_OPS: fi_ops = fi_ops { close, control, ..fi_ops::ENOSYS };
//! static OPS: fi_ops_cq = fi_ops_cq { read, readerr, ..fi_ops_cq::ENOSYS };
//! ```
//!
//! * It is made in an [`Arc`], and [`hand_out`] gives the application one count of it.
//! * Its `close` is [`close`]: it answers `FI_EBUSY` while another object has a count. So code
//!   needs an object until it is closed itself (a child its parent, an endpoint its queues, its
//!   counters and its address vector) holds an `Arc` of it, and code that does not holds a
//!   [`Weak`](std::sync::Weak), upgraded for short. The object is freed by its `Drop`.
//! * It is `Send` and `Sync`: applications that ask for `FI_THREAD_SAFE` call from any thread. What
//!   changes is behind atomics and locks. Lower levels get the same: a free lock costs little.
//!
//! # A call
//!
//! ```text
//! unsafe extern "C" fn read(cq: *mut fid_cq, buf: *mut c_void, count: usize) -> isize {
//!     border(|| {
//!         // SAFETY: libfabric's caller passes a queue that it has opened and not closed.
//!         let cq = unsafe { object::<Cq>(cq) };
//!         ...                       // pointers become references and slices here, once
//!         Ok(number_read)
//!     })
//! }
//! ```
//!
//! * [`border`] turns an [`Errno`] into a negative number, and a panic into `-FI_EOTHER` with a
//!   line in the log: nothing unwinds into C.
//! * A pointer to a header is converted by [`object`]; a `struct fid *` whose class the caller has
//!   not proved (`fi_ep_bind`, `fi_trywait`) by [`find`] and [`share`], which look at it.
//! * Integers of libfabric's enumerations are `c_int`: any value may come.

use std::cell::UnsafeCell;
use std::ffi::{c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::abi::fids::fid;
use crate::errno::Errno;

/// The header of an object. Applications write to it (its `context`).
#[repr(transparent)]
pub(crate) struct Header<F>(UnsafeCell<F>);

// SAFETY: this side writes to a header before it is handed out only, and reads what is not written
// afterwards, but for `context`: that is the application's, to be serialized by itself.
unsafe impl<F> Send for Header<F> {}
// SAFETY: as above.
unsafe impl<F> Sync for Header<F> {}

impl<F> Header<F> {
    pub(crate) const fn new(header: F) -> Self {
        Self(UnsafeCell::new(header))
    }

    pub(crate) const fn as_ptr(&self) -> *mut F {
        self.0.get()
    }
}

/// An object that applications hold by a pointer to its header.
///
/// # Safety
///
/// It is `repr(C)`, its first field is a [`Header`] of `Fid`, `Fid` is `repr(C)` and begins with a
/// [`fid`], whose class is `CLASS`; no other object has it.
pub(crate) unsafe trait Object: Send + Sync + 'static {
    type Fid;
    const CLASS: usize;
}

/// Gives the application a count of `object`, by the pointer that is returned.
pub(crate) fn hand_out<T: Object>(object: Arc<T>) -> *mut T::Fid {
    Arc::into_raw(object).cast_mut().cast()
}

/// The object that begins with `header`.
///
/// # Safety
///
/// [`hand_out`] gave the pointer for a `T`, which is not closed while the reference lives.
#[inline]
pub(crate) unsafe fn object<'a, T: Object>(header: *mut T::Fid) -> &'a T {
    // SAFETY: the caller guarantees it; the header is at the object's beginning.
    unsafe { &*header.cast_const().cast() }
}

/// The object behind `header`, if it is a `T`.
///
/// # Safety
///
/// It is null, or the header of an object of this provider that is not closed while the reference
/// lives.
pub(crate) unsafe fn find<'a, T: Object>(header: *mut fid) -> Option<&'a T> {
    // SAFETY: the caller guarantees it.
    let is_one = !header.is_null() && unsafe { (*header).fclass } == T::CLASS;
    // SAFETY: objects of this class are `T`s.
    is_one.then(|| unsafe { object(header.cast()) })
}

/// A count of its own of the object behind `header`, if it is a `T`.
///
/// # Safety
///
/// As for [`find`].
pub(crate) unsafe fn share<T: Object>(header: *mut fid) -> Option<Arc<T>> {
    // SAFETY: the caller guarantees it.
    let found: &T = unsafe { find(header) }?;
    // SAFETY: it came from `Arc::into_raw`, and the application has a count of it.
    unsafe {
        Arc::increment_strong_count(found);
        Some(Arc::from_raw(found))
    }
}

/// Takes the application's count back: `fi_close`. The object is dropped.
///
/// # Errors
///
/// [`Errno::BUSY`] when another object has a count.
///
/// # Safety
///
/// `header` is that of a `T` that was handed out and not closed; no other call uses it, now or
/// later.
pub(crate) unsafe fn close<T: Object>(header: *mut fid) -> Result<(), Errno> {
    // SAFETY: the caller guarantees it.
    let object: Arc<T> = unsafe { Arc::from_raw(header.cast_const().cast()) };
    match Arc::try_unwrap(object) {
        Ok(object) => {
            drop(object);
            Ok(())
        }
        Err(object) => {
            // The application keeps it.
            let _kept = Arc::into_raw(object);
            Err(Errno::BUSY)
        }
    }
}

/// The result of a call.
pub(crate) trait Answer {
    fn refused(errno: Errno) -> Self;
}

impl Answer for c_int {
    fn refused(errno: Errno) -> Self {
        -errno.number()
    }
}

impl Answer for isize {
    fn refused(errno: Errno) -> Self {
        -errno.number() as Self
    }
}

/// A counter's value: there is no room for an error.
impl Answer for u64 {
    fn refused(_: Errno) -> Self {
        0
    }
}

/// A text.
impl Answer for *const c_char {
    fn refused(_: Errno) -> Self {
        std::ptr::null()
    }
}

/// Wraps every call from C.
#[inline]
pub(crate) fn border<A: Answer>(call: impl FnOnce() -> Result<A, Errno>) -> A {
    // What a panic leaves behind is the engine's, which is as the callback left it, or behind locks
    // that say so.
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(answer)) => answer,
        Ok(Err(errno)) => A::refused(errno),
        Err(_panic) => {
            // The panic hook has reported where and why.
            A::refused(Errno::OTHER)
        }
    }
}

/// The same for calls that return 0.
#[inline]
pub(crate) fn border_unit(call: impl FnOnce() -> Result<(), Errno>) -> c_int {
    border(|| call().map(|()| 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::consts::{FI_CLASS_AV, FI_CLASS_CQ};
    use crate::abi::fids::fid_cq;
    use crate::abi::ops::{fi_ops, fi_ops_cq};

    static FID_OPS: fi_ops = fi_ops::ENOSYS;
    static OPS: fi_ops_cq = fi_ops_cq::ENOSYS;

    #[repr(C)]
    struct Thing {
        header: Header<fid_cq>,
        number: u32,
    }

    // SAFETY: it is `repr(C)`, and begins with its header.
    unsafe impl Object for Thing {
        type Fid = fid_cq;
        const CLASS: usize = FI_CLASS_CQ;
    }

    fn thing() -> Arc<Thing> {
        let fid = fid { fclass: FI_CLASS_CQ, context: std::ptr::null_mut(), ops: &FID_OPS };
        Arc::new(Thing { header: Header::new(fid_cq { fid, ops: &OPS }), number: 7 })
    }

    #[test]
    fn a_reference_keeps_an_object_open() {
        let header = hand_out(thing());
        let as_fid: *mut fid = header.cast();
        // SAFETY: it was handed out just now, and is closed at the end.
        unsafe {
            assert_eq!(object::<Thing>(header).number, 7);
            assert_eq!(object::<Thing>(header).header.as_ptr(), header);
            let other = share::<Thing>(as_fid).expect("it is one");
            assert_eq!(close::<Thing>(as_fid), Err(Errno::BUSY));
            drop(other);
            (*as_fid).fclass = FI_CLASS_AV;
            assert!(find::<Thing>(as_fid).is_none());
            assert!(share::<Thing>(std::ptr::null_mut()).is_none());
            assert_eq!(close::<Thing>(as_fid), Ok(()));
        }
    }

    #[test]
    fn tables_know_their_size_and_say_no() {
        // SAFETY: the stubs look at nothing.
        let answer = unsafe { (OPS.signal)(std::ptr::null_mut()) };
        assert_eq!((OPS.size, answer), (72, -libc::ENOSYS));
        // SAFETY: as above.
        let text = unsafe {
            (OPS.strerror)(std::ptr::null_mut(), 1, std::ptr::null(), std::ptr::null_mut(), 0)
        };
        assert!(text.is_null());
    }

    #[test]
    fn panics_do_not_unwind_into_c() {
        assert_eq!(border_unit(|| Err(Errno::NODATA)), -61);
        assert_eq!(border(|| Ok(5_isize)), 5);
        assert_eq!(border::<c_int>(|| panic!("of a test")), -256);
    }
}
