//! XDP programs of NICs, as an operator's tools see them.

use std::ffi::CString;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

/// Takes the XDP program off a NIC of the calling thread's host, as `bpftool link detach` does.
pub(crate) fn detach_program(nic: &str) {
    let name = CString::new(nic).unwrap();
    let (mut id, mut program, mut detached) = (0, 0, 0);
    // SAFETY: the string ends in NUL, and the kernel writes to values of the types it expects.
    unsafe {
        let index = libc::if_nametoindex(name.as_ptr()).cast_signed();
        assert_eq!(libbpf_sys::bpf_xdp_query_id(index, 0, &raw mut program), 0);
        assert_ne!(program, 0, "there is no program on {nic}");
        while libbpf_sys::bpf_link_get_next_id(id, &raw mut id) == 0 {
            let link = libbpf_sys::bpf_link_get_fd_by_id(id);
            if link < 0 {
                continue;
            }
            let link = OwnedFd::from_raw_fd(link);
            let mut info = libbpf_sys::bpf_link_info::default();
            let mut bytes = size_of_val(&info) as u32;
            let asked = libbpf_sys::bpf_link_get_info_by_fd(
                link.as_raw_fd(),
                &raw mut info,
                &raw mut bytes,
            );
            if asked == 0 && info.prog_id == program {
                assert_eq!(libbpf_sys::bpf_link_detach(link.as_raw_fd()), 0);
                detached += 1;
            }
        }
    }
    assert_eq!(detached, 1, "links of {nic}");
}
