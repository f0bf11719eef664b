//! What `fi_getinfo` returns, and attributes that objects are opened with.

use std::ffi::{c_char, c_int, c_void};

use super::fids::{fid, fid_domain, fid_fabric, fid_mr};
use super::messages::iovec;

/// The size of a structure in the newest version of libfabric, measured on its headers (x86-64).
macro_rules! sizes {
    ($($name:ident: $size:literal),* $(,)?) => {
        #[cfg(target_pointer_width = "64")]
        const _: () = {
            $(assert!(size_of::<$name>() == $size, stringify!($name));)*
        };
    };
}
pub(super) use sizes;

#[repr(C)]
pub(crate) struct fi_context {
    pub(crate) internal: [*mut c_void; 4],
}

pub(crate) type GetInfo = unsafe extern "C" fn(
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const fi_info,
    info: *mut *mut fi_info,
) -> c_int;

pub(crate) type OpenFabric = unsafe extern "C" fn(
    attr: *mut fi_fabric_attr,
    fabric: *mut *mut fid_fabric,
    context: *mut c_void,
) -> c_int;

/// The result of `fi_prov_ini`. libfabric writes to `context`.
#[repr(C)]
pub struct fi_provider {
    pub(crate) version: u32,
    pub(crate) fi_version: u32,
    pub(crate) context: fi_context,
    pub(crate) name: *const c_char,
    pub(crate) getinfo: GetInfo,
    pub(crate) fabric: OpenFabric,
    pub(crate) cleanup: unsafe extern "C" fn(),
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct fi_tx_attr {
    pub(crate) caps: u64,
    pub(crate) mode: u64,
    pub(crate) op_flags: u64,
    pub(crate) msg_order: u64,
    pub(crate) comp_order: u64,
    pub(crate) inject_size: usize,
    pub(crate) size: usize,
    pub(crate) iov_limit: usize,
    pub(crate) rma_iov_limit: usize,
    pub(crate) tclass: u32,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct fi_rx_attr {
    pub(crate) caps: u64,
    pub(crate) mode: u64,
    pub(crate) op_flags: u64,
    pub(crate) msg_order: u64,
    pub(crate) comp_order: u64,
    pub(crate) total_buffered_recv: usize,
    pub(crate) size: usize,
    pub(crate) iov_limit: usize,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct fi_ep_attr {
    pub(crate) r#type: c_int,
    pub(crate) protocol: u32,
    pub(crate) protocol_version: u32,
    pub(crate) max_msg_size: usize,
    pub(crate) msg_prefix_size: usize,
    pub(crate) max_order_raw_size: usize,
    pub(crate) max_order_war_size: usize,
    pub(crate) max_order_waw_size: usize,
    pub(crate) mem_tag_format: u64,
    pub(crate) tx_ctx_cnt: usize,
    pub(crate) rx_ctx_cnt: usize,
    pub(crate) auth_key_size: usize,
    pub(crate) auth_key: *mut u8,
    /// Since 2.7.
    pub(crate) xpu_ctx: *mut c_void,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct fi_domain_attr {
    pub(crate) domain: *mut fid_domain,
    pub(crate) name: *mut c_char,
    pub(crate) threading: c_int,
    pub(crate) control_progress: c_int,
    pub(crate) data_progress: c_int,
    pub(crate) resource_mgmt: c_int,
    pub(crate) av_type: c_int,
    pub(crate) mr_mode: c_int,
    pub(crate) mr_key_size: usize,
    pub(crate) cq_data_size: usize,
    pub(crate) cq_cnt: usize,
    pub(crate) ep_cnt: usize,
    pub(crate) tx_ctx_cnt: usize,
    pub(crate) rx_ctx_cnt: usize,
    pub(crate) max_ep_tx_ctx: usize,
    pub(crate) max_ep_rx_ctx: usize,
    pub(crate) max_ep_stx_ctx: usize,
    pub(crate) max_ep_srx_ctx: usize,
    pub(crate) cntr_cnt: usize,
    pub(crate) mr_iov_limit: usize,
    pub(crate) caps: u64,
    pub(crate) mode: u64,
    pub(crate) auth_key: *mut u8,
    pub(crate) auth_key_size: usize,
    pub(crate) max_err_data: usize,
    pub(crate) mr_cnt: usize,
    pub(crate) tclass: u32,
    /// Since 1.20.
    pub(crate) max_ep_auth_key: usize,
    /// Since 2.0.
    pub(crate) max_group_id: u32,
    /// Since 2.5, as the next.
    pub(crate) max_cntr_value: u64,
    pub(crate) max_err_cntr_value: u64,
    /// Since 2.7.
    pub(crate) max_xpu_ctx_cnt: usize,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct fi_fabric_attr {
    pub(crate) fabric: *mut fid_fabric,
    pub(crate) name: *mut c_char,
    pub(crate) prov_name: *mut c_char,
    pub(crate) prov_version: u32,
    pub(crate) api_version: u32,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct fi_info {
    pub(crate) next: *mut Self,
    pub(crate) caps: u64,
    pub(crate) mode: u64,
    pub(crate) addr_format: u32,
    pub(crate) src_addrlen: usize,
    pub(crate) dest_addrlen: usize,
    pub(crate) src_addr: *mut c_void,
    pub(crate) dest_addr: *mut c_void,
    pub(crate) handle: *mut fid,
    pub(crate) tx_attr: *mut fi_tx_attr,
    pub(crate) rx_attr: *mut fi_rx_attr,
    pub(crate) ep_attr: *mut fi_ep_attr,
    pub(crate) domain_attr: *mut fi_domain_attr,
    pub(crate) fabric_attr: *mut fi_fabric_attr,
    pub(crate) nic: *mut c_void,
}

#[repr(C)]
pub(crate) struct fi_av_attr {
    pub(crate) r#type: c_int,
    pub(crate) rx_ctx_bits: c_int,
    pub(crate) count: usize,
    pub(crate) ep_per_node: usize,
    pub(crate) name: *const c_char,
    pub(crate) map_addr: *mut c_void,
    pub(crate) flags: u64,
}

/// Of an application: older ones are shorter.
#[repr(C)]
pub(crate) struct fi_mr_attr {
    pub(crate) mr_iov: *const iovec,
    pub(crate) iov_count: usize,
    pub(crate) access: u64,
    pub(crate) offset: u64,
    pub(crate) requested_key: u64,
    pub(crate) context: *mut c_void,
    pub(crate) auth_key_size: usize,
    pub(crate) auth_key: *mut u8,
    pub(crate) iface: c_int,
    pub(crate) device: u64,
    /// Since 1.20.
    pub(crate) hmem_data: *mut c_void,
    /// Since 2.0, as the next ones.
    pub(crate) page_size: usize,
    pub(crate) base_mr: *const fid_mr,
    pub(crate) sub_mr_cnt: usize,
}

#[repr(C)]
pub(crate) struct fi_eq_attr {
    pub(crate) size: usize,
    pub(crate) flags: u64,
    pub(crate) wait_obj: c_int,
    pub(crate) signaling_vector: c_int,
    pub(crate) wait_set: *mut c_void,
}

/// Of an application: older ones are shorter.
#[repr(C)]
pub(crate) struct fi_cq_attr {
    pub(crate) size: usize,
    pub(crate) flags: u64,
    pub(crate) format: c_int,
    pub(crate) wait_obj: c_int,
    pub(crate) signaling_vector: c_int,
    pub(crate) wait_cond: c_int,
    pub(crate) wait_set: *mut c_void,
    /// Since 2.7.
    pub(crate) xpu_ctx: *mut c_void,
}

/// Of an application: older ones are shorter.
#[repr(C)]
pub(crate) struct fi_cntr_attr {
    pub(crate) events: c_int,
    pub(crate) wait_obj: c_int,
    pub(crate) wait_set: *mut c_void,
    pub(crate) flags: u64,
    /// Since 2.7.
    pub(crate) xpu_ctx: *mut c_void,
}

#[repr(C)]
pub(crate) struct fi_atomic_attr {
    pub(crate) count: usize,
    pub(crate) size: usize,
}

/// The argument of `fi_alias`.
#[repr(C)]
pub(crate) struct fi_alias {
    pub(crate) fid: *mut *mut fid,
    pub(crate) flags: u64,
}

/// The argument of `FI_GETWAIT` for `FI_WAIT_POLLFD` objects.
#[repr(C)]
pub(crate) struct fi_wait_pollfd {
    pub(crate) change_index: u64,
    pub(crate) nfds: usize,
    pub(crate) fd: *mut libc::pollfd,
}

sizes!(
    fi_context: 32, fi_provider: 72, fi_tx_attr: 80, fi_rx_attr: 64, fi_ep_attr: 104,
    fi_domain_attr: 232, fi_fabric_attr: 32, fi_info: 120, fi_av_attr: 48, fi_mr_attr: 112,
    fi_eq_attr: 32, fi_cq_attr: 48, fi_cntr_attr: 32, fi_atomic_attr: 16, fi_alias: 16,
    fi_wait_pollfd: 24,
);
