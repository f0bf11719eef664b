//! The command line.

use std::fmt;
use std::net::IpAddr;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

/// A test and the options of all tests: which of them uses which, [`crate::commands`] says.
#[derive(Clone, Debug, Args)]
pub(crate) struct Cli {
    /// What to measure, which the subcommand says.
    #[arg(skip = TestName::Latency)]
    pub(crate) test: TestName,
    /// Which floor.
    #[arg(skip)]
    pub(crate) floor: Option<FloorName>,
    /// What is said of the command line where the test succeeds: a failure is one line.
    #[arg(skip)]
    pub(crate) notes: Vec<String>,
    /// Message size, or a range A:B that doubles; K and M are 2^10 and 2^20.
    #[arg(long, value_parser = sizes)]
    pub(crate) size: Option<Sizes>,
    /// Size of the four transfers beside the ping-pong of latency-under-load: 16M unless given.
    #[arg(long, value_parser = size)]
    pub(crate) bulk_size: Option<usize>,
    /// The client of latency, or of the floors udp-latency and xdp-latency, computes for so many
    /// microseconds before each message, and makes no call meanwhile.
    #[arg(long, default_value_t = 0)]
    pub(crate) pause_us: u64,
    /// Iterations (latency: round trips; bw, mr: messages); of each thread.
    #[arg(long)]
    pub(crate) iters: Option<u64>,
    /// Messages in flight; shrinks so that their buffers fit 4 MiB (bw) unless given.
    #[arg(long)]
    pub(crate) window: Option<usize>,
    /// Threads per side, each with an endpoint of its own, in mr, bw, bibw and latency-mt: thread
    /// i of the client and thread i of the server exchange messages. All threads of a side are on
    /// one core.
    #[arg(long, default_value_t = 1)]
    pub(crate) threads: usize,
    /// The endpoints of a side are on one shared engine (MPI_THREAD_MULTIPLE), in mr, bw, bibw,
    /// latency and latency-mt. Without this each thread owns its endpoint and an engine of its own.
    /// With it, each thread has an endpoint and a completion queue on the engine of all. A shared
    /// engine goes by plain sockets: compare it with --lanes sockets or udp-sockets.
    #[arg(long)]
    pub(crate) shared: bool,
    /// Registered or ordinary memory.
    #[arg(long, value_enum, default_value_t = Buffers::Region)]
    pub(crate) buffers: Buffers,
    /// Which memory messages in flight have, in bw and bibw.
    #[arg(long, value_enum, default_value_t = Reuse::Window)]
    pub(crate) reuse: Reuse,
    /// Compare every byte, not only the stamps in every 4 KiB.
    #[arg(long)]
    pub(crate) verify: bool,
    /// One JSON object per line.
    #[arg(long)]
    pub(crate) json: bool,
    /// Comma-separated values.
    #[arg(long, conflicts_with = "json")]
    pub(crate) csv: bool,
    /// What messages are for; in latency-under-load the ping-pong, or with `bulk` the transfers.
    #[arg(long, value_enum)]
    pub(crate) hint: Option<HintName>,
    /// NICs to use.
    #[arg(long)]
    pub(crate) nics: Option<String>,
    /// What moves the messages.
    #[arg(long, value_enum, default_value_t = Lanes::Auto)]
    pub(crate) lanes: Lanes,
    /// Be the server, on this address, and port where not 18515.
    #[arg(long, value_name = "ADDR[:PORT]", conflicts_with = "connect")]
    pub(crate) listen: Option<String>,
    /// Be the client of the server at this address or name, and port where not 18515.
    #[arg(long, value_name = "ADDR[:PORT]")]
    pub(crate) connect: Option<String>,
    /// Build a two-host lab (root) and run both sides in it, for example `rails=1`.
    #[arg(long, conflicts_with_all = ["listen", "connect", "loopback"])]
    pub(crate) lab: Option<String>,
    /// Run both sides on the loopback address.
    #[arg(long, conflicts_with_all = ["listen", "connect"])]
    pub(crate) loopback: bool,
    /// Keep root and its capabilities in the lab.
    #[arg(long)]
    pub(crate) keep_root: bool,
    /// Rounds after one to warm up; the median one is reported [default: 3; 5 by turns].
    #[arg(long)]
    pub(crate) rounds: Option<usize>,
    /// A first look: a tenth of the default iterations, and one round.
    #[arg(long)]
    pub(crate) brief: bool,
    /// Addresses or names of a peer, with commas between them: prints the way to them for each NIC.
    /// Of an address with the port of a listening endpoint, which is connected to: also how
    /// messages to it travel, by length.
    #[arg(long, value_name = "ADDR", value_delimiter = ',')]
    pub(crate) peer: Vec<String>,
    /// Set a setting of ringrail, NAME=VALUE; any number of times.
    #[arg(long = "set")]
    pub(crate) settings: Vec<String>,
    /// What failover does to the rails.
    #[arg(long, value_enum, default_value_t = Fault::Blackhole)]
    pub(crate) fault: Fault,
    /// How many senders incast has.
    #[arg(long, default_value_t = 8)]
    pub(crate) senders: usize,
    /// How many ranks alltoall has, both sides together.
    #[arg(long, default_value_t = 64)]
    pub(crate) ranks: usize,
    /// Draw as SVG: one fault of failover, bytes per millisecond that each rail delivered; or the
    /// curves of rails.
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<String>,
    /// The rails of the lab that this client is in, as NIC=CLIENT=SERVER. Whoever holds the lab is
    /// at the other end of standard input.
    #[arg(long, hide = true, value_delimiter = ',', value_parser = lab_rail)]
    pub(crate) lab_rails: Vec<LabRail>,
    /// That lab has interfaces that are no rail.
    #[arg(long, hide = true)]
    pub(crate) lab_decoys: bool,
    /// This process was started by another one, which holds the terminal.
    #[arg(long, hide = true)]
    pub(crate) child: bool,
    /// Write what the client's lanes carry to a pcap file; further sizes go to FILE-2, FILE-3 ...
    #[arg(long, value_name = "FILE", conflicts_with = "listen")]
    pub(crate) pcap: Option<String>,
}

