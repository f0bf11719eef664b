//! Raw floors: nothing of the engine in them, each at its best setting.

mod between;
mod gso;
mod local;
mod tcp;
mod udp;
mod uring;
mod xdp;

use std::time::Instant;

use crate::cli::{Cli, FloorName};
use crate::link::{Job, Link};
use crate::output::{Histogram, Printer, Report, Style, histogram};
use crate::progress::Progress;
use crate::stamp;

/// Iterations of a ping-pong that are not counted, at most as many as those that are.
const WARM_UP: u64 = 200;

/// Ping-pong over `wire`, by calls that send or receive a whole message: the client's half round
/// trips in nanoseconds, and whether all messages came as they were sent.
fn ping_pong<W, E>(
    job: &Job,
    is_server: bool,
    wire: &mut W,
    send: impl Fn(&mut W, &[u8]) -> Result<(), E>,
    receive: impl Fn(&mut W, &mut [u8]) -> Result<(), E>,
) -> Result<(Histogram, bool), E> {
    let size = job.size.max(1);
    let (mut bytes, mut back) = (vec![0; size], vec![0; size]);
    let (mut histogram, mut verified) = (histogram(), true);
    let warm_up = WARM_UP.min(job.iters);
    for number in 0..job.iters + warm_up {
        let start = Instant::now();
        if !is_server {
            stamp::write(&mut bytes, number);
            send(wire, &bytes)?;
        }
        receive(wire, &mut back)?;
        let elapsed = start.elapsed();
        verified &= stamp::check(&back, number);
        if is_server {
            send(wire, &back)?;
        } else if number >= warm_up {
            histogram.saturating_record((elapsed.as_nanos() / 2) as u64);
        }
    }
    Ok((histogram, verified))
}

/// Whether a floor needs no other side.
pub(crate) fn is_local(floor: FloorName) -> bool {
    matches!(
        floor,
        FloorName::Memcpy
            | FloorName::Syscall
            | FloorName::Wake
            | FloorName::ShmLatency
            | FloorName::CmaStream
            | FloorName::ShmStream
    )
}

/// Whether a floor measures bandwidth.
pub(crate) fn is_stream(floor: FloorName) -> bool {
    matches!(floor, FloorName::TcpStream | FloorName::UringStream)
}

/// Longest message of a floor in bytes, if it has a limit.
pub(crate) fn size_max(floor: FloorName) -> Option<usize> {
    match floor {
        FloorName::UdpLatency => Some(udp::SIZE_MAX),
        FloorName::UdpGsoLatency => Some(gso::SIZE_MAX),
        FloorName::XdpLatency => Some(xdp::SIZE_MAX),
        _ => None,
    }
}

/// From which size in bytes on a floor is another one than the one before it in the list.
pub(crate) fn size_min(floor: FloorName) -> usize {
    match floor {
        FloorName::TcpPipelineLatency => tcp::PIECE_BYTES + 1,
        _ => 1,
    }
}

/// Runs a floor that needs no other side.
pub(crate) fn local(cli: &Cli, floor: FloorName) -> Result<(), String> {
    let mut printer = Printer::new(Style::of(cli));
    let measurements = local::measurements(floor);
    let progress = Progress::new(measurements.len() as u64);
    for (size, measure) in measurements {
        progress.begin(cli.test, size);
        let report = measure()?;
        progress.suspend(|| printer.print(&report));
        progress.advance();
    }
    Ok(())
}

/// The floor `wake` from one core to another one, on a thread of its own.
pub(crate) fn wake_between(cores: [usize; 2]) -> Result<Report, String> {
    let cores = cores.map(|id| Some(core_affinity::CoreId { id }));
    let measured = std::thread::spawn(move || local::wake(cores)).join();
    measured.map_err(|_| "the floor wake panicked".to_owned())?
}

/// Runs all rounds of a floor with another side.
pub(crate) fn run(
    link: &mut Link,
    job: &Job,
    floor: FloorName,
    is_server: bool,
    progress: &Progress,
) -> Result<Vec<Report>, String> {
    let mut reports = Vec::new();
    // The first round warms up.
    for round in 0..=job.rounds {
        let mut report = match floor {
            FloorName::UdpLatency => {
                let socket = link.raw_udp()?;
                link.barrier()?;
                udp::latency(&socket, link, job, is_server)?
            }
            FloorName::UdpGsoLatency => {
                let socket = link.raw_udp()?;
                link.barrier()?;
                gso::latency(&socket, job, is_server)?
            }
            FloorName::XdpLatency => {
                let socket = link.raw_udp()?;
                link.barrier()?;
                xdp::latency(&socket, link, job, is_server)?
            }
            _ => by_tcp(link, job, floor, is_server)?,
        };
        link.put(&report.verified)?;
        let theirs: bool = link.get()?;
        report.verified &= theirs;
        if round > 0 {
            progress.keep(&report);
            reports.push(report);
        }
        progress.advance();
    }
    Ok(reports)
}

fn by_tcp(link: &mut Link, job: &Job, floor: FloorName, is_server: bool) -> Result<Report, String> {
    let stream = link.raw(is_server)?;
    tcp::use_unpaced(&stream);
    link.barrier()?;
    match floor {
        FloorName::TcpLatency => tcp::latency(stream, job, is_server, usize::MAX),
        FloorName::TcpPipelineLatency => tcp::latency(stream, job, is_server, tcp::PIECE_BYTES),
        FloorName::TcpStream => tcp::stream(stream, job, is_server),
        FloorName::UringLatency => uring::latency(&stream, job, is_server),
        _ => uring::stream(&stream, job, is_server),
    }
    .map_err(|error| format!("floor: {error}"))
}

/// An empty report of a floor.
fn report(job: &Job, name: &str) -> Report {
    Report {
        test: format!("floor {name}"),
        size_bytes: job.size,
        iterations: job.iters,
        threads: 1,
        lanes: vec!["raw:tcp".to_owned()],
        pause_us: job.pause(),
        ..Report::default()
    }
}

/// Bandwidth of a stream.
fn bandwidth(report: &mut Report, job: &Job, seconds: f64) {
    let bytes = job.size as f64 * job.iters as f64;
    report.bandwidth_mb_s = Some(bytes / seconds.max(1e-9) / 1e6);
}
