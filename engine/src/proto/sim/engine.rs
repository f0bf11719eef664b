//! An engine: its protocol core, the paths of its sessions, and the memory of its operations.

use std::collections::{BTreeMap, HashMap, VecDeque};

use super::memory::Memory;
use crate::proto::core::{Config, Core};
use crate::proto::paths::PathTable;
use crate::proto::session::rails::health::Transition;
use crate::proto::session::rendezvous::pull::lanes::ChunkReceive;
use crate::proto::table::Id;
use crate::wire::chunk::CHUNK_HEADER_BYTES;

/// Endpoints of each engine.
pub(crate) const ENDPOINTS: u16 = 2;

/// One direction of a bulk lane: chunks written and not read.
type Pipe = VecDeque<([u8; CHUNK_HEADER_BYTES], Vec<u8>)>;

pub(crate) struct Engine {
    pub(crate) core: Core,
    pub(crate) paths: PathTable,
    pub(crate) memory: Memory,
    /// Handles of remote endpoints, by engine and endpoint.
    pub(crate) peers: HashMap<(usize, u16), Id>,
    /// Slots of sessions, by engine.
    pub(crate) slots: BTreeMap<usize, u32>,
    /// Segments sent on streams.
    pub(crate) by_stream: usize,
    /// Path events reported to its user: the rail, and the change.
    pub(crate) path_changes: Vec<(u8, Transition)>,
    /// Chunks that a lane will receive.
    pub(super) receiving: HashMap<Id, ChunkReceive>,
    /// Readable content of a lane.
    pub(super) inbox: HashMap<Id, Pipe>,
    /// The other end of a lane.
    pub(super) lanes: HashMap<Id, (usize, Id)>,
    /// Sessions that may have something to send, by engine.
    pub(super) unsent: BTreeMap<usize, u32>,
}

/// Returns the id of an engine, by its number.
pub(crate) fn engine_id(number: usize) -> u64 {
    10 + number as u64
}

impl Engine {
    pub(super) fn new(number: usize, config: &Config) -> Self {
        let mut core = Core::new(engine_id(number), config.clone().into());
        for endpoint in 0..ENDPOINTS {
            assert_eq!(core.shared_mut().endpoints_mut().open(), Some(endpoint));
        }
        Self {
            core,
            paths: PathTable::default(),
            memory: Memory::default(),
            peers: HashMap::new(),
            slots: BTreeMap::new(),
            by_stream: 0,
            path_changes: Vec::new(),
            receiving: HashMap::new(),
            inbox: HashMap::new(),
            lanes: HashMap::new(),
            unsent: BTreeMap::new(),
        }
    }

    /// Returns the number of the engine that a session is with.
    pub(super) fn peer_of(&self, slot: u32) -> usize {
        *self.slots.iter().find(|(_, it)| **it == slot).expect("a session of the net").0
    }
}