/// The tests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum TestName {
    /// Tagged ping-pong, half round trip.
    Latency,
    /// So many of these at the same time as there are --threads: what all of them took together,
    /// and the median of each thread.
    LatencyMt,
    /// Tagged stream with a window.
    Bw,
    /// The same in both directions at once.
    Bibw,
    /// Rate of small tagged messages, one direction; with --threads that of all, and how even.
    Mr,
    /// The same by puts to the memory of the other side, each of which looks at its own memory;
    /// half round trip. This and the following five measure by turns the test of messages that
    /// does the same, and tell how they compare (`by_two_sided`): here `latency`.
    PutLatency,
    /// Stream of puts with a window, until a flush says that all are in place; beside `bw`.
    PutBw,
    /// One get at a time, whole round trip; beside `latency`, which is half of one: about 2.
    GetLatency,
    /// Stream of gets with a window; beside `bw`.
    GetBw,
    /// One fetching addition to words of 64 bits at a time, whole round trip; beside `latency`.
    AtomicLatency,
    /// Rate of small puts, which the target counts; beside `mr`.
    PutMr,
    /// Ping-pong while four 16 MiB transfers are in flight between the same endpoints.
    LatencyUnderLoad,
    /// From which size on pulling a message is faster than sending it with its envelope: eager,
    /// pulled, and as the settings have it, interleaved. Drawn by `plot` after --json.
    Crossover,
    /// A stream and a ping-pong while rails fail and heal, by turns: how long what is delivered
    /// stands still. Needs --lab.
    Failover,
    /// Whether all rails together are slower than the best single one at any size, interleaved:
    /// latency up to 64 KiB, bandwidth from there on. Needs --lab with two rails or more.
    Rails,
    /// Many senders stream to one receiver: what they have of its link, and who has least. In a lab
    /// with `rate` the link is the switch's.
    Incast,
    /// A message from every rank to every other one, half of the ranks on each side: what one costs
    /// among --ranks, beside 8; a look of a rank at nothing; memory for each pair. With --lanes shm
    /// they are of one host.
    Alltoall,
    /// Long messages while both sides compute and make no call: how much of a transfer the threads
    /// of dedicated engines make meanwhile, in percent, and the processor time that they take.
    Overlap,
    /// What a dedicated engine that sleeps adds to the first message, a get of a word, whole round
    /// trip; beside the floor `wake`, which is what the host takes to wake a thread.
    DedicatedWake,
    /// Raw floors.
    Floor,
    /// What this host can do, which NICs are rails and why, and the settings in force; with --peer
    /// also how a peer is reached, and how messages to it travel.
    Info,
}

