//! The NICs of this network namespace.
//!
//! `/proc/net` always shows the namespace of the reading thread, `/sys/class/net` that of
//! the process that mounted `/sys`. So names come from `/proc/net/dev`, addresses from
//! `getifaddrs`, and `/sys` is used only where the interface index agrees.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::Path;

use if_addrs::IfAddr;
use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::{Nic, address_rank};
use crate::refused_call::if_refused;

/// Why the NICs of this host could not be listed.
#[derive(Debug, thiserror::Error)]
#[error("cannot list network interfaces: {what}: {source}; is /proc mounted here?")]
pub struct DiscoveryError {
    what: &'static str,
    source: io::Error,
}

/// Bits of `/sys/class/net/*/flags`, from `linux/if.h`.
const IFF_UP: u32 = 1;

/// Every NIC of this network namespace, by index, including those that will not do.
///
/// # Errors
/// The system does not list its interfaces. Details of a single NIC that cannot be had are left
/// out instead.
pub fn nics() -> Result<Vec<Nic>, DiscoveryError> {
    let wrap = |what| move |source| DiscoveryError { what, source };
    let table =
        fs::read_to_string("/proc/net/dev").map_err(wrap("/proc/net/dev cannot be read"))?;
    let interfaces = if_addrs::get_if_addrs().map_err(if_refused("getifaddrs")).map_err(wrap(
        "getifaddrs failed (it needs the calls socket, bind, sendto and recvmsg for netlink)",
    ))?;
    let any_socket =
        socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
            .map_err(io::Error::from)
            .map_err(wrap("no socket to ask by"))?;

    let mut found: BTreeMap<String, Addresses> =
        device_names(&table).map(|name| (name.into(), Addresses::default())).collect();
    for interface in interfaces {
        // An alias (`eth0:1`) has no device of its own: its address belongs to the device.
        let device = interface.name.split(':').next().unwrap_or(&interface.name);
        let entry = found.entry(device.into()).or_default();
        entry.running |= interface.is_oper_up();
        entry.loopback |= interface.is_loopback();
        let bits = match &interface.addr {
            IfAddr::V4(v4) => v4.prefixlen,
            IfAddr::V6(v6) => v6.prefixlen,
        };
        entry.addresses.push((interface.ip(), bits));
    }
    let mut nics: Vec<Nic> = found
        .into_iter()
        .filter_map(|(name, addresses)| {
            // Removed meanwhile.
            let index = name_to_index(&any_socket, &name).ok()?;
            Some(describe(name, index, addresses, Path::new("/sys/class/net")))
        })
        .collect();
    nics.sort_by_key(|nic| nic.index);
    Ok(nics)
}

#[derive(Default)]
struct Addresses {
    /// Each with the bits of its network.
    addresses: Vec<(IpAddr, u8)>,
    running: bool,
    loopback: bool,
}

/// The names in `/proc/net/dev`: two lines of headings, then `name: counters`.
fn device_names(table: &str) -> impl Iterator<Item = &str> {
    table.lines().skip(2).filter_map(|line| Some(line.rsplit_once(':')?.0.trim()))
}

/// One number or word of `/sys`.
fn read<T: std::str::FromStr>(directory: &Path, file: &str) -> Option<T> {
    fs::read_to_string(directory.join(file)).ok()?.trim().parse().ok()
}

