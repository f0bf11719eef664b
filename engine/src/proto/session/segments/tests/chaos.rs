//! Random operations over random networks.

use std::collections::BTreeMap;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::super::segment::SegmentPool;
use super::super::uncommon::Uncommon;
use crate::proto::core::Config;
use crate::proto::effects::CompletionLevel;
use crate::proto::hint::Hint;
use crate::proto::sim::{ENDPOINTS, Flow, LinkConfig, Net};

/// Random choices of one seed.
struct Plan {
    random: SmallRng,
    config: Config,
    net: Net,
    engines: usize,
    /// Receives of an endpoint and context name their source.
    directed: BTreeMap<(usize, u16, u64), bool>,
    messages: usize,
    /// The flow of most messages, if there is one.
    favourite: Option<Flow>,
    owed: Vec<Flow>,
}

fn one_of<T: Copy>(random: &mut SmallRng, choices: &[T]) -> T {
    choices[random.random_range(0..choices.len())]
}

impl Plan {
    fn new(seed: u64) -> Self {
        let mut random = SmallRng::seed_from_u64(seed);
        let eager_limit = one_of(&mut random, &[0, 100, 1000, 3000]);
        let config = Config {
            eager_limit,
            rts_bytes: one_of(&mut random, &[0, 10, 500]),
            envelope_credits: one_of(&mut random, &[1, 2, 5, 64]),
            eager_credit_bytes: eager_limit.max(1) * one_of(&mut random, &[1, 1, 3]),
            chunk_bytes: one_of(&mut random, &[100, 4096]),
            busy_chunk_bytes: 100,
            horizon_chunks: one_of(&mut random, &[1, 4]),
            bulk_lanes: one_of(&mut random, &[1, 2]),
            bulk_lanes_max: 16,
            bulk_in_datagrams: seed % 2 == 1,
            datagram_window_bytes: [1, 1000, 1 << 20][seed as usize % 3],
            pieces_bytes_max: one_of(&mut random, &[0, 3000, 1 << 20]),
            ..Config::for_tests()
        };
        let engines = one_of(&mut random, &[2, 2, 3]);
        let segment_bytes = one_of(&mut random, &[0, 200, 300, 1200]);
        let mut net = Net::new(engines, &config, segment_bytes, seed ^ 0x5eed);
        let pool = one_of(&mut random, &[1, 2, 8, 100]);
        for engine in &mut net.engines {
            engine.core.shared.pool = SegmentPool::of_bytes(2048, pool * 2048);
        }
        net.room_bytes = 1200;
        net.burst = one_of(&mut random, &[1, 2, 8]);
        let links = LinkConfig {
            loss_ppm: one_of(&mut random, &[0, 10_000, 100_000, 300_000, 500_000]),
            duplicate_ppm: one_of(&mut random, &[0, 100_000, 500_000]),
            jitter_ns: 1 + one_of(&mut random, &[0, 1, 5, 20]),
            ..LinkConfig::fixed(1)
        };
        let ack_loss_ppm = one_of(&mut random, &[0, 100_000, 500_000]);
        net.switch_ppm = one_of(&mut random, &[0, 0, 20_000, 200_000]);
        net.is_silent = random.random_bool(0.2);
        net.has_rings = random.random_bool(0.3);
        if net.has_rings {
            (net.ring_full_ppm, net.is_silent) = (links.loss_ppm, false);
        } else if net.is_silent {
            net.set_links(&LinkConfig { loss_ppm: 0, ..links });
        } else {
            net.set_links(&links);
            net.acks.config.loss_ppm = ack_loss_ppm;
        }
        if net.has_rings && random.random_bool(0.7) {
            net.use_rings();
        }
        if random.random_bool(0.3) {
            net.use_streams(one_of(&mut random, &[1, 4, 40]));
        }
        if random.random_bool(0.3) {
            net.use_cma(true);
            net.cma_failure_ppm = one_of(&mut random, &[0, 10_000, 300_000]);
        }
        let favourite = Flow { from: 0, source: 0, to: 1, target: 0, context: 1 };
        let favourite = random.random_bool(0.5).then_some(favourite);
        let (directed, owed) = (BTreeMap::new(), Vec::new());
        Self { random, config, net, engines, directed, messages: 0, favourite, owed }
    }

