//! Statistics of an engine, collected on demand: they cost nothing per message.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::bulk::BulkSockets;
use super::control_lanes::ControlConnection;
use super::datagram::state_of;
use super::engine::EngineState;
use super::traits::{LaneKey, TcpFigures};
use crate::driver::AnyDriver;
use crate::proto::core::Core;
use crate::proto::paths::{NO_PATH, Paths, SessionPath};
use crate::proto::session::Session;
use crate::proto::session::rails::{RailPair, rails_of};
use crate::proto::table::Id;
use crate::telemetry::exporter::StatisticsSlot;
use crate::telemetry::{Counters, Statistics};
use crate::topology::NicReader;
use crate::types::{Address, LaneStatistics, PathChange, PathState, PathStatistics, Rail};

/// Interval of publications, in nanoseconds.
const PUBLISH_NS: u64 = 1_000_000_000;
/// Maximum number of published paths: more would delay the engine for milliseconds.
const PUBLISHED_PATHS_MAX: usize = 2048;

/// Whom an engine reports to beside its owner.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    /// Where statistics are published, if they are.
    pub(crate) publisher: Option<Publisher>,
    /// What carries sessions is noted.
    pub(crate) is_verbose: bool,
}

/// Where an engine puts its statistics for the exporter.
#[derive(Debug)]
pub(crate) struct Publisher {
    slot: Arc<StatisticsSlot>,
    /// Of the namespace where the engine was created: a thread may leave it.
    reader: Option<NicReader>,
    next_ns: u64,
}

impl Publisher {
    /// Creates a publisher. Called in the network namespace of the engine's NICs.
    pub(crate) fn new(slot: Arc<StatisticsSlot>) -> Self {
        Self { slot, reader: NicReader::open().ok(), next_ns: 0 }
    }
}

impl EngineState {
    /// Returns its counters.
    pub(crate) fn counters(&self, driver: &AnyDriver) -> Counters {
        let driver = driver.counters();
        let core = self.core.shared().counters();
        let datagrams = self.paths.counters();
        let violations = self.core.shared().regions().violations();
        let staging_bytes = self.core.shared().pool().allocated_bytes().0;
        Counters {
            syscalls: driver.syscalls,
            copied_bytes: self.completions.copied_bytes(),
            segments_received: core.segments_received,
            segments_by_datagram: datagrams.segments,
            frames_received: core.frames_received,
            unexpected_messages: core.unexpected_messages,
            zero_copy_sends: driver.zero_copy_sends,
            zero_copy_copied: driver.zero_copy_copied,
            registered_sends: driver.registered_sends,
            stale_completions: driver.stale_completions,
            cq_overflows: driver.cq_overflows,
            latency_sends: self.core.shared().rendezvous().hinted().latency_sends,
            bulk_sends: self.core.shared().rendezvous().hinted().bulk_sends,
            priority_sends: self.core.shared().rendezvous().hinted().priority_sends,
            grants_ahead: self.core.shared().rendezvous().hinted().grants_ahead,
            lane_failures: core.lane_failures,
            corrupted_chunks: core.corrupted_chunks,
            accesses_refused: core.refused_accesses,
            wrong_keys: violations.key + violations.throttled,
            dropped_frames: core.stale_frames + core.unknown_endpoint + self.requests.invalid(),
            unexpected_bytes_max: self.core.shared().unexpected().held_bytes().1 as u64,
            staging_bytes: staging_bytes as u64,
            datagrams_sent: datagrams.sent,
            datagrams_lost: datagrams.lost,
            datagrams_dropped: datagrams.dropped + driver.datagrams_too_long,
        }
    }

    /// Returns the paths of its sessions, at most `limit`, and how many more there are. The kernel
    /// is queried for a quarter as many connections.
    pub(crate) fn paths(
        &mut self,
        driver: &mut AnyDriver,
        limit: usize,
    ) -> (Vec<PathStatistics>, usize) {
        // Deferred acknowledgements count, too.
        self.drain_all_paths();
        let now_ns = self.clock.now_ns();
        let core = &self.core;
        let (mut all, mut omitted, mut asked) = (Vec::new(), 0, 0);
        for (id, session) in core.sessions().iter() {
            if !session.is_connected() || session.peer().id() == core.shared().engine() {
                continue;
            }
            let control = self.controls.get(id.index() as u32);
            let paths = self.paths.of(id.index() as u32);
            let stream_at = paths.map_or(0, Paths::stream_at);
            let stream_at = control.map(|control| {
                let at = usize::from(stream_at);
                let ends = control.lane().filter(|_| stream_at == NO_PATH);
                let ends = ends.and_then(|key| driver.addresses(key));
                ends.and_then(|ends| path_between(core, self.rails.used(), id, ends)).unwrap_or(at)
            });
            for (at, path) in session.rails().paths.iter().enumerate() {
                if all.len() >= limit {
                    omitted += 1;
                    continue;
                }
                let mut statistics = statistics_of(session, path, now_ns);
                statistics.eager_limit_bytes = session.segments().eager_limit_now().into();
                let rail = self.rails.chosen().get(statistics.rail);
                (statistics.nic, statistics.local) = match rail {
                    Some(Rail { nic, address, .. }) => (nic.clone(), *address),
                    None => (String::new(), self.rails.locators().first().ip()),
                };
                let control = control.zip(stream_at);
                if let Some((paths, stream_at)) = paths.zip(stream_at) {
                    add_datagrams(&mut statistics, paths, stream_at, at);
                }
                let lanes = lanes_of(core, session, control, &self.bulk, at);
                let lanes = lanes.take(limit.div_ceil(4) - asked).inspect(|_| asked += 1);
                statistics.lanes.extend(lanes.filter_map(|(number, key)| {
                    let TcpFigures { retransmits, round_trip } = driver.tcp_figures(key)?;
                    Some(LaneStatistics { number, retransmits, round_trip })
                }));
                all.push(statistics);
            }
        }
        (all, omitted)
    }

