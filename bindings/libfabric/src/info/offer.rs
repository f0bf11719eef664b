//! What this provider offers, before hints reduce it.

use crate::abi::consts::*;
use crate::abi::info::{fi_domain_attr, fi_ep_attr, fi_rx_attr, fi_tx_attr};
use crate::address::{Encoded, Format};

/// The one domain that there is: all rails of the host as one.
pub(crate) const DOMAIN_NAME: &str = "ringrail";

/// The one fabric.
pub(crate) const FABRIC_NAME: &str = "ringrail";

/// Its endpoints' protocol, of this provider.
const PROTOCOL: u32 = FI_PROV_SPECIFIC | 0x5252;

/// Pieces of memory that an operation is posted with, at most.
pub(crate) const IOV_LIMIT: usize = 16;

/// Pieces of a peer's memory that one operation is on, at most.
pub(crate) const RMA_IOV_LIMIT: usize = 1;

/// Operations outstanding at an endpoint: the maximum, and the default.
const QUEUE_SIZE_MAX: usize = 64 * 1024;
const QUEUE_SIZE: usize = 4096;

/// Endpoints of an engine.
const ENDPOINTS_MAX: usize = 1024;

/// Capabilities that only senders need.
const TX_CAPS: u64 =
    FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_SEND | FI_READ | FI_WRITE | FI_FENCE;

/// Capabilities that only receivers and targets need.
const RX_CAPS: u64 = FI_MSG
    | FI_TAGGED
    | FI_RMA
    | FI_ATOMIC
    | FI_RECV
    | FI_REMOTE_READ
    | FI_REMOTE_WRITE
    | FI_MULTI_RECV
    | FI_DIRECTED_RECV
    | FI_SOURCE
    | FI_RMA_EVENT;

/// The same, in words of version 2.
const RX_CAPS_2: u64 = FI_TAGGED_DIRECTED_RECV | FI_TAGGED_MULTI_RECV;

const DOMAIN_CAPS: u64 = FI_LOCAL_COMM | FI_REMOTE_COMM;

/// Flags that may be set for all sends of an endpoint.
pub(super) const TX_OP_FLAGS: u64 = FI_COMPLETION
    | FI_INJECT
    | FI_INJECT_COMPLETE
    | FI_TRANSMIT_COMPLETE
    | FI_DELIVERY_COMPLETE
    | FI_MATCH_COMPLETE;

/// The same of receives.
pub(super) const RX_OP_FLAGS: u64 = FI_COMPLETION | FI_MULTI_RECV;

/// Sends match in the order in which they were posted. Nothing else is guaranteed: puts, gets and
/// atomic operations take any lane.
const ORDERS: u64 = FI_ORDER_SAS;

/// An info, in Rust: what `info::memory` copies into C's memory.
#[derive(Clone, Debug)]
pub(crate) struct Offer {
    pub(crate) caps: u64,
    pub(crate) format: Format,
    pub(crate) src_addr: Option<Encoded>,
    pub(crate) dest_addr: Option<Encoded>,
    pub(crate) handle: *mut crate::abi::fids::fid,
    pub(crate) tx: fi_tx_attr,
    pub(crate) rx: fi_rx_attr,
    pub(crate) ep: fi_ep_attr,
    pub(crate) domain: fi_domain_attr,
}

impl Offer {
    /// All of it, for an application of `api_version`. `inject_size` is the engine's.
    pub(crate) fn whole(
        ep_type: std::ffi::c_int,
        api_version: u32,
        format: Format,
        inject_size: usize,
    ) -> Self {
        let rx_caps = RX_CAPS | if api_version >= version(2, 0) { RX_CAPS_2 } else { 0 };
        let null: *mut std::ffi::c_void = std::ptr::null_mut();
        let tx = fi_tx_attr {
            caps: TX_CAPS,
            mode: 0,
            op_flags: TX_OP_FLAGS,
            msg_order: ORDERS,
            comp_order: 0,
            inject_size,
            size: QUEUE_SIZE_MAX,
            iov_limit: IOV_LIMIT,
            rma_iov_limit: RMA_IOV_LIMIT,
            tclass: FI_TC_UNSPEC,
        };
        let rx = fi_rx_attr {
            caps: rx_caps,
            mode: 0,
            op_flags: RX_OP_FLAGS,
            msg_order: ORDERS,
            comp_order: 0,
            total_buffered_recv: 0,
            size: QUEUE_SIZE_MAX,
            iov_limit: IOV_LIMIT,
        };
        let ep = fi_ep_attr {
            r#type: ep_type,
            protocol: PROTOCOL,
            protocol_version: 1,
            max_msg_size: isize::MAX as usize,
            msg_prefix_size: 0,
            max_order_raw_size: 0,
            max_order_war_size: 0,
            max_order_waw_size: 0,
            mem_tag_format: FI_TAG_GENERIC,
            tx_ctx_cnt: 1,
            rx_ctx_cnt: 1,
            auth_key_size: 0,
            auth_key: null.cast(),
            xpu_ctx: null,
        };
        let ep_cnt = if format == Format::Opaque { ENDPOINTS_MAX } else { 1 };
        let domain = fi_domain_attr {
            domain: null.cast(),
            name: null.cast(),
            threading: FI_THREAD_SAFE,
            control_progress: FI_PROGRESS_AUTO,
            data_progress: FI_PROGRESS_AUTO,
            resource_mgmt: FI_RM_ENABLED,
            // Both: the call that opens a vector chooses.
            av_type: FI_AV_UNSPEC,
            // Of the old modes the one that is the same as none of the new bits.
            mr_mode: FI_MR_SCALABLE,
            mr_key_size: size_of::<u64>(),
            cq_data_size: size_of::<u64>(),
            cq_cnt: 64 * 1024,
            ep_cnt,
            tx_ctx_cnt: ep_cnt,
            rx_ctx_cnt: ep_cnt,
            max_ep_tx_ctx: 1,
            max_ep_rx_ctx: 1,
            max_ep_stx_ctx: 0,
            max_ep_srx_ctx: 0,
            cntr_cnt: 64 * 1024,
            mr_iov_limit: 1,
            caps: DOMAIN_CAPS,
            mode: 0,
            auth_key: null.cast(),
            auth_key_size: 0,
            max_err_data: 0,
            mr_cnt: 1 << 20,
            tclass: FI_TC_UNSPEC,
            max_ep_auth_key: 0,
            max_group_id: 0,
            max_cntr_value: u64::MAX,
            max_err_cntr_value: u64::MAX,
            max_xpu_ctx_cnt: 0,
        };
        Self {
            caps: TX_CAPS | rx_caps | DOMAIN_CAPS,
            format,
            src_addr: None,
            dest_addr: None,
            handle: null.cast(),
            tx,
            rx,
            ep,
            domain,
        }
    }

    /// Sets the defaults of what was not requested.
    pub(super) fn take_usual(&mut self) {
        self.tx.size = QUEUE_SIZE;
        self.rx.size = QUEUE_SIZE;
        // They are what is done to each operation; up to here they were what may be asked for.
        self.tx.op_flags = 0;
        self.rx.op_flags = 0;
    }
}
