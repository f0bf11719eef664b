use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::wire::rail::{RAILS_MAX, ROLE_BACKUP, ROLE_PREFERRED};

fn rail(address: &str, speed_mbps: u32) -> RailInfo {
    RailInfo { address: address.parse().unwrap(), speed_mbps, role: 0 }
}

fn backup(address: &str, speed_mbps: u32) -> RailInfo {
    RailInfo { role: ROLE_BACKUP, ..rail(address, speed_mbps) }
}

/// Creates rails, each as `a.b` of 10.a.0.b, with its speed in Mb/s.
fn rails(texts: &[(&str, u32)]) -> Vec<RailInfo> {
    let address = |text: &str| {
        let (network, host) = text.split_once('.').unwrap();
        format!("10.{network}.0.{host}")
    };
    texts.iter().map(|(text, speed)| rail(&address(text), *speed)).collect()
}

/// Direct where the second number of the addresses is equal, else this.
fn by_network<'a>(
    ours: &'a [RailInfo],
    theirs: &'a [RailInfo],
    otherwise: Reach,
) -> impl Fn(usize, usize) -> Reach + 'a {
    move |our, their| match (ours[our].address, theirs[their].address) {
        (IpAddr::V4(our), IpAddr::V4(their)) if our.octets()[..2] == their.octets()[..2] => {
            Reach::Direct
        }
        _ => otherwise,
    }
}

fn paired(ours: &[RailInfo], theirs: &[RailInfo], otherwise: Reach) -> Vec<(usize, usize)> {
    let mut found = pairs(ours, theirs, by_network(ours, theirs, otherwise));
    found.sort_unstable();
    found
}

#[test]
fn rails_of_one_network_are_paired() {
    let ours = rails(&[("0.1", 1000), ("1.1", 10_000), ("2.1", 1000)]);
    let theirs = rails(&[("2.2", 10_000), ("0.2", 10_000), ("1.2", 1000)]);
    for otherwise in [Reach::Unreachable, Reach::Routed, Reach::Unknown] {
        assert_eq!(paired(&ours, &theirs, otherwise), [(0, 1), (1, 2), (2, 0)]);
    }
    // With unknown reach the addresses decide equally.
    let unknown = pairs(&ours, &theirs, |_, _| Reach::Unknown);
    assert_eq!(unknown.len(), 3);
    assert!(unknown.iter().all(|pair| [(0, 1), (1, 2), (2, 0)].contains(pair)), "{unknown:?}");
}

#[test]
fn equal_speeds_are_paired_on_one_network() {
    let ours = rails(&[("0.1", 1000), ("0.2", 10_000), ("0.3", 25_000)]);
    let theirs = rails(&[("0.4", 25_000), ("0.5", 1000), ("0.6", 10_000)]);
    assert_eq!(paired(&ours, &theirs, Reach::Unknown), [(0, 1), (1, 2), (2, 0)]);
    // With equal speeds: by the order of addresses, independent of that of the lists.
    let theirs = rails(&[("0.6", 0), ("0.4", 0), ("0.5", 0)]);
    let ours = rails(&[("0.1", 0), ("0.2", 0), ("0.3", 0)]);
    assert_eq!(paired(&ours, &theirs, Reach::Unknown), [(0, 1), (1, 2), (2, 0)]);
}

#[test]
fn routed_planes_are_paired_by_address() {
    // Each rail of each host has a network of its own: 10.PLANE.HOST.1.
    let host = |host: u8| {
        let rails = (0..4).map(|plane| rail(&format!("10.{plane}.{host}.1"), 1000));
        rails.collect::<Vec<_>>()
    };
    let mut theirs = host(9);
    theirs.reverse();
    let found = paired(&host(4), &theirs, Reach::Unreachable);
    assert_eq!(found.len(), 4, "{found:?}");
    let routed = pairs(&host(4), &theirs, |_, _| Reach::Routed);
    assert!(routed.iter().all(|(our, their)| our + their == 3), "{routed:?}");
}

