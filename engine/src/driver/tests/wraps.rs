//! Output of the middleware: logs and captures.

use std::fmt::Debug;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use pcap_file::pcap::PcapReader;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Event as LogEvent, Metadata, Subscriber};

use super::host::{Host, Variant, Wrap, pattern};
use crate::driver::DriverChoice;
use crate::driver::traits::{CloseMode, SendMode};
use crate::memory::Buffer;

/// Collects log events, one line each.
#[derive(Clone, Default)]
pub(super) struct Listener(Arc<Mutex<Vec<String>>>);

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.push_str(&format!(" {}={value:?}", field.name()));
    }
}

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "ringrail::driver"
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &LogEvent<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Collects log events of this thread, until the guard is dropped.
pub(super) fn listen(listener: &Listener) -> DefaultGuard {
    tracing::subscriber::set_default(listener.clone())
}

/// A unique file name for a capture.
pub(super) fn new_file() -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("ringrail-driver-{}-{number}.pcap", std::process::id()))
}

/// Fails unless every packet of the file is a complete one of TCP or UDP.
pub(super) fn check_capture(path: &Path) {
    let mut reader = PcapReader::new(File::open(path).unwrap()).unwrap();
    let mut count = 0;
    while let Some(packet) = reader.next_packet() {
        let packet = packet.unwrap();
        let parsed = etherparse::PacketHeaders::from_ip_slice(&packet.data).unwrap();
        match parsed.transport {
            Some(etherparse::TransportHeader::Tcp(_)) => count += 1,
            Some(etherparse::TransportHeader::Udp(udp)) => {
                assert_eq!(usize::from(udp.length), 8 + parsed.payload.slice().len());
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(count == 0 || count >= 3, "a lane begins with a handshake: {count} packets");
}

#[test]
fn trace_logs_calls_and_events_and_counts_idle_polls() {
    if tracing::level_filters::STATIC_MAX_LEVEL < tracing::Level::TRACE {
        return println!("RINGRAIL-SKIP: driver::tests::wraps: this build has no TRACE");
    }
    let variant =
        Variant { module: "wraps", choice: DriverChoice::Sockets, disabled: &[], wrap: Wrap::Bare };
    let listener = Listener::default();
    let guard = listen(&listener);
    let mut host = Host::new(&variant);
    let (near, far) = host.pair();
    assert_eq!(host.driver.send(near, b"seven").unwrap(), 5);
    host.recv_chunk(near, Buffer::from(vec![0; 100]));
    host.send_chunk(far, 77, Buffer::from(pattern(1, 100)), SendMode::Copy);
    host.expect_sent(far).unwrap();
    host.expect_released(77);
    host.expect_received(near).0.unwrap();
    host.close(near, CloseMode::Graceful);
    host.expect_closed(near);
    let own = host.open_datagrams("127.0.0.1");
    host.datagram(own, b"to myself");
    host.driver.flush_datagrams();
    assert_eq!(host.expect_datagram(), (own, b"to myself".to_vec()));
    drop(host);
    drop(guard);
    let lines = listener.0.lock().unwrap();
    let near = format!("lane=\"{}.{}\"", near.index, near.generation);
    for parts in [
        &["call=\"listen\"", "127.0.0.1"][..],
        &["call=\"connect\"", "remote=127.0.0.1"],
        &["event=\"connected\"", &near],
        &["event=\"accepted\""],
        &["call=\"send\"", "length=5", "outcome=\"5\"", &near],
        &["call=\"recv_chunk\"", "length=100", &near],
        &["call=\"send_chunk\"", "token=77", "mode=Copy"],
        &["event=\"chunk_sent\"", "outcome=\"()\""],
        &["event=\"chunk_released\"", "token=77"],
        &["event=\"chunk_received\"", &near],
        &["call=\"close\"", "mode=Graceful", &near],
        &["event=\"closed\"", &near],
        &["call=\"open_datagrams\"", &own.to_string()],
        &["call=\"send_datagram\"", "length=9", &own.to_string()],
        &["call=\"flush_datagrams\""],
        &["call=\"recv_datagram\"", "length=9", &own.to_string()],
        &["call=\"shutdown\"", "outcome=true"],
    ] {
        let is_logged = lines.iter().any(|line| parts.iter().all(|part| line.contains(part)));
        assert!(is_logged, "{parts:?} is not in {lines:#?}");
    }
}

#[test]
fn driver_without_a_subscriber_is_not_wrapped() {
    assert!(!crate::driver::middleware::is_traced());
    let guard = listen(&Listener::default());
    let has_trace = tracing::level_filters::STATIC_MAX_LEVEL >= tracing::Level::TRACE;
    assert_eq!(crate::driver::middleware::is_traced(), has_trace);
    drop(guard);
}

#[test]
fn capture_has_datagrams_of_both_directions() {
    for ip in ["127.0.0.1", "::1"] {
        let variant = Variant {
            module: "wraps",
            choice: DriverChoice::Sockets,
            disabled: &[],
            wrap: Wrap::Pcap,
        };
        let config = variant.config();
        let path = config.pcap_file.clone().unwrap();
        let mut host = Host::with(DriverChoice::Sockets, &config);
        let Ok(peer) = std::net::UdpSocket::bind((ip, 0)) else {
            println!("RINGRAIL-SKIP: driver::tests::wraps: this host has no IPv6");
            continue;
        };
        let (own, peer_at) = (host.open_datagrams(ip), peer.local_addr().unwrap());
        host.datagram(peer_at, b"there");
        host.driver.flush_datagrams();
        peer.send_to(b"and back", own).unwrap();
        host.expect_datagram();
        assert!(host.driver.shutdown(std::time::Duration::from_secs(1)));
        let mut reader = PcapReader::new(File::open(&path).unwrap()).unwrap();
        for (bytes, from, to) in [(&b"there"[..], own, peer_at), (b"and back", peer_at, own)] {
            let packet = reader.next_packet().unwrap().unwrap();
            let parsed = etherparse::PacketHeaders::from_ip_slice(&packet.data).unwrap();
            assert_eq!(parsed.payload.slice(), bytes);
            let Some(etherparse::TransportHeader::Udp(udp)) = parsed.transport else { panic!() };
            assert_eq!((udp.source_port, udp.destination_port), (from.port(), to.port()));
            let sum = match parsed.net.unwrap() {
                etherparse::NetHeaders::Ipv4(ip, _) => udp.calc_checksum_ipv4(&ip, bytes),
                etherparse::NetHeaders::Ipv6(ip, _) => udp.calc_checksum_ipv6(&ip, bytes),
                other => panic!("{other:?}"),
            };
            assert_eq!(udp.checksum, sum.unwrap());
        }
        assert!(reader.next_packet().is_none());
    }
}
