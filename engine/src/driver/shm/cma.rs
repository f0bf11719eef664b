//! Cross-memory attach: an engine reads messages from the memory of another process, by one system
//! call and one copy (`process_vm_readv`).
//!
//! Process ids are not trusted: they may be those of another namespace, or reused. So each call
//! also reads the *cookie* of the intended engine, after the message: the kernel copies in this
//! order, and a process that has the cookie after the message was copied had it before. The count
//! beside it shows that the sender has not revoked the memory in between.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering, fence};

use rustix::io::Errno;
use rustix::process::PTracer;

use crate::driver::random::random_number;
use crate::memory::{Shape, Span};
use crate::wire::local_peer::CookieLocation;

/// Pieces of memory of one call (`IOV_MAX`), one of which is the process cookie.
const IOVECS_MAX: usize = 1024;

/// Two words by which peers verify that they read this engine's memory, and that what they read is
/// valid.
///
/// Cleared when the engine's driver ends, before the memory of its operations is freed.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct ProcessCookie {
    word: AtomicU64,
    revocations: AtomicU64,
    #[cfg(any(test, feature = "sim"))]
    address_tokens: Option<std::sync::Mutex<Vec<u64>>>,
}

/// Location of a message in the memory of its sender's process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CmaLocation {
    /// Address of its first byte.
    pub(crate) address: u64,
    /// The sender's revocation count at the time of the announcement.
    pub(crate) revocations: u64,
}

/// Words of a [`ProcessCookie`].
const WORDS: usize = 2;
const _: () = assert!(std::mem::offset_of!(ProcessCookie, revocations) == size_of::<u64>());

/// Simulated messages are shorter than the distance between two tokens.
#[cfg(any(test, feature = "sim"))]
const ADDRESS_TOKEN_SHIFT: u32 = 40;

impl ProcessCookie {
    pub(in crate::driver) fn new() -> io::Result<Self> {
        let word = AtomicU64::new(random_number()? | 1);
        // A cookie of the driver before this one must not match by chance.
        Ok(Self {
            word,
            revocations: AtomicU64::new(random_number()?),
            #[cfg(any(test, feature = "sim"))]
            address_tokens: None,
        })
    }

    /// The cookie of a simulated engine, whose bytes on the wire are the same in every run: its
    /// count begins at `revocations`, and tokens replace addresses.
    #[cfg(any(test, feature = "sim"))]
    pub(in crate::driver) fn simulated(revocations: u64) -> Self {
        let address_tokens = Some(std::sync::Mutex::default());
        let word = AtomicU64::new(rand::random::<u64>() | 1);
        Self { word, revocations: AtomicU64::new(revocations), address_tokens }
    }

    /// The address of a message as announced to peers.
    #[inline]
    pub(crate) fn announce_address(&self, address: u64) -> u64 {
        #[cfg(any(test, feature = "sim"))]
        if let Some(address_tokens) = &self.address_tokens {
            let mut address_tokens = address_tokens.lock().unwrap_or_else(|it| it.into_inner());
            address_tokens.push(address);
            return (address_tokens.len() as u64) << ADDRESS_TOKEN_SHIFT;
        }
        address
    }

    /// The address behind an announcement of a simulated peer.
    #[cfg(any(test, feature = "sim"))]
    pub(in crate::driver) fn resolve(&self, announced: u64) -> Option<u64> {
        let Some(address_tokens) = &self.address_tokens else { return Some(announced) };
        let address_tokens = address_tokens.lock().unwrap_or_else(|it| it.into_inner());
        let index = (announced >> ADDRESS_TOKEN_SHIFT).checked_sub(1)?;
        let address = address_tokens.get(usize::try_from(index).ok()?)?;
        Some(address + (announced & ((1 << ADDRESS_TOKEN_SHIFT) - 1)))
    }

    /// The location as announced to peers.
    pub(super) fn location(&self) -> CookieLocation {
        let address = (&raw const *self).expose_provenance() as u64;
        CookieLocation { address: address.into(), word: self.word().into() }
    }

    fn word(&self) -> u64 {
        self.word.load(Ordering::Relaxed).to_le()
    }

    /// Number of revocations, starting from a random number.
    pub(crate) fn revocations(&self) -> u64 {
        self.revocations.load(Ordering::Relaxed)
    }

    /// Invalidates all announcements made so far.
    pub(crate) fn revoke(&self) {
        self.revocations.fetch_add(1, Ordering::Relaxed);
        // Before anything is written to the revoked memory.
        fence(Ordering::SeqCst);
    }

