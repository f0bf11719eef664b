//! `node` and `service` of `fi_getinfo`, and where this host is reached.

use std::ffi::{CString, c_char};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use ringrail::settings::Settings;
use ringrail::topology;

use crate::errno::Errno;

/// The address of this host's first rail.
pub(super) fn own_address(settings: &Settings) -> Result<IpAddr, Errno> {
    // Errors are printed without `FI_LOG_LEVEL`, too. Loopback serves on a host without another
    // NIC, so a setting asks for what is not there, or a NIC is down.
    let refuse = |problem: String| {
        tracing::error!(
            "no NIC can be used, so ringrail is not offered: {problem}. FI_RINGRAIL_NICS or \
             RINGRAIL_NICS names those to use (`eth0`, `10.1.0.0/16`); without it all that are up \
             are"
        );
        Errno::NODATA
    };
    let selection = topology::select_when_up(settings, settings.connect_timeout());
    let selection = selection.map_err(|error| refuse(error.to_string()))?;
    selection.chosen().map(|(_, address)| address).ok_or(Errno::NODATA)
}

/// Whether a NIC of this host has it.
pub(super) fn is_here(address: IpAddr) -> bool {
    topology::nics().is_ok_and(|nics| {
        address.is_loopback() || nics.iter().any(|nic| nic.addresses.contains(&address))
    })
}

/// Resolves `node` and `service`; of several addresses the first of `family`, if that is given.
/// Without a node: the wildcard address.
pub(crate) fn resolve(
    node: Option<&str>,
    service: Option<&str>,
    is_numeric: bool,
    is_ipv6: Option<bool>,
) -> Result<SocketAddr, Errno> {
    let refuse = |what: &str| {
        tracing::info!(node, service, "{what}");
        Errno::NODATA
    };
    let c_text = |text: Option<&str>| text.map(CString::new).transpose().map_err(|_| Errno::INVAL);
    let (c_node, c_service) = (c_text(node)?, c_text(service)?);
    if c_node.is_none() && c_service.is_none() {
        return Err(Errno::INVAL);
    }
    // SAFETY: all zero is no hint.
    let mut hints: libc::addrinfo = unsafe { std::mem::zeroed() };
    hints.ai_flags = libc::AI_PASSIVE | if is_numeric { libc::AI_NUMERICHOST } else { 0 };
    hints.ai_socktype = libc::SOCK_STREAM;
    hints.ai_family = match is_ipv6 {
        None => libc::AF_UNSPEC,
        Some(false) => libc::AF_INET,
        Some(true) => libc::AF_INET6,
    };
    let as_ptr = |text: &Option<CString>| text.as_ref().map_or(std::ptr::null(), |it| it.as_ptr());
    let mut found = std::ptr::null_mut();
    let (node, service): (*const c_char, *const c_char) = (as_ptr(&c_node), as_ptr(&c_service));
    // SAFETY: texts end with a 0 or are null, one of the two is there.
    let answer = unsafe { libc::getaddrinfo(node, service, &raw const hints, &raw mut found) };
    if answer != 0 {
        return Err(refuse("node or service cannot be resolved"));
    }
    let mut places = Vec::new();
    let mut next = found;
    while !next.is_null() {
        // SAFETY: a list of `getaddrinfo`'s.
        let entry = unsafe { &*next };
        // SAFETY: of an entry.
        places.extend(unsafe { place_of(entry.ai_addr) });
        next = entry.ai_next;
    }
    // SAFETY: it came from `getaddrinfo`, and nothing of it is used below.
    unsafe { libc::freeaddrinfo(found) };
    places.sort_by_key(SocketAddr::is_ipv6);
    places.first().copied().ok_or_else(|| refuse("no address of IPv4 or IPv6"))
}

/// # Safety
///
/// It is null, or as long as addresses of its family are.
unsafe fn place_of(address: *const libc::sockaddr) -> Option<SocketAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: the caller guarantees it.
    match i32::from(unsafe { (*address).sa_family }) {
        libc::AF_INET => {
            // SAFETY: of this family.
            let it = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(it.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddr::new(ip.into(), u16::from_be(it.sin_port)))
        }
        libc::AF_INET6 => {
            // SAFETY: of this family.
            let it = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(it.sin6_addr.s6_addr);
            let port = u16::from_be(it.sin6_port);
            Some(SocketAddrV6::new(ip, port, 0, it.sin6_scope_id).into())
        }
        _ => None,
    }
}
