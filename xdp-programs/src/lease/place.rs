//! Where the daemon listens: a socket in the file system, which goes with it.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, chownat, fstat, open};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};

use super::daemon::{DaemonConfig, DaemonError};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// The file of a listening socket. Dropping it removes the file.
#[derive(Debug)]
pub(super) struct Place {
    path: PathBuf,
    inode: u64,
}

impl Place {
    /// Listens at the socket of `config`, in the place of a daemon that was killed, to those that
    /// may be served.
    pub(super) fn listen(config: &DaemonConfig) -> Result<(OwnedFd, Self), DaemonError> {
        let os = |doing: &str| {
            let doing = format!("{doing} {}", config.socket.display());
            |source: io::Error| DaemonError::Os { doing, source }
        };
        if let Some(parent) = config.socket.parent() {
            fs::create_dir_all(parent).map_err(os("making the folder of"))?;
        }
        let listener = open_socket().map_err(os("opening"))?;
        let address =
            SocketAddrUnix::new(&config.socket).map_err(|error| os("naming")(error.into()))?;
        remove_dead(&config.socket, &address).map_err(os("taking the place of"))?;
        bind(&listener, &address).map_err(|error| match error {
            Errno::ADDRINUSE => DaemonError::Running { path: config.socket.clone() },
            error => os("binding")(error.into()),
        })?;
        let inode = fs::symlink_metadata(&config.socket).map_err(os("looking at"))?.ino();
        let place = Self { path: config.socket.clone(), inode };
        open_to(&config.socket, &config.groups, &config.users).map_err(os("giving away"))?;
        listen(&listener, BACKLOG).map_err(|error| os("listening at")(error.into()))?;
        Ok((listener, place))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|there| there.ino() == self.inode) {
            // What stays is taken over by the next one.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn open_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Removes the socket that a killed daemon has left, and nothing else.
fn remove_dead(path: &Path, address: &SocketAddrUnix) -> io::Result<()> {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|there| there.file_type().is_socket());
    // One with a listener does not refuse.
    if is_socket && connect(open_socket()?, address) == Err(Errno::CONNREFUSED) {
        fs::remove_file(path)?;
    }
    Ok(())
}

/// Lets those connect who may: the kernel keeps others out where it is one group alone. A file
/// that has replaced the socket since it was bound is not changed.
fn open_to(path: &Path, groups: &[u32], users: &[u32]) -> io::Result<()> {
    let socket = open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    if FileType::from_raw_mode(fstat(&socket)?.st_mode) != FileType::Socket {
        return Err(io::Error::other("another file has replaced the socket"));
    }
    let mode = match (groups, users) {
        (&[group], []) => {
            chownat(&socket, c"", None, Some(Gid::from_raw(group)), AtFlags::EMPTY_PATH)?;
            0o660
        }
        _ => 0o666,
    };
    // Linux changes modes by descriptor alone from 6.6 on.
    let socket = format!("/proc/thread-self/fd/{}", socket.as_raw_fd());
    rustix::fs::chmodat(CWD, socket, Mode::from_raw_mode(mode), AtFlags::empty())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_link_in_the_place_of_the_socket_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        fs::write(&file, "mine").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        for path in [&file, &link] {
            let error = open_to(path, &[], &[0]).unwrap_err();
            assert!(error.to_string().contains("another file has replaced"), "{error}");
        }
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        let path = folder.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        open_to(&path, &[], &[0]).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o666);
    }
}
