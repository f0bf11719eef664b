//! `FI_MSG`.

use std::ffi::c_void;

use ringrail::{Envelope, RawSpan};

use super::Ep;
use super::post::{Incoming, Outgoing, Pieces, bytes, one};
use crate::abi::consts::{FI_CLAIM, FI_DISCARD, FI_PEEK, FI_REMOTE_CQ_DATA};
use crate::abi::fids::fid_ep;
use crate::abi::messages::{fi_addr_t, fi_msg, iovec};
use crate::abi::ops::fi_ops_msg;
use crate::errno::Errno;
use crate::fid::{border, object};

pub(super) static OPS: fi_ops_msg = fi_ops_msg {
    size: size_of::<fi_ops_msg>(),
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
    /// As for `fi_send`.
    #[inline]
    unsafe fn send_msg(
        &self,
        pieces: &[RawSpan],
        to: fi_addr_t,
        data: Option<u64>,
        context: *mut c_void,
        flags: u64,
    ) -> Result<isize, Errno> {
        let envelope = Envelope::UNTAGGED;
        // SAFETY: the caller guarantees it.
        unsafe { self.send(pieces, &Outgoing { to, envelope, data, context, flags }) }
    }

    /// # Safety
    ///
    /// As for `fi_recv`.
    #[inline]
    unsafe fn receive_msg(
        &self,
        pieces: &[RawSpan],
        from: fi_addr_t,
        context: *mut c_void,
        flags: u64,
    ) -> Result<isize, Errno> {
        let (envelope, ignore) = (Envelope::UNTAGGED, 0);
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
    context: *mut c_void,
) -> isize {
    // SAFETY: see above.
    border(|| unsafe {
        let ep = object::<Ep>(ep);
        ep.receive_msg(&one(buf, len), from, context, ep.receive_flags())
    })
}

unsafe extern "C" fn recvv(
    ep: *mut fid_ep,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    from: fi_addr_t,
    context: *mut c_void,
) -> isize {
    // SAFETY: see above.
    border(|| unsafe {
        let ep = object::<Ep>(ep);
        ep.receive_msg(Pieces::of(iov, count)?.spans(), from, context, ep.receive_flags())
    })
}

unsafe extern "C" fn recvmsg(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize {
    // SAFETY: see above.
    border(|| unsafe {
        let fi_msg { msg_iov, iov_count, addr, context, .. } = *msg;
        object::<Ep>(ep).receive_msg(Pieces::of(msg_iov, iov_count)?.spans(), addr, context, flags)
    })
}

unsafe extern "C" fn send(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    to: fi_addr_t,
    context: *mut c_void,
) -> isize {
    // SAFETY: see above.
    border(|| unsafe {
        let ep = object::<Ep>(ep);
        ep.send_msg(&one(buf, len), to, None, context, ep.transmit_flags())
    })
}

unsafe extern "C" fn sendv(
    ep: *mut fid_ep,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    to: fi_addr_t,
    context: *mut c_void,
) -> isize {
    // SAFETY: see above.
    border(|| unsafe {
        let ep = object::<Ep>(ep);
        ep.send_msg(Pieces::of(iov, count)?.spans(), to, None, context, ep.transmit_flags())
    })
}

unsafe extern "C" fn sendmsg(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize {
    // SAFETY: see above.
    border(|| unsafe {
        let fi_msg { msg_iov, iov_count, addr, context, data, .. } = *msg;
        let data = (flags & FI_REMOTE_CQ_DATA != 0).then_some(data);
        object::<Ep>(ep).send_msg(
            Pieces::of(msg_iov, iov_count)?.spans(),
            addr,
            data,
            context,
            flags,
        )
    })
}

unsafe extern "C" fn inject(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    to: fi_addr_t,
) -> isize {
    // SAFETY: see above.
    border(|| unsafe {
        let bytes = bytes(buf, len);
        object::<Ep>(ep).inject(bytes, to, Envelope::UNTAGGED, None)
    })
}

unsafe extern "C" fn senddata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    data: u64,
    to: fi_addr_t,
    context: *mut c_void,
) -> isize {
    // SAFETY: see above.
    border(|| unsafe {
        let ep = object::<Ep>(ep);
        ep.send_msg(&one(buf, len), to, Some(data), context, ep.transmit_flags())
    })
}

unsafe extern "C" fn injectdata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    data: u64,
    to: fi_addr_t,
) -> isize {
    // SAFETY: see above.
    border(|| unsafe {
        let bytes = bytes(buf, len);
        object::<Ep>(ep).inject(bytes, to, Envelope::UNTAGGED, Some(data))
    })
}
