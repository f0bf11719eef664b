//! Resolution of remote endpoints that are known by a listener address.

use super::*;
use crate::proto::core::UNTAGGED;
use crate::proto::effects::CompletionLevel;
use crate::proto::hint::Hint;
use crate::proto::keys::SessionKeys;
use crate::proto::session::one_sided::Verb;
use crate::proto::session::one_sided::origin::OneSidedRequest;
use crate::proto::session::send::SendRequest;
use crate::proto::sim::{LIMITS, NoEffects, OWN, core_of, locator};

const THERE: u64 = 20;
fn place() -> Locators {
    locator().into()
}

/// RR-CONN-7
#[test]
fn address_resolves_to_the_current_engine() {
    let mut core = core_of(8);
    let peer = core.insert_peer(0, place(), 0).unwrap();
    assert_eq!(core.insert_peer(0, place(), 0), Some(peer));
    let asks = core.shared.peers.get(peer).unwrap().session;
    assert!(
        core.session(asks).unwrap().peer().is_at_place(&place())
            && core.shared.peers.by_engine.is_empty()
    );
    let elsewhere = Locators::from("10.9.9.9:1".parse::<SocketAddr>().unwrap());
    assert!(!core.session(asks).unwrap().peer().is_at_place(&elsewhere));
    let mut before = asks;
    for engine in [THERE, THERE + 1] {
        core.adopt(before, engine, place(), 0, &mut NoEffects);
        let session = core.shared.peers.get(peer).unwrap().session;
        assert_eq!(core.shared.peers.session_of(engine), Some(session));
        assert_ne!(session, before);
        assert!(
            !core.session(before).unwrap().peer().is_at_place(&place())
                && core.session(session).unwrap().peer().is_at_place(&place())
        );
        assert_eq!(core.insert_peer(0, place(), 0), Some(peer));
        assert_eq!(core.insert_peer(engine, place(), 0), Some(peer));
        assert_eq!(
            core.shared.peers.name_of(&core.sessions, peer.index() as u32).unwrap().engine,
            engine
        );
        before = session;
    }
}

/// RR-CONN-7
#[test]
fn two_addresses_of_one_endpoint_give_one_handle() {
    for is_place_first in [true, false] {
        let mut core = core_of(8);
        let names = if is_place_first { [0, THERE] } else { [THERE, 0] };
        let handles = names.map(|engine| core.insert_peer(engine, place(), 0).unwrap());
        assert_eq!(handles[0], handles[1]);
        let session = core.shared.peers.get(handles[0]).unwrap().session;
        assert_eq!(core.shared.peers.session_of(THERE), Some(session));
        assert_eq!(core.session(session).unwrap().ending().failure(), None);
    }
}

/// RR-CONN-7
#[test]
fn connecting_engine_becomes_the_peer_of_its_address() {
    for is_inserted_first in [true, false] {
        let mut core = core_of(8);
        let before = is_inserted_first.then(|| core.insert_peer(0, place(), 0).unwrap());
        let admission = core.judge_hello(THERE, place(), 9, 1, 0).unwrap();
        let keys = SessionKeys::for_tests();
        let session = core.admit_peer(admission, LIMITS, LIMITS, keys).unwrap();
        // As with a first message.
        let source = core.shared.peers.remote_of(
            session,
            core.sessions.at_mut(session as usize).unwrap().peer_mut(),
            0,
        );
        let source = source.unwrap();
        let handle = core.insert_peer(0, place(), 0).unwrap();
        assert_eq!(handle.index() as u32, source);
        assert!(before.is_none_or(|before| before == handle));
        assert_eq!(core.destination(handle).map(|to| to.session), Ok(session));
    }
}

/// RR-CONN-7
#[test]
fn second_handle_of_one_endpoint_is_refused() {
    let mut core = core_of(8);
    let elsewhere = Locators::from("10.9.9.9:1".parse::<SocketAddr>().unwrap());
    let known = core.insert_peer(THERE, elsewhere, 0).unwrap();
    let peer = core.insert_peer(0, place(), 0).unwrap();
    let asks = core.shared.peers.get(peer).unwrap().session;
    core.adopt(asks, THERE, place(), 0, &mut NoEffects);
    let session = core.session(asks).unwrap();
    assert_eq!(session.ending().failure(), Some(&PeerFailure::KnownOtherwise));
    let there = core.shared.peers.session_of(THERE).unwrap();
    assert_eq!(core.shared.peers.get(known).unwrap().session, there);
    assert_eq!(core.session(there).unwrap().ending().failure(), None);
}

