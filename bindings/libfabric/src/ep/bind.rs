//! What an endpoint is bound to; its beginning and its end.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};

use super::{Counts, Ep, Open, Side};
use crate::abi::consts::{
    FI_CLASS_AV, FI_CLASS_CNTR, FI_CLASS_CQ, FI_CLASS_EQ, FI_ENABLE, FI_GETOPSFLAG, FI_READ,
    FI_RECV, FI_SELECTIVE_COMPLETION, FI_SEND, FI_SETOPSFLAG, FI_WRITE,
};
use crate::abi::fids::fid;
use crate::av::Av;
use crate::cntr::Cntr;
use crate::cq::{Cq, Sink};
use crate::eq::Eq;
use crate::errno::Errno;
use crate::fid::{border_unit, close, find, share};

/// The objects bound before it was enabled.
#[derive(Default)]
pub(super) struct Bound {
    transmit: Option<(Arc<Cq>, bool)>,
    receive: Option<(Arc<Cq>, bool)>,
    counters: Vec<(Arc<Cntr>, u64)>,
    av: Option<Arc<Av>>,
    eq: Option<Arc<Eq>>,
}

impl Bound {
    fn bind_queue(&mut self, queue: &Arc<Cq>, flags: u64) -> Result<(), Errno> {
        let is_selective = flags & FI_SELECTIVE_COMPLETION != 0;
        if flags & (FI_SEND | FI_RECV) == 0 {
            return Err(Errno::BADFLAGS);
        }
        let sides = [(FI_SEND, &mut self.transmit), (FI_RECV, &mut self.receive)];
        for (_, side) in sides.into_iter().filter(|(flag, _)| flags & flag != 0) {
            if side.is_some() {
                return Err(Errno::INVAL);
            }
            *side = Some((Arc::clone(queue), is_selective));
        }
        Ok(())
    }
}

impl Ep {
    /// # Safety
    ///
    /// `other` is null or an object of this provider that is open.
    unsafe fn bind(&self, other: *mut fid, flags: u64) -> Result<(), Errno> {
        if self.open.get().is_some() {
            return Err(Errno::OPBADSTATE);
        }
        let mut bound = self.bound.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the caller guarantees it.
        unsafe {
            match other.as_ref().ok_or(Errno::INVAL)?.fclass {
                FI_CLASS_CQ => {
                    let queue = share::<Cq>(other).ok_or(Errno::INVAL)?;
                    self.domain.check_own(queue.domain(), "completion queue")?;
                    bound.bind_queue(&queue, flags)
                }
                FI_CLASS_CNTR => {
                    let counter = share::<Cntr>(other).ok_or(Errno::INVAL)?;
                    self.domain.check_own(counter.domain(), "counter")?;
                    bound.counters.push((counter, flags));
                    Ok(())
                }
                FI_CLASS_AV => {
                    let av = share::<Av>(other).ok_or(Errno::INVAL)?;
                    self.domain.check_own(av.domain(), "address vector")?;
                    bound.av = Some(av);
                    Ok(())
                }
                FI_CLASS_EQ => {
                    let queue = share::<Eq>(other).ok_or(Errno::INVAL)?;
                    queue.check_fabric(self.domain.fabric())?;
                    bound.eq = Some(queue);
                    Ok(())
                }
                _ => Err(Errno::INVAL),
            }
        }
    }

    /// The event queue that it is bound to.
    pub(crate) fn event_queue(&self) -> Option<Arc<Eq>> {
        self.bound.lock().unwrap_or_else(PoisonError::into_inner).eq.clone()
    }

