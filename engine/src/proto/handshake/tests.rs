//! Valid exchanges, and attacks on them without the secret.

use std::collections::HashSet;

use proptest::prelude::*;
use zerocopy::FromBytes;

use super::*;
use crate::secret::JobSecret;
use crate::types::Address;
use crate::wire::hello::{HELLO_BYTES, HELLO_REPLY_BYTES, KIND_CONTROL, MAGIC};

fn bare_hello(kind: u8) -> Hello {
    let mut hello = Hello::read_from_bytes(&[0; HELLO_BYTES]).unwrap();
    (hello.magic, hello.version, hello.kind) = (MAGIC, VERSION.into(), kind);
    (hello.source, hello.target, hello.session) = (1.into(), 2.into(), 3.into());
    (hello.lane, hello.epoch) = (4.into(), 5.into());
    hello
}

/// Returns the address at which the peer listens.
fn remote() -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 2], 77))
}

/// Returns a reply of another engine than the peer, at the peer's address where the status requires
/// it.
fn bare_reply(status: HelloStatus) -> HelloReply {
    let engine = if status == HelloStatus::WrongEngine { 20 } else { 2 };
    reply_of(status, Address::new(engine, remote(), 0))
}

fn reply_of(status: HelloStatus, address: Address) -> HelloReply {
    let mut reply = HelloReply::read_from_bytes(&[0; HELLO_REPLY_BYTES]).unwrap();
    (reply.magic, reply.version, reply.status) = (MAGIC, VERSION.into(), status as u8);
    reply.address = address.to_wire();
    reply
}

fn job() -> JobKeys {
    JobKeys::new(Some(&JobSecret::random()))
}

/// Runs an exchange up to the reply.
fn exchange(keys: &JobKeys, nonces: [u8; 2]) -> (Initiator, HelloReply, Acceptor) {
    let initiator = Initiator::start(keys, bare_hello(KIND_CONTROL), [nonces[0]; 16], remote());
    assert!(is_of_job(keys, initiator.hello()));
    let reply = bare_reply(HelloStatus::Accepted);
    let (reply, acceptor) = Acceptor::answer(keys, initiator.hello(), reply, [nonces[1]; 16]);
    (initiator, reply, acceptor)
}

fn is_same_session(a: &SessionKeys, b: &SessionKeys) -> bool {
    let tag = |keys: &SessionKeys| (keys.join.tag(&[b"x"]), keys.lane(1, true).send.tag(b"x"));
    tag(a) == tag(b)
}

/// Returns `bytes` with each of their bits flipped in turn.
fn flips<T: FromBytes + IntoBytes + zerocopy::Immutable>(value: &T) -> impl Iterator<Item = T> {
    let bytes = value.as_bytes().to_vec();
    (0..bytes.len() * 8).map(move |bit| {
        let mut bytes = bytes.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        T::read_from_bytes(&bytes).unwrap()
    })
}

#[test]
fn both_sides_derive_the_same_keys() {
    for keys in [job(), JobKeys::new(None)] {
        let (initiator, reply, acceptor) = exchange(&keys, [1, 2]);
        let (status, accepted) = initiator.handle_reply(&keys, &reply).unwrap();
        assert_eq!(status, HelloStatus::Accepted);
        let theirs = acceptor.handle_proof(&accepted.proof).unwrap();
        assert!(is_same_session(&accepted.keys, &theirs));
        let (other, reply, _) = exchange(&keys, [1, 3]);
        let (_, other) = other.handle_reply(&keys, &reply).unwrap();
        assert!(!is_same_session(&other.keys, &theirs), "the nonces differ");
    }
}

#[test]
fn wrong_or_missing_secret_is_rejected_by_either_side() {
    let keys = [job(), job(), JobKeys::new(None)];
    for (i, ours) in keys.iter().enumerate() {
        for theirs in keys.iter().skip(i + 1) {
            for (initiator_keys, acceptor_keys) in [(ours, theirs), (theirs, ours)] {
                let hello = bare_hello(KIND_CONTROL);
                let initiator = Initiator::start(initiator_keys, hello, [1; 16], remote());
                assert!(!is_of_job(acceptor_keys, initiator.hello()));
                let reply = bare_reply(HelloStatus::WrongSecret);
                let (reply, _) = Acceptor::answer(acceptor_keys, initiator.hello(), reply, [2; 16]);
                let error = initiator.handle_reply(initiator_keys, &reply).unwrap_err();
                assert_eq!(error, Distrust::Secret);
            }
        }
    }
}