    fn send(&mut self) {
        let random = &mut self.random;
        let from = random.random_range(0..self.engines);
        let to = (from + random.random_range(1..self.engines)) % self.engines;
        let untagged = one_of(random, &[0, 0, crate::proto::core::UNTAGGED]);
        let flow = Flow {
            from,
            source: random.random_range(0..ENDPOINTS),
            to,
            target: random.random_range(0..ENDPOINTS),
            context: random.random_range(0..3) | untagged,
        };
        let is_usual = random.random_bool(0.7);
        let flow = self.favourite.filter(|_| is_usual).unwrap_or(flow);
        let limit = self.config.eager_limit as usize;
        let length = match random.random_range(0..6) {
            0 => 0,
            1 => random.random_range(0..50),
            2 => limit,
            3 => limit + random.random_range(1..2000),
            4 => random.random_range(0..=limit.min(200)),
            _ => random.random_range(0..=limit),
        };
        let level = one_of(
            random,
            &[CompletionLevel::Inject, CompletionLevel::Delivery, CompletionLevel::Match],
        );
        let hints = [Hint::None, Hint::Latency, Hint::Bulk, Hint::Priority];
        self.net.hint = one_of(random, &hints);
        self.net.send(flow, length, level);
        self.messages += 1;
        self.owed.push(flow);
    }

    /// Posts a receive for a message that has none.
    fn receive(&mut self) {
        if self.owed.is_empty() {
            return;
        }
        let at = self.random.random_range(0..self.owed.len());
        let flow = self.owed.swap_remove(at);
        let place = (flow.to, flow.target, flow.context);
        let chosen = self.random.random_bool(0.5);
        let is_directed = *self.directed.entry(place).or_insert(chosen);
        let peer = is_directed.then_some((flow.from, flow.source));
        let capacity = one_of(&mut self.random, &[6000, 6000, 6000, 0, 70, 900]);
        self.net.receive((flow.to, flow.target), peer, flow.context, capacity);
    }

    fn run(&mut self) {
        for _ in 0..self.random.random_range(5..60) {
            match self.random.random_range(0..10) {
                0..4 => self.send(),
                4..7 => self.receive(),
                _ => {
                    let steps = self.random.random_range(1..20);
                    self.net.steps(steps);
                }
            }
        }
        self.net.set_links(&LinkConfig::fixed(1));
        (self.net.switch_ppm, self.net.ring_full_ppm) = (0, 0);
        while !self.owed.is_empty() {
            self.receive();
        }
        self.net.settle(1000 + 200 * self.messages as u64);
        self.net.check();
    }
}

/// Describes an engine's protocol state, and how and when operations ended.
fn remains_of(net: &Net) -> String {
    let engines = net.engines.iter().map(|engine| {
        let core = &engine.core;
        let ended: BTreeMap<_, _> = engine.memory.ended.iter().collect();
        let lists = (&core.shared.ready, &core.shared.actions);
        let remotes: Vec<_> = core.shared.peers.iter().collect();
        let tables = (&core.sessions, &core.shared.operations, remotes, &core.shared.unexpected);
        let rest = (
            &core.shared.endpoints,
            &core.shared.counters(),
            &core.shared.pool,
            &core.shared.rendezvous,
        );
        format!("{lists:?} {tables:?} {rest:?} {ended:?}")
    });
    engines.collect()
}

/// The receive fast path leaves the same state as the general path.
#[test]
fn fast_path_and_general_path_have_equal_effects() {
    let run = |seed| {
        let mut plan = Plan::new(seed);
        plan.run();
        for engine in &mut plan.net.engines {
            for slot in 0..engine.core.sessions().slots() as u32 {
                engine.core.with(slot, |it, _| it.settle(Uncommon::all()));
            }
        }
        (plan.net.now_ns(), remains_of(&plan.net))
    };
    for seed in 0..seeds() / 2 {
        let long = crate::hooks::simulated::by_long_ways(|| run(seed));
        assert!(run(seed) == long, "seed {seed}");
    }
}

fn seeds() -> u64 {
    std::env::var("TEST_OF_RINGRAIL_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(300)
}

/// RR-DGRAM-1, RR-DGRAM-3, RR-DGRAM-4, RR-MATCH-1, RR-CREDIT-3
#[test]
fn random_faults_never_lose_duplicate_or_reorder_messages() {
    let first = std::env::var("TEST_OF_RINGRAIL_SEED").ok().and_then(|text| text.parse().ok());
    let range = first.map_or(0..seeds(), |seed| seed..seed + 1);
    for seed in range {
        let outcome = std::panic::catch_unwind(|| Plan::new(seed).run());
        if let Err(cause) = outcome {
            eprintln!("TEST_OF_RINGRAIL_SEED={seed} repeats it");
            std::panic::resume_unwind(cause);
        }
    }
}
