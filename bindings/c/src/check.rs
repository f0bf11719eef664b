//! Pointers and lengths of C, checked as far as they can be.

use std::ffi::{CStr, c_char, c_void};
use std::time::Duration;

use ringrail::RawSpan;

use crate::fault::Fault;

/// What `pointer` points to cannot be used as `length` bytes, or more precisely: why.
fn problem(pointer: *const u8, length: usize) -> Option<&'static str> {
    if length == 0 {
        return None;
    }
    if pointer.is_null() {
        return Some("is null, with a length that is not 0");
    }
    let is_long = length > isize::MAX as usize || pointer.addr().checked_add(length).is_none();
    is_long.then_some("has a length that no memory has")
}

/// Memory for an operation.
#[inline]
pub(crate) fn span(
    pointer: *const c_void,
    length: usize,
    what: &'static str,
) -> Result<RawSpan, Fault> {
    match problem(pointer.cast(), length) {
        None => Ok(RawSpan::from_const(pointer.cast(), length)),
        Some(problem) => Err(Fault::invalid(format!("{what} {problem}"))),
    }
}

/// An aligned pointer to `count` of something, null only where there are none.
fn items<T>(pointer: *const T, count: usize, what: &'static str) -> Result<(), Fault> {
    let Some(length) = count.checked_mul(size_of::<T>()) else {
        return Err(Fault::invalid(format!("{what}: {count} are more than fit in memory")));
    };
    if let Some(problem) = problem(pointer.cast(), length) {
        return Err(Fault::invalid(format!("{what} {problem}")));
    }
    if length > 0 && !pointer.is_aligned() {
        return Err(Fault::invalid(format!("{what} is not aligned as its type is")));
    }
    Ok(())
}

/// `count` items to read. Nothing of them is looked at, so they may be what C left there.
///
/// # Safety
///
/// They can be read, and are not written while the slice is in use.
pub(crate) unsafe fn slice<'a, T>(
    pointer: *const T,
    count: usize,
    what: &'static str,
) -> Result<&'a [T], Fault> {
    items(pointer, count, what)?;
    if count == 0 {
        return Ok(&[]);
    }
    // SAFETY: neither null, misaligned nor too long, and the caller promises the rest.
    Ok(unsafe { std::slice::from_raw_parts(pointer, count) })
}

/// Bytes to write.
///
/// # Safety
///
/// They can be read and written, and are not accessed otherwise while the slice is in use.
pub(crate) unsafe fn bytes_mut<'a>(
    pointer: *mut c_void,
    length: usize,
    what: &'static str,
) -> Result<&'a mut [u8], Fault> {
    items(pointer.cast::<u8>(), length, what)?;
    if length == 0 {
        return Ok(&mut []);
    }
    // SAFETY: neither null nor too long, and the caller promises the rest.
    Ok(unsafe { std::slice::from_raw_parts_mut(pointer.cast(), length) })
}

/// Where `count` items can be written, one or more.
pub(crate) fn place<T>(pointer: *mut T, count: usize, what: &'static str) -> Result<(), Fault> {
    if pointer.is_null() {
        return Err(Fault::invalid(format!("{what} is null")));
    }
    items(pointer, count, what)
}

/// Writes to an out argument that has to be there.
///
/// # Safety
///
/// If it is not null it can be written.
pub(crate) unsafe fn put<T>(pointer: *mut T, value: T, what: &'static str) -> Result<(), Fault> {
    place(pointer, 1, what)?;
    // SAFETY: neither null nor misaligned, and the caller promises the rest.
    unsafe { pointer.write(value) };
    Ok(())
}

/// Reads an argument that has to be there.
///
/// # Safety
///
/// If it is not null it can be read.
#[inline]
pub(crate) unsafe fn read<T: Copy>(pointer: *const T, what: &'static str) -> Result<T, Fault> {
    if pointer.is_null() {
        return Err(Fault::invalid(format!("{what} is null")));
    }
    items(pointer, 1, what)?;
    // SAFETY: neither null nor misaligned, and the caller promises the rest.
    Ok(unsafe { pointer.read() })
}

/// Structures that say their size first, so that they can grow.
pub(crate) trait Sized32: Copy {
    const WHAT: &'static str;
    /// What is meant where none is given.
    const UNSAID: Self;
}

/// Options, or what is usual if there are none.
///
/// # Safety
///
/// If it is not null, it can be read up to the length in its first field.
#[inline]
pub(crate) unsafe fn options<T: Sized32>(pointer: *const T) -> Result<T, Fault> {
    if pointer.is_null() {
        return Ok(T::UNSAID);
    }
    let what = T::WHAT;
    items(pointer.cast::<u32>(), 1, T::WHAT)?;
    // SAFETY: it can be read, and begins with its size.
    let size = unsafe { pointer.cast::<u32>().read() } as usize;
    if size != size_of::<T>() {
        let here = size_of::<T>();
        return Err(Fault::invalid(format!(
            "{what}: its size is {size}, here {here}: fill it from its INIT macro, and compile \
             with the header of this library"
        )));
    }
    // SAFETY: its first field is its size.
    unsafe { read(pointer, what) }
}

/// A text of C.
///
/// # Safety
///
/// If it is not null, it ends with a zero byte, and is not written while the text is in use.
pub(crate) unsafe fn text<'a>(
    pointer: *const c_char,
    what: &'static str,
) -> Result<&'a str, Fault> {
    if pointer.is_null() {
        return Err(Fault::invalid(format!("{what} is null")));
    }
    // SAFETY: the caller guarantees it.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|_| Fault::invalid(format!("{what} is not UTF-8")))
}

/// A timeout: none, if it is negative.
#[inline]
pub(crate) fn timeout(ns: i64) -> Option<Duration> {
    u64::try_from(ns).ok().map(Duration::from_nanos)
}

/// Flags, all of which have to be known.
#[inline]
pub(crate) fn flags(given: u32, known: u32, what: &'static str) -> Result<(), Fault> {
    match given & !known {
        0 => Ok(()),
        unknown => Err(Fault::invalid(format!("{what}: unknown flags {unknown:#x}"))),
    }
}

/// A number of a list that is not on it.
pub(crate) fn unknown(what: &'static str, number: u32) -> Fault {
    Fault::invalid(format!("{what}: there is no {number}"))
}
