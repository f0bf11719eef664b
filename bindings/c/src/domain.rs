//! Domains, and the job's secret.

use std::ffi::{c_char, c_int};

use ringrail::settings::Settings;
use ringrail::{Domain, JobSecret};

use crate::check;
use crate::codes::{RR_ESETTINGS, RR_ISOLATED};
use crate::fault::{Fault, guard, guard_unit};
use crate::handles;
use crate::inside::rr_domain;
use crate::text;

/// Bytes of the text of a secret, the zero byte included.
pub const RR_SECRET_TEXT_BYTES: usize = 65;

/// Most settings that one call takes.
const SETTINGS_MAX: usize = 4096;

/// Opens a domain: settings, registered memory, the choice of NICs. A process needs one.
///
/// `settings` is an array of "name=value" whose last entry is null, or null itself. What is in it
/// wins over the environment (RINGRAIL_NAME) and the files (RINGRAIL_CONFIG, ringrail.toml);
/// with the flag RR_ISOLATED neither of these is read. A job's processes need the same job_secret
/// (rr_secret_random), or insecure=true.
///
/// # Errors
///
/// RR_EINVAL: null, an entry without "=", unknown flags. RR_ESETTINGS: a setting is unknown or out
/// of range, or there is no secret. RR_ESYSTEM: memory that cannot be had.
///
/// # Safety
///
/// The texts end with zero bytes, the array with a null. They are the caller's again on return.
/// `domain` can be written; on failure it is null.
///
/// # Threads
///
/// Any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_domain_open(
    settings: *const *const c_char,
    flags: u32,
    domain: *mut *mut rr_domain,
) -> c_int {
    guard_unit(|| {
        // SAFETY: the caller guarantees it.
        unsafe { check::put(domain, std::ptr::null_mut(), "domain") }?;
        check::flags(flags, RR_ISOLATED, "domain")?;
        let isolated = flags & RR_ISOLATED != 0;
        let mut builder = if isolated { Settings::isolated() } else { Settings::builder() };
        if !settings.is_null() {
            for index in 0..=SETTINGS_MAX {
                // SAFETY: all entries up to the null are there.
                let entry = unsafe { check::read(settings.wrapping_add(index), "settings") }?;
                if entry.is_null() {
                    break;
                }
                if index == SETTINGS_MAX {
                    return Err(Fault::invalid("there is no null behind the last setting"));
                }
                // SAFETY: the caller guarantees it.
                let entry = unsafe { check::text(entry, "setting") }?;
                let Some((name, value)) = entry.split_once('=') else {
                    // It may be a secret with a slip, so it is not shown.
                    return Err(Fault::invalid(format!("setting {index} has no =")));
                };
                builder = builder.set(name.trim(), value);
            }
        }
        let settings = builder.build();
        let settings =
            settings.map_err(|error| Fault::Here(RR_ESETTINGS, error.to_string().into()))?;
        let opened = handles::open(0, rr_domain(Domain::with_settings(settings)?))?;
        // SAFETY: it was written above.
        unsafe { domain.write(opened) };
        Ok(())
    })
}

/// Closes the handle of a domain. Endpoints that were opened from it go on, and keep what they
/// need.
///
/// # Errors
///
/// RR_EHANDLE: it was closed before.
///
/// # Safety
///
/// No other thread is in a call with it.
///
/// # Threads
///
/// Any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_domain_close(domain: *mut rr_domain) -> c_int {
    // SAFETY: the caller guarantees it.
    guard_unit(|| unsafe { handles::close::<rr_domain>(domain) }.map(drop))
}

/// Writes the value of a setting in force, with a zero byte behind it, and gives its length without
/// that, also where the text was cut to `capacity`.
///
/// # Errors
///
/// RR_EHANDLE. RR_EINVAL: null, or there is no setting of this name.
///
/// # Safety
///
/// `name` ends with a zero byte; `capacity` bytes can be written at `buffer`.
///
/// # Threads
///
/// Any, at the same time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_domain_setting(
    domain: *mut rr_domain,
    name: *const c_char,
    buffer: *mut c_char,
    capacity: usize,
) -> c_int {
    guard(|| {
        // SAFETY: the caller does not close it meanwhile.
        let domain = unsafe { handles::get::<rr_domain>(domain) }?;
        // SAFETY: the caller guarantees it.
        let name = unsafe { check::text(name, "name") }?;
        let found = domain.0.settings().entries().find(|entry| entry.name == name);
        let found = found.ok_or_else(|| Fault::invalid(format!("there is no setting {name}")))?;
        // SAFETY: the caller guarantees it.
        unsafe { text::give(&found.value, buffer, capacity) }
    })
}

/// Makes a new secret for a job, as the setting job_secret takes it: 64 digits and a zero byte.
/// Hand it to the processes of the job by a way that only they can read.
///
/// # Errors
///
/// RR_ETRUNCATED: less than RR_SECRET_TEXT_BYTES. RR_EINVAL: null.
///
/// # Safety
///
/// `capacity` bytes can be written at `buffer`.
///
/// # Threads
///
/// Any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_secret_random(buffer: *mut c_char, capacity: usize) -> c_int {
    guard_unit(|| {
        check::place(buffer, capacity.max(1), "buffer")?;
        if capacity < RR_SECRET_TEXT_BYTES {
            return Err(Fault::too_short(RR_SECRET_TEXT_BYTES, capacity));
        }
        let secret = JobSecret::random();
        // SAFETY: the caller guarantees it.
        unsafe { text::give(&secret.to_hex(), buffer, capacity) }.map(drop)
    })
}
