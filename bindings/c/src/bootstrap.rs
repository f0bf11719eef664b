//! How the ranks of a job find each other.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::Mutex;

use ringrail::bootstrap::{self, Bootstrap, DEFAULT_TIMEOUT, Member, SharedDirectory, Tcp};

use crate::check::{self, Sized32};
use crate::fault::{Fault, guard, guard_unit};
use crate::handles;
use crate::inside::{lock, rr_bootstrap};

/// Who joins which job. Make it from RR_MEMBER_INIT.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct rr_member {
    /// sizeof(rr_member).
    pub size: u32,
    /// The number of this rank, from 0.
    pub rank: u32,
    /// The number of ranks.
    pub ranks: u32,
    /// 0.
    pub _reserved: u32,
    /// Identifies this job among others at the same port or in the same directory; may be null.
    pub job: *const c_char,
    /// How long joining and each collective call may take; RR_FOREVER: 60 seconds.
    pub timeout_ns: i64,
}

impl Sized32 for rr_member {
    const WHAT: &'static str = "member";
    const UNSAID: Self = Self {
        size: size_of::<Self>() as u32,
        rank: 0,
        ranks: 1,
        _reserved: 0,
        job: ptr::null(),
        timeout_ns: -1,
    };
}

/// # Safety
///
/// If it is not null it can be read, and its job is null or ends with a zero byte.
unsafe fn member(pointer: *const rr_member) -> Result<Member, Fault> {
    if pointer.is_null() {
        return Err(Fault::invalid("member is null"));
    }
    // SAFETY: the caller guarantees it.
    let given = unsafe { check::options(pointer) }?;
    let mut member = Member::new(given.rank as usize, given.ranks as usize);
    member.timeout = check::timeout(given.timeout_ns).unwrap_or(DEFAULT_TIMEOUT);
    if !given.job.is_null() {
        // SAFETY: the caller guarantees it.
        member.job = unsafe { check::text(given.job, "job") }?.to_owned();
    }
    Ok(member)
}

/// # Safety
///
/// If it is not null it can be written.
unsafe fn open(
    place: *mut *mut rr_bootstrap,
    join: impl FnOnce() -> Result<Box<dyn Bootstrap>, Fault>,
) -> Result<(), Fault> {
    // SAFETY: the caller guarantees it.
    unsafe { check::put(place, ptr::null_mut(), "bootstrap") }?;
    let opened = handles::open(0, rr_bootstrap(Mutex::new(join()?)))?;
    // SAFETY: it was written above.
    unsafe { place.write(opened) };
    Ok(())
}

/// Joins the job that the environment describes: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, or
/// RINGRAIL_BOOTSTRAP=dir:PATH. Waits until all ranks are there.
///
/// # Errors
///
/// RR_EBOOTSTRAP: variables are missing, a rank did not join, ...; see the text. RR_EINVAL:
/// null.
///
/// # Safety
///
/// `bootstrap` can be written, and on failure is null. The environment is not changed during the
/// call.
///
/// # Threads
///
/// Any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_bootstrap_from_environment(bootstrap: *mut *mut rr_bootstrap) -> c_int {
    // SAFETY: the caller guarantees it.
    guard_unit(|| unsafe { open(bootstrap, || Ok(bootstrap::from_env()?)) })
}

/// Joins a job by TCP: rank 0 serves at `host` (a name or an address) and `port`. Waits until all
/// ranks are there.
///
/// # Errors
///
/// RR_EBOOTSTRAP. RR_EINVAL: null, a port that there is not, a member whose size is wrong.
///
/// # Safety
///
/// Texts end with zero bytes; `member` can be read; `bootstrap` can be written, and on failure is
/// null.
///
/// # Threads
///
/// Any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_bootstrap_tcp(
    host: *const c_char,
    port: u32,
    member_of_job: *const rr_member,
    bootstrap: *mut *mut rr_bootstrap,
) -> c_int {
    guard_unit(|| {
        // SAFETY: the caller guarantees it.
        unsafe {
            open(bootstrap, || {
                let (host, member) = (check::text(host, "host")?, member(member_of_job)?);
                let port = u16::try_from(port).ok().filter(|port| *port > 0);
                let port = port.ok_or_else(|| Fault::invalid("a port is from 1 to 65535"))?;
                Ok(Box::new(Tcp::join(host, port, &member)?))
            })
        }
    })
}

