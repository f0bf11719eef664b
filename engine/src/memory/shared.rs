//! Memory that processes of one host map by a descriptor: memfds that cannot change their length.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::refused_call::refused;

/// Without these its memory could end below what is mapped, and reading there be a SIGBUS.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// The type that `fstatfs` returns for memory that is no huge page and no file of a disk or a
/// user's.
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// Memory that is reserved by one call, in bytes: a signal undoes the call under way, no more.
const RESERVED_AT_ONCE: u64 = 16 << 20;

/// Zeroed memory of `bytes` without a name in a file system: only processes that get the descriptor
/// can map it, and its length is sealed. All pages are reserved where the kernel can do that.
///
/// # Errors
///
/// `RLIMIT_FSIZE` is lower, the host has too little memory, or there is no descriptor.
pub(crate) fn create_sealed(name: &str, bytes: u64) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Beyond the limit the kernel would end the process by SIGXFSZ.
    if let Some(limit) = getrlimit(Resource::Fsize).current.filter(|&limit| bytes > limit) {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!(
                "this process may make files of {limit} bytes, which counts for shared memory of \
                 {bytes} bytes, too; raise RLIMIT_FSIZE (ulimit -f)"
            ),
        ));
    }
    let memory = rustix::fs::memfd_create(name, flags).map_err(refused("memfd_create"))?;
    rustix::fs::ftruncate(&memory, bytes).map_err(refused("ftruncate"))?;
    reserve(memory.as_fd(), bytes)?;
    rustix::fs::fcntl_add_seals(&memory, SEALS | SealFlags::SEAL)?;
    Ok(memory)
}

/// Has the kernel provide all pages, so that a lack of them is an error here, and no SIGBUS later.
fn reserve(memory: BorrowedFd<'_>, bytes: u64) -> io::Result<()> {
    // The kernel would look for room at the cost of other processes before it refuses.
    if bytes > host_bytes() {
        return Err(too_little(bytes, Errno::NOMEM));
    }
    let mut from = 0;
    while from < bytes {
        let length = RESERVED_AT_ONCE.min(bytes - from);
        match rustix::fs::fallocate(memory, FallocateFlags::empty(), from, length) {
            Ok(()) => from += length,
            Err(Errno::INTR) => {}
            // A sandbox without this call: pages come when they are written, as ever.
            Err(Errno::NOSYS | Errno::PERM | Errno::OPNOTSUPP | Errno::ACCESS) => return Ok(()),
            Err(error @ (Errno::NOSPC | Errno::NOMEM)) => return Err(too_little(bytes, error)),
            Err(error) => return Err(refused("fallocate")(error)),
        }
    }
    Ok(())
}

fn too_little(bytes: u64, error: Errno) -> io::Error {
    io::Error::new(
        io::ErrorKind::OutOfMemory,
        format!(
            "the host has no {bytes} bytes for shared memory ({error}); free memory, or raise the \
             limit of the cgroup (memory.max)"
        ),
    )
}

/// Memory and swap of the host; as much as there can be where the kernel does not say.
fn host_bytes() -> u64 {
    // SAFETY: it is plain numbers, which may be 0.
    let mut all: libc::sysinfo = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes into `all`, which has the length of its type.
    if unsafe { libc::sysinfo(&raw mut all) } != 0 {
        return u64::MAX;
    }
    #[allow(clippy::useless_conversion)] // They are shorter on other processors.
    let pages = u64::from(all.totalram).saturating_add(all.totalswap.into());
    pages.saturating_mul(all.mem_unit.max(1).into())
}

/// Returns the length, in bytes, of memory that another process made and this one may map.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_the_host_does_not_have_is_an_error() {
        let error = create_sealed("ringrail-test", 1 << 46).unwrap_err();
        assert!(error.to_string().contains("no 70368744177664 bytes"), "{error}");
    }

    #[test]
    fn memory_is_there_before_it_is_written() {
        let memory = create_sealed("ringrail-test", 1 << 20).unwrap();
        assert!(rustix::fs::fstat(&memory).unwrap().st_blocks >= 2048);
    }

    /// By a child, whose limit is its own.
    #[test]
    fn memory_beyond_the_limit_of_files_is_an_error_and_no_signal() {
        const CHILD: &str = "RINGRAIL_TEST_FILE_LIMIT";
        if std::env::var_os(CHILD).is_some() {
            let limit = rustix::process::Rlimit { current: Some(4096), maximum: Some(4096) };
            rustix::process::setrlimit(Resource::Fsize, limit).unwrap();
            let error = create_sealed("ringrail-test", 8192).unwrap_err();
            assert!(error.to_string().contains("RLIMIT_FSIZE"), "{error}");
            return;
        }
        let name = "memory::shared::tests::\
                    memory_beyond_the_limit_of_files_is_an_error_and_no_signal";
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name])
            .env(CHILD, "1")
            .output()
            .unwrap();
        assert!(child.status.success(), "{child:?}");
        assert!(String::from_utf8_lossy(&child.stdout).contains("1 passed"), "{child:?}");
    }

    /// RR-SHM-3
    #[test]
    fn memory_that_may_change_its_length_is_refused() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        for seals in [SealFlags::empty(), SealFlags::GROW, SealFlags::SHRINK] {
            let memory = rustix::fs::memfd_create("ringrail-test", flags).unwrap();
            rustix::fs::ftruncate(&memory, 8192).unwrap();
            rustix::fs::fcntl_add_seals(&memory, seals).unwrap();
            assert!(sealed_bytes(memory.as_fd()).is_err(), "{seals:?}");
        }
        let file = tempfile::tempfile().unwrap();
        file.set_len(8192).unwrap();
        assert!(sealed_bytes(file.as_fd()).is_err());
        let memory = create_sealed("ringrail-test", 8192).unwrap();
        assert_eq!(sealed_bytes(memory.as_fd()).unwrap(), 8192);
    }
}
