//! Sessions without a network for tests: the messages of two engines' loops when one connects, and
//! the frames of a peer that opens a bulk lane. Memory of operations without a loop.

use std::collections::HashMap;
use std::net::SocketAddr;

use zerocopy::FromZeros;

use super::core::Core;
use super::effects::{Effects, Ended};
use super::handshake::Initiator;
use super::keys::SessionKeys;
use super::session::Limits;
use super::table::Id;
use crate::wire::Hello;
use crate::wire::hello::{HelloStatus, KIND_BULK};

/// Returns the locator of a peer.
pub(super) fn locator() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 1))
}

/// Accepts a peer's connection with the limits `theirs`. Returns the slot of the session.
pub(super) fn accept(core: &mut Core, engine: u64, ours: Limits, theirs: Limits) -> u32 {
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
    let epoch = core.next_epoch();
    let admission = core.judge_hello(engine, locator(), ours.session, epoch, 0).unwrap();
    core.admit_peer(admission, ours, theirs, keys).unwrap()
}

/// Opens session `id` from one engine to another, each of which knows the other. Returns the slots
/// at both.
pub(super) fn connect(opener: (&mut Core, u64), acceptor: (&mut Core, u64), id: u64) -> [u32; 2] {
    connect_with(opener, acceptor, id, SessionKeys::for_tests())
}

/// Opens a session with the given keys.
pub(super) fn connect_with(
    (opener, opener_engine): (&mut Core, u64),
    (acceptor, acceptor_engine): (&mut Core, u64),
    id: u64,
    keys: SessionKeys,
) -> [u32; 2] {
    let slot = opener.session_of(acceptor_engine).unwrap();
    opener.want_connection(slot, 0);
    let (ours, theirs) = (opener.offer(id), acceptor.offer(id));
    let other = accept_with(acceptor, opener_engine, (theirs, ours), keys.clone());
    let connection = &mut opener.sessions.at_mut(slot as usize).unwrap().connection;
    connection.handle_connected(0, 1);
    connection.handle_reply(0, HelloStatus::Accepted);
    opener.establish(slot, ours, theirs, keys);
    [slot, other]
}

/// Returns the hello of a bulk lane, made with the keys of the session.
pub(super) fn lane_hello(engine: u64, session: u64, number: u32) -> Hello {
    let mut hello = Hello::new_zeroed();
    hello.kind = KIND_BULK;
    (hello.source, hello.session, hello.lane) = (engine.into(), session.into(), number.into());
    *Initiator::join(&SessionKeys::for_tests(), hello, [1; 16], locator()).hello()
}

/// The memory of an engine's operations, and their results.
#[derive(Default)]
pub(super) struct Memory {
    pub(super) bytes: HashMap<Id, Vec<u8>>,
    /// Bytes placed by the protocol into receives that have not ended.
    placed: HashMap<Id, usize>,
    /// Results, with the step.
    pub(super) ended: HashMap<Id, (Ended, u64, Vec<u8>)>,
    /// The current step, recorded with results.
    pub(super) now: u64,
    /// Slices of multi-receives: the receive, and the offset in it.
    pub(super) slices: HashMap<Id, (Id, usize)>,
    /// How often memory that peers may read was revoked.
    pub(super) revocations: u64,
}

impl Memory {
    /// Discards the placed bytes of a message: all of it is received again.
    pub(super) fn begin_anew(&mut self, operation: Id) {
        self.placed.remove(&operation);
    }
}

impl Effects for Memory {
    fn place(&mut self, operation: Id, offset: usize, bytes: &[u8]) {
        let memory = self.bytes.get_mut(&operation).expect("no placement after the end");
        memory[offset..offset + bytes.len()].copy_from_slice(bytes);
        *self.placed.entry(operation).or_default() += bytes.len();
    }

    fn copy(&mut self, _: Id, _: Id, _: u64, _: u64) {
        unreachable!("the peer is another engine")
    }

    fn checksum(&self, _: Id, _: u64, _: u32) -> u32 {
        unreachable!("no side wants checksums")
    }

    fn slice(&mut self, receive: Id, slice: Id, offset: u64, length: u64) {
        let (offset, end) = (offset as usize, (offset + length) as usize);
        let room = &self.bytes[&receive][offset..end];
        assert!(room.iter().all(|&byte| byte == 0xee), "no two messages share memory");
        self.bytes.insert(slice, room.to_vec());
        self.slices.insert(slice, (receive, offset));
    }

    fn revoke(&mut self) {
        self.revocations += 1;
    }

    fn complete(&mut self, operation: Id, ended: Ended) {
        let bytes = self.bytes.remove(&operation).expect("an ended operation was begun");
        if let (Ended::Received(arrival), Some(placed)) = (&ended, self.placed.remove(&operation)) {
            assert_eq!(placed as u64, arrival.length.min(bytes.len() as u64), "each byte once");
        }
        if let Some(&(receive, offset)) = self.slices.get(&operation) {
            let whole = self.bytes.get_mut(&receive).expect("slices end before their receive");
            whole[offset..offset + bytes.len()].copy_from_slice(&bytes);
        }
        let earlier = self.ended.insert(operation, (ended, self.now, bytes));
        assert!(earlier.is_none(), "an operation ends once");
    }
}
