//! Memory that processes of one host map by a descriptor: memfds that cannot change their length.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags};

use super::mapping::Mapping;

/// Without these its memory could end below what is mapped, and reading there be a SIGBUS.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// What `fstatfs` says of memory that is no huge page and no file of a disk or a user's.
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// Zeroed memory of `bytes` without a place in a file system. Nobody can open it who is not given
/// the descriptor, and nobody changes its length.
pub(crate) fn create_sealed(name: &str, bytes: u64) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = rustix::fs::memfd_create(name, flags)?;
    rustix::fs::ftruncate(&memory, bytes)?;
    rustix::fs::fcntl_add_seals(&memory, SEALS | SealFlags::SEAL)?;
    Ok(memory)
}

/// The length, in bytes, of memory that somebody else made and this process may map.
///
/// # Errors
///
/// It is not what [`create_sealed`] makes: it may change its length, or be no plain memory.
///
/// RR-SHM-3.
pub(crate) fn sealed_bytes(memory: BorrowedFd<'_>) -> io::Result<u64> {
    let refused = |why| io::Error::new(io::ErrorKind::InvalidData, why);
    let seals = rustix::fs::fcntl_get_seals(memory);
    if !seals.is_ok_and(|seals| seals.contains(SEALS)) {
        return Err(refused("the peer's memory is not sealed against another length"));
    }
    if rustix::fs::fstatfs(memory)?.f_type as u64 != TMPFS_MAGIC {
        return Err(refused("the peer's memory is not of ordinary pages"));
    }
    Ok(rustix::fs::fstat(memory)?.st_size as u64)
}

/// The whole of fresh memory of `bytes`, mapped, and its descriptor.
pub(super) fn create(bytes: usize) -> io::Result<(Mapping, OwnedFd)> {
    let page = rustix::param::page_size();
    let whole = bytes.max(1).checked_next_multiple_of(page).ok_or(io::ErrorKind::OutOfMemory)?;
    let memory = create_sealed("ringrail-region", whole as u64)?;
    Ok((Mapping::shared(&memory, 0, whole)?, memory))
}

/// `bytes` at `offset` of memory that a peer made, mapped; and where in the mapping they begin.
///
/// # Errors
///
/// As for [`sealed_bytes`]; they are not inside; the kernel maps no more.
pub(super) fn open(
    memory: BorrowedFd<'_>,
    offset: u64,
    bytes: usize,
) -> io::Result<(Mapping, usize)> {
    let refused = |why| io::Error::new(io::ErrorKind::InvalidData, why);
    let whole = sealed_bytes(memory)?;
    if offset.checked_add(bytes as u64).is_none_or(|end| end > whole) || bytes == 0 {
        return Err(refused("the peer's memory ends before what the key opens"));
    }
    // A page has fewer bytes than there are in a `usize`.
    let before = (offset % rustix::param::page_size() as u64) as usize;
    Ok((Mapping::shared(memory, offset - before as u64, before + bytes)?, before))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_piece_of_memory_is_mapped_where_it_is() {
        let (whole, memory) = create(20_000).unwrap();
        assert_eq!(sealed_bytes(memory.as_fd()).unwrap(), 20_480);
        // SAFETY: the mapping is live, and only used here.
        unsafe { whole.base().as_ptr().add(5000).write_volatile(7) };
        let (piece, before) = open(memory.as_fd(), 5000, 15_480).unwrap();
        assert_eq!(before, 5000 - 4096);
        // SAFETY: as above; `before` is inside.
        assert_eq!(unsafe { piece.base().as_ptr().add(before).read_volatile() }, 7);
        for (offset, bytes) in [(5000, 15_481), (20_480, 1), (u64::MAX, 1), (1, usize::MAX), (0, 0)]
        {
            assert!(open(memory.as_fd(), offset, bytes).is_err(), "{bytes} at {offset}");
        }
    }

    /// RR-SHM-3, RR-SHM-9
    #[test]
    fn memory_that_may_change_its_length_is_not_mapped() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        for seals in [SealFlags::empty(), SealFlags::GROW, SealFlags::SHRINK] {
            let memory = rustix::fs::memfd_create("ringrail-test", flags).unwrap();
            rustix::fs::ftruncate(&memory, 8192).unwrap();
            rustix::fs::fcntl_add_seals(&memory, seals).unwrap();
            assert!(open(memory.as_fd(), 0, 4096).is_err(), "{seals:?}");
        }
        let file = tempfile::tempfile().unwrap();
        file.set_len(8192).unwrap();
        assert!(open(file.as_fd(), 0, 4096).is_err());
    }
}
