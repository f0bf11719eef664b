//! Calls of bpf(2) that libbpf-rs has no safe function for.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use libbpf_sys as sys;

/// In the stack, on packets that have become socket buffers.
pub(crate) const ATTACH_GENERIC: u32 = sys::XDP_FLAGS_SKB_MODE;
/// In the driver.
pub(crate) const ATTACH_NATIVE: u32 = sys::XDP_FLAGS_DRV_MODE;
/// The program takes frames that lie in several buffers (Linux 5.18).
pub(crate) const HAS_FRAGS: u32 = sys::BPF_F_XDP_HAS_FRAGS;

/// What the kernel reports about a link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkInfo {
    /// Of an XDP program, as opposed to other kinds of links.
    pub(crate) is_xdp: bool,
    pub(crate) program_id: u32,
    /// 0: detached, or the NIC is gone.
    pub(crate) ifindex: u32,
}

/// What the kernel reports about a program.
#[derive(Clone, Debug)]
pub(crate) struct ProgramInfo {
    pub(crate) id: u32,
    pub(crate) name: String,
    pub(crate) map_ids: Vec<u32>,
}

/// What is attached to a NIC, and what its driver can.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Attached {
    /// Ids of the programs, 0 where there is none.
    pub(crate) native: u32,
    pub(crate) generic: u32,
    pub(crate) offloaded: u32,
    /// `NETDEV_XDP_ACT_*`; 0 also where the kernel does not report it (before 6.3).
    pub(crate) features: u64,
}

impl Attached {
    /// Any of the programs.
    pub(crate) fn id(&self) -> Option<u32> {
        [self.native, self.generic, self.offloaded].into_iter().find(|&id| id != 0)
    }
}

/// Attaches a program to a NIC of the calling thread's network namespace. The attachment lasts as
/// long as the link, which descriptors and pins keep.
pub(crate) fn link_create(
    program: BorrowedFd<'_>,
    ifindex: u32,
    flags: u32,
) -> io::Result<OwnedFd> {
    let options = sys::bpf_link_create_opts {
        sz: size_of::<sys::bpf_link_create_opts>() as sys::size_t,
        flags,
        ..Default::default()
    };
    // SAFETY: `options` is as large as its `sz` and outlives the call, which keeps no pointer.
    let fd = unsafe {
        sys::bpf_link_create(program.as_raw_fd(), ifindex.cast_signed(), sys::BPF_XDP, &options)
    };
    owned(fd)
}

/// The link pinned there, the program or whatever else.
pub(crate) fn open_pin(path: &Path) -> io::Result<OwnedFd> {
    let path = c_path(path)?;
    // SAFETY: a string that ends in NUL and outlives the call.
    owned(unsafe { sys::bpf_obj_get(path.as_ptr()) })
}

/// Gives an object a name under bpffs that keeps it.
pub(crate) fn pin(object: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    // SAFETY: a string that ends in NUL and outlives the call.
    checked(unsafe { sys::bpf_obj_pin(object.as_raw_fd(), path.as_ptr()) })
}

/// Takes the program off the NIC, also if other processes hold the link.
pub(crate) fn link_detach(link: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: takes no pointer.
    checked(unsafe { sys::bpf_link_detach(link.as_raw_fd()) })
}

/// What a link is and what it is attached to. One short system call.
pub(crate) fn link_info(link: BorrowedFd<'_>) -> io::Result<LinkInfo> {
    let mut info = sys::bpf_link_info::default();
    let mut size = size_of_val(&info) as u32;
    // SAFETY: the kernel writes at most `size` bytes to `info`, which is plain data.
    checked(unsafe { sys::bpf_link_get_info_by_fd(link.as_raw_fd(), &mut info, &mut size) })?;
    let is_xdp = info.type_ == sys::BPF_LINK_TYPE_XDP;
    // SAFETY: all members of the union are plain data, and the whole was zeroed before.
    let ifindex = if is_xdp { unsafe { info.__bindgen_anon_1.xdp.ifindex } } else { 0 };
    Ok(LinkInfo { is_xdp, program_id: info.prog_id, ifindex })
}

