//! The settings about NICs.

use std::net::IpAddr;

use super::super::Nic;
use super::SelectionError;
use crate::settings::{NicPattern, Settings};
use crate::types::rail::RailRole;

/// The settings that a selection uses.
pub(super) struct Wishes<'a> {
    pub(super) nics: &'a [NicPattern],
    preferred: &'a [NicPattern],
    backup: &'a [NicPattern],
    pub(super) listen: Option<IpAddr>,
    pub(super) rails_max: usize,
}

impl<'a> Wishes<'a> {
    pub(super) fn of(settings: &'a Settings) -> Self {
        Self {
            nics: settings.nics(),
            preferred: settings.preferred_nics(),
            backup: settings.backup_nics(),
            listen: settings.listen_address(),
            rails_max: settings.rails_max(),
        }
    }

    /// Returns whether NICs are named, and not just excluded.
    pub(super) fn names_some(&self) -> bool {
        self.nics.iter().any(|pattern| !pattern.is_exclusion())
    }

    /// What the setting `nics` is, for messages.
    pub(super) fn named(&self) -> String {
        list(&self.nics.iter().map(ToString::to_string).collect::<Vec<_>>(), ",")
    }

    /// Returns the entry that excludes a NIC by its name.
    pub(super) fn exclusion_of(&self, name: &str) -> Option<&NicPattern> {
        self.exclusions().find(|pattern| pattern.fits_name(name))
    }

    /// Returns the entry that excludes an address.
    pub(super) fn exclusion_at(&self, address: IpAddr) -> Option<&NicPattern> {
        self.exclusions().find(|pattern| pattern.fits_address(address))
    }

    fn exclusions(&self) -> impl Iterator<Item = &NicPattern> {
        self.nics.iter().filter(|pattern| pattern.is_exclusion())
    }

    /// When a rail is used.
    ///
    /// # Errors
    /// It is to be preferred and to be kept back.
    pub(super) fn role(&self, nic: &Nic, address: IpAddr) -> Result<RailRole, SelectionError> {
        let is_in = |patterns: &[NicPattern]| !patterns.is_empty() && means(patterns, nic, address);
        match (is_in(self.preferred), is_in(self.backup)) {
            (true, true) => Err(SelectionError::TwoRoles { nic: nic.name.clone(), address }),
            (true, false) => Ok(RailRole::Preferred),
            (false, true) => Ok(RailRole::Backup),
            (false, false) => Ok(RailRole::Ordinary),
        }
    }

    /// Checks for NICs and addresses that do not exist, and for contradictions.
    pub(super) fn check(&self, nics: &[Nic]) -> Result<(), SelectionError> {
        check_patterns(nics, "nics", self.nics)?;
        check_patterns(nics, "preferred_nics", self.preferred)?;
        check_patterns(nics, "backup_nics", self.backup)?;
        self.listen.map_or(Ok(()), |address| self.check_address(nics, address))
    }

    fn check_address(&self, nics: &[Nic], address: IpAddr) -> Result<(), SelectionError> {
        let owners: Vec<_> = nics.iter().filter(|nic| owns(nic, address)).collect();
        let Some(owner) = owners.first() else {
            return Err(SelectionError::NoSuchAddress { address, known: known_addresses(nics) });
        };
        if owners.iter().all(|nic| !means(self.nics, nic, address)) {
            return Err(SelectionError::Disagreement { address, owner: owner.name.clone() });
        }
        Ok(())
    }
}

/// Whether a list means this NIC by this address; an empty one means all.
fn means(patterns: &[NicPattern], nic: &Nic, address: IpAddr) -> bool {
    let fits = |pattern: &NicPattern| pattern.fits(&nic.name, address);
    let (left_out, named): (Vec<_>, Vec<_>) =
        patterns.iter().partition(|pattern| pattern.is_exclusion());
    (named.is_empty() || named.into_iter().any(fits)) && !left_out.into_iter().any(fits)
}

/// Checks that every pattern matches a NIC. Exclusions need not: a file may be for many hosts.
fn check_patterns(
    nics: &[Nic],
    setting: &'static str,
    patterns: &[NicPattern],
) -> Result<(), SelectionError> {
    let is_there = |pattern: &NicPattern| {
        nics.iter().any(|nic| pattern.fits_name(&nic.name) || !named_by(nic, pattern).is_empty())
    };
    let absent = patterns.iter().find(|pattern| !pattern.is_exclusion() && !is_there(pattern));
    match absent {
        None => Ok(()),
        Some(pattern) => Err(SelectionError::NoSuchNic {
            setting,
            name: pattern.to_string(),
            known: match pattern.is_network() {
                true => known_addresses(nics),
                false => nics.iter().map(|nic| nic.name.clone()).collect(),
            },
        }),
    }
}

/// `NIC address` for each that there is.
fn known_addresses(nics: &[Nic]) -> Vec<String> {
    let each = nics.iter().flat_map(|nic| nic.addresses.iter().map(move |ip| (nic, ip)));
    each.map(|(nic, ip)| format!("{} {ip}", nic.name)).collect()
}

/// Loopback answers for all of 127.0.0.0/8, whichever of it is listed.
pub(super) fn owns(nic: &Nic, address: IpAddr) -> bool {
    nic.addresses.contains(&address)
        || (nic.loopback && matches!(address, IpAddr::V4(v4) if v4.is_loopback()))
}

/// The addresses of a NIC that a network means.
pub(super) fn named_by(nic: &Nic, pattern: &NicPattern) -> Vec<IpAddr> {
    match pattern.single_address() {
        Some(address) if owns(nic, address) => vec![address],
        _ => nic.addresses.iter().copied().filter(|ip| pattern.fits_address(*ip)).collect(),
    }
}

pub(super) fn list(names: &[String], between: &str) -> String {
    if names.is_empty() { "none".into() } else { names.join(between) }
}
