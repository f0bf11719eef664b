//! Look-up of the route to an address.

use std::fmt;
use std::io;
use std::net::IpAddr;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteMetric, RouteType, RouteVia,
};

use super::{NetlinkSocket, family, odd_answer};

/// How an address is reached from a NIC.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Route {
    /// It is an address of this NIC.
    Local,
    /// It is on a network of the NIC.
    Direct {
        /// Longest packet that the route takes, in bytes; `None`: as long as the NIC takes.
        mtu: Option<u32>,
        /// The NIC that the kernel uses for sockets that are not bound to one, if it is another
        /// one.
        usual_nic: Option<u32>,
    },
    /// It is reached through a router.
    Routed {
        /// The next router.
        gateway: IpAddr,
        /// Longest packet that the route takes, in bytes; `None`: as long as the NIC takes.
        mtu: Option<u32>,
        /// As for [`Self::Direct`].
        usual_nic: Option<u32>,
    },
    /// It is reached through this other NIC, and not from the requested one.
    OtherNic {
        /// Index of that NIC.
        nic_index: u32,
    },
    /// There is no route, or the route forbids it.
    Unreachable {
        /// The kernel's error.
        cause: String,
    },
}

impl Route {
    /// Returns whether packets from the NIC can be sent.
    pub fn leaves(&self) -> bool {
        matches!(self, Self::Local | Self::Direct { .. } | Self::Routed { .. })
    }
}

impl fmt::Display for Route {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local => out.write_str("local"),
            Self::Direct { .. } => out.write_str("direct"),
            Self::Routed { gateway, .. } => write!(out, "via {gateway}"),
            Self::OtherNic { nic_index } => write!(out, "by NIC {nic_index}"),
            Self::Unreachable { cause } => write!(out, "none ({cause})"),
        }
    }
}

/// The parameters of a look-up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Question {
    /// Unspecified for a socket that is bound to no address.
    pub(crate) from: IpAddr,
    pub(crate) to: IpAddr,
    /// The NIC that the socket is bound to, if any.
    pub(crate) bound_to: Option<u32>,
    /// Requests the table entry itself. Without it, the kernel reports any address as direct for a
    /// bound socket; with it, learned values (path MTU) are not reported.
    pub(crate) is_strict: bool,
}

/// The kernel's answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Found {
    pub(crate) kind: RouteType,
    /// Index of the NIC.
    pub(crate) leaves_by: Option<u32>,
    /// The source address that the kernel chooses if none was given.
    pub(crate) source: Option<IpAddr>,
    pub(crate) gateway: Option<IpAddr>,
    pub(crate) mtu: Option<u32>,
    /// The gateway is of another family, the route encapsulates packets, or there are several
    /// next hops to choose from (reported for table entries only).
    pub(crate) is_odd: bool,
}

/// Queries the kernel.
///
/// # Errors
///
/// The kernel's error, including that there is no route ([`is_no_way`]).
pub(crate) fn look_up(netlink: &mut NetlinkSocket, question: Question) -> io::Result<Found> {
    let Question { from, to, bound_to, is_strict } = question;
    let mut message = RouteMessage::default();
    message.header.address_family = family(to);
    message.header.destination_prefix_length = if to.is_ipv4() { 32 } else { 128 };
    if !from.is_unspecified() {
        message.header.source_prefix_length = message.header.destination_prefix_length;
    }
    if is_strict {
        message.header.flags |= RouteFlags::FibMatch;
    }
    message.attributes.push(RouteAttribute::Destination(to.into()));
    if !from.is_unspecified() {
        message.attributes.push(RouteAttribute::Source(from.into()));
    }
    if let Some(nic) = bound_to {
        message.attributes.push(RouteAttribute::Oif(nic));
    }
    let answer = netlink.ask(RouteNetlinkMessage::GetRoute(message))?;
    let RouteNetlinkMessage::NewRoute(route) = answer else { return Err(odd_answer()) };
    let kind = route.header.kind;
    let mut found =
        Found { kind, leaves_by: None, source: None, gateway: None, mtu: None, is_odd: false };
    for attribute in route.attributes {
        match attribute {
            RouteAttribute::Oif(index) => found.leaves_by = Some(index),
            RouteAttribute::PrefSource(RouteAddress::Inet(ip)) => found.source = Some(ip.into()),
            RouteAttribute::PrefSource(RouteAddress::Inet6(ip)) => found.source = Some(ip.into()),
            RouteAttribute::Gateway(RouteAddress::Inet(ip)) => found.gateway = Some(ip.into()),
            RouteAttribute::Gateway(RouteAddress::Inet6(ip)) => found.gateway = Some(ip.into()),
            RouteAttribute::Via(via) => {
                found.is_odd = true;
                found.gateway = match via {
                    RouteVia::Inet(ip) => Some(ip.into()),
                    RouteVia::Inet6(ip) => Some(ip.into()),
                    _ => None,
                };
            }
            RouteAttribute::Encap(_) | RouteAttribute::MultiPath(_) => found.is_odd = true,
            RouteAttribute::Metrics(metrics) => {
                found.mtu = metrics.into_iter().find_map(|metric| match metric {
                    RouteMetric::Mtu(bytes) if bytes > 0 => Some(bytes),
                    _ => None,
                });
            }
            _ => {}
        }
    }
    Ok(found)
}

