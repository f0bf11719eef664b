//! Plain sockets.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use super::{bandwidth, ping_pong, report};
use crate::link::Job;
use crate::output::Report;
use crate::stamp;

/// As ringrail's lanes with `tcp_congestion = auto` on a path this short, where pacing (BBR) holds
/// a sender back until a timer fires.
pub(super) fn use_unpaced(stream: &TcpStream) {
    let socket = socket2::SockRef::from(stream);
    if socket.tcp_congestion().is_ok_and(|name| name.starts_with(b"bbr")) {
        // Where the host lets this process have neither, the floor has what the host gives it.
        let _ =
            ["cubic", "reno"].iter().find(|it| socket.set_tcp_congestion(it.as_bytes()).is_ok());
    }
}

/// Reads all of `into`, spinning.
fn read_spinning(stream: &mut TcpStream, into: &mut [u8]) -> io::Result<()> {
    let mut have = 0;
    while have < into.len() {
        match stream.read(&mut into[have..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(got) => have += got,
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Bytes of a call where a message takes several, so that the other side reads while more is
/// written.
pub(super) const PIECE_BYTES: usize = 16 << 10;

/// Writes all of `bytes`, spinning, at most `piece` bytes a call.
fn write_spinning(stream: &mut TcpStream, mut bytes: &[u8], piece: usize) -> io::Result<()> {
    while !bytes.is_empty() {
        match stream.write(&bytes[..piece.min(bytes.len())]) {
            Ok(sent) => bytes = &bytes[sent..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Non-blocking ping-pong, with at most `piece` bytes a call.
pub(super) fn latency(
    mut stream: TcpStream,
    job: &Job,
    is_server: bool,
    piece: usize,
) -> io::Result<Report> {
    stream.set_nonblocking(true)?;
    let (histogram, verified) = ping_pong(
        job,
        is_server,
        &mut stream,
        |stream, bytes| write_spinning(stream, bytes, piece),
        read_spinning,
    )?;
    let name = if piece < usize::MAX { "tcp-pipeline-latency" } else { "tcp-latency" };
    let mut report = report(job, name);
    report.latencies(&histogram);
    report.verified = verified;
    Ok(report)
}

/// One direction, blocking calls, a window of buffers in turn.
pub(super) fn stream(mut stream: TcpStream, job: &Job, is_server: bool) -> io::Result<Report> {
    let mut buffers = vec![vec![0u8; job.size.max(1)]; job.window];
    let mut verified = true;
    let start = Instant::now();
    for number in 0..job.iters {
        let buffer = &mut buffers[number as usize % job.window];
        if is_server {
            stream.read_exact(buffer)?;
            verified &= check(job, buffer, number);
        } else {
            write(job, buffer, number);
            stream.write_all(buffer)?;
        }
    }
    finish(&mut stream, is_server)?;
    let mut report = report(job, "tcp-stream");
    bandwidth(&mut report, job, start.elapsed().as_secs_f64());
    report.verified = verified;
    Ok(report)
}

/// The clock stops when the receiver has everything.
pub(super) fn finish(stream: &mut (impl Read + Write), is_server: bool) -> io::Result<()> {
    if is_server { stream.write_all(&[1]) } else { stream.read_exact(&mut [0]) }
}

pub(super) fn write(job: &Job, bytes: &mut [u8], number: u64) {
    match job.verify {
        true => stamp::fill(bytes, number),
        false => stamp::write(bytes, number),
    }
}

pub(super) fn check(job: &Job, bytes: &[u8], number: u64) -> bool {
    match job.verify {
        true => stamp::check_all(bytes, number),
        false => stamp::check(bytes, number),
    }
}
