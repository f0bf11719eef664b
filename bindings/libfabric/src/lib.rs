//! libfabric's provider of ringrail.
//!
//! libfabric opens `libringrail-fi.so` and calls [`fi_prov_ini`], the one symbol that it exports.

mod abi;
mod errno;
mod fid;

use std::cell::UnsafeCell;
use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use abi::consts::version;
use abi::fids::fid_fabric;
pub use abi::info::fi_provider;
use abi::info::{fi_context, fi_fabric_attr, fi_info};
use errno::Errno;
use fid::border_unit;

/// Writable, for libfabric keeps something in its `context`.
struct Provider(UnsafeCell<fi_provider>);

// SAFETY: this side reads what nobody writes: all but `context`, which is libfabric's.
unsafe impl Sync for Provider {}

static PROVIDER: Provider = Provider(UnsafeCell::new(fi_provider {
    version: version(0, 1),
    // A provider that knows less than an application asks for is passed over.
    fi_version: version(2, 6),
    context: fi_context { internal: [ptr::null_mut(); 4] },
    name: c"ringrail".as_ptr(),
    getinfo,
    fabric,
    cleanup,
}));

/// What libfabric calls when it has opened the library.
#[unsafe(no_mangle)]
pub extern "C" fn fi_prov_ini() -> *mut fi_provider {
    PROVIDER.0.get()
}

unsafe extern "C" fn getinfo(
    _version: u32,
    _node: *const c_char,
    _service: *const c_char,
    _flags: u64,
    _hints: *const fi_info,
    _info: *mut *mut fi_info,
) -> c_int {
    border_unit(|| Err(Errno::NODATA))
}

unsafe extern "C" fn fabric(
    _attr: *mut fi_fabric_attr,
    _fabric: *mut *mut fid_fabric,
    _context: *mut c_void,
) -> c_int {
    border_unit(|| Err(Errno::NOSYS))
}

unsafe extern "C" fn cleanup() {}
