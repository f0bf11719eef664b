//! Which NICs are rails, which are not, how peers are reached by each, and what is in the way.

use std::fmt;
use std::io;
use std::net::IpAddr;

use ringrail::RailRole;
use ringrail::topology::{Candidate, Nic, Route, Routes, Selection};
use serde::Serialize;

use super::warnings::{Warning, warnings};

/// All candidates, as a table.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Candidates {
    /// Addresses that were asked for.
    pub(super) peers: Vec<IpAddr>,
    pub(super) rows: Vec<Row>,
    pub(super) warnings: Vec<Warning>,
}

/// A NIC by one address.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    /// Number of the rail that it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rail: Option<usize>,
    pub(super) nic: String,
    pub(super) address: Option<IpAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) prefix_bits: Option<u8>,
    pub(super) speed_mbps: Option<u32>,
    pub(super) mtu_bytes: Option<u32>,
    pub(super) numa_node: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) role: Option<&'static str>,
    pub(super) reason: String,
    /// To each of the peers, in their order.
    pub(super) routes: Vec<Way>,
}

/// A route, as far as it is known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Way {
    /// `local`, `direct`, `routed`, `other-nic`, `none` or `unknown`.
    pub(super) kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) gateway: Option<IpAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) mtu_bytes: Option<u32>,
    /// The NIC that the kernel takes for sockets that are not bound to this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) unbound_by: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cause: Option<String>,
}

impl Candidates {
    /// Asks the kernel of this network namespace.
    pub(super) fn gather(selection: &Selection, peers: &[IpAddr]) -> Result<Self, String> {
        let mut routes = Routes::open().map_err(|error| format!("no netlink socket: {error}"))?;
        let mut of_host = |nic: u32, from, to| routes.find(nic, from, to);
        Ok(Self::of(selection, peers, &mut of_host, sysctl))
    }

    fn of(
        selection: &Selection,
        peers: &[IpAddr],
        route: &mut dyn FnMut(u32, IpAddr, IpAddr) -> io::Result<Route>,
        sysctl: impl Fn(&str, &str) -> Option<u32>,
    ) -> Self {
        let nics: Vec<&Nic> = selection.candidates.iter().map(|one| &one.nic).collect();
        let mut rows = Vec::new();
        for candidate in &selection.candidates {
            for (rail, address) in addresses(candidate, selection) {
                let mut row = Row::of(candidate, rail, address);
                let role = rail.and_then(|rail| selection.rails.get(rail)).map(|rail| rail.role);
                row.role = role.map(role_name);
                if let Some(from) = address {
                    let ways = peers.iter().map(|to| match from.is_ipv4() == to.is_ipv4() {
                        true if is_ours(&nics, *to) => Way::new("local", ""),
                        true => Way::of(route(candidate.nic.index, from, *to), &nics),
                        false => Way::new("none", "another address family"),
                    });
                    row.routes = ways.collect();
                }
                rows.push(row);
            }
        }
        rows.sort_by_key(|row| row.rail.unwrap_or(usize::MAX));
        let warnings = warnings(&nics, &rows, peers, sysctl);
        Self { peers: peers.to_vec(), rows, warnings }
    }
}

/// Whether a NIC of this host has the address. The kernel says that only the loopback leads there,
/// and endpoints bind what goes there to no NIC. What is the loopback's own they do bind.
fn is_ours(nics: &[&Nic], to: IpAddr) -> bool {
    !to.is_loopback() && nics.iter().any(|nic| nic.addresses.contains(&to))
}

/// What a candidate is shown by: its rails, or the first of its addresses.
fn addresses(candidate: &Candidate, selection: &Selection) -> Vec<(Option<usize>, Option<IpAddr>)> {
    if candidate.rails.is_empty() {
        return vec![(None, candidate.nic.addresses.first().copied())];
    }
    let address = |rail: &usize| selection.rails.get(*rail).map(|rail| rail.address);
    candidate.rails.iter().map(|rail| (Some(*rail), address(rail))).collect()
}

/// A role as the settings have it.
fn role_name(role: RailRole) -> &'static str {
    match role {
        RailRole::Preferred => "preferred",
        RailRole::Ordinary => "ordinary",
        RailRole::Backup => "backup",
        _ => "unknown",
    }
}

/// A setting of the kernel for IPv4 on one NIC, or on `all`.
fn sysctl(nic: &str, name: &str) -> Option<u32> {
    super::read(&format!("/proc/sys/net/ipv4/conf/{nic}/{name}"))?.parse().ok()
}

