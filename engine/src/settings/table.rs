//! The table of settings: everything else about a setting is generated from its row here.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use zeroize::Zeroizing;

use super::exporter::ExportAddress;
use super::faults::{FaultSet, Faults};
use super::nics::NicPattern;
use super::secret::{FilePath, Secret};
use super::types::{
    BulkLane, ControlLane, EagerLane, Lanes, PortRange, SharedMemory, TcpCongestion, ZeroCopy,
};
use super::value::{
    Address, AnyPath, AutoBytes, Bytes, Cores, Count, Kind, Names, Nics, OneOf, Ports, Range, Time,
};
use super::{Builder, Origin, Settings};
use crate::secret::JobSecret;
use crate::types::hint::Hint;
use crate::types::rail::RAILS_MAX;
use crate::wire::{CHUNK_BYTES_MAX, EAGER_BYTES_MAX, PARTS_BYTES_MAX};

/// One row, as the parser and the listings need it.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) doc: &'static str,
    pub(crate) expected: fn() -> String,
    pub(crate) range: fn() -> Option<String>,
    /// Whether no value may be shown anywhere.
    pub(crate) is_secret: bool,
    /// Reads and checks a text, and keeps its value.
    pub(crate) assign: fn(&mut Values, &str) -> Result<(), String>,
    /// Writes the value that is kept.
    pub(crate) format: fn(&Values) -> String,
}

impl Row {
    /// The environment variable of this setting.
    pub(crate) fn variable(&self) -> String {
        format!("{}{}", super::PREFIX, self.name.to_ascii_uppercase())
    }

    /// What a value must be: its form and its range.
    pub(crate) fn takes(&self) -> String {
        let expected = (self.expected)();
        match (self.range)() {
            Some(range) => format!("{expected}, {range}"),
            None => expected,
        }
    }
}

