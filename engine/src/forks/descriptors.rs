//! The descriptors of this process's engines.

use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::net::{TcpListener, UdpSocket};
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Generation, Part, install};

/// Descriptors of one word of the table.
const WORD_BITS: usize = 64;
/// Words of one page of the table.
const PAGE_WORDS: usize = 256;
/// Pages: 16 times as many descriptors as the kernel allows a process by default.
/// Descriptors beyond stay open in children.
const PAGES: usize = 1024;

type Page = [AtomicU64; PAGE_WORDS];

/// One bit for each descriptor that belongs to an engine. Pages are made when they are needed, and
/// never freed.
static TABLE: [Part<Page>; PAGES] = [const { Part::new() }; PAGES];

/// The word of a descriptor's bit, and the bit.
fn place(fd: RawFd) -> Option<(&'static Part<Page>, usize, u64)> {
    let fd = usize::try_from(fd).ok()?;
    let (word, bit) = (fd / WORD_BITS, fd % WORD_BITS);
    Some((TABLE.get(word / PAGE_WORDS)?, word % PAGE_WORDS, 1 << bit))
}

fn enter(fd: RawFd) {
    install();
    if let Some((slot, word, bit)) = place(fd) {
        let page = slot.get_or_make(|| Box::new([const { AtomicU64::new(0) }; PAGE_WORDS]));
        page[word].fetch_or(bit, Ordering::Relaxed);
    }
}

fn leave(fd: RawFd) {
    if let Some((slot, word, bit)) = place(fd)
        && let Some(page) = slot.get()
    {
        page[word].fetch_and(!bit, Ordering::Relaxed);
    }
}

/// In a child: closes all that its parent's engines had.
pub(super) fn close_all() {
    for (page_number, page) in TABLE.iter().enumerate() {
        let Some(page) = page.get() else { continue };
        for (word_number, word) in page.iter().enumerate() {
            let mut bits = word.swap(0, Ordering::Relaxed);
            while bits != 0 {
                let bit = bits.trailing_zeros() as usize;
                bits &= bits - 1;
                let fd = (page_number * PAGE_WORDS + word_number) * WORD_BITS + bit;
                // SAFETY: the descriptor belongs to an `EngineFd`, which does not use it in this
                // process, for its generation is another one.
                unsafe { libc::close(fd as RawFd) };
            }
        }
    }
}

/// A descriptor of an engine, or what has one: closed when it is dropped, and in a child as soon as
/// that is there, where what is left of it does nothing.
///
/// It is entered in the table behind the call that opened it, and leaves it before the one that
/// closes it. A child that another thread's fork makes between the two keeps it; the other order
/// would have children close descriptors of others.
pub(crate) struct EngineFd<T: AsRawFd = OwnedFd> {
    inner: ManuallyDrop<T>,
    generation: Generation,
}

impl<T: AsRawFd> EngineFd<T> {
    pub(crate) fn new(inner: T) -> Self {
        enter(inner.as_raw_fd());
        Self { inner: ManuallyDrop::new(inner), generation: Generation::current() }
    }

    /// Whether it belongs to a parent of this process: it is closed here.
    pub(crate) fn is_inherited(&self) -> bool {
        !self.generation.is_current()
    }

    /// Returns the descriptor that it was made of, which leaves the table.
    pub(crate) fn into_inner(self) -> T {
        assert!(!self.is_inherited(), "{}", super::INHERITED);
        leave(self.inner.as_raw_fd());
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is neither dropped nor used any more.
        unsafe { ManuallyDrop::take(&mut this.inner) }
    }
}

impl<T: AsRawFd> Drop for EngineFd<T> {
    fn drop(&mut self) {
        if self.is_inherited() {
            // The number may be that of another file by now, and memory that belongs to it is not
            // mapped here.
            return;
        }
        leave(self.inner.as_raw_fd());
        // SAFETY: it is not used any more.
        unsafe { ManuallyDrop::drop(&mut self.inner) };
    }
}

/// Has a descriptor closed in children that a value of another library owns, for as long as this
/// lives. Drop it before the descriptor is closed.
#[cfg(any(test, feature = "xdp"))]
#[derive(Debug)]
pub(crate) struct Registration {
    fd: RawFd,
    generation: Generation,
}

#[cfg(any(test, feature = "xdp"))]
impl Registration {
    pub(crate) fn of(fd: RawFd) -> Self {
        enter(fd);
        Self { fd, generation: Generation::current() }
    }
}

#[cfg(any(test, feature = "xdp"))]
impl Drop for Registration {
    fn drop(&mut self) {
        // In a child the number may be that of another engine's descriptor by now.
        if self.generation.is_current() {
            leave(self.fd);
        }
    }
}

impl EngineFd<TcpListener> {
    /// Another descriptor of the same socket.
    pub(crate) fn copy(&self) -> io::Result<Self> {
        Ok(Self::new(self.try_clone()?))
    }
}

impl EngineFd<UdpSocket> {
    /// Another descriptor of the same socket.
    pub(crate) fn copy(&self) -> io::Result<Self> {
        Ok(Self::new(self.try_clone()?))
    }
}

impl<T: AsRawFd + Into<OwnedFd>> EngineFd<T> {
    /// The same without its type.
    pub(crate) fn into_owned(self) -> EngineFd {
        EngineFd::new(self.into_inner().into())
    }
}

impl<T: AsRawFd> From<T> for EngineFd<T> {
    fn from(inner: T) -> Self {
        Self::new(inner)
    }
}

impl<T: AsRawFd> Deref for EngineFd<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T: AsRawFd> DerefMut for EngineFd<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

impl<T: AsRawFd + AsFd> AsFd for EngineFd<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

impl<T: AsRawFd> AsRawFd for EngineFd<T> {
    #[inline]
    fn as_raw_fd(&self) -> RawFd {
        self.inner.as_raw_fd()
    }
}

impl<T: AsRawFd> fmt::Debug for EngineFd<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EngineFd").field(&self.as_raw_fd()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_known(fd: RawFd) -> bool {
        let Some((slot, word, bit)) = place(fd) else { return false };
        slot.get().is_some_and(|page| page[word].load(Ordering::Relaxed) & bit != 0)
    }

    #[test]
    fn the_table_has_a_descriptor_as_long_as_it_is_an_engines() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let fd = socket.as_raw_fd();
        let socket = EngineFd::new(socket);
        assert!(is_known(fd));
        let copy = socket.copy().unwrap();
        let other = copy.as_raw_fd();
        assert!(other != fd && is_known(other));
        let owned = copy.into_owned();
        assert!(owned.as_raw_fd() == other && is_known(other));
        drop(owned);
        assert!(is_known(fd));
        let socket = socket.into_inner();
        assert!(!is_known(fd));
        drop(socket);
    }

    #[test]
    fn the_table_has_a_descriptor_of_another_library_as_long_as_it_is_registered() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let fd = socket.as_raw_fd();
        let registration = Registration::of(fd);
        assert!(is_known(fd));
        drop(registration);
        assert!(!is_known(fd));
    }

    #[test]
    fn descriptors_beyond_the_table_have_no_owner() {
        for fd in [-1, RawFd::MAX] {
            enter(fd);
            assert!(!is_known(fd));
            leave(fd);
        }
    }
}
