//! Flags and numbers.

use std::ffi::c_int;

/// `FI_VERSION(major, minor)`.
pub(crate) const fn version(major: u32, minor: u32) -> u32 {
    major << 16 | minor
}

const fn bit(number: u32) -> u64 {
    1 << number
}

// Capabilities, and flags of operations and completions.
pub(crate) const FI_MSG: u64 = bit(1);
pub(crate) const FI_RMA: u64 = bit(2);
pub(crate) const FI_TAGGED: u64 = bit(3);
pub(crate) const FI_ATOMIC: u64 = bit(4);
pub(crate) const FI_MULTICAST: u64 = bit(5);
pub(crate) const FI_COLLECTIVE: u64 = bit(6);
pub(crate) const FI_READ: u64 = bit(8);
pub(crate) const FI_WRITE: u64 = bit(9);
pub(crate) const FI_RECV: u64 = bit(10);
pub(crate) const FI_SEND: u64 = bit(11);
pub(crate) const FI_TRANSMIT: u64 = FI_SEND;
pub(crate) const FI_REMOTE_READ: u64 = bit(12);
pub(crate) const FI_REMOTE_WRITE: u64 = bit(13);
pub(crate) const FI_MULTI_RECV: u64 = bit(16);
pub(crate) const FI_REMOTE_CQ_DATA: u64 = bit(17);
pub(crate) const FI_MORE: u64 = bit(18);
pub(crate) const FI_PEEK: u64 = bit(19);
pub(crate) const FI_TRIGGER: u64 = bit(20);
pub(crate) const FI_FENCE: u64 = bit(21);
pub(crate) const FI_COMPLETION: u64 = bit(24);
pub(crate) const FI_EVENT: u64 = FI_COMPLETION;
pub(crate) const FI_INJECT: u64 = bit(25);
pub(crate) const FI_INJECT_COMPLETE: u64 = bit(26);
pub(crate) const FI_TRANSMIT_COMPLETE: u64 = bit(27);
pub(crate) const FI_DELIVERY_COMPLETE: u64 = bit(28);
pub(crate) const FI_AFFINITY: u64 = bit(29);
pub(crate) const FI_COMMIT_COMPLETE: u64 = bit(30);
pub(crate) const FI_MATCH_COMPLETE: u64 = bit(31);
pub(crate) const FI_AV_USER_ID: u64 = bit(41);
pub(crate) const FI_PEER: u64 = bit(43);
pub(crate) const FI_TAGGED_DIRECTED_RECV: u64 = bit(45);
pub(crate) const FI_TAGGED_MULTI_RECV: u64 = bit(46);
pub(crate) const FI_HMEM: u64 = bit(47);
pub(crate) const FI_EXACT_DIRECTED_RECV: u64 = bit(48);
pub(crate) const FI_RMA_PMEM: u64 = bit(49);
pub(crate) const FI_SOURCE_ERR: u64 = bit(50);
pub(crate) const FI_LOCAL_COMM: u64 = bit(51);
pub(crate) const FI_REMOTE_COMM: u64 = bit(52);
pub(crate) const FI_SHARED_AV: u64 = bit(53);
pub(crate) const FI_PROV_ATTR_ONLY: u64 = bit(54);
pub(crate) const FI_NUMERICHOST: u64 = bit(55);
pub(crate) const FI_RMA_EVENT: u64 = bit(56);
pub(crate) const FI_SOURCE: u64 = bit(57);
pub(crate) const FI_NAMED_RX_CTX: u64 = bit(58);
pub(crate) const FI_DIRECTED_RECV: u64 = bit(59);

/// A receive takes what a peek has claimed.
pub(crate) const FI_CLAIM: u64 = bit(59);
/// A peeked or claimed message is dropped.
pub(crate) const FI_DISCARD: u64 = bit(58);
/// With which endpoints are bound to completion queues.
pub(crate) const FI_SELECTIVE_COMPLETION: u64 = bit(59);
/// With which utility providers look for core providers.
pub(crate) const OFI_CORE_PROV_ONLY: u64 = bit(59);
/// Of `fi_query_atomic`.
pub(crate) const FI_FETCH_ATOMIC: u64 = bit(58);
/// Of `fi_query_atomic`.
pub(crate) const FI_COMPARE_ATOMIC: u64 = bit(59);

