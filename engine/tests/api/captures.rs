//! What the lanes carry, in files that Wireshark reads.

use std::collections::BTreeMap;
use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::common::handmade::{HELLO_BYTES, REPLY_BYTES};
use crate::common::{self, pair, pattern};
use etherparse::{NetHeaders, PacketBuilder, PacketHeaders, TransportHeader};
use pcap_file::DataLink;
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapReader, PcapWriter};
use ringrail::{CompletionLevel, Endpoint, Envelope, Owned, Peer, Selector, SendOptions};

/// Eager, first bytes with the request, and chunks that need more than one packet.
const SIZES: [usize; 5] = [0, 8, 16_384, 300_000, 3 << 20];

fn exchange(endpoint: &Endpoint<Owned>, peer: Peer) {
    for (number, size) in (0u64..).zip(SIZES) {
        for level in [CompletionLevel::Inject, CompletionLevel::Match] {
            let envelope = Envelope::tagged(number);
            let bytes = pattern(number, size);
            let receive =
                endpoint.receive(Selector::from_peer(peer, envelope), vec![0; size]).unwrap();
            let options = SendOptions::at(level);
            let send = endpoint.send(peer, envelope, bytes.clone(), options).unwrap();
            let outcome = receive.wait().unwrap();
            assert!(outcome.buffer.as_slice().unwrap() == bytes);
            send.wait().unwrap();
        }
    }
}

/// Runs the exchange over `lanes`; the files of the two engines.
fn capture(directory: &Path, lanes: &str, listen: &str, faults: &str) -> [PathBuf; 2] {
    let path = directory.join("lanes.pcap");
    let settings = [
        ("lanes", lanes),
        // Its streams are distinguished and compared to the last byte.
        ("control_lane", "tcp"),
        ("listen_address", listen),
        ("pcap_file", path.to_str().unwrap()),
        ("inject_faults", faults),
        ("rts_bytes", "100"),
        ("chunk_bytes", "256K"),
    ];
    pair(&settings, exchange, exchange);
    [path, directory.join("lanes-2.pcap")]
}

/// The bytes and the end of one direction of a connection.
#[derive(Default)]
struct Direction {
    bytes: Vec<u8>,
    /// The sequence number that comes next; none before the handshake.
    next: Option<u32>,
    is_over: bool,
}

/// Reads a file as a receiver would; fails where a number, a length or a checksum is wrong.
fn read(path: &Path) -> BTreeMap<(SocketAddr, SocketAddr), Direction> {
    let mut reader = PcapReader::new(File::open(path).unwrap()).unwrap();
    let mut directions: BTreeMap<(SocketAddr, SocketAddr), Direction> = BTreeMap::new();
    let mut time = Duration::ZERO;
    while let Some(packet) = reader.next_packet() {
        let packet = packet.unwrap();
        assert_eq!(packet.orig_len as usize, packet.data.len(), "nothing is snapped");
        assert!(packet.timestamp + Duration::from_secs(60) > time);
        time = packet.timestamp;
        let headers = PacketHeaders::from_ip_slice(&packet.data).unwrap();
        let Some(TransportHeader::Tcp(tcp)) = headers.transport else { panic!("not TCP") };
        let data = headers.payload.slice();
        let (from, to, sum) = match headers.net {
            Some(NetHeaders::Ipv4(ip, _)) => {
                assert_eq!(ip.header_checksum, ip.calc_header_checksum());
                let sum = tcp.calc_checksum_ipv4(&ip, data).unwrap();
                (ip.source.into(), ip.destination.into(), sum)
            }
            Some(NetHeaders::Ipv6(ip, _)) => {
                let sum = tcp.calc_checksum_ipv6(&ip, data).unwrap();
                (ip.source.into(), ip.destination.into(), sum)
            }
            _ => panic!("not IP"),
        };
        assert_eq!(tcp.checksum, sum);
        let ends =
            (SocketAddr::new(from, tcp.source_port), SocketAddr::new(to, tcp.destination_port));
        let acknowledged = directions.get(&(ends.1, ends.0)).and_then(|other| other.next);
        assert_eq!(tcp.ack.then_some(tcp.acknowledgment_number), acknowledged);
        let direction = directions.entry(ends).or_default();
        assert_eq!(tcp.syn, direction.next.is_none(), "a handshake comes first, and once");
        assert_eq!(direction.next.unwrap_or(tcp.sequence_number), tcp.sequence_number);
        assert!(!direction.is_over || (data.is_empty() && !tcp.fin), "data after the end");
        direction.bytes.extend_from_slice(data);
        direction.is_over |= tcp.fin || tcp.rst;
        let length = data.len() as u32 + u32::from(tcp.syn) + u32::from(tcp.fin);
        direction.next = Some(tcp.sequence_number.wrapping_add(length));
    }
    directions
}

