//! `FI_TAGGED`.

use std::ffi::c_void;

use ringrail::{Envelope, RawSpan};

use super::Ep;
use super::post::{Incoming, Outgoing, Pieces, bytes, one};
use crate::abi::consts::{FI_CLAIM, FI_DISCARD, FI_PEEK, FI_REMOTE_CQ_DATA};
use crate::abi::fids::fid_ep;
use crate::abi::messages::{fi_addr_t, fi_msg_tagged, iovec};
use crate::abi::ops::fi_ops_tagged;
use crate::errno::Errno;
use crate::fid::{border, object};

pub(super) static OPS: fi_ops_tagged = fi_ops_tagged {
    size: size_of::<fi_ops_tagged>(),
    recv,
    recvv,
    recvmsg,
    send,
    sendv,
    sendmsg,
    inject,
    senddata,
    injectdata,
};

// SAFETY of all that follow: libfabric's caller passes an endpoint that is open, as many pieces as
// its count, and memory as the call requires it.

impl Ep {
    /// # Safety
    ///
    /// As for `fi_tsend`.
    #[inline]
    unsafe fn send_tagged(
        &self,
        pieces: &[RawSpan],
        (to, tag): (fi_addr_t, u64),
        data: Option<u64>,
        context: *mut c_void,
        flags: u64,
    ) -> Result<isize, Errno> {
        let envelope = Envelope::tagged(tag);
        // SAFETY: the caller guarantees it.
        unsafe { self.send(pieces, &Outgoing { to, envelope, data, context, flags }) }
    }

    /// # Safety
    ///
    /// As for `fi_trecv`.
    #[inline]
    unsafe fn receive_tagged(
        &self,
        pieces: &[RawSpan],
        from: fi_addr_t,
        (tag, ignore): (u64, u64),
        context: *mut c_void,
        flags: u64,
    ) -> Result<isize, Errno> {
        let envelope = Envelope::tagged(tag);
        let message = Incoming { from, envelope, ignore, context, flags };
        match flags & (FI_PEEK | FI_CLAIM | FI_DISCARD) {
            // SAFETY: the caller guarantees it.
            0 => unsafe { self.receive(pieces, &message) },
            // SAFETY: the caller guarantees it.
            _ => unsafe { self.receive_found(pieces, &message) },
        }
    }
}

unsafe extern "C" fn recv(
    ep: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    _desc: *mut c_void,
    from: fi_addr_t,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: see above.
    border(|| unsafe {
        let ep = object::<Ep>(ep);
        ep.receive_tagged(&one(buf, len), from, (tag, ignore), context, ep.receive_flags())
    })
}

unsafe extern "C" fn recvv(
    ep: *mut fid_ep,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    from: fi_addr_t,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: see above.
    border(|| unsafe {
        let ep = object::<Ep>(ep);
        ep.receive_tagged(
            Pieces::of(iov, count)?.spans(),
            from,
            (tag, ignore),
            context,
            ep.receive_flags(),
        )
    })
}

unsafe extern "C" fn recvmsg(ep: *mut fid_ep, msg: *const fi_msg_tagged, flags: u64) -> isize {
    // SAFETY: see above.
    border(|| unsafe {
        let fi_msg_tagged { msg_iov, iov_count, addr, tag, ignore, context, .. } = *msg;
        let pieces = Pieces::of(msg_iov, iov_count)?;
        object::<Ep>(ep).receive_tagged(pieces.spans(), addr, (tag, ignore), context, flags)
    })
}

unsafe extern "C" fn send(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    to: fi_addr_t,
    tag: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: see above.
    border(|| unsafe {
        let ep = object::<Ep>(ep);
        ep.send_tagged(&one(buf, len), (to, tag), None, context, ep.transmit_flags())
    })
}

unsafe extern "C" fn sendv(
    ep: *mut fid_ep,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    to: fi_addr_t,
    tag: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: see above.
    border(|| unsafe {
        let ep = object::<Ep>(ep);
        ep.send_tagged(
            Pieces::of(iov, count)?.spans(),
            (to, tag),
            None,
            context,
            ep.transmit_flags(),
        )
    })
}

unsafe extern "C" fn sendmsg(ep: *mut fid_ep, msg: *const fi_msg_tagged, flags: u64) -> isize {
    // SAFETY: see above.
    border(|| unsafe {
        let fi_msg_tagged { msg_iov, iov_count, addr, tag, context, data, .. } = *msg;
        let data = (flags & FI_REMOTE_CQ_DATA != 0).then_some(data);
        let pieces = Pieces::of(msg_iov, iov_count)?;
        object::<Ep>(ep).send_tagged(pieces.spans(), (addr, tag), data, context, flags)
    })
}

unsafe extern "C" fn inject(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    to: fi_addr_t,
    tag: u64,
) -> isize {
    // SAFETY: see above.
    border(|| unsafe {
        let bytes = bytes(buf, len);
        object::<Ep>(ep).inject(bytes, to, Envelope::tagged(tag), None)
    })
}

unsafe extern "C" fn senddata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    data: u64,
    to: fi_addr_t,
    tag: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: see above.
    border(|| unsafe {
        let ep = object::<Ep>(ep);
        ep.send_tagged(&one(buf, len), (to, tag), Some(data), context, ep.transmit_flags())
    })
}

unsafe extern "C" fn injectdata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    data: u64,
    to: fi_addr_t,
    tag: u64,
) -> isize {
    // SAFETY: see above.
    border(|| unsafe {
        let bytes = bytes(buf, len);
        object::<Ep>(ep).inject(bytes, to, Envelope::tagged(tag), Some(data))
    })
}
