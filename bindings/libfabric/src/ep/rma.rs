//! `FI_RMA`.

use std::ffi::c_void;

use ringrail::{CompletionLevel, Error, RawSpan, RemoteAddress, RemoteKey, SendOptions};

use super::Ep;
use super::post::{Pieces, bytes, copy_of, level_of, one, posted};
use crate::abi::consts::{FI_FENCE, FI_INJECT, FI_MORE, FI_REMOTE_CQ_DATA};
use crate::abi::fids::fid_ep;
use crate::abi::messages::{fi_addr_t, fi_msg_rma, iovec};
use crate::abi::ops::fi_ops_rma;
use crate::cq::name::Record;
use crate::errno::Errno;
use crate::fid::{border, object};

pub(super) static OPS: fi_ops_rma = fi_ops_rma {
    size: size_of::<fi_ops_rma>(),
    read,
    readv,
    readmsg,
    write,
    writev,
    writemsg,
    inject,
    writedata,
    injectdata,
};

/// The arguments of a one-sided operation.
pub(super) struct Remote {
    pub(super) peer: fi_addr_t,
    pub(super) at: RemoteAddress,
    pub(super) context: *mut c_void,
    pub(super) flags: u64,
}

impl Remote {
    #[inline]
    pub(super) fn new(
        peer: fi_addr_t,
        (addr, key): (u64, u64),
        context: *mut c_void,
        flags: u64,
    ) -> Self {
        Self { peer, at: RemoteKey(key).at(addr), context, flags }
    }

    /// Returns the options of its post. By default it completes when it is executed at the target:
    /// at a lower level a refusal would not be reported.
    #[inline]
    pub(super) fn options(&self, user_data: u64, silent: bool) -> SendOptions {
        SendOptions::at(level_of(self.flags, CompletionLevel::Delivery))
            .silent(silent)
            .more(self.flags & FI_MORE != 0)
            .fence(self.flags & FI_FENCE != 0)
            .user_data(user_data)
    }
}

impl Ep {
    /// Reads memory of a peer.
    ///
    /// # Safety
    ///
    /// As for `fi_read`.
    unsafe fn get(&self, pieces: &[RawSpan], remote: &Remote) -> Result<isize, Errno> {
        let (open, endpoint) = (self.opened()?, self.engine()?);
        let peer = self.peer(open, remote.peer)?;
        let record = Record { context: remote.context.addr(), ..Record::default() };
        let count = open.counts.read.as_ref();
        let (user_data, silent) = open.transmit.named(remote.flags, count, record);
        let options = remote.options(user_data, silent);
        // SAFETY: the caller guarantees it. The endpoint's drop ends what is outstanding.
        let got = unsafe { endpoint.post_get_raw(peer, remote.at, pieces, options) };
        posted(got, user_data)
    }

    /// Writes memory of a peer.
    ///
    /// # Safety
    ///
    /// As for `fi_write`.
    unsafe fn put(
        &self,
        pieces: &[RawSpan],
        data: Option<u64>,
        remote: &Remote,
    ) -> Result<isize, Errno> {
        let (open, endpoint) = (self.opened()?, self.engine()?);
        let peer = self.peer(open, remote.peer)?;
        let record = Record { context: remote.context.addr(), ..Record::default() };
        let count = open.counts.write.as_ref();
        let (user_data, silent) = open.transmit.named(remote.flags, count, record);
        let mut options = remote.options(user_data, silent);
        options.data = data;
        if remote.flags & FI_INJECT != 0 {
            // SAFETY: the caller guarantees it.
            let copy = unsafe { copy_of(pieces) };
            let put = endpoint.post_put(peer, remote.at, copy, options);
            return posted(put.map_err(Error::from), user_data);
        }
        // SAFETY: the caller guarantees it. The endpoint's drop ends what is outstanding.
        let put = unsafe { endpoint.post_put_raw(peer, remote.at, pieces, options) };
        posted(put, user_data)
    }

    /// Writes a copy of `bytes` to memory of a peer. It has no entry, also if it fails.
    fn inject_put(&self, bytes: &[u8], data: Option<u64>, remote: &Remote) -> Result<isize, Errno> {
        let (open, endpoint) = (self.opened()?, self.engine()?);
        let peer = self.peer(open, remote.peer)?;
        // Its counter, if there is one, counts its end.
        let silent = open.counts.write.is_none();
        let user_data = Record::of_inject(open.counts.write.clone()).into_user_data();
        let mut options = remote.options(user_data, silent);
        options.data = data;
        let put = endpoint.post_put(peer, remote.at, bytes.to_vec(), options);
        posted(put.map_err(Error::from), user_data)
    }
}

