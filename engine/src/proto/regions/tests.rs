//! Regions, keys and refusals, compared with a model.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use proptest::prelude::*;

use super::throttle::{WRONG_KEYS_BURST, WRONG_KEYS_PER_SECOND};
use super::*;
use crate::counting;

const READ: Access = Access::REMOTE_READ;
const WRITE: Access = Access::REMOTE_WRITE;

const INTERVAL_NS: u64 = 1_000_000_000 / WRONG_KEYS_PER_SECOND;

fn regions(keys: usize) -> Regions {
    Regions::new(RegionLimits { regions: 8, keys }, 0x5eed)
}

fn chosen(key: u64, offset: u64, length: u64) -> KeyRequest {
    KeyRequest { key: Some(key), offset, length, access: READ | WRITE, peers: None }
}

fn no_random() -> u64 {
    unreachable!("the key is chosen")
}

/// Returns reproducible pseudo-random numbers.
fn numbers(mut state: u64) -> impl FnMut() -> u64 {
    move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

#[derive(Clone, Debug)]
enum Step {
    Open(u64),
    Close(usize),
    Add { region: usize, key: u64, offset: u64, length: u64, access: u8, peers: Option<Vec<u64>> },
    Revoke(u64),
    Check { peer: u64, key: u64, offset: u64, length: u64, access: u8, begin: bool },
    End(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let number = || prop_oneof![0u64..40, Just(u64::MAX), Just(u64::MAX - 7)];
    let key = || prop_oneof![0u64..12, Just(u64::MAX)];
    let peers = prop::option::of(prop::collection::vec(0u64..4, 0..4));
    prop_oneof![
        1 => (0u64..64).prop_map(Step::Open),
        1 => (0usize..8).prop_map(Step::Close),
        6 => (0usize..8, key(), number(), number(), 0u8..8, peers).prop_map(
            |(region, key, offset, length, access, peers)| {
                Step::Add { region, key, offset, length, access, peers }
            }
        ),
        2 => key().prop_map(Step::Revoke),
        9 => (0u64..4, key(), number(), number(), 0u8..8, any::<bool>()).prop_map(
            |(peer, key, offset, length, access, begin)| {
                Step::Check { peer, key, offset, length, access, begin }
            }
        ),
        3 => (0usize..8).prop_map(Step::End),
    ]
}

proptest! {
    #[test]
    fn grants_match_a_simple_list(steps in prop::collection::vec(step(), 0..120)) {
        const KEYS: usize = 6;
        let mut table = regions(KEYS);
        let mut opened: Vec<(Id, u64, bool)> = Vec::new();
        // Valid keys: region, request. Placements: name, session, region.
        let mut keys: BTreeMap<u64, (Id, KeyRequest)> = BTreeMap::new();
        let mut placed: Vec<(KeyName, u32, Id)> = Vec::new();
        let mut violations = Violations::default();
        for step in steps {
            match step {
                Step::Open(length) => {
                    let alive = opened.iter().filter(|(id, ..)| table.is_open(*id)).count();
                    let id = table.open(length);
                    prop_assert_eq!(id.is_some(), alive < 8);
                    opened.extend(id.map(|id| (id, length, true)));
                }
                Step::Close(at) => {
                    let Some(region) = opened.get_mut(at) else { continue };
                    table.close(region.0);
                    region.2 = false;
                    let id = region.0;
                    keys.retain(|_, (of, _)| *of != id);
                    prop_assert_eq!(table.is_open(id), placed.iter().any(|it| it.2 == id));
                }
                Step::Add { region, key, offset, length, access, peers } => {
                    let Some(&(id, bytes, open)) = opened.get(region) else { continue };
                    let access = Access::from_bits_retain(access);
                    let peers = peers.map(Vec::into_boxed_slice);
                    let request = KeyRequest { key: Some(key), offset, length, access, peers };
                    let kept: Vec<KeyName> = {
                        let mut kept: Vec<_> = placed.iter().map(|it| it.0).collect();
                        kept.sort_by_key(|name| (name.position, name.generation));
                        kept.dedup();
                        kept
                    };
                    let revoked = kept.iter().filter(|name| {
                        table.entries[name.position as usize].state == State::Revoked
                    });
                    let occupied = keys.len() + revoked.count();
                    let added = table.add_key(id, request.clone(), no_random);
                    let expected = if !open {
                        Err(KeyError::Closed)
                    } else if u128::from(offset) + u128::from(length) > u128::from(bytes) {
                        Err(KeyError::Range { offset, length, region_bytes: bytes })
                    } else if access.is_empty() {
                        Err(KeyError::NoAccess)
                    } else if occupied >= KEYS {
                        Err(KeyError::Full { limit: KEYS })
                    } else if let Entry::Vacant(place) = keys.entry(key) {
                        place.insert((id, request));
                        Ok(key)
                    } else {
                        Err(KeyError::Taken { key })
                    };
                    prop_assert_eq!(added, expected);
                }
                Step::Revoke(key) => {
                    let name = table.revoke(key);
                    prop_assert_eq!(name.is_some(), keys.remove(&key).is_some());
                    if let Some(name) = name {
                        let busy = placed.iter().any(|it| it.0 == name);
                        prop_assert_eq!(table.is_busy(name), busy);
                        prop_assert!(!table.begin(name, 0));
                    }
                }
                Step::Check { peer, key, offset, length, access, begin } => {
                    let access = Access::from_bits_retain(access);
                    let short = table.grant(peer, key, offset, length, access);
                    let granted = table.check(peer, key, offset, length, access, 0);
                    prop_assert_eq!(short, granted.ok().map(|it| (it.region, it.start)));
                    let known = keys.get(&key).filter(|(_, request)| {
                        request.peers.as_ref().is_none_or(|peers| peers.contains(&peer))
                    });
                    let expected = match known {
                        None => {
                            violations.key += 1;
                            Err(Refusal::Key)
                        }
                        Some((_, request)) if !request.access.contains(access) => {
                            violations.rights += 1;
                            Err(Refusal::Rights)
                        }
                        Some((_, request))
                            if u128::from(offset) + u128::from(length)
                                > u128::from(request.length) =>
                        {
                            violations.range += 1;
                            Err(Refusal::Range)
                        }
                        Some((id, request)) => Ok((*id, request.offset + offset)),
                    };
                    prop_assert_eq!(granted.map(|it| (it.region, it.start)), expected);
                    if let (Ok(granted), true) = (granted, begin) {
                        prop_assert!(table.begin(granted.key, peer as u32));
                        placed.push((granted.key, peer as u32, granted.region));
                    }
                }
                Step::End(at) => {
                    if at < placed.len() {
                        let (name, session, id) = placed.remove(at);
                        table.end(name, session);
                        prop_assert_eq!(table.is_busy(name), placed.iter().any(|it| it.0 == name));
                        let open = opened.iter().any(|it| it.0 == id && it.2);
                        let placing = placed.iter().any(|it| it.2 == id);
                        prop_assert_eq!(table.is_open(id), open || placing);
                    }
                }
            }
            prop_assert_eq!(table.violations(), violations);
            for &(name, session, id) in &placed {
                prop_assert!(table.busy(name).any(|it| it == session));
                prop_assert!(table.busy_region(id).any(|it| it == session));
            }
        }
    }

    #[test]
    fn index_behaves_like_a_map(
        steps in prop::collection::vec((any::<bool>(), 0u64..300), 0..600),
        seed: u64,
    ) {
        let mut index = Index::new(seed);
        let mut model = BTreeMap::new();
        for (position, (adds, key)) in (0u32..).zip(steps) {
            // Keys that are registration addresses are common.
            let key = if key == 299 { u64::MAX } else { key * 4096 };
            prop_assert_eq!(index.find(key), model.get(&key).copied());
            if adds && !model.contains_key(&key) {
                prop_assert!(index.insert(key, position));
                model.insert(key, position);
            } else if !adds && model.remove(&key).is_some() {
                index.remove(key);
            }
        }
        for (&key, &position) in &model {
            prop_assert_eq!(index.find(key), Some(position));
        }
    }
}

#[test]
fn key_and_access_ranges_do_not_wrap() {
    let mut table = regions(4);
    let region = table.open(u64::MAX).expect("room");
    table.add_key(region, chosen(1, 8, u64::MAX - 8), no_random).expect("inside");
    let wraps = table.add_key(region, chosen(2, u64::MAX, 2), no_random);
    assert!(matches!(wraps, Err(KeyError::Range { .. })), "{wraps:?}");
    let last = table.check(0, 1, u64::MAX - 9, 1, READ, 0).expect("the last byte");
    assert_eq!((last.region, last.start), (region, u64::MAX - 1));
    for (offset, length) in [(u64::MAX - 8, 1), (u64::MAX, 0), (1, u64::MAX), (u64::MAX, u64::MAX)]
    {
        assert_eq!(table.grant(0, 1, offset, length, READ), None);
        assert_eq!(table.check(0, 1, offset, length, READ, 0), Err(Refusal::Range));
    }
}

#[test]
fn random_keys_are_never_the_reserved_value() {
    let mut table = regions(4);
    let region = table.open(16).expect("room");
    table.add_key(region, chosen(7, 0, 16), no_random).expect("room");
    let mut drawn = [u64::MAX, 7, 0, 99].into_iter();
    let request = KeyRequest { key: None, ..chosen(0, 0, 16) };
    let mut add = || table.add_key(region, request.clone(), || drawn.next().expect("few draws"));
    assert_eq!((add(), add()), (Ok(0), Ok(99)));
    assert!(table.check(1, 0, 0, 16, READ | WRITE, 0).is_ok());
    assert_eq!(table.check(1, 0, 0, 16, Access::REMOTE_ATOMIC, 0), Err(Refusal::Rights));
}

#[test]
fn revoked_key_stays_unknown_after_its_number_is_reused() {
    let mut table = regions(2);
    let region = table.open(16).expect("room");
    table.add_key(region, chosen(5, 0, 16), no_random).expect("room");
    let old = table.check(3, 5, 0, 8, WRITE, 0).expect("granted");
    assert!(table.begin(old.key, 3) && table.begin(old.key, 3) && table.begin(old.key, 4));
    let name = table.revoke(5).expect("it was valid");
    assert_eq!((name, table.revoke(5)), (old.key, None));
    assert_eq!(table.check(3, 5, 0, 8, WRITE, 0), Err(Refusal::Key));
    // The same number, while an earlier placement is in progress.
    table.add_key(region, chosen(5, 8, 8), no_random).expect("room for one more");
    let new = table.check(3, 5, 0, 8, WRITE, 0).expect("granted");
    assert!(new.key != old.key && new.start == 8);
    assert!(table.is_busy(name) && !table.is_busy(new.key) && !table.begin(name, 3));
    let mut busy: Vec<u32> = table.busy(name).collect();
    busy.sort_unstable();
    assert_eq!(busy, [3, 4]);
    table.end(name, 3);
    table.end(name, 3);
    assert_eq!(table.busy(name).collect::<Vec<_>>(), [4]);
    table.end(name, 4);
    assert!(!table.is_busy(name));
    // Its slot is free for the next one, which has another name.
    table.add_key(region, chosen(6, 0, 8), no_random).expect("room again");
    let next = table.check(3, 6, 0, 8, WRITE, 0).expect("granted");
    assert!(next.key.position == old.key.position && next.key != old.key);
    assert!(!table.begin(old.key, 3));
}

#[test]
fn wrong_keys_throttle_the_peer_entirely() {
    let mut table = regions(4);
    let region = table.open(16).expect("room");
    let key = table.add_key(region, chosen(5, 0, 16), no_random).expect("room");
    for _ in 0..WRONG_KEYS_BURST {
        assert_eq!(table.check(1, 6, 0, 1, READ, 0), Err(Refusal::Key));
    }
    assert_eq!(table.check(1, 6, 0, 1, READ, 0), Err(Refusal::Throttled));
    assert_eq!(table.check(1, key, 0, 1, READ, 0), Err(Refusal::Throttled));
    assert_eq!(table.grant(1, key, 0, 1, READ), None);
    assert!(table.check(2, key, 0, 1, READ, 0).is_ok(), "others are not concerned");
    assert_eq!(table.check(1, key, 0, 1, READ, INTERVAL_NS - 1), Err(Refusal::Throttled));
    // One token, for one more wrong key; valid keys take none.
    for _ in 0..10 {
        assert!(table.check(1, key, 0, 1, READ, INTERVAL_NS).is_ok());
    }
    assert_eq!(table.check(1, 6, 0, 1, READ, INTERVAL_NS), Err(Refusal::Key));
    assert_eq!(table.check(1, key, 0, 1, READ, INTERVAL_NS), Err(Refusal::Throttled));
    let full = 2 * WRONG_KEYS_BURST * INTERVAL_NS;
    for _ in 0..WRONG_KEYS_BURST {
        assert_eq!(table.check(1, 6, 0, 1, READ, full), Err(Refusal::Key), "full, and no more");
    }
    assert_eq!(table.check(1, 6, 0, 1, READ, full), Err(Refusal::Throttled));
    assert_eq!(table.violations().throttled, 5);
    assert_eq!(table.violations().key, 2 * WRONG_KEYS_BURST + 1);
}

#[test]
fn throttle_memory_is_bounded() {
    let mut throttle = Throttle::new(1);
    for peer in 0..20_000 {
        throttle.wrong_key(peer, 5);
    }
    assert_eq!(throttle.peers(), throttle::PEERS_MAX);
    // A throttled peer stays so, whichever peers follow.
    for _ in 0..WRONG_KEYS_BURST {
        throttle.wrong_key(1 << 40, 5);
    }
    for peer in 20_000..30_000 {
        throttle.wrong_key(peer, 5);
    }
    assert!(throttle.is_any() && throttle.is_throttled(1 << 40, 5));
    assert!(!throttle.is_throttled(1 << 40, 5 + INTERVAL_NS) && !throttle.is_any());
}

/// Uses random keys on a table of ten thousand.
fn guess(guesses: u64) {
    let mut table = regions(10_000);
    let region = table.open(1 << 40).expect("room");
    let mut random = numbers(1);
    let request = KeyRequest { key: None, ..chosen(0, 0, 1 << 40) };
    let keys: Vec<u64> = (0..10_000)
        .map(|_| table.add_key(region, request.clone(), &mut random).expect("room"))
        .collect();
    let mut guessed = numbers(2);
    // At once: all but the first are refused without a check.
    for _ in 0..guesses {
        assert!(table.check(1, guessed(), 0, 1, READ, 0).is_err());
    }
    let looked = WRONG_KEYS_BURST;
    assert_eq!(table.violations().key, looked);
    assert_eq!(table.violations().throttled, guesses - looked);
    // So slowly that each is checked, and allocates nothing.
    let before = counting::allocations();
    for now in 0..guesses {
        let now = (now + 2 * WRONG_KEYS_BURST) * INTERVAL_NS;
        assert_eq!(table.check(1, guessed(), 0, 1, READ, now), Err(Refusal::Key));
    }
    assert_eq!(counting::allocations(), before);
    assert!(keys.iter().all(|&key| table.check(2, key, 0, 1, READ, 0).is_ok()));
}

#[test]
fn random_keys_match_nothing() {
    guess(1_000_000);
}

#[test]
#[ignore = "ten million guesses take seconds: run it where the table has changed"]
fn ten_million_random_keys_match_nothing() {
    guess(10_000_000);
}

#[test]
fn codes_of_refusals_do_not_change() {
    let codes: Vec<u8> = Refusal::ALL.iter().map(|refusal| refusal.code()).collect();
    assert_eq!(codes, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
    for refusal in Refusal::ALL {
        assert_eq!(Refusal::from_code(refusal.code()), Some(refusal));
    }
    assert_eq!((Refusal::from_code(0), Refusal::from_code(11)), (None, None));
    assert_eq!((READ.bits(), WRITE.bits(), Access::REMOTE_ATOMIC.bits()), (1, 2, 4));
}