/// Joins a job through a directory that all ranks see, which is made if it is missing. Waits until
/// all ranks are there.
///
/// # Errors
///
/// RR_EBOOTSTRAP. RR_EINVAL: null, a member whose size is wrong.
///
/// # Safety
///
/// As for rr_bootstrap_tcp.
///
/// # Threads
///
/// Any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_bootstrap_directory(
    path: *const c_char,
    member_of_job: *const rr_member,
    bootstrap: *mut *mut rr_bootstrap,
) -> c_int {
    guard_unit(|| {
        // SAFETY: the caller guarantees it.
        unsafe {
            open(bootstrap, || {
                let (path, member) = (check::text(path, "path")?, member(member_of_job)?);
                Ok(Box::new(SharedDirectory::join(path, &member)?))
            })
        }
    })
}

/// The number of this rank, from 0.
///
/// # Errors
///
/// RR_EHANDLE.
///
/// # Safety
///
/// It is not closed during the call.
///
/// # Threads
///
/// Any; calls wait for each other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_bootstrap_rank(bootstrap: *mut rr_bootstrap) -> c_int {
    // SAFETY: the caller does not close it meanwhile.
    guard(|| Ok(lock(&unsafe { handles::get::<rr_bootstrap>(bootstrap) }?.0).rank() as c_int))
}

/// The number of ranks, 1048576 at the most.
///
/// # Errors
///
/// RR_EHANDLE.
///
/// # Safety
///
/// It is not closed during the call.
///
/// # Threads
///
/// Any; calls wait for each other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_bootstrap_size(bootstrap: *mut rr_bootstrap) -> c_int {
    // SAFETY: the caller does not close it meanwhile.
    guard(|| Ok(lock(&unsafe { handles::get::<rr_bootstrap>(bootstrap) }?.0).size() as c_int))
}

/// Gives every rank the values of all ranks, one behind the other in the order of ranks: addresses,
/// say, and keys. Each rank gives `length` bytes. Collective: all ranks make the same calls in the
/// same order. A key (a text) serves once.
///
/// # Errors
///
/// RR_EHANDLE. RR_EINVAL: null, a rank gave another length. RR_EBOOTSTRAP: a rank left or did not
/// come in time, the key served before, more than 64 KiB.
///
/// # Safety
///
/// `key` ends with a zero byte; `length` bytes can be read at `value`; `length` times the number of
/// ranks can be written at `values`. All are the caller's on return.
///
/// # Threads
///
/// Any; calls wait for each other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_bootstrap_exchange(
    bootstrap: *mut rr_bootstrap,
    key: *const c_char,
    value: *const c_void,
    length: usize,
    values: *mut c_void,
) -> c_int {
    guard_unit(|| {
        // SAFETY: the caller does not close it meanwhile.
        let bootstrap = unsafe { handles::get::<rr_bootstrap>(bootstrap) }?;
        // SAFETY: the caller guarantees it.
        let (key, value) = unsafe {
            (check::text(key, "key")?, check::slice(value.cast::<u8>(), length, "value")?)
        };
        let mut bootstrap = lock(&bootstrap.0);
        let Some(whole) = length.checked_mul(bootstrap.size()) else {
            return Err(Fault::invalid("values of more bytes than there are"));
        };
        // SAFETY: the caller guarantees it.
        let values = unsafe { check::bytes_mut(values, whole, "values") }?;
        let all = bootstrap::exchange(&mut **bootstrap, key, value)?;
        for (rank, one) in all.iter().enumerate() {
            if one.len() != length {
                let got = one.len();
                return Err(Fault::invalid(format!(
                    "rank {rank} gave {got} bytes under {key}, this one {length}"
                )));
            }
            values[rank * length..][..length].copy_from_slice(one);
        }
        Ok(())
    })
}

/// Waits for all ranks. Collective.
///
/// # Errors
///
/// RR_EHANDLE. RR_EBOOTSTRAP.
///
/// # Safety
///
/// It is not closed during the call.
///
/// # Threads
///
/// Any; calls wait for each other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_bootstrap_barrier(bootstrap: *mut rr_bootstrap) -> c_int {
    guard_unit(|| {
        // SAFETY: the caller does not close it meanwhile.
        let bootstrap = unsafe { handles::get::<rr_bootstrap>(bootstrap) }?;
        Ok(lock(&bootstrap.0).barrier()?)
    })
}

/// Leaves the job. Keep the bootstrap until all ranks are past their last collective call.
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
pub unsafe extern "C" fn rr_bootstrap_close(bootstrap: *mut rr_bootstrap) -> c_int {
    // SAFETY: the caller guarantees it.
    guard_unit(|| unsafe { handles::close::<rr_bootstrap>(bootstrap) }.map(drop))
}
