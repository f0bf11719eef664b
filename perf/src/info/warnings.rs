//! What keeps rails from working together, each with its cure.

use std::fmt;
use std::net::IpAddr;

use ringrail::topology::Nic;
use serde::Serialize;

use super::rails::{Row, Way};

/// A finding and its cure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Warning {
    finding: String,
    cure: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; cure: {}", self.finding, self.cure)
    }
}

/// All that can be said without asking the network. `sysctl` gives a setting of the kernel for
/// IPv4 on a NIC, or on `all`.
pub(super) fn warnings(
    nics: &[&Nic],
    rows: &[Row],
    peers: &[IpAddr],
    sysctl: impl Fn(&str, &str) -> Option<u32>,
) -> Vec<Warning> {
    let rails: Vec<&Row> = rows.iter().filter(|row| row.rail.is_some()).collect();
    let mut found = Vec::new();
    same_network(nics, &rails, sysctl, &mut found);
    lengths(&rails, peers, &mut found);
    reach(&rails, rows, peers, &mut found);
    found
}

/// Several rails on one network have one route, and by default one answers for the other: endpoints
/// mend that, which takes its time.
fn same_network(
    nics: &[&Nic],
    rails: &[&Row],
    sysctl: impl Fn(&str, &str) -> Option<u32>,
    found: &mut Vec<Warning>,
) {
    // For these two the kernel takes the larger one of the NIC's and that of all.
    let in_force = |nic: &str, name: &str| sysctl("all", name).max(sysctl(nic, name));
    for (at, one) in rails.iter().enumerate() {
        for other in &rails[at + 1..] {
            let (Some(address), Some(IpAddr::V4(_))) = (one.address, other.address) else {
                continue;
            };
            let nic = nics.iter().find(|nic| nic.name == other.nic);
            if one.nic == other.nic || !nic.is_some_and(|nic| nic.is_on_link(address)) {
                continue;
            }
            let (one, other) = (&one.nic, &other.nic);
            if [one, other].iter().any(|nic| in_force(nic, "arp_ignore") == Some(0)) {
                found.push(Warning {
                    finding: format!(
                        "{one} and {other} are on one network, and the kernel answers for the \
                         addresses of both by either (arp_ignore is 0): what peers send to the \
                         one may come in by the other, and first connections may take up to 3 s, \
                         until endpoints have told the network which is which"
                    ),
                    cure: "sysctl -w net.ipv4.conf.all.arp_ignore=1 \
                           net.ipv4.conf.all.arp_announce=2"
                        .into(),
                });
            }
            for nic in [one, other] {
                // One of the two has the route; which one may change.
                let cure = format!("sysctl -w net.ipv4.conf.{nic}.rp_filter=2");
                let is_known = found.iter().any(|warning| warning.cure == cure);
                if in_force(nic, "rp_filter") == Some(1) && nic != one && !is_known {
                    found.push(Warning {
                        finding: format!(
                            "{one} and {other} are on one network, and the kernel drops what comes \
                             in by a NIC that it would not send the answer by (rp_filter is 1): \
                             {nic} receives nothing"
                        ),
                        cure,
                    });
                }
            }
        }
    }
}

/// Rails, or routes, that do not take packets of one length.
fn lengths(rails: &[&Row], peers: &[IpAddr], found: &mut Vec<Warning>) {
    let known = || rails.iter().filter_map(|row| Some((row.mtu_bytes?, &row.nic)));
    // The first of the longest, and the first of the shortest.
    let longest = known().max_by_key(|(bytes, _)| *bytes);
    let shortest = known().min_by_key(|(bytes, _)| *bytes);
    if let (Some((most, long)), Some((least, short))) = (longest, shortest)
        && most != least
    {
        found.push(Warning {
            finding: format!(
                "rails have different MTUs ({long} has {most}, {short} has {least} bytes): long \
                 datagrams fit only some of them"
            ),
            cure: format!("ip link set dev {short} mtu {most}, if its network carries that"),
        });
    }
    for row in rails {
        for (way, peer) in row.routes.iter().zip(peers) {
            if let (Some(route), Some(nic)) = (way.mtu_bytes, row.mtu_bytes)
                && route < nic
            {
                found.push(Warning {
                    finding: format!(
                        "the route from {} to {peer} takes {route} bytes, the NIC {nic}: a part of \
                         the network on the way is narrower",
                        row.nic
                    ),
                    cure: format!(
                        "ip link set dev {} mtu {route}, or widen the network and then `ip route \
                         flush cache`",
                        row.nic
                    ),
                });
            }
        }
    }
}

/// Peers that no rail leads to, then [`lead_nowhere`].
fn reach(rails: &[&Row], rows: &[Row], peers: &[IpAddr], found: &mut Vec<Warning>) {
    for (at, peer) in peers.iter().enumerate() {
        let leads = |row: &Row| row.routes.get(at).is_some_and(|way| way.leaves());
        if rails.iter().any(|row| leads(row)) {
            continue;
        }
        let is_four = |address: IpAddr| address.is_ipv4();
        let family = rails.first().and_then(|row| row.address).map(is_four);
        let (more, cure) = match rows.iter().find(|row| leads(row)) {
            Some(row) => (
                format!(", but {} does, which is left out", row.nic),
                format!("set nics = {}, if the peer is to be reached by it", row.nic),
            ),
            None if family.is_some_and(|is_four| is_four != peer.is_ipv4()) => {
                let (ours, theirs) =
                    if peer.is_ipv4() { ("IPv6", "IPv4") } else { ("IPv4", "IPv6") };
                (
                    format!(": rails have {ours} addresses, and this is {theirs}"),
                    format!(
                        "use an {ours} address of the peer, or an {theirs} one as listen_address"
                    ),
                )
            }
            None => (String::new(), format!("`ip route get {peer}` must name a NIC of the rails")),
        };
        found.push(Warning { finding: format!("no rail leads to {peer}{more}"), cure });
    }
    lead_nowhere(rails, peers, found);
}

/// Rails that lead to no peer beside those that do. With fewer addresses of the peer than there are
/// rails the one that such a rail leads to was perhaps not named, and it is a good rail.
fn lead_nowhere(rails: &[&Row], peers: &[IpAddr], found: &mut Vec<Warning>) {
    let leads = |row: &Row| row.routes.iter().any(Way::leaves);
    if !rails.iter().any(|row| leads(row)) {
        return;
    }
    for row in rails.iter().filter(|row| !leads(row)) {
        let nic = &row.nic;
        let is_of_family =
            |peer: &&IpAddr| row.address.is_some_and(|ours| ours.is_ipv4() == peer.is_ipv4());
        let to: Vec<String> = peers.iter().filter(is_of_family).map(IpAddr::to_string).collect();
        let by = row.routes.iter().find_map(|way| way.unbound_by.as_deref());
        let by = by.map_or_else(String::new, |by| format!(" (the kernel sends there by {by})"));
        let finding = format!("{nic} has no route to {}{by}", to.join(" or "));
        found.push(match to.len() < rails.len() {
            true => Warning {
                finding,
                cure: format!(
                    "give the peer's other addresses, too (--peer A,B), for it may have one on the \
                     network of {nic}; if it has not, {nic} carries nothing to this peer, and \
                     nothing has to be done, or `ip route add` a route by {nic}"
                ),
            },
            false => Warning {
                finding: format!("{finding}: it carries nothing to this peer"),
                cure: format!(
                    "`ip route add` a route by {nic}, if its network leads there; leave it out \
                     (nics = !{nic}) if it leads to no other peer, either"
                ),
            },
        });
    }
}
