//! The right to use a queue: by privileges of this process, or leased from `ringrail-xdpd`.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use ringrail_xdp::lease::{Bound, LeaseError, Offer, RING_ENTRIES_MAX};
use ringrail_xdp::{AttachMode, Claim, ClaimError, JoinError, Missing, Nic};
use socket2::SockRef;

use super::super::datagrams::FrameSource;
use super::any_rings::AnyRings;
use super::exchange::FrameExchange;
use super::headers::BYTES_MAX;
use super::leased_rings::{LeasedRings, register};
use super::mapped::RingMapping;
use super::socket::{BUSY_FOR, Copying, XskRings};
use crate::driver::traits::DATAGRAM_BYTES_MAX;
use crate::forks::Registration;

/// Timeout of the helper's answer when an engine starts: it may have to load a program.
const FIRST_ANSWER: Duration = Duration::from_secs(3);
/// The same later, while messages wait.
const LATER_ANSWER: Duration = Duration::from_millis(250);
/// Pause between two requests for a busy queue.
const BUSY_PAUSE: Duration = Duration::from_millis(5);
/// Minimum number of frames.
const FRAMES_MIN: u32 = 128;

/// The right to the packets of a queue, as long as this lives.
#[derive(Debug)]
pub(super) enum QueueLease {
    /// By privileges of this process.
    Own {
        /// Of the NIC: children have no copies of what keeps the program on it.
        _registrations: Vec<Registration>,
        /// Goes before the NIC, which is not left earlier.
        claim: Claim,
        nic: Nic,
        copying: Copying,
    },
    /// Leased.
    Leased {
        /// Of the connection to the daemon.
        _registration: Registration,
        bound: Bound,
    },
}

impl QueueLease {
    /// The NIC's name.
    pub(super) fn nic(&self) -> &str {
        match self {
            Self::Own { nic, .. } => nic.name(),
            Self::Leased { bound, .. } => bound.lease.nic(),
        }
    }

    /// Name of the NIC, the queue, and how packets are transferred.
    pub(super) fn describe(&self) -> (String, u32, String) {
        let copied = |is_zero_copy| if is_zero_copy { "zero-copy" } else { "copied" };
        let (queue, how) = match self {
            Self::Own { claim, nic, copying, .. } => {
                let copied = copied(*copying == Copying::Zero);
                (claim.queue(), format!("{}, {copied}", nic.mode()))
            }
            Self::Leased { bound: Bound { lease, queue, is_zero_copy }, .. } => {
                let copied = copied(*is_zero_copy);
                (*queue, format!("{}, {copied}, leased from ringrail-xdpd", lease.mode()))
            }
        };
        (self.nic().to_owned(), queue, how)
    }

    /// Checks that the queue is still usable. A few short system calls.
    ///
    /// # Errors
    ///
    /// Why it is not.
    pub(super) fn check(&self) -> Result<(), String> {
        match self {
            Self::Own { nic, .. } => nic.is_attached().map_err(|why| why.to_string()),
            Self::Leased { bound, .. } => bound.lease.check(),
        }
    }
}

/// Whether packets may take several frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum MultiFrame {
    /// None is longer than a frame.
    No,
    /// If the kernel supports it.
    Wanted,
    /// Required: otherwise fail.
    Needed,
}

/// A request for a queue.
#[derive(Clone, Copy)]
pub(super) struct QueueRequest<'a> {
    pub(super) nic: u32,
    /// The address that `socket`, the UDP socket, is bound to, possibly by the wildcard.
    pub(super) local: SocketAddr,
    pub(super) socket: BorrowedFd<'a>,
    pub(super) source: &'a FrameSource,
    /// Retry a busy queue for a second.
    pub(super) is_patient: bool,
    pub(super) long: MultiFrame,
}

/// A lease, and its rings.
pub(super) struct Acquired {
    pub(super) lease: QueueLease,
    pub(super) exchange: FrameExchange<AnyRings>,
    pub(super) frames: u32,
    /// Packets may take several frames.
    pub(super) is_long: bool,
}

/// Acquires the first free queue: by own privileges, else from the helper.
///
/// # Errors
///
/// The obstacle, and the remedy.
pub(super) fn acquire(request: &QueueRequest<'_>) -> Result<Acquired, String> {
    let lacking = match Missing::of_this_thread() {
        Some(missing) => missing.to_string(),
        None => match Nic::join(request.nic, AttachMode::Auto) {
            Ok(nic) => return bind_directly(nic, request),
            // Root of a user namespace has them all, without effect here.
            Err(JoinError::Privileges { missing, .. }) => missing.to_string(),
            Err(error) => return Err(error.to_string()),
        },
    };
    let Some(helper) = &request.source.helper else {
        return Err(format!(
            "not permitted: {lacking}; or start ringrail-xdpd, join group ringrail, and name its \
             socket in the setting xdpd_socket"
        ));
    };
    if request.long == MultiFrame::Needed {
        return Err(format!(
            "not permitted: {lacking}; ringrail-xdpd leases no queue for multi-frame packets, \
             which were announced to peers"
        ));
    }
    lease_from_helper(request, helper).map_err(|refusal| match refusal {
        LeaseError::Absent { .. } | LeaseError::NotAllowed { .. } => format!(
            "not permitted: {lacking}; or start ringrail-xdpd and join group ringrail ({refusal})"
        ),
        other => other.to_string(),
    })
}

