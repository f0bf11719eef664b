//! Files at paths that others can guess.
//!
//! In a directory that others may write to, another user may have created the entry at such a
//! path: a link to a file of this user, which would be overwritten, or a file that its owner reads
//! and changes later. So links are not followed, and only files of this user are used.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, openat};
use rustix::io::Errno;
use rustix::path::Arg;
use rustix::process::geteuid;

/// Opens a file for reading and writing; creates it, closed to others, if it is missing. Existing
/// content is kept. A device is accepted as it is: only root creates devices.
///
/// # Errors
/// The file is a link, belongs to another user, is not a regular file, or has other names as well;
/// or the system returned an error.
pub(crate) fn open_own(folder: impl AsFd, name: impl Arg) -> io::Result<File> {
    // Must not block: opening another user's pipe would wait for its other end.
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = openat(folder, name, flags | COMMON, Mode::RUSR | Mode::WUSR).map_err(no_link)?;
    let status = fstat(&file)?;
    match FileType::from_raw_mode(status.st_mode) {
        FileType::CharacterDevice => return Ok(file.into()),
        FileType::RegularFile => {}
        _ => return Err(io::Error::other("it is no plain file")),
    }
    check_owner(&status)?;
    // No name at all: its owner, another process of this user, has just removed it.
    if status.st_nlink > 1 {
        return Err(io::Error::other("it has other names, which may be those of another file"));
    }
    Ok(file.into())
}

/// Opens a directory that only this user may write to.
///
/// # Errors
/// The directory is a link, belongs to another user, or is open to others; or the system returned
/// an error.
pub(crate) fn open_own_directory(folder: impl AsFd, name: impl Arg + Copy) -> io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | COMMON;
    let opened = openat(&folder, name, flags, Mode::empty());
    let directory = opened.map_err(|error| match error {
        // With this flag the kernel checks the file type first.
        Errno::NOTDIR if is_link(folder, name) => no_link(Errno::LOOP),
        error => error.into(),
    })?;
    let status = fstat(&directory)?;
    check_owner(&status)?;
    if Mode::from_raw_mode(status.st_mode).intersects(Mode::WGRP | Mode::WOTH) {
        return Err(io::Error::other("others may write to it"));
    }
    Ok(directory)
}

/// Opens a file for reading that may be missing.
///
/// # Errors
/// The file is a link, or the system returned an error.
pub(crate) fn open_to_read(folder: impl AsFd, name: impl Arg) -> io::Result<Option<File>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | COMMON;
    match openat(folder, name, flags, Mode::empty()) {
        Ok(file) => Ok(Some(file.into())),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(no_link(error)),
    }
}

const COMMON: OFlags = OFlags::NOFOLLOW.union(OFlags::CLOEXEC);

fn no_link(error: Errno) -> io::Error {
    match error {
        Errno::LOOP => io::Error::other("it is a link, and links are not followed"),
        error => error.into(),
    }
}

fn is_link(folder: impl AsFd, name: impl Arg) -> bool {
    let status = rustix::fs::statat(folder, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW);
    status.is_ok_and(|status| FileType::from_raw_mode(status.st_mode) == FileType::Symlink)
}

fn check_owner(status: &Stat) -> io::Result<()> {
    let (owner, user) = (status.st_uid, geteuid().as_raw());
    if owner == user {
        return Ok(());
    }
    Err(io::Error::other(format!("it belongs to user {owner}, and this process runs as {user}")))
}
