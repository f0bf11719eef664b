//! Which NIC an engine uses, and why not the others.

use std::fmt;
use std::net::IpAddr;

use super::Nic;
use crate::settings::{Settings, glob};

/// What became of a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is used.
    Chosen,
    /// It is not.
    Rejected,
}

/// A NIC with what became of it and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The NIC.
    pub nic: Nic,
    /// Whether it is used.
    pub verdict: Verdict,
    /// Why, and where there is one the cure.
    pub reason: String,
}

impl fmt::Display for Candidate {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = match self.verdict {
            Verdict::Chosen => "chosen",
            Verdict::Rejected => "rejected",
        };
        write!(out, "{}: {verdict}: {}", self.nic.name, self.reason)
    }
}

/// The outcome of [`select`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// The NIC and the local address to use; `None` when no candidate will do.
    pub chosen: Option<(Nic, IpAddr)>,
    /// Every NIC that was looked at, in the order of the list that was given.
    pub candidates: Vec<Candidate>,
}

/// Why the settings ask for what the host does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SelectionError {
    /// A name or pattern in `nics` fits no NIC.
    #[error(
        "the setting nics names `{name}`, but this host has only {}; correct the setting",
        list(.known)
    )]
    NoSuchNic {
        /// The name or pattern.
        name: String,
        /// The NICs that there are.
        known: Vec<String>,
    },
    /// No NIC has the address in `listen_address`.
    #[error(
        "the setting listen_address is {address}, but no NIC of this host has that address \
         (those there are: {}); correct the setting, or give the address to a NIC",
        list(.known)
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
         does not name {owner}; drop one of the two settings or make them agree"
    )]
    Disagreement {
        /// The address asked for.
        address: IpAddr,
        /// The NIC that has it.
        owner: String,
    },
}

fn list(names: &[String]) -> String {
    if names.is_empty() { "none".into() } else { names.join(", ") }
}

/// How a candidate compares; a lower rank is preferred, and within one the order of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// Named by the settings, as the n-th.
    Named(usize),
    /// Hardware, or what stands in for it.
    Ordinary,
    /// Ordinary, but nobody gave it an address that others can route to.
    LinkLocal,
    /// Virtual: used where there is nothing better.
    Virtual,
    /// Reaches this host only.
    Loopback,
}

/// Picks the NIC and local address that an engine uses, from a list as [`nics`](super::nics)
/// gives it.
///
/// If `nics` is set, only NICs that it names are taken, in its order, virtual ones and loopback
/// included. Otherwise the first of the list that is up, has an address and is neither virtual
/// nor loopback; failing that one with link-local addresses only, then a virtual one, then
/// loopback. If `listen_address` is set, its owner is taken. The address is the NIC's first.
///
/// # Errors
/// `nics` or `listen_address` ask for what is not there, or contradict each other. That what they
/// name is down or has no address is not an error: `chosen` is `None` then, and the candidates
/// say why.
pub fn select(nics: &[Nic], settings: &Settings) -> Result<Selection, SelectionError> {
    let named = settings.nics();
    let wanted = settings.listen_address();
    check_names(nics, named)?;
    if let Some(address) = wanted {
        check_address(nics, named, address)?;
    }
    let ranked: Vec<Result<Rank, String>> =
        nics.iter().map(|nic| rank(nic, named, wanted)).collect();
    let best = ranked.iter().filter_map(|rank| rank.as_ref().ok()).min().copied();
    let winner = best.and_then(|best| ranked.iter().position(|rank| *rank == Ok(best)));

    let candidates = nics.iter().zip(&ranked).enumerate().map(|(position, (nic, ranked))| {
        let (verdict, reason) = match ranked {
            Ok(rank) if Some(position) == winner => {
                (Verdict::Chosen, chosen_reason(nic, *rank, wanted))
            }
            Ok(rank) => {
                let winner = &nics[winner.unwrap_or(position)].name;
                (Verdict::Rejected, passed_over_reason(nic, *rank, winner, best))
            }
            Err(reason) => (Verdict::Rejected, reason.clone()),
        };
        Candidate { nic: nic.clone(), verdict, reason }
    });
    let candidates = candidates.collect();
    let chosen = winner.and_then(|position| {
        let nic = &nics[position];
        Some((nic.clone(), wanted.or_else(|| best_address(nic))?))
    });
    Ok(Selection { chosen, candidates })
}

fn check_names(nics: &[Nic], named: &[String]) -> Result<(), SelectionError> {
    match named.iter().find(|name| !nics.iter().any(|nic| glob::matches(name, &nic.name))) {
        None => Ok(()),
        Some(name) => Err(SelectionError::NoSuchNic {
            name: name.clone(),
            known: nics.iter().map(|nic| nic.name.clone()).collect(),
        }),
    }
}

