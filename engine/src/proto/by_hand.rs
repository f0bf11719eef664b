//! Sessions without a network: what the loops of two engines tell each other when one connects, and
//! what a peer says that opens a bulk lane.

use std::net::SocketAddr;

use zerocopy::FromZeros;

use super::core::Core;
use super::handshake::Initiator;
use super::keys::SessionKeys;
use super::session::Limits;
use crate::wire::Hello;
use crate::wire::hello::{HelloStatus, KIND_BULK};

/// Where a peer listens.
pub(super) fn locator() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 1))
}

/// A peer has connected, and offers `theirs`. Gives the slot of the session.
pub(super) fn accept(core: &mut Core, engine: u64, ours: Limits, theirs: Limits) -> u32 {
    let admission = core.judge_hello(engine, locator(), ours.session, 1, 0).unwrap();
    core.admit_peer(admission, ours, theirs, SessionKeys::for_tests()).unwrap()
}

/// Opens session `id` from one engine to another, each of which knows the other. Gives the slots at
/// both.
pub(super) fn connect(
    (opener, opener_engine): (&mut Core, u64),
    (acceptor, acceptor_engine): (&mut Core, u64),
    id: u64,
) -> [u32; 2] {
    let slot = opener.session_of(acceptor_engine).unwrap();
    opener.want_connection(slot, 0);
    let (ours, theirs) = (opener.offer(id), acceptor.offer(id));
    let other = accept(acceptor, opener_engine, theirs, ours);
    let connection = &mut opener.sessions.at_mut(slot as usize).unwrap().connection;
    connection.handle_connected(0, 1);
    connection.handle_reply(0, HelloStatus::Accepted);
    opener.establish(slot, ours, theirs, SessionKeys::for_tests());
    [slot, other]
}

/// The hello of a bulk lane, made with the keys of the session.
pub(super) fn lane_hello(engine: u64, session: u64, number: u32) -> Hello {
    let mut hello = Hello::new_zeroed();
    hello.kind = KIND_BULK;
    (hello.source, hello.session, hello.lane) = (engine.into(), session.into(), number.into());
    *Initiator::join(&SessionKeys::for_tests(), hello, [1; 16], locator()).hello()
}
