//! Pairing of the rails of one side with those of the other.
//!
//! The side that opened the session decides, so that no agreement is needed. It uses both lists,
//! and how its own rails reach the addresses of the other side. Criteria, in descending priority:
//!
//! 1. as many pairs as possible on one network, without a possibly slower router;
//! 2. as many pairs as possible, only where a route exists;
//! 3. pairs of equal roles, so that a backup is paired with a backup;
//! 4. similar addresses: where each rail is a network of its own with a router, hosts usually have
//!    the rail's number in the same position of their addresses;
//! 5. the highest total rate of all pairs, which pairs equal speeds: 10 + 1 Gb/s and 10 + 1 Gb/s
//!    give 11 one way and 2 the other;
//! 6. equal positions in the order of addresses.
//!
//! Every rail is in one pair. Where one side has more rails than the other, the remaining ones are
//! paired again, with rails that have the most spare rate: a fast rail thereby serves two slow
//! ones, and no working surplus NIC is idle while the only paired one fails. This costs a few
//! packets per second. Paths that share a rail share its rate: lanes pull, none has a fixed share.

use std::net::IpAddr;

use super::RailInfo;

/// How an address of the other side is reached from a rail.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum Reach {
    /// Only an attempt can show.
    #[default]
    Unknown,
    /// It is on the network of the rail.
    Direct,
    /// Through a router.
    Routed,
    /// No route from this rail.
    Unreachable,
}

/// Leading bits of addresses that identify networks. The others identify hosts.
const NETWORK_BITS_V4: u32 = 24;
const NETWORK_BITS_V6: u32 = 64;

/// Bits for each criterion in a pair's weight, so that 16 pairs of a later one never outweigh one
/// of an earlier one.
const ORDER_BITS: u32 = 8;
const SPEED_BITS: u32 = 36;
const LIKENESS_BITS: u32 = 11;
const ROLE_BITS: u32 = 5;
const COUNT_BITS: u32 = 5;

/// Returns pairs `(ours, theirs)` of positions in the two lists, the best first: each rail that
/// reaches any of the other side is in at least one, and in more than one only where the lists are
/// unequal.
///
/// `reach` returns how a rail of ours reaches one of theirs; it is called once for each two. The
/// pairs of addresses do not depend on the order of the lists.
///
/// RR-RAIL-2.
pub(crate) fn pairs(
    ours: &[RailInfo],
    theirs: &[RailInfo],
    mut reach: impl FnMut(usize, usize) -> Reach,
) -> Vec<(usize, usize)> {
    let (ours_sorted, theirs_sorted) = (sorted(ours), sorted(theirs));
    let reaches: Vec<Vec<Reach>> = ours_sorted
        .iter()
        .map(|our| theirs_sorted.iter().map(|their| reach(*our, *their)).collect())
        .collect();
    let worth = |one: usize, other: usize, spare: (u64, u64)| {
        let (our, their) = (&ours[ours_sorted[one]], &theirs[theirs_sorted[other]]);
        worth_of(our, their, reaches[one][other], spare, one.abs_diff(other))
    };
    let mut our_spare: Vec<u64> = ours_sorted.iter().map(|at| speed(&ours[*at])).collect();
    let mut their_spare: Vec<u64> = theirs_sorted.iter().map(|at| speed(&theirs[*at])).collect();
    let mut ours_left: Vec<usize> = (0..ours.len()).collect();
    let mut theirs_left: Vec<usize> = (0..theirs.len()).collect();
    let mut pairs = Vec::new();
    let all = |count| (0..count).collect::<Vec<_>>();
    loop {
        // All at first; then the remaining ones of one side, with all of the other.
        let (rows, columns) = match (ours_left.is_empty(), theirs_left.is_empty()) {
            (true, true) => break,
            (true, false) => (all(ours.len()), theirs_left.clone()),
            (false, _) => (ours_left.clone(), all(theirs.len())),
        };
        let table: Vec<Vec<i128>> = rows
            .iter()
            .map(|&one| {
                let spare = |other: usize| (our_spare[one], their_spare[other]);
                columns.iter().map(|&other| worth(one, other, spare(other))).collect()
            })
            .collect();
        let mut found: Vec<_> = matching(&table)
            .into_iter()
            .map(|(row, column)| (table[row][column], rows[row], columns[column]))
            .collect();
        if found.is_empty() {
            // The remaining rails of ours reach none; theirs may be reached all the same.
            if ours_left.is_empty() || theirs_left.is_empty() || pairs.is_empty() {
                break;
            }
            ours_left.clear();
            continue;
        }
        found.sort_by_key(|(worth, one, other)| (std::cmp::Reverse(*worth), *one, *other));
        for (_, one, other) in found {
            let used = our_spare[one].min(their_spare[other]);
            our_spare[one] -= used;
            their_spare[other] -= used;
            ours_left.retain(|left| *left != one);
            theirs_left.retain(|left| *left != other);
            let pair = (ours_sorted[one], theirs_sorted[other]);
            debug_assert!(!pairs.contains(&pair), "two rails are paired once");
            pairs.push(pair);
        }
    }
    pairs
}

