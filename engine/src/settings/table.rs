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
    AddressValue, AnyPath, AutoBytes, Bytes, Cores, Count, Names, Nics, OneOf, Ports, Range, Time,
    ValueKind,
};
use super::{Builder, Origin, Settings};
use crate::secret::JobSecret;
use crate::types::hint::Hint;
use crate::types::rail::RAILS_MAX;
use crate::wire::{CHUNK_BYTES_MAX, EAGER_BYTES_MAX};

/// One row, as the parser and the listings need it.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) doc: &'static str,
    pub(crate) expected: fn() -> String,
    pub(crate) range: fn() -> Option<String>,
    /// Whether no value may be shown anywhere.
    pub(crate) is_secret: bool,
    /// Whether it is left out of listings.
    pub(crate) is_hidden: bool,
    /// Reads and checks a text, and keeps its value.
    pub(crate) assign: fn(&mut Values, &str) -> Result<(), String>,
    /// Writes the value that is kept.
    pub(crate) format: fn(&Values) -> String,
    /// Default and values, as the documentation of getter and setter states them.
    #[cfg(test)]
    pub(crate) documented: [&'static str; 2],
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
            Some(range) => format!("{expected} from {range}"),
            None => expected,
        }
    }
}

/// Rows: `/// doc` `name -> type of getter and setter: kind = default, range,` and for the
/// documentation `"default", "values"`, which a test compares with the row.
///
/// A row with `@hidden` before its name is set by tests, or to find the cause of a fault: it is
/// read from all sources, and documented here alone.
macro_rules! settings_table {
    ($(
        $(#[doc = $doc:literal])+
        $(@$mark:ident)? $name:ident -> $view:ty: $kind:ty = $default:expr, $range:expr,
            $default_text:literal, $values_text:literal;
    )+) => {
        /// Every value.
        #[derive(Clone, Debug, PartialEq)]
        pub(crate) struct Values {
            $($name: <$kind as ValueKind>::Value,)+
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
            is_secret: <$kind as ValueKind>::IS_SECRET,
            is_hidden: has_mark(&[$(stringify!($mark))?]),
            expected: <$kind as ValueKind>::expected,
            range: || <$kind as ValueKind>::format_range(&$range),
            assign: |values, text| {
                let value = <$kind as ValueKind>::parse(text)?;
                <$kind as ValueKind>::check(&value, &$range)?;
                values.$name = value;
                Ok(())
            },
            format: |values| <$kind as ValueKind>::format(&values.$name),
            #[cfg(test)]
            documented: [$default_text, $values_text],
        },)+];

        impl Settings {
            $(
                $(#[doc = $doc])+
                #[doc = ""]
                #[doc = concat!("Default: `", $default_text, "`. Values: ", $values_text, ".")]
                $(#[doc($mark)])?
                pub fn $name(&self) -> $view {
                    <$kind as ValueKind>::view(&self.values.$name)
                }
            )+
        }

        impl Builder {
            $(
                $(#[doc = $doc])+
                #[doc = ""]
                #[doc = concat!("Default: `", $default_text, "`. Values: ", $values_text, ".")]
                /// The range is checked by [`build`](Self::build).
                $(#[doc($mark)])?
                #[must_use]
                pub fn $name(self, value: $view) -> Self {
                    let value = <$kind as ValueKind>::own(value);
                    let text = Zeroizing::new(<$kind as ValueKind>::write(&value));
                    self.set(stringify!($name), &text)
                }
            )+
        }
    };
}

const fn has_mark(marks: &[&str]) -> bool {
    !marks.is_empty()
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
    /// The driver: auto (io_uring where the kernel allows it), uring (io_uring or an error) or
    /// sockets (no io_uring).
    lanes -> Lanes: OneOf<Lanes> = Lanes::Auto, Range::Any,
        "auto", "one of auto, uring, sockets";
    /// Transport of short messages: tcp, udp (datagrams, with TCP where UDP does not pass or the
    /// socket is refused), xdp (AF_XDP, or an error) or auto (AF_XDP where possible, else UDP).
    control_lane -> ControlLane: OneOf<ControlLane> = ControlLane::Udp, Range::Any,
        "udp", "one of tcp, udp, xdp, auto";
    /// Transport of long messages: tcp (bulk lanes) or datagram (the datagrams of control_lane,
    /// without bulk lanes). datagram on either side counts for both.
    bulk_lane -> BulkLane: OneOf<BulkLane> = BulkLane::Tcp, Range::Any,
        "tcp", "one of tcp, datagram";
    /// AF_XDP frames of 4 KiB for the datagrams of an engine, half of them for receiving; locked
    /// memory.
    @hidden xdp_frames -> usize: Count = 2048, Range::Numbers(128..=64 * K),
        "2048", "a whole number from 128 to 65536";
    /// Time in microseconds for which a poll of an empty AF_XDP ring may run the NIC's driver
    /// instead of waiting for interrupts; 0 disables it. The endpoint's state shows NICs that do
    /// not support it.
    busy_poll_us -> usize: Count = 0, Range::Numbers(0..=10_000),
        "0", "a whole number from 0 to 10000";
    /// Socket of `ringrail-xdpd`, which leases AF_XDP sockets to users without privileges.
    xdpd_socket -> Option<&Path>: FilePath = Some("/run/ringrail/xdpd.sock".into()), Range::Any,
        "/run/ringrail/xdpd.sock", "`none`, or an absolute path";
    /// Shared memory between engines of one host (same kernel, same network namespace or common
    /// shared_memory_directory, enabled on both sides): off, rings (all data is copied through
    /// rings) or auto (long messages are read from the sender's memory where the kernel allows it).
    shared_memory -> SharedMemory: OneOf<SharedMemory> = SharedMemory::Auto, Range::Any,
        "auto", "one of off, rings, auto";
    /// Directory in which engines of one host find each other, also across network namespaces
    /// (containers); all of them need this setting and the same directory. Without it they find
    /// each other within one network namespace.
    shared_memory_directory -> Option<&Path>: FilePath = None, Range::Any,
        "none", "`none`, or an absolute path";
    /// Allows shared memory with engines of other users that have the job secret. Sockets in
    /// shared_memory_directory then have mode 0666 instead of 0600.
    shared_memory_other_users -> bool: OneOf<bool> = false, Range::Any,
        "false", "one of false, true, 0, 1";
    /// Where Yama restricts memory access (kernel.yama.ptrace_scope = 1): allows all processes of
    /// the same user to read, and to debug, this process (PR_SET_PTRACER_ANY).
    shared_memory_ptrace_any -> bool: OneOf<bool> = false, Range::Any,
        "false", "one of false, true, 0, 1";
    /// io_uring features not to use, by the names that `ringrail-perf info` prints.
    @hidden uring_disable -> &[String]: Names<false> = Vec::new(), Range::Any,
        "none", "`none`, or names with commas between them";
    /// NICs to use, by name or pattern (`rail*`) or by network (`10.1.0.0/16`), in order of
    /// preference; a leading `!` excludes. auto, or exclusions alone: all NICs that are not virtual
    /// and, where there are private addresses, not public.
    nics -> &[NicPattern]: Nics<true> = Vec::new(), Range::Any,
        "auto",
        "`auto`, or names (rail0, rail*), networks (10.1.0.0/16) and exclusions (!docker*) with \
         commas between them";
    /// Maximum number of NICs in use; the slowest of more are left out.
    rails_max -> usize: Count = 4, Range::Numbers(1..=RAILS_MAX),
        "4", "a whole number from 1 to 16";
    /// NICs for short messages while they are healthy, written as in nics.
    preferred_nics -> &[NicPattern]: Nics<false> = Vec::new(), Range::Any,
        "none",
        "`none`, or names (rail0, rail*), networks (10.1.0.0/16) and exclusions (!docker*) with \
         commas between them";
    /// NICs that are used only while no other is healthy, written as in nics.
    backup_nics -> &[NicPattern]: Nics<false> = Vec::new(), Range::Any,
        "none",
        "`none`, or names (rail0, rail*), networks (10.1.0.0/16) and exclusions (!docker*) with \
         commas between them";
    /// Local address to listen on; without nics it also selects the NIC that has it.
    listen_address -> Option<IpAddr>: AddressValue = None, Range::Any,
        "any", "`any`, or an IPv4 or IPv6 address";
    /// TCP ports to listen on; datagrams use the UDP port of the same number unless it is taken.
    port_range -> PortRange: Ports = PortRange::ANY, Range::Any,
        "any", "`any`, a port, or a range such as 20000-20100";
    /// Locked memory of an engine for regions and buffers; auto takes a share of the memlock limit.
    arena_bytes -> Option<usize>: AutoBytes = None, Range::Numbers(M..=1024 * G),
        "auto", "`auto`, or bytes (such as 512, 16K or 4M; K is 1024) from 1M to 1T";
    /// Largest message sent with its envelope; larger ones are pulled by the receiver. auto starts
    /// at 64K for each peer and moves between 16K and 256K as the receiver measures, if the
    /// receiver has auto, too.
    eager_limit_bytes -> Option<usize>: AutoBytes = None, Range::Numbers(0..=EAGER_BYTES_MAX),
        "auto", "`auto`, or bytes (such as 512, 16K or 4M; K is 1024) from 0 to 256K";
    /// Transport of eager messages that do not fit a datagram of 2 KiB: tcp (the control
    /// connection, while it is on the path of the datagrams) or datagram (they are pulled).
    @hidden eager_lane -> EagerLane: OneOf<EagerLane> = EagerLane::Tcp, Range::Any,
        "tcp", "one of tcp, datagram";
    /// First bytes of a rendezvous message that travel with its request to send.
    @hidden rts_bytes -> usize: Bytes = 0, Range::Numbers(0..=32 * K),
        "0", "bytes (such as 512, 16K or 4M; K is 1024) from 0 to 32K";
    /// Largest message that can be injected: copied at once, its buffer reusable on return.
    inject_limit_bytes -> usize: Bytes = 16 * K, Range::Numbers(0..=32 * K),
        "16K", "bytes (such as 512, 16K or 4M; K is 1024) from 0 to 32K";
    /// Largest byte range of one grant to a bulk lane; a quarter more if that completes the
    /// message. With its header it should fill whole 64 KiB packets of the kernel.
    @hidden chunk_bytes -> usize: Bytes = 254 * K, Range::Numbers(4 * K..=CHUNK_BYTES_MAX as usize),
        "254K", "bytes (such as 512, 16K or 4M; K is 1024) from 4K to 16M";
    /// Largest chunk while short messages arrive, which wait behind it.
    @hidden busy_chunk_bytes -> usize: Bytes = 111 * K,
        Range::Numbers(4 * K..=CHUNK_BYTES_MAX as usize),
        "111K", "bytes (such as 512, 16K or 4M; K is 1024) from 4K to 16M";
    /// Chunks of chunk_bytes granted in advance on each bulk lane, half of them at a time.
    @hidden grant_horizon_chunks -> usize: Count = 4, Range::Numbers(1..=1024),
        "4", "a whole number from 1 to 1024";
    /// Bulk lanes of a session on each pair of rails; more than one helps where the network limits
    /// single TCP connections.
    bulk_lanes -> usize: Count = 1, Range::Numbers(1..=64),
        "1", "a whole number from 1 to 64";
    /// Bulk lanes of an engine, all sessions together; the least recently used are closed first.
    @hidden bulk_lanes_max -> usize: Count = 256, Range::Numbers(1..=M),
        "256", "a whole number from 1 to 1048576";
    /// A bulk lane without traffic for this long is closed.
    @hidden bulk_idle_timeout -> Duration: Time = seconds(30),
        Range::Times(micros(1000)..=24 * HOUR),
        "30s", "a time (such as 50us, 10ms or 5s) from 1ms to 86400s";
    /// Zero-copy sends of bulk data: auto (measured for each path), on or off.
    zero_copy -> ZeroCopy: OneOf<ZeroCopy> = ZeroCopy::Auto, Range::Any,
        "auto", "one of auto, on, off";
    /// Hint of messages that have none of their own: none, latency (sent at once), bulk (coalesced,
    /// pulled from 1 KiB on, after other messages) or priority (pulled before other messages).
    /// Hints change neither order nor matching.
    hint -> Hint: OneOf<Hint> = Hint::None, Range::Any,
        "none", "one of none, latency, bulk, priority";
    /// CRC32C over segments on TCP and over chunks, against memory and NICs that corrupt what TCP's
    /// checksum does not catch. true on either side counts for both.
    checksum -> bool: OneOf<bool> = false, Range::Any,
        "false", "one of false, true, 0, 1";
    /// TCP congestion control: auto (one without pacing on local paths), system, cubic, reno, bbr
    /// or dctcp.
    tcp_congestion -> TcpCongestion: OneOf<TcpCongestion> = TcpCongestion::Auto, Range::Any,
        "auto", "one of auto, system, cubic, reno, bbr, dctcp";
    /// Initial envelope credit of each peer; raised, within unexpected_messages, where envelopes
    /// wait for their receives.
    @hidden envelope_credits -> usize: Count = 16_384, Range::Numbers(1..=16 * M),
        "16384", "a whole number from 1 to 16777216";
    /// Eager payload credit of each peer.
    @hidden eager_credit_bytes -> usize: Bytes = 256 * K, Range::Numbers(1..=G),
        "256K", "bytes (such as 512, 16K or 4M; K is 1024) from 1 to 1G";
    /// Memory for messages that arrive before their receive, all peers of an engine together; a
    /// quarter of it at most for one peer.
    unexpected_bytes -> usize: Bytes = 64 * M, Range::Numbers(64 * K..=1024 * G),
        "64M", "bytes (such as 512, 16K or 4M; K is 1024) from 64K to 1T";
    /// Messages that may arrive before their receive, all peers of an engine together; a quarter of
    /// them at most for one peer. Each takes about 128 bytes besides its payload. More wait at
    /// their senders.
    @hidden unexpected_messages -> usize: Count = 16 * M, Range::Numbers(1..=1024 * M),
        "16777216", "a whole number from 1 to 1073741824";
    /// Sends to one peer that may wait for credit before posting returns `WouldBlock`. Their
    /// payload is not limited: it stays in the caller's buffers.
    @hidden send_queue_ops -> usize: Count = 4 * M, Range::Numbers(1..=64 * M),
        "4194304", "a whole number from 1 to 67108864";
    /// Outstanding operations of an engine before posting returns `WouldBlock`.
    @hidden operations_max -> usize: Count = 16 * M, Range::Numbers(16..=64 * M),
        "16777216", "a whole number from 16 to 67108864";
    /// Completions that a queue holds before posting returns `WouldBlock`.
    cq_entries -> usize: Count = 16 * M, Range::Numbers(16..=64 * M),
        "16777216", "a whole number from 16 to 67108864";
    /// Bytes of messages to one peer that may wait in short segments for their first transmission.
    @hidden staging_bytes -> usize: Bytes = 64 * K, Range::Numbers(2 * K..=32 * M),
        "64K", "bytes (such as 512, 16K or 4M; K is 1024) from 2K to 32M";
    /// Memory of an engine's segments until they are acknowledged, as a multiple of staging_bytes:
    /// so much for short ones, and as much again for long ones.
    @hidden staging_buffers_max -> usize: Count = 1024, Range::Numbers(2..=M),
        "1024", "a whole number from 2 to 1048576";
    /// Size of the buffer into which control connections are read.
    @hidden receive_buffer_bytes -> usize: Bytes = 256 * K, Range::Numbers(4 * K..=64 * M),
        "256K", "bytes (such as 512, 16K or 4M; K is 1024) from 4K to 64M";
    /// Control connections that are read by direct calls, those with the latest traffic.
    @hidden hot_lanes -> usize: Count = 4, Range::Numbers(0..=1024),
        "4", "a whole number from 0 to 1024";
    /// How long a waiting thread spins before it sleeps.
    spin -> Duration: Time = micros(50), Range::Times(Duration::ZERO..=seconds(10)),
        "50us", "a time (such as 50us, 10ms or 5s) from 0s to 10s";
    /// Time limit of one connection attempt; also how long the first endpoint of a domain waits for
    /// a NIC that is coming up, if there is no better one.
    connect_timeout -> Duration: Time = seconds(2), Range::Times(micros(1000)..=HOUR),
        "2s", "a time (such as 50us, 10ms or 5s) from 1ms to 3600s";
    /// Connection attempts after the first one failed.
    @hidden connect_retries -> usize: Count = 5, Range::Numbers(0..=1000),
        "5", "a whole number from 0 to 1000";
    /// Pause before the first retry; it doubles with each.
    @hidden connect_retry_delay -> Duration: Time = micros(10_000),
        Range::Times(micros(100)..=HOUR),
        "10ms", "a time (such as 50us, 10ms or 5s) from 100us to 3600s";
    /// A peer whose host has not answered for this long is dead. The kernel probes idle peers from
    /// a fifth of it on, at least three times, a second or more apart, so that detection takes at
    /// least four seconds.
    peer_timeout -> Duration: Time = seconds(10), Range::Times(micros(10_000)..=24 * HOUR),
        "10s", "a time (such as 50us, 10ms or 5s) from 10ms to 86400s";
    /// A peer whose host answers, but whose engine has not for this long, is dead: its process is
    /// stopped, or has ended and left its connections to a child. Engines are probed four times in
    /// this time; their background threads answer whatever the program does. An engine without one
    /// is judged only if the user set this, and only in a session with datagrams. Where another
    /// engine of that host shares memory with it, the end of its process is known seconds after a
    /// probe. Also how long an accepted connection may take to answer a hello. 0: no limit, and no
    /// probes.
    silent_timeout -> Duration: Time = seconds(300), Range::Times(Duration::ZERO..=24 * HOUR),
        "300s", "a time (such as 50us, 10ms or 5s) from 0s to 86400s";
    /// How long dropping an endpoint waits for its sends to be delivered before it cancels them.
    close_linger -> Duration: Time = seconds(5), Range::Times(Duration::ZERO..=HOUR),
        "5s", "a time (such as 50us, 10ms or 5s) from 0s to 3600s";
    /// Cores for the threads that attach endpoints, one each, in the order of attaching; after the
    /// last one they are reused from the first, with a warning.
    pin_cores -> &[usize]: Cores = Vec::new(), Range::Numbers(0..=1023),
        "none", "`none`, or cores (such as 0,2,4-7) from 0 to 1023";
    /// Cores reserved for the application: threads of dedicated endpoints run on others, unless
    /// pin_cores names these or the process has no others.
    reserved_cores -> &[usize]: Cores = Vec::new(), Range::Numbers(0..=1023),
        "none", "`none`, or cores (such as 0,2,4-7) from 0 to 1023";
    /// Sessions of an engine with peers that are connected, that were inserted and not removed, or
    /// that have yet to authenticate. Others are forgotten when space is needed.
    sessions_max -> usize: Count = 65_536, Range::Numbers(1..=16 * M),
        "65536", "a whole number from 1 to 16777216";
    /// Incoming connections that have not completed their handshake.
    @hidden handshake_pending_max -> usize: Count = 1024, Range::Numbers(1..=M),
        "1024", "a whole number from 1 to 1048576";
    /// Secret by which the processes of a job authenticate each other; never displayed. Takes
    /// precedence over job_secret_file.
    job_secret -> Option<&JobSecret>: Secret = None, Range::Any,
        "none", "`none`, or 64 hexadecimal digits";
    /// File with the job secret, mode 0600 or stricter, owned by the user of the process.
    job_secret_file -> Option<&Path>: FilePath = None, Range::Any,
        "none", "`none`, or an absolute path";
    /// Runs without a job secret: any host that reaches the port can send messages.
    insecure -> bool: OneOf<bool> = false, Range::Any,
        "false", "one of false, true, 0, 1";
    /// Entries of the io_uring submission queue.
    @hidden ring_entries -> usize: Count = 256, Range::Numbers(8..=32 * K),
        "256", "a whole number from 8 to 32768";
    /// File for a packet capture that Wireshark opens; further engines of the process append `-2`,
    /// `-3` ... to the name, and `%p` stands for the process id. All payload is written; the file
    /// is readable by its owner only. A symbolic link, or a file of another user, is refused.
    pcap_file -> Option<&Path>: AnyPath = None, Range::Any,
        "none", "`none`, or the path of a file";
    /// Address and port, or a port of 127.0.0.1, at which statistics are served to Prometheus over
    /// HTTP, without authentication. Each process needs its own port.
    prometheus_address -> Option<SocketAddr>: ExportAddress = None, Range::Any,
        "none",
        "`none`, a port of 127.0.0.1 such as 9464, or an address and a port such as \
         10.1.0.1:9464; port 0 is any free one";
    /// Whether each peer that is lost or cannot be authenticated is logged as an error, with its
    /// address and the cause; the libfabric provider prints it on standard error.
    report_lost_peers -> bool: OneOf<bool> = true, Range::Any,
        "true", "one of false, true, 0, 1";
    /// Whether the process prints one line on standard error when it ends, with the number of ranks
    /// that were reached by shared memory, and by which NICs and protocols.
    verbose -> bool: OneOf<bool> = false, Range::Any,
        "false", "one of false, true, 0, 1";
    /// Faults that the driver injects, for tests only: a seed and rates of short, again, late,
    /// reset, refuse, cut, garble and garble_control; for datagrams of lose, repeat, reorder, flip
    /// and truncate; for shared memory of ring_end and unread.
    @hidden inject_faults -> Option<Faults>: FaultSet = None, Range::Any,
        "none",
        "`none`, or a seed and rates from 0 to 1 of short, again, late, reset, refuse, cut, \
         garble, garble_control, lose, repeat, reorder, flip, truncate, ring_end, unread, such \
         as `seed=1 short=0.1 late=0.1`";
}

/// Room that the headers in front of a payload take in a segment, rounded up generously.
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
        "what is copied at once and its headers must fit it";
    inject_limit_bytes + 0 => eager_credit_bytes, "a send that is copied at once needs credit";
    inject_limit_bytes + 0 => eager_limit_bytes, "a send that is copied at once is eager";
    eager_limit_bytes + 0 => eager_credit_bytes, "the largest eager message needs that much credit";
    eager_limit_bytes + 0 => unexpected_bytes, "an unexpected eager message must fit";
    rts_bytes + HEADER_ROOM_BYTES => staging_bytes,
        "a request to send, its first bytes and headers must fit it";
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