fn describe(name: String, index: u32, found: Addresses, sys: &Path) -> Nic {
    let mut addresses = found.addresses;
    addresses.sort_by_key(|(address, _)| address_rank(address));
    addresses.dedup_by_key(|(address, _)| *address);
    let (addresses, prefixes) = addresses.into_iter().unzip();
    let directory = sys.join(&name);
    let ours = read(&directory, "ifindex") == Some(index);
    let sysfs = ours.then_some(directory.as_path());
    let up = match sysfs {
        Some(sysfs) => {
            let state: String = read(sysfs, "operstate").unwrap_or_default();
            let flags = fs::read_to_string(sysfs.join("flags")).unwrap_or_default();
            let flags = u32::from_str_radix(flags.trim().trim_start_matches("0x"), 16);
            // Loopback, tunnels and some virtual drivers always report `unknown`.
            flags.is_ok_and(|flags| flags & IFF_UP != 0)
                && matches!(state.as_str(), "up" | "unknown")
        }
        None => found.running,
    };
    // The MTU can be read by name elsewhere too, in the right namespace.
    let mtu = sysfs
        .and_then(|sysfs| read(sysfs, "mtu"))
        .or_else(|| read(&Path::new("/proc/sys/net/ipv6/conf").join(&name), "mtu"));
    Nic {
        loopback: found.loopback || name == "lo",
        up,
        virtual_: virtual_reason(&name, sysfs),
        // Drivers without a speed report -1 or an error; 0 and the unsigned -1 mean no link.
        speed_mbps: sysfs
            .and_then(|sysfs| read::<i64>(sysfs, "speed"))
            .and_then(|speed| u32::try_from(speed).ok())
            .filter(|speed| *speed != 0 && *speed != u32::MAX),
        numa_node: sysfs.and_then(|sysfs| numa_node(sysfs, LAYERS_MAX)),
        mtu,
        name,
        index,
        addresses,
        prefixes,
    }
}

/// The largest depth of bundles and VLANs; real networks have fewer layers.
const LAYERS_MAX: u32 = 4;

/// Returns the NUMA node of a NIC's hardware, or of the hardware below it.
fn numa_node(sysfs: &Path, layers: u32) -> Option<u32> {
    if sysfs.join("device").exists() {
        // For a virtio NIC, the parent device has it. -1: the host has no NUMA nodes.
        let node_of =
            |file: &str| read::<i64>(sysfs, file).and_then(|node| u32::try_from(node).ok());
        return node_of("device/numa_node").or_else(|| node_of("device/../numa_node"));
    }
    let entries = fs::read_dir(sysfs).ok().filter(|_| layers > 0)?;
    let lower =
        entries.flatten().filter(|it| it.file_name().as_encoded_bytes().starts_with(b"lower_"));
    let mut nodes = lower.map(|entry| numa_node(&entry.path(), layers - 1));
    let first = nodes.next()??;
    nodes.all(|node| node == Some(first)).then_some(first)
}

/// Names that container and virtual-machine tools give to what they make.
const TOOL_NAMES: [(&str, &str); 16] = [
    ("docker", "Docker"),
    ("br-", "Docker"),
    ("veth", "a container tool"),
    ("virbr", "libvirt"),
    ("vnet", "libvirt"),
    ("cni", "a container network"),
    ("flannel", "flannel"),
    ("cali", "Calico"),
    ("cilium", "Cilium"),
    ("lxc", "LXC or Cilium"),
    ("lxdbr", "LXD"),
    ("podman", "Podman"),
    ("kube-", "Kubernetes"),
    ("tailscale", "Tailscale"),
    ("weave", "Weave"),
    ("vmnet", "VMware"),
];

/// Kinds of interface that do not lead to a wire directly: `DEVTYPE` of `uevent`.
const DETOURS: [&str; 9] =
    ["bridge", "vxlan", "geneve", "gre", "gretap", "wireguard", "ppp", "wwan", "sit"];

/// Default interface names of drivers, for hosts where `/sys` has no information.
const DRIVER_NAMES: [(&str, &str); 7] = [
    ("dummy", "a dummy interface"),
    ("ifb", "a queueing helper"),
    ("tun", "a tunnel"),
    ("tap", "a tap device"),
    ("wg", "a WireGuard tunnel"),
    ("sit", "a tunnel"),
    ("ppp", "a point-to-point link"),
];

