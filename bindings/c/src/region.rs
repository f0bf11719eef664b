//! Memory that peers may reach, and its keys.

use std::ffi::{c_int, c_void};
use std::ptr;

use ringrail::{Access, KeyOptions, Peer, RemoteKey};

use crate::check::{self, Sized32};
use crate::codes::{
    RR_CHOSEN_KEY, RR_REMOTE_ATOMIC, RR_REMOTE_READ, RR_REMOTE_WRITE, RR_TO_THE_END,
};
use crate::fault::{Fault, guard, guard_unit};
use crate::handles;
use crate::inside::{AnyRegion, each, keep, rr_endpoint, rr_region};
use crate::options::rr_peer;

/// What a key is to open. Make it from RR_KEY_OPTIONS_INIT.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct rr_key_options {
    /// sizeof(rr_key_options).
    pub size: u32,
    /// RR_REMOTE_READ, RR_REMOTE_WRITE, RR_REMOTE_ATOMIC: one at least.
    pub access: u32,
    /// Where what it opens begins in the region, in bytes.
    pub offset: u64,
    /// How long that is; RR_TO_THE_END.
    pub length: u64,
    /// RR_CHOSEN_KEY: the key is `key`. Else it is a random one, which cannot be guessed.
    pub flags: u32,
    /// 0.
    pub _reserved: u32,
    /// The key that the program chooses.
    pub key: u64,
    /// Who may use it; null: each peer of the job.
    pub peers: *const rr_peer,
    /// How many those are.
    pub peer_count: usize,
}

impl Sized32 for rr_key_options {
    const WHAT: &'static str = "options of a key";
    const UNSAID: Self = Self {
        size: size_of::<Self>() as u32,
        access: RR_REMOTE_READ | RR_REMOTE_WRITE | RR_REMOTE_ATOMIC,
        offset: 0,
        length: RR_TO_THE_END,
        flags: 0,
        _reserved: 0,
        key: 0,
        peers: ptr::null(),
        peer_count: 0,
    };
}

/// What peers have done to a region.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct rr_region_counts {
    /// Puts that are in place.
    pub puts: u64,
    /// Gets whose bytes were read.
    pub gets: u64,
    /// Atomic operations.
    pub atomics: u64,
    /// Bytes of all of these.
    pub bytes: u64,
}

fn open(region: AnyRegion, base: *mut u8) -> Result<*mut rr_region, Fault> {
    handles::open(region.owner(), rr_region(region, base))
}

/// Makes a region of zeroed memory of the library's (see rr_region_base), in huge pages where the
/// kernel has some. It belongs to the engine of the endpoint: keys work with peers that address
/// this endpoint or one beside it.
///
/// # Errors
///
/// RR_EHANDLE, RR_ETHREAD. RR_EINVAL: null. RR_EMEMORY. RR_ELIMIT: the engine has as many regions
/// as it may have.
///
/// # Safety
///
/// `region` can be written, and on failure is null.
///
/// # Threads
///
/// Any, at the same time; of RR_OWNED its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_region_allocate(
    endpoint: *mut rr_endpoint,
    length: usize,
    region: *mut *mut rr_region,
) -> c_int {
    guard_unit(|| {
        // SAFETY: the caller guarantees it.
        unsafe { check::put(region, ptr::null_mut(), "region") }?;
        // SAFETY: the caller does not close it meanwhile.
        let endpoint = unsafe { handles::get::<rr_endpoint>(endpoint) }?;
        // There is a word at its beginning, by which its place is known.
        let Some(whole) = length.checked_next_multiple_of(8).filter(|_| length > 0) else {
            return Err(Fault::invalid(format!("a region of {length} bytes")));
        };
        let made = keep!(&endpoint.0, it => it.allocate_region(whole)?);
        let base = each!(&made, it => it.atomic_u64(0).map(|word| word.as_ptr()));
        let opened = open(made, base.map_or(ptr::null_mut(), <*mut u64>::cast))?;
        // SAFETY: it was written above.
        unsafe { region.write(opened) };
        Ok(())
    })
}

