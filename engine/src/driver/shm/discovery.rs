//! How engines of one host find each other: by abstract socket names, which belong to the network
//! namespace and need no cleanup, or in a directory that several namespaces share.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::net::SocketAddrUnix;

use super::socket;

/// Younger sockets of a directory may be under construction.
const STALE_AFTER: Duration = Duration::from_secs(10);
const PREFIX: &str = "ringrail-";

/// See the module.
#[derive(Clone, Debug)]
pub(super) enum Discovery {
    Network,
    /// `boot`: distinguishes this kernel from others that share the directory.
    Directory {
        path: PathBuf,
        boot: String,
        /// Other users may connect.
        others: bool,
    },
}

impl Discovery {
    /// `directory`: the setting; `None`: the network namespace. `others`: other users may
    /// connect.
    pub(super) fn new(directory: Option<&Path>, others: bool) -> io::Result<Self> {
        let Some(path) = directory else { return Ok(Self::Network) };
        let id = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        let boot = id.chars().filter(char::is_ascii_hexdigit).take(8).collect();
        Ok(Self::Directory { path: path.to_owned(), boot, others })
    }

    fn path_of(&self, engine: u64) -> Option<PathBuf> {
        match self {
            Self::Network => None,
            Self::Directory { path, boot, .. } => {
                Some(path.join(format!("{PREFIX}{boot}-{engine:016x}")))
            }
        }
    }

    pub(super) fn address_of(&self, engine: u64) -> io::Result<SocketAddrUnix> {
        Ok(match self.path_of(engine) {
            None => SocketAddrUnix::new_abstract_name(format!("{PREFIX}{engine:016x}").as_bytes())?,
            Some(path) => SocketAddrUnix::new(path)?,
        })
    }

    /// Lets other users connect to the socket in the directory, if allowed. `None`: nothing has to
    /// be removed at the end.
    pub(super) fn listening(&self, engine: u64) -> io::Result<Option<SocketFile>> {
        let Some(path) = self.path_of(engine) else { return Ok(None) };
        let left = SocketFile { path, process: std::process::id() };
        // By a descriptor: other users who may write to the directory could have put a link there,
        // to a file of this user.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::open(&left.path, flags, Mode::empty())?;
        let status = rustix::fs::fstat(&file)?;
        let is_socket = FileType::from_raw_mode(status.st_mode) == FileType::Socket;
        if !is_socket || status.st_uid != rustix::process::geteuid().as_raw() {
            return Err(io::Error::other("the socket was replaced by another process"));
        }
        let Self::Directory { others, .. } = self else { return Ok(None) };
        let mode = if *others { 0o666 } else { 0o600 };
        let opened = format!("/proc/self/fd/{}", file.as_raw_fd());
        fs::set_permissions(opened, fs::Permissions::from_mode(mode))?;
        Ok(Some(left))
    }

    /// Removes the sockets of processes of this kernel that were killed: they have no owner.
    pub(super) fn remove_stale_sockets(&self) {
        let Self::Directory { path, boot, .. } = self else { return };
        let Ok(entries) = fs::read_dir(path) else { return };
        let own = format!("{PREFIX}{boot}-");
        for entry in entries.flatten() {
            let name = entry.file_name();
            let Some(engine) = name.to_str().and_then(|name| name.strip_prefix(&own)) else {
                continue;
            };
            let Ok(found) = entry.metadata() else { continue };
            let age = found.modified().ok().and_then(|it| it.elapsed().ok());
            let is_old = age.is_some_and(|age| age >= STALE_AFTER);
            let Ok(engine) = u64::from_str_radix(engine, 16) else { continue };
            if is_old && socket::is_stale(self, engine) {
                // An engine that moves to another thread makes its socket anew.
                let now = fs::symlink_metadata(entry.path());
                if now.is_ok_and(|now| (now.ino(), now.ctime()) == (found.ino(), found.ctime())) {
                    let _ = fs::remove_file(entry.path());
                }
            }
        }
    }
}

/// A socket in a directory; removed with this, in the process that made it.
pub(super) struct SocketFile {
    path: PathBuf,
    process: u32,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(path: &Path) -> Discovery {
        Discovery::new(Some(path), false).unwrap()
    }

    fn names(path: &Path) -> usize {
        fs::read_dir(path).unwrap().count()
    }

    #[test]
    fn directory_listener_is_found_and_removes_its_socket() {
        let path = tempfile::tempdir().unwrap();
        let discovery = directory(path.path());
        let listener = socket::listen(&discovery, 7).unwrap();
        socket::connect(&discovery, 7).unwrap();
        for (discovery, engine) in [(&discovery, 8), (&Discovery::Network, 7)] {
            let error = socket::connect(discovery, engine).unwrap_err();
            assert!(socket::is_not_listening(&error), "{error}");
        }
        assert_eq!(names(path.path()), 1);
        drop(listener);
        assert_eq!(names(path.path()), 0);
    }

    #[test]
    fn directory_allows_other_users_when_set() {
        for (others, mode) in [(false, 0o600), (true, 0o666)] {
            let path = tempfile::tempdir().unwrap();
            let discovery = Discovery::new(Some(path.path()), others).unwrap();
            let _listener = socket::listen(&discovery, 7).unwrap();
            let made = fs::metadata(discovery.path_of(7).unwrap()).unwrap();
            assert_eq!(made.permissions().mode() & 0o777, mode);
        }
    }

    #[test]
    fn only_sockets_of_killed_processes_are_removed() {
        let path = tempfile::tempdir().unwrap();
        let discovery = directory(path.path());
        let lives = socket::listen(&discovery, 1).unwrap();
        for engine in [2, 3] {
            // As if it were killed: its socket is closed, and its name stays.
            let (socket, left) = socket::listen(&discovery, engine).unwrap();
            std::mem::forget(left);
            drop(socket);
        }
        let other = path.path().join(format!("{PREFIX}00000000-{:016x}", 4));
        fs::write(&other, []).unwrap();
        let old = std::time::SystemTime::now() - 2 * STALE_AFTER;
        for engine in [1, 2] {
            let name = discovery.path_of(engine).unwrap();
            let times = rustix::fs::Timestamps {
                last_access: timespec(old),
                last_modification: timespec(old),
            };
            rustix::fs::utimensat(rustix::fs::CWD, name, &times, rustix::fs::AtFlags::empty())
                .unwrap();
        }
        discovery.remove_stale_sockets();
        let is_there = |engine| discovery.path_of(engine).unwrap().exists();
        assert_eq!([1, 2, 3].map(is_there), [true, false, true], "3 is young");
        assert!(other.exists(), "another kernel's");
        drop(lives);
    }

    fn timespec(at: std::time::SystemTime) -> rustix::fs::Timespec {
        let since = at.duration_since(std::time::UNIX_EPOCH).unwrap();
        rustix::fs::Timespec { tv_sec: since.as_secs() as i64, tv_nsec: 0 }
    }

    #[test]
    fn missing_directory_is_named_in_the_error() {
        let discovery = directory(Path::new("/nonexistent/ringrail"));
        assert!(socket::listen(&discovery, 1).is_err());
        let long = "x".repeat(120);
        assert!(socket::listen(&directory(Path::new(&long)), 1).is_err());
    }
}