/// Rows: `/// doc` `name -> type of getter and setter: kind = default, range;`
macro_rules! settings_table {
    ($(
        $(#[doc = $doc:literal])+
        $name:ident -> $view:ty: $kind:ty = $default:expr, $range:expr;
    )+) => {
        /// Every value.
        #[derive(Clone, Debug, PartialEq)]
        pub(crate) struct Values {
            $($name: <$kind as Kind>::Value,)+
        }

        impl Values {
            pub(crate) fn defaults() -> Self {
                Self { $($name: $default,)+ }
            }
        }

        /// The rows in the order in which they are listed.
        pub(crate) const ROWS: &[Row] = &[$(Row {
            name: stringify!($name),
            doc: concat!($($doc),+).trim_ascii_start(),
            is_secret: <$kind as Kind>::IS_SECRET,
            expected: <$kind as Kind>::expected,
            range: || <$kind as Kind>::format_range(&$range),
            assign: |values, text| {
                let value = <$kind as Kind>::parse(text)?;
                <$kind as Kind>::check(&value, &$range)?;
                values.$name = value;
                Ok(())
            },
            format: |values| <$kind as Kind>::format(&values.$name),
        },)+];

        impl Settings {
            $(
                $(#[doc = $doc])+
                pub fn $name(&self) -> $view {
                    <$kind as Kind>::view(&self.values.$name)
                }
            )+
        }

        impl Builder {
            $(
                $(#[doc = $doc])+
                ///
                /// The range is checked by [`build`](Self::build).
                #[must_use]
                pub fn $name(self, value: $view) -> Self {
                    let value = <$kind as Kind>::own(value);
                    let text = Zeroizing::new(<$kind as Kind>::write(&value));
                    self.set(stringify!($name), &text)
                }
            )+
        }
    };
}

const K: usize = 1 << 10;
const M: usize = 1 << 20;
const G: usize = 1 << 30;

const fn micros(count: u64) -> Duration {
    Duration::from_micros(count)
}

const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

const HOUR: Duration = seconds(3600);

// Upper bounds of sizes and counts are where the wire's fields or plain sense end; they catch a
// slip of the unit, they are not recommendations.
settings_table! {
    /// Kinds of lanes: auto, uring (io_uring required) or sockets (no io_uring).
    lanes -> Lanes: OneOf<Lanes> = Lanes::Auto, Range::Any;
    /// What carries short messages: tcp, udp (datagrams, with TCP where they do not pass or cannot
    /// be had), xdp (datagrams as AF_XDP frames, an error without them) or auto (frames where they
    /// can be had).
    control_lane -> ControlLane: OneOf<ControlLane> = ControlLane::Udp, Range::Any;
    /// What carries the data of long messages: tcp (bulk lanes) or datagram (the datagrams of
    /// control_lane, and no bulk lane). Used with a peer if either side has datagram.
    bulk_lane -> BulkLane: OneOf<BulkLane> = BulkLane::Tcp, Range::Any;
    /// AF_XDP frames of 4 KiB for an engine's datagrams, half of them to receive into; pinned.
    xdp_frames -> usize: Count = 2048, Range::Numbers(128..=64 * K);
    /// How long a look at an empty ring of AF_XDP frames may drive the NIC in the place of its
    /// interrupts, in microseconds; 0: not. The endpoint's state says where a NIC has none of it.
    busy_poll_us -> usize: Count = 0, Range::Numbers(0..=10_000);
    /// Where `ringrail-xdpd` listens, which lends AF_XDP sockets to users without privileges.
    xdpd_socket -> Option<&Path>: FilePath = Some("/run/ringrail/xdpd.sock".into()), Range::Any;
    /// Memory shared with engines of the same host (where both sides have it, on one kernel and in
    /// one network namespace or with one shared_memory_directory): off, rings (all goes by those),
    /// or auto (long messages are read from the sender's memory, where the kernel allows that).
    shared_memory -> SharedMemory: OneOf<SharedMemory> = SharedMemory::Auto, Range::Any;
    /// A directory where engines of the same host find each other's memory, also from one network
    /// namespace (container) to the other; all must have this setting and see the directory.
    /// Without it they find each other within a network namespace.
    shared_memory_directory -> Option<&Path>: FilePath = None, Range::Any;
    /// Engines of other users may share memory with this one's, if they have the job's secret; a
    /// socket in shared_memory_directory then has mode 0666, and otherwise 0600.
    shared_memory_other_users -> bool: OneOf<bool> = false, Range::Any;
    /// Where Yama lets processes read those alone that name them (kernel.yama.ptrace_scope = 1):
    /// this one names all of its user's (PR_SET_PTRACER_ANY), which may debug it, too.
    shared_memory_ptrace_any -> bool: OneOf<bool> = false, Range::Any;
    /// io_uring features to do without, by the names that `info` prints.
    uring_disable -> &[String]: Names<false> = Vec::new(), Range::Any;
    /// NICs to use, by name or pattern (`rail*`) or by network (`10.1.0.0/16`), in order of
    /// preference; `!` before one leaves it out. Auto, or exclusions alone: all that are neither
    /// virtual nor, beside private addresses, public.
    nics -> &[NicPattern]: Nics<true> = Vec::new(), Range::Any;
    /// The most NICs used at the same time; of more, the slowest are left out.
    rails_max -> usize: Count = 4, Range::Numbers(1..=RAILS_MAX);
    /// NICs that short messages go by while they are healthy, written as in nics.
    preferred_nics -> &[NicPattern]: Nics<false> = Vec::new(), Range::Any;
    /// NICs that are used only while none of the others is healthy, written as in nics.
    backup_nics -> &[NicPattern]: Nics<false> = Vec::new(), Range::Any;
    /// The local address to be reached at; alone it means its NIC and no other.
    listen_address -> Option<IpAddr>: Address = None, Range::Any;
    /// The TCP ports to listen on.
    port_range -> PortRange: Ports = PortRange::ANY, Range::Any;
    /// Pinned memory of an engine for regions and buffers; auto takes a share of the memlock limit.
    arena_bytes -> Option<usize>: AutoBytes = None, Range::Numbers(M..=1024 * G);
    /// The largest message that travels with its envelope; larger ones are pulled by the receiver.
    /// auto begins with 64K for each peer and moves between 16K and 128K with what the receiver
    /// measures, if that has auto, too. With control_lane = tcp 32K count at the most.
    eager_limit_bytes -> Option<usize>: AutoBytes = None, Range::Numbers(0..=PARTS_BYTES_MAX);
    /// The same where such a message goes in several datagrams (eager_lane = datagram, or while the
    /// TCP connection is on another path than they are), if that is less.
    datagram_eager_limit_bytes -> usize: Bytes = 16 * K, Range::Numbers(0..=PARTS_BYTES_MAX);
    /// What carries messages that travel with their envelope and fit no datagram of 2 KiB: tcp
    /// (the TCP connection of the session, where that is on the path of datagrams) or datagram
    /// (several, where one does not do).
    eager_lane -> EagerLane: OneOf<EagerLane> = EagerLane::Tcp, Range::Any;
    /// First bytes of a rendezvous message that travel with its request to send.
    rts_bytes -> usize: Bytes = 0, Range::Numbers(0..=EAGER_BYTES_MAX);
    /// The largest message that can be injected: copied at once, its buffer reusable on return.
    inject_limit_bytes -> usize: Bytes = 16 * K, Range::Numbers(0..=EAGER_BYTES_MAX);
    /// The largest byte range that one grant asks a bulk lane for; a quarter more where that ends
    /// the message. With its header it should fill whole 64 KiB packets of the kernel.
    chunk_bytes -> usize: Bytes = 254 * K, Range::Numbers(4 * K..=CHUNK_BYTES_MAX as usize);
    /// The largest chunk while short messages arrive, which have to wait behind it.
    busy_chunk_bytes -> usize: Bytes = 111 * K, Range::Numbers(4 * K..=CHUNK_BYTES_MAX as usize);
    /// Chunks of chunk_bytes granted ahead on each bulk lane; half of them at a time.
    grant_horizon_chunks -> usize: Count = 4, Range::Numbers(1..=1024);
    /// Bulk lanes of a session on each pair of rails: TCP streams, which networks may limit each.
    bulk_lanes -> usize: Count = 1, Range::Numbers(1..=64);
    /// Bulk lanes of an engine, all sessions together; the least recently used close first.
    bulk_lanes_max -> usize: Count = 256, Range::Numbers(1..=M);
    /// A bulk lane that carried nothing for this long is closed.
    bulk_idle_timeout -> Duration: Time = seconds(30), Range::Times(micros(1000)..=24 * HOUR);
    /// Zero-copy sends of bulk data: auto (measured for each path), on or off.
    zero_copy -> ZeroCopy: OneOf<ZeroCopy> = ZeroCopy::Auto, Range::Any;
    /// What messages are for that say nothing of it themselves: none, latency (they go at
    /// once), bulk (they go together, are pulled from 1 KiB on, and give way to others) or
    /// priority (they are asked for before others). Neither their order nor matching changes.
    hint -> Hint: OneOf<Hint> = Hint::None, Range::Any;
    /// CRC32C over what control lanes and chunks carry, checked on arrival: against memory and NICs
    /// that corrupt what TCP's checksum lets pass. Used with a peer if either side has it on.
    checksum -> bool: OneOf<bool> = false, Range::Any;
    /// TCP congestion control of lanes: auto (an unpaced one on a local path), system, cubic, reno,
    /// bbr or dctcp.
    tcp_congestion -> TcpCongestion: OneOf<TcpCongestion> = TcpCongestion::Auto, Range::Any;
    /// Envelopes that a peer may have under way to this engine at first; where they wait for their
    /// receives it may have more, within unexpected_messages.
    envelope_credits -> usize: Count = 16_384, Range::Numbers(1..=16 * M);
    /// Eager payload that a peer may have under way to this engine.
    eager_credit_bytes -> usize: Bytes = 256 * K, Range::Numbers(1..=G);
    /// Memory for messages that came before their receive, all peers of an engine together; one
    /// peer may take a quarter.
    unexpected_bytes -> usize: Bytes = 64 * M, Range::Numbers(64 * K..=1024 * G);
    /// Messages that came before their receive, all peers of an engine together; one peer may have
    /// a quarter. Each takes about 128 bytes beside its payload. Others wait at their senders.
    unexpected_messages -> usize: Count = 16 * M, Range::Numbers(1..=1024 * M);
    /// Sends to one peer that wait for credit before posting gives `WouldBlock`. Their bytes are
    /// not bounded: they stay in the buffers of those who posted them.
    send_queue_ops -> usize: Count = 4 * M, Range::Numbers(1..=64 * M);
    /// Operations that an engine has outstanding before posting gives `WouldBlock`.
    operations_max -> usize: Count = 16 * M, Range::Numbers(16..=64 * M);
    /// Completions that a queue holds before posting gives `WouldBlock`.
    cq_entries -> usize: Count = 16 * M, Range::Numbers(16..=64 * M);
    /// Size of a buffer in which small messages of one poll travel together.
    staging_bytes -> usize: Bytes = 64 * K, Range::Numbers(2 * K..=32 * M);
    /// Such buffers that an engine may have; as much memory again for messages in datagrams until
    /// they are acknowledged, and for longer ones by TCP connections beside them.
    staging_buffers_max -> usize: Count = 1024, Range::Numbers(2..=M);
    /// Size of a buffer that control traffic is received into.
    receive_buffer_bytes -> usize: Bytes = 256 * K, Range::Numbers(4 * K..=64 * M);
    /// Control lanes that are read by direct calls, as the hottest.
    hot_lanes -> usize: Count = 4, Range::Numbers(0..=1024);
    /// How long a waiter spins before it sleeps.
    spin -> Duration: Time = micros(50), Range::Times(Duration::ZERO..=seconds(10));
    /// How long one attempt to connect may take; and how long the first endpoint of a domain waits
    /// for a NIC that is coming up, where there is no better one.
    connect_timeout -> Duration: Time = seconds(2), Range::Times(micros(1000)..=HOUR);
    /// Attempts to connect after the first one failed.
    connect_retries -> usize: Count = 5, Range::Numbers(0..=1000);
    /// The pause before the first retry; it doubles with each.
    connect_retry_delay -> Duration: Time = micros(10_000), Range::Times(micros(100)..=HOUR);
    /// A peer whose host has answered nothing for this long is dead. Idle ones are asked by the
    /// kernel from a fifth of it on, at least three times, a second or more apart: they take four
    /// seconds at the least, and a second of counting.
    peer_timeout -> Duration: Time = seconds(10), Range::Times(micros(10_000)..=24 * HOUR);
    /// A peer whose host answers, but whose engine has not for this long, is dead: its process
    /// stands still, or has ended and left its connections to a child. Engines with datagrams are
    /// asked four times in this time, and answer whatever their owners do; those without are not
    /// judged so. Where a connection is accepted, the answer to its hello is waited for as long. 0:
    /// for ever.
    silent_timeout -> Duration: Time = seconds(300), Range::Times(Duration::ZERO..=24 * HOUR);
    /// How long the drop of an endpoint waits for its sends to be delivered; those that are not
    /// are cancelled then.
    close_linger -> Duration: Time = seconds(5), Range::Times(Duration::ZERO..=HOUR);
    /// Cores for the threads that attach endpoints, one each, in the order of attaching; after the
    /// last they are given again from the first, with a warning.
    pin_cores -> &[usize]: Cores = Vec::new(), Range::Numbers(0..=1023);
    /// Cores that are kept for the application: threads of dedicated engines run on others, unless
    /// pin_cores names them, or the process has no others.
    reserved_cores -> &[usize]: Cores = Vec::new(), Range::Numbers(0..=1023);
    /// Sessions of an engine: with peers that are connected, that were inserted and not removed, or
    /// that have yet to prove themselves. Others are forgotten when room is needed.
    sessions_max -> usize: Count = 65_536, Range::Numbers(1..=16 * M);
    /// Incoming connections that have not said yet who they are.
    handshake_pending_max -> usize: Count = 1024, Range::Numbers(1..=M);
    /// What all processes of the job know and prove to each other; never shown. Wins over
    /// job_secret_file.
    job_secret -> Option<&JobSecret>: Secret = None, Range::Any;
    /// A file with the job's secret, of mode 0600 or stricter and owned by the user of the process.
    job_secret_file -> Option<&Path>: FilePath = None, Range::Any;
    /// Runs without a job secret: everybody who reaches the port can send messages.
    insecure -> bool: OneOf<bool> = false, Range::Any;
    /// Entries of the io_uring submission ring.
    ring_entries -> usize: Count = 256, Range::Numbers(8..=32 * K);
    /// A file for what the lanes carry, as Wireshark opens it; further engines of the process add
    /// `-2`, `-3` ... to the name, and `%p` stands for the process id. Every byte is
    /// written; others may not read it. A file of another user, or a link, is refused.
    pcap_file -> Option<&Path>: AnyPath = None, Range::Any;
    /// Where a thread tells Prometheus by HTTP what is counted: an address and a port, or a port of
    /// 127.0.0.1. Whoever reaches it can read it. Each process needs a port of its own.
    prometheus_address -> Option<SocketAddr>: ExportAddress = None, Range::Any;
    /// One line for the process on standard error when it ends: how many ranks are reached by
    /// shared memory, and how many by which NICs and protocols.
    verbose -> bool: OneOf<bool> = false, Range::Any;
    /// Faults that the driver makes, for tests only: a seed and rates of short, again, late,
    /// reset, refuse, cut, garble and garble_control, for datagrams of lose, repeat, reorder,
    /// flip and truncate, and for shared memory of ring_end and unread.
    inject_faults -> Option<Faults>: FaultSet = None, Range::Any;
}

/// Room that the headers in front of a payload take in a staging buffer, rounded up generously.
const HEADER_ROOM_BYTES: usize = 256;

/// A number, unless the engine works it out.
trait Bound {
    fn number(self) -> Option<usize>;
}

impl Bound for usize {
    fn number(self) -> Option<usize> {
        Some(self)
    }
}

impl Bound for Option<usize> {
    fn number(self) -> Option<usize> {
        self
    }
}

/// Two numbers of which one bounds the other.
pub(crate) struct Relation {
    pub(crate) lesser: &'static str,
    pub(crate) greater: &'static str,
    /// How much the greater must exceed the lesser by.
    pub(crate) gap: usize,
    pub(crate) why: &'static str,
    /// `None`: it holds, as one of the two is worked out with the other in mind.
    pub(crate) numbers: fn(&Values) -> Option<(usize, usize)>,
}

macro_rules! relations {
    ($($lesser:ident + $gap:expr => $greater:ident, $why:literal;)+) => {
        /// What ties settings together.
        pub(crate) const RELATIONS: &[Relation] = &[$(Relation {
            lesser: stringify!($lesser),
            greater: stringify!($greater),
            gap: $gap,
            why: $why,
            numbers: |values| Some((values.$lesser.number()?, values.$greater.number()?)),
        },)+];
    };
}

relations! {
    inject_limit_bytes + HEADER_ROOM_BYTES => staging_bytes,
        "what is copied at once and its headers must fit into a staging buffer";
    inject_limit_bytes + 0 => eager_credit_bytes, "a send that is copied at once needs credit";
    inject_limit_bytes + 0 => eager_limit_bytes, "a send that is copied at once is eager";
    eager_limit_bytes + 0 => eager_credit_bytes, "the largest eager message needs that much credit";
    eager_limit_bytes + 0 => unexpected_bytes, "an unexpected eager message must fit";
    rts_bytes + HEADER_ROOM_BYTES => staging_bytes,
        "a request to send, its first bytes and headers must fit into a staging buffer";
    busy_chunk_bytes + 0 => chunk_bytes, "it is the smaller one of the two chunk sizes";
    bulk_lanes + 0 => bulk_lanes_max, "one session must fit into the engine's bound";
}

/// The origin of each row's value, in table order.
pub(crate) fn default_origins() -> Vec<Origin> {
    vec![Origin::Default; ROWS.len()]
}

/// The row of this name.
pub(crate) fn position(name: &str) -> Option<usize> {
    ROWS.iter().position(|row| row.name == name)
}
