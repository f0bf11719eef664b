//! Whether an offer is what hints ask for, by the rules that libfabric's own providers keep.

use std::ffi::c_int;

use super::given::Given;
use super::offer::{DOMAIN_NAME, FABRIC_NAME, Offer};
use crate::abi::consts::*;
use crate::abi::info::{fi_domain_attr, fi_ep_attr, fi_rx_attr, fi_tx_attr};

/// Capabilities that only receivers need, and that old applications also set for transmission.
const IGNORED_TX_CAPS: u64 = FI_REMOTE_READ
    | FI_REMOTE_WRITE
    | FI_RECV
    | FI_DIRECTED_RECV
    | FI_MULTI_RECV
    | FI_SOURCE
    | FI_RMA_EVENT
    | FI_SOURCE_ERR;

/// The other way round.
const IGNORED_RX_CAPS: u64 =
    FI_READ | FI_WRITE | FI_SEND | FI_FENCE | FI_MULTICAST | FI_NAMED_RX_CTX;

/// Why an offer does not do: for the log.
pub(super) type Why = String;

/// One condition.
fn hold(condition: bool, why: impl FnOnce() -> Why) -> Result<(), Why> {
    if condition { Ok(()) } else { Err(why()) }
}

/// At most what is offered.
fn at_most<T: PartialOrd + std::fmt::Display>(what: &str, asked: T, offered: T) -> Result<(), Why> {
    hold(asked <= offered, || format!("{what} of {asked} is asked for, {offered} is offered"))
}

/// No bits but those that are offered.
fn within(what: &str, asked: u64, offered: u64) -> Result<(), Why> {
    hold(asked & !offered == 0, || {
        format!("{what} {:#x} is asked for and not offered", asked & !offered)
    })
}

