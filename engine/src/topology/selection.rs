//! Which NICs an engine uses as its rails, and why not the others.

mod picks;
#[cfg(test)]
mod tests;
mod wishes;

use std::cmp::Reverse;
use std::fmt;
use std::net::IpAddr;

use self::picks::{Picking, RailPick, Tier};
use self::wishes::{Wishes, list};
use super::Nic;
use crate::settings::Settings;
use crate::types::rail::{Rail, RailRole};

/// The verdict on a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is a rail.
    Chosen,
    /// It is not.
    Rejected,
}

/// A NIC with its verdict and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The NIC.
    pub nic: Nic,
    /// Whether it is used.
    pub verdict: Verdict,
    /// The reason, and the cure if there is one.
    pub reason: String,
    /// Numbers of the rails that it is; several where the settings name several of its networks.
    pub rails: Vec<usize>,
}

impl fmt::Display for Candidate {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = match self.verdict {
            Verdict::Chosen => "chosen",
            Verdict::Rejected => "rejected",
        };
        write!(out, "{}: {verdict}: ", self.nic.name)?;
        let numbers: Vec<_> = self.rails.iter().map(usize::to_string).collect();
        match numbers.len() {
            0 => {}
            1 => write!(out, "rail {}: ", numbers[0])?,
            _ => write!(out, "rails {}: ", numbers.join(" and "))?,
        }
        out.write_str(&self.reason)
    }
}

/// The outcome of [`select`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// The rails, the best first; the address of the first one is where an engine is found. Empty
    /// when no candidate will do.
    pub rails: Vec<Rail>,
    /// Every NIC of the given list, in its order.
    pub candidates: Vec<Candidate>,
    /// Positions, among the candidates, of those that lack nothing but a link and would be better
    /// rails than the ones that were chosen. [`select_when_up`](super::select_when_up) waits for
    /// them.
    pub awaited: Vec<usize>,
    /// Loopback was chosen because there is nothing else.
    is_loopback_by_default: bool,
}

impl Selection {
    /// The NIC and the address of the first rail; `None` without one.
    pub fn chosen(&self) -> Option<(&Nic, IpAddr)> {
        let first = self.candidates.iter().find(|candidate| candidate.rails.contains(&0))?;
        Some((&first.nic, self.rails.first()?.address))
    }

    /// Whether only this host can be reached, though the settings do not ask for that.
    pub(super) fn is_loopback_by_default(&self) -> bool {
        self.is_loopback_by_default
    }

    /// Returns the reasons of the awaited NICs.
    pub(super) fn awaited_reasons(&self) -> String {
        let awaited = self.awaited.iter().map(|&position| &self.candidates[position]);
        awaited.map(ToString::to_string).collect::<Vec<_>>().join("; ")
    }
}

/// Why the settings ask for what the host does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SelectionError {
    /// A name, pattern or network in a list of NICs fits none.
    #[error(
        "the setting {setting} names `{name}`, but this host has only {}; correct the setting",
        list(.known, ", ")
    )]
    NoSuchNic {
        /// The setting that has it.
        setting: &'static str,
        /// The name, pattern or network.
        name: String,
        /// The NICs that there are; for a network with their addresses.
        known: Vec<String>,
    },
    /// No NIC has the address in `listen_address`.
    #[error(
        "the setting listen_address is {address}, but no NIC of this host has that address \
         (those there are: {}); correct the setting, or give the address to a NIC",
        list(.known, ", ")
    )]
    NoSuchAddress {
        /// The address asked for.
        address: IpAddr,
        /// `NIC address` for each that there is.
        known: Vec<String>,
    },
    /// `listen_address` belongs to a NIC that `nics` does not name.
    #[error(
        "the setting listen_address is {address}, which belongs to {owner}, but the setting nics \
         does not name {owner} or leaves that address out; drop one of the two settings, \
         or make them agree"
    )]
    Disagreement {
        /// The address asked for.
        address: IpAddr,
        /// The NIC that has it.
        owner: String,
    },
    /// A NIC is in `preferred_nics` and in `backup_nics`.
    #[error(
        "the settings preferred_nics and backup_nics both mean {nic} ({address}); take it out of \
         one of them"
    )]
    TwoRoles {
        /// The NIC.
        nic: String,
        /// The address that it would be used by.
        address: IpAddr,
    },
}