/// RR-CONN-7
#[test]
fn own_address_resolves_to_the_engine_itself() {
    let mut core = core_of(8);
    let peer = core.insert_peer(0, place(), 0).unwrap();
    let asks = core.shared.peers.get(peer).unwrap().session;
    core.adopt(asks, OWN, place(), 0, &mut NoEffects);
    let session = core.shared.peers.get(peer).unwrap().session;
    assert!(core.is_loopback(session) && core.session(session).unwrap().is_connected());
}

/// RR-CONN-7
#[test]
fn operations_that_wait_for_an_address_continue_with_its_engine() {
    let mut core = core_of(8);
    core.shared_mut().endpoints_mut().open().unwrap();
    let peer = core.insert_peer(0, place(), 0).unwrap();
    let asks = core.destination(peer).unwrap().session;
    let get = OneSidedRequest {
        endpoint: 0,
        peer,
        verb: Verb::Get,
        key: 1,
        offset: 0,
        length: 8,
        level: CompletionLevel::Delivery,
        hint: Hint::None,
        data: None,
        fence: false,
        invalidates: false,
        operands: Box::default(),
    };
    let get = core.new_one_sided(get, 8).unwrap();
    core.enqueue_one_sided(get, 0);
    let send = SendRequest {
        endpoint: 0,
        peer,
        context: UNTAGGED,
        tag: 0,
        length: 8,
        level: CompletionLevel::Inject,
        hint: Hint::None,
        data: None,
        fence: true,
    };
    let send = core.new_send(&send).unwrap();
    core.enqueue(send, 0);
    core.adopt(asks, THERE, place(), 0, &mut NoEffects);
    let [asks, there] =
        [asks, core.destination(peer).unwrap().session].map(|it| core.session(it).unwrap());
    assert!(
        asks.waiting().is_empty() && asks.one_sided().has_all_staged() && asks.fences().is_empty()
    );
    assert_eq!((there.waiting(), there.fences().len()), (&[send].into(), 1));
    assert_eq!(there.one_sided().next(None), Some(get));
}

/// Peers known by place, peers known by address, and each of the former found again.
#[test]
fn very_many_places_are_found_without_a_look_at_all_sessions() {
    const PEERS: u32 = 20_000;
    let at = |number: u32| SocketAddr::from((std::net::Ipv4Addr::from(0x0a00_0000 + number), 7000));
    let sessions_max = 2 * PEERS as usize;
    let mut core = core_of(sessions_max);
    for number in 0..PEERS {
        core.insert_peer(0, Locators::from(at(number)), 0).unwrap();
        let engine = 1000 + u64::from(number);
        core.insert_peer(engine, Locators::from(at(number + PEERS)), 0).unwrap();
    }
    for number in 0..PEERS {
        let first = core.insert_peer(0, Locators::from(at(number)), 0).unwrap();
        assert_eq!(core.shared.peers.get(first).unwrap().session, 2 * number);
        // One handle of each that was inserted by its address.
        let second = core.insert_peer(0, Locators::from(at(number + PEERS)), 0).unwrap();
        assert_eq!(core.shared.peers.get(second).unwrap().session, 2 * number + 1);
    }
    assert!(
        core.shared.peers.places.looks.get() <= 4 * u64::from(PEERS),
        "{}",
        core.shared.peers.places.looks.get()
    );
}

/// RR-CONN-7
#[test]
fn a_session_that_is_forgotten_is_found_by_no_place() {
    let mut core = core_of(1);
    let asks = core.insert_peer(0, place(), 0).unwrap();
    assert!(core.remove_peer(asks, &mut NoEffects));
    core.shared.actions.clear();
    let elsewhere = Locators::from("10.9.9.9:1".parse::<SocketAddr>().unwrap());
    // It needs the slot.
    let other = core.insert_peer(0, elsewhere, 0).unwrap();
    assert_eq!(core.insert_peer(0, elsewhere, 0), Some(other));
    assert!(core.remove_peer(other, &mut NoEffects));
    core.shared.actions.clear();
    let engine = core.insert_peer(THERE, place(), 0).unwrap();
    assert_eq!(core.insert_peer(0, place(), 0), Some(engine));
    assert_eq!(core.insert_peer(0, elsewhere, 0), None, "there is no room");
    assert_eq!(core.shared.peers.places.of.len(), 0);
    assert_eq!(core.shared.peers.places.listening.as_ref().unwrap().len(), place().iter().count());
}