#[test]
fn backup_is_paired_with_a_backup() {
    let ours = [rail("10.0.0.1", 1000), backup("10.0.0.2", 10_000)];
    let theirs = [backup("10.0.0.3", 1000), rail("10.0.0.4", 10_000)];
    assert_eq!(paired(&ours, &theirs, Reach::Unknown), [(0, 1), (1, 0)]);
    // A common network has priority.
    let theirs = [backup("10.0.0.3", 1000), rail("10.1.0.4", 10_000)];
    let ours = [rail("10.0.0.1", 1000), backup("10.1.0.2", 10_000)];
    assert_eq!(paired(&ours, &theirs, Reach::Routed), [(0, 0), (1, 1)]);
}

#[test]
fn surplus_rail_is_paired_with_the_most_spare_rate() {
    let ours = rails(&[("0.1", 10_000), ("0.2", 40_000)]);
    let theirs = rails(&[("0.3", 10_000), ("0.4", 10_000), ("0.5", 10_000), ("0.6", 10_000)]);
    let found = paired(&ours, &theirs, Reach::Unknown);
    assert_eq!(found.len(), 4);
    let of_fast = found.iter().filter(|(our, _)| *our == 1).count();
    assert!(of_fast >= 2, "{found:?}");
    // One against several, on either side.
    let one = rails(&[("0.1", 10_000)]);
    assert_eq!(paired(&one, &theirs, Reach::Unknown), [(0, 0), (0, 1), (0, 2), (0, 3)]);
    assert_eq!(paired(&theirs, &one, Reach::Unknown), [(0, 0), (1, 0), (2, 0), (3, 0)]);
}

#[test]
fn unreachable_rails_are_never_paired() {
    let ours = rails(&[("0.1", 1000), ("1.1", 1000)]);
    let theirs = rails(&[("2.1", 1000), ("3.1", 1000)]);
    assert_eq!(paired(&ours, &theirs, Reach::Unreachable), []);
    assert_eq!(pairs(&ours, &[], |_, _| Reach::Direct), []);
    assert_eq!(pairs(&[], &theirs, |_, _| Reach::Direct), []);
    let six = [rail("fd00::1", 1000)];
    assert_eq!(pairs(&ours, &six, |_, _| Reach::Direct), []);
    // Two that can only share: each gets its path.
    let one_way = |our: usize, their: usize| match (our, their) {
        (0, 0) => Reach::Direct,
        (0, 1) | (1, 0) => Reach::Routed,
        _ => Reach::Unreachable,
    };
    let mut found = pairs(&ours, &theirs, one_way);
    assert_eq!(found[0], (0, 0));
    found.sort_unstable();
    assert_eq!(found, [(0, 0), (0, 1), (1, 0)]);
}

/// Returns the maximum weight of any choice of pairs, by exhaustive search.
fn best_worth(worth: &[Vec<i128>], row: usize, taken: u32) -> i128 {
    let Some(columns) = worth.get(row) else { return 0 };
    let without = best_worth(worth, row + 1, taken);
    let free = (0..columns.len()).filter(|column| taken & (1 << column) == 0);
    let with = free.map(|column| columns[column] + best_worth(worth, row + 1, taken | 1 << column));
    with.max().unwrap_or(0).max(without)
}

fn any_rail() -> impl Strategy<Value = RailInfo> {
    let role = proptest::sample::select(vec![0, 0, ROLE_PREFERRED, ROLE_BACKUP]);
    let speed = proptest::sample::select(vec![0, 1000, 10_000, 25_000, 100_000, u32::MAX]);
    (0..4_u8, 1..=250_u8, speed, role).prop_map(|(network, host, speed_mbps, role)| RailInfo {
        address: IpAddr::from([10, network, 0, host]),
        speed_mbps,
        role,
    })
}

/// Generates lists of distinct addresses, and how each reaches each.
fn any_case() -> impl Strategy<Value = (Vec<RailInfo>, Vec<RailInfo>, u64)> {
    (vec(any_rail(), 1..=RAILS_MAX), vec(any_rail(), 1..=RAILS_MAX), any::<u64>()).prop_map(
        |(mut ours, mut theirs, salt)| {
            for list in [&mut ours, &mut theirs] {
                list.sort_by_key(|rail| rail.address);
                list.dedup_by_key(|rail| rail.address);
            }
            (ours, theirs, salt)
        },
    )
}