impl Row {
    fn of(candidate: &Candidate, rail: Option<usize>, address: Option<IpAddr>) -> Self {
        let nic = &candidate.nic;
        Self {
            rail,
            nic: nic.name.clone(),
            address,
            prefix_bits: address.and_then(|address| nic.prefix_of(address)),
            speed_mbps: nic.speed_mbps,
            mtu_bytes: nic.mtu,
            numa_node: nic.numa_node,
            role: None,
            reason: candidate.reason.clone(),
            routes: Vec::new(),
        }
    }

    /// Its cells, in the order of the heading.
    fn cells(&self) -> Vec<String> {
        let number = |value: Option<u32>| value.map_or_else(|| "-".into(), |it| it.to_string());
        let rail = match (self.rail, self.role) {
            (Some(rail), Some(role @ ("preferred" | "backup"))) => format!("{rail} {role}"),
            (Some(rail), _) => rail.to_string(),
            (None, _) => "-".into(),
        };
        let address = match (self.address, self.prefix_bits) {
            (Some(address), Some(bits)) => format!("{address}/{bits}"),
            (Some(address), None) => address.to_string(),
            (None, _) => "-".into(),
        };
        let facts = [self.speed_mbps, self.mtu_bytes, self.numa_node].map(number);
        let mut cells = vec![rail, self.nic.clone(), address];
        cells.extend(facts);
        cells.extend(self.routes.iter().map(ToString::to_string));
        cells
    }
}

impl Way {
    fn new(kind: &'static str, cause: &str) -> Self {
        let cause = (!cause.is_empty()).then(|| cause.to_owned());
        Self { kind, gateway: None, mtu_bytes: None, unbound_by: None, cause }
    }

    fn of(route: io::Result<Route>, nics: &[&Nic]) -> Self {
        let name = |index: u32| match nics.iter().find(|nic| nic.index == index) {
            Some(nic) => nic.name.clone(),
            None => format!("NIC {index}"),
        };
        match route {
            Ok(Route::Local) => Self::new("local", ""),
            Ok(Route::Direct { mtu, usual_nic }) => {
                let unbound_by = usual_nic.map(name);
                Self { mtu_bytes: mtu, unbound_by, ..Self::new("direct", "") }
            }
            Ok(Route::Routed { gateway, mtu, usual_nic }) => Self {
                gateway: Some(gateway),
                mtu_bytes: mtu,
                unbound_by: usual_nic.map(name),
                ..Self::new("routed", "")
            },
            Ok(Route::OtherNic { nic_index }) => {
                Self { unbound_by: Some(name(nic_index)), ..Self::new("other-nic", "") }
            }
            Ok(Route::Unreachable { cause }) => Self::new("none", &cause),
            // A way that this program does not know yet.
            Ok(other) => Self::new("unknown", &other.to_string()),
            Err(error) => Self::new("unknown", &error.to_string()),
        }
    }

