//! libfabric's provider of ringrail.
//!
//! libfabric opens `libringrail-fi.so` and calls [`fi_prov_ini`], the one symbol that it exports.

mod abi;
mod address;
mod av;
mod cntr;
mod connections;
mod cq;
mod domain;
mod ep;
mod eq;
mod errno;
mod fabric;
mod fid;
mod info;
mod log;
mod mr;
mod params;
mod pep;
mod secret;
mod symbols;

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

use abi::consts::version;
use abi::fids::fid_fabric;
pub use abi::info::fi_provider;
use abi::info::{fi_context, fi_fabric_attr, fi_info};
use fid::border_unit;

/// The name that `fi_info -p` selects.
pub(crate) const PROVIDER_NAME: &CStr = c"ringrail";
pub(crate) const PROVIDER_VERSION: u32 = version(0, 1);

/// Writable, for libfabric keeps something in its `context`.
struct Provider(UnsafeCell<fi_provider>);

// SAFETY: this side reads what is not written: all but `context`, which is libfabric's.
unsafe impl Sync for Provider {}

static PROVIDER: Provider = Provider(UnsafeCell::new(fi_provider {
    version: PROVIDER_VERSION,
    // A provider that knows less than an application asks for is passed over.
    fi_version: version(2, 6),
    context: fi_context { internal: [ptr::null_mut(); 4] },
    name: PROVIDER_NAME.as_ptr(),
    getinfo,
    fabric: open_fabric,
    cleanup,
}));

/// Returns the provider; libfabric calls this when it has opened the library.
#[unsafe(no_mangle)]
pub extern "C" fn fi_prov_ini() -> *mut fi_provider {
    // A provider that cannot log is one all the same.
    let _started = std::panic::catch_unwind(|| {
        log::start();
        params::define();
        #[cfg(feature = "bench")]
        slow_clocks();
    });
    PROVIDER.0.get()
}

/// Slows the engines' clock where `ringrail-perf instructions` counts this process.
#[cfg(feature = "bench")]
fn slow_clocks() {
    let times = std::env::var("BENCH_OF_RINGRAIL_SLOW_CLOCKS").ok();
    if let Some(times) = times.and_then(|times| times.parse().ok()) {
        ringrail::bench::slow_clocks(times);
    }
}

/// As libfabric's functions want it.
pub(crate) fn provider() -> *mut fi_provider {
    PROVIDER.0.get()
}

unsafe extern "C" fn getinfo(
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const fi_info,
    info: *mut *mut fi_info,
) -> c_int {
    // SAFETY: libfabric passes what its callers passed.
    border_unit(|| unsafe { info::getinfo(version, node, service, flags, hints, info) })
}

unsafe extern "C" fn open_fabric(
    attr: *mut fi_fabric_attr,
    fabric: *mut *mut fid_fabric,
    context: *mut c_void,
) -> c_int {
    // SAFETY: libfabric passes what its callers passed.
    border_unit(|| unsafe { fabric::open(attr, fabric, context) })
}

/// Engines end with their domains, and what threads of theirs still run stays loaded.
unsafe extern "C" fn cleanup() {}
