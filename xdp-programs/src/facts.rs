//! What a NIC is and has, without changing anything about it and without privileges.

use std::fmt;
use std::io;
use std::os::fd::AsFd as _;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::nic::{FEATURE_FRAGS, FEATURE_ZERO_COPY, Mode, NicId};
use crate::site::{is_slow_natively, mode_of};
use crate::sys::bpf::{self, Attached};
use crate::sys::device::{Device, Rules};

/// `NETDEV_XDP_ACT_BASIC | NETDEV_XDP_ACT_REDIRECT`.
const FEATURES_NATIVE: u64 = 0b11;

/// Whether a NIC can do something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Support {
    /// Its driver reports it.
    Yes,
    /// Its driver reports that it cannot.
    No,
    /// Kernels before 6.3 do not report it: an attempt shows it.
    Unknown,
}

impl fmt::Display for Support {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Yes => "yes",
            Self::No => "no",
            Self::Unknown => "unknown",
        })
    }
}

/// Rules of a NIC that send a flow to a queue (`ethtool -N`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlowRules {
    /// It has none.
    None,
    /// It has them, and they are switched off (`ethtool -K NIC ntuple on`).
    Off,
    /// They can be used.
    On,
}

/// What is known of a NIC.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NicFacts {
    /// The interface's name.
    pub name: String,
    /// The name of its driver, such as `veth`; empty if it has none, as `lo`.
    pub driver: String,
    /// Its largest packet, in bytes.
    pub mtu_bytes: u32,
    /// Receive queues in use, at least 1.
    pub queues: u32,
    /// Receive queues that it could have; `None` where the driver does not report it.
    pub queues_max: Option<u32>,
    /// Queues that its hash spreads flows over; `None` where the driver does not report it.
    pub hash_queues: Option<Vec<u32>>,
    /// Whether a flow can be sent to one queue.
    pub flow_rules: FlowRules,
    /// Whether its driver runs XDP programs that redirect.
    pub native: Support,
    /// Whether AF_XDP sockets of it can do without copies.
    pub zero_copy: Support,
    /// Whether frames longer than one buffer reach a program in its driver.
    pub frags: Support,
    /// Where [`AttachMode::Auto`](crate::AttachMode::Auto) tries to attach: `Generic` where native
    /// is slower (veth) or not to be had.
    pub auto_mode: Mode,
    /// Where an XDP program is, ours or another one's; `None`: there is none.
    pub program: Option<Mode>,
}

/// Asks for the facts about a NIC of the calling thread's network namespace.
///
/// # Errors
///
/// There is no such NIC, or the error of the kernel.
pub fn facts<'name>(nic: impl Into<NicId<'name>>) -> io::Result<NicFacts> {
    let (family, flags) = (AddressFamily::INET, SocketFlags::CLOEXEC);
    let socket = socket_with(family, SocketType::DGRAM, flags, None)?;
    let ifindex = match nic.into() {
        NicId::Index(index) => index,
        NicId::Name(name) => rustix::net::netdevice::name_to_index(&socket, name)?,
    };
    let mut device = Device::find(socket.as_fd(), ifindex)?;
    let driver = device.driver();
    let attached = bpf::query(ifindex)?;
    let [native, zero_copy, frags] =
        [FEATURES_NATIVE, FEATURE_ZERO_COPY, FEATURE_FRAGS].map(|bits| support(&attached, bits));
    let auto_mode = match native {
        Support::No => Mode::Generic,
        _ if is_slow_natively(&driver) => Mode::Generic,
        _ => Mode::Native,
    };
    Ok(NicFacts {
        name: device.name(),
        mtu_bytes: device.mtu()?,
        queues: device.queues(),
        queues_max: device.queues_max(),
        hash_queues: device.hash_queues(),
        flow_rules: match device.rules() {
            Rules::None => FlowRules::None,
            Rules::Off => FlowRules::Off,
            Rules::On => FlowRules::On,
        },
        native,
        zero_copy,
        frags,
        auto_mode,
        program: attached.id().map(|_| mode_of(&attached)),
        driver,
    })
}

fn support(attached: &Attached, bits: u64) -> Support {
    match attached.features {
        features if features & bits == bits => Support::Yes,
        // The kernel reports nothing before 6.3, and since then nothing of a driver without XDP.
        0 if !reports_features() => Support::Unknown,
        _ => Support::No,
    }
}

/// Whether this kernel is 6.3 or later.
pub(crate) fn reports_features() -> bool {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy().into_owned();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|word| word.parse::<u32>());
    let (major, minor) = (numbers.next(), numbers.next());
    matches!((major, minor), (Some(Ok(major)), Some(Ok(minor))) if (major, minor) >= (6, 3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_has_one_queue_and_no_driver() {
        let facts = facts("lo").unwrap();
        assert_eq!((facts.name.as_str(), facts.driver.as_str()), ("lo", ""));
        assert_eq!((facts.queues, facts.flow_rules), (1, FlowRules::None));
        assert!(facts.mtu_bytes >= 1500, "{facts:?}");
        assert_ne!(facts.zero_copy, Support::Yes);
        assert_eq!(super::facts(1).unwrap(), facts);
    }

    #[test]
    fn what_is_not_there_is_an_error() {
        assert_eq!(facts(0x7fff_fff0).unwrap_err().raw_os_error(), Some(libc::ENODEV));
        assert_eq!(facts("no-such-nic").unwrap_err().raw_os_error(), Some(libc::ENODEV));
    }
}
