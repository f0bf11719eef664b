//! How messages to a peer travel, as it is shown to the user.

use super::engine::EngineState;
use crate::proto::paths::Paths;
use crate::proto::session::segments::{PullMethod, Route, SendProtocol as Protocol, Transport};
use crate::proto::table::Id;
use crate::types::{SendProtocol, SendRange, SendTransport};

impl EngineState {
    /// Returns how messages to a peer travel now. `None`: it is unknown or not connected.
    pub(crate) fn send_protocol(&self, peer: Id) -> Option<SendProtocol> {
        let core = &self.core;
        let slot = core.shared().peers().get(peer)?.session;
        let session = core.sessions().at(slot as usize).filter(|it| it.is_connected())?;
        let eager_limit = u64::from(session.segments().eager_limit_now());
        let ranges: Vec<(u64, SendTransport)> = if core.is_loopback(slot) {
            vec![(u64::MAX, SendTransport::Loopback)]
        } else {
            let segments = session.segments();
            let are_paths_open = self.paths.of(slot).is_some_and(Paths::are_open);
            let ranges = segments.protocol().ranges(eager_limit).into_iter();
            let of = |route| transport(segments.protocol(), route, are_paths_open);
            ranges.map(|(longest, route)| (longest, of(route))).collect()
        };
        let mut protocol = SendProtocol { ranges: Vec::with_capacity(ranges.len()) };
        for (longest, transport) in ranges {
            let longest = (longest != u64::MAX).then_some(longest);
            match protocol.ranges.last_mut() {
                Some(last) if last.transport == transport => last.longest = longest,
                _ => protocol.ranges.push(SendRange { longest, transport }),
            }
        }
        Some(protocol)
    }
}

/// What carries messages of a route. While no path is open, segments go on the TCP connection.
fn transport(protocol: &Protocol, route: Route, are_paths_open: bool) -> SendTransport {
    match route {
        Route::Segment if !are_paths_open => SendTransport::Stream,
        Route::Segment => match protocol.transport() {
            Some(Transport::Ring) => SendTransport::Ring,
            Some(Transport::Stream) => SendTransport::Stream,
            None => SendTransport::Datagram,
        },
        Route::Stream => SendTransport::Stream,
        Route::Pull(PullMethod::Memory) => SendTransport::PulledFromMemory,
        Route::Pull(PullMethod::Pieces) => SendTransport::PulledByRing,
        Route::Pull(PullMethod::Lanes) => SendTransport::PulledOverLanes,
        Route::Pull(PullMethod::Datagrams) => SendTransport::PulledInDatagrams,
    }
}