/// Whether `offer` is what `hints` ask for.
pub(super) fn check(offer: &Offer, hints: &Given, api_version: u32) -> Result<(), Why> {
    let info = &hints.info;
    if let Some(ep) = &hints.ep {
        let is_right = ep.r#type == FI_EP_UNSPEC || ep.r#type == offer.ep.r#type;
        hold(is_right, || format!("endpoints of type {} are asked for", ep.r#type))?;
    }
    within("a capability", info.caps, offer.caps)?;
    if let Some(name) = hints.fabric_name.as_deref() {
        hold(name == FABRIC_NAME, || format!("the fabric {name} is asked for"))?;
    }
    if let Some(name) = hints.domain_name.as_deref() {
        hold(name == DOMAIN_NAME, || format!("the domain {name} is asked for"))?;
    }
    if let Some(domain) = &hints.domain {
        check_domain(&offer.domain, domain, api_version)?;
    }
    if let Some(ep) = &hints.ep {
        check_ep(offer, ep, info.caps)?;
    }
    if let Some(rx) = &hints.rx {
        check_rx(&offer.rx, rx)?;
    }
    if let Some(tx) = &hints.tx {
        check_tx(&offer.tx, tx)?;
    }
    Ok(())
}

fn check_domain(
    offered: &fi_domain_attr,
    asked: &fi_domain_attr,
    api_version: u32,
) -> Result<(), Why> {
    // Threading and progress are the strongest that there are: what is asked for is less.
    hold((0..=FI_THREAD_ENDPOINT).contains(&asked.threading), || {
        format!("there is no threading {}", asked.threading)
    })?;
    let progress = [asked.control_progress, asked.data_progress];
    hold(progress.iter().all(|it| (0..=FI_PROGRESS_CONTROL_UNIFIED).contains(it)), || {
        format!("there is no progress {progress:?}")
    })?;
    hold((0..=FI_RM_ENABLED).contains(&asked.resource_mgmt), || {
        format!("there is no resource management {}", asked.resource_mgmt)
    })?;
    hold((0..=FI_AV_TABLE).contains(&asked.av_type), || {
        format!("there is no type {} of address vectors", asked.av_type)
    })?;
    at_most("cq_data_size", asked.cq_data_size, offered.cq_data_size)?;
    check_mr_mode(asked.mr_mode, api_version)?;
    if api_version < version(1, 5) {
        return Ok(());
    }
    at_most("cntr_cnt", asked.cntr_cnt, offered.cntr_cnt)?;
    at_most("mr_iov_limit", asked.mr_iov_limit, offered.mr_iov_limit)?;
    within("a domain's capability", asked.caps, offered.caps)?;
    at_most("max_err_data", asked.max_err_data, offered.max_err_data)?;
    at_most("mr_cnt", asked.mr_cnt, offered.mr_cnt)?;
    at_most("auth_key_size", asked.auth_key_size, offered.auth_key_size)?;
    at_most("max_ep_auth_key", asked.max_ep_auth_key, offered.max_ep_auth_key)?;
    Ok(())
}

/// None of the new bits is needed, so each set of them will do. Of the old modes the scalable one
/// is the same; the basic one (keys of the provider, and addresses in the place of offsets) is not.
fn check_mr_mode(asked: c_int, api_version: u32) -> Result<(), Why> {
    let is_right = match asked {
        0 | FI_MR_SCALABLE => true,
        _ if api_version < version(1, 5) => false,
        _ => asked & (FI_MR_BASIC | FI_MR_SCALABLE) == 0,
    };
    hold(is_right, || format!("mr_mode {asked:#x} is asked for"))
}

fn check_ep(offer: &Offer, asked: &fi_ep_attr, caps: u64) -> Result<(), Why> {
    let offered = &offer.ep;
    hold(asked.protocol == 0 || asked.protocol == offered.protocol, || {
        format!("the protocol {:#x} is asked for", asked.protocol)
    })?;
    at_most("protocol_version", asked.protocol_version, offered.protocol_version)?;
    at_most("max_msg_size", asked.max_msg_size, offered.max_msg_size)?;
    // Shared contexts (`FI_SHARED_CONTEXT`) are more than one.
    at_most("tx_ctx_cnt", asked.tx_ctx_cnt, offer.domain.max_ep_tx_ctx)?;
    at_most("rx_ctx_cnt", asked.rx_ctx_cnt, offer.domain.max_ep_rx_ctx)?;
    if caps & (FI_RMA | FI_ATOMIC) != 0 {
        at_most("max_order_raw_size", asked.max_order_raw_size, offered.max_order_raw_size)?;
        at_most("max_order_war_size", asked.max_order_war_size, offered.max_order_war_size)?;
        at_most("max_order_waw_size", asked.max_order_waw_size, offered.max_order_waw_size)?;
    }
    // All 64 bits of a tag are compared, with any format.
    at_most("auth_key_size", asked.auth_key_size, offered.auth_key_size)
}

fn check_rx(offered: &fi_rx_attr, asked: &fi_rx_attr) -> Result<(), Why> {
    within("a receiver's capability", asked.caps & !IGNORED_RX_CAPS, offered.caps)?;
    within("a receiver's flag", asked.op_flags, offered.op_flags)?;
    within("a receiver's order", asked.msg_order, offered.msg_order)?;
    hold(asked.comp_order == 0, || "completions in order are asked for".to_owned())?;
    let buffered = asked.total_buffered_recv;
    hold(buffered == 0, || "total_buffered_recv is asked for".to_owned())?;
    at_most("a receiver's size", asked.size, offered.size)?;
    at_most("a receiver's iov_limit", asked.iov_limit, offered.iov_limit)
}

fn check_tx(offered: &fi_tx_attr, asked: &fi_tx_attr) -> Result<(), Why> {
    within("a sender's capability", asked.caps & !IGNORED_TX_CAPS, offered.caps)?;
    within("a sender's flag", asked.op_flags, offered.op_flags)?;
    within("a sender's order", asked.msg_order, offered.msg_order)?;
    hold(asked.comp_order == 0, || "completions in order are asked for".to_owned())?;
    at_most("inject_size", asked.inject_size, offered.inject_size)?;
    at_most("a sender's size", asked.size, offered.size)?;
    at_most("a sender's iov_limit", asked.iov_limit, offered.iov_limit)?;
    at_most("rma_iov_limit", asked.rma_iov_limit, offered.rma_iov_limit)
}