/// What a program is. Needs no privilege beyond having the descriptor.
pub(crate) fn program_info(program: BorrowedFd<'_>) -> io::Result<ProgramInfo> {
    let mut map_ids = vec![0_u32; 16];
    let mut info = sys::bpf_prog_info {
        nr_map_ids: map_ids.len() as u32,
        map_ids: map_ids.as_mut_ptr() as u64,
        ..Default::default()
    };
    let mut size = size_of_val(&info) as u32;
    // SAFETY: the kernel writes at most `size` bytes to `info` and `nr_map_ids` numbers to
    // `map_ids`; both outlive the call.
    checked(unsafe { sys::bpf_prog_get_info_by_fd(program.as_raw_fd(), &mut info, &mut size) })?;
    map_ids.truncate(info.nr_map_ids as usize);
    // SAFETY: `c_char` has the size and alignment of `u8`, and every bit pattern is one.
    let name = unsafe { &*(&raw const info.name).cast::<[u8; 16]>() };
    let name = CStr::from_bytes_until_nul(name).unwrap_or_default();
    Ok(ProgramInfo { id: info.id, name: name.to_string_lossy().into_owned(), map_ids })
}

/// The program with this id. Needs `CAP_SYS_ADMIN`.
pub(crate) fn program_by_id(id: u32) -> io::Result<OwnedFd> {
    // SAFETY: takes no pointer.
    owned(unsafe { sys::bpf_prog_get_fd_by_id(id) })
}

/// The XDP link of a program. Needs `CAP_SYS_ADMIN`.
pub(crate) fn link_of_program(program_id: u32) -> io::Result<OwnedFd> {
    let mut id = 0;
    loop {
        // SAFETY: the kernel writes the next number to `id`.
        checked(unsafe { sys::bpf_link_get_next_id(id, &mut id) })?;
        // SAFETY: takes no pointer.
        let Ok(link) = owned(unsafe { sys::bpf_link_get_fd_by_id(id) }) else { continue };
        let info = link_info(std::os::fd::AsFd::as_fd(&link))?;
        if info.is_xdp && info.program_id == program_id {
            return Ok(link);
        }
    }
}

/// What is attached to a NIC of the calling thread's network namespace.
pub(crate) fn query(ifindex: u32) -> io::Result<Attached> {
    let mut found = sys::bpf_xdp_query_opts {
        sz: size_of::<sys::bpf_xdp_query_opts>() as sys::size_t,
        ..Default::default()
    };
    // SAFETY: `found` is as large as its `sz` and outlives the call.
    checked(unsafe { sys::bpf_xdp_query(ifindex.cast_signed(), 0, &mut found) })?;
    let mut attached = Attached {
        native: found.drv_prog_id,
        generic: found.skb_prog_id,
        offloaded: found.hw_prog_id,
        features: found.feature_flags,
    };
    // Drivers that have one program say only which mode it is attached in.
    if attached.id().is_none() && found.prog_id != 0 {
        attached.native = found.prog_id;
    }
    Ok(attached)
}

fn owned(fd: i32) -> io::Result<OwnedFd> {
    checked(fd)?;
    // SAFETY: a descriptor that the kernel just made for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// libbpf's convention: what is negative is an error number.
fn checked(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(()) }
}

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "a path with a NUL byte"))
}

/// Runs a program on a frame as if it had come in on queue 0, and writes back what it made of it;
/// the action.
#[cfg(test)]
pub(crate) fn test_run(program: BorrowedFd<'_>, frame: &mut [u8]) -> io::Result<u32> {
    let mut out = vec![0_u8; frame.len()];
    let mut options = sys::bpf_test_run_opts {
        sz: size_of::<sys::bpf_test_run_opts>() as sys::size_t,
        data_in: frame.as_ptr().cast(),
        data_size_in: frame.len() as u32,
        data_out: out.as_mut_ptr().cast(),
        data_size_out: out.len() as u32,
        ..Default::default()
    };
    // SAFETY: both buffers have the given lengths and outlive the call.
    checked(unsafe { sys::bpf_prog_test_run_opts(program.as_raw_fd(), &mut options) })?;
    frame.copy_from_slice(&out);
    Ok(options.retval)
}
