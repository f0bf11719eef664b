//! Peers of an engine.

use std::ffi::c_int;

use ringrail::{Error, Peer};

use crate::address::rr_address;
use crate::check;
use crate::fault::{Fault, guard_unit};
use crate::handles;
use crate::inside::{each, rr_endpoint};
use crate::options::rr_peer;

/// Adds a peer to those that the engine of an endpoint knows. The same address gives the same
/// number. Nothing is connected yet: the first send does so, or rr_connect.
///
/// # Errors
///
/// RR_EHANDLE, RR_ETHREAD. RR_EINVAL: null, no address. RR_ELIMIT: the setting sessions_max.
///
/// # Safety
///
/// `address` can be read, `peer` written.
///
/// # Threads
///
/// Any, at the same time; of RR_OWNED its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_insert(
    endpoint: *mut rr_endpoint,
    address: *const rr_address,
    peer: *mut rr_peer,
) -> c_int {
    guard_unit(|| {
        // SAFETY: the caller does not close it meanwhile.
        let endpoint = unsafe { handles::get::<rr_endpoint>(endpoint) }?;
        // SAFETY: the caller guarantees it.
        let address = unsafe { check::read(address, "address") }?.get()?;
        check::place(peer, 1, "peer")?;
        let inserted = each!(&endpoint.0, it => it.insert_peer(&address)?);
        // SAFETY: the caller guarantees it.
        unsafe { check::put(peer, inserted.to_bits(), "peer") }
    })
}

/// Removes a peer: what is outstanding with it ends with RR_EREMOVED.
///
/// # Errors
///
/// RR_EHANDLE, RR_ETHREAD. RR_ENOPEER: it was removed before.
///
/// # Safety
///
/// The endpoint is not closed during the call.
///
/// # Threads
///
/// Any, at the same time; of RR_OWNED its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_remove(endpoint: *mut rr_endpoint, peer: rr_peer) -> c_int {
    guard_unit(|| {
        // SAFETY: the caller does not close it meanwhile.
        let endpoint = unsafe { handles::get::<rr_endpoint>(endpoint) }?;
        each!(&endpoint.0, it => it.remove_peer(Peer::from_bits(peer))?);
        Ok(())
    })
}

/// Gives the address of a peer, also of one that was only met as the source of a message.
///
/// # Errors
///
/// RR_EHANDLE, RR_ETHREAD. RR_EINVAL: null. RR_ENOPEER.
///
/// # Safety
///
/// `address` can be written.
///
/// # Threads
///
/// Any, at the same time; of RR_OWNED its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_peer_address(
    endpoint: *mut rr_endpoint,
    peer: rr_peer,
    address: *mut rr_address,
) -> c_int {
    guard_unit(|| {
        // SAFETY: the caller does not close it meanwhile.
        let endpoint = unsafe { handles::get::<rr_endpoint>(endpoint) }?;
        check::place(address, 1, "address")?;
        let found = each!(&endpoint.0, it => it.peer_address(Peer::from_bits(peer)));
        let found = found.ok_or(Error::UnknownPeer)?;
        // SAFETY: the caller guarantees it.
        unsafe { check::put(address, rr_address::new(&found), "address") }
    })
}

/// Connects to `count` peers at once, and waits until all of them are connected. After the session
/// with a peer has failed each call with it gives the same error until this: a peer that answers
/// again, as one that stood still, is usable from then on.
///
/// # Errors
///
/// RR_EHANDLE, RR_ETHREAD. RR_EINVAL: null. RR_ETIMEDOUT: the attempts go on. RR_ENOPEER. Why a
/// peer could not be connected: RR_EUNREACHABLE, RR_ESECRET, ...; the other attempts go on.
///
/// # Safety
///
/// `count` peers can be read.
///
/// # Threads
///
/// Any, at the same time; of RR_OWNED its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_connect(
    endpoint: *mut rr_endpoint,
    peers: *const rr_peer,
    count: usize,
    timeout_ns: i64,
) -> c_int {
    guard_unit(|| {
        // SAFETY: the caller does not close it meanwhile.
        let endpoint = unsafe { handles::get::<rr_endpoint>(endpoint) }?;
        // SAFETY: the caller guarantees it.
        let peers = unsafe { check::slice(peers, count, "peers") }?;
        let peers: Vec<Peer> = peers.iter().copied().map(Peer::from_bits).collect();
        each!(&endpoint.0, it => it.connect_all(&peers, check::timeout(timeout_ns)))
            .map_err(Fault::from)
    })
}

/// Gives the longest message, in bytes, that may go to a peer with its envelope now; longer ones
/// are pulled by their receiver. 0: not connected.
///
/// # Errors
///
/// RR_EHANDLE, RR_ETHREAD. RR_EINVAL: null.
///
/// # Safety
///
/// `limit` can be written.
///
/// # Threads
///
/// Any, at the same time; of RR_OWNED its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_eager_limit(
    endpoint: *mut rr_endpoint,
    peer: rr_peer,
    limit: *mut u64,
) -> c_int {
    guard_unit(|| {
        // SAFETY: the caller does not close it meanwhile.
        let endpoint = unsafe { handles::get::<rr_endpoint>(endpoint) }?;
        let found = each!(&endpoint.0, it => it.eager_limit_bytes(Peer::from_bits(peer)));
        // SAFETY: the caller guarantees it.
        unsafe { check::put(limit, found.unwrap_or(0), "limit") }
    })
}