/// Returns how `to` is reached from the NIC numbered `nic`, by sockets that are bound to it if
/// permitted, sending from its address `from`.
///
/// # Errors
///
/// The kernel's error, other than that there is no route.
pub(crate) fn find(
    netlink: &mut NetlinkSocket,
    nic: u32,
    from: IpAddr,
    to: IpAddr,
) -> io::Result<Route> {
    let usual = Question { from, to, bound_to: None, is_strict: false };
    let bound = Question { bound_to: Some(nic), ..usual };
    // A link-local address means nothing without a link.
    let needs_link = matches!(to, IpAddr::V6(v6) if v6.is_unicast_link_local());
    let mut is_ours = false;
    let (usual_nic, cause) = match no_way(look_up(netlink, if needs_link { bound } else { usual }))?
    {
        Ok(found) if !matches!(found.kind, RouteType::Unicast | RouteType::Local) => {
            return Ok(Route::Unreachable { cause: format!("{:?} route", found.kind) });
        }
        Ok(found) if found.kind == RouteType::Unicast && found.leaves_by == Some(nic) => {
            return Ok(route_of(found, None));
        }
        // The loopback has all local addresses.
        Ok(found) if found.kind == RouteType::Local && found.leaves_by == Some(nic) => {
            return Ok(Route::Local);
        }
        Ok(found) => {
            is_ours = found.kind == RouteType::Local;
            (found.leaves_by, "no NIC is named".to_owned())
        }
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            (None, format!("not from {from}"))
        }
        Err(error) => (None, error.to_string()),
    };
    let entry = no_way(look_up(netlink, Question { is_strict: true, ..bound }))?;
    match entry {
        // An address of another NIC cannot be reached by a socket that is bound to this one:
        // packets would leave the host and not return.
        Ok(entry) if entry.kind == RouteType::Local => return Ok(Route::Local),
        Ok(entry)
            if entry.kind == RouteType::Unicast && entry.leaves_by == Some(nic) && !is_ours =>
        {
            if let Ok(found) = no_way(look_up(netlink, bound))?
                && found.leaves_by == Some(nic)
            {
                return Ok(route_of(found, usual_nic));
            }
        }
        _ => {}
    }
    Ok(match usual_nic {
        Some(nic_index) => Route::OtherNic { nic_index },
        None => Route::Unreachable { cause },
    })
}

fn route_of(Found { gateway, mtu, .. }: Found, usual_nic: Option<u32>) -> Route {
    match gateway {
        Some(gateway) => Route::Routed { gateway, mtu, usual_nic },
        None => Route::Direct { mtu, usual_nic },
    }
}

/// Distinguishes a missing route from other errors.
fn no_way(found: io::Result<Found>) -> io::Result<Result<Found, io::Error>> {
    match found {
        Ok(found) => Ok(Ok(found)),
        Err(error) if is_no_way(&error) => Ok(Err(error)),
        Err(error) => Err(error),
    }
}

/// Returns whether the kernel reports that there is no route.
pub(crate) fn is_no_way(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(
            libc::ENETUNREACH
                | libc::EHOSTUNREACH
                | libc::EACCES
                | libc::EINVAL
                | libc::ESRCH
                | libc::EADDRNOTAVAIL
                | libc::ENODEV
                | libc::ENETDOWN
        )
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(nic: u32, from: &str, to: &str) -> Route {
        let mut netlink = NetlinkSocket::open().unwrap();
        find(&mut netlink, nic, from.parse().unwrap(), to.parse().unwrap()).unwrap()
    }

    #[test]
    fn addresses_of_a_nic_are_local_to_it() {
        assert_eq!(route(1, "127.0.0.1", "127.0.0.2"), Route::Local);
        // A socket that is bound to another NIC cannot reach it.
        let other = route(0x7fff_fff0, "127.0.0.1", "127.0.0.2");
        assert_eq!(other, Route::OtherNic { nic_index: 1 });
    }

    #[test]
    fn reserved_addresses_are_unreachable() {
        // Class E, and a source address that this host does not have.
        for (from, to) in [("127.0.0.1", "240.0.0.1"), ("192.0.2.77", "192.0.2.78")] {
            let route = route(0x7fff_fff0, from, to);
            assert!(matches!(route, Route::Unreachable { .. }), "{route:?}");
            assert!(!route.leaves() && route.to_string().starts_with("none ("), "{route}");
        }
    }

    #[test]
    fn one_socket_serves_both_families() {
        let mut netlink = NetlinkSocket::open().unwrap();
        let mut is_local = |from: &str, to: &str| {
            let found = find(&mut netlink, 1, from.parse().unwrap(), to.parse().unwrap());
            found.unwrap() == Route::Local
        };
        assert!(is_local("127.0.0.1", "127.0.0.1"));
        // A host may have no IPv6.
        if std::fs::read_to_string("/proc/net/if_inet6").is_ok_and(|text| text.contains(" lo")) {
            assert!(is_local("::1", "::1"));
        }
        assert!(is_local("127.0.0.1", "127.0.0.1"));
    }
}
