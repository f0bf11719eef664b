//! Random bytes of the kernel, which a policy may refuse: where they are to be had is an error
//! then, and no panic.

use std::io;

use rand::TryRng;
use rand::rngs::SysRng;

use crate::refused_call::refused;

/// Bytes that cannot be guessed.
pub(super) fn random_bytes<const COUNT: usize>() -> io::Result<[u8; COUNT]> {
    let mut bytes = [0; COUNT];
    let filled = SysRng.try_fill_bytes(&mut bytes);
    filled.map_err(|error| refused("getrandom")(io::Error::from(error)))?;
    Ok(bytes)
}

/// The same as a number.
pub(super) fn random_number() -> io::Result<u64> {
    random_bytes().map(u64::from_ne_bytes)
}