/// Returns an arbitrary but fixed reach for two addresses.
fn reach_of(our: &RailInfo, their: &RailInfo, salt: u64) -> Reach {
    let bits = |rail: &RailInfo| match rail.address {
        IpAddr::V4(v4) => u64::from(v4.to_bits()),
        IpAddr::V6(_) => 0,
    };
    let mixed = (bits(our) << 32 ^ bits(their) ^ salt).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    match mixed >> 61 {
        0 | 1 => Reach::Direct,
        2 => Reach::Routed,
        3 => Reach::Unknown,
        _ => Reach::Unreachable,
    }
}

proptest! {
    #[test]
    fn matching_is_optimal(
        worth in (0..6_usize).prop_flat_map(|columns| vec(vec(0..20_i128, columns), 0..6)),
    ) {
        let found = matching(&worth);
        let (mut rows, mut columns) = (0_u32, 0_u32);
        let mut sum = 0;
        for (row, column) in found {
            prop_assert!(rows & (1 << row) == 0 && columns & (1 << column) == 0);
            (rows, columns) = (rows | 1 << row, columns | 1 << column);
            prop_assert!(worth[row][column] > 0);
            sum += worth[row][column];
        }
        prop_assert_eq!(sum, best_worth(&worth, 0, 0));
    }

    #[test]
    fn every_reachable_rail_is_paired(case in any_case()) {
        let (ours, theirs, salt) = case;
        let reach = |our: usize, their: usize| reach_of(&ours[our], &theirs[their], salt);
        let found = pairs(&ours, &theirs, reach);
        for (at, pair) in found.iter().enumerate() {
            prop_assert!(!found[..at].contains(pair), "{:?} twice", pair);
            prop_assert_ne!(reach(pair.0, pair.1), Reach::Unreachable);
        }
        prop_assert!(found.len() < ours.len() + theirs.len());
        for our in 0..ours.len() {
            let reaches = (0..theirs.len()).any(|their| reach(our, their) != Reach::Unreachable);
            prop_assert_eq!(found.iter().any(|pair| pair.0 == our), reaches);
        }
        for their in 0..theirs.len() {
            let reached = (0..ours.len()).any(|our| reach(our, their) != Reach::Unreachable);
            prop_assert_eq!(found.iter().any(|pair| pair.1 == their), reached);
        }
    }

    #[test]
    fn equal_reachable_lists_are_paired_one_to_one(
        case in any_case(), other in prop_oneof![Just(Reach::Routed), Just(Reach::Unknown)],
    ) {
        let (mut ours, mut theirs, _) = case;
        let count = ours.len().min(theirs.len());
        ours.truncate(count);
        theirs.truncate(count);
        let found = paired(&ours, &theirs, other);
        prop_assert_eq!(found.len(), count);
        let mut reached: Vec<_> = found.iter().map(|pair| pair.1).collect();
        reached.sort_unstable();
        reached.dedup();
        prop_assert_eq!(reached.len(), count);
        prop_assert!(found.windows(2).all(|two| two[0].0 != two[1].0));
    }

    #[test]
    fn list_order_does_not_matter(
        case in any_case(), seed_ours: u64, seed_theirs: u64,
    ) {
        let (ours, theirs, salt) = case;
        let addresses = |ours: &[RailInfo], theirs: &[RailInfo]| {
            let reach = |our: usize, their: usize| reach_of(&ours[our], &theirs[their], salt);
            let found = pairs(ours, theirs, reach).into_iter();
            let mut found: Vec<_> =
                found.map(|(our, their)| (ours[our].address, theirs[their].address)).collect();
            found.sort_unstable();
            found
        };
        let shuffled = |list: &[RailInfo], seed: u64| {
            let mut list = list.to_vec();
            list.sort_by_key(|rail| {
                let IpAddr::V4(v4) = rail.address else { return 0 };
                (u64::from(v4.to_bits()) ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15)
            });
            list
        };
        let wanted = addresses(&ours, &theirs);
        let (ours, theirs) = (shuffled(&ours, seed_ours), shuffled(&theirs, seed_theirs));
        prop_assert_eq!(addresses(&ours, &theirs), wanted);
    }
}
