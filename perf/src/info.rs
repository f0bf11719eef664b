//! What this host can do, and the settings in force.

#[cfg(feature = "hwloc")]
mod machine;
mod mpi;
mod nic;
mod peer;
mod rails;
mod warnings;

use std::fmt;
use std::net::IpAddr;

use ringrail::settings::Settings;
use ringrail::topology::{Placement, Selection};
use ringrail::{DatagramState, Domain, FrameState, SharedMemoryState, kernel_features, topology};
use ringrail_xdp::{Missing, memlock_bytes};
use serde::Serialize;

#[cfg(feature = "hwloc")]
use self::machine::MachineInfo;
use self::mpi::MpiInfo;
use self::nic::{NicInfo, Target};
use self::peer::PeerInfo;
use self::rails::Candidates;
use crate::cli::Cli;
use crate::{secret, test};

/// Bytes of an AF_XDP frame.
const FRAME_BYTES: u64 = 4096;

/// Everything, as `--json` has it.
#[derive(Serialize)]
struct Info {
    kernel: String,
    io_uring: Vec<Feature>,
    /// Why there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    io_uring_refused: Option<String>,
    candidates: Candidates,
    nics: Vec<NicInfo>,
    endpoint: EndpointInfo,
    /// Processes that `--peer` names with their ports.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    peers: Vec<PeerInfo>,
    frames: Frames,
    eager_limit_bytes: Option<usize>,
    ipv6: &'static str,
    mpi: MpiInfo,
    limits: Vec<Limit>,
    cores: Vec<usize>,
    placement: PlacementInfo,
    #[cfg(feature = "hwloc")]
    machine: MachineInfo,
    settings: Vec<Setting>,
}

/// Where threads of dedicated engines run.
#[derive(Serialize)]
struct PlacementInfo {
    /// The node of the NIC of the first rail.
    numa_node: Option<u32>,
    /// Cores that threads of dedicated engines may use, the best first.
    cores: Vec<usize>,
    /// Those that the next such thread runs on.
    dedicated: Vec<usize>,
    text: String,
}

#[derive(Serialize)]
struct Feature {
    name: &'static str,
    is_available: bool,
    since: &'static str,
}

/// What AF_XDP needs of a process, and whether this one has it.
#[derive(Serialize)]
struct Frames {
    /// Capabilities that it lacks.
    missing: Vec<String>,
    /// `None`: as many as there are.
    memlock_bytes: Option<u64>,
    /// What the frames of an engine take.
    wanted_bytes: u64,
    /// What to do, in one line.
    #[serde(skip_serializing_if = "Option::is_none")]
    cure: Option<String>,
}

#[derive(Serialize)]
struct Limit {
    name: &'static str,
    value: String,
}

#[derive(Serialize)]
struct Setting {
    name: String,
    value: String,
    origin: String,
}

/// What became of an endpoint with these settings.
#[derive(Serialize)]
struct EndpointInfo {
    /// Where it listens; `None`: it cannot be had.
    locator: Option<std::net::SocketAddr>,
    driver: Option<String>,
    datagram_port: Option<u16>,
    /// AF_XDP: off, up, down or refused.
    frames: Option<&'static str>,
    text: String,
}

pub(crate) fn run(cli: &Cli) -> Result<(), String> {
    let info = Info::gather(cli)?;
    if cli.json {
        println!("{}", serde_json::to_string(&info).map_err(|error| error.to_string())?);
    } else {
        println!("{info}");
    }
    Ok(())
}

