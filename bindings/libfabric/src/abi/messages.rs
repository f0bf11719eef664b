//! What operations are posted with, and what queues are read into.

use std::ffi::{c_int, c_void};

use super::fids::fid;
use super::info::{fi_info, sizes};

/// An address of a peer: what an address vector calls it.
pub(crate) type fi_addr_t = u64;

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct iovec {
    pub(crate) iov_base: *mut c_void,
    pub(crate) iov_len: usize,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct fi_ioc {
    pub(crate) addr: *mut c_void,
    pub(crate) count: usize,
}

#[repr(C)]
pub(crate) struct fi_msg {
    pub(crate) msg_iov: *const iovec,
    pub(crate) desc: *mut *mut c_void,
    pub(crate) iov_count: usize,
    pub(crate) addr: fi_addr_t,
    pub(crate) context: *mut c_void,
    pub(crate) data: u64,
}

#[repr(C)]
pub(crate) struct fi_msg_tagged {
    pub(crate) msg_iov: *const iovec,
    pub(crate) desc: *mut *mut c_void,
    pub(crate) iov_count: usize,
    pub(crate) addr: fi_addr_t,
    pub(crate) tag: u64,
    pub(crate) ignore: u64,
    pub(crate) context: *mut c_void,
    pub(crate) data: u64,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct fi_rma_iov {
    pub(crate) addr: u64,
    pub(crate) len: usize,
    pub(crate) key: u64,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct fi_rma_ioc {
    pub(crate) addr: u64,
    pub(crate) count: usize,
    pub(crate) key: u64,
}

#[repr(C)]
pub(crate) struct fi_msg_rma {
    pub(crate) msg_iov: *const iovec,
    pub(crate) desc: *mut *mut c_void,
    pub(crate) iov_count: usize,
    pub(crate) addr: fi_addr_t,
    pub(crate) rma_iov: *const fi_rma_iov,
    pub(crate) rma_iov_count: usize,
    pub(crate) context: *mut c_void,
    pub(crate) data: u64,
}

#[repr(C)]
pub(crate) struct fi_msg_atomic {
    pub(crate) msg_iov: *const fi_ioc,
    pub(crate) desc: *mut *mut c_void,
    pub(crate) iov_count: usize,
    pub(crate) addr: fi_addr_t,
    pub(crate) rma_iov: *const fi_rma_ioc,
    pub(crate) rma_iov_count: usize,
    pub(crate) datatype: c_int,
    pub(crate) op: c_int,
    pub(crate) context: *mut c_void,
    pub(crate) data: u64,
}

/// `FI_CQ_FORMAT_TAGGED`. The other formats are beginnings of it.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct fi_cq_tagged_entry {
    pub(crate) op_context: *mut c_void,
    pub(crate) flags: u64,
    pub(crate) len: usize,
    pub(crate) buf: *mut c_void,
    pub(crate) data: u64,
    pub(crate) tag: u64,
}

#[repr(C)]
pub(crate) struct fi_cq_err_entry {
    pub(crate) op_context: *mut c_void,
    pub(crate) flags: u64,
    pub(crate) len: usize,
    pub(crate) buf: *mut c_void,
    pub(crate) data: u64,
    pub(crate) tag: u64,
    pub(crate) olen: usize,
    pub(crate) err: c_int,
    pub(crate) prov_errno: c_int,
    pub(crate) err_data: *mut c_void,
    /// Since 1.5, where an application sets it to its own buffer's size, or 0.
    pub(crate) err_data_size: usize,
    /// Since 1.20.
    pub(crate) src_addr: fi_addr_t,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct fi_eq_entry {
    pub(crate) fid: *mut fid,
    pub(crate) context: *mut c_void,
    pub(crate) data: u64,
}

#[repr(C)]
pub(crate) struct fi_eq_err_entry {
    pub(crate) fid: *mut fid,
    pub(crate) context: *mut c_void,
    pub(crate) data: u64,
    pub(crate) err: c_int,
    pub(crate) prov_errno: c_int,
    pub(crate) err_data: *mut c_void,
    pub(crate) err_data_size: usize,
}

/// The private data of a request or an answer follow.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct fi_eq_cm_entry {
    pub(crate) fid: *mut fid,
    pub(crate) info: *mut fi_info,
}

sizes!(
    iovec: 16, fi_ioc: 16, fi_msg: 48, fi_msg_tagged: 64, fi_rma_iov: 24, fi_rma_ioc: 24,
    fi_msg_rma: 64, fi_msg_atomic: 72, fi_cq_tagged_entry: 48, fi_cq_err_entry: 88,
    fi_eq_entry: 24, fi_eq_err_entry: 48, fi_eq_cm_entry: 16,
);