    /// Opens the engine's endpoint.
    ///
    /// # Errors
    ///
    /// [`Errno::NOAV`] where it needs an address vector; the error of the engine.
    pub(crate) fn enable(&self) -> Result<(), Errno> {
        let bound = self.bound.lock().unwrap_or_else(PoisonError::into_inner);
        if self.open.get().is_some() {
            return Ok(());
        }
        if bound.av.is_none() && !self.is_connected_kind {
            return Err(Errno::NOAV);
        }
        let side = |queue: &Option<(Arc<Cq>, bool)>| match queue {
            Some((queue, is_selective)) => {
                Side { sink: Arc::clone(queue.sink()), is_selective: *is_selective }
            }
            // It is not read: its operations are counted, or their ends are of no interest.
            None => Side {
                sink: Arc::new(Sink::new(self.domain.open_queue(), false)),
                is_selective: true,
            },
        };
        let (transmit, receive) = (side(&bound.transmit), side(&bound.receive));
        let endpoint =
            self.domain.open_endpoint(self.format, transmit.sink.queue(), receive.sink.queue())?;
        if let Some(hint) = self.hint {
            endpoint.set_hint(hint);
        }
        let counting = |flag| {
            let found = bound.counters.iter().find(|(_, flags)| flags & flag != 0);
            found.map(|(counter, _)| Arc::clone(counter.count()))
        };
        let counts = Counts {
            send: counting(FI_SEND),
            recv: counting(FI_RECV),
            read: counting(FI_READ),
            write: counting(FI_WRITE),
        };
        for (counter, flags) in &bound.counters {
            if flags & (FI_SEND | FI_READ | FI_WRITE) != 0 {
                counter.reads(&transmit.sink);
            }
            if flags & FI_RECV != 0 {
                counter.reads(&receive.sink);
            }
            self.domain.remote.count_by(counter, *flags);
        }
        let queues = [&bound.transmit, &bound.receive].into_iter().flatten();
        let queues = queues.map(|(queue, _)| Arc::clone(queue)).collect::<Vec<_>>();
        if let Some(av) = &bound.av {
            queues.iter().for_each(|queue| queue.name_by(av));
        }
        let open = Open {
            endpoint: Some(endpoint),
            av: bound.av.clone(),
            transmit,
            receive,
            counts,
            _counters: bound.counters.iter().map(|(counter, _)| Arc::clone(counter)).collect(),
            _queues: queues,
        };
        self.open.set(open).map_err(|_| Errno::OPBADSTATE)
    }
}

impl Drop for Ep {
    /// Its operations end, and have no entries.
    fn drop(&mut self) {
        self.claims.get_mut().unwrap_or_else(PoisonError::into_inner).clear();
        let Some(open) = self.open.get_mut() else { return };
        let Some(endpoint) = open.endpoint.take() else { return };
        let sinks = [&open.transmit.sink, &open.receive.sink];
        if sinks[0].is_inherited() {
            // All that a child of `fork` can do with it is to let go.
            return;
        }
        let mut dropped = HashMap::<u64, usize>::new();
        let drained = sinks.iter().try_for_each(|sink| sink.drain().map(drop));
        for user_data in endpoint.outstanding() {
            *dropped.entry(user_data).or_default() += 1;
        }
        drop(endpoint);
        let drained = drained.and_then(|()| {
            sinks.iter().try_for_each(|sink| {
                let is_wanted = |user_data| match dropped.get_mut(&user_data) {
                    Some(left) if *left > 0 => {
                        *left -= 1;
                        false
                    }
                    _ => true,
                };
                sink.drain_where(is_wanted).map(|_| ())
            })
        });
        if let Err(errno) = drained {
            tracing::debug!(errno = errno.number(), "the operations of a closed endpoint");
        }
        self.forget_connection();
    }
}

pub(super) unsafe extern "C" fn close_ep(fid: *mut fid) -> c_int {
    // SAFETY: libfabric's caller closes an endpoint once.
    border_unit(|| unsafe { close::<Ep>(fid) })
}

pub(super) unsafe extern "C" fn bind(fid: *mut fid, other: *mut fid, flags: u64) -> c_int {
    // SAFETY: libfabric's caller passes objects that are open.
    border_unit(|| unsafe { find::<Ep>(fid).ok_or(Errno::INVAL)?.bind(other, flags) })
}

pub(super) unsafe extern "C" fn control(
    fid: *mut fid,
    command: c_int,
    argument: *mut c_void,
) -> c_int {
    border_unit(|| {
        // SAFETY: libfabric's caller passes an endpoint that is open.
        let ep = unsafe { find::<Ep>(fid) }.ok_or(Errno::INVAL)?;
        match command {
            FI_ENABLE => ep.enable(),
            FI_GETOPSFLAG | FI_SETOPSFLAG => {
                // SAFETY: the argument of these commands is a place for flags.
                let flags = unsafe { argument.cast::<u64>().as_mut() }.ok_or(Errno::INVAL)?;
                let of_side = match *flags & (FI_SEND | FI_RECV) {
                    FI_SEND => &ep.transmit_flags,
                    FI_RECV => &ep.receive_flags,
                    _ => return Err(Errno::INVAL),
                };
                exchange(of_side, flags, command == FI_SETOPSFLAG);
                Ok(())
            }
            _ => Err(Errno::NOSYS),
        }
    })
}

/// Reads or sets the flags of a side.
fn exchange(of_side: &AtomicU64, flags: &mut u64, is_set: bool) {
    match is_set {
        true => of_side.store(*flags & !(FI_SEND | FI_RECV), Ordering::Relaxed),
        false => *flags = of_side.load(Ordering::Relaxed),
    }
}