    /// Whether packets from the NIC get on their way.
    pub(super) fn leaves(&self) -> bool {
        matches!(self.kind, "local" | "direct" | "routed")
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.kind, self.gateway, &self.unbound_by) {
            ("routed", Some(gateway), _) => write!(f, "via {gateway}")?,
            ("other-nic", _, Some(nic)) => write!(f, "no, only by {nic}")?,
            (kind, ..) => f.write_str(kind)?,
        }
        if let Some(bytes) = self.mtu_bytes {
            write!(f, ", MTU {bytes}")?;
        }
        match &self.cause {
            Some(cause) => write!(f, " ({cause})"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Candidates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut heading: Vec<String> =
            ["rail", "NIC", "address", "Mb/s", "MTU", "NUMA"].map(str::to_owned).into();
        heading.extend(self.peers.iter().map(|peer| format!("to {peer}")));
        let mut table = vec![heading];
        table.extend(self.rows.iter().map(Row::cells));
        let columns = table.first().map_or(0, Vec::len);
        let width = |column: usize| {
            let cells = table.iter().filter_map(|cells| cells.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for cells in &table {
            let padded = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
            writeln!(f, "  {}", padded.collect::<Vec<_>>().join("  ").trim_end())?;
        }
        for row in &self.rows {
            let verdict = if row.rail.is_some() { "chosen" } else { "rejected" };
            writeln!(f, "  {}: {verdict}: {}", row.nic, row.reason)?;
        }
        for warning in &self.warnings {
            writeln!(f, "  warning: {warning}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ringrail::settings::Settings;
    use ringrail::topology::select;

    use super::*;

    fn nic(index: u32, name: &str, addresses: &[&str]) -> Nic {
        Nic {
            name: name.into(),
            index,
            addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
            prefixes: vec![24; addresses.len()],
            up: true,
            loopback: false,
            virtual_: name.starts_with("docker").then(|| "a bridge".into()),
            speed_mbps: Some(10_000),
            mtu: Some(1500),
            numa_node: None,
        }
    }

    /// The table for these peers, where a NIC reaches what `way` says.
    fn table(
        nics: &[Nic],
        peers: &[&str],
        mut way: impl FnMut(u32) -> Route,
        sysctls: &[(&str, u32)],
    ) -> Candidates {
        let selection = select(nics, &Settings::default()).unwrap();
        let peers: Vec<IpAddr> = peers.iter().map(|peer| peer.parse().unwrap()).collect();
        let sysctl = |_: &str, name: &str| {
            sysctls.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
        };
        Candidates::of(&selection, &peers, &mut |nic, _, _| Ok(way(nic)), sysctl)
    }

    const DIRECT: Route = Route::Direct { mtu: None, usual_nic: None };
    const CLEAN: [(&str, u32); 2] = [("arp_ignore", 1), ("rp_filter", 0)];

    fn only_by(nic_index: u32) -> Route {
        Route::OtherNic { nic_index }
    }

    #[test]
    fn rails_stand_first_with_their_routes() {
        let nics = [
            nic(2, "docker0", &["172.17.0.1"]),
            nic(3, "rail0", &["10.0.0.1"]),
            Nic { speed_mbps: Some(25_000), numa_node: Some(1), ..nic(4, "rail1", &["10.0.1.1"]) },
            nic(5, "eth9", &[]),
        ];
        let way = |nic| if nic == 3 { DIRECT } else { only_by(3) };
        let table = table(&nics, &["10.0.0.2"], way, &CLEAN);
        let text = table.to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "  rail  NIC      address        Mb/s   MTU   NUMA  to 10.0.0.2");
        assert_eq!(
            lines[1],
            "  0     rail1    10.0.1.1/24    25000  1500  1     no, only by rail0"
        );
        assert_eq!(lines[2], "  1     rail0    10.0.0.1/24    10000  1500  -     direct");
        assert!(lines[3].starts_with("  -     docker0  172.17.0.1/24"), "{text}");
        assert!(lines[4].starts_with("  -     eth9     -  "), "{text}");
        assert!(text.contains("docker0: rejected: virtual (a bridge); set nics"), "{text}");
        assert!(text.contains("warning: rail1 has no route to 10.0.0.2 (the kernel"), "{text}");
        let json = serde_json::to_value(&table).unwrap();
        assert_eq!(json["rows"][0]["routes"][0]["kind"], "other-nic");
        assert_eq!(json["rows"][0]["routes"][0]["unbound_by"], "rail0");
        assert_eq!(json["rows"][1]["rail"], 1);
        assert!(json["rows"][2].get("rail").is_none());
    }

    #[test]
    fn nothing_is_warned_of_where_all_is_well() {
        let nics = [nic(3, "rail0", &["10.0.0.1"]), nic(4, "rail1", &["10.0.1.1"])];
        // Each rail leads to one of the peer's.
        let mut asked = 0;
        let way = |_| {
            asked += 1;
            if matches!(asked, 1 | 4) { DIRECT } else { only_by(9) }
        };
        let table = table(&nics, &["10.0.0.2", "10.0.1.2"], way, &[("rp_filter", 1)]);
        assert!(table.warnings.is_empty(), "{table}");
        assert!(table.to_string().contains("no, only by NIC 9"), "{table}");
    }

    fn warned(table: &Candidates, parts: &[&str]) {
        let texts: Vec<String> = table.warnings.iter().map(ToString::to_string).collect();
        let is_there = texts.iter().any(|text| parts.iter().all(|part| text.contains(part)));
        assert!(is_there, "{parts:?} in {texts:?}");
    }

    /// A peer of two rails by one of its addresses: the rail to the other one is as good.
    #[test]
    fn a_rail_is_left_out_only_where_all_addresses_of_the_peer_are_known() {
        let nics = [nic(3, "rail0", &["10.0.0.1"]), nic(4, "rail1", &["10.0.1.1"])];
        let way = |nic| if nic == 3 { DIRECT } else { only_by(3) };
        let one = table(&nics, &["10.0.0.2", "fd00::2"], way, &CLEAN);
        warned(&one, &["rail1 has no route to 10.0.0.2 (", "by rail0)", "--peer A,B"]);
        let text = one.to_string();
        assert!(!text.contains("!rail1") && !text.contains("or fd00::2"), "{text}");
        let both = table(&nics, &["10.0.0.2", "10.0.9.2"], way, &CLEAN);
        warned(&both, &["rail1 has no route to 10.0.0.2 or 10.0.9.2", "ip route add", "!rail1"]);
        assert!(!both.to_string().contains("--peer"), "{both}");
        assert_eq!(both.warnings.len(), 1, "{both}");
    }

    #[test]
    fn addresses_of_this_host_are_local_to_all_its_nics() {
        let nics = [
            nic(2, "docker0", &["172.17.0.1"]),
            nic(3, "rail0", &["10.0.0.1"]),
            nic(4, "rail1", &["10.0.1.1", "10.0.1.9"]),
        ];
        // What the kernel says of each: only the loopback leads there.
        for peer in ["10.0.0.1", "10.0.1.9", "172.17.0.1"] {
            let table = table(&nics, &[peer], |_| only_by(1), &CLEAN);
            let is_local = |row: &Row| row.routes.iter().all(|way| way.kind == "local");
            assert!(table.rows.iter().all(is_local) && table.warnings.is_empty(), "{table}");
        }
        // Endpoints bind what goes there to the rail, and it does not get there.
        let lo = Nic { loopback: true, ..nic(1, "lo", &["127.0.0.1"]) };
        let nics = [&[lo][..], &nics].concat();
        let table = table(&nics, &["127.0.0.1"], |_| only_by(1), &CLEAN);
        assert!(table.to_string().contains("no, only by lo"), "{table}");
    }

    #[test]
    fn two_rails_on_one_network_need_the_kernel_to_keep_them_apart() {
        let nics = [nic(3, "rail0", &["10.0.0.1"]), nic(4, "rail1", &["10.0.0.9"])];
        let way = |nic| match nic {
            3 => DIRECT,
            _ => Route::Direct { mtu: None, usual_nic: Some(3) },
        };
        let bad = table(&nics, &["10.0.0.2"], way, &[("arp_ignore", 0), ("rp_filter", 1)]);
        warned(&bad, &["rail0 and rail1 are on one network", "arp_ignore=1", "arp_announce=2"]);
        warned(&bad, &["rail1", "rp_filter=2"]);
        assert_eq!(bad.warnings.len(), 2, "{bad}");
        assert!(table(&nics, &["10.0.0.2"], way, &CLEAN).warnings.is_empty());
        // Nobody tells: nothing is claimed.
        assert!(table(&nics, &[], way, &[]).warnings.is_empty());
    }

    #[test]
    fn packets_of_different_lengths_are_told() {
        let jumbo = Nic { mtu: Some(9000), ..nic(3, "rail0", &["10.0.0.1"]) };
        let nics = [jumbo, nic(4, "rail1", &["10.0.1.1"])];
        let way = |_| Route::Direct { mtu: Some(1400), usual_nic: None };
        let table = table(&nics, &["10.0.0.2"], way, &CLEAN);
        warned(&table, &["rail0 has 9000", "rail1 has 1500", "ip link set dev rail1 mtu 9000"]);
        warned(&table, &["rail0", "10.0.0.2", "1400", "9000"]);
        assert!(table.to_string().contains("direct, MTU 1400"), "{table}");
    }

    #[test]
    fn a_peer_beyond_a_nic_that_was_left_out_names_it() {
        let nics = [nic(2, "docker0", &["172.17.0.1"]), nic(3, "rail0", &["10.0.0.1"])];
        let none = Route::Unreachable { cause: "Network is unreachable".into() };
        let way = |nic| if nic == 2 { DIRECT } else { none.clone() };
        let table = table(&nics, &["172.17.0.5"], way, &CLEAN);
        warned(&table, &["no rail leads to 172.17.0.5", "docker0 does", "nics = docker0"]);
        let nowhere = self::table(&nics, &["10.9.9.9", "fd00::1"], |_| none.clone(), &CLEAN);
        warned(&nowhere, &["no rail leads to 10.9.9.9", "ip route get 10.9.9.9"]);
        warned(&nowhere, &["no rail leads to fd00::1", "IPv6"]);
    }
}
