//! The third namespace of a lab: ports with gates, limited rates, and what forwards between them.
//!
//! ```text
//!   host a            switch             host b
//!   rail0 ──veth── a0 ═══════ b0 ──veth── rail0     ═  redirected from port to port by the gate,
//!   rail1 ──veth── a1 ═══════ b1 ──veth── rail1        or one bridge for all, or a router
//! ```
//!
//! The gate is where a packet comes into the switch, the limit of its rate where it leaves. A wire
//! in user space, where there is one, takes the place of `═`.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use super::gates::{Gates, Passage};
use super::namespace::Namespace;
use super::tools::{ip, tc};
use super::wire::{Joint, Wire};
use super::wiring::{port, port_index};
use super::{Host, LabError, LabSpec, address, outside, router};

/// How long a packet waits at a port at the most, beyond one burst, in seconds.
const QUEUE_S: f64 = 1.5e-3;

/// What leaves a port at once at the most, in bytes: two packets of segmentation offload; with
/// less, TCP does not get its share.
const BURST_BYTES: u64 = 128 * 1024;

/// A switch between the hosts of a lab.
#[derive(Debug)]
pub(crate) struct Switch {
    gates: Gates,
    wire: Option<Wire>,
    /// Where the ports are.
    namespace: Arc<Namespace>,
}

impl Switch {
    /// Makes the rails of a lab pass: `namespace` has their ports, which are up.
    pub(crate) fn build(namespace: Arc<Namespace>, spec: &LabSpec) -> Result<Self, LabError> {
        limit_rates(&namespace, spec)?;
        ip(&namespace, &[], &forwarding(spec))?;
        let is_redirected = !spec.same_subnet && !spec.routed && !spec.has_wire();
        let ports: Vec<_> = (0..spec.rails)
            .flat_map(|rail| [(Host::A, rail), (Host::B, rail)])
            .map(|(host, rail)| {
                let out = is_redirected.then(|| port_index(host.other(), rail));
                (port_index(host, rail), out)
            })
            .collect();
        let joint = |rail| Joint {
            ports: [port_index(Host::A, rail), port_index(Host::B, rail)],
            nat: spec.nat.then(|| (address(spec, Host::A, rail), outside(rail))),
        };
        let (gates, wire) = namespace.enter(|| {
            if spec.routed {
                std::fs::write("/proc/sys/net/ipv4/ip_forward", "1")
                    .map_err(LabError::os("making the lab's switch a router"))?;
            }
            let gates = Gates::put_up(&ports)?;
            let joints: Vec<_> = (0..spec.rails).map(joint).collect();
            let wire = spec.has_wire().then(|| Wire::lay(&joints, spec.delay)).transpose()?;
            Ok::<_, LabError>((gates, wire))
        })??;
        let switch = Self { gates, wire, namespace };
        for rail in 0..spec.rails {
            for host in [Host::A, Host::B] {
                switch.set_loss(rail, host, spec.loss);
                switch.set_longest(rail, host, spec.passes);
            }
        }
        Ok(switch)
    }

    /// Runs `work` on a new thread where the ports are.
    pub(crate) fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, LabError> {
        self.namespace.enter(work)
    }

    /// The share of what comes from `from` on `rail` that is dropped, from now on.
    pub(crate) fn set_loss(&self, rail: u8, from: Host, share: f64) {
        self.gates.set_loss(at(rail, from), share);
    }

    /// Longer IP packets from `from` on `rail` are dropped from now on; `None`: none for their
    /// length.
    pub(crate) fn set_longest(&self, rail: u8, from: Host, bytes: Option<u32>) {
        self.gates.set_longest(at(rail, from), bytes);
    }

    /// Packets of `rail` take so long either way, from now on. `false`: there is no wire.
    pub(crate) fn set_delay(&self, rail: u8, delay: Duration) -> bool {
        self.wire.as_ref().inspect(|wire| wire.set_delay(rail, delay)).is_some()
    }

    /// What has come from `from` on `rail`.
    pub(crate) fn passage(&self, rail: u8, from: Host) -> Passage {
        self.gates.passage(at(rail, from))
    }
}

/// Where the gate is.
fn at(rail: u8, from: Host) -> usize {
    2 * usize::from(rail) + usize::from(from.index())
}

/// Commands for what is between the ports, apart from gates.
fn forwarding(spec: &LabSpec) -> String {
    let mut batch = String::new();
    if spec.same_subnet {
        batch.push_str("link add name br0 type bridge forward_delay 0 mcast_snooping 0\n");
        batch.push_str("link set dev br0 addrgenmode none\n");
    }
    for rail in 0..spec.rails {
        for host in [Host::A, Host::B] {
            let port = port(host, rail);
            if spec.same_subnet {
                let _ = writeln!(batch, "link set dev {port} master br0");
            }
            if spec.routed {
                let _ = writeln!(batch, "addr add {}/24 dev {port}", router(host, rail));
            }
        }
    }
    if spec.same_subnet {
        batch.push_str("link set dev br0 up\n");
    }
    batch
}

/// Rates, and delays where no wire has them, where packets leave.
fn limit_rates(namespace: &Arc<Namespace>, spec: &LabSpec) -> Result<(), LabError> {
    let has_netem = !spec.delay.is_zero() && !spec.has_wire();
    let mut batch = String::new();
    for rail in 0..spec.rails {
        for port in [port(Host::A, rail), port(Host::B, rail)] {
            if has_netem {
                let us = spec.delay.as_micros();
                // As many packets as 400 Gb/s bring in 10 ms.
                let _ = writeln!(
                    batch,
                    "qdisc add dev {port} root handle 1: netem delay {us}us limit 400000"
                );
            }
            if let Some(rate) = spec.rate_bit_s(rail) {
                let place = if !has_netem { "root" } else { "parent 1:1 handle 2:" };
                let queue = BURST_BYTES + (rate as f64 / 8.0 * QUEUE_S) as u64;
                let _ = writeln!(
                    batch,
                    "qdisc add dev {port} {place} tbf rate {rate}bit burst {BURST_BYTES} \
                     limit {queue}"
                );
            }
        }
    }
    tc(namespace, &batch).map_err(|error| match error {
        // "Specified qdisc kind is unknown."
        LabError::Refused { stderr, .. } if has_netem && stderr.contains("unknown") => {
            LabError::NoDelay { stderr }
        }
        other => other,
    })
}
