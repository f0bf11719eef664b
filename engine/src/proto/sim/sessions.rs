//! Sessions without a network: the messages of two engines' loops when one connects, and the hello
//! of a bulk lane.

use std::net::SocketAddr;

use zerocopy::FromZeros;

use crate::proto::core::{Config, Core};
use crate::proto::handshake::Initiator;
use crate::proto::keys::SessionKeys;
use crate::proto::session::{Limits, NOTHING};
use crate::wire::Hello;
use crate::wire::hello::{HelloStatus, KIND_BULK};

/// Returns the locator of a peer.
pub(crate) fn locator() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 1))
}

/// The id of [`core_of`].
pub(crate) const OWN: u64 = 7;
/// Limits of a session that carries nothing.
pub(crate) const LIMITS: Limits =
    Limits { session: 9, envelope_limit: 1, byte_limit: 1, eager_limit: 1, ..NOTHING };

/// Returns a core with so many sessions at most.
pub(crate) fn core_of(sessions_max: usize) -> Core {
    Core::new(OWN, Config { sessions_max, ..Config::for_tests() }.into())
}

/// Accepts a peer's connection with the limits `theirs`. Returns the slot of the session.
pub(crate) fn accept(core: &mut Core, engine: u64, ours: Limits, theirs: Limits) -> u32 {
    accept_with(core, engine, (ours, theirs), SessionKeys::for_tests())
}

/// Accepts a connection with the given keys.
fn accept_with(
    core: &mut Core,
    engine: u64,
    (ours, theirs): (Limits, Limits),
    keys: SessionKeys,
) -> u32 {
    // Any epoch later than the previous ones.
    let epoch = core.shared_mut().peers_mut().next_epoch();
    let admission = core.judge_hello(engine, locator(), ours.session, epoch, 0).unwrap();
    core.admit_peer(admission, ours, theirs, keys).unwrap()
}

/// Opens session `id` from one engine to another, each of which knows the other. Returns the slots
/// at both.
pub(crate) fn connect(
    (opener, opener_engine): (&mut Core, u64),
    (acceptor, acceptor_engine): (&mut Core, u64),
    id: u64,
    keys: SessionKeys,
) -> [u32; 2] {
    let slot = opener.shared().peers().session_of(acceptor_engine).unwrap();
    opener.with(slot, |it, mut cx| it.connection_mut().connect(&mut cx, 0));
    let (ours, theirs) = (opener.shared().offer(id), acceptor.shared().offer(id));
    let other = accept_with(acceptor, opener_engine, (theirs, ours), keys.clone());
    let connection = opener.sessions.at_mut(slot as usize).unwrap().connection_mut();
    connection.handle_connected(0, 1);
    connection.handle_reply(0, HelloStatus::Accepted);
    opener.establish(slot, ours, theirs, keys);
    [slot, other]
}

/// Returns the hello of a bulk lane, made with the keys of the session.
pub(crate) fn lane_hello(engine: u64, session: u64, number: u32) -> Hello {
    let mut hello = Hello::new_zeroed();
    hello.kind = KIND_BULK;
    (hello.source, hello.session, hello.lane) = (engine.into(), session.into(), number.into());
    *Initiator::join(&SessionKeys::for_tests(), hello, [1; 16], locator()).hello()
}
