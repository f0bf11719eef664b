//! Names of groups.

use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;
use std::ptr;

/// Room for the longest list of members that is believed.
const ROOM_BYTES_MAX: usize = 1 << 24;

/// The number of a group, out of wherever this host has its groups; `None`: there is none.
pub(crate) fn group_id(name: &str) -> io::Result<Option<u32>> {
    let name = CString::new(name)?;
    let mut room = vec![0_u8; 1 << 14];
    loop {
        let mut group = MaybeUninit::<libc::group>::uninit();
        let mut found = ptr::null_mut();
        // SAFETY: all pointers are to values that outlive the call; `room` has the given length.
        let error = unsafe {
            libc::getgrnam_r(
                name.as_ptr(),
                group.as_mut_ptr(),
                room.as_mut_ptr().cast(),
                room.len(),
                &mut found,
            )
        };
        match error {
            0 if found.is_null() => return Ok(None),
            // SAFETY: the call filled it in, for `found` points to it.
            0 => return Ok(Some(unsafe { group.assume_init_ref() }.gr_gid)),
            libc::ERANGE if room.len() < ROOM_BYTES_MAX => room.resize(room.len() * 4, 0),
            libc::EINTR => {}
            libc::ENOENT | libc::ESRCH => return Ok(None),
            error => return Err(io::Error::from_raw_os_error(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn groups_have_numbers() {
        assert_eq!(super::group_id("root").unwrap(), Some(0));
        assert_eq!(super::group_id("no-such-group-anywhere").unwrap(), None);
        assert!(super::group_id("with\0zero").is_err());
    }
}
