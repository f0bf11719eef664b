//! Writes a pcap file of TCP connections, with synthetic headers around the bytes that lanes moved,
//! and of UDP packets.
//!
//! Each lane has a handshake, data with running sequence and acknowledgement numbers, and FIN or
//! RST. Packets are as long as IP allows: data is split at [`DATA_BYTES`], no byte is omitted.
//! Checksums are valid. Segments, retransmissions and pure acknowledgements of the kernel's TCP are
//! not in the file; timestamps are when the engine's calls returned, in ns.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use etherparse::{IpHeaders, PacketBuilder, PacketBuilderStep, TcpHeader, TcpOptionElement};
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use pcap_file::{DataLink, PcapError, TsResolution};

use crate::driver::DriverError;
use crate::driver::random::random_number;
use crate::files;

/// Data of one packet: the longest IPv4 packet without both headers.
const DATA_BYTES: usize = 65_535 - 20 - 20;

/// Longer than any packet here: nothing is truncated.
const SNAP_BYTES: u32 = 256 * 1024;

/// The window of all packets, scaled by 2^14 as in the handshakes: 1 GiB, so that no sender seems
/// to overrun it.
const WINDOW: u16 = u16::MAX;
const WINDOW_SHIFT: u8 = 14;

/// Data in one direction after which a pure acknowledgement is written.
const ACK_BYTES: u32 = 256 * 1024;

/// Bytes buffered before they are written.
const BUFFER_BYTES: usize = 1 << 20;

/// How often this process has opened each file.
static OPENED: LazyLock<Mutex<HashMap<PathBuf, u32>>> = LazyLock::new(Mutex::default);

/// An end of a lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    /// This process.
    Near,
    /// The peer.
    Far,
}

impl End {
    fn other(self) -> Self {
        match self {
            Self::Near => Self::Far,
            Self::Far => Self::Near,
        }
    }
}

/// A lane as a TCP connection. Pairs are `[near, far]`.
#[derive(Debug)]
pub(super) struct Flow {
    ends: [SocketAddr; 2],
    /// The next sequence number of each end.
    next: [u32; 2],
    /// Bytes of each end that the other has not acknowledged.
    unacknowledged: [u32; 2],
    /// The end has sent FIN or RST.
    is_over: [bool; 2],
}

/// Flags of a packet.
#[derive(Clone, Copy, Default)]
struct Flags {
    syn: bool,
    fin: bool,
    rst: bool,
}

/// The capture file.
pub(super) struct Capture {
    /// `None` after an error: traffic continues without capture.
    file: Option<(PcapWriter<Buffer>, Buffer)>,
    path: PathBuf,
    packet: Vec<u8>,
}

/// Owned by the pcap writer, flushed by us.
#[derive(Clone)]
struct Buffer(Arc<Mutex<BufWriter<File>>>);

impl Buffer {
    fn file(&self) -> MutexGuard<'_, BufWriter<File>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Write for Buffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file().flush()
    }
}

/// The file name for another engine of this process.
fn numbered(path: &Path) -> PathBuf {
    let text = path.to_string_lossy().replace("%p", &std::process::id().to_string());
    let path = PathBuf::from(text);
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    let number = opened.entry(path.clone()).or_default();
    *number += 1;
    if *number == 1 {
        return path;
    }
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let extension = path.extension().map(|text| format!(".{}", text.to_string_lossy()));
    path.with_file_name(format!("{stem}-{number}{}", extension.unwrap_or_default()))
}

fn into_io(error: PcapError) -> io::Error {
    match error {
        PcapError::IoError(error) => error,
        other => io::Error::other(other.to_string()),
    }
}

impl Capture {
    /// Creates the file, private to the user, or overwrites one of an earlier process of this user.
    pub(super) fn create(path: &Path) -> Result<Self, DriverError> {
        let path = numbered(path);
        let header = PcapHeader {
            snaplen: SNAP_BYTES,
            datalink: DataLink::RAW,
            ts_resolution: TsResolution::NanoSecond,
            ..PcapHeader::default()
        };
        let file = files::open_own(rustix::fs::CWD, &path).and_then(|file| {
            if file.metadata()?.is_file() {
                file.set_len(0)?;
            }
            let file = BufWriter::with_capacity(BUFFER_BYTES, file);
            let buffer = Buffer(Arc::new(Mutex::new(file)));
            let writer = PcapWriter::with_header(buffer.clone(), header).map_err(into_io)?;
            Ok((writer, buffer))
        });
        match file {
            Ok(file) => {
                tracing::debug!("capturing traffic to {}", path.display());
                Ok(Self { file: Some(file), path, packet: Vec::new() })
            }
            Err(source) => Err(DriverError::Capture { path, source }),
        }
    }

    /// Writes the handshake of a connection that `opener` started.
    pub(super) fn open(&mut self, ends: [SocketAddr; 2], opener: End) -> Flow {
        let numbers = random_number().unwrap_or_default();
        let next = [numbers as u32, (numbers >> 32) as u32];
        let mut flow = Flow { ends, next, unacknowledged: [0; 2], is_over: [false; 2] };
        let syn = Flags { syn: true, ..Flags::default() };
        self.write(&flow, opener, syn, false, &[]);
        flow.advance(opener, 1);
        self.write(&flow, opener.other(), syn, true, &[]);
        flow.advance(opener.other(), 1);
        self.write(&flow, opener, Flags::default(), true, &[]);
        flow.unacknowledged = [0; 2];
        flow
    }

