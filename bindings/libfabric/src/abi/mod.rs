//! libfabric's ABI, by hand: no header is needed to build, and one binary serves 1.17 to 2.x.
//!
//! Names are libfabric's. Structures are those of the newest version, which differ from older ones
//! by what is appended. So what this side allocates is at least as long as any version reads. Of
//! what an application allocates (`fi_mr_attr`, `fi_cq_attr`, `fi_cntr_attr`, `fi_cq_err_entry`)
//! the end may be missing: fields that say *since* are touched only if the fabric was opened for
//! that version of the API (`Fabric::api_version`).

#![allow(non_camel_case_types, reason = "libfabric's names, to be found by them")]
#![allow(dead_code, reason = "what libfabric has, whether this side uses it or not")]

pub(crate) mod consts;
pub(crate) mod fids;
pub(crate) mod info;
pub(crate) mod messages;
pub(crate) mod ops;
