//! What is counted of paths and NICs, as users and Prometheus read it.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{domain, pair, pattern};
use ringrail::{
    CompletionLevel, Endpoint, Envelope, Owned, PathState, ReceiveOptions, Selector, SendOptions,
    SendTransport,
};

/// Longer than a busy machine takes for anything here.
const LONG: Duration = Duration::from_secs(60);
const BYTES: usize = 3 << 20;
const OVER: Envelope = Envelope::tagged(2);

/// What comes back until the exporter closes the connection.
fn ask(address: SocketAddr, request: &[u8]) -> String {
    let mut client = TcpStream::connect(address).unwrap();
    client.set_read_timeout(Some(LONG)).unwrap();
    // It may close before all of that has come.
    let _ = client.write_all(request);
    let mut response = Vec::new();
    let _ = client.read_to_end(&mut response);
    String::from_utf8_lossy(&response).into_owned()
}

fn scrape(address: SocketAddr) -> String {
    ask(address, b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n")
}

/// The value of the first line that begins like this.
fn value(text: &str, start: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.starts_with(start))?;
    line.rsplit_once(' ')?.1.parse().ok()
}

fn check_paths(endpoint: &Endpoint<Owned>, sends: bool) {
    let [path] = &endpoint.paths()[..] else { panic!("one path: {:?}", endpoint.paths()) };
    let [rail] = &endpoint.rails()[..] else { panic!("one rail: {:?}", endpoint.rails()) };
    assert_eq!((&*path.nic, &*rail.nic, path.rail), ("lo", "lo", 0));
    assert_eq!((path.local, path.local), (rail.address, path.remote));
    assert_eq!((path.state, path.carries_messages), (PathState::Active, true));
    assert_eq!((path.changes, path.regrants, path.last_change), (0, 0, None));
    let (there, back) = (path.bytes_sent, path.bytes_received);
    assert_eq!(if sends { (there, back) } else { (back, there) }, (BYTES as u64, 0));
    let (there, back) = (path.chunks_sent, path.chunks_received);
    let (chunks, none) = if sends { (there, back) } else { (back, there) };
    assert!(chunks > 10 && none == 0, "{path:?}");
    // The control lane, and the bulk lane that the message went by; nothing is lost here.
    let numbers: Vec<_> = path.lanes.iter().map(|lane| lane.number).collect();
    assert!(matches!(numbers[..], [None, Some(_)]), "{numbers:?}");
    assert!(path.lanes.iter().all(|lane| lane.round_trip > Duration::ZERO), "{:?}", path.lanes);
    let nic = rail.nic_counters().unwrap();
    assert_eq!(nic.pauses, None, "the loopback has none");
    assert!(nic.bytes_sent >= BYTES as u64 && nic.packets_received > 0, "{nic:?}");
}

#[test]
fn paths_carry_what_was_sent_and_prometheus_shows_it() {
    let settings = [("prometheus_address", "0")];
    let left = |endpoint: &Endpoint<Owned>, peer| {
        endpoint
            .send_blocking(
                peer,
                Envelope::tagged(1),
                &pattern(1, BYTES),
                SendOptions::at(CompletionLevel::Delivery),
            )
            .unwrap();
        check_paths(endpoint, true);
        let text = endpoint.prometheus();
        let all = value(&text, "ringrail_path_bulk_bytes_sent_total{");
        assert_eq!(all, Some(BYTES as f64), "{text}");
        let again = value(&text, "ringrail_lane_retransmits_total{");
        assert!(again.is_some_and(|count| count < 1000.0), "{text}");
        assert!(text.contains(",lane=\"control\"} ") && !text.contains("_pauses_"), "{text}");
        let address = endpoint.domain().prometheus_address().unwrap();
        assert!(address.ip().is_loopback());
        let started = Instant::now();
        let text = loop {
            let text = scrape(address);
            let sent = text.lines().filter(|line| {
                line.starts_with("ringrail_path_bulk_bytes_sent_total{")
                    && line.ends_with(&format!(" {BYTES}"))
            });
            let is_reported = text.matches("ringrail_syscalls_total{").count() == 2;
            if sent.count() == 1 && is_reported {
                break text;
            }
            assert!(started.elapsed() < LONG, "{text}");
            for _ in 0..100 {
                endpoint.progress().unwrap();
                thread::sleep(Duration::from_millis(1));
            }
        };
        assert!(text.starts_with("HTTP/1.0 200 OK\r\n"), "{text}");
        for name in ["path_bulk_bytes_sent", "syscalls", "nic_bytes_sent"] {
            let head = format!("# TYPE ringrail_{name}_total counter\n");
            assert_eq!(text.matches(&head).count(), 1, "{name}: {text}");
        }
        let nic = value(&text, "ringrail_nic_bytes_sent_total{nic=\"lo\"} ");
        assert!(nic.is_some_and(|bytes| bytes >= BYTES as f64), "{text}");
        endpoint
            .send_blocking(peer, OVER, &[], SendOptions::at(CompletionLevel::Delivery))
            .unwrap();
    };
    let right = |endpoint: &Endpoint<Owned>, peer| {
        let mut room = vec![0; BYTES];
        endpoint
            .receive_blocking(
                Selector::from_peer(peer, Envelope::tagged(1)),
                &mut room,
                ReceiveOptions::new(),
            )
            .unwrap();
        assert!(room == pattern(1, BYTES));
        check_paths(endpoint, false);
        endpoint
            .receive_blocking(Selector::from_peer(peer, OVER), &mut [], ReceiveOptions::new())
            .unwrap();
    };
    pair(&settings, left, right);
}