/// Makes a region of memory of the caller's, with what is in it. Otherwise as rr_region_allocate.
///
/// # Errors
///
/// As for rr_region_allocate. RR_EINVAL also: null with a length, a length that no memory has.
///
/// # Safety
///
/// `length` bytes at `data` are mapped, and can be read and written, until rr_region_close has
/// returned. The program accesses them meanwhile by atomics, or while no peer does. `region` can be
/// written, and on failure is null.
///
/// # Threads
///
/// Any, at the same time; of RR_OWNED its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_region_register(
    endpoint: *mut rr_endpoint,
    data: *mut c_void,
    length: usize,
    region: *mut *mut rr_region,
) -> c_int {
    guard_unit(|| {
        // SAFETY: the caller guarantees it.
        unsafe { check::put(region, ptr::null_mut(), "region") }?;
        // SAFETY: the caller does not close it meanwhile.
        let endpoint = unsafe { handles::get::<rr_endpoint>(endpoint) }?;
        let span = check::span(data, length, "data")?;
        // SAFETY: the caller guarantees it.
        let made = keep!(&endpoint.0, it => unsafe { it.register_raw(span) }?);
        let opened = open(made, data.cast())?;
        // SAFETY: it was written above.
        unsafe { region.write(opened) };
        Ok(())
    })
}

/// Takes back all keys of a region, and closes it. Operations of peers that have its memory get
/// 100 ms to end; those under way then are aborted, and fail at their peers. It returns within
/// little more than that, whatever peers do.
///
/// # Completion
///
/// On return the memory is the caller's; that of rr_region_allocate is gone.
///
/// # Errors
///
/// RR_EHANDLE: it was closed before. RR_ETHREAD.
///
/// # Safety
///
/// No other thread is in a call with it, or uses what rr_region_base gave.
///
/// # Threads
///
/// Any; of RR_OWNED its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_region_close(region: *mut rr_region) -> c_int {
    // SAFETY: the caller guarantees it.
    guard_unit(|| unsafe { handles::close::<rr_region>(region) }.map(drop))
}

/// Where the memory of a region begins: a multiple of 8, of memory of the library's. Null on
/// failure.
///
/// # Errors
///
/// RR_EHANDLE, RR_ETHREAD: see rr_last_error.
///
/// # Safety
///
/// Peers with a key may write at any time: look at it by atomics, or while none does. It is valid
/// until rr_region_close.
///
/// # Threads
///
/// Any, at the same time; of RR_OWNED its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_region_base(region: *mut rr_region) -> *mut c_void {
    let mut base = ptr::null_mut();
    guard_unit(|| {
        // SAFETY: the caller does not close it meanwhile.
        base = unsafe { handles::get::<rr_region>(region) }?.1.cast();
        Ok(())
    });
    base
}

/// Makes a key to a region, for peers that it is given to by any means. Any number of keys may open
/// it. `options` null: the whole region, all rights, all peers of the job.
///
/// # Errors
///
/// RR_EHANDLE, RR_ETHREAD. RR_EINVAL: null, unknown flags, a range that is not inside, no rights, a
/// chosen key that is in use. RR_ENOPEER.
///
/// # Safety
///
/// `options` is null or can be read, with its peers, which are the caller's again on return; `key`
/// can be written.
///
/// # Threads
///
/// Any, at the same time; of RR_OWNED its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_region_key(
    region: *mut rr_region,
    options: *const rr_key_options,
    key: *mut u64,
) -> c_int {
    guard_unit(|| {
        // SAFETY: the caller does not close it meanwhile.
        let region = unsafe { handles::get::<rr_region>(region) }?;
        // SAFETY: the caller guarantees it.
        let given = unsafe { check::options(options) }?;
        check::place(key, 1, "key")?;
        check::flags(given.flags, RR_CHOSEN_KEY, rr_key_options::WHAT)?;
        let access = u8::try_from(given.access).ok().and_then(Access::from_bits);
        let Some(access) = access.filter(|_| given._reserved == 0) else {
            return Err(Fault::invalid("a key with rights, or reserved bits, that there are not"));
        };
        let long = |_| Fault::invalid("a key to more than an address can say");
        let length = match given.length {
            RR_TO_THE_END => None,
            length => Some(usize::try_from(length).map_err(long)?),
        };
        let peers = if given.peers.is_null() && given.peer_count == 0 {
            None
        } else {
            // SAFETY: the caller guarantees it.
            let peers = unsafe { check::slice(given.peers, given.peer_count, "peers") }?;
            Some(peers.iter().copied().map(Peer::from_bits).collect())
        };
        let options = KeyOptions {
            access,
            offset: usize::try_from(given.offset).map_err(long)?,
            length,
            key: (given.flags & RR_CHOSEN_KEY != 0).then_some(given.key),
            peers,
        };
        let made = each!(&region.0, it => it.key(&options)?);
        // SAFETY: the caller guarantees it.
        unsafe { check::put(key, made.0, "key") }
    })
}

