//! Which addresses of which NICs could be rails, and why the others cannot.

use std::net::IpAddr;

use super::super::{Nic, address_rank, is_public};
use super::wishes::{Wishes, named_by, owns};

/// An address of a NIC that could be a rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RailPick {
    /// Position of the NIC.
    pub(super) nic: usize,
    /// Position of the entry of the setting `nics` that names it; 0 without one.
    pub(super) named: usize,
    pub(super) address: IpAddr,
}

/// Addresses of a NIC, of which one may be a rail.
struct Group {
    nic: usize,
    named: usize,
    addresses: Vec<IpAddr>,
}

impl Group {
    /// The best address of those that `suits`: private before public ones.
    fn best(&self, suits: impl Fn(&IpAddr) -> bool) -> Option<RailPick> {
        let suitable = self.addresses.iter().filter(|address| suits(address));
        let best = suitable.min_by_key(|address| (address_rank(address), is_public(address)))?;
        Some(RailPick { nic: self.nic, named: self.named, address: *best })
    }
}

/// Which kind of NIC the rails are, the best first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Tier {
    /// Named by the settings.
    Named,
    /// Hardware, or its equivalent.
    Ordinary,
    /// Ordinary, but without an address that others can route to.
    LinkLocal,
    /// Virtual: used where there is nothing better.
    Virtual,
    /// Reaches this host only.
    Loopback,
}

/// A selection in progress.
pub(super) struct Picking<'a> {
    nics: &'a [Nic],
    wishes: &'a Wishes<'a>,
    /// Why a NIC is no rail, as soon as that is known.
    pub(super) refusals: Vec<Option<String>>,
    /// What the picks are.
    pub(super) tier: Tier,
    /// Positions of NICs that lack nothing but a link.
    down: Vec<usize>,
}

impl<'a> Picking<'a> {
    pub(super) fn new(nics: &'a [Nic], wishes: &'a Wishes<'a>) -> Self {
        Self { nics, wishes, refusals: vec![None; nics.len()], tier: Tier::Named, down: Vec::new() }
    }

    /// All that could be rails at the same time, in no order. What is not among them has a
    /// refusal.
    pub(super) fn picks(&mut self) -> Vec<RailPick> {
        let mut groups = Vec::new();
        for (position, nic) in self.nics.iter().enumerate() {
            match self.groups_of(position, nic) {
                Ok(more) if nic.up => groups.extend(more),
                Ok(_) => {
                    self.down.push(position);
                    let cure = format!("ip link set {} up, or plug the cable in", nic.name);
                    self.refusals[position] = Some(format!("down; cure: {cure}"));
                }
                Err(reason) => self.refusals[position] = Some(reason),
            }
        }
        let picks = match self.wishes.names_some() || self.wishes.listen.is_some() {
            true => self.named(&groups),
            false => self.unnamed(&groups),
        };
        self.each_once(picks)
    }

    /// What of a NIC could be used whatever the other NICs are, if it is up, or why nothing.
    fn groups_of(&self, position: usize, nic: &Nic) -> Result<Vec<Group>, String> {
        let wishes = self.wishes;
        let mut groups = Vec::new();
        if wishes.names_some() {
            groups = self.named_groups(position, nic);
            if groups.is_empty() {
                return Err(format!("not named in the setting nics ({})", wishes.named()));
            }
        } else {
            if let Some(address) = wishes.listen.filter(|address| !owns(nic, *address)) {
                return Err(format!(
                    "does not have the address in the setting listen_address, {address}, which \
                     alone means one rail; name more NICs in the setting nics"
                ));
            }
            groups.push(Group { nic: position, named: 0, addresses: nic.addresses.clone() });
        }
        self.leave_out(nic, &mut groups)?;
        self.put_listen_address(nic, &mut groups);
        let is_detour = tier_of(nic, &nic.addresses) >= Tier::Virtual;
        let is_bare = groups.iter().all(|group| group.addresses.is_empty());
        if is_detour && !wishes.names_some() && (is_bare || !nic.up) {
            // No cure is given: it is rarely wanted, and naming it would not be enough.
            return Err(match &nic.virtual_ {
                Some(kind) if !nic.loopback => {
                    let lack = if is_bare { "has no IP address" } else { "down" };
                    format!("virtual ({kind}), and {lack}")
                }
                _ => detour_reason(nic),
            });
        }
        if is_bare {
            return Err(format!(
                "has no IP address; cure: ip address add ADDRESS/BITS dev {}",
                nic.name
            ));
        }
        Ok(groups)
    }

