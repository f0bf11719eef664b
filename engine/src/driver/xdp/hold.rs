//! The right to a queue: by privileges of this process, or lent by `ringrail-xdpd`.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use ringrail_xdp::lease::{Bound, LeaseError, Offer};
use ringrail_xdp::{AttachMode, Claim, ClaimError, JoinError, Missing, Nic};

use super::exchange::Exchange;
use super::kinds::AnyRings;
use super::lent::LentRings;
use super::socket::{BUSY_FOR, Copying, XskRings};

/// How long the helper may take for an answer when an engine starts: it may have to load a program.
const FIRST_ANSWER: Duration = Duration::from_secs(3);
/// In mid-life, when messages wait for it.
const LATER_ANSWER: Duration = Duration::from_millis(250);
/// Between two questions for a queue that is busy.
const BUSY_PAUSE: Duration = Duration::from_millis(5);
/// Fewer frames are not of use.
const FRAMES_MIN: u32 = 128;

/// What frames are wanted, and from whom they may be had.
#[derive(Clone, Debug)]
pub(in super::super) struct Source {
    /// How many.
    pub(in super::super) frames: u32,
    /// For how long a look at an empty ring may drive the NIC, in microseconds; 0: its interrupts
    /// do.
    pub(in super::super) busy_poll_us: u32,
    /// Where `ringrail-xdpd` listens.
    pub(in super::super) helper: Option<PathBuf>,
}

/// A queue whose datagrams come, for as long as this lives.
#[derive(Debug)]
pub(super) enum Hold {
    /// By privileges of our own.
    Own {
        /// Goes first: the NIC is not left before.
        claim: Claim,
        nic: Nic,
        copying: Copying,
    },
    /// Lent.
    Lent(Bound),
}

impl Hold {
    /// The NIC's name.
    pub(super) fn nic(&self) -> &str {
        match self {
            Self::Own { nic, .. } => nic.name(),
            Self::Lent(bound) => bound.lease.nic(),
        }
    }

    /// Name of the NIC, the queue, and how frames travel.
    pub(super) fn describe(&self) -> (String, u32, String) {
        let copied = |is_zero_copy| if is_zero_copy { "zero-copy" } else { "copied" };
        let (queue, how) = match self {
            Self::Own { claim, nic, copying } => {
                let copied = copied(*copying == Copying::Zero);
                (claim.queue(), format!("{}, {copied}", nic.mode()))
            }
            Self::Lent(Bound { lease, queue, is_zero_copy }) => {
                let copied = copied(*is_zero_copy);
                (*queue, format!("{}, {copied}, lent by ringrail-xdpd", lease.mode()))
            }
        };
        (self.nic().to_owned(), queue, how)
    }

    /// Says whether datagrams can still come. A few short system calls.
    ///
    /// # Errors
    ///
    /// Why they cannot.
    pub(super) fn check(&self) -> Result<(), String> {
        match self {
            Self::Own { nic, .. } => nic.is_attached().map_err(|why| why.to_string()),
            Self::Lent(bound) => bound.lease.check(),
        }
    }
}

/// A hold, the rings that go with it, and their frames.
type Acquired = (Hold, Exchange<AnyRings>, u32);

/// Takes the first queue of NIC `nic` that nobody has: by own privileges, else by the helper's.
/// `socket` is the UDP socket that is bound to `local`.
///
/// # Errors
///
/// What stands in the way, and the cure.
pub(super) fn acquire(
    nic: u32,
    local: SocketAddr,
    socket: BorrowedFd<'_>,
    source: &Source,
    is_patient: bool,
) -> Result<Acquired, String> {
    let lacking = match Missing::of_this_thread() {
        Some(missing) => missing.to_string(),
        None => match Nic::join(nic, AttachMode::Auto) {
            Ok(nic) => return by_privileges(nic, local, source.frames, is_patient),
            // A user namespace's root has them all, and may nothing here.
            Err(JoinError::Privileges { missing, .. }) => missing.to_string(),
            Err(error @ (JoinError::Folder { .. } | JoinError::OutOfReach { .. })) => {
                error.to_string()
            }
            Err(error) => return Err(error.to_string()),
        },
    };
    let Some(helper) = &source.helper else {
        return Err(format!(
            "not permitted: {lacking}; or start ringrail-xdpd, join group ringrail, and name its \
             socket in the setting xdpd_socket"
        ));
    };
    borrow(nic, socket, source.frames, helper, is_patient).map_err(|refusal| match refusal {
        LeaseError::Absent { .. } | LeaseError::NotAllowed { .. } => format!(
            "not permitted: {lacking}; or start ringrail-xdpd and join group ringrail ({refusal})"
        ),
        LeaseError::Os { source } => {
            let cure = match source.raw_os_error() {
                Some(libc::ENOBUFS | libc::ENOMEM) => {
                    "; raise the memlock limit (`ulimit -l`), or lower xdp_frames"
                }
                _ => "",
            };
            format!("a socket of ringrail-xdpd: {source}{cure}")
        }
        other => other.to_string(),
    })
}