// SAFETY of all that follow: libfabric's caller passes an endpoint that is open, as many pieces as
// its count, and memory as the call requires it.

unsafe extern "C" fn read(
    ep: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    _desc: *mut c_void,
    from: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: see above.
    border(|| unsafe {
        let ep = object::<Ep>(ep);
        let remote = Remote::new(from, (addr, key), context, ep.transmit_flags());
        ep.get(&one(buf, len), &remote)
    })
}

unsafe extern "C" fn readv(
    ep: *mut fid_ep,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    from: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: see above.
    border(|| unsafe {
        let ep = object::<Ep>(ep);
        let remote = Remote::new(from, (addr, key), context, ep.transmit_flags());
        ep.get(Pieces::of(iov, count)?.spans(), &remote)
    })
}

/// The one place that a message names, as long as its pieces.
///
/// # Safety
///
/// The message is one of `fi_readmsg` or `fi_writemsg`.
unsafe fn parts(msg: *const fi_msg_rma, flags: u64) -> Result<(Pieces, Remote), Errno> {
    // SAFETY: the caller guarantees it.
    unsafe {
        let fi_msg_rma { msg_iov, iov_count, addr, rma_iov, rma_iov_count, context, .. } = *msg;
        if rma_iov_count != 1 {
            return Err(Errno::INVAL);
        }
        let pieces = Pieces::of(msg_iov, iov_count)?;
        let length = pieces.spans().iter().fold(0_usize, |sum, span| sum.saturating_add(span.len));
        let place = *rma_iov;
        if place.len != length {
            return Err(Errno::INVAL);
        }
        Ok((pieces, Remote::new(addr, (place.addr, place.key), context, flags)))
    }
}

unsafe extern "C" fn readmsg(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> isize {
    // SAFETY: see above.
    border(|| unsafe {
        let (pieces, remote) = parts(msg, flags)?;
        object::<Ep>(ep).get(pieces.spans(), &remote)
    })
}

unsafe extern "C" fn write(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    to: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: see above.
    border(|| unsafe {
        let ep = object::<Ep>(ep);
        let remote = Remote::new(to, (addr, key), context, ep.transmit_flags());
        ep.put(&one(buf, len), None, &remote)
    })
}

unsafe extern "C" fn writev(
    ep: *mut fid_ep,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    to: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: see above.
    border(|| unsafe {
        let ep = object::<Ep>(ep);
        let remote = Remote::new(to, (addr, key), context, ep.transmit_flags());
        ep.put(Pieces::of(iov, count)?.spans(), None, &remote)
    })
}

unsafe extern "C" fn writemsg(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> isize {
    // SAFETY: see above.
    border(|| unsafe {
        let (pieces, remote) = parts(msg, flags)?;
        let data = (flags & FI_REMOTE_CQ_DATA != 0).then_some((*msg).data);
        object::<Ep>(ep).put(pieces.spans(), data, &remote)
    })
}

unsafe extern "C" fn inject(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    to: fi_addr_t,
    addr: u64,
    key: u64,
) -> isize {
    // SAFETY: see above.
    border(|| unsafe {
        let ep = object::<Ep>(ep);
        let remote = Remote::new(to, (addr, key), std::ptr::null_mut(), ep.transmit_flags());
        ep.inject_put(bytes(buf, len), None, &remote)
    })
}

unsafe extern "C" fn writedata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    data: u64,
    to: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: see above.
    border(|| unsafe {
        let ep = object::<Ep>(ep);
        let remote = Remote::new(to, (addr, key), context, ep.transmit_flags());
        ep.put(&one(buf, len), Some(data), &remote)
    })
}

unsafe extern "C" fn injectdata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    data: u64,
    to: fi_addr_t,
    addr: u64,
    key: u64,
) -> isize {
    // SAFETY: see above.
    border(|| unsafe {
        let ep = object::<Ep>(ep);
        let remote = Remote::new(to, (addr, key), std::ptr::null_mut(), ep.transmit_flags());
        ep.inject_put(bytes(buf, len), Some(data), &remote)
    })
}