    /// Returns all of that. NICs are queried by `reader`; at most `paths_max` paths are included.
    pub(crate) fn statistics(
        &mut self,
        driver: &mut AnyDriver,
        mut reader: Option<&mut NicReader>,
        paths_max: usize,
    ) -> Statistics {
        let (paths, paths_omitted) = self.paths(driver, paths_max);
        let rails = self.rails.chosen().iter().map(|rail| {
            let counters = reader.as_mut().and_then(|reader| reader.read(rail.nic_index).ok());
            (rail.clone(), counters)
        });
        Statistics {
            endpoint: self.address(0),
            counters: self.counters(driver),
            rails: rails.collect(),
            paths,
            paths_omitted,
            frame_drops: driver.frame_drops(),
        }
    }

    /// Publishes new statistics to the exporter, if there is one, at intervals.
    pub(super) fn publish(&mut self, driver: &mut AnyDriver) {
        let now_ns = self.now_ns;
        let due = self.reports.publisher.take_if(|publisher| now_ns >= publisher.next_ns);
        if let Some(mut publisher) = due {
            publisher.next_ns = now_ns + PUBLISH_NS;
            let reader = publisher.reader.as_mut();
            publisher.slot.put(self.statistics(driver, reader, PUBLISHED_PATHS_MAX));
            self.reports.publisher = Some(publisher);
        }
    }
}

/// Returns the position of the path of a session that a connection with these ends uses.
fn path_between(
    core: &Core,
    rails: &[Rail],
    session: Id,
    (near, far): (SocketAddr, SocketAddr),
) -> Option<usize> {
    let session = core.sessions().get(session)?;
    let locator = session.peer().locators().first();
    (0..session.rails().paths.len()).find(|&at| {
        session.rails().way(at as u8, locator).is_some_and(|(remote, rail)| {
            let leaves = rails.get(usize::from(rail)).map(|rail| rail.address);
            remote.ip() == far.ip() && leaves.is_none_or(|leaves| leaves == near.ip())
        })
    })
}

/// Returns the connections on the path at `at`: their numbers, and their driver keys.
fn lanes_of<'a>(
    core: &'a Core,
    session: &'a Session,
    control: Option<(&'a ControlConnection, usize)>,
    bulk: &'a BulkSockets,
    at: usize,
) -> impl Iterator<Item = (Option<u32>, LaneKey)> + 'a {
    let control = control.filter(|&(_, stream_at)| stream_at == at);
    let control = control.and_then(|(control, _)| control.lane()).map(|key| (None, key));
    let bulk = session.lanes().ids().iter().filter_map(move |&id| {
        let lane = core.shared().lanes().get(id).filter(|lane| usize::from(lane.path()) == at)?;
        Some((Some(lane.number()), bulk.key_of(core, id)?))
    });
    control.into_iter().chain(bulk)
}

/// Returns the protocol's statistics of a path; the caller adds its NIC and its datagrams.
fn statistics_of(session: &Session, path: &RailPair, now_ns: u64) -> PathStatistics {
    let (initiators, acceptors) = rails_of(path.number);
    let rail = if session.connection().is_initiator() { initiators } else { acceptors };
    let counters = path.counters();
    PathStatistics {
        peer: Address::new(session.peer().id(), *session.peer().locators(), 0),
        rail: usize::from(rail),
        nic: String::new(),
        local: session.peer().locators().first().ip(),
        remote: path.remote.unwrap_or(session.peer().locators().first().ip()),
        state: if path.is_usable { PathState::Active } else { PathState::Down },
        carries_messages: false,
        carries_datagrams: false,
        bytes_sent: counters.bytes_sent,
        bytes_received: counters.bytes_received,
        chunks_sent: counters.chunks_sent,
        chunks_received: counters.chunks_received,
        regrants: counters.regrants,
        datagrams_sent: 0,
        datagrams_lost: 0,
        probes: 0,
        round_trip: None,
        eager_limit_bytes: 0,
        lanes: Vec::new(),
        retransmits_before: counters.retransmits,
        changes: counters.changes,
        last_change: counters.last_change.map(|(cause, at_ns)| PathChange {
            cause,
            ago: Duration::from_nanos(now_ns.saturating_sub(at_ns)),
        }),
    }
}

/// Adds the loop's statistics of the path at `at`.
fn add_datagrams(statistics: &mut PathStatistics, paths: &Paths, stream_at: usize, at: usize) {
    let primary = paths.primary_at().map(usize::from);
    statistics.carries_datagrams = primary == Some(at);
    // Without one messages use the TCP lane.
    statistics.carries_messages = primary.unwrap_or(stream_at) == at;
    for path in paths.all().filter(|path| usize::from(path.position()) == at) {
        add_packets(statistics, path);
    }
}

/// Adds the statistics of the packets of a path.
fn add_packets(statistics: &mut PathStatistics, path: &SessionPath) {
    if let Some(phase) = path.phase() {
        statistics.state = state_of(phase);
    }
    let path = path.packets();
    let counted = path.counters();
    statistics.datagrams_sent = counted.sent;
    statistics.datagrams_lost = counted.lost;
    statistics.probes = counted.probes;
    if path.is_answered() {
        statistics.round_trip = Some(Duration::from_nanos(path.round_trip_ns()));
    }
}