fn check_address(nics: &[Nic], named: &[String], address: IpAddr) -> Result<(), SelectionError> {
    let owners: Vec<_> = nics.iter().filter(|nic| owns(nic, address)).collect();
    let Some(owner) = owners.first() else {
        let each = nics.iter().flat_map(|nic| nic.addresses.iter().map(move |ip| (nic, ip)));
        let known = each.map(|(nic, ip)| format!("{} {ip}", nic.name)).collect();
        return Err(SelectionError::NoSuchAddress { address, known });
    };
    if !named.is_empty() && owners.iter().all(|nic| name_position(nic, named).is_none()) {
        return Err(SelectionError::Disagreement { address, owner: owner.name.clone() });
    }
    Ok(())
}

/// Loopback answers for all of 127.0.0.0/8, whichever of it is listed.
fn owns(nic: &Nic, address: IpAddr) -> bool {
    nic.addresses.contains(&address)
        || (nic.loopback && matches!(address, IpAddr::V4(v4) if v4.is_loopback()))
}

fn name_position(nic: &Nic, named: &[String]) -> Option<usize> {
    named.iter().position(|name| glob::matches(name, &nic.name))
}

fn best_address(nic: &Nic) -> Option<IpAddr> {
    nic.addresses.iter().min_by_key(|address| super::address_rank(address)).copied()
}

/// The rank of a NIC that could be used, or why it cannot be.
fn rank(nic: &Nic, named: &[String], wanted: Option<IpAddr>) -> Result<Rank, String> {
    let position = name_position(nic, named);
    if !named.is_empty() && position.is_none() {
        return Err(format!("not named in the setting nics ({})", named.join(",")));
    }
    if let Some(address) = wanted.filter(|address| !owns(nic, *address)) {
        return Err(format!("does not have the address in the setting listen_address, {address}"));
    }
    let Some(address) = best_address(nic) else {
        return Err(format!(
            "has no IP address; cure: ip address add ADDRESS/BITS dev {}",
            nic.name
        ));
    };
    if !nic.up {
        return Err(format!("down; cure: ip link set {} up, or plug the cable in", nic.name));
    }
    Ok(match position {
        Some(position) => Rank::Named(position),
        None if nic.loopback => Rank::Loopback,
        None if nic.virtual_.is_some() => Rank::Virtual,
        None if super::address_rank(&address) >= 2 => Rank::LinkLocal,
        None => Rank::Ordinary,
    })
}

fn chosen_reason(nic: &Nic, rank: Rank, wanted: Option<IpAddr>) -> String {
    let kind = nic.virtual_.as_deref().unwrap_or("a virtual interface");
    match rank {
        _ if wanted.is_some() => "has the address in the setting listen_address".into(),
        Rank::Named(_) => "the first usable one named in the setting nics".into(),
        Rank::Ordinary => "the first NIC that is up and has an address".into(),
        Rank::LinkLocal => "no NIC has more than a link-local address".into(),
        Rank::Virtual => format!("{kind}, but there is nothing better"),
        Rank::Loopback => "no other NIC is usable: only this host can be reached".into(),
    }
}