/// Takes a key back: from the return on nothing begins by it. Waits until nothing that began by it
/// reaches the memory.
///
/// # Errors
///
/// RR_EHANDLE, RR_ETHREAD. RR_EINVAL: no key of this region. RR_EBUSY: an operation is still under
/// way when `timeout_ns` (RR_FOREVER: never) has passed; the key is taken back all the same.
///
/// # Safety
///
/// The region is not closed during the call.
///
/// # Threads
///
/// Any, at the same time; of RR_OWNED its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_region_revoke(
    region: *mut rr_region,
    key: u64,
    timeout_ns: i64,
) -> c_int {
    guard_unit(|| {
        // SAFETY: the caller does not close it meanwhile.
        let region = unsafe { handles::get::<rr_region>(region) }?;
        each!(&region.0, it => it.revoke(RemoteKey(key), check::timeout(timeout_ns)))?;
        Ok(())
    })
}

/// Copies bytes out of a region, while peers may write it.
///
/// # Errors
///
/// RR_EHANDLE, RR_ETHREAD. RR_EINVAL: null with a length; a range that is not inside.
///
/// # Safety
///
/// `length` bytes can be written at `into`, which is not in the region.
///
/// # Threads
///
/// Any, at the same time; of RR_OWNED its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_region_read(
    region: *mut rr_region,
    offset: usize,
    into: *mut c_void,
    length: usize,
) -> c_int {
    guard_unit(|| {
        // SAFETY: the caller does not close it meanwhile.
        let region = unsafe { handles::get::<rr_region>(region) }?;
        // SAFETY: the caller guarantees it.
        let into = unsafe { check::bytes_mut(into, length, "into") }?;
        each!(&region.0, it => it.read(offset, into))?;
        Ok(())
    })
}

/// Copies bytes into a region, while peers may read it.
///
/// # Errors
///
/// RR_EHANDLE, RR_ETHREAD. RR_EINVAL: null with a length; a range that is not inside.
///
/// # Safety
///
/// `length` bytes can be read at `data`, which is not in the region.
///
/// # Threads
///
/// Any, at the same time; of RR_OWNED its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_region_write(
    region: *mut rr_region,
    offset: usize,
    data: *const c_void,
    length: usize,
) -> c_int {
    guard_unit(|| {
        // SAFETY: the caller does not close it meanwhile.
        let region = unsafe { handles::get::<rr_region>(region) }?;
        // SAFETY: the caller guarantees it.
        let bytes = unsafe { check::slice(data.cast::<u8>(), length, "data") }?;
        each!(&region.0, it => it.write(offset, bytes))?;
        Ok(())
    })
}

/// Returns the counters of the operations of peers on a region. The bytes of operations that are
/// counted are visible to the thread that reads the count.
///
/// # Errors
///
/// RR_EHANDLE, RR_ETHREAD. RR_EINVAL: null.
///
/// # Safety
///
/// `counts` can be written.
///
/// # Threads
///
/// Any, at the same time; of RR_OWNED its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_region_counted(
    region: *mut rr_region,
    counts: *mut rr_region_counts,
) -> c_int {
    guard_unit(|| {
        // SAFETY: the caller does not close it meanwhile.
        let region = unsafe { handles::get::<rr_region>(region) }?;
        let found = each!(&region.0, it => it.counters());
        let ringrail::RegionCounters { puts, gets, atomics, bytes } = found;
        // SAFETY: the caller guarantees it.
        unsafe { check::put(counts, rr_region_counts { puts, gets, atomics, bytes }, "counts") }
    })
}

/// Makes progress until each count of a region is `least` or more. 1: it is. 0: `timeout_ns`
/// (RR_FOREVER: never) has passed.
///
/// # Errors
///
/// RR_EHANDLE, RR_ETHREAD. RR_EINVAL: null. RR_ESYSTEM: the driver failed for good.
///
/// # Safety
///
/// `least` can be read.
///
/// # Threads
///
/// Any, at the same time; of RR_OWNED its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_region_wait(
    region: *mut rr_region,
    least: *const rr_region_counts,
    timeout_ns: i64,
) -> c_int {
    guard(|| {
        // SAFETY: the caller does not close it meanwhile.
        let region = unsafe { handles::get::<rr_region>(region) }?;
        // SAFETY: the caller guarantees it.
        let least = unsafe { check::read(least, "least") }?;
        let done = |now: &ringrail::RegionCounters| {
            now.puts >= least.puts
                && now.gets >= least.gets
                && now.atomics >= least.atomics
                && now.bytes >= least.bytes
        };
        let timeout = check::timeout(timeout_ns);
        Ok(c_int::from(each!(&region.0, it => it.wait(timeout, done)?)))
    })
}