// Modes.
pub(crate) const FI_CONTEXT: u64 = bit(59);
pub(crate) const FI_MSG_PREFIX: u64 = bit(58);
pub(crate) const FI_RX_CQ_DATA: u64 = bit(56);
pub(crate) const FI_CONTEXT2: u64 = bit(52);

// Modes of memory regions.
pub(crate) const FI_MR_BASIC: c_int = 1 << 0;
pub(crate) const FI_MR_SCALABLE: c_int = 1 << 1;
pub(crate) const FI_MR_LOCAL: c_int = 1 << 2;
pub(crate) const FI_MR_VIRT_ADDR: c_int = 1 << 4;
pub(crate) const FI_MR_ALLOCATED: c_int = 1 << 5;
pub(crate) const FI_MR_PROV_KEY: c_int = 1 << 6;
pub(crate) const FI_MR_RMA_EVENT: c_int = 1 << 8;
pub(crate) const FI_MR_ENDPOINT: c_int = 1 << 9;

// Orders.
pub(crate) const FI_ORDER_RAR: u64 = bit(0);
pub(crate) const FI_ORDER_RAW: u64 = bit(1);
pub(crate) const FI_ORDER_RAS: u64 = bit(2);
pub(crate) const FI_ORDER_WAR: u64 = bit(3);
pub(crate) const FI_ORDER_WAW: u64 = bit(4);
pub(crate) const FI_ORDER_WAS: u64 = bit(5);
pub(crate) const FI_ORDER_SAR: u64 = bit(6);
pub(crate) const FI_ORDER_SAW: u64 = bit(7);
pub(crate) const FI_ORDER_SAS: u64 = bit(8);
pub(crate) const FI_ORDER_RMA_RAR: u64 = bit(32);
pub(crate) const FI_ORDER_RMA_RAW: u64 = bit(33);
pub(crate) const FI_ORDER_RMA_WAR: u64 = bit(34);
pub(crate) const FI_ORDER_RMA_WAW: u64 = bit(35);
pub(crate) const FI_ORDER_ATOMIC_RAR: u64 = bit(36);
pub(crate) const FI_ORDER_ATOMIC_RAW: u64 = bit(37);
pub(crate) const FI_ORDER_ATOMIC_WAR: u64 = bit(38);
pub(crate) const FI_ORDER_ATOMIC_WAW: u64 = bit(39);

// Kinds of endpoints.
pub(crate) const FI_EP_UNSPEC: c_int = 0;
pub(crate) const FI_EP_MSG: c_int = 1;
pub(crate) const FI_EP_RDM: c_int = 3;

// Address formats.
pub(crate) const FI_FORMAT_UNSPEC: u32 = 0;
pub(crate) const FI_SOCKADDR: u32 = 1;
pub(crate) const FI_SOCKADDR_IN: u32 = 2;
pub(crate) const FI_SOCKADDR_IN6: u32 = 3;
/// Since 2.7: IN and IN6.
pub(crate) const FI_SOCKADDR_IP: u32 = 18;
/// Numbers of protocols and formats that are a provider's own have this bit.
pub(crate) const FI_PROV_SPECIFIC: u32 = 1 << 31;

pub(crate) const FI_ADDR_UNSPEC: u64 = u64::MAX;
pub(crate) const FI_ADDR_NOTAVAIL: u64 = u64::MAX;
pub(crate) const FI_KEY_NOTAVAIL: u64 = u64::MAX;
pub(crate) const FI_SHARED_CONTEXT: usize = usize::MAX;

// Threading.
pub(crate) const FI_THREAD_UNSPEC: c_int = 0;
pub(crate) const FI_THREAD_SAFE: c_int = 1;
pub(crate) const FI_THREAD_FID: c_int = 2;
pub(crate) const FI_THREAD_DOMAIN: c_int = 3;
pub(crate) const FI_THREAD_COMPLETION: c_int = 4;
pub(crate) const FI_THREAD_ENDPOINT: c_int = 5;