    /// Invalidates the cookie for good.
    pub(in crate::driver) fn end(&self) {
        self.word.store(0, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }
}

/// The memory of a peer's process.
#[derive(Debug)]
pub(in crate::driver) struct AttachedProcess {
    process: libc::pid_t,
    cookie: CookieLocation,
    /// Argument list of a call; reused.
    pieces: Vec<libc::iovec>,
}

// SAFETY: the pointers in `pieces` are only those of the last call, and handed to the kernel within
// the next one, which writes the list anew.
unsafe impl Send for AttachedProcess {}

impl AttachedProcess {
    /// The process at the other end of a connection, if its memory can be read.
    ///
    /// # Errors
    ///
    /// The peer does not allow it, its process is in another PID namespace, or the kernel refuses.
    pub(super) fn new(connection: impl AsFd, cookie: CookieLocation) -> io::Result<Self> {
        if cookie.address.get() == 0 {
            return Err(io::Error::other("the peer does not allow it"));
        }
        let libc::ucred { pid: process, uid, .. } = peer_of(connection.as_fd())?;
        if process == 0 {
            return Err(io::Error::other("its process is in another PID namespace"));
        }
        // The kernel would let root do it, but a read could block on pages served by the other user
        // (userfaultfd, FUSE).
        if uid != rustix::process::geteuid().as_raw() {
            return Err(io::Error::other("its process belongs to another user"));
        }
        let mut attached = Self { process, cookie, pieces: Vec::new() };
        let nothing = Shape::empty();
        // SAFETY: nothing is read but the cookie.
        unsafe { attached.call(0, None, &nothing, 0, 0) }?;
        Ok(attached)
    }

    /// This process, for simulations.
    #[cfg(any(test, feature = "sim"))]
    pub(in crate::driver) fn own_process(cookie: &ProcessCookie) -> Self {
        let process = std::process::id() as libc::pid_t;
        Self { process, cookie: cookie.location(), pieces: Vec::new() }
    }

    /// Reads `length` bytes at `offset` of the peer's message to the same offset of `into`.
    ///
    /// # Errors
    ///
    /// The bytes were not read, or are not valid: the process has ended, was replaced, or denies
    /// access; its engine has revoked the memory, or has ended; `into` has more than a thousand
    /// pieces.
    ///
    /// # Safety
    ///
    /// The memory of `into` is live and writable, and no reference to these bytes of it is used
    /// during the call; those of a region may be accessed through windows and by other calls.
    pub(in crate::driver) unsafe fn read(
        &mut self,
        source: CmaLocation,
        into: &Shape,
        offset: usize,
        length: usize,
    ) -> io::Result<()> {
        let address = source.address.checked_add(offset as u64);
        let address = address.ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: the caller's contract.
        unsafe { self.call(address, Some(source.revocations), into, offset, length) }
    }

    /// See [`Self::read`]; without `revocations` the count is not checked.
    unsafe fn call(
        &mut self,
        address: u64,
        revocations: Option<u64>,
        into: &Shape,
        offset: usize,
        length: usize,
    ) -> io::Result<()> {
        let mut seen = [0_u64; WORDS];
        self.pieces.clear();
        let piece = |span: Span| libc::iovec { iov_base: span.ptr.cast(), iov_len: span.len };
        self.pieces.extend(into.spans(offset, length).take(IOVECS_MAX).map(piece));
        if self.pieces.len() == IOVECS_MAX {
            return Err(io::Error::other("the receive is in too many pieces"));
        }
        let cookie = Span { ptr: (&raw mut seen).cast(), len: size_of_val(&seen) };
        self.pieces.push(piece(cookie));
        let there = |address: u64, length| {
            let iov_base = std::ptr::without_provenance_mut(address as usize);
            libc::iovec { iov_base, iov_len: length }
        };
        let theirs = [there(address, length), there(self.cookie.address.get(), size_of_val(&seen))];
        // An address of no bytes may be invalid.
        let theirs = if length == 0 { &theirs[1..] } else { &theirs[..] };
        // SAFETY: the caller's contract for `into`, and `seen` is this function's own; the kernel
        // checks the addresses of the other process, and returns when it has done with both.
        let got = unsafe {
            libc::process_vm_readv(
                self.process,
                self.pieces.as_ptr(),
                self.pieces.len() as libc::c_ulong,
                theirs.as_ptr(),
                theirs.len() as libc::c_ulong,
                0,
            )
        };
        let got = usize::try_from(got).map_err(|_| io::Error::last_os_error())?;
        if got != length + size_of_val(&seen) {
            return Err(io::Error::other("its memory is shorter than the message"));
        }
        let [word, count] = seen.map(u64::from_le);
        if word != self.cookie.word.get() {
            return Err(io::Error::other("its engine has ended"));
        }
        if revocations.is_some_and(|announced| announced != count) {
            return Err(io::Error::other("its sender has taken memory back"));
        }
        Ok(())
    }
}

/// Process and user that created the other end of a connection, as seen from this process's
/// namespaces; process 0: not visible there.
pub(super) fn peer_of(connection: BorrowedFd<'_>) -> io::Result<libc::ucred> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes `length` bytes at most, which `peer` has.
    let failed = unsafe {
        let (level, option) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
        let (value, length) = ((&raw mut peer).cast(), &raw mut length);
        libc::getsockopt(connection.as_raw_fd(), level, option, value, length)
    };
    if failed != 0 { Err(io::Error::last_os_error()) } else { Ok(peer) }
}

/// Allows all processes of the user to read this one's memory, as far as Yama is concerned; setting
/// `shared_memory_ptrace_any`.
pub(in crate::driver) fn allow_ptrace() {
    match rustix::process::set_ptracer(PTracer::Any) {
        // Without Yama there is nothing to allow.
        Ok(()) | Err(Errno::INVAL) => {}
        Err(error) => {
            tracing::warn!("cannot allow local peers to read this process's memory: {error}")
        }
    }
}

/// What an administrator can do if the kernel refuses.
pub(super) fn remedy(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPERM) => {
            "the kernel refuses: both processes need the same user and user namespace, and where \
             Yama is in use kernel.yama.ptrace_scope = 0, or 1 and the setting \
             shared_memory_ptrace_any, or CAP_SYS_PTRACE; until then long messages are copied \
             through shared memory"
        }
        Some(libc::ENOSYS) => {
            "process_vm_readv is not available: check the kernel and the container's seccomp filter"
        }
        _ => "long messages are copied through shared memory",
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    use super::*;

