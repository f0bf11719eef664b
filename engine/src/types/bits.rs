//! Handles as integers, for bindings of other languages.
//!
//! An integer that an engine never returned gives a handle that is not valid.

use super::completion::{OperationId, OperationName, Peer};
use super::connection::{ConnectionId, RequestId};
use crate::proto::table::Id;

impl Peer {
    /// Returns the integer for [`Self::from_bits`]; never 0.
    pub fn to_bits(self) -> u64 {
        self.0.to_u64()
    }

    /// Returns the handle of an integer that [`Self::to_bits`] returned. With any other integer,
    /// calls fail with [`UnknownPeer`](crate::Error::UnknownPeer), unless it happens to be that of
    /// another peer.
    pub fn from_bits(bits: u64) -> Self {
        Self(Id::from_u64(bits))
    }
}

impl RequestId {
    /// Returns the integer for [`Self::from_bits`]; never 0.
    pub fn to_bits(self) -> u64 {
        self.0.to_u64()
    }

    /// Returns the handle of an integer that [`Self::to_bits`] returned. With any other integer,
    /// calls fail because there is no such request, unless it happens to be that of another one.
    pub fn from_bits(bits: u64) -> Self {
        Self(Id::from_u64(bits))
    }
}

impl ConnectionId {
    /// Returns the integer for [`Self::from_bits`]; never 0.
    pub fn to_bits(self) -> u64 {
        self.0.to_u64()
    }

    /// Returns the handle of an integer that [`Self::to_bits`] returned. With any other integer,
    /// calls fail because there is no such connection, unless it happens to be that of another one.
    pub fn from_bits(bits: u64) -> Self {
        Self(Id::from_u64(bits))
    }
}

impl OperationId {
    /// Returns the two integers for [`Self::from_bits`]; the second is never 0.
    pub fn to_bits(self) -> [u64; 2] {
        match self.0 {
            OperationName::Posted(id) => [0, id.to_u64()],
            OperationName::Requested(number) => [1, number],
        }
    }

    /// Returns the handle of integers that [`Self::to_bits`] returned. With any others,
    /// [`cancel`](crate::Endpoint::cancel) has no effect, unless they happen to be those of another
    /// operation.
    pub fn from_bits([kind, name]: [u64; 2]) -> Self {
        match kind {
            0 => Self(OperationName::Posted(Id::from_u64(name))),
            _ => Self(OperationName::Requested(name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_through_bits() {
        let id = Id::from_u64(7 << 32 | 3);
        let peer = Peer(id);
        assert_eq!(Peer::from_bits(peer.to_bits()), peer);
        let (request, connection) = (RequestId(id), ConnectionId(id));
        assert_eq!(RequestId::from_bits(request.to_bits()), request);
        assert_eq!(ConnectionId::from_bits(connection.to_bits()), connection);
        for name in [OperationName::Posted(id), OperationName::Requested(9)] {
            let operation = OperationId(name);
            assert_eq!(OperationId::from_bits(operation.to_bits()), operation);
        }
    }
}