// Progress.
pub(crate) const FI_PROGRESS_UNSPEC: c_int = 0;
pub(crate) const FI_PROGRESS_AUTO: c_int = 1;
pub(crate) const FI_PROGRESS_MANUAL: c_int = 2;
/// Since 1.20.
pub(crate) const FI_PROGRESS_CONTROL_UNIFIED: c_int = 3;

pub(crate) const FI_RM_UNSPEC: c_int = 0;
pub(crate) const FI_RM_ENABLED: c_int = 2;

pub(crate) const FI_AV_UNSPEC: c_int = 0;
pub(crate) const FI_AV_MAP: c_int = 1;
pub(crate) const FI_AV_TABLE: c_int = 2;

pub(crate) const FI_CQ_FORMAT_UNSPEC: c_int = 0;
pub(crate) const FI_CQ_FORMAT_CONTEXT: c_int = 1;
pub(crate) const FI_CQ_FORMAT_MSG: c_int = 2;
pub(crate) const FI_CQ_FORMAT_DATA: c_int = 3;
pub(crate) const FI_CQ_FORMAT_TAGGED: c_int = 4;

pub(crate) const FI_CQ_COND_NONE: c_int = 0;
pub(crate) const FI_CQ_COND_THRESHOLD: c_int = 1;

pub(crate) const FI_CNTR_EVENTS_COMP: c_int = 0;
/// Since 2.0.
pub(crate) const FI_CNTR_EVENTS_BYTES: c_int = 1;

// Objects to wait by.
pub(crate) const FI_WAIT_NONE: c_int = 0;
pub(crate) const FI_WAIT_UNSPEC: c_int = 1;
pub(crate) const FI_WAIT_SET: c_int = 2;
pub(crate) const FI_WAIT_FD: c_int = 3;
pub(crate) const FI_WAIT_MUTEX_COND: c_int = 4;
pub(crate) const FI_WAIT_YIELD: c_int = 5;
pub(crate) const FI_WAIT_POLLFD: c_int = 6;

// Classes of objects.
pub(crate) const FI_CLASS_FABRIC: usize = 1;
pub(crate) const FI_CLASS_DOMAIN: usize = 2;
pub(crate) const FI_CLASS_EP: usize = 3;
pub(crate) const FI_CLASS_PEP: usize = 9;
pub(crate) const FI_CLASS_AV: usize = 11;
pub(crate) const FI_CLASS_MR: usize = 12;
pub(crate) const FI_CLASS_EQ: usize = 13;
pub(crate) const FI_CLASS_CQ: usize = 14;
pub(crate) const FI_CLASS_CNTR: usize = 15;
pub(crate) const FI_CLASS_CONNREQ: usize = 18;

// Commands of `fi_control`.
pub(crate) const FI_GETFIDFLAG: c_int = 0;
pub(crate) const FI_SETFIDFLAG: c_int = 1;
pub(crate) const FI_GETOPSFLAG: c_int = 2;
pub(crate) const FI_SETOPSFLAG: c_int = 3;
pub(crate) const FI_ALIAS: c_int = 4;
pub(crate) const FI_GETWAIT: c_int = 5;
pub(crate) const FI_ENABLE: c_int = 6;
pub(crate) const FI_BACKLOG: c_int = 7;
pub(crate) const FI_GET_RAW_MR: c_int = 8;
pub(crate) const FI_QUEUE_WORK: c_int = 11;
pub(crate) const FI_CANCEL_WORK: c_int = 12;
pub(crate) const FI_FLUSH_WORK: c_int = 13;
pub(crate) const FI_REFRESH: c_int = 14;
pub(crate) const FI_GETWAITOBJ: c_int = 16;

