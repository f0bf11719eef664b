//! What one seed decides: settings, impairments, faults and how often they strike.

use std::time::Duration;

use super::datagram_plan::DatagramPlan;
use super::garble::GarblePlan;
use super::local_peer_plan::local_peers_of;
use super::one_sided::has_one_sided;
use super::rail_plan::RailPlan;
use super::thread_plan::ThreadPlan;
use crate::driver::sim::local_peers::LocalPeerImpairments;
use crate::driver::sim::net::Impairments;
use crate::driver::sim::random::Random;
use crate::driver::traits::{DATAGRAM_BYTES_USUAL, SendMode};
use crate::progress::engine::LoopConfig;
use crate::progress::zero_copy::Policy;
use crate::proto::core::Config;
use crate::proto::regions::RegionLimits;
use crate::proto::session::connection::Retry;
use crate::proto::session::control_lane::SilentTimeout;
use crate::proto::session::eager_limit::CHOSEN_BYTES_MAX;

const MICROSECOND: u64 = 1_000;
const MILLISECOND: u64 = 1_000_000;
/// Time until a stream is first retransmitted, at the most: the kernel's timer, and the way.
const FIRST_RETRANSMIT_NS: u64 = 500_000_000;
const SECOND: u64 = 1_000_000_000;
/// How long an unauthenticated connection may take for its handshake.
pub(super) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(2);

/// Whether the sessions of a seed have checksums.
fn checks(seed: u64) -> bool {
    seed.is_multiple_of(4)
}

/// Whether the sessions of a seed have no bulk lanes: of every other one in which all processes
/// have datagrams.
fn has_bulk_in_datagrams(seed: u64) -> bool {
    let plan = DatagramPlan::new(seed);
    let have_all =
        |plan: DatagramPlan| plan.without_one_in == 0 && plan.impairments.unsupported_one_in == 0;
    plan.is_some_and(have_all) && (seed / 4).is_multiple_of(2)
}

/// Faults from outside.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Fault {
    /// A bulk lane breaks.
    CutBulk,
    /// A control lane breaks.
    CutControl,
    /// Nothing arrives on a lane for a while.
    Stall,
    /// Nothing comes from one host to another for a while; the way back is open.
    CutWay,
    /// Nothing passes between two hosts for a while.
    CutPair,
    /// The loop of a process stops for a while.
    Pause,
    /// A process is killed.
    Kill,
    /// A host loses power.
    Darken,
    /// A process starts where another one ended.
    Restart,
    /// A process sends a goodbye and ends.
    Leave,
    /// A new host comes.
    Join,
}

pub(crate) const FAULTS: [Fault; 11] = [
    Fault::CutBulk,
    Fault::CutControl,
    Fault::Stall,
    Fault::CutWay,
    Fault::CutPair,
    Fault::Pause,
    Fault::Kill,
    Fault::Darken,
    Fault::Restart,
    Fault::Leave,
    Fault::Join,
];

impl Fault {
    /// Whether sessions may fail of it. Those of a plan without such faults must not fail at all.
    pub(crate) fn is_lethal(self) -> bool {
        !matches!(self, Self::Stall | Self::Pause | Self::Join)
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) hosts: usize,
    pub(crate) endpoints: usize,
    /// Sends and receives that the workload posts, all processes together.
    pub(crate) actions: usize,
    /// Mean time between two actions of a process.
    pub(crate) think_ns: u64,
    pub(crate) contexts: usize,
    pub(crate) tags: u64,
    /// Longest message.
    pub(crate) length_max: usize,
    /// One message in so many has more than the eager limit.
    pub(crate) long_one_in: usize,
    pub(crate) any_source_one_in: usize,
    pub(crate) cancel_one_in: usize,
    /// One action in so many forgets a peer or closes an endpoint.
    pub(crate) part_one_in: usize,
    /// Receives ahead of sends (positive) or behind.
    pub(crate) backlog_max: usize,
    pub(crate) impairments: Impairments,
    /// Datagrams beside the streams; `None`: engines have none.
    pub(crate) datagrams: Option<DatagramPlan>,
    /// Memory that hosts of one machine share; `None`: each is a machine of its own.
    pub(crate) local_peers: Option<LocalPeerImpairments>,
    /// Longer packets vanish on all links; 0: none do.
    pub(crate) packet_bytes_max: usize,
    /// Several rails; `None`: one per host, configured by the impairments.
    pub(crate) rails: Option<RailPlan>,
    /// Without bulk lanes: everything goes in datagrams.
    pub(crate) bulk_in_datagrams: bool,
    pub(crate) garble: GarblePlan,
    /// Engines are shared by threads, now and then; `None`: each has one.
    pub(crate) threads: Option<ThreadPlan>,
    pub(crate) faults: Vec<(Fault, u32)>,
    /// Mean time between two faults.
    pub(crate) fault_ns: u64,
    /// How long stalls, cuts and pauses last at the most.
    pub(crate) outage_ns: u64,
    pub(crate) turn_ns: u64,
    pub(crate) idle_turns_max: u32,
    /// Messages have hints.
    pub(crate) hints: bool,
    /// Processes use each other's memory.
    pub(crate) one_sided: bool,
    /// Some sends are fenced.
    pub(crate) fences: bool,
    /// Rare branches of the engine are taken.
    pub(crate) rare: bool,
    /// Settings are about the defaults.
    is_ample: bool,
    pub(super) retry: Retry,
    peer_timeout_ns: u64,
}

