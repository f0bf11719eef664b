//! What carries the bytes of a message that its receiver pulls: a module for each [`Carrier`].

use super::super::Session;
use super::SessionRendezvous;
use super::pulling::Pulling;
use crate::proto::context::Cx;
use crate::proto::table::Id;
use crate::wire::{FrameError, Grant, GrantOver};

use self::cma::MemoryCarrier;
use self::datagrams::DatagramCarrier;
use self::lanes::LaneCarrier;
use self::ring::RingCarrier;

pub(crate) mod cma;
pub(crate) mod datagrams;
pub(crate) mod lanes;
pub(crate) mod ring;

/// Length of chunks in bytes, and how many of them may be outstanding.
pub(super) type Chunks = (u64, u64);

/// The decisions of one carrier. How its parts are moved is in its module: each has another
/// counterpart in the loop. See the module of the room.
pub(super) trait Carrier: Copy + Into<AnyCarrier> {
    // ---- The receiver ----

    /// Begins to bring what is left of a message of which no range is under way. Returns its grant,
    /// if all of it is granted at once. By default its ranges are granted in turn.
    fn begin(self, it: &mut SessionRendezvous, cx: &mut Cx<'_>, id: Id) -> Option<Grant> {
        it.queue_for_grants(cx, id, self.into());
        None
    }

    /// Grants the next range of the session. Returns `false` if nothing remains to be granted, or
    /// not now. By default nothing is granted in turn.
    fn grant_next(self, _: &mut Session, _: &mut Cx<'_>, _: Chunks, _now_ns: u64) -> bool {
        false
    }

    /// Returns whether the rest of a message is granted now that more of it has come. By default
    /// that is so if it waits for a ring to bring it.
    fn is_rest_due(self, pulling: &Pulling) -> bool {
        pulling.is_drained()
    }

    /// Takes back what it has not brought of a message, since it has ended. By default only single
    /// ranges are lost, with their lane, or the session ends with it.
    fn take_back(self, _pulling: &mut Pulling) {}

    /// Returns the bytes that a message still takes of a window that messages share. By default
    /// they share none.
    fn window_bytes(self, _pulling: &Pulling) -> u64 {
        0
    }

    // ---- The sender ----

    /// Handles the peer's grant of a range on it: queues or refuses the range. By default none may
    /// be granted.
    ///
    /// RR-RDV-1, RR-RDV-5, RR-RDV-9.
    fn accept(self, _: &mut Session, _: &mut Cx<'_>, grant: &Grant) -> Result<(), FrameError> {
        Err(grant.error(0))
    }
}

/// One of the carriers.
#[derive(Clone, Copy, Debug)]
pub(super) enum AnyCarrier {
    Lanes(LaneCarrier),
    Datagrams(DatagramCarrier),
    Ring(RingCarrier),
    Memory(MemoryCarrier),
}

/// Calls a method of the carrier in an [`AnyCarrier`].
macro_rules! of_any {
    ($carrier:expr, $it:ident => $call:expr) => {
        match $carrier {
            AnyCarrier::Lanes($it) => $call,
            AnyCarrier::Datagrams($it) => $call,
            AnyCarrier::Ring($it) => $call,
            AnyCarrier::Memory($it) => $call,
        }
    };
}

impl Carrier for AnyCarrier {
    fn begin(self, it: &mut SessionRendezvous, cx: &mut Cx<'_>, id: Id) -> Option<Grant> {
        of_any!(self, by => by.begin(it, cx, id))
    }

    fn grant_next(self, it: &mut Session, cx: &mut Cx<'_>, chunks: Chunks, now_ns: u64) -> bool {
        of_any!(self, by => by.grant_next(it, cx, chunks, now_ns))
    }

    fn is_rest_due(self, pulling: &Pulling) -> bool {
        of_any!(self, by => by.is_rest_due(pulling))
    }

    fn take_back(self, pulling: &mut Pulling) {
        of_any!(self, by => by.take_back(pulling));
    }

    fn window_bytes(self, pulling: &Pulling) -> u64 {
        of_any!(self, by => by.window_bytes(pulling))
    }

    fn accept(self, it: &mut Session, cx: &mut Cx<'_>, grant: &Grant) -> Result<(), FrameError> {
        of_any!(self, by => by.accept(it, cx, grant))
    }
}

impl Default for AnyCarrier {
    fn default() -> Self {
        Self::Lanes(LaneCarrier)
    }
}

impl From<GrantOver> for AnyCarrier {
    fn from(over: GrantOver) -> Self {
        match over {
            GrantOver::Lane { .. } => Self::Lanes(LaneCarrier),
            GrantOver::Ring(ring) => Self::Ring(RingCarrier(ring)),
            GrantOver::Datagrams => Self::Datagrams(DatagramCarrier),
        }
    }
}

macro_rules! into_any {
    ($($name:ident($carrier:ident)),*) => {
        $(impl From<$carrier> for AnyCarrier {
            fn from(carrier: $carrier) -> Self {
                Self::$name(carrier)
            }
        })*
    };
}

into_any!(Lanes(LaneCarrier), Datagrams(DatagramCarrier), Ring(RingCarrier), Memory(MemoryCarrier));