impl Info {
    fn gather(cli: &Cli) -> Result<Self, String> {
        let nics = cli.nics.as_deref();
        let settings = test::settings(cli.lanes, nics, None, None, &cli.settings)?;
        let (io_uring, io_uring_refused) = match kernel_features() {
            Ok(features) => (features, None),
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        // An endpoint may pin this thread.
        let cores = topology::cores();
        let found = topology::nics().map_err(|error| error.to_string())?;
        let selection = topology::select(&found, &settings).map_err(|error| error.to_string())?;
        let table = Candidates::gather(&selection, &peers(cli)?)?;
        let (endpoint, peers) = endpoint(cli)?;
        let frames = Frames::of(&settings);
        let target = endpoint.locator.zip(endpoint.datagram_port);
        let target = target.map(|(locator, port)| Target { ip: locator.ip(), port });
        let candidates = selection.candidates.iter();
        let placement = PlacementInfo::of(&settings, &selection, &cores);
        Ok(Self {
            kernel: read("/proc/sys/kernel/osrelease").unwrap_or_else(|| "unknown".to_owned()),
            io_uring: io_uring
                .into_iter()
                .map(|feature| Feature {
                    name: feature.name,
                    is_available: feature.is_available,
                    since: feature.since,
                })
                .collect(),
            io_uring_refused,
            candidates: table,
            nics: candidates.map(|it| NicInfo::of(it, target)).collect(),
            endpoint,
            peers,
            frames,
            eager_limit_bytes: settings.eager_limit_bytes(),
            ipv6: ipv6(),
            mpi: MpiInfo::gather(&settings),
            limits: limits(),
            cores,
            placement,
            #[cfg(feature = "hwloc")]
            machine: MachineInfo::gather(selection.candidates.iter()),
            settings: settings
                .entries()
                .map(|entry| Setting {
                    name: entry.name.to_string(),
                    value: entry.value.to_string(),
                    origin: entry.origin.to_string(),
                })
                .collect(),
        })
    }
}

impl fmt::Display for Info {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "kernel\n  Linux {}, IPv6: {}", self.kernel, self.ipv6)?;
        writeln!(f, "io_uring features")?;
        for feature in &self.io_uring {
            let state = if feature.is_available { "yes" } else { "no" };
            writeln!(f, "  {:<20} {state:<4} since Linux {}", feature.name, feature.since)?;
        }
        if let Some(cause) = &self.io_uring_refused {
            writeln!(f, "  {cause}; endpoints use plain sockets")?;
        }
        writeln!(f, "rails and other NICs")?;
        write!(f, "{}", self.candidates)?;
        writeln!(f, "NICs")?;
        for nic in &self.nics {
            writeln!(f, "{nic}")?;
        }
        writeln!(
            f,
            "AF_XDP (half a microsecond of kernel for a short message, not two; from Linux 5.15)"
        )?;
        writeln!(f, "{}", self.frames)?;
        writeln!(f, "endpoint\n  {}", self.endpoint.text)?;
        writeln!(
            f,
            "  {} go with their envelope; longer ones are pulled \
             (`ringrail-perf crossover` measures what suits a path)",
            self.eager_limit_bytes.map_or_else(
                || "messages up to 64 KiB at first, then 16 to 256 KiB as their receiver measures"
                    .to_owned(),
                |bytes| format!("messages up to {bytes} bytes")
            )
        )?;
        if !self.peers.is_empty() {
            writeln!(f, "peers")?;
        }
        for peer in &self.peers {
            writeln!(f, "{peer}")?;
        }
        writeln!(f, "MPI, by libfabric (bindings/libfabric/README.md)\n{}", self.mpi)?;
        writeln!(f, "limits")?;
        for limit in &self.limits {
            writeln!(f, "  {}: {}", limit.name, limit.value)?;
        }
        writeln!(f, "  cores: {:?}", self.cores)?;
        writeln!(f, "placement\n  {}", self.placement.text)?;
        #[cfg(feature = "hwloc")]
        writeln!(f, "machine, as hwloc sees it\n{}", self.machine)?;
        write!(f, "settings")?;
        for Setting { name, value, origin } in &self.settings {
            write!(f, "\n  {name:<24} {value:<16} {origin}")?;
        }
        Ok(())
    }
}

impl PlacementInfo {
    fn of(settings: &Settings, selection: &Selection, allowed: &[usize]) -> Self {
        let numa_node = selection.chosen().and_then(|(nic, _)| nic.numa_node);
        let (pinned, reserved) = (settings.pin_cores(), settings.reserved_cores());
        let placement = Placement::of_host(allowed, reserved, numa_node);
        let node = numa_node.map_or_else(
            || "its NIC is on no node that the system tells".to_owned(),
            |node| format!("its NIC is on node {node}"),
        );
        let (dedicated, why) = match pinned {
            [] => {
                (placement.near().to_vec(), "all on the node of the NIC; pin_cores names one each")
            }
            [first, ..] => (vec![*first], "each has the next core of the setting pin_cores"),
        };
        let text = format!(
            "{placement}; {node}; reserved for the application: {}; the thread of a dedicated \
             engine runs on {dedicated:?} ({why})",
            if reserved.is_empty() { "none".to_owned() } else { format!("{reserved:?}") }
        );
        Self { numa_node, cores: placement.cores().to_vec(), dedicated, text }
    }
}