/// What one engine wrote down as sent the other did as received, to the last byte.
fn check([left, right]: &[PathBuf; 2]) {
    let (left, right) = (read(left), read(right));
    let (mut bulk_bytes, mut count) = (0, 0);
    for (ends, seen) in &left {
        let Some(other) = right.get(ends) else {
            // Of an attempt that lost the election one side may have seen nothing.
            continue;
        };
        let both = seen.bytes.len().min(other.bytes.len());
        assert!(seen.bytes[..both] == other.bytes[..both], "{ends:?} differ");
        assert!(seen.bytes.is_empty() || seen.bytes.starts_with(b"RINGRAIL"));
        if seen.bytes.windows(4).take(200).any(|word| word == b"RRCK") {
            bulk_bytes += both;
        }
        count += 1;
    }
    assert!(count >= 4, "a control lane and a bulk lane, both ways: {count}");
    assert!(left.values().any(|direction| direction.is_over));
    // Two of each long message in both directions; first bytes travel with the requests.
    let long: usize = SIZES.iter().filter(|&&size| size > 16_384).map(|size| size - 100).sum();
    assert!(bulk_bytes >= 4 * long, "{bulk_bytes} bytes of chunks, not {}", 4 * long);
}

fn has_uring() -> bool {
    common::domain(&[("lanes", "uring")]).endpoint().unwrap().attach().is_ok()
}

#[test]
fn captures_of_both_sides_agree_to_the_last_byte() {
    for (lanes, listen) in [("sockets", "127.0.0.1"), ("sockets", "::1"), ("uring", "127.0.0.1")] {
        if lanes == "uring" && !has_uring() {
            println!("RINGRAIL-SKIP: captures::agree: the kernel refuses io_uring");
            continue;
        }
        let directory = tempfile::tempdir().unwrap();
        check(&capture(directory.path(), lanes, listen, "none"));
    }
}

#[test]
fn captures_of_a_driver_that_fails_agree_as_well() {
    let directory = tempfile::tempdir().unwrap();
    let faults = "seed=1 short=0.2 again=0.1 late=0.2";
    check(&capture(directory.path(), "sockets", "127.0.0.1", faults));
}

#[test]
fn a_capture_that_cannot_be_written_is_an_error_with_its_path() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("missing/lanes.pcap");
    let domain = common::domain(&[("pcap_file", path.to_str().unwrap())]);
    let error = domain.endpoint().unwrap().attach().map(drop).unwrap_err().to_string();
    assert!(error.contains("missing/lanes.pcap") && error.contains("pcap_file"), "{error}");
}

