//! One NIC: what it is, how datagrams reach us by it, and what AF_XDP would do there.

use std::fmt;
use std::net::IpAddr;

use ringrail::topology::{Candidate, Nic, Verdict};
use ringrail_xdp::{FlowRules, Mode, NicFacts, Support, facts};
use serde::Serialize;

/// What is told of a NIC.
#[derive(Clone, Debug, Serialize)]
pub(super) struct NicInfo {
    name: String,
    chosen: bool,
    /// Numbers of the rails that it is.
    rails: Vec<usize>,
    reason: String,
    addresses: Vec<IpAddr>,
    up: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    speed_mbps: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    numa_node: Option<u32>,
    /// `None`: the kernel does not tell.
    #[serde(flatten)]
    details: Option<Details>,
    /// Why nobody could have frames there, and the cure; none if nothing is known against them.
    #[serde(skip_serializing_if = "Option::is_none")]
    no_frames: Option<String>,
}

/// What the driver says.
#[derive(Clone, Debug, Serialize)]
struct Details {
    driver: String,
    mtu_bytes: u32,
    queues: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    queues_max: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hash_queues: Option<Vec<u32>>,
    flow_rules: &'static str,
    /// Where datagrams for our port arrive, and what sends them to the queue that an engine has.
    steering: String,
    xdp_native: String,
    xdp_zero_copy: String,
    xdp_mode: String,
    xdp_mode_reason: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    xdp_program: Option<String>,
}

/// Where datagrams of an engine go: for commands that can be copied.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    pub(super) ip: IpAddr,
    pub(super) port: u16,
}

impl NicInfo {
    /// `target`: where an endpoint takes datagrams.
    pub(super) fn of(candidate: &Candidate, target: Option<Target>) -> Self {
        let nic = &candidate.nic;
        let facts = facts(nic.index).ok();
        let target = target.filter(|target| nic.addresses.contains(&target.ip));
        Self {
            name: nic.name.clone(),
            chosen: candidate.verdict == Verdict::Chosen,
            rails: candidate.rails.clone(),
            reason: candidate.reason.clone(),
            addresses: nic.addresses.clone(),
            up: nic.up,
            speed_mbps: nic.speed_mbps,
            numa_node: nic.numa_node,
            no_frames: no_frames(nic),
            details: facts.map(|facts| Details::of(facts, target)),
        }
    }
}

impl Details {
    fn of(facts: NicFacts, target: Option<Target>) -> Self {
        let steering = steering(&facts, target);
        let (xdp_mode, xdp_mode_reason) = mode(&facts);
        Self {
            steering,
            xdp_mode,
            xdp_mode_reason,
            driver: facts.driver,
            mtu_bytes: facts.mtu_bytes,
            queues: facts.queues,
            queues_max: facts.queues_max,
            hash_queues: facts.hash_queues,
            flow_rules: match facts.flow_rules {
                FlowRules::None => "none",
                FlowRules::Off => "off",
                FlowRules::On => "on",
            },
            xdp_native: facts.native.to_string(),
            xdp_zero_copy: facts.zero_copy.to_string(),
            xdp_program: facts.program.map(|mode| mode.to_string()),
        }
    }
}

/// Which way frames go there, and why.
fn mode(facts: &NicFacts) -> (String, String) {
    let (mode, reason) = match (facts.auto_mode, facts.zero_copy) {
        (Mode::Native, Support::Yes) => {
            ("native, zero-copy", "the NIC reads and writes our frames itself".to_owned())
        }
        (Mode::Native, Support::No) => {
            ("native, copied", "the driver runs the program, but has no zero-copy".to_owned())
        }
        (Mode::Native, Support::Unknown) => (
            "native or generic",
            "kernels before 6.3 do not tell what the driver can: it is tried in this order"
                .to_owned(),
        ),
        _ if facts.native == Support::Yes => (
            "generic, copied",
            format!(
                "{} could run the program natively, but that costs TCP its segmentation offload, \
                 and generic is faster there",
                facts.driver
            ),
        ),
        _ => (
            "generic, copied",
            "the driver runs no XDP programs, so the kernel's stack does".into(),
        ),
    };
    (mode.to_owned(), reason)
}

/// Where datagrams for one port arrive, and the cure where that is not our queue.
fn steering(facts: &NicFacts, target: Option<Target>) -> String {
    if facts.queues == 1 {
        return "one queue: every datagram arrives where the engine's socket of frames is".into();
    }
    if let Some([queue]) = facts.hash_queues.as_deref() {
        return format!(
            "{} queues, and the hash picks queue {queue} for all: datagrams come as frames if the \
             engine has that queue (it takes the first free one), else by its UDP socket",
            facts.queues
        );
    }
    let nic = &facts.name;
    let (ip, port) = match target {
        Some(target) => (target.ip.to_string(), target.port.to_string()),
        None => ("ADDRESS".to_owned(), "PORT".to_owned()),
    };
    let flow = if ip.contains(':') { "udp6" } else { "udp4" };
    let rule = format!(
        "ethtool -N {nic} flow-type {flow} dst-ip {ip} dst-port {port} action QUEUE` (with the \
         setting port_range = {port}-{port}, and QUEUE as the endpoint says with --lanes hybrid)"
    );
    let cure = match facts.flow_rules {
        FlowRules::On => format!("`{rule}"),
        FlowRules::Off => format!("`ethtool -K {nic} ntuple on && {rule}"),
        FlowRules::None if facts.hash_queues.is_some() => {
            format!("`ethtool -X {nic} equal 1`, which costs other traffic its spread")
        }
        FlowRules::None => {
            format!("`ethtool -L {nic} combined 1`, which costs other traffic its spread")
        }
    };
    format!(
        "{} queues: a hash picks one for each peer; what arrives on a queue without the engine's \
         socket goes up the kernel's stack to its UDP socket, slower but not lost. To have all \
         as frames, as root: {cure}",
        facts.queues
    )
}

