//! `fi_getinfo`: what is offered, and what of it an application gets.
//!
//! There is one info for all rails of the host together: MPI takes each info for a NIC, and one of
//! them for a rank.

mod alter;
mod check;
mod given;
mod memory;
pub(crate) mod offer;
pub(crate) mod places;
#[cfg(test)]
mod tests;

use std::ffi::{c_char, c_int};
use std::net::{IpAddr, SocketAddr};

use ringrail::settings::Settings;

pub(crate) use given::{Given, text};
use offer::Offer;

use crate::abi::consts::*;
use crate::abi::fids::fid;
use crate::abi::info::fi_info;
use crate::address::{Encoded, Format, Location};
use crate::errno::Errno;
use crate::params;

/// A request of an application.
pub(crate) struct Question<'a> {
    pub(crate) api_version: u32,
    pub(crate) node: Option<&'a str>,
    pub(crate) service: Option<&'a str>,
    pub(crate) flags: u64,
    pub(crate) hints: Option<&'a Given>,
}

/// The kinds of endpoints that there are, the usual one first.
const KINDS: [c_int; 2] = [FI_EP_RDM, FI_EP_MSG];

impl Question<'_> {
    /// The infos that answer it.
    fn answers(&self) -> Result<Vec<Offer>, Errno> {
        if self.flags & OFI_CORE_PROV_ONLY != 0 {
            // It is complete: a utility provider above it would only be slower.
            return Err(Errno::NODATA);
        }
        let settings = params::settings(None)?;
        let (format, source, destination) = self.addresses(&settings)?;
        let mut answers = Vec::new();
        for kind in KINDS {
            let asked = self.hints.and_then(|hints| hints.ep.as_ref()).map_or(0, |ep| ep.r#type);
            if kind != FI_EP_RDM && asked != kind {
                // Without a requested type one info is returned.
                continue;
            }
            let inject_size = settings.inject_limit_bytes();
            let mut offer = Offer::whole(kind, self.api_version, format, inject_size);
            offer.src_addr = Some(source);
            offer.dest_addr = destination;
            if let Some(hints) = self.hints
                && let Err(why) = check::check(&offer, hints, self.api_version)
            {
                tracing::info!("not offered: {why}");
                continue;
            }
            alter::alter(&mut offer, self.hints, self.api_version);
            answers.push(offer);
        }
        if answers.is_empty() { Err(Errno::NODATA) } else { Ok(answers) }
    }

    /// Returns the format of addresses, the local one, and that of a peer, if it is given.
    fn addresses(&self, settings: &Settings) -> Result<(Format, Encoded, Option<Encoded>), Errno> {
        let hints = self.hints;
        let asked = hints.map_or(FI_FORMAT_UNSPEC, |hints| hints.info.addr_format);
        // The family of a socket address may follow from what comes with it.
        let given = hints.map(Given::format).transpose()?;
        let is_ipv6 = match asked {
            FI_SOCKADDR_IN => Some(false),
            FI_SOCKADDR_IN6 => Some(true),
            _ => None,
        };
        let named = (self.node.is_some() || self.service.is_some())
            .then(|| {
                let is_numeric = self.flags & FI_NUMERICHOST != 0;
                places::resolve(self.node, self.service, is_numeric, is_ipv6)
            })
            .transpose()?;
        let is_source = self.flags & FI_SOURCE != 0;
        let source_hint = hints.and_then(|hints| hints.src_addr.as_ref()).is_some();
        let hinted_source = hints.map(Given::source).transpose()?.flatten();
        let hinted_destination = hints.map(Given::destination).transpose()?.flatten();
        let destination = match named {
            Some(place) if !is_source => Some(Location::Place(place)),
            _ => hinted_destination,
        };
        let source = match named {
            Some(place) if is_source => local(place, settings)?,
            _ if source_hint => match hinted_source {
                Some(Location::Place(place)) => local(place, settings)?,
                Some(Location::Endpoint(address)) => local(address.locator(), settings)?,
                None => return Err(Errno::INVAL),
            },
            // A peer on this host's loopback needs a local address there.
            _ => match destination.map(|it| it.place().ip()) {
                Some(ip) if ip.is_loopback() => SocketAddr::new(ip, 0),
                _ => SocketAddr::new(places::own_address(settings)?, 0),
            },
        };
        let format = match given {
            Some(format @ (Format::Ipv4 | Format::Ipv6)) if is_ipv6.is_none() => {
                // A `FI_SOCKADDR`.
                let is_ipv6 =
                    source.is_ipv6() || destination.is_some_and(|it| it.place().is_ipv6());
                if is_ipv6 { Format::Ipv6 } else { format }
            }
            Some(format) => format,
            None => Format::Opaque,
        };
        if format == Format::Ipv4 && source.is_ipv6() {
            tracing::info!("addresses of IPv4 are asked for, and the rails have IPv6");
            return Err(Errno::NODATA);
        }
        let destination = destination.map(|location| match location {
            Location::Place(place) => format.encode_place(place),
            Location::Endpoint(address) => format.encode(&address),
        });
        Ok((format, format.encode_place(source), destination))
    }
}

/// A local place, if it is one of this host; the wildcard address is that of the first rail.
fn local(place: SocketAddr, settings: &Settings) -> Result<SocketAddr, Errno> {
    let ip: IpAddr = place.ip();
    if ip.is_unspecified() {
        return Ok(SocketAddr::new(places::own_address(settings)?, place.port()));
    }
    if !places::is_here(ip) {
        tracing::info!("no NIC of this host has the address {ip}");
        return Err(Errno::NODATA);
    }
    Ok(place)
}

/// An info by which an endpoint for a request is opened: as the passive endpoint's. The caller
/// owns it.
pub(crate) fn of_request(
    given: &Given,
    api_version: u32,
    handle: *mut fid,
    source: Encoded,
    destination: Encoded,
) -> Result<*mut fi_info, Errno> {
    let inject_size = params::settings(None)?.inject_limit_bytes();
    let mut offer = Offer::whole(FI_EP_MSG, api_version, given.format()?, inject_size);
    alter::alter(&mut offer, Some(given), api_version);
    offer.handle = handle;
    (offer.src_addr, offer.dest_addr) = (Some(source), Some(destination));
    memory::write_named(&offer, api_version)
}

/// Implements libfabric's `getinfo`.
///
/// # Safety
///
/// As libfabric calls it: texts end with a 0, hints were allocated by it, `info` is valid; each but
/// the last may be null.
pub(crate) unsafe fn getinfo(
    api_version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const fi_info,
    info: *mut *mut fi_info,
) -> Result<(), Errno> {
    // SAFETY: the caller guarantees it.
    let (hints, node, service) =
        unsafe { (Given::read(hints, api_version), text(node), text(service)) };
    let (node, service) = (node.as_deref(), service.as_deref());
    let question = Question { api_version, node, service, flags, hints: hints.as_ref() };
    let mut first = std::ptr::null_mut();
    for offer in question.answers()?.iter().rev() {
        match memory::write(offer, api_version) {
            Ok(written) => {
                // SAFETY: it was allocated just now.
                unsafe { (*written).next = first };
                first = written;
            }
            Err(errno) => {
                // SAFETY: it has no other owner.
                unsafe { memory::free(first) };
                return Err(errno);
            }
        }
    }
    // SAFETY: the caller guarantees it.
    unsafe { *info = first };
    Ok(())
}