impl Plan {
    /// The plan of a seed.
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut impairments = Self::impairments(&mut random);
        let faults = Self::faults(&mut random);
        let is_lethal = faults.iter().any(|(fault, _)| fault.is_lethal());
        let refuses = impairments.refused_one_in > 0
            || impairments.swallowed_one_in > 0
            || impairments.descriptors_missing_one_in > 0;
        // Where nothing may fail, patience outlasts every outage.
        let is_patient = !is_lethal || random.one_in(2);
        let retry = if is_patient {
            let timeout_ns = random.pick(&[2, 5]) * SECOND;
            Retry { timeout_ns, retries: 40, delay_ns: 10 * MILLISECOND, silent_ns: 1 }
        } else {
            let timeout_ns = random.pick(&[20, 200, 1000]) * MILLISECOND;
            Retry {
                timeout_ns,
                retries: 1 + random.below(8) as u32,
                delay_ns: MILLISECOND,
                silent_ns: 1,
            }
        };
        let peer_timeout_ns =
            if is_patient { 10 * SECOND } else { random.pick(&[50, 500, 5000]) * MILLISECOND };
        impairments.keep_alive_ns = peer_timeout_ns;
        if refuses && !is_lethal {
            impairments.swallowed_one_in = 0;
        }
        let has_faults = !faults.is_empty();
        Self {
            seed,
            hosts: random.pick(&[2, 2, 2, 2, 2, 3, 3, 3, 4, 4, 4, 12]),
            endpoints: random.pick(&[1, 1, 2, 3]),
            actions: 100 + random.below(500),
            think_ns: random.pick(&[2, 20, 200, 2000]) * MICROSECOND,
            contexts: 1 + random.below(4),
            tags: 1 + random.next() % 4,
            length_max: random.pick(&[300, 3000, 9000, 20_000]),
            long_one_in: random.pick(&[0, 2, 5, 20]),
            any_source_one_in: random.pick(&[0, 2, 4, 10]),
            cancel_one_in: random.pick(&[0, 10, 30]),
            part_one_in: random.pick(&[0, 0, 0, 20, 100]),
            backlog_max: random.pick(&[4, 20, 60]),
            impairments,
            datagrams: DatagramPlan::new(seed),
            local_peers: local_peers_of(seed),
            rails: RailPlan::new(seed),
            packet_bytes_max: 0,
            bulk_in_datagrams: has_bulk_in_datagrams(seed),
            garble: if checks(seed) { GarblePlan::new(seed) } else { GarblePlan::default() },
            threads: ThreadPlan::new(seed),
            faults,
            fault_ns: if has_faults { random.pick(&[200, 1000, 5000]) * MICROSECOND } else { 0 },
            outage_ns: random.pick(&[1, 20, 300, 3000]) * MILLISECOND,
            turn_ns: random.pick(&[200, 1000, 5000, 20_000]),
            idle_turns_max: random.pick(&[1, 2, 8, 80]),
            hints: (seed / 2).is_multiple_of(2),
            one_sided: has_one_sided(seed),
            fences: (seed / 4).is_multiple_of(2),
            rare: random.one_in(2),
            is_ample: random.one_in(10),
            retry,
            peer_timeout_ns,
        }
    }

    /// The plan of a seed on links that drop longer packets than those of 1500 bytes. All of its
    /// processes have datagrams, or none has: the control lane of one that has them with one that
    /// has not cannot be replaced. A kernel has to send a segment again three times, until 1.4 s
    /// later, before its length is the suspected cause where shorter datagrams pass, and a shorter
    /// peer timeout gives its connection up before that.
    #[cfg(test)]
    pub(crate) fn narrow(seed: u64) -> Self {
        let mut plan = Self { packet_bytes_max: 1500, ..Self::new(seed) };
        plan.impairments.capacity = plan.impairments.capacity.max(4000);
        plan.peer_timeout_ns = plan.peer_timeout_ns.max(2 * SECOND);
        plan.impairments.keep_alive_ns = plan.peer_timeout_ns;
        if let Some(datagrams) = &mut plan.datagrams {
            (datagrams.without_one_in, datagrams.impairments.unsupported_one_in) = (0, 0);
        }
        plan
    }

    /// Many short messages and nothing that disturbs them.
    pub(crate) fn throughput(seed: u64, actions: usize, by_datagrams: bool) -> Self {
        Self {
            hosts: 2,
            endpoints: 1,
            actions,
            think_ns: 300,
            contexts: 1,
            tags: 1,
            length_max: 64,
            long_one_in: 0,
            any_source_one_in: 0,
            cancel_one_in: 0,
            part_one_in: 0,
            backlog_max: 60,
            impairments: Impairments::ideal(),
            datagrams: by_datagrams.then(DatagramPlan::fair),
            local_peers: None,
            rails: None,
            bulk_in_datagrams: false,
            garble: GarblePlan::default(),
            threads: None,
            faults: Vec::new(),
            fault_ns: 0,
            turn_ns: 1000,
            idle_turns_max: 2,
            hints: false,
            one_sided: false,
            fences: false,
            rare: false,
            is_ample: true,
            ..Self::new(seed)
        }
    }

    fn impairments(random: &mut Random) -> Impairments {
        Impairments {
            delay_ns: random.pick(&[0, 1, 10, 100, 2000]) * MICROSECOND,
            jitter_ns: random.pick(&[0, 1, 50, 500]) * MICROSECOND,
            ns_per_kib: random.pick(&[0, 100, 1000, 10_000]),
            capacity: random.pick(&[300, 500, 4000, 64 << 10]),
            partial_one_in: random.pick(&[0, 1, 3, 10]),
            late_ns: random.pick(&[0, 1, 20, 500]) * MICROSECOND,
            events_per_poll: random.pick(&[1, 2, 64]),
            refused_one_in: random.pick(&[0, 0, 0, 4]),
            swallowed_one_in: random.pick(&[0, 0, 0, 4]),
            interrupted_one_in: random.pick(&[0, 0, 20]),
            descriptors_missing_one_in: random.pick(&[0, 0, 0, 0, 10]),
            keep_alive_ns: SECOND,
        }
    }

    fn faults(random: &mut Random) -> Vec<(Fault, u32)> {
        // Few kinds at very different rates find more than all kinds at equal ones.
        let kinds = random.below(5);
        let mut faults: Vec<(Fault, u32)> = Vec::new();
        for _ in 0..kinds {
            let fault = random.pick(&FAULTS);
            if !faults.iter().any(|(known, _)| *known == fault) {
                faults.push((fault, 1 << random.below(6)));
            }
        }
        faults
    }

    /// Returns the silence after which a peer may be given up.
    pub(crate) fn patience_ns(&self) -> u64 {
        let handshake_ns = HANDSHAKE_TIMEOUT.as_nanos() as u64;
        handshake_ns.min(self.retry.timeout_ns).min(self.peer_timeout_ns)
    }

    /// Whether patience outlasts the faults of links.
    pub(crate) fn is_patient(&self) -> bool {
        self.retry.timeout_ns >= 2 * SECOND
    }

    /// Whether links that have failed again and again for `struck_ns` may silence a stream for the
    /// peer timeout: kernels retransmit ever less often, so its silence lasts up to twice as long.
    pub(crate) fn silences_streams(&self, struck_ns: u64) -> bool {
        2 * struck_ns >= self.peer_timeout_ns.saturating_sub(FIRST_RETRANSMIT_NS)
    }

    /// Whether attempts to connect fail, or are given up; sessions may fail of that.
    pub(crate) fn connects_fail(&self) -> bool {
        let pauses = |(fault, _): &(Fault, u32)| matches!(fault, Fault::Pause | Fault::Stall);
        let outlasts = 8 * self.outage_ns > self.retry.timeout_ns.min(self.peer_timeout_ns);
        (outlasts && self.faults.iter().any(pauses))
            || self.impairments.refused_one_in > 0
            || self.impairments.swallowed_one_in > 0
            || self.impairments.descriptors_missing_one_in > 0
    }

    /// Virtual time in which everything outstanding ends once the world is whole.
    pub(crate) fn bound_ns(&self) -> u64 {
        let attempts = u64::from(self.retry.retries) + 1;
        // An attempt goes by each link of this side to each of the peer, and either may be dead.
        let links = self.rails.as_ref().map_or(1, RailPlan::links_max) as u64;
        let attempts_ns = 2 * attempts * self.retry.timeout_ns * links * links;
        30 * SECOND + 2 * self.peer_timeout_ns + attempts_ns
    }

    /// Settings for one process; processes differ.
    pub(crate) fn config(&self, random: &mut Random) -> Config {
        if self.is_ample {
            return self.ample_config(random);
        }
        let eager_by_stream = !self.seed.is_multiple_of(4);
        // On a stream the longest have segments of their own.
        let is_long = eager_by_stream && random.one_in(6);
        let eager_limit =
            if is_long { 40_000 } else { random.pick(&[0, 1, 64, 256, 1024, 8192, 8192]) };
        let chunk_bytes = random.pick(&[512, 4096, 65_536]);
        Config {
            eager_limit,
            is_eager_limit_advised: !self.seed.is_multiple_of(3),
            inject_limit: random.pick(&[0, eager_limit]),
            rts_bytes: random.pick(&[0, 1, 32, 512]),
            chunk_bytes,
            busy_chunk_bytes: random.pick(&[128, 512, chunk_bytes]).min(chunk_bytes),
            horizon_chunks: random.pick(&[1, 3, 16]),
            bulk_lanes: random.pick(&[1, 2, 4]),
            bulk_lanes_max: random.pick(&[1, 2, 16, 256]),
            envelope_credits: random.pick(&[1, 2, 4, 64, 1000]),
            eager_credit_bytes: eager_limit.max(1) * random.pick(&[1, 2, 50]),
            unexpected_bytes: random.pick(&[64 << 10, 1 << 20]),
            unexpected_messages: random.pick(&[1, 100, 1 << 16]),
            send_queue_ops: random.pick(&[1, 10, 1000]),
            operations_max: random.pick(&[16, 100, 4000]),
            sessions_max: 64,
            staging_bytes: random.pick(&[8192 + 4096 + 512, 16_384, 65_536]),
            staging_buffers_max: random.pick(&[2, 4, 64]),
            retry: self.retry,
            outage_ns: self.peer_timeout_ns,
            bulk_idle_ns: random.pick(&[1, 100, 30_000]) * MILLISECOND,
            hash_seed: random.next(),
            regions: RegionLimits::DEFAULT,
            checksum: checks(self.seed),
            answers: false,
            process_status: false,
            datagram_bytes: DATAGRAM_BYTES_USUAL,
            segment_buffer_bytes: DATAGRAM_BYTES_USUAL,
            bulk_in_datagrams: self.bulk_in_datagrams,
            eager_by_stream,
            pieces_bytes_max: [0, 2000, 1 << 20][self.seed as usize / 3 % 3],
            piece_bytes: [64, 500, 500, 5000][self.seed as usize / 7 % 4],
            datagram_window_bytes: [1, 4096, 1 << 20][self.seed as usize % 3],
        }
    }

    /// About the defaults.
    fn ample_config(&self, random: &mut Random) -> Config {
        Config {
            eager_limit: CHOSEN_BYTES_MAX,
            is_eager_limit_advised: !self.seed.is_multiple_of(3),
            inject_limit: 16 << 10,
            rts_bytes: 0,
            chunk_bytes: 128 << 10,
            busy_chunk_bytes: 32 << 10,
            horizon_chunks: 4,
            answers: false,
            process_status: false,
            bulk_lanes: 1,
            bulk_lanes_max: 256,
            envelope_credits: 16_384,
            eager_credit_bytes: 256 << 10,
            unexpected_bytes: 64 << 20,
            unexpected_messages: 1 << 20,
            send_queue_ops: 65_536,
            operations_max: 1 << 20,
            sessions_max: 64,
            staging_bytes: 65_536,
            staging_buffers_max: 1024,
            retry: self.retry,
            outage_ns: self.peer_timeout_ns,
            bulk_idle_ns: 30 * SECOND,
            hash_seed: random.next(),
            regions: RegionLimits::DEFAULT,
            checksum: checks(self.seed),
            datagram_bytes: DATAGRAM_BYTES_USUAL,
            segment_buffer_bytes: DATAGRAM_BYTES_USUAL,
            bulk_in_datagrams: self.bulk_in_datagrams,
            eager_by_stream: !self.seed.is_multiple_of(4),
            pieces_bytes_max: 32 << 10,
            piece_bytes: 8 << 10,
            datagram_window_bytes: 1 << 20,
        }
    }

    /// Settings of one process's loop.
    pub(crate) fn loop_config(&self, random: &mut Random) -> LoopConfig {
        let mode = random.pick(&[SendMode::ZeroCopy, SendMode::Copy]);
        LoopConfig {
            spin: Duration::ZERO,
            hot_lanes: random.pick(&[0, 1, 2, 4]),
            receive_buffer_bytes: random.pick(&[4096, 1 << 18]),
            zero_copy: random.pick(&[Policy::Measure, Policy::Always(mode)]),
            peer_timeout: Duration::from_nanos(self.peer_timeout_ns),
            silent_timeout: SilentTimeout::NONE,
            handshake_pending_max: random.pick(&[40, 1000]),
            handshake_timeout: HANDSHAKE_TIMEOUT,
            linger: Duration::ZERO,
            report_lost_peers: false,
        }
    }
}
