//! Two hosts on one machine: network namespaces joined by veth pairs, one pair per rail; or by a
//! switch, a third namespace that limits rates and loses packets.
//!
//! The namespaces have no name. File descriptors of the [`Lab`] and the processes in them keep
//! them alive, so they go away with these, whichever way those end: drop, panic, SIGKILL. Nothing
//! needs to be found and removed by a later run, and any number of labs can exist side by side.
//!
//! ```text
//!        host a                       host b
//!   rail0 10.77.0.1/24 ──veth── rail0 10.77.0.2/24
//!   rail1 10.77.1.1/24 ──veth── rail1 10.77.1.2/24
//! ```
//!
//! Interfaces have the same name in both hosts, because several programs select by one name on
//! both sides. They have no IPv6 addresses: neighbour and group chatter would disturb short runs.

mod census;
mod child;
mod decoys;
mod error;
mod faults;
mod gates;
mod namespace;
mod nat;
mod spec;
mod switch;
mod tools;
mod wire;
mod wiring;

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::Arc;

pub use census::{ProcessId, users};
pub use child::{LabChild, LabCommand};
pub use decoys::{DECOYS, STRAY};
pub use error::LabError;
pub use faults::BROWN_OUT;
pub use gates::Passage;
pub use namespace::HostNetwork;
use namespace::Namespace;
pub use spec::LabSpec;
use switch::Switch;

/// The second octet of every rail's network, 10.77.RAIL.0/24.
const RAIL_NET: u8 = 77;

/// The same of a host b that is behind a router.
const ROUTED_NET: u8 = 78;

/// The last octet of host b's rail 0 where all rails are in one network; host a's is 1.
const SAME_SUBNET_B: u8 = 101;

/// One of the two hosts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Host {
    /// Where clients run, by custom; core 0.
    A,
    /// Where servers run, by custom; core 1.
    B,
}

impl Host {
    /// The host name that programs see.
    pub fn name(self) -> &'static str {
        match self {
            Self::A => "ringrail-a",
            Self::B => "ringrail-b",
        }
    }

    /// The other one.
    pub fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }

    /// Position among the hosts, from 0.
    fn index(self) -> u8 {
        match self {
            Self::A => 0,
            Self::B => 1,
        }
    }
}

/// Two connected hosts. Dropping it gives them back to the kernel, as soon as the programs
/// started in them have ended too.
#[derive(Debug)]
pub struct Lab {
    spec: LabSpec,
    hosts: [Arc<Namespace>; 2],
    handles: [faults::Handle; 2],
    switch: Option<Switch>,
    /// Where the decoys' other ends are.
    _nowhere: Option<Arc<Namespace>>,
}

impl Lab {
    /// Builds the hosts, and returns when every rail can carry traffic.
    ///
    /// # Errors
    ///
    /// [`LabError::Unprivileged`] where network namespaces cannot be made, [`LabError::NoTool`]
    /// where iproute2 is missing, [`LabError::NoDelay`] where a delay takes netem and the kernel
    /// has none, and otherwise what `ip`, `tc` or the kernel refused.
    pub fn build(spec: &LabSpec) -> Result<Self, LabError> {
        let hosts = [Arc::new(Namespace::create()?), Arc::new(Namespace::create()?)];
        let inside = spec.has_switch().then(Namespace::create).transpose()?.map(Arc::new);
        wiring::lay(&hosts, inside.as_ref(), spec)?;
        let ports = inside.clone();
        let switch = inside.map(|inside| Switch::build(inside, spec)).transpose()?;
        wiring::bring_up(&hosts, ports.as_ref(), spec)?;
        let nowhere = spec.decoys.then(|| decoys::place(&hosts)).transpose()?;
        let handles = [faults::Handle::of(&hosts[0])?, faults::Handle::of(&hosts[1])?];
        Ok(Self { spec: spec.clone(), hosts, handles, switch, _nowhere: nowhere })
    }

    /// How it was asked to be.
    pub fn spec(&self) -> &LabSpec {
        &self.spec
    }