/// Returns why a NIC is not used unless named.
fn virtual_reason(name: &str, sysfs: Option<&Path>) -> Option<String> {
    if let Some(sysfs) = sysfs {
        // Only hardware, pass-through or paravirtual, hangs below a bus.
        if sysfs.join("device").exists() {
            return None;
        }
        if sysfs.join("tun_flags").exists() {
            return Some("a tunnel or tap device".into());
        }
        let uevent = fs::read_to_string(sysfs.join("uevent")).unwrap_or_default();
        let kind = uevent.lines().find_map(|line| line.strip_prefix("DEVTYPE="));
        if let Some(kind) = kind.filter(|kind| DETOURS.contains(kind)) {
            return Some(match tool(name) {
                Some(tool) => format!("a {kind}, by its name of {tool}"),
                None => format!("a {kind}"),
            });
        }
    }
    if let Some(tool) = tool(name) {
        return Some(format!("by its name made by {tool}"));
    }
    let numbered = |prefix: &str| {
        let number = name.strip_prefix(prefix);
        number.is_some_and(|number| {
            !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit())
        })
    };
    DRIVER_NAMES
        .iter()
        .find(|(prefix, _)| numbered(prefix))
        .map(|(_, what)| format!("by its name {what}"))
}

fn tool(name: &str) -> Option<&'static str> {
    TOOL_NAMES.iter().find(|(prefix, _)| name.starts_with(prefix)).map(|(_, tool)| *tool)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_has_a_loopback() {
        let nics = nics().unwrap();
        let loopback = nics.iter().find(|nic| nic.name == "lo").expect("every namespace has lo");
        assert!(loopback.loopback && loopback.index > 0);
        assert!(nics.windows(2).all(|pair| pair[0].index < pair[1].index));
        if loopback.up {
            assert!(loopback.mtu.is_some_and(|mtu| mtu > 0));
            assert_eq!(loopback.prefix_of("127.0.0.1".parse().unwrap()), Some(8));
        }
    }

    #[test]
    fn names_are_read_from_the_table() {
        let table = "Inter-|   Receive\n face |bytes\n    lo: 1 2 3\n  eth0:12 0\nrail0.7: 0\n";
        assert_eq!(device_names(table).collect::<Vec<_>>(), ["lo", "eth0", "rail0.7"]);
        assert_eq!(device_names("").count(), 0);
    }

    /// Lays out a `/sys/class/net` with one NIC in it.
    fn sysfs(name: &str, files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join(name)).unwrap();
        for (file, text) in files {
            fs::write(root.path().join(name).join(file), text).unwrap();
        }
        root
    }

    const UP: [(&str, &str); 4] =
        [("ifindex", "7\n"), ("flags", "0x1003\n"), ("operstate", "up\n"), ("mtu", "9000\n")];

    #[test]
    fn hardware_is_distinguished_from_virtual_nics() {
        let with = |name: &str, more: &[(&str, &str)]| {
            let root = sysfs(name, &[&UP[..], more].concat());
            describe(name.into(), 7, Addresses::default(), root.path())
        };
        let hardware = with("eth0", &[("device", ""), ("speed", "25000\n")]);
        assert!(hardware.up && hardware.virtual_.is_none());
        assert_eq!((hardware.speed_mbps, hardware.mtu), (Some(25_000), Some(9000)));
        // Hardware is not virtual, whatever its name.
        assert_eq!(with("vnet0", &[("device", "")]).virtual_, None);
        assert_eq!(with("rail0", &[("speed", "-1\n")]).virtual_, None);
        assert_eq!(with("rail0", &[("speed", "-1\n")]).speed_mbps, None);
        assert_eq!(with("bond0", &[("uevent", "DEVTYPE=bond\n")]).virtual_, None);
        assert_eq!(with("eth0.7", &[("uevent", "DEVTYPE=vlan\n")]).virtual_, None);
        for (name, file, text) in [
            ("lan", "uevent", "INTERFACE=lan\nDEVTYPE=bridge\n"),
            ("home", "tun_flags", "0x1"),
            ("docker0", "uevent", "DEVTYPE=bridge\n"),
            ("vethab12", "uevent", ""),
            ("dummy0", "uevent", ""),
        ] {
            assert!(with(name, &[(file, text)]).virtual_.is_some(), "{name}");
        }
    }

    #[test]
    fn the_numa_node_is_that_of_the_hardware() {
        let root = sysfs("eth0", &UP);
        let net = root.path();
        let node = |name: &str| {
            fs::write(net.join(name).join("ifindex"), "7\n").unwrap();
            describe(name.into(), 7, Addresses::default(), net).numa_node
        };
        assert_eq!(node("eth0"), None);
        for (device, text) in [("pci0", "1\n"), ("pci0/virtio0", ""), ("pci1", "-1\n")] {
            fs::create_dir(net.join(device)).unwrap();
            fs::write(net.join(device).join("numa_node"), text).unwrap();
        }
        std::os::unix::fs::symlink(net.join("pci0"), net.join("eth0/device")).unwrap();
        assert_eq!(node("eth0"), Some(1));
        for (name, device) in [("eth1", "pci0/virtio0"), ("eth2", "pci1")] {
            fs::create_dir(net.join(name)).unwrap();
            std::os::unix::fs::symlink(net.join(device), net.join(name).join("device")).unwrap();
        }
        assert_eq!((node("eth1"), node("eth2")), (Some(1), None));
        // A VLAN of a bundle, and a bundle over two nodes.
        for (name, lower) in [("bond0", "eth0"), ("bond0", "eth1"), ("bond0.7", "bond0")] {
            let _ = fs::create_dir(net.join(name));
            let link = net.join(name).join(format!("lower_{lower}"));
            std::os::unix::fs::symlink(net.join(lower), link).unwrap();
        }
        assert_eq!((node("bond0"), node("bond0.7")), (Some(1), Some(1)));
        std::os::unix::fs::symlink(net.join("eth2"), net.join("bond0/lower_eth2")).unwrap();
        assert_eq!((node("bond0"), node("bond0.7")), (None, None));
        // A cycle terminates.
        fs::create_dir(net.join("eth3")).unwrap();
        std::os::unix::fs::symlink(net.join("eth3"), net.join("eth3/lower_eth3")).unwrap();
        assert_eq!(node("eth3"), None);
    }

    #[test]
    fn a_nic_without_carrier_or_switched_off_is_down() {
        for (file, text) in [("operstate", "down\n"), ("flags", "0x1002\n"), ("flags", "junk")] {
            let root = sysfs("eth0", &UP);
            fs::write(root.path().join("eth0").join(file), text).unwrap();
            assert!(!describe("eth0".into(), 7, Addresses::default(), root.path()).up, "{text}");
        }
    }

    #[test]
    fn sysfs_of_another_namespace_is_ignored() {
        let root = sysfs("eth0", &[&UP[..], &[("speed", "10")]].concat());
        let found = Addresses { running: false, ..Addresses::default() };
        let nic = describe("eth0".into(), 8, found, root.path());
        assert!(!nic.up);
        assert_eq!(nic.speed_mbps, None);
    }

    #[test]
    fn virtual_nic_is_detected_by_name_without_sysfs() {
        for name in ["docker0", "br-12ab", "virbr0", "cni0", "flannel.1", "vetha1", "tun3"] {
            assert!(virtual_reason(name, None).is_some(), "{name}");
        }
        for name in ["eth0", "rail0", "enp3s0f1np1", "ib0", "tunnelling", "bond0"] {
            assert_eq!(virtual_reason(name, None), None, "{name}");
        }
    }

    #[test]
    fn most_useful_address_comes_first() {
        let texts = [("fe80::1", 64), ("169.254.1.1", 16), ("fd00::1", 48), ("10.0.0.1", 8)];
        let addresses = texts.iter().map(|(text, bits)| (text.parse().unwrap(), *bits)).collect();
        let found = Addresses { addresses, ..Addresses::default() };
        let nic = describe("x".into(), 1, found, Path::new("/nonexistent"));
        let shown: Vec<_> = nic.addresses.iter().map(IpAddr::to_string).collect();
        assert_eq!(shown, ["10.0.0.1", "fd00::1", "169.254.1.1", "fe80::1"]);
        assert_eq!(nic.prefixes, [8, 48, 16, 64]);
        assert_eq!(nic.prefix_of("fd00::1".parse().unwrap()), Some(48));
        assert_eq!(nic.prefix_of("fd00::2".parse().unwrap()), None);
        assert!(nic.is_on_link("10.200.0.1".parse().unwrap()));
        assert!(!nic.is_on_link("11.0.0.1".parse().unwrap()));
    }
}