/// Picks the NICs and local addresses that an engine uses, from a list as [`nics`](super::nics)
/// gives it. A function of its arguments: ask again when addresses came or went.
///
/// Rails are of one address family. Without the setting `nics`, or where it has exclusions only,
/// they are all NICs that are up, are neither virtual nor loopback, and have an address: IPv4, or
/// where none has one IPv6. Several NICs on one network are several rails; several addresses of a
/// NIC are one rail, by the best of them. NICs with public addresses only are left out beside
/// private ones: these are how hosts of a cluster reach each other, while packets between public
/// addresses are often filtered, leave the fast network, or are paid for. Where there is no such
/// NIC it is one with link-local addresses, else a virtual one, else loopback, and just one. NICs
/// that would be better but are down are listed ([`Selection::awaited`]).
///
/// If `nics` names some, only these are taken, virtual ones, loopback and public addresses
/// included. A network in it means the address there, so that two of them can make two rails of
/// one NIC.
///
/// `listen_address` is the first rail's, and alone means that there is no other. Otherwise the
/// order is: preferred NICs before others, backup ones last; the order of `nics`; the faster first
/// as far as drivers report speeds; the order of the list. Rails above `rails_max` are left out.
///
/// # Errors
/// The settings name something that does not exist, or contradict each other. It is not an error
/// if a named NIC is down or has no address: there may be no rail then, and the candidates have
/// the reasons.
pub fn select(nics: &[Nic], settings: &Settings) -> Result<Selection, SelectionError> {
    let wishes = Wishes::of(settings);
    wishes.check(nics)?;
    let mut picking = Picking::new(nics, &wishes);
    let mut picks = Vec::new();
    for pick in picking.picks() {
        picks.push((wishes.role(&nics[pick.nic], pick.address)?, pick));
    }
    picks.sort_by_key(|(role, pick)| {
        let speed = nics[pick.nic].speed_mbps.unwrap_or(0);
        (*role, pick.named, Reverse(speed), pick.nic)
    });
    if let Some(address) = wishes.listen {
        match picks.iter().position(|(_, pick)| pick.address == address) {
            Some(position) => picks[..=position].rotate_right(1),
            // Without that NIC, peers could not reach this host at the announced address.
            None => {
                for (_, pick) in picks.drain(..) {
                    picking.refusals[pick.nic].get_or_insert_with(|| {
                        format!("usable, but listen_address is {address}, whose NIC is not")
                    });
                }
            }
        }
    }
    let awaited = picking.awaited(!picks.is_empty());
    let is_loopback_by_default = !picks.is_empty() && picking.tier == Tier::Loopback;
    let beyond = picks.split_off(picks.len().min(wishes.rails_max));
    let candidates = nics.iter().enumerate().map(|(position, nic)| {
        let is_it = |(_, (_, pick)): &(usize, &(RailRole, RailPick))| pick.nic == position;
        let rails = picks.iter().enumerate().filter(is_it).map(|(rail, _)| rail);
        let rails: Vec<usize> = rails.collect();
        let (verdict, reason) = match rails.first() {
            Some(first) => {
                let (role, pick) = &picks[*first];
                (Verdict::Chosen, chosen_reason(nic, picking.tier, *role, pick, &wishes))
            }
            None if beyond.iter().any(|(_, pick)| pick.nic == position) => {
                (Verdict::Rejected, beyond_reason(nic, picks.last(), nics, wishes.rails_max))
            }
            None => {
                let reason = picking.refusals[position].take();
                (Verdict::Rejected, reason.unwrap_or_else(|| "not usable".into()))
            }
        };
        Candidate { nic: nic.clone(), verdict, reason, rails }
    });
    let candidates = candidates.collect();
    let rails = picks.iter().map(|(role, pick)| {
        let nic = &nics[pick.nic];
        Rail {
            nic: nic.name.clone(),
            nic_index: nic.index,
            address: pick.address,
            speed_mbps: nic.speed_mbps,
            mtu: nic.mtu,
            role: *role,
        }
    });
    Ok(Selection { rails: rails.collect(), candidates, awaited, is_loopback_by_default })
}

fn chosen_reason(
    nic: &Nic,
    tier: Tier,
    role: RailRole,
    pick: &RailPick,
    wishes: &Wishes<'_>,
) -> String {
    let kind = nic.virtual_.as_deref().unwrap_or("a virtual interface");
    let why = match tier {
        _ if wishes.listen == Some(pick.address) => {
            "has the address in the setting listen_address".into()
        }
        Tier::Named => format!("named in the setting nics (`{}`)", wishes.nics[pick.named]),
        Tier::Ordinary => "up, with an address".into(),
        Tier::LinkLocal => "no NIC has more than a link-local address".into(),
        Tier::Virtual => format!("{kind}, but there is nothing better"),
        Tier::Loopback => "no other NIC is usable: only this host can be reached".into(),
    };
    match role {
        RailRole::Ordinary => why,
        RailRole::Preferred => format!("{why}; short messages prefer it (setting preferred_nics)"),
        RailRole::Backup => {
            format!("{why}; for when no other is healthy (setting backup_nics)")
        }
    }
}

/// Why a NIC is not among the first `most`.
fn beyond_reason(
    nic: &Nic,
    last: Option<&(RailRole, RailPick)>,
    nics: &[Nic],
    most: usize,
) -> String {
    let speed = |nic: &Nic| match nic.speed_mbps {
        Some(speed) => format!("{speed} Mb/s"),
        None => "of a speed that its driver does not report".into(),
    };
    let last = last.map_or_else(String::new, |(_, pick)| {
        let last = &nics[pick.nic];
        format!("{} ({}) comes after {} ({}), and ", nic.name, speed(nic), last.name, speed(last))
    });
    format!(
        "usable, but {last}rails_max is {most}; raise rails_max, or name the NICs to use in \
         the setting nics"
    )
}
