//! Tables of operations. Every table has one in which all say `FI_ENOSYS`, for what is not
//! offered: most of libfabric's inline functions call without a look.

use std::ffi::{c_char, c_int, c_void};

use super::consts::FI_ENOSYS;
use super::fids::{
    fid, fid_av, fid_cntr, fid_cq, fid_domain, fid_ep, fid_eq, fid_fabric, fid_mr, fid_pep,
};
use super::info::{
    fi_atomic_attr, fi_av_attr, fi_cntr_attr, fi_cq_attr, fi_eq_attr, fi_info, fi_mr_attr,
    fi_rx_attr, fi_tx_attr, sizes,
};
use super::messages::{
    fi_addr_t, fi_cq_err_entry, fi_eq_err_entry, fi_ioc, fi_msg, fi_msg_atomic, fi_msg_rma,
    fi_msg_tagged, iovec,
};

/// The result of calls that are not offered.
trait Unsupported {
    const UNSUPPORTED: Self;
}

impl Unsupported for c_int {
    const UNSUPPORTED: Self = -FI_ENOSYS;
}

impl Unsupported for isize {
    const UNSUPPORTED: Self = -FI_ENOSYS as Self;
}

/// A counter's value.
impl Unsupported for u64 {
    const UNSUPPORTED: Self = 0;
}

/// A text.
impl Unsupported for *const c_char {
    const UNSUPPORTED: Self = std::ptr::null();
}