/// The floors.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum FloorName {
    /// Non-blocking send and recv, spinning; a message is sent by one call.
    TcpLatency,
    /// The same with 16 KiB a call, so that a long message is read while it is sent.
    TcpPipelineLatency,
    /// send and recv.
    TcpStream,
    /// Connected UDP sockets, one datagram a message, non-blocking send and recv, spinning; what is
    /// lost is sent again after 50 ms, and counted.
    UdpLatency,
    /// The same with trains of datagrams that fill packets: UDP_SEGMENT to send, UDP_GRO to
    /// receive; a datagram that is lost ends it.
    UdpGsoLatency,
    /// AF_XDP frames, spinning, as many as a message takes: needs root.
    XdpLatency,
    /// The ring, polled.
    UringLatency,
    /// Registered SEND_ZC.
    UringStream,
    /// Copying memory.
    Memcpy,
    /// An empty system call.
    Syscall,
    /// Waking a thread on another core.
    Wake,
    /// A line of the cache that two threads pass to and fro, on the first two cores.
    ShmLatency,
    /// Reading long messages as from the memory of another process (`process_vm_readv`).
    CmaStream,
    /// Copying them through memory that two threads share, one on each of the first two cores.
    ShmStream,
}

/// What messages are for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum HintName {
    /// Nothing special.
    None,
    /// Somebody waits for them.
    Latency,
    /// Nobody waits for them soon.
    Bulk,
    /// Before all others.
    Priority,
}

impl From<HintName> for ringrail::Hint {
    fn from(name: HintName) -> Self {
        match name {
            HintName::None => Self::None,
            HintName::Latency => Self::Latency,
            HintName::Bulk => Self::Bulk,
            HintName::Priority => Self::Priority,
        }
    }
}

/// What happens to rails in `failover`: for a second each, one after the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Fault {
    /// Everything on one rail vanishes in the switch; nobody is told.
    Blackhole,
    /// Everything that one side sends on one rail vanishes; the sides take turns.
    OneWay,
    /// Half of the packets on one rail vanish.
    BrownOut,
    /// One rail is a blackhole for 50 ms and whole for 50 ms, by turns.
    Flap,
    /// The client's interface of one rail is switched off.
    LinkDown,
    /// All rails are blackholes, for 200 ms.
    AllRails,
}

/// A rail of a lab: its NIC and its addresses.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct LabRail {
    pub(crate) nic: String,
    pub(crate) client: IpAddr,
    pub(crate) server: IpAddr,
}

impl fmt::Display for LabRail {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}={}={}", self.nic, self.client, self.server)
    }
}

fn lab_rail(text: &str) -> Result<LabRail, String> {
    let parts: Vec<&str> = text.split('=').collect();
    if let [nic, client, server] = parts[..]
        && let (Ok(client), Ok(server)) = (client.parse(), server.parse())
    {
        return Ok(LabRail { nic: nic.to_owned(), client, server });
    }
    Err(format!("`{text}` is not NIC=CLIENT=SERVER"))
}

/// Kinds of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Buffers {
    /// From the registered arena.
    Region,
    /// From the allocator.
    Heap,
}

/// Which memory the messages of a window have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Reuse {
    /// A buffer each, and each message is checked.
    Window,
    /// One buffer to send from and one to receive into for all of them, which caches hold the
    /// longer: so do ucx_perftest (tag_bw), fabtests (fi_rdm_tagged_bw) and osu_bw. All messages
    /// are alike, and what is in the buffer at the end is checked.
    Same,
}