#[test]
fn any_flipped_bit_is_rejected() {
    let keys = job();
    let (initiator, reply, acceptor) = exchange(&keys, [1, 2]);
    for forged in flips(initiator.hello()) {
        assert!(!is_of_job(&keys, &forged));
    }
    for forged in flips(&reply) {
        assert!(initiator.handle_reply(&keys, &forged).is_err());
    }
    let (_, accepted) = initiator.handle_reply(&keys, &reply).unwrap();
    // The four reserved bytes have no meaning yet.
    let meaningful = |forged: &Proof| forged.reserved == accepted.proof.reserved;
    for forged in flips(&accepted.proof).filter(meaningful) {
        assert_eq!(acceptor.clone().handle_proof(&forged).unwrap_err(), Distrust::Secret);
    }
    // An acceptance cannot be made of a refusal, or the other way round.
    let refusal = bare_reply(HelloStatus::WrongEngine);
    let (refusal, _) = Acceptor::answer(&keys, initiator.hello(), refusal, [2; 16]);
    let (status, _) = initiator.handle_reply(&keys, &refusal).unwrap();
    assert_eq!(status, HelloStatus::WrongEngine);
    let forged = HelloReply { status: HelloStatus::Accepted as u8, ..refusal };
    assert!(initiator.handle_reply(&keys, &forged).is_err());
}

/// RR-AUTH-10
#[test]
fn reply_with_foreign_address_is_rejected() {
    let keys = job();
    let initiator = Initiator::start(&keys, bare_hello(KIND_CONTROL), [1; 16], remote());
    let (_, _, acceptor) = exchange(&keys, [1, 2]);
    let session = acceptor.keys;
    let join = Initiator::join(&session, bare_hello(KIND_BULK), [1; 16], remote());
    let elsewhere = SocketAddr::from(([10, 0, 0, 3], 77));
    let other_port = SocketAddr::from(([10, 0, 0, 2], 78));
    let with_rail = Locators::of(elsewhere, [remote().ip()].into_iter());
    use HelloStatus::{Accepted, Busy, Leaving, UnknownSession, WrongEngine};
    for (status, address, is_believed) in [
        (WrongEngine, Address::new(20, remote(), 0), true),
        (WrongEngine, Address::new(20, with_rail, 5), true),
        (WrongEngine, Address::new(20, elsewhere, 0), false),
        (WrongEngine, Address::new(20, other_port, 0), false),
        (WrongEngine, Address::new(2, remote(), 0), false),
        // For itself the peer may reply from any address.
        (Accepted, Address::new(2, elsewhere, 0), true),
        (UnknownSession, Address::new(2, elsewhere, 0), true),
        (Leaving, Address::new(2, remote(), 0), true),
        (Leaving, Address::new(20, remote(), 0), false),
        (Busy, Address::new(20, elsewhere, 0), false),
    ] {
        let bare = reply_of(status, address);
        let (reply, _) = Acceptor::answer(&keys, initiator.hello(), bare, [2; 16]);
        let believed = initiator.handle_reply(&keys, &reply).map(|(status, _)| status);
        let expected =
            if is_believed { Ok(status) } else { Err(Distrust::Elsewhere(address.locator())) };
        assert_eq!(believed, expected, "{status:?} of {address:?}");
        let session_of_it = matches!(status, Accepted | Busy).then_some(&session);
        let reply = answer_join(&keys, session_of_it, join.hello(), bare, [2; 16]);
        let believed = join.handle_join_reply(&keys, &session, &reply);
        assert_eq!(believed, expected, "{status:?} of {address:?}, to a join");
    }
}