// Options of endpoints.
pub(crate) const FI_OPT_ENDPOINT: c_int = 0;
pub(crate) const FI_OPT_MIN_MULTI_RECV: c_int = 0;
pub(crate) const FI_OPT_CM_DATA_SIZE: c_int = 1;
pub(crate) const FI_OPT_TX_SIZE: c_int = 6;
pub(crate) const FI_OPT_RX_SIZE: c_int = 7;
pub(crate) const FI_OPT_FI_HMEM_P2P: c_int = 8;
pub(crate) const FI_OPT_CUDA_API_PERMITTED: c_int = 10;
pub(crate) const FI_OPT_SHARED_MEMORY_PERMITTED: c_int = 11;
pub(crate) const FI_OPT_MAX_MSG_SIZE: c_int = 12;
pub(crate) const FI_OPT_MAX_TAGGED_SIZE: c_int = 13;
pub(crate) const FI_OPT_MAX_RMA_SIZE: c_int = 14;
pub(crate) const FI_OPT_MAX_ATOMIC_SIZE: c_int = 15;
pub(crate) const FI_OPT_INJECT_MSG_SIZE: c_int = 16;
pub(crate) const FI_OPT_INJECT_TAGGED_SIZE: c_int = 17;
pub(crate) const FI_OPT_INJECT_RMA_SIZE: c_int = 18;
pub(crate) const FI_OPT_INJECT_ATOMIC_SIZE: c_int = 19;

// Events of event queues.
pub(crate) const FI_NOTIFY: u32 = 0;
pub(crate) const FI_CONNREQ: u32 = 1;
pub(crate) const FI_CONNECTED: u32 = 2;
pub(crate) const FI_SHUTDOWN: u32 = 3;
pub(crate) const FI_MR_COMPLETE: u32 = 4;
pub(crate) const FI_AV_COMPLETE: u32 = 5;
pub(crate) const FI_JOIN_COMPLETE: u32 = 6;

// Traffic classes.
pub(crate) const FI_TC_UNSPEC: u32 = 0;
/// With a code point in its low byte.
pub(crate) const FI_TC_DSCP: u32 = 0x100;
pub(crate) const FI_TC_BEST_EFFORT: u32 = 0x200;
pub(crate) const FI_TC_LOW_LATENCY: u32 = 0x201;
pub(crate) const FI_TC_DEDICATED_ACCESS: u32 = 0x202;
pub(crate) const FI_TC_BULK_DATA: u32 = 0x203;
pub(crate) const FI_TC_SCAVENGER: u32 = 0x204;
pub(crate) const FI_TC_NETWORK_CTRL: u32 = 0x205;

// Tag formats.
pub(crate) const FI_TAG_GENERIC: u64 = 0xaaaa_aaaa_aaaa_aaaa;
/// Beyond the named formats, up to here, a format is a mask of fields.
pub(crate) const FI_TAG_MAX_FORMAT: u64 = bit(16);
pub(crate) const FI_TAG_MPI: u64 = 1;
pub(crate) const FI_TAG_CCL: u64 = 2;

// Error numbers: those of Linux, and libfabric's own from 256.
pub(crate) const FI_ENOSYS: c_int = libc::ENOSYS;
pub(crate) const FI_EOTHER: c_int = 256;
pub(crate) const FI_ETOOSMALL: c_int = 257;
pub(crate) const FI_EOPBADSTATE: c_int = 258;
pub(crate) const FI_EAVAIL: c_int = 259;
pub(crate) const FI_EBADFLAGS: c_int = 260;
pub(crate) const FI_ENOEQ: c_int = 261;
pub(crate) const FI_EDOMAIN: c_int = 262;
pub(crate) const FI_ENOCQ: c_int = 263;
pub(crate) const FI_ECRC: c_int = 264;
pub(crate) const FI_ETRUNC: c_int = 265;
pub(crate) const FI_ENOKEY: c_int = 266;
pub(crate) const FI_ENOAV: c_int = 267;
pub(crate) const FI_EOVERRUN: c_int = 268;
pub(crate) const FI_ENORX: c_int = 269;
pub(crate) const FI_ENOMR: c_int = 270;
