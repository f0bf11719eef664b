//! Plain UDP sockets.

use std::io::{self, ErrorKind};
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use super::report;
use crate::link::{Job, Link};
use crate::output::{Report, histogram};
use crate::stamp;

/// What one datagram holds at most over IPv4, in bytes: 65535 less the headers of IP and UDP.
pub(super) const SIZE_MAX: usize = 65_507;
/// Iterations that are not counted.
const WARM_UP: u64 = 200;
/// Empty receives between two looks at the clock, or at the control connection: none of either
/// is in an exchange that loses nothing.
const SPINS: u32 = 1 << 14;
/// After which a datagram is taken for lost.
const RESEND: Duration = Duration::from_millis(50);
/// Datagrams without an answer after which the client gives up: 2 s.
const RESENDS_MAX: u32 = 40;

/// Ping-pong of datagrams.
pub(super) fn latency(
    socket: &UdpSocket,
    link: &Link,
    job: &Job,
    is_server: bool,
) -> Result<Report, String> {
    match is_server {
        true => answer(socket, link, job),
        false => ask(socket, job),
    }
}

/// Sends a datagram, or a train of them, spinning.
pub(super) fn send(socket: &UdpSocket, bytes: &[u8]) -> Result<(), String> {
    loop {
        match socket.send(bytes) {
            // Both go whole or not at all.
            Ok(_) => return Ok(()),
            Err(error) if is_transient(&error) => std::hint::spin_loop(),
            Err(error) => return Err(failed(&error)),
        }
    }
}

/// A datagram into `into`, if one comes within [`SPINS`] attempts; its length.
fn receive(socket: &UdpSocket, into: &mut [u8]) -> Result<Option<usize>, String> {
    for _ in 0..SPINS {
        match socket.recv(into) {
            Ok(length) => return Ok(Some(length)),
            Err(error) if is_transient(&error) => std::hint::spin_loop(),
            Err(error) => return Err(failed(&error)),
        }
    }
    Ok(None)
}

pub(super) fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

pub(super) fn failed(error: &io::Error) -> String {
    format!("floor: the UDP socket failed: {error}; is the other side still running?")
}

/// The client's side. What is lost is sent again, so that it counts in the slowest samples.
fn ask(socket: &UdpSocket, job: &Job) -> Result<Report, String> {
    let size = job.size.max(1);
    // One byte more, or a longer datagram would be taken for a whole one.
    let (mut bytes, mut back) = (vec![0; size], vec![0; size + 1]);
    let mut histogram = histogram();
    let mut verified = true;
    let (mut sent, mut lost) = (0, 0);
    for number in 0..job.iters + WARM_UP {
        job.compute();
        let start = Instant::now();
        stamp::write(&mut bytes, number);
        send(socket, &bytes)?;
        let mut resends = 0;
        loop {
            match receive(socket, &mut back)? {
                Some(length) if length == size && stamp::check(&back[..size], number) => break,
                // The second answer to a message that was sent twice.
                Some(length) if length == size && is_late(&back[..size], number) => {}
                Some(_) => {
                    verified = false;
                    break;
                }
                None if start.elapsed() < RESEND * (resends + 1) => {}
                None if resends == RESENDS_MAX => {
                    return Err(format!(
                        "floor: no answer by UDP in {RESENDS_MAX} attempts: does a firewall on \
                         the way drop it? TCP passes, as the control connection shows"
                    ));
                }
                None => {
                    resends += 1;
                    send(socket, &bytes)?;
                }
            }
        }
        let elapsed = start.elapsed();
        sent += 1 + u64::from(resends);
        lost += u64::from(resends);
        if number >= WARM_UP {
            histogram.saturating_record((elapsed.as_nanos() / 2) as u64);
        }
    }
    let mut report = report(job, "udp-latency");
    report.lanes = vec!["raw:udp".to_owned()];
    report.latencies(&histogram);
    (report.datagrams_sent, report.datagrams_lost) = (Some(sent), Some(lost));
    report.verified = verified;
    Ok(report)
}

/// Whether these bytes belong to a message before `number`, of those that can still be on the way.
fn is_late(bytes: &[u8], number: u64) -> bool {
    (number.saturating_sub(u64::from(RESENDS_MAX))..number).any(|old| stamp::check(bytes, old))
}

/// The server's side: sends back what comes, until the client says that it has everything.
fn answer(socket: &UdpSocket, link: &Link, job: &Job) -> Result<Report, String> {
    let size = job.size.max(1);
    let mut back = vec![0; size + 1];
    let mut verified = true;
    let total = job.iters + WARM_UP;
    let mut number = 0;
    loop {
        let Some(length) = receive(socket, &mut back)? else {
            if !link.is_ready()? {
                continue;
            }
            if number < total {
                return Err(format!("floor: the client left after {number} of {total} datagrams"));
            }
            break;
        };
        let bytes = &back[..length];
        if length == size && stamp::check(bytes, number) {
            number += 1;
        } else {
            // The client sends again what it takes for lost: then its answer was.
            verified &= length == size && is_late(bytes, number);
        }
        send(socket, bytes)?;
    }
    let mut report = report(job, "udp-latency");
    report.verified = verified;
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Buffers, Fault, FloorName, Lanes, Reuse, TestName};

    #[test]
    fn only_earlier_messages_are_late() {
        let mut bytes = [0; 8];
        for (of, is_old) in [(6, true), (7, false), (8, false), (0, true)] {
            stamp::write(&mut bytes, of);
            assert_eq!(is_late(&bytes, 7), is_old, "{of}");
        }
        assert!(!is_late(&bytes[..4], 0), "nothing was before the first");
    }

    /// The other side loses every hundredth datagram, and doubles the answer to the next.
    #[test]
    fn what_is_lost_is_asked_again_and_counted() {
        let near = UdpSocket::bind("127.0.0.1:0").unwrap();
        let far = UdpSocket::bind("127.0.0.1:0").unwrap();
        near.connect(far.local_addr().unwrap()).unwrap();
        far.connect(near.local_addr().unwrap()).unwrap();
        near.set_nonblocking(true).unwrap();
        far.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        let other = std::thread::spawn(move || {
            let mut bytes = [0; 64];
            let mut count = 0;
            // It ends when nothing comes any more.
            while let Ok(length) = far.recv(&mut bytes) {
                count += 1;
                let answers = match count % 100 {
                    0 => 0,
                    1 => 2,
                    _ => 1,
                };
                for _ in 0..answers {
                    far.send(&bytes[..length]).unwrap();
                }
            }
            count
        });
        let job = Job {
            test: TestName::Floor,
            floor: Some(FloorName::UdpLatency),
            size: 16,
            iters: 200,
            window: 1,
            buffers: Buffers::Heap,
            bulk_size: 0,
            pause_us: 0,
            reuse: Reuse::Window,
            verify: false,
            lanes: Lanes::Auto,
            nics: None,
            hint: None,
            settings: Vec::new(),
            pcap: None,
            rounds: 1,
            fault: Fault::Blackhole,
            lab_rails: Vec::new(),
            has_decoys: false,
            plots: false,
            senders: 1,
            ranks: 2,
            threads: 1,
            is_shared: false,
        };
        let report = ask(&near, &job).unwrap();
        let seen: u64 = other.join().unwrap();
        assert!(report.verified);
        assert!(report.datagrams_lost >= Some(4), "{report:?}");
        assert_eq!(report.datagrams_sent, Some(seen), "{report:?}");
        assert_eq!(report.datagrams_sent, report.datagrams_lost.map(|lost| 400 + lost));
        assert!(report.latency_us_p999 >= Some(25_000.0), "{report:?}");
    }
}