    /// Positions of NICs that would be better than what was picked, or all that there is, if they
    /// had a link.
    pub(super) fn awaited(&self, has_picks: bool) -> Vec<usize> {
        let tier_of =
            |position: usize| tier_of(&self.nics[position], &self.nics[position].addresses);
        let is_better = |position: &usize| !has_picks || tier_of(*position) < self.tier;
        self.down.iter().copied().filter(is_better).collect()
    }

    /// What the settings name of a NIC: addresses by each network, or all of them by its name.
    fn named_groups(&self, position: usize, nic: &Nic) -> Vec<Group> {
        let named = || self.wishes.nics.iter().enumerate();
        let by_name =
            named().find(|(_, pattern)| !pattern.is_exclusion() && pattern.fits_name(&nic.name));
        let by_name = by_name.map(|(place, _)| place);
        let group = |place: usize, addresses| Group {
            nic: position,
            named: by_name.map_or(place, |name| name.min(place)),
            addresses,
        };
        let networks = named().filter(|(_, pattern)| !pattern.is_exclusion());
        let networks = networks.map(|(place, pattern)| group(place, named_by(nic, pattern)));
        let mut groups: Vec<_> = networks.filter(|group| !group.addresses.is_empty()).collect();
        if let Some(place) = by_name.filter(|_| groups.is_empty()) {
            groups.push(group(place, nic.addresses.clone()));
        }
        groups
    }

    /// Removes the addresses that the settings exclude.
    fn leave_out(&self, nic: &Nic, groups: &mut [Group]) -> Result<(), String> {
        let excluded = |pattern| format!("left out by `{pattern}` in the setting nics");
        if let Some(pattern) = self.wishes.exclusion_of(&nic.name) {
            return Err(excluded(pattern));
        }
        let mut by = None;
        for group in &mut *groups {
            group.addresses.retain(|address| {
                let exclusion = self.wishes.exclusion_at(*address);
                by = by.or(exclusion);
                exclusion.is_none()
            });
        }
        match by {
            Some(pattern) if groups.iter().all(|group| group.addresses.is_empty()) => {
                Err(excluded(pattern))
            }
            _ => Ok(()),
        }
    }

    /// Makes the address that is listened on the one that its NIC is used by.
    fn put_listen_address(&self, nic: &Nic, groups: &mut [Group]) {
        let Some(listen) = self.wishes.listen.filter(|address| owns(nic, *address)) else { return };
        let fits = |named: usize| match self.wishes.nics.get(named) {
            Some(pattern) if self.wishes.names_some() => pattern.fits(&nic.name, listen),
            _ => true,
        };
        let mut is_put = false;
        for group in groups {
            group.addresses.retain(|address| *address != listen);
            if !is_put && fits(group.named) {
                group.addresses = vec![listen];
                is_put = true;
            }
        }
    }

    /// What the settings name: by the family of the first entry, IPv4 if that means both.
    fn named(&mut self, groups: &[Group]) -> Vec<RailPick> {
        self.tier = Tier::Named;
        let first = || {
            let by_order = groups.iter().filter_map(|group| group.best(|_| true));
            by_order
                .min_by_key(|pick| (pick.named, address_rank(&pick.address), pick.nic))
                .map(|pick| pick.address)
        };
        let Some(first) = self.wishes.listen.or_else(first) else { return Vec::new() };
        self.of_family(groups, first, |_| true)
    }

    /// What is best where nothing is named.
    fn unnamed(&mut self, groups: &[Group]) -> Vec<RailPick> {
        let nics = self.nics;
        let tier_of = |group: &Group| tier_of(&nics[group.nic], &group.addresses);
        let Some(best) = groups.iter().map(tier_of).min() else { return Vec::new() };
        self.tier = best;
        let (groups, others): (Vec<_>, Vec<_>) =
            groups.iter().partition(|group| tier_of(group) == best);
        for group in others {
            self.refusals[group.nic] = Some(detour_reason(&nics[group.nic]));
        }
        let by_use =
            |pick: &RailPick| (address_rank(&pick.address), is_public(&pick.address), pick.nic);
        let all = groups.iter().filter_map(|group| group.best(|_| true));
        let Some(first) = all.min_by_key(by_use) else { return Vec::new() };
        if best != Tier::Ordinary {
            return self.only(&groups, first);
        }
        let mut picks = self.of_family(groups, first.address, |address| address_rank(address) < 2);
        self.drop_public(&mut picks);
        picks
    }