    /// Writes bytes sent by `from`, at most [`DATA_BYTES`] per packet.
    pub(super) fn data(&mut self, flow: &mut Flow, from: End, bytes: &[u8]) {
        if flow.is_over[from as usize] {
            return;
        }
        for part in bytes.chunks(DATA_BYTES) {
            self.write(flow, from, Flags::default(), true, part);
            flow.unacknowledged[from.other() as usize] = 0;
            flow.advance(from, part.len() as u32);
            if flow.unacknowledged[from as usize] >= ACK_BYTES {
                self.write(flow, from.other(), Flags::default(), true, &[]);
                flow.unacknowledged[from as usize] = 0;
            }
        }
    }

    /// Writes the FIN of `from`; called once.
    pub(super) fn finish(&mut self, flow: &mut Flow, from: End) {
        if !std::mem::replace(&mut flow.is_over[from as usize], true) {
            self.write(flow, from, Flags { fin: true, ..Flags::default() }, true, &[]);
            flow.advance(from, 1);
        }
    }

    /// Writes the RST of `from`; called once, as the last packet.
    pub(super) fn reset(&mut self, flow: &mut Flow, from: End) {
        if !flow.is_over[from as usize] {
            self.write(flow, from, Flags { rst: true, ..Flags::default() }, true, &[]);
        }
        flow.is_over = [true; 2];
    }

    /// Writes a datagram.
    pub(super) fn datagram(&mut self, from: SocketAddr, to: SocketAddr, bytes: &[u8]) {
        if self.file.is_none() {
            return;
        }
        self.packet.clear();
        let packet = ip(from, to)
            .udp(from.port(), to.port())
            .write(&mut self.packet, bytes)
            .map_err(|error| io::Error::other(error.to_string()));
        if let Err(error) = packet.and_then(|()| self.put()) {
            self.fail(&error);
        }
    }

    /// Flushes the buffer to the kernel.
    pub(super) fn flush(&mut self) {
        if let Some((_, buffer)) = &self.file {
            let flushed = buffer.file().flush();
            if let Err(error) = flushed {
                self.fail(&error);
            }
        }
    }

    fn fail(&mut self, error: &io::Error) {
        self.file = None;
        let path = self.path.display();
        tracing::warn!(
            "capture to {path} stopped, traffic is unaffected: {error}; is the disk full?"
        );
    }

    fn write(&mut self, flow: &Flow, from: End, flags: Flags, acks: bool, data: &[u8]) {
        if self.file.is_none() {
            return;
        }
        if let Err(error) = self.try_write(flow, from, flags, acks, data) {
            self.fail(&error);
        }
    }

    fn try_write(
        &mut self,
        flow: &Flow,
        from: End,
        flags: Flags,
        acks: bool,
        data: &[u8],
    ) -> io::Result<()> {
        let to = from.other();
        let (source, target) = (flow.ends[from as usize], flow.ends[to as usize]);
        let sequence = flow.next[from as usize];
        let mut tcp = TcpHeader::new(source.port(), target.port(), sequence, WINDOW);
        (tcp.syn, tcp.fin, tcp.rst) = (flags.syn, flags.fin, flags.rst);
        tcp.psh = !data.is_empty();
        tcp.ack = acks;
        tcp.acknowledgment_number = if acks { flow.next[to as usize] } else { 0 };
        if flags.syn {
            tcp.set_options(&[TcpOptionElement::WindowScale(WINDOW_SHIFT)])
                .map_err(|error| io::Error::other(error.to_string()))?;
        }
        self.packet.clear();
        ip(source, target)
            .tcp_header(tcp)
            .write(&mut self.packet, data)
            .map_err(|error| io::Error::other(error.to_string()))?;
        self.put()
    }

    /// Writes the packet in `packet`.
    fn put(&mut self) -> io::Result<()> {
        let Some((file, _)) = &mut self.file else { return Ok(()) };
        let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        // A clock before 1970 must not lose the packet.
        let time = time.unwrap_or(Duration::ZERO);
        let packet = PcapPacket::new(time, self.packet.len() as u32, &self.packet);
        file.write_packet(&packet).map_err(into_io).map(|_| ())
    }
}

impl Flow {
    /// Advances the sequence number of `from`.
    fn advance(&mut self, from: End, count: u32) {
        let next = &mut self.next[from as usize];
        *next = next.wrapping_add(count);
        self.unacknowledged[from as usize] += count;
    }
}

/// The IP header of a packet.
fn ip(source: SocketAddr, target: SocketAddr) -> PacketBuilderStep<IpHeaders> {
    match (source, target) {
        (SocketAddr::V4(source), SocketAddr::V4(target)) => {
            PacketBuilder::ipv4(source.ip().octets(), target.ip().octets(), 64)
        }
        (source, target) => PacketBuilder::ipv6(octets(source), octets(target), 64),
    }
}

/// An address as IPv6; IPv4 addresses are mapped.
fn octets(address: SocketAddr) -> [u8; 16] {
    match address {
        SocketAddr::V4(v4) => v4.ip().to_ipv6_mapped().octets(),
        SocketAddr::V6(v6) => v6.ip().octets(),
    }
}