/// The first queue that nobody has, zero-copy where NIC and program can.
fn by_privileges(
    nic: Nic,
    local: SocketAddr,
    frames: u32,
    is_patient: bool,
) -> Result<Acquired, String> {
    let mut last = String::from("it has no queue");
    for queue in 0..nic.queues() {
        // Others' queues are not waited for where there are more.
        let is_patient = is_patient && nic.queues() == 1;
        let ways: &[Copying] =
            if nic.has_zero_copy() { &[Copying::Zero, Copying::Copy] } else { &[Copying::Copy] };
        for &copying in ways {
            let rings = match XskRings::open(nic.name(), queue, frames, copying, is_patient) {
                Ok(rings) => rings,
                Err(error) => {
                    last = refused(nic.name(), queue, &error);
                    continue;
                }
            };
            let exchange = Exchange::new(AnyRings::Own(rings), frames, frames / 2);
            return match nic.claim(queue, local, exchange.fd()) {
                Ok(claim) => Ok((Hold::Own { claim, nic, copying }, exchange, frames)),
                Err(error @ ClaimError::Unspecified { .. }) => Err(error.to_string()),
                Err(error) => {
                    last = error.to_string();
                    break;
                }
            };
        }
    }
    Err(last)
}

fn refused(nic: &str, queue: u32, error: &io::Error) -> String {
    let cure = match error.raw_os_error() {
        Some(libc::EBUSY) => "; another process has it, which alone can use it",
        Some(libc::EPERM | libc::EACCES) => "; it needs CAP_NET_RAW and CAP_NET_ADMIN",
        Some(libc::ENOBUFS | libc::ENOMEM) => "; raise the memlock limit, or lower xdp_frames",
        _ => "",
    };
    format!("queue {queue} of {nic}: {error}{cure}")
}

/// The first queue that nobody has, by the helper.
fn borrow(
    nic: u32,
    socket: BorrowedFd<'_>,
    frames: u32,
    helper: &Path,
    is_patient: bool,
) -> Result<Acquired, LeaseError> {
    let patience = if is_patient { FIRST_ANSWER } else { LATER_ANSWER };
    let (mut offer, lent) = Offer::ask(helper, nic, socket, patience)?;
    let (rings, frames) = register(&lent, frames)?;
    drop(lent);
    let exchange = Exchange::new(AnyRings::Lent(rings), frames, frames / 2);
    let queues = offer.queues();
    // Others' queues are not waited for where there are more.
    let deadline = (is_patient && queues == 1).then(|| Instant::now() + BUSY_FOR);
    let mut queue = 0;
    loop {
        match offer.try_bind(queue) {
            Ok(bound) => return Ok((Hold::Lent(bound), exchange, frames)),
            Err((again, LeaseError::Busy { .. })) if queue + 1 < queues => {
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

/// Rings with as many frames as this user may lock, up to `frames`.
fn register(lent: &OwnedFd, mut frames: u32) -> Result<(LentRings, u32), LeaseError> {
    loop {
        match LentRings::new(lent, frames) {
            Ok(rings) => return Ok((rings, frames)),
            Err(error)
                if matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::ENOMEM))
                    && frames / 2 >= FRAMES_MIN =>
            {
                frames /= 2;
                tracing::debug!("memory for so many frames is not to be had, trying {frames}");
            }
            Err(source) => return Err(LeaseError::Os { source }),
        }
    }
}
