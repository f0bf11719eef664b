//! Interfaces that are no rail: what users' machines have beside their NICs, and what programs
//! that pick the wrong one hang on.
//!
//! | name | what it is |
//! |---|---|
//! | `docker0` | a bridge without a port; the same address in both hosts |
//! | `virbr0` | a bridge with a port, carrier and the same address in both hosts |
//! | `down0` | a NIC that is switched off; both hosts' addresses are in one network |
//! | `stray0` | a NIC with carrier; the other host's is in another network, without a route |
//! | `stray1` | the same with private addresses, before the rails: one by all rules, and no way |

use std::fmt::Write as _;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::sync::Arc;

use super::namespace::Namespace;
use super::tools::ip;
use super::wiring::wait_up;
use super::{Host, LabError};

/// The names of the interfaces of a host that are no rail.
pub const DECOYS: [&str; 4] = ["docker0", "virbr0", "down0", "stray0"];

/// The name of the one that nothing tells from a rail, but that nobody is reached by it.
pub const STRAY: &str = "stray1";

/// Puts decoys into the hosts. What they are connected with is in the namespace that is returned:
/// nothing answers there.
pub(crate) fn place(hosts: &[Arc<Namespace>; 2]) -> Result<Arc<Namespace>, LabError> {
    let nowhere = Arc::new(Namespace::create()?);
    for (host, namespace) in [Host::A, Host::B].into_iter().zip(hosts) {
        let inside = format!("netns /proc/self/fd/{}", namespace.as_fd().as_raw_fd());
        let mut pairs = String::new();
        for (at, nic) in (0..).zip(["vnet0", "down0", "stray0", STRAY]) {
            // Different in all namespaces, as those of rails; lists of NICs are in this order.
            let index = 500 + 20 * u32::from(host.index()) + at;
            let far = if nic == STRAY { 90 + u32::from(host.index()) } else { index + 10 };
            let name = format!("{nic}{}", host.index());
            let _ = writeln!(
                pairs,
                "link add name {name} index {index} type veth peer name {nic} index {far} {inside}"
            );
            let _ = writeln!(pairs, "link set dev {name} addrgenmode none");
            let _ = writeln!(pairs, "link set dev {name} up");
        }
        ip(&nowhere, &[namespace], &pairs)?;
        ip(namespace, &[], &commands(host))?;
        namespace.enter(|| ["virbr0", "stray0", STRAY].into_iter().try_for_each(wait_up))??;
    }
    Ok(nowhere)
}

fn commands(host: Host) -> String {
    let mut batch = String::new();
    for bridge in ["docker0", "virbr0"] {
        let _ = writeln!(batch, "link add name {bridge} type bridge forward_delay 0");
    }
    batch.push_str("link set dev vnet0 master virbr0\n");
    for nic in DECOYS.into_iter().chain(["vnet0", STRAY]) {
        let _ = writeln!(batch, "link set dev {nic} addrgenmode none");
    }
    let (stray, private) = match host {
        Host::A => ("203.0.113", "10.66.0"),
        Host::B => ("198.51.100", "10.67.0"),
    };
    let last = host.index() + 1;
    let addresses = [
        ("docker0", "172.17.0.1/16".to_owned()),
        ("virbr0", "192.168.122.1/24".to_owned()),
        ("down0", format!("10.79.0.{last}/24")),
        ("stray0", format!("{stray}.{last}/24")),
        (STRAY, format!("{private}.{last}/24")),
    ];
    for (nic, address) in addresses {
        let _ = writeln!(batch, "addr add {address} dev {nic}");
    }
    for nic in ["docker0", "virbr0", "vnet0", "stray0", STRAY] {
        let _ = writeln!(batch, "link set dev {nic} up");
    }
    batch
}