/// By own privileges. Multi-frame packets need Linux 6.6.
fn bind_directly(nic: Nic, request: &QueueRequest<'_>) -> Result<Acquired, String> {
    let nic = match request.long {
        MultiFrame::No => nic,
        MultiFrame::Needed => return take_queue(nic, request, true).map_err(|(_, why)| why),
        MultiFrame::Wanted if !nic.has_frags() => nic,
        MultiFrame::Wanted => match take_queue(nic, request, true) {
            Ok(taken) => return Ok(taken),
            Err((nic, _)) => nic,
        },
    };
    take_queue(nic, request, false).map_err(|(_, why)| why)
}

/// Acquires the first free queue, zero-copy if NIC and program support it. Returns the NIC if there
/// is none.
fn take_queue(
    nic: Nic,
    request: &QueueRequest<'_>,
    is_long: bool,
) -> Result<Acquired, (Nic, String)> {
    let frames = request.source.frames;
    let long_bytes = if is_long { DATAGRAM_BYTES_MAX + BYTES_MAX } else { 0 };
    let mut last = String::from("it has no queue");
    for queue in 0..nic.queues() {
        // Busy queues are not waited for if there are several.
        let is_patient = request.is_patient && nic.queues() == 1;
        let ways: &[Copying] =
            if nic.has_zero_copy() { &[Copying::Zero, Copying::Copy] } else { &[Copying::Copy] };
        for &copying in ways {
            let how = (copying, is_long);
            let rings = match XskRings::open(nic.name(), queue, frames, how, is_patient) {
                Ok(rings) => rings,
                Err(error) => {
                    last = refused(nic.name(), queue, &error);
                    continue;
                }
            };
            let exchange = FrameExchange::new(AnyRings::Own(rings), frames, frames / 2, long_bytes);
            match nic.claim(queue, request.local, exchange.fd()) {
                Ok(claim) => {
                    let descriptors = nic.descriptors().into_iter();
                    let _registrations = descriptors.map(Registration::of).collect();
                    let lease = QueueLease::Own { _registrations, claim, nic, copying };
                    return Ok(Acquired { lease, exchange, frames, is_long });
                }
                Err(error @ ClaimError::Unspecified { .. }) => {
                    return Err((nic, error.to_string()));
                }
                Err(error) => {
                    last = error.to_string();
                    break;
                }
            }
        }
    }
    Err((nic, last))
}

fn refused(nic: &str, queue: u32, error: &io::Error) -> String {
    let cure = match error.raw_os_error() {
        Some(libc::EBUSY) => "; another process is using it",
        Some(libc::EPERM | libc::EACCES) => "; it needs CAP_NET_RAW and CAP_NET_ADMIN",
        Some(libc::ENOBUFS | libc::ENOMEM) => "; raise the memlock limit",
        _ => "",
    };
    format!("queue {queue} of {nic}: {error}{cure}")
}

/// Leases the first free queue from the helper.
fn lease_from_helper(request: &QueueRequest<'_>, helper: &Path) -> Result<Acquired, LeaseError> {
    let is_patient = request.is_patient;
    let patience = if is_patient { FIRST_ANSWER } else { LATER_ANSWER };
    let bound =
        SockRef::from(&request.socket).local_addr().ok().and_then(|bound| bound.as_socket());
    let has_all = bound.is_some_and(|bound| bound.ip().to_canonical().is_unspecified());
    let address = has_all.then(|| request.local.ip());
    let frames = request.source.frames.min(RING_ENTRIES_MAX);
    let entries = frames.next_power_of_two();
    let (mut offer, leased) =
        Offer::ask(helper, request.nic, request.socket, address, entries, patience)?;
    let os = |source| LeaseError::Os { source };
    let (memory, frames) = register_most(&leased, frames).map_err(os)?;
    let rings = LeasedRings::new(&leased, entries, memory).map_err(os)?;
    drop(leased);
    let exchange = FrameExchange::new(AnyRings::Leased(rings), frames, frames / 2, 0);
    let queues = offer.queues();
    // Busy queues are not waited for if there are several.
    let deadline = (is_patient && queues == 1).then(|| Instant::now() + BUSY_FOR);
    // However many there are, and however slowly each is refused.
    let last_queue_at = Instant::now() + patience;
    let mut queue = 0;
    loop {
        match offer.try_bind(queue) {
            Ok(bound) => {
                let _registration = Registration::of(bound.lease.descriptor().as_raw_fd());
                let lease = QueueLease::Leased { _registration, bound };
                return Ok(Acquired { lease, exchange, frames, is_long: false });
            }
            Err((again, LeaseError::Busy { .. }))
                if queue + 1 < queues && Instant::now() < last_queue_at =>
            {
                offer = again;
                queue += 1;
            }
            Err((again, LeaseError::Busy { .. }))
                if deadline.is_some_and(|deadline| Instant::now() < deadline) =>
            {
                offer = again;
                thread::sleep(BUSY_PAUSE);
            }
            Err((_, error)) => return Err(error),
        }
    }
}

/// Memory for as many frames as this user may lock, up to `frames`, and how many these are.
fn register_most(leased: &OwnedFd, mut frames: u32) -> io::Result<(RingMapping, u32)> {
    loop {
        match register(leased, frames) {
            Ok(memory) => return Ok((memory, frames)),
            Err(error)
                if matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::ENOMEM))
                    && frames / 2 >= FRAMES_MIN =>
            {
                frames /= 2;
                tracing::debug!("cannot lock memory for all frames, trying {frames}");
            }
            Err(error) => return Err(error),
        }
    }
}
