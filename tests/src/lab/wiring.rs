//! Rails between namespaces, by `ip` of iproute2.

use std::fmt::Write as _;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fs, thread};

use super::namespace::Namespace;
use super::tools::ip;
use super::{Host, LabError, LabSpec, address, nic, router};

/// How long a rail may take to come up, in seconds. Takes milliseconds unless the machine is ill.
const UP_WITHIN_S: u64 = 5;

/// Lays every rail of `spec`, from host to host or from either host to the switch. Addresses come
/// with [`bring_up`].
pub(crate) fn lay(
    hosts: &[Arc<Namespace>; 2],
    switch: Option<&Arc<Namespace>>,
    spec: &LabSpec,
) -> Result<(), LabError> {
    let [a, b] = hosts;
    let end = |host, rail| end(host, spec, rail, 0);
    let mut pairs = String::new();
    for rail in 0..spec.rails {
        match switch {
            None => {
                let (near, far, to) = (end(Host::A, rail), end(Host::B, rail), in_namespace(b));
                let _ = writeln!(pairs, "link add {near} type veth peer {far} {to}");
            }
            Some(_) => {
                for (host, namespace) in [(Host::A, a), (Host::B, b)] {
                    let (port, index) = (port(host, rail), port_index(host, rail));
                    let (far, to) = (end(host, rail), in_namespace(namespace));
                    let near = format!("name {port} index {index} mtu {}", spec.mtu);
                    let _ = writeln!(pairs, "link add {near} type veth peer {far} {to}");
                    let _ = writeln!(pairs, "link set dev {port} addrgenmode none");
                    let _ = writeln!(pairs, "link set dev {port} up");
                }
            }
        }
    }
    let inside = switch.unwrap_or(a);
    ip(inside, &[a, b], &pairs)
}

/// Where `ip` puts an interface. It inherits the descriptor, so no name is needed.
fn in_namespace(namespace: &Namespace) -> String {
    format!("netns /proc/self/fd/{}", namespace.as_fd().as_raw_fd())
}

/// What a rail's end in `host` is made as: the first one, or one that takes its place.
fn end(host: Host, spec: &LabSpec, rail: u8, generation: u8) -> String {
    let index = index(host, rail) + 1000 * u32::from(generation);
    let (nic, mac) = (nic(rail), mac(host, rail, generation));
    format!("name {nic} index {index} address {mac} mtu {}{}", spec.mtu, offload(spec))
}

/// Lays a rail anew that has been removed, from host to host, and waits until it carries traffic.
pub(crate) fn lay_anew(
    hosts: &[Arc<Namespace>; 2],
    spec: &LabSpec,
    rail: u8,
) -> Result<(), LabError> {
    let [a, b] = hosts;
    let [near, far] = [Host::A, Host::B].map(|host| end(host, spec, rail, 1));
    let pair = format!("link add {near} type veth peer {far} {}\n", in_namespace(b));
    ip(a, &[b], &pair)?;
    for (host, namespace) in [Host::A, Host::B].into_iter().zip(hosts) {
        ip(namespace, &[], &addresses_of(host, spec, rail))?;
    }
    for host in hosts {
        host.enter(|| wait_up(&nic(rail)))??;
    }
    Ok(())
}

/// Gives the hosts addresses and routes, and waits until all rails carry traffic.
pub(crate) fn bring_up(
    hosts: &[Arc<Namespace>; 2],
    switch: Option<&Arc<Namespace>>,
    spec: &LabSpec,
) -> Result<(), LabError> {
    for (host, namespace) in [Host::A, Host::B].into_iter().zip(hosts) {
        ip(namespace, &[], &addresses(host, spec))?;
    }
    for host in hosts {
        host.enter(|| (0..spec.rails).try_for_each(|rail| wait_up(&nic(rail))))??;
    }
    if let Some(switch) = switch {
        let ports = (0..spec.rails).flat_map(|rail| [port(Host::A, rail), port(Host::B, rail)]);
        switch.enter(|| ports.into_iter().try_for_each(|port| wait_up(&port)))??;
    }
    Ok(())
}

/// How a rail's end in a host is made so that packets are not larger than the wire's where a switch
/// drops them one by one.
fn offload(spec: &LabSpec) -> &'static str {
    if spec.loss > 0.0 || spec.passes.is_some() { " gso_max_segs 1" } else { "" }
}

/// The commands that give `host` its addresses and switch its interfaces on.
fn addresses(host: Host, spec: &LabSpec) -> String {
    let all = (0..spec.rails).map(|rail| addresses_of(host, spec, rail));
    std::iter::once("link set dev lo up\n".to_owned()).chain(all).collect()
}

/// The same for one rail.
fn addresses_of(host: Host, spec: &LabSpec, rail: u8) -> String {
    let (nic, address) = (nic(rail), address(spec, host, rail));
    format!(
        "link set dev {nic} addrgenmode none\naddr add {address}/24 dev {nic}\n\
         link set dev {nic} up\n{}",
        routes(host, spec, rail)
    )
}

/// The commands for the routes of `rail`; they go when its interface is switched off.
pub(crate) fn routes(host: Host, spec: &LabSpec, rail: u8) -> String {
    if !spec.routed {
        return String::new();
    }
    let (there, via) = (router(host.other(), rail), router(host, rail));
    let [x, y, z, _] = there.octets();
    format!("route replace {x}.{y}.{z}.0/24 via {via} dev {}\n", nic(rail))
}

/// The interface's index. Different in all namespaces, because the kernel reports the carrier of a
/// veth up to a second late where its peer has the same index.
pub(crate) fn index(host: Host, rail: u8) -> u32 {
    100 * (u32::from(host.index()) + 1) + u32::from(rail)
}

/// The switch's port towards `host`: `a0` for rail 0 and host a.
pub(crate) fn port(host: Host, rail: u8) -> String {
    let host = if host == Host::A { 'a' } else { 'b' };
    format!("{host}{rail}")
}

/// The index of [`port`].
pub(crate) fn port_index(host: Host, rail: u8) -> u32 {
    200 + index(host, rail)
}

/// A unicast, locally administered address: bridges drop frames from multicast sources.
fn mac(host: Host, rail: u8, generation: u8) -> String {
    format!("02:52:52:{generation:02x}:{rail:02x}:{:02x}", host.index() + 1)
}

/// Waits until `nic` of the calling thread's namespace can carry traffic.
pub(crate) fn wait_up(nic: &str) -> Result<(), LabError> {
    let path = format!("/sys/class/net/{nic}/operstate");
    let deadline = Instant::now() + Duration::from_secs(UP_WITHIN_S);
    loop {
        let state = fs::read_to_string(&path).map_err(LabError::os(format!("reading {path}")))?;
        if state.trim() == "up" {
            return Ok(());
        }
        if Instant::now() >= deadline {
            let state = state.trim().to_owned();
            return Err(LabError::Down { nic: nic.to_owned(), state, waited_s: UP_WITHIN_S });
        }
        thread::sleep(Duration::from_millis(1));
    }
}