/// What is known to be in the way of everybody's frames, with the cure.
fn no_frames(nic: &Nic) -> Option<String> {
    if nic.loopback {
        return Some("the loopback has no frames".to_owned());
    }
    if !nic.up {
        return Some(format!("it is down; cure: ip link set dev {} up", nic.name));
    }
    if nic.addresses.is_empty() {
        return Some("it has no address".to_owned());
    }
    None
}

impl fmt::Display for NicInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "  {}", self.name)?;
        let Some(details) = &self.details else { return Ok(()) };
        let driver = if details.driver.is_empty() { "none" } else { &details.driver };
        write!(f, "\n    driver {driver}, MTU {} bytes, ", details.mtu_bytes)?;
        match details.queues_max {
            Some(most) if most > details.queues => write!(f, "{} of {most} queues", details.queues),
            _ if details.queues == 1 => write!(f, "1 queue"),
            _ => write!(f, "{} queues", details.queues),
        }?;
        if let Some(mbps) = self.speed_mbps {
            write!(f, ", {mbps} Mb/s")?;
        }
        if let Some(node) = self.numa_node {
            write!(f, ", NUMA node {node}")?;
        }
        let addresses: Vec<String> = self.addresses.iter().map(IpAddr::to_string).collect();
        if !addresses.is_empty() {
            write!(f, "\n    addresses: {}", addresses.join(", "))?;
        }
        if let Some(cause) = &self.no_frames {
            return write!(f, "\n    AF_XDP: no: {cause}");
        }
        write!(f, "\n    AF_XDP: {}: {}", details.xdp_mode, details.xdp_mode_reason)?;
        if let Some(mode) = &details.xdp_program {
            write!(f, "; an XDP program is there already ({mode}), shared if it is ringrail's")?;
        }
        write!(f, "\n    steering: {}", details.steering)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nic_with(queues: u32, hash: Option<Vec<u32>>, flow_rules: FlowRules) -> NicFacts {
        NicFacts {
            name: "eth1".into(),
            driver: "ice".into(),
            mtu_bytes: 9000,
            queues,
            queues_max: Some(64),
            hash_queues: hash,
            flow_rules,
            native: Support::Yes,
            zero_copy: Support::Yes,
            frags: Support::Yes,
            auto_mode: Mode::Native,
            program: None,
        }
    }

    #[test]
    fn the_cure_for_many_queues_is_what_the_nic_has() {
        let spread = || Some(vec![0, 1, 2, 3]);
        let target = Target { ip: "192.0.2.1".parse().unwrap(), port: 7200 };
        let of = |facts: &NicFacts| steering(facts, Some(target));
        let rule = of(&nic_with(4, spread(), FlowRules::On));
        let command = "ethtool -N eth1 flow-type udp4 dst-ip 192.0.2.1 dst-port 7200 action";
        assert!(rule.contains(command) && rule.contains("port_range = 7200-7200"), "{rule}");
        assert!(!rule.contains("ntuple on"), "{rule}");
        let off = of(&nic_with(4, spread(), FlowRules::Off));
        assert!(off.contains("ethtool -K eth1 ntuple on") && off.contains(command), "{off}");
        let spread_only = of(&nic_with(4, spread(), FlowRules::None));
        assert!(spread_only.contains("ethtool -X eth1 equal 1"), "{spread_only}");
        let neither = of(&nic_with(4, None, FlowRules::None));
        assert!(neither.contains("ethtool -L eth1 combined 1"), "{neither}");
        for one in
            [of(&nic_with(1, None, FlowRules::On)), of(&nic_with(4, Some(vec![2]), FlowRules::On))]
        {
            assert!(!one.contains("ethtool"), "{one}");
        }
        let target = Target { ip: "fd00::1".parse().unwrap(), port: 7200 };
        let six = steering(&nic_with(4, spread(), FlowRules::On), Some(target));
        assert!(six.contains("udp6 dst-ip fd00::1"), "{six}");
    }

    #[test]
    fn the_mode_is_told_with_its_reason() {
        let mut facts = nic_with(1, None, FlowRules::None);
        assert_eq!(mode(&facts).0, "native, zero-copy");
        (facts.zero_copy, facts.auto_mode) = (Support::No, Mode::Generic);
        facts.driver = "veth".into();
        let (how, why) = mode(&facts);
        assert!(how.contains("generic") && why.contains("segmentation offload"), "{how} {why}");
        facts.native = Support::No;
        assert!(mode(&facts).1.contains("no XDP programs"));
        (facts.native, facts.zero_copy) = (Support::Unknown, Support::Unknown);
        facts.auto_mode = Mode::Native;
        assert!(mode(&facts).1.contains("6.3"));
    }
}
