//! Busy polling of a queue: the polling thread drives the NIC, instead of interrupts.

use std::fmt;
use std::io;
use std::os::fd::RawFd;

use super::super::options;

/// Packets per busy poll, the kernel's default.
const BUSY_POLL_BUDGET: libc::c_int = 64;

/// State of busy polling of a queue.
#[derive(Debug)]
pub(super) struct BusyPoll {
    us: u32,
    state: BusyPollState,
}

#[derive(Debug)]
enum BusyPollState {
    /// The kernel knows no NAPI instance of the queue; some drivers report it with the first
    /// packet.
    NoNapi,
    Used,
    Refused(io::Error),
}

impl BusyPoll {
    /// Enables it on a bound socket, for `us` microseconds per poll. A failure is harmless and
    /// described by the text.
    pub(super) fn start(socket: RawFd, us: u32) -> Self {
        let us_option = libc::c_int::try_from(us).unwrap_or(libc::c_int::MAX);
        let wanted = [
            (libc::SO_PREFER_BUSY_POLL, 1),
            (libc::SO_BUSY_POLL, us_option),
            (libc::SO_BUSY_POLL_BUDGET, BUSY_POLL_BUDGET),
        ];
        let asked = wanted
            .iter()
            .try_for_each(|&(name, value)| options::set(socket, libc::SOL_SOCKET, name, value));
        let state = match asked {
            Ok(()) => BusyPollState::NoNapi,
            Err(error) => BusyPollState::Refused(error),
        };
        let mut busy_poll = Self { us, state };
        busy_poll.look(socket);
        busy_poll
    }

    /// Checks whether the queue has a NAPI instance by now.
    pub(super) fn look(&mut self, socket: RawFd) {
        if matches!(self.state, BusyPollState::NoNapi) && napi_of(socket) != 0 {
            self.state = BusyPollState::Used;
        }
    }

    /// Whether packets arrive only by polling.
    pub(super) fn is_used(&self) -> bool {
        matches!(self.state, BusyPollState::Used)
    }
}

impl fmt::Display for BusyPoll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.state {
            BusyPollState::Used => write!(f, "busy poll for {} us", self.us),
            BusyPollState::NoNapi => f.write_str(
                "no busy poll: the kernel knows no NAPI of this queue (generic mode and veth have \
                 none)",
            ),
            BusyPollState::Refused(error) => {
                write!(f, "no busy poll: {error}; it needs CAP_NET_ADMIN and Linux 5.11")
            }
        }
    }
}

/// The NAPI instance of a socket's packets; 0: not known.
fn napi_of(socket: RawFd) -> libc::c_int {
    options::get(socket, libc::SOL_SOCKET, libc::SO_INCOMING_NAPI_ID).unwrap_or(0)
}