    /// The best address of each group that is of the family of `first`.
    fn of_family<'g>(
        &mut self,
        groups: impl IntoIterator<Item = &'g Group>,
        first: IpAddr,
        suits: impl Fn(&IpAddr) -> bool,
    ) -> Vec<RailPick> {
        let (family, other) = if first.is_ipv4() { ("IPv4", "IPv6") } else { ("IPv6", "IPv4") };
        let mut picks = Vec::new();
        for group in groups {
            let is_of_family = |address: &IpAddr| address.is_ipv4() == first.is_ipv4();
            match group.best(|address| is_of_family(address) && suits(address)) {
                Some(pick) => picks.push(pick),
                None => {
                    let reason = format!(
                        "has {other} addresses only, and rails are of one family, here {family} \
                         like {first}; give it one, or choose the family with listen_address"
                    );
                    self.refusals[group.nic].get_or_insert(reason);
                }
            }
        }
        picks
    }

    /// Keeps only `first`: detours lead to the same hosts, and link-local addresses do not identify
    /// the link.
    fn only(&mut self, groups: &[&Group], first: RailPick) -> Vec<RailPick> {
        let winner = &self.nics[first.nic].name;
        for group in groups.iter().filter(|group| group.nic != first.nic) {
            let name = &self.nics[group.nic].name;
            self.refusals[group.nic] = Some(format!(
                "usable, but only one of its kind is taken unless named, and that is {winner}; \
                 set nics = {winner},{name} to use both"
            ));
        }
        vec![first]
    }

    /// Drops public addresses if there are private ones.
    fn drop_public(&mut self, picks: &mut Vec<RailPick>) {
        let Some(private) = picks.iter().find(|pick| !is_public(&pick.address)).copied() else {
            return;
        };
        let inside = &self.nics[private.nic].name;
        picks.retain(|pick| {
            let is_left_out = is_public(&pick.address);
            if is_left_out {
                let name = &self.nics[pick.nic].name;
                self.refusals[pick.nic] = Some(format!(
                    "its address {} is public, and {inside} has a private one, {}: between hosts \
                     of a cluster public ones are often filtered, slower, or paid for; set nics = \
                     {inside},{name} to use both",
                    pick.address, private.address
                ));
            }
            !is_left_out
        });
    }

    /// Keeps one pick for each address: rails are identified by their addresses.
    fn each_once(&mut self, picks: Vec<RailPick>) -> Vec<RailPick> {
        let mut kept: Vec<RailPick> = Vec::with_capacity(picks.len());
        for pick in picks {
            match kept.iter().position(|known| known.address == pick.address) {
                None => kept.push(pick),
                Some(at) if kept[at].nic == pick.nic => {
                    kept[at].named = kept[at].named.min(pick.named);
                }
                Some(at) => {
                    let reason = format!(
                        "has the same address as {}, {}; give it another one",
                        self.nics[kept[at].nic].name, pick.address
                    );
                    self.refusals[pick.nic].get_or_insert(reason);
                }
            }
        }
        kept
    }
}

fn tier_of(nic: &Nic, addresses: &[IpAddr]) -> Tier {
    if nic.loopback {
        Tier::Loopback
    } else if nic.virtual_.is_some() {
        Tier::Virtual
    } else if addresses.iter().all(|address| address_rank(address) >= 2) {
        Tier::LinkLocal
    } else {
        Tier::Ordinary
    }
}

/// Returns why a usable NIC is not used if there are better ones.
fn detour_reason(nic: &Nic) -> String {
    let name = &nic.name;
    match &nic.virtual_ {
        _ if nic.loopback => "loopback reaches this host only".into(),
        Some(kind) => format!("virtual ({kind}); set nics = {name} to use it all the same"),
        None => {
            format!("has link-local addresses only; set nics = {name} to use it all the same")
        }
    }
}
