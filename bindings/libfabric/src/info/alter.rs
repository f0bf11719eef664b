//! An offer as hints ask for it, by the rules that libfabric's own providers keep.

use super::given::Given;
use super::offer::Offer;
use crate::abi::consts::*;

/// Capabilities that are offered only on request, as they have a cost.
const PRIMARY: u64 = FI_MSG
    | FI_RMA
    | FI_TAGGED
    | FI_ATOMIC
    | FI_MULTICAST
    | FI_READ
    | FI_WRITE
    | FI_SEND
    | FI_RECV
    | FI_COLLECTIVE
    | FI_NAMED_RX_CTX
    | FI_HMEM
    | FI_REMOTE_READ
    | FI_REMOTE_WRITE
    | FI_DIRECTED_RECV
    | FI_TAGGED_DIRECTED_RECV
    | FI_AV_USER_ID
    | FI_PEER;

const MESSAGES: u64 = FI_MSG | FI_TAGGED;
const ONE_SIDED: u64 = FI_RMA | FI_ATOMIC;
const MESSAGE_DIRECTIONS: u64 = FI_SEND | FI_RECV;
const ONE_SIDED_DIRECTIONS: u64 = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;

/// Of the capabilities `offered` those that `asked` leaves; `of_info`: what the info has.
fn caps(of_info: u64, asked: u64, offered: u64) -> u64 {
    let mut caps = if asked == 0 {
        (of_info & offered & PRIMARY) | (offered & !PRIMARY)
    } else {
        // The source of a message has to be looked up, so it is reported only on request.
        let all = (asked & PRIMARY) | (offered & !PRIMARY);
        (all & !FI_SOURCE) | (asked & FI_SOURCE)
    };
    if caps & MESSAGES != 0 && caps & MESSAGE_DIRECTIONS == 0 {
        caps |= offered & MESSAGE_DIRECTIONS;
    }
    if caps & ONE_SIDED != 0 && caps & ONE_SIDED_DIRECTIONS == 0 {
        caps |= offered & ONE_SIDED_DIRECTIONS;
    }
    caps
}

/// Takes `asked` if there is such a wish.
fn take<T: Default + PartialEq>(into: &mut T, asked: T) {
    if asked != T::default() {
        *into = asked;
    }
}

/// Makes `offer`, which was found to do, what is asked for.
pub(super) fn alter(offer: &mut Offer, hints: Option<&Given>, api_version: u32) {
    let asked = hints.map_or(0, |hints| hints.info.caps);
    offer.caps = caps(offer.caps, asked, offer.caps);
    offer.take_usual();
    let of_info = offer.caps;
    let domain = &mut offer.domain;
    let hinted = hints.and_then(|hints| hints.domain.as_ref());
    let mr_mode = hinted.map_or(0, |it| it.mr_mode);
    let is_old = api_version < version(1, 5) || mr_mode == FI_MR_SCALABLE;
    domain.mr_mode = if is_old { FI_MR_SCALABLE } else { 0 };
    domain.caps = caps(of_info, hinted.map_or(0, |it| it.caps), domain.caps);
    if let Some(asked) = hinted {
        take(&mut domain.threading, asked.threading);
        // What MPICH compares: it wants to read what it has asked for.
        take(&mut domain.control_progress, asked.control_progress);
        take(&mut domain.data_progress, asked.data_progress);
        take(&mut domain.av_type, asked.av_type);
        take(&mut domain.resource_mgmt, asked.resource_mgmt);
        take(&mut domain.tclass, asked.tclass);
    }
    if let Some(asked) = hints.and_then(|hints| hints.ep.as_ref()) {
        take(&mut offer.ep.tx_ctx_cnt, asked.tx_ctx_cnt);
        take(&mut offer.ep.rx_ctx_cnt, asked.rx_ctx_cnt);
    }
    let hinted = hints.and_then(|hints| hints.rx.as_ref());
    offer.rx.caps = caps(of_info, hinted.map_or(0, |it| it.caps), offer.rx.caps);
    if let Some(asked) = hinted {
        offer.rx.op_flags = asked.op_flags;
        take(&mut offer.rx.size, asked.size);
        take(&mut offer.rx.iov_limit, asked.iov_limit);
    }
    let hinted = hints.and_then(|hints| hints.tx.as_ref());
    offer.tx.caps = caps(of_info, hinted.map_or(0, |it| it.caps), offer.tx.caps);
    if let Some(asked) = hinted {
        offer.tx.op_flags = asked.op_flags;
        take(&mut offer.tx.inject_size, asked.inject_size);
        take(&mut offer.tx.size, asked.size);
        take(&mut offer.tx.iov_limit, asked.iov_limit);
        take(&mut offer.tx.rma_iov_limit, asked.rma_iov_limit);
        take(&mut offer.tx.tclass, asked.tclass);
    }
    if let Some(hints) = hints {
        offer.handle = hints.handle();
    }
}