/// The file holds messages as they are on the wire, and its name can be guessed.
#[test]
fn a_capture_is_closed_to_others_and_follows_no_link() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("lanes.pcap");
    let domain = common::domain(&[("pcap_file", path.to_str().unwrap())]);
    drop(domain.endpoint().unwrap().attach().unwrap());
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o077, 0);
    let link = directory.path().join("link.pcap");
    let precious = directory.path().join("precious");
    std::fs::write(&precious, "mine").unwrap();
    std::os::unix::fs::symlink(&precious, &link).unwrap();
    let domain = common::domain(&[("pcap_file", link.to_str().unwrap())]);
    let opened = domain.endpoint().unwrap().attach().map(drop);
    assert_eq!(std::fs::read_to_string(&precious).unwrap(), "mine");
    let error = opened.unwrap_err().to_string();
    assert!(error.contains("it is a link"), "{error}");
}

#[test]
fn the_process_id_is_put_into_the_name() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("of-%p.pcap");
    let domain = common::domain(&[("pcap_file", path.to_str().unwrap())]);
    drop(domain.endpoint().unwrap().attach().unwrap());
    let name = format!("of-{}.pcap", std::process::id());
    assert!(read(&directory.path().join(name)).is_empty());
}

/// The lines that tshark prints of a file with our dissector.
fn tshark(path: &Path, arguments: &[&str]) -> Vec<String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../perf/ringrail.lua");
    let output = Command::new("tshark")
        .arg("-X")
        .arg(format!("lua_script:{}", script.display()))
        .arg("-r")
        .arg(path)
        .args(arguments)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !errors.contains("Lua"), "{errors}");
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

/// Whether tshark runs; prints if it does not, past libtest's capture, so that it is counted when
/// the test passes.
fn has_tshark(test: &str) -> bool {
    use std::io::Write as _;
    let Err(error) = Command::new("tshark").arg("--version").output() else { return true };
    let _ = writeln!(
        std::io::stderr(),
        "RINGRAIL-SKIP: captures::{test}: tshark does not run ({error}); install tshark"
    );
    false
}

/// Writes datagrams into a file, as an engine's capture has them.
fn write_datagrams(path: &Path, datagrams: &[Vec<u8>]) {
    let header = PcapHeader { datalink: DataLink::RAW, ..PcapHeader::default() };
    let mut writer = PcapWriter::with_header(File::create(path).unwrap(), header).unwrap();
    for bytes in datagrams {
        let mut packet = Vec::new();
        let builder = PacketBuilder::ipv4([127, 0, 0, 1], [127, 0, 0, 2], 64).udp(40_001, 40_002);
        builder.write(&mut packet, bytes).unwrap();
        let length = packet.len() as u32;
        writer.write_packet(&PcapPacket::new(Duration::from_secs(1), length, &packet)).unwrap();
    }
}

/// A packet as SPEC.md draws it, with an empty tag: flags, number, what follows the header.
fn packet(flags: u8, number: u32, rest: &[&[u8]]) -> Vec<u8> {
    let mut bytes = vec![16, flags, 3, 0];
    bytes.extend_from_slice(&number.to_le_bytes());
    bytes.extend_from_slice(&0x1122_3344_5566_7788u64.to_le_bytes());
    rest.iter().for_each(|part| bytes.extend_from_slice(part));
    bytes.extend_from_slice(&[0xaa; 8]);
    bytes
}

/// A segment of the frames in `frames`.
fn segment(count: u16, frames: &[u8]) -> Vec<u8> {
    let mut bytes = (24 + frames.len() as u32).to_le_bytes().to_vec();
    bytes.extend_from_slice(&count.to_le_bytes());
    bytes.extend_from_slice(&[0; 18]);
    bytes.extend_from_slice(frames);
    bytes
}

