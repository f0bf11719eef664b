//! The headers of objects.

use std::ffi::c_void;

use super::info::sizes;
use super::ops::{
    fi_ops, fi_ops_atomic, fi_ops_av, fi_ops_cm, fi_ops_cntr, fi_ops_collective, fi_ops_cq,
    fi_ops_domain, fi_ops_ep, fi_ops_eq, fi_ops_fabric, fi_ops_mr, fi_ops_msg, fi_ops_rma,
    fi_ops_tagged,
};

/// The beginning of every header.
#[repr(C)]
pub(crate) struct fid {
    pub(crate) fclass: usize,
    pub(crate) context: *mut c_void,
    pub(crate) ops: *const fi_ops,
}

#[repr(C)]
pub(crate) struct fid_fabric {
    pub(crate) fid: fid,
    pub(crate) ops: *const fi_ops_fabric,
    pub(crate) api_version: u32,
}

#[repr(C)]
pub(crate) struct fid_domain {
    pub(crate) fid: fid,
    pub(crate) ops: *const fi_ops_domain,
    pub(crate) mr: *const fi_ops_mr,
}

#[repr(C)]
pub(crate) struct fid_ep {
    pub(crate) fid: fid,
    pub(crate) ops: *const fi_ops_ep,
    pub(crate) cm: *const fi_ops_cm,
    pub(crate) msg: *const fi_ops_msg,
    pub(crate) rma: *const fi_ops_rma,
    pub(crate) tagged: *const fi_ops_tagged,
    pub(crate) atomic: *const fi_ops_atomic,
    pub(crate) collective: *const fi_ops_collective,
}

#[repr(C)]
pub(crate) struct fid_pep {
    pub(crate) fid: fid,
    pub(crate) ops: *const fi_ops_ep,
    pub(crate) cm: *const fi_ops_cm,
}

#[repr(C)]
pub(crate) struct fid_mr {
    pub(crate) fid: fid,
    pub(crate) mem_desc: *mut c_void,
    pub(crate) key: u64,
}

#[repr(C)]
pub(crate) struct fid_av {
    pub(crate) fid: fid,
    pub(crate) ops: *const fi_ops_av,
}

#[repr(C)]
pub(crate) struct fid_cq {
    pub(crate) fid: fid,
    pub(crate) ops: *const fi_ops_cq,
}

#[repr(C)]
pub(crate) struct fid_cntr {
    pub(crate) fid: fid,
    pub(crate) ops: *const fi_ops_cntr,
}

#[repr(C)]
pub(crate) struct fid_eq {
    pub(crate) fid: fid,
    pub(crate) ops: *const fi_ops_eq,
}

sizes!(
    fid: 24, fid_fabric: 40, fid_domain: 40, fid_ep: 80, fid_pep: 40, fid_mr: 40, fid_av: 32,
    fid_cq: 32, fid_cntr: 32, fid_eq: 32,
);
