//! A directory that is held open, so that names in it are looked up there, wherever its path leads
//! meanwhile. Names may lead into directories below it, as `DIRECTORY/FILE`.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, Mode, OFlags, fstat, mkdirat, openat, renameat, statat, unlinkat};
use rustix::io::Errno;

use super::BootstrapError;
use crate::files;

/// No file here is larger: a part, or the list of all instances.
const FILE_BYTES_MAX: u64 = 64 << 20;

const CURE: &str = "see that the directory is on a file system that all ranks see, writable, with \
    room and locks";

/// The cure if an existing file was created by another user.
const CURE_FOREIGN_FILE: &str =
    "remove it, or give all ranks a directory in which no other user creates files";

/// See the module.
#[derive(Debug)]
pub(super) struct Folder {
    fd: OwnedFd,
    /// For error messages.
    path: PathBuf,
}

impl Folder {
    /// Opens any directory.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty())?;
        Ok(Self { fd, path: path.to_owned() })
    }

    /// Opens a directory below, which is this user's alone.
    pub(super) fn below(&self, name: &str) -> io::Result<Self> {
        let fd = files::open_own_directory(&self.fd, name)?;
        Ok(Self { fd, path: self.path.join(name) })
    }

    /// Makes a directory below that is closed to others. What is there already stays.
    pub(super) fn make(&self, name: &str) -> io::Result<()> {
        match mkdirat(&self.fd, name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the path, for error messages.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a function that makes the error of an operation on `name`.
    pub(super) fn failed(
        &self,
        doing: &str,
        name: &str,
    ) -> impl Fn(io::Error) -> BootstrapError + use<> {
        system(doing, &self.path.join(name))
    }

    /// Returns the names in a subdirectory, or in this one (`.`); none if it does not exist.
    pub(super) fn names(&self, of: &str) -> Result<HashSet<String>, BootstrapError> {
        let failed = self.failed("cannot list", of);
        let mut names = HashSet::new();
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = match openat(&self.fd, of, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(names),
            Err(error) => return Err(failed(error.into())),
        };
        for entry in Dir::new(fd).map_err(|error| failed(error.into()))? {
            let entry = entry.map_err(|error| failed(error.into()))?;
            // Names that are not UTF-8 do not belong to the bootstrap.
            names.extend(entry.file_name().to_str().ok().map(str::to_owned));
        }
        names.retain(|name| name != "." && name != "..");
        Ok(names)
    }

    /// Reads a small file. Returns `None` if it does not exist.
    pub(super) fn read(&self, name: &str) -> Result<Option<Vec<u8>>, BootstrapError> {
        let failed = self.failed("cannot read", name);
        let Some(file) = files::open_to_read(&self.fd, name).map_err(&failed)? else {
            return Ok(None);
        };
        let mut bytes = Vec::new();
        match file.take(FILE_BYTES_MAX).read_to_end(&mut bytes) {
            Ok(_) => Ok(Some(bytes)),
            // Replaced while it was read, over NFS: look again later.
            Err(error) if error.kind() == io::ErrorKind::StaleNetworkFileHandle => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    /// Publishes a file atomically, by renaming `temporary`, a name that no other process uses.
    pub(super) fn publish(
        &self,
        name: &str,
        temporary: &str,
        bytes: &[u8],
    ) -> Result<(), BootstrapError> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        let written = openat(&self.fd, temporary, flags, Mode::RUSR | Mode::WUSR)
            .map_err(io::Error::from)
            .and_then(|file| File::from(file).write_all(bytes))
            .and_then(|()| Ok(renameat(&self.fd, temporary, &self.fd, name)?));
        written.map_err(|error| {
            // It may not even exist; the error that counts is the first.
            self.remove(temporary);
            self.failed("cannot write", name)(error)
        })
    }

    /// Opens a file of this user's for reading and writing, and makes it where it is missing.
    pub(super) fn open_file(&self, name: &str) -> io::Result<File> {
        files::open_own(&self.fd, name)
    }

    /// Returns whether `file` is the file called `name` in this directory.
    pub(super) fn has(&self, name: &str, file: &File) -> bool {
        let there = statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW);
        let here = fstat(file);
        there.is_ok_and(|there| {
            here.is_ok_and(|here| (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino))
        })
    }

    /// Removes a file. What cannot be removed does no harm.
    pub(super) fn remove(&self, name: &str) {
        let _ = unlinkat(&self.fd, name, AtFlags::empty());
    }

    /// Removes a directory if nothing is in it.
    pub(super) fn remove_empty(&self, name: &str) {
        let _ = unlinkat(&self.fd, name, AtFlags::REMOVEDIR);
    }

    /// Removes a directory and the files in it, as far as that can be done.
    pub(super) fn remove_with_files(&self, name: &str) {
        for file in self.names(name).unwrap_or_default() {
            self.remove(&format!("{name}/{file}"));
        }
        self.remove_empty(name);
    }
}

/// Returns a function that makes the error of an operation on `path`.
pub(super) fn system(doing: &str, path: &Path) -> impl Fn(io::Error) -> BootstrapError + use<> {
    let doing = format!("{doing} {}", path.display());
    move |error| BootstrapError::System {
        doing: doing.clone(),
        problem: error.to_string(),
        cure: if error.raw_os_error().is_some() { CURE } else { CURE_FOREIGN_FILE }.into(),
    }
}