fn passed_over_reason(nic: &Nic, rank: Rank, winner: &str, best: Option<Rank>) -> String {
    let name = &nic.name;
    match rank {
        Rank::Loopback => "loopback reaches this host only".into(),
        Rank::Virtual if best != Some(rank) => {
            let kind = nic.virtual_.as_deref().unwrap_or("a virtual interface");
            format!("virtual ({kind}); set nics = {name} to use it all the same")
        }
        Rank::LinkLocal if best != Some(rank) => {
            format!("has link-local addresses only; set nics = {name} to use it all the same")
        }
        Rank::Named(_) => format!("usable, but comes after {winner} in the setting nics"),
        _ => format!("usable, but comes after {winner}; set nics = {name} to use it instead"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nic(name: &str, addresses: &[&str]) -> Nic {
        Nic {
            name: name.into(),
            index: 1,
            addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
            up: true,
            loopback: name == "lo",
            virtual_: None,
            speed_mbps: None,
            mtu: None,
        }
    }

    fn docker() -> Nic {
        Nic { virtual_: Some("a bridge".into()), ..nic("docker0", &["172.17.0.1"]) }
    }

    fn lo() -> Nic {
        nic("lo", &["127.0.0.1", "::1"])
    }

    fn named(names: &str) -> Settings {
        Settings::isolated().set("nics", names).build().unwrap()
    }

    fn listening(address: &str) -> Settings {
        Settings::isolated().set("listen_address", address).build().unwrap()
    }

    /// The chosen `name address`, after checking that the candidates tell the same.
    fn chosen(nics: &[Nic], settings: &Settings) -> Option<String> {
        let selection = select(nics, settings).unwrap();
        let names: Vec<_> = selection.candidates.iter().map(|one| one.nic.name.as_str()).collect();
        assert_eq!(names, nics.iter().map(|nic| nic.name.as_str()).collect::<Vec<_>>());
        assert!(selection.candidates.iter().all(|candidate| !candidate.reason.is_empty()));
        let marked = selection.candidates.iter().filter(|one| one.verdict == Verdict::Chosen);
        let marked: Vec<_> = marked.map(|candidate| &candidate.nic).collect();
        assert_eq!(marked, selection.chosen.iter().map(|(nic, _)| nic).collect::<Vec<_>>());
        selection.chosen.map(|(nic, address)| format!("{} {address}", nic.name))
    }

    fn reason(nics: &[Nic], settings: &Settings, name: &str) -> String {
        let selection = select(nics, settings).unwrap();
        let mut candidates = selection.candidates.into_iter();
        candidates.find(|candidate| candidate.nic.name == name).unwrap().to_string()
    }

    #[test]
    fn the_first_ordinary_nic_wins_over_decoys() {
        let down = Nic { up: false, ..nic("eth0", &["10.9.0.1"]) };
        let list = [
            lo(),
            docker(),
            down,
            nic("eth1", &[]),
            nic("rail0", &["10.0.0.1"]),
            nic("rail1", &["10.0.1.1"]),
        ];
        let settings = Settings::default();
        assert_eq!(chosen(&list, &settings).as_deref(), Some("rail0 10.0.0.1"));
        for (name, part) in [
            ("lo", "this host only"),
            ("docker0", "virtual (a bridge); set nics = docker0"),
            ("eth0", "down"),
            ("eth1", "no IP address"),
            ("rail0", "chosen"),
            ("rail1", "comes after rail0"),
        ] {
            let reason = reason(&list, &settings, name);
            assert!(reason.contains(part), "{reason}");
        }
    }

    #[test]
    fn fallbacks_come_in_order() {
        let settings = Settings::default();
        let local = nic("eth0", &["fe80::1"]);
        let mut list = vec![lo(), docker(), local, nic("eth1", &["fe80::2", "10.0.0.1"])];
        assert_eq!(chosen(&list, &settings).as_deref(), Some("eth1 10.0.0.1"));
        assert!(reason(&list, &settings, "eth0").contains("link-local"));
        list.pop();
        assert_eq!(chosen(&list, &settings).as_deref(), Some("eth0 fe80::1"));
        list.pop();
        assert_eq!(chosen(&list, &settings).as_deref(), Some("docker0 172.17.0.1"));
        list.pop();
        assert_eq!(chosen(&list, &settings).as_deref(), Some("lo 127.0.0.1"));
        list.pop();
        assert_eq!(chosen(&list, &settings), None);
    }

    #[test]
    fn names_and_patterns_are_honoured_in_their_order() {
        let list = [lo(), docker(), nic("rail0", &["10.0.0.1"]), nic("rail1", &["10.0.1.1"])];
        assert_eq!(chosen(&list, &named("rail1,rail0")).as_deref(), Some("rail1 10.0.1.1"));
        assert_eq!(chosen(&list, &named("rail*")).as_deref(), Some("rail0 10.0.0.1"));
        assert_eq!(chosen(&list, &named("docker0")).as_deref(), Some("docker0 172.17.0.1"));
        assert_eq!(chosen(&list, &named("lo")).as_deref(), Some("lo 127.0.0.1"));
        assert!(reason(&list, &named("lo"), "rail0").contains("not named"));
    }

    #[test]
    fn a_named_nic_that_is_down_is_passed_over_or_leaves_none() {
        let down = Nic { up: false, ..nic("rail0", &["10.0.0.1"]) };
        let list = [down, nic("rail1", &["10.0.1.1"])];
        assert_eq!(chosen(&list, &named("rail*")).as_deref(), Some("rail1 10.0.1.1"));
        // Never silently another one than was named.
        assert_eq!(chosen(&list, &named("rail0")), None);
        assert!(reason(&list, &named("rail0"), "rail0").contains("ip link set rail0 up"));
    }

    #[test]
    fn names_that_fit_nothing_are_errors() {
        let list = [lo(), nic("rail0", &["10.0.0.1"])];
        for name in ["rail7", "eth*"] {
            let text = select(&list, &named(name)).unwrap_err().to_string();
            assert!(text.contains(name) && text.contains("lo, rail0"), "{text}");
        }
        assert!(select(&[], &named("x")).unwrap_err().to_string().contains("none"));
    }

    #[test]
    fn the_listen_address_decides() {
        let list = [lo(), nic("rail0", &["10.0.0.1"]), nic("rail1", &["10.0.1.1", "10.0.1.2"])];
        assert_eq!(chosen(&list, &listening("10.0.1.2")).as_deref(), Some("rail1 10.0.1.2"));
        assert_eq!(chosen(&list, &listening("127.0.0.9")).as_deref(), Some("lo 127.0.0.9"));
        let absent = select(&list, &listening("10.0.2.1")).unwrap_err();
        assert!(absent.to_string().contains("rail1 10.0.1.2"), "{absent}");
        let both = Settings::isolated().set("listen_address", "10.0.1.1").set("nics", "rail0");
        let both = select(&list, &both.build().unwrap()).unwrap_err();
        assert!(matches!(both, SelectionError::Disagreement { .. }), "{both}");
    }
}
