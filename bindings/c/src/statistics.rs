//! What is counted.

use std::ffi::{c_char, c_int};

use crate::fault::guard;
use crate::handles;
use crate::inside::{each, rr_endpoint};
use crate::text;

/// Writes everything that the engine of an endpoint, its paths and its NICs have counted as of now,
/// as a text in the format of Prometheus, with a zero byte behind it. Gives the length without
/// that, also where the text was cut to `capacity`: call with 0 first to learn how much it is, and
/// ask for some more, for it may grow.
///
/// # Errors
///
/// RR_EHANDLE, RR_ETHREAD. RR_EINVAL: null with a capacity.
///
/// # Safety
///
/// `capacity` bytes can be written at `buffer`, which may be null for 0.
///
/// # Threads
///
/// Any, at the same time; of RR_OWNED its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_statistics(
    endpoint: *mut rr_endpoint,
    buffer: *mut c_char,
    capacity: usize,
) -> c_int {
    guard(|| {
        // SAFETY: the caller does not close it meanwhile.
        let endpoint = unsafe { handles::get::<rr_endpoint>(endpoint) }?;
        let all = each!(&endpoint.0, it => it.prometheus());
        // SAFETY: the caller guarantees it.
        unsafe { text::give(&all, buffer, capacity) }
    })
}