/// The transports of a session by the range of lengths, once the last message has arrived.
fn check_protocol(settings: &[(&str, &str)], expected: &'static [SendTransport]) {
    let check = move |endpoint: &Endpoint<Owned>, peer| {
        assert!(endpoint.send_protocol(peer).is_none(), "not connected");
        endpoint
            .send_blocking(peer, OVER, &[], SendOptions::at(CompletionLevel::Delivery))
            .unwrap();
        let transports = || -> Vec<_> {
            let protocol = endpoint.send_protocol(peer).unwrap();
            let longest: Vec<_> = protocol.ranges.iter().map(|range| range.longest).collect();
            assert!(longest[..longest.len() - 1].is_sorted_by_key(|longest| longest.unwrap()));
            assert_eq!(longest.last(), Some(&None), "{protocol}");
            protocol.ranges.iter().map(|range| range.transport).collect()
        };
        // Paths answer after the first messages.
        let started = Instant::now();
        while transports() != expected {
            assert!(started.elapsed() < LONG, "{:?}", endpoint.send_protocol(peer));
            endpoint.progress().unwrap();
        }
        endpoint
            .send_blocking(peer, OVER, &[], SendOptions::at(CompletionLevel::Delivery))
            .unwrap();
    };
    let receive = |endpoint: &Endpoint<Owned>, peer| {
        for _ in 0..2 {
            endpoint
                .receive_blocking(Selector::from_peer(peer, OVER), &mut [], ReceiveOptions::new())
                .unwrap();
        }
    };
    pair(settings, check, receive);
}

#[test]
fn the_protocol_of_a_session_follows_from_what_it_can_do() {
    use SendTransport::{Datagram, PulledOverLanes, Stream};
    let off = ("shared_memory", "off");
    check_protocol(&[off], &[Datagram, Stream, PulledOverLanes]);
    check_protocol(&[off, ("control_lane", "tcp")], &[Stream, PulledOverLanes]);
}

#[test]
fn hostile_clients_neither_hang_it_nor_stop_it() {
    let domain = domain(&[("prometheus_address", "127.0.0.1:0")]);
    let address = domain.prometheus_address().unwrap();
    let many_headers = format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(65));
    for (request, status) in [
        (&b"GET /secrets HTTP/1.1\r\n\r\n"[..], "404"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", "405"),
        (b"metrics\r\n\r\n", "400"),
        (b"GET /metrics\r\n\r\n", "400"),
        (b"GET /metrics HTTP/1.1\r\nHost here\r\n\r\n", "400"),
        (many_headers.as_bytes(), "431"),
        (b"GET /metrics FTP/1\n\n", "400"),
        (b"\xff\xfe\x00 / HTTP/1.0\r\n\r\n", "400"),
        (&[b'x'; 5000], "431"),
    ] {
        let response = ask(address, request);
        assert!(response.starts_with(&format!("HTTP/1.0 {status} ")), "{response}");
    }
    // One that sends nothing, one that sends half of it, one that reads nothing, one that leaves.
    let silent = TcpStream::connect(address).unwrap();
    let mut half = TcpStream::connect(address).unwrap();
    half.write_all(b"GET /metr").unwrap();
    let mut deaf = TcpStream::connect(address).unwrap();
    deaf.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let gone = TcpStream::connect(address).unwrap();
    gone.shutdown(Shutdown::Both).unwrap();
    drop(gone);
    assert!(scrape(address).starts_with("HTTP/1.0 200 OK\r\n"));
    drop((silent, half, deaf));
}

#[test]
fn silent_clients_do_not_delay_others() {
    let domain = domain(&[("prometheus_address", "0")]);
    let address = domain.prometheus_address().unwrap();
    let idle: Vec<_> = (0..30).map(|_| TcpStream::connect(address).unwrap()).collect();
    let begun = Instant::now();
    assert!(scrape(address).starts_with("HTTP/1.0 200 OK\r\n"));
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    for mut silent in idle {
        silent.set_read_timeout(Some(LONG)).unwrap();
        // Its time is over soon, whatever comes.
        assert!(matches!(silent.read(&mut [0]), Ok(0) | Err(_)));
    }
    assert!(begun.elapsed() < LONG);
}

#[test]
fn the_exporter_ends_with_the_domain_whatever_its_clients_do() {
    let domain = domain(&[("prometheus_address", "0")]);
    let address = domain.prometheus_address().unwrap();
    let mut slow = TcpStream::connect(address).unwrap();
    slow.write_all(b"GET").unwrap();
    drop(domain);
    // The listener is closed: the port is free.
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn without_the_setting_no_port_is_open_and_a_port_in_use_is_named() {
    assert_eq!(domain(&[]).prometheus_address(), None);
    let first = domain(&[("prometheus_address", "0")]);
    let taken = first.prometheus_address().unwrap().to_string();
    let settings = ringrail::settings::Settings::isolated()
        .insecure(true)
        .set("prometheus_address", &taken)
        .build()
        .unwrap();
    let error = ringrail::Domain::with_settings(settings).unwrap_err().to_string();
    assert!(error.contains(&taken) && error.contains("prometheus_address"), "{error}");
}