/// Returns positions in an order that is independent of the list's.
fn sorted(rails: &[RailInfo]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..rails.len()).collect();
    order.sort_by_key(|at| (rails[*at].address, rails[*at].speed_mbps, rails[*at].role));
    order
}

/// Returns the speed of a rail, with a default if it is unknown.
fn speed(rail: &RailInfo) -> u64 {
    const USUAL_MBPS: u64 = 10_000;
    if rail.speed_mbps == 0 { USUAL_MBPS } else { rail.speed_mbps.into() }
}

/// Returns the weight of a pair; 0: not permitted.
fn worth_of(
    our: &RailInfo,
    their: &RailInfo,
    reach: Reach,
    spare: (u64, u64),
    places_apart: usize,
) -> i128 {
    let is_direct = reach == Reach::Direct;
    if reach == Reach::Unreachable || our.address.is_ipv4() != their.address.is_ipv4() {
        return 0;
    }
    let most = if our.address.is_ipv4() { NETWORK_BITS_V4 } else { NETWORK_BITS_V6 };
    let likeness = if is_direct { most } else { common_bits(our.address, their.address).min(most) };
    let is_like = our.role == their.role;
    let order = 15_usize.saturating_sub(places_apart);
    let wishes = [
        (COUNT_BITS, u64::from(is_direct)),
        (COUNT_BITS, 1),
        (ROLE_BITS, u64::from(is_like)),
        (LIKENESS_BITS, likeness.into()),
        (SPEED_BITS, spare.0.min(spare.1)),
        (ORDER_BITS, order as u64),
    ];
    wishes.into_iter().fold(0, |worth, (bits, wish)| (worth << bits) + i128::from(wish))
}

/// Returns the number of leading bits that two addresses of one family share.
fn common_bits(one: IpAddr, other: IpAddr) -> u32 {
    match (one, other) {
        (IpAddr::V4(one), IpAddr::V4(other)) => (one.to_bits() ^ other.to_bits()).leading_zeros(),
        (IpAddr::V6(one), IpAddr::V6(other)) => (one.to_bits() ^ other.to_bits()).leading_zeros(),
        _ => 0,
    }
}

/// Returns the pairs `(row, column)` of maximum total weight, each row and column at most once,
/// without pairs of weight 0.
///
/// Hungarian method with potentials (Kuhn, Munkres; as by Jonker and Volgenant one row after the
/// other by shortest augmenting paths), cubic in the longer side.
fn matching(worth: &[Vec<i128>]) -> Vec<(usize, usize)> {
    let size = worth.len().max(worth.first().map_or(0, Vec::len));
    let cost = |row: usize, column: usize| {
        -worth.get(row).and_then(|row| row.get(column)).copied().unwrap_or(0)
    };
    // Row and column 0 stand for "none"; others count from 1.
    let (mut row_potential, mut column_potential) = (vec![0; size + 1], vec![0; size + 1]);
    let mut row_of = vec![0; size + 1];
    for row in 1..=size {
        row_of[0] = row;
        let mut slack = vec![i128::MAX; size + 1];
        let mut came_from = vec![0; size + 1];
        let mut is_done = vec![false; size + 1];
        let mut column = 0;
        while row_of[column] != 0 {
            is_done[column] = true;
            let here = row_of[column];
            let (mut step, mut next) = (i128::MAX, 0);
            for other in (1..=size).filter(|other| !is_done[*other]) {
                let reduced =
                    cost(here - 1, other - 1) - row_potential[here] - column_potential[other];
                if reduced < slack[other] {
                    (slack[other], came_from[other]) = (reduced, column);
                }
                if slack[other] < step {
                    (step, next) = (slack[other], other);
                }
            }
            for other in 0..=size {
                if is_done[other] {
                    row_potential[row_of[other]] += step;
                    column_potential[other] -= step;
                } else {
                    slack[other] = slack[other].saturating_sub(step);
                }
            }
            column = next;
        }
        while column != 0 {
            row_of[column] = row_of[came_from[column]];
            column = came_from[column];
        }
    }
    debug_assert!(row_of[1..].iter().all(|&row| row != 0), "each column has a row");
    let found = (1..=size).map(|column| (row_of[column] - 1, column - 1));
    found.filter(|(row, column)| cost(*row, *column) < 0).collect()
}

#[cfg(test)]
mod tests;