    /// One of the hosts, to run things in.
    pub fn host(&self, host: Host) -> HostHandle<'_> {
        HostHandle { host, namespace: &self.hosts[usize::from(host.index())] }
    }

    /// The address of `host` on `rail`.
    ///
    /// # Panics
    ///
    /// If there is no such rail.
    pub fn addr(&self, host: Host, rail: u8) -> IpAddr {
        assert!(rail < self.spec.rails, "rail {rail} of a lab of {} rails", self.spec.rails);
        IpAddr::V4(address(&self.spec, host, rail))
    }

    /// What host b sees in place of host a's address where a translator is between them.
    ///
    /// # Panics
    ///
    /// If there is no such rail.
    pub fn outside_addr(&self, rail: u8) -> IpAddr {
        assert!(rail < self.spec.rails, "rail {rail} of a lab of {} rails", self.spec.rails);
        IpAddr::V4(outside(rail))
    }

    /// As [`HostHandle::enter`], in the switch between the hosts.
    ///
    /// # Errors
    ///
    /// [`LabError::NoSwitch`], or when the kernel lets the thread not in.
    pub fn enter_switch<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, LabError> {
        let what = "somebody between the hosts";
        self.switch.as_ref().ok_or(LabError::NoSwitch { what })?.enter(work)
    }

    /// The name of the switch's interface towards `host` on `rail`: what comes in by it is as the
    /// host sent it, also what went as AF_XDP frames, which the host itself does not show.
    ///
    /// # Panics
    ///
    /// If there is no such rail.
    pub fn port(&self, host: Host, rail: u8) -> String {
        assert!(rail < self.spec.rails, "rail {rail} of a lab of {} rails", self.spec.rails);
        wiring::port(host, rail)
    }

    /// The name of the interface of `rail`, the same in both hosts.
    ///
    /// # Panics
    ///
    /// If there is no such rail.
    pub fn nic(&self, rail: u8) -> String {
        assert!(rail < self.spec.rails, "rail {rail} of a lab of {} rails", self.spec.rails);
        nic(rail)
    }
}

/// A host to run closures and programs in.
#[derive(Clone, Copy, Debug)]
pub struct HostHandle<'lab> {
    host: Host,
    namespace: &'lab Arc<Namespace>,
}

impl HostHandle<'_> {
    /// Runs `work` on a new thread inside the host and returns what it returns. The thread sees
    /// the host's interfaces, in `/sys` too; threads that it starts inherit that. A panic in `work`
    /// continues in the caller.
    ///
    /// A [`LabChild`] started inside ends with that thread: start it outside.
    ///
    /// # Errors
    ///
    /// When the kernel lets the thread not in.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, LabError> {
        self.namespace.enter(work)
    }

    /// A program to run inside the host, on the host's core.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> LabCommand {
        LabCommand::new(self.host, Arc::clone(self.namespace), program.as_ref())
    }

    /// A path to the host's network namespace, for `nsenter --net=`, while the lab lives.
    pub fn path(&self) -> PathBuf {
        self.namespace.path()
    }

    /// Identity of the host's network namespace: the inode number that
    /// `readlink /proc/PID/ns/net` shows for a process in it.
    pub fn inode(&self) -> u64 {
        self.namespace.inode()
    }
}

/// Says whether this process can build labs.
///
/// # Errors
///
/// What is missing, and the cure.
pub fn available() -> Result<(), LabError> {
    Namespace::create()?;
    tools::is_there()
}

fn address(spec: &LabSpec, host: Host, rail: u8) -> Ipv4Addr {
    match (spec.same_subnet, spec.routed, host) {
        (true, _, Host::A) => Ipv4Addr::new(10, RAIL_NET, 0, 1 + rail),
        (true, _, Host::B) => Ipv4Addr::new(10, RAIL_NET, 0, SAME_SUBNET_B + rail),
        (_, true, Host::B) => Ipv4Addr::new(10, ROUTED_NET, rail, 2),
        _ => Ipv4Addr::new(10, RAIL_NET, rail, host.index() + 1),
    }
}

/// What a translator has host a look like on `rail`.
fn outside(rail: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, RAIL_NET, rail, 200)
}

/// The address of the router towards `host` on `rail`, where there is one.
fn router(host: Host, rail: u8) -> Ipv4Addr {
    let net = if host == Host::A { RAIL_NET } else { ROUTED_NET };
    Ipv4Addr::new(10, net, rail, 254)
}

fn nic(rail: u8) -> String {
    format!("rail{rail}")
}