#[test]
fn messages_cannot_be_replayed_in_another_exchange() {
    let keys = job();
    let (initiator, reply, acceptor) = exchange(&keys, [1, 2]);
    let (_, accepted) = initiator.handle_reply(&keys, &reply).unwrap();
    // The hello again: its tag is valid, the reply has a new nonce, the old proof is invalid.
    let again = bare_reply(HelloStatus::Accepted);
    let (_, replayed) = Acceptor::answer(&keys, initiator.hello(), again, [3; 16]);
    assert!(replayed.handle_proof(&accepted.proof).is_err());
    // An old reply to a new hello.
    let (fresh, _, _) = exchange(&keys, [4, 2]);
    assert!(fresh.handle_reply(&keys, &reply).is_err());
    // The acceptor's own proof, reflected.
    let reflected = Proof { proof: reply.proof, ..accepted.proof };
    assert!(acceptor.handle_proof(&reflected).is_err());
}

#[test]
fn joins_and_their_replies_are_bound_to_the_session() {
    let keys = job();
    let (initiator, reply, acceptor) = exchange(&keys, [1, 2]);
    let (_, accepted) = initiator.handle_reply(&keys, &reply).unwrap();
    let ours = accepted.keys;
    let theirs = acceptor.handle_proof(&accepted.proof).unwrap();
    let join = Initiator::join(&ours, bare_hello(KIND_BULK), [7; 16], remote());
    assert!(is_of_session(&theirs, join.hello()));
    for forged in flips(join.hello()) {
        assert!(!is_of_session(&theirs, &forged));
    }
    // The hello of a control lane is no join, and the join key makes no hello.
    assert!(!is_of_session(&theirs, initiator.hello()));
    assert!(!is_of_job(&keys, join.hello()));
    let (other, reply, _) = exchange(&keys, [1, 9]);
    let (_, other) = other.handle_reply(&keys, &reply).unwrap();
    assert!(!is_of_session(&other.keys, join.hello()), "of another session");

    let accepted = bare_reply(HelloStatus::Accepted);
    let accepted = answer_join(&keys, Some(&theirs), join.hello(), accepted, [8; 16]);
    let status = join.handle_join_reply(&keys, &ours, &accepted);
    assert_eq!(status, Ok(HelloStatus::Accepted));
    for forged in flips(&accepted) {
        assert!(join.handle_join_reply(&keys, &ours, &forged).is_err());
    }
    let unknown = bare_reply(HelloStatus::UnknownSession);
    let unknown = answer_join(&keys, None, join.hello(), unknown, [8; 16]);
    let status = join.handle_join_reply(&keys, &ours, &unknown);
    assert_eq!(status, Ok(HelloStatus::UnknownSession));
    // A peer with the job's secret but without the session's keys cannot accept a lane.
    let pretended = bare_reply(HelloStatus::Accepted);
    let pretended = answer_join(&keys, None, join.hello(), pretended, [8; 16]);
    assert!(join.handle_join_reply(&keys, &ours, &pretended).is_err());
}

proptest! {
    #[test]
    fn lane_number_joins_once(numbers in prop::collection::vec(0u32..200, 1..400)) {
        let mut window = JoinWindow::default();
        let mut used = HashSet::new();
        let mut highest = 0;
        for number in numbers {
            let is_old = highest >= number + 64;
            let expected = !is_old && used.insert(number);
            prop_assert_eq!(window.use_up(number), expected);
            highest = highest.max(number);
        }
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(
        hello in prop::array::uniform32(any::<u8>()),
        reply in prop::collection::vec(any::<u8>(), HELLO_REPLY_BYTES),
    ) {
        let keys = JobKeys::new(None);
        let bytes = hello.iter().copied().cycle().take(HELLO_BYTES).collect::<Vec<_>>();
        prop_assert!(!is_of_job(&keys, &Hello::read_from_bytes(&bytes).unwrap()));
        let initiator = Initiator::start(&keys, bare_hello(KIND_CONTROL), [1; 16], remote());
        let reply = HelloReply::read_from_bytes(&reply).unwrap();
        prop_assert!(initiator.handle_reply(&keys, &reply).is_err());
    }
}

#[test]
fn highest_lane_number_is_handled() {
    let mut window = JoinWindow::default();
    assert!(window.use_up(u32::MAX) && !window.use_up(u32::MAX));
    assert!(window.use_up(u32::MAX - 63) && !window.use_up(u32::MAX - 64));
}