/// Kinds of lanes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Lanes {
    /// TCP control lane, bulk by io_uring.
    Uring,
    /// The same without io_uring.
    Sockets,
    /// What a user gets by default.
    Auto,
    /// Datagrams by UDP as control lane, an error where none pass; bulk by io_uring.
    Udp,
    /// The same without io_uring.
    UdpSockets,
    /// Datagrams as AF_XDP frames as control lane, an error without them; bulk by io_uring. Needs
    /// root, which `--lab` keeps, or `ringrail-xdpd`.
    Xdp,
    /// Datagrams as frames where they can be had, otherwise by UDP; bulk by io_uring.
    Hybrid,
    /// Everything in datagrams as AF_XDP frames, bulk too: no bulk lane. Needs root, which `--lab`
    /// keeps.
    XdpOnly,
    /// Everything in datagrams by UDP, bulk too: no bulk lane.
    UdpOnly,
    /// Datagrams by shared memory as control lane, an error where both sides are not on one host;
    /// long messages read from the sender's memory, or as `auto` where the kernel refuses that.
    Shm,
}

/// Of lanes that are those of NICs, also where both sides are on one host.
const NO_MEMORY: (&str, &str) = ("shared_memory", "off");

impl Lanes {
    /// Ringrail's settings: names and values.
    pub(crate) fn settings(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Uring => &[("lanes", "uring"), ("control_lane", "tcp"), NO_MEMORY],
            Self::Sockets => &[("lanes", "sockets"), ("control_lane", "tcp"), NO_MEMORY],
            Self::Auto => &[("lanes", "auto")],
            Self::Udp => &[("lanes", "uring"), ("control_lane", "udp"), NO_MEMORY],
            Self::UdpSockets => &[("lanes", "sockets"), ("control_lane", "udp"), NO_MEMORY],
            Self::Xdp => &[("lanes", "uring"), ("control_lane", "xdp"), NO_MEMORY],
            Self::Hybrid => &[("lanes", "uring"), ("control_lane", "auto"), NO_MEMORY],
            Self::XdpOnly => &[("control_lane", "xdp"), ("bulk_lane", "datagram"), NO_MEMORY],
            Self::UdpOnly => &[("control_lane", "udp"), ("bulk_lane", "datagram"), NO_MEMORY],
            Self::Shm => &[("lanes", "auto"), ("control_lane", "udp"), ("shared_memory", "auto")],
        }
    }

    /// Whether a measurement without datagrams is none of these lanes.
    pub(crate) fn wants_datagrams(self) -> bool {
        matches!(self, Self::Udp | Self::UdpSockets | Self::Xdp | Self::Hybrid | Self::Shm)
            || self.is_datagrams_only()
    }

    /// Whether bulk data goes in datagrams, too.
    pub(crate) fn is_datagrams_only(self) -> bool {
        matches!(self, Self::XdpOnly | Self::UdpOnly)
    }

    /// Whether they need privileges, or use them where they are.
    pub(crate) fn wants_frames(self) -> bool {
        matches!(self, Self::Xdp | Self::Hybrid | Self::XdpOnly)
    }
}

/// Sizes from the first to the last, doubling.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sizes {
    pub(crate) first: usize,
    pub(crate) last: usize,
}

impl Sizes {
    pub(crate) fn list(self) -> Vec<usize> {
        let mut list = vec![self.first];
        while let Some(&size) = list.last() {
            let next = if size == 0 { 1 } else { size * 2 };
            if next > self.last {
                break;
            }
            list.push(next);
        }
        list
    }
}

fn size(text: &str) -> Result<usize, String> {
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 10),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 20),
        _ => (text, 0),
    };
    let number: usize = digits.parse().map_err(|_| format!("`{text}` is not a size"))?;
    number
        .checked_mul(1 << shift)
        .filter(|&size| size <= 1 << 30)
        .ok_or_else(|| format!("`{text}` is over 1 GiB"))
}

pub(crate) fn sizes(text: &str) -> Result<Sizes, String> {
    match text.split_once(':') {
        None => size(text).map(|size| Sizes { first: size, last: size }),
        Some((first, last)) => {
            let sizes = Sizes { first: size(first)?, last: size(last)? };
            if sizes.first > sizes.last {
                return Err(format!("{first} is more than {last}"));
            }
            Ok(sizes)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_double() {
        assert_eq!(sizes("8:64").unwrap().list(), [8, 16, 32, 64]);
        assert_eq!(sizes("0:2").unwrap().list(), [0, 1, 2]);
        assert_eq!(sizes("1M").unwrap().list(), [1 << 20]);
        assert!(sizes("8:4").is_err());
        assert!(sizes("2048M").is_err());
        assert!(sizes("x").is_err());
    }
}
