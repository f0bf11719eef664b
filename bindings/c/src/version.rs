//! Which version this is.

use std::ffi::c_char;

/// Major version of the header.
pub const RR_VERSION_MAJOR: u32 = 0;
/// Minor version of the header.
pub const RR_VERSION_MINOR: u32 = 1;
/// Patch level of the header.
pub const RR_VERSION_PATCH: u32 = 0;

const TEXT: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");

/// The version of the library, such as "0.1.0". It lives as long as the process.
///
/// # Errors
///
/// None.
///
/// # Threads
///
/// Any.
#[unsafe(no_mangle)]
pub extern "C" fn rr_version() -> *const c_char {
    TEXT.as_ptr().cast()
}

/// The version of the library as one number: major << 16 | minor << 8 | patch. A program compares
/// it with the numbers of the header that it was compiled with.
///
/// # Errors
///
/// None.
///
/// # Threads
///
/// Any.
#[unsafe(no_mangle)]
pub extern "C" fn rr_version_number() -> u32 {
    RR_VERSION_MAJOR << 16 | RR_VERSION_MINOR << 8 | RR_VERSION_PATCH
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_the_package() {
        let numbers = format!("{RR_VERSION_MAJOR}.{RR_VERSION_MINOR}.{RR_VERSION_PATCH}");
        assert_eq!(numbers, env!("CARGO_PKG_VERSION"));
    }
}