    fn attach(cookie: &ProcessCookie) -> AttachedProcess {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        AttachedProcess::new(&ours, cookie.location()).unwrap()
    }

    fn source(bytes: &[u8], revocations: u64) -> CmaLocation {
        let address = bytes.as_ptr().expose_provenance() as u64;
        CmaLocation { address, revocations }
    }

    /// RR-SHM-7
    #[test]
    fn revoked_read_is_discarded() {
        let cookie = Arc::new(ProcessCookie::new().unwrap());
        let mut attached = attach(&cookie);
        let message: Vec<u8> = (0..100_000_u32).map(|it| it as u8).collect();
        let mut memory = vec![0; message.len()];
        let into = Shape::contiguous(memory.as_mut_ptr(), memory.len());
        let announced = source(&message, cookie.revocations());
        // SAFETY: `memory` is alive, and only read below.
        let mut read =
            |announced, offset, length| unsafe { attached.read(announced, &into, offset, length) };
        read(announced, 0, 60_000).unwrap();
        read(announced, 60_000, 40_000).unwrap();
        cookie.revoke();
        assert!(read(announced, 0, 1).is_err(), "the memory may be something else");
        let announced = source(&message, cookie.revocations());
        read(announced, 0, 1).unwrap();
        cookie.end();
        assert!(read(announced, 0, 1).is_err(), "the engine is gone");
        assert_eq!(memory, message);
    }

    #[test]
    fn read_fills_blocks_in_order_and_fails_on_unmapped_memory() {
        let cookie = ProcessCookie::new().unwrap();
        let mut attached = attach(&cookie);
        let message: Vec<u8> = (0..64).collect();
        let mut memory = [0_u8; 128];
        let into = Shape::strided(memory.as_mut_ptr(), 8, 16, 8);
        let announced = source(&message, cookie.revocations());
        // SAFETY: `memory` is alive, and only read below.
        unsafe { attached.read(announced, &into, 4, 60) }.unwrap();
        let there = |at: usize| memory[at / 8 * 16 + at % 8];
        assert!((4..64).all(|at| there(at) == message[at]));
        assert_eq!(memory[8..16], [0; 8], "between the blocks");
        let nowhere = CmaLocation { address: 4096, revocations: 0 };
        // SAFETY: as above.
        let error = unsafe { attached.read(nowhere, &into, 0, 64) }.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
        let beyond = CmaLocation { address: u64::MAX, revocations: 0 };
        // SAFETY: as above.
        assert!(unsafe { attached.read(beyond, &into, 4, 8) }.is_err());
        let pieces = Shape::strided(memory.as_mut_ptr(), 0, 1, 4);
        // SAFETY: as above; it has no bytes.
        unsafe { attached.read(announced, &pieces, 0, 0) }.unwrap();
    }

    #[test]
    fn attach_requires_a_matching_cookie() {
        let cookie = ProcessCookie::new().unwrap();
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let CookieLocation { address, word } = cookie.location();
        for wrong in [
            CookieLocation { address: 0.into(), word },
            CookieLocation { address, word: (word.get() ^ 2).into() },
            CookieLocation { address: 8.into(), word },
        ] {
            assert!(AttachedProcess::new(&ours, wrong).is_err(), "{wrong:?}");
        }
    }
}