/// A table, and one whose calls all say that they are not offered.
macro_rules! tables {
    ($(
        $(#[$doc:meta])*
        $table:ident: $size:literal {
            $($(#[$since:meta])* $call:ident($($argument:ty),* $(,)?) -> $answer:ty;)*
        }
    )*) => {$(
        $(#[$doc])*
        #[repr(C)]
        pub(crate) struct $table {
            pub(crate) size: usize,
            $($(#[$since])* pub(crate) $call: unsafe extern "C" fn($($argument),*) -> $answer,)*
        }

        impl $table {
            /// All calls say that they are not offered.
            pub(crate) const ENOSYS: Self = {
                $(extern "C" fn $call($(_: $argument),*) -> $answer {
                    <$answer>::UNSUPPORTED
                })*
                Self { size: size_of::<Self>(), $($call),* }
            };
        }

        sizes!($table: $size);
    )*};
}

tables! {
    /// Of every object.
    fi_ops: 56 {
        close(*mut fid) -> c_int;
        bind(*mut fid, *mut fid, u64) -> c_int;
        control(*mut fid, c_int, *mut c_void) -> c_int;
        ops_open(*mut fid, *const c_char, u64, *mut *mut c_void, *mut c_void) -> c_int;
        tostr(*const fid, *mut c_char, usize) -> c_int;
        ops_set(*mut fid, *const c_char, u64, *mut c_void, *mut c_void) -> c_int;
    }

    fi_ops_fabric: 56 {
        domain(*mut fid_fabric, *mut fi_info, *mut *mut fid_domain, *mut c_void) -> c_int;
        passive_ep(*mut fid_fabric, *mut fi_info, *mut *mut fid_pep, *mut c_void) -> c_int;
        eq_open(*mut fid_fabric, *mut fi_eq_attr, *mut *mut fid_eq, *mut c_void) -> c_int;
        wait_open(*mut fid_fabric, *mut c_void, *mut *mut c_void) -> c_int;
        trywait(*mut fid_fabric, *mut *mut fid, c_int) -> c_int;
        domain2(*mut fid_fabric, *mut fi_info, *mut *mut fid_domain, u64, *mut c_void) -> c_int;
    }

    fi_ops_domain: 104 {
        av_open(*mut fid_domain, *mut fi_av_attr, *mut *mut fid_av, *mut c_void) -> c_int;
        cq_open(*mut fid_domain, *mut fi_cq_attr, *mut *mut fid_cq, *mut c_void) -> c_int;
        endpoint(*mut fid_domain, *mut fi_info, *mut *mut fid_ep, *mut c_void) -> c_int;
        scalable_ep(*mut fid_domain, *mut fi_info, *mut *mut fid_ep, *mut c_void) -> c_int;
        cntr_open(*mut fid_domain, *mut fi_cntr_attr, *mut *mut fid_cntr, *mut c_void) -> c_int;
        poll_open(*mut fid_domain, *mut c_void, *mut *mut c_void) -> c_int;
        stx_ctx(*mut fid_domain, *mut fi_tx_attr, *mut *mut c_void, *mut c_void) -> c_int;
        srx_ctx(*mut fid_domain, *mut fi_rx_attr, *mut *mut fid_ep, *mut c_void) -> c_int;
        query_atomic(*mut fid_domain, c_int, c_int, *mut fi_atomic_attr, u64) -> c_int;
        query_collective(*mut fid_domain, c_int, *mut c_void, u64) -> c_int;
        endpoint2(*mut fid_domain, *mut fi_info, *mut *mut fid_ep, u64, *mut c_void) -> c_int;
        /// Since 2.7.
        xpu_ctx(*mut fid_domain, *mut c_void, *mut *mut c_void, *mut c_void) -> c_int;
    }

    fi_ops_mr: 32 {
        reg(
            *mut fid, *const c_void, usize, u64, u64, u64, u64, *mut *mut fid_mr, *mut c_void,
        ) -> c_int;
        regv(
            *mut fid, *const iovec, usize, u64, u64, u64, u64, *mut *mut fid_mr, *mut c_void,
        ) -> c_int;
        regattr(*mut fid, *const fi_mr_attr, u64, *mut *mut fid_mr) -> c_int;
    }

    fi_ops_ep: 72 {
        cancel(*mut fid, *mut c_void) -> isize;
        getopt(*mut fid, c_int, c_int, *mut c_void, *mut usize) -> c_int;
        setopt(*mut fid, c_int, c_int, *const c_void, usize) -> c_int;
        tx_ctx(*mut fid_ep, c_int, *mut fi_tx_attr, *mut *mut fid_ep, *mut c_void) -> c_int;
        rx_ctx(*mut fid_ep, c_int, *mut fi_rx_attr, *mut *mut fid_ep, *mut c_void) -> c_int;
        rx_size_left(*mut fid_ep) -> isize;
        tx_size_left(*mut fid_ep) -> isize;
        /// Since 2.7.
        export_xpu(*mut fid_ep, u64, *mut c_void) -> c_int;
    }

    fi_ops_cm: 80 {
        setname(*mut fid, *mut c_void, usize) -> c_int;
        getname(*mut fid, *mut c_void, *mut usize) -> c_int;
        getpeer(*mut fid_ep, *mut c_void, *mut usize) -> c_int;
        connect(*mut fid_ep, *const c_void, *const c_void, usize) -> c_int;
        listen(*mut fid_pep) -> c_int;
        accept(*mut fid_ep, *const c_void, usize) -> c_int;
        reject(*mut fid_pep, *mut fid, *const c_void, usize) -> c_int;
        shutdown(*mut fid_ep, u64) -> c_int;
        join(*mut fid_ep, *const c_void, u64, *mut *mut c_void, *mut c_void) -> c_int;
    }

    fi_ops_msg: 80 {
        recv(*mut fid_ep, *mut c_void, usize, *mut c_void, fi_addr_t, *mut c_void) -> isize;
        recvv(
            *mut fid_ep, *const iovec, *mut *mut c_void, usize, fi_addr_t, *mut c_void,
        ) -> isize;
        recvmsg(*mut fid_ep, *const fi_msg, u64) -> isize;
        send(*mut fid_ep, *const c_void, usize, *mut c_void, fi_addr_t, *mut c_void) -> isize;
        sendv(
            *mut fid_ep, *const iovec, *mut *mut c_void, usize, fi_addr_t, *mut c_void,
        ) -> isize;
        sendmsg(*mut fid_ep, *const fi_msg, u64) -> isize;
        inject(*mut fid_ep, *const c_void, usize, fi_addr_t) -> isize;
        senddata(
            *mut fid_ep, *const c_void, usize, *mut c_void, u64, fi_addr_t, *mut c_void,
        ) -> isize;
        injectdata(*mut fid_ep, *const c_void, usize, u64, fi_addr_t) -> isize;
    }

    fi_ops_tagged: 80 {
        recv(
            *mut fid_ep, *mut c_void, usize, *mut c_void, fi_addr_t, u64, u64, *mut c_void,
        ) -> isize;
        recvv(
            *mut fid_ep, *const iovec, *mut *mut c_void, usize, fi_addr_t, u64, u64, *mut c_void,
        ) -> isize;
        recvmsg(*mut fid_ep, *const fi_msg_tagged, u64) -> isize;
        send(
            *mut fid_ep, *const c_void, usize, *mut c_void, fi_addr_t, u64, *mut c_void,
        ) -> isize;
        sendv(
            *mut fid_ep, *const iovec, *mut *mut c_void, usize, fi_addr_t, u64, *mut c_void,
        ) -> isize;
        sendmsg(*mut fid_ep, *const fi_msg_tagged, u64) -> isize;
        inject(*mut fid_ep, *const c_void, usize, fi_addr_t, u64) -> isize;
        senddata(
            *mut fid_ep, *const c_void, usize, *mut c_void, u64, fi_addr_t, u64, *mut c_void,
        ) -> isize;
        injectdata(*mut fid_ep, *const c_void, usize, u64, fi_addr_t, u64) -> isize;
    }

    fi_ops_rma: 80 {
        read(
            *mut fid_ep, *mut c_void, usize, *mut c_void, fi_addr_t, u64, u64, *mut c_void,
        ) -> isize;
        readv(
            *mut fid_ep, *const iovec, *mut *mut c_void, usize, fi_addr_t, u64, u64, *mut c_void,
        ) -> isize;
        readmsg(*mut fid_ep, *const fi_msg_rma, u64) -> isize;
        write(
            *mut fid_ep, *const c_void, usize, *mut c_void, fi_addr_t, u64, u64, *mut c_void,
        ) -> isize;
        writev(
            *mut fid_ep, *const iovec, *mut *mut c_void, usize, fi_addr_t, u64, u64, *mut c_void,
        ) -> isize;
        writemsg(*mut fid_ep, *const fi_msg_rma, u64) -> isize;
        inject(*mut fid_ep, *const c_void, usize, fi_addr_t, u64, u64) -> isize;
        writedata(
            *mut fid_ep, *const c_void, usize, *mut c_void, u64, fi_addr_t, u64, u64, *mut c_void,
        ) -> isize;
        injectdata(*mut fid_ep, *const c_void, usize, u64, fi_addr_t, u64, u64) -> isize;
    }

    /// The two numbers before the context are datatype and operation.
    fi_ops_atomic: 112 {
        write(
            *mut fid_ep, *const c_void, usize, *mut c_void, fi_addr_t, u64, u64, c_int, c_int,
            *mut c_void,
        ) -> isize;
        writev(
            *mut fid_ep, *const fi_ioc, *mut *mut c_void, usize, fi_addr_t, u64, u64, c_int, c_int,
            *mut c_void,
        ) -> isize;
        writemsg(*mut fid_ep, *const fi_msg_atomic, u64) -> isize;
        inject(
            *mut fid_ep, *const c_void, usize, fi_addr_t, u64, u64, c_int, c_int,
        ) -> isize;
        readwrite(
            *mut fid_ep, *const c_void, usize, *mut c_void, *mut c_void, *mut c_void, fi_addr_t,
            u64, u64, c_int, c_int, *mut c_void,
        ) -> isize;
        readwritev(
            *mut fid_ep, *const fi_ioc, *mut *mut c_void, usize, *mut fi_ioc, *mut *mut c_void,
            usize, fi_addr_t, u64, u64, c_int, c_int, *mut c_void,
        ) -> isize;
        readwritemsg(
            *mut fid_ep, *const fi_msg_atomic, *mut fi_ioc, *mut *mut c_void, usize, u64,
        ) -> isize;
        compwrite(
            *mut fid_ep, *const c_void, usize, *mut c_void, *const c_void, *mut c_void,
            *mut c_void, *mut c_void, fi_addr_t, u64, u64, c_int, c_int, *mut c_void,
        ) -> isize;
        compwritev(
            *mut fid_ep, *const fi_ioc, *mut *mut c_void, usize, *const fi_ioc, *mut *mut c_void,
            usize, *mut fi_ioc, *mut *mut c_void, usize, fi_addr_t, u64, u64, c_int, c_int,
            *mut c_void,
        ) -> isize;
        compwritemsg(
            *mut fid_ep, *const fi_msg_atomic, *const fi_ioc, *mut *mut c_void, usize,
            *mut fi_ioc, *mut *mut c_void, usize, u64,
        ) -> isize;
        writevalid(*mut fid_ep, c_int, c_int, *mut usize) -> c_int;
        readwritevalid(*mut fid_ep, c_int, c_int, *mut usize) -> c_int;
        compwritevalid(*mut fid_ep, c_int, c_int, *mut usize) -> c_int;
    }

    /// None is offered.
    fi_ops_collective: 96 {
        barrier(*mut fid_ep, fi_addr_t, *mut c_void) -> isize;
        broadcast(
            *mut fid_ep, *mut c_void, usize, *mut c_void, fi_addr_t, fi_addr_t, c_int, u64,
            *mut c_void,
        ) -> isize;
        alltoall(
            *mut fid_ep, *const c_void, usize, *mut c_void, *mut c_void, *mut c_void, fi_addr_t,
            c_int, u64, *mut c_void,
        ) -> isize;
        allreduce(
            *mut fid_ep, *const c_void, usize, *mut c_void, *mut c_void, *mut c_void, fi_addr_t,
            c_int, c_int, u64, *mut c_void,
        ) -> isize;
        allgather(
            *mut fid_ep, *const c_void, usize, *mut c_void, *mut c_void, *mut c_void, fi_addr_t,
            c_int, u64, *mut c_void,
        ) -> isize;
        reduce_scatter(
            *mut fid_ep, *const c_void, usize, *mut c_void, *mut c_void, *mut c_void, fi_addr_t,
            c_int, c_int, u64, *mut c_void,
        ) -> isize;
        reduce(
            *mut fid_ep, *const c_void, usize, *mut c_void, *mut c_void, *mut c_void, fi_addr_t,
            fi_addr_t, c_int, c_int, u64, *mut c_void,
        ) -> isize;
        scatter(
            *mut fid_ep, *const c_void, usize, *mut c_void, *mut c_void, *mut c_void, fi_addr_t,
            fi_addr_t, c_int, u64, *mut c_void,
        ) -> isize;
        gather(
            *mut fid_ep, *const c_void, usize, *mut c_void, *mut c_void, *mut c_void, fi_addr_t,
            fi_addr_t, c_int, u64, *mut c_void,
        ) -> isize;
        msg(*mut fid_ep, *const c_void, *mut fi_ioc, *mut *mut c_void, usize, u64) -> isize;
        barrier2(*mut fid_ep, fi_addr_t, u64, *mut c_void) -> isize;
    }

    fi_ops_cq: 72 {
        read(*mut fid_cq, *mut c_void, usize) -> isize;
        readfrom(*mut fid_cq, *mut c_void, usize, *mut fi_addr_t) -> isize;
        readerr(*mut fid_cq, *mut fi_cq_err_entry, u64) -> isize;
        sread(*mut fid_cq, *mut c_void, usize, *const c_void, c_int) -> isize;
        sreadfrom(*mut fid_cq, *mut c_void, usize, *mut fi_addr_t, *const c_void, c_int) -> isize;
        signal(*mut fid_cq) -> c_int;
        strerror(*mut fid_cq, c_int, *const c_void, *mut c_char, usize) -> *const c_char;
        /// Since 2.7.
        export_xpu(*mut fid_cq, u64, *mut c_void) -> c_int;
    }

    fi_ops_cntr: 72 {
        read(*mut fid_cntr) -> u64;
        readerr(*mut fid_cntr) -> u64;
        add(*mut fid_cntr, u64) -> c_int;
        set(*mut fid_cntr, u64) -> c_int;
        wait(*mut fid_cntr, u64, c_int) -> c_int;
        adderr(*mut fid_cntr, u64) -> c_int;
        seterr(*mut fid_cntr, u64) -> c_int;
        /// Since 2.7.
        export_xpu(*mut fid_cntr, u64, *mut c_void) -> c_int;
    }

    fi_ops_eq: 48 {
        read(*mut fid_eq, *mut u32, *mut c_void, usize, u64) -> isize;
        readerr(*mut fid_eq, *mut fi_eq_err_entry, u64) -> isize;
        write(*mut fid_eq, u32, *const c_void, usize, u64) -> isize;
        sread(*mut fid_eq, *mut u32, *mut c_void, usize, c_int, u64) -> isize;
        strerror(*mut fid_eq, c_int, *const c_void, *mut c_char, usize) -> *const c_char;
    }

    fi_ops_av: 96 {
        insert(
            *mut fid_av, *const c_void, usize, *mut fi_addr_t, u64, *mut c_void,
        ) -> c_int;
        insertsvc(
            *mut fid_av, *const c_char, *const c_char, *mut fi_addr_t, u64, *mut c_void,
        ) -> c_int;
        insertsym(
            *mut fid_av, *const c_char, usize, *const c_char, usize, *mut fi_addr_t, u64,
            *mut c_void,
        ) -> c_int;
        remove(*mut fid_av, *mut fi_addr_t, usize, u64) -> c_int;
        lookup(*mut fid_av, fi_addr_t, *mut c_void, *mut usize) -> c_int;
        straddr(*mut fid_av, *const c_void, *mut c_char, *mut usize) -> *const c_char;
        av_set(*mut fid_av, *mut c_void, *mut *mut c_void, *mut c_void) -> c_int;
        /// Since 1.20, as the next two.
        insert_auth_key(*mut fid_av, *const c_void, usize, *mut fi_addr_t, u64) -> c_int;
        lookup_auth_key(*mut fid_av, fi_addr_t, *mut c_void, *mut usize) -> c_int;
        set_user_id(*mut fid_av, fi_addr_t, fi_addr_t, u64) -> c_int;
        /// Since 2.7.
        lookup2(
            *mut fid_av, fi_addr_t, *mut c_void, *mut usize, u64, *mut c_void,
        ) -> c_int;
    }
}