#[test]
fn wireshark_names_what_datagrams_carry() {
    if !has_tshark("datagrams") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("datagrams.pcap");
    // EAGER of 100 bytes with tag 42, and DATA of 64 bytes.
    let mut eager = [0; 32 + 100];
    (eager[0], eager[12], eager[16]) = (1, 100, 42);
    let mut data = [0; 24 + 64];
    (data[0], data[4]) = (10, 64);
    let content = segment(2, &[&eager[..], &data[..]].concat());
    // Cumulative 1000, one window of one word.
    let ack = [232, 3, 0, 0, 7, 0, 1, 0, 0, 0, 1, 0, 255, 0, 0, 0, 0, 0, 0, 0];
    let mut stray = content.clone();
    stray.push(0);
    write_datagrams(
        &path,
        &[
            packet(4 | 2 | 1, 77, &[&70u32.to_le_bytes(), &ack, &content]),
            packet(1, 78, &[&ack]),
            packet(4 | 16, 79, &[&[0; 1000]]),
            // Others' datagrams: unknown flags, a cut acknowledgement, no whole segment.
            packet(32, 80, &[]),
            packet(1, 81, &[&ack[..15]]),
            packet(4, 82, &[&stray]),
            vec![16; 20],
        ],
    );
    let fields = |names: &[&str]| {
        let mut arguments = vec!["-T", "fields"];
        names.iter().for_each(|name| arguments.extend(["-e", name]));
        tshark(&path, &arguments)
    };
    let numbers = fields(&["ringrail.packet.number", "ringrail.packet.session"]);
    let session = "0x1122334455667788";
    let expected = [77, 78, 79].map(|number| format!("{number}\t{session}"));
    assert_eq!(numbers[..3], expected, "{numbers:#?}");
    assert!(numbers[3..].iter().all(|line| line.trim().is_empty()), "{numbers:#?}");
    let inside = fields(&[
        "ringrail.floor.number",
        "ringrail.ack.cumulative",
        "ringrail.ack_window.words",
        "ringrail.eager.tag",
        "ringrail.data.length",
        "ringrail.packet.tag",
    ]);
    let tag = "aa".repeat(8);
    assert_eq!(inside[0], format!("70\t1000\t1\t0x000000000000002a\t64\t{tag}"));
    assert_eq!(inside[1], format!("\t1000\t1\t\t\t{tag}"));
    let wrong = tshark(&path, &["-Y", "_ws.malformed || ringrail.bad"]);
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Also where there is no Wireshark to ask.
#[test]
fn the_dissector_knows_how_long_greetings_are() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../perf/ringrail.lua");
    let script = std::fs::read_to_string(path).unwrap();
    let length = |layout: &str| -> usize {
        let (_, rows) = script.split_once(&format!("\n  {layout} = {{\n")).unwrap();
        let (rows, _) = rows.split_once("\n  },\n").unwrap();
        let fields = rows.split('{').skip(1);
        fields.map(|field| field.split(',').nth(1).unwrap().trim().parse::<usize>().unwrap()).sum()
    };
    assert_eq!((length("hello"), length("reply")), (HELLO_BYTES, REPLY_BYTES));
}

#[test]
fn wireshark_names_every_header_and_finds_nothing_wrong() {
    if !has_tshark("wireshark") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    for path in capture(directory.path(), "auto", "127.0.0.1", "none") {
        let wrong = tshark(&path, &["-Y", "_ws.malformed || ringrail.bad || tcp.analysis.flags"]);
        assert!(wrong.is_empty(), "{wrong:#?}");
        let checked = ["-o", "tcp.check_checksum:TRUE", "-Y", "tcp.checksum.status == 0"];
        let wrong = tshark(&path, &checked);
        assert!(wrong.is_empty(), "{wrong:#?}");
        let names = tshark(&path, &["-T", "fields", "-e", "ringrail.what"]).join(",");
        for name in [
            "HELLO", "REPLY", "PROOF", "SEGMENT", "EAGER", "RTS", "GRANT", "DONE", "MATCHED",
            "CHUNK",
        ] {
            assert!(names.split(',').any(|one| one == name), "{name} is not in {names}");
        }
        let tags = tshark(&path, &["-Y", "ringrail.rts.tag == 3", "-T", "fields", "-e", "tcp.len"]);
        assert!(!tags.is_empty(), "the requests to send of the fourth size");
    }
}