impl Frames {
    fn of(settings: &Settings) -> Self {
        let missing = Missing::of_this_thread();
        let (memlock_bytes, wanted_bytes) =
            (memlock_bytes(), settings.xdp_frames() as u64 * FRAME_BYTES);
        let cure = match &missing {
            Some(missing) => Some(missing.to_string()),
            None => memlock_bytes.filter(|&bytes| bytes < wanted_bytes).map(|bytes| {
                format!(
                    "{wanted_bytes} bytes of locked memory are wanted and {bytes} allowed: \
                     ulimit -l unlimited, LimitMEMLOCK= in a unit of systemd, or CAP_IPC_LOCK"
                )
            }),
        };
        let missing = missing.map(|missing| missing.capabilities).unwrap_or_default();
        let missing = missing.iter().map(ToString::to_string).collect();
        Self { missing, memlock_bytes, wanted_bytes, cure }
    }
}

impl fmt::Display for Frames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cure {
            Some(cure) => write!(f, "  frames: not for this process: {cure}")?,
            None => write!(
                f,
                "  frames: this process may have them (--lanes hybrid tries it; control_lane = \
                 auto elsewhere)"
            )?,
        }
        match self.memlock_bytes {
            Some(bytes) => write!(f, "\n  locked memory: {bytes} bytes at most")?,
            None => write!(f, "\n  locked memory: no limit")?,
        }
        write!(f, ", {} for frames", self.wanted_bytes)
    }
}

/// The addresses that `--peer` names.
fn peers(cli: &Cli) -> Result<Vec<IpAddr>, String> {
    let mut found: Vec<IpAddr> = Vec::new();
    for name in &cli.peer {
        for address in peer::addresses_of(name)?.into_iter().map(|(address, _)| address) {
            if !found.contains(&address) {
                found.push(address);
            }
        }
    }
    Ok(found)
}

fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// Whether addresses of IPv6 can be had.
fn ipv6() -> &'static str {
    match read("/proc/sys/net/ipv6/conf/all/disable_ipv6").as_deref() {
        None => "the kernel has none",
        Some("0") => "on",
        Some(_) => "switched off (sysctl net.ipv6.conf.all.disable_ipv6)",
    }
}

fn limits() -> Vec<Limit> {
    let names = [
        ("memlock (for registered memory; raise with ulimit -l)", "Max locked memory"),
        ("open files (one per peer, one per bulk lane)", "Max open files"),
    ];
    let text = read("/proc/self/limits").unwrap_or_default();
    let of_process = names.map(|(name, line)| {
        let value = text.lines().find_map(|text| text.strip_prefix(line)).unwrap_or("unknown");
        let value = value.split_whitespace().next().unwrap_or("unknown").to_owned();
        Limit { name, value }
    });
    let of_host = ["net/core/rmem_max", "net/core/wmem_max", "vm/nr_hugepages"].map(|name| {
        let value = read(&format!("/proc/sys/{name}")).unwrap_or_default();
        Limit { name, value }
    });
    of_process.into_iter().chain(of_host).collect()
}

/// What becomes of an endpoint with these settings, its datagrams above all.
fn endpoint(cli: &Cli) -> Result<(EndpointInfo, Vec<PeerInfo>), String> {
    // Without a secret there is no endpoint; it needs little memory.
    secret::fresh(cli.lanes, &cli.settings)?;
    let mut extra = cli.settings.clone();
    extra.push("pcap_file=none".to_owned());
    let settings = test::settings(cli.lanes, cli.nics.as_deref(), None, Some(1 << 20), &extra)?;
    let opened = Domain::with_settings(settings)
        .and_then(|domain| domain.endpoint())
        .and_then(|endpoint| endpoint.attach());
    let endpoint = match opened {
        Ok(endpoint) => endpoint,
        Err(error) => {
            let text = format!("cannot be had with these settings: {error}");
            let (locator, driver, datagram_port, frames) = (None, None, None, None);
            let info = EndpointInfo { locator, driver, datagram_port, frames, text };
            return Ok((info, Vec::new()));
        }
    };
    let (at, driver, state) =
        (endpoint.address().locator(), endpoint.driver(), endpoint.datagrams());
    let shared_memory = shared_memory_text(&endpoint.shared_memory());
    let text = format!("{at}, by {driver}: {}; {shared_memory}", datagrams(&state));
    let (datagram_port, frames) = match &state {
        DatagramState::Taken { port, frames, .. } => (Some(*port), frames_word(frames)),
        _ => (None, None),
    };
    let (locator, driver) = (Some(at), Some(driver.to_owned()));
    let info = EndpointInfo { locator, driver, datagram_port, frames, text };
    Ok((info, PeerInfo::gather(&endpoint, &cli.peer)?))
}

fn frames_word(state: &FrameState) -> Option<&'static str> {
    match state {
        FrameState::Off => Some("off"),
        FrameState::Up { .. } => Some("up"),
        FrameState::Down { .. } => Some("down"),
        FrameState::Refused { .. } => Some("refused"),
        // A state that this program does not know yet.
        _ => None,
    }
}

fn datagrams(state: &DatagramState) -> String {
    match state {
        DatagramState::Taken {
            port,
            receive_buffer_bytes,
            send_buffer_bytes,
            wanted_buffer_bytes,
            frames,
            ..
        } => {
            let least = receive_buffer_bytes.min(send_buffer_bytes);
            let cure = match least < wanted_buffer_bytes {
                true => format!(
                    "; wanted were {wanted_buffer_bytes}, and less loses more datagrams: as root, \
                     sysctl -w net.core.rmem_max={0} net.core.wmem_max={0}",
                    wanted_buffer_bytes / 2
                ),
                false => String::new(),
            };
            format!(
                "datagrams are taken at UDP port {port}, buffers of {receive_buffer_bytes} bytes \
                 in and {send_buffer_bytes} out{cure}; {}",
                frames_text(frames)
            )
        }
        DatagramState::Off => "no datagrams, for control_lane = tcp (--lanes udp has them on, \
                               control_lane = udp elsewhere)"
            .to_owned(),
        DatagramState::Refused { cause, .. } => {
            format!("no datagrams, for {cause}; messages go by TCP")
        }
        // A state that this program does not know yet.
        other => format!("{other:?}"),
    }
}

/// Where Yama, if it is there, says whose memory a process may read.
const PTRACE_SCOPE: &str = "/proc/sys/kernel/yama/ptrace_scope";

/// Whether long messages can be read from the memory of their senders, as far as Yama says.
fn attach_text(scope: Option<String>) -> String {
    match scope.as_deref().map(str::trim) {
        None | Some("0") => "long messages are read from their sender's memory, where both \
                             processes have the same user"
            .to_owned(),
        Some(scope) => format!(
            "long messages are copied twice, through shared memory, and not read from their \
             sender's, without CAP_SYS_PTRACE, for kernel.yama.ptrace_scope is {scope} \
             (sysctl -w kernel.yama.ptrace_scope=0 permits processes of one user to read each \
             other's memory; at 1 so does shared_memory_ptrace_any = true)"
        ),
    }
}

/// Shared memory in words.
fn shared_memory_text(state: &SharedMemoryState) -> String {
    match state {
        SharedMemoryState::Off => {
            "no memory is shared with engines of this host (shared_memory = off)".to_owned()
        }
        SharedMemoryState::On { .. } => {
            let shared = "memory is shared with engines of this host that are in this network \
                          namespace and want it, too";
            format!("{shared}; {}", attach_text(std::fs::read_to_string(PTRACE_SCOPE).ok()))
        }
        SharedMemoryState::Refused { cause, .. } => {
            format!("no memory can be shared with engines of this host: {cause}")
        }
        // A state that this program does not know yet.
        other => format!("{other:?}"),
    }
}

/// AF_XDP in words.
fn frames_text(state: &FrameState) -> String {
    match state {
        FrameState::Off => "no AF_XDP frames were asked for (--lanes hybrid has them where they \
                            can be had, control_lane = auto elsewhere)"
            .to_owned(),
        FrameState::Up { nic, queue, how, .. } => {
            format!("they go as AF_XDP frames by queue {queue} of {nic} ({how})")
        }
        FrameState::Down { cause, .. } => format!("AF_XDP frames are down: {cause}"),
        FrameState::Refused { cause, .. } => format!("no AF_XDP frames: {cause}"),
        // A state that this program does not know yet.
        other => format!("{other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_yama_forbids_is_said_with_its_cure() {
        let says = |scope: Option<&str>| attach_text(scope.map(str::to_owned));
        assert_eq!(says(None), says(Some("0\n")), "without Yama, and with one that permits it");
        assert!(says(Some("1\n")).contains("ptrace_scope is 1 (sysctl"));
    }
}
