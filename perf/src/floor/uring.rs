//! io_uring on one TCP connection.

use std::io;
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::Instant;

use io_uring::{IoUring, cqueue, opcode, types};

use super::tcp::{check, finish, write};
use super::{bandwidth, report};
use crate::link::Job;
use crate::output::{Report, histogram};
use crate::stamp;

/// `IORING_ENTER_GETEVENTS`.
const GETEVENTS: u32 = 1;

fn ring() -> io::Result<IoUring> {
    let mut builder = IoUring::builder();
    builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
    builder.build(64)
}

/// Submits and runs what is deferred, without waiting.
fn enter(ring: &mut IoUring) -> io::Result<()> {
    let staged = ring.submission().len() as u32;
    // SAFETY: no argument is passed.
    unsafe { ring.submitter().enter::<libc::sigset_t>(staged, 0, GETEVENTS, None) }.map(drop)
}

/// Spins until a completion is there.
fn completion(ring: &mut IoUring) -> io::Result<(i32, u32)> {
    loop {
        if let Some(entry) = ring.completion().next() {
            return Ok((entry.result(), entry.flags()));
        }
        let queue = ring.submission();
        if !queue.is_empty() || queue.taskrun() {
            drop(queue);
            enter(ring)?;
        }
    }
}

fn push(ring: &mut IoUring, entry: &io_uring::squeue::Entry) -> io::Result<()> {
    // SAFETY: callers keep the memory until the last completion of the entry, which they wait
    // for before they return; where they fail before that, the memory is never given back.
    unsafe { ring.submission().push(entry) }.map_err(io::Error::other)
}

fn result(value: i32) -> io::Result<usize> {
    usize::try_from(value).map_err(|_| io::Error::from_raw_os_error(-value))
}

/// Polled ping-pong on a registered file.
pub(super) fn latency(stream: &TcpStream, job: &Job, is_server: bool) -> io::Result<Report> {
    let size = job.size.max(1);
    let mut memory = [vec![0u8; size], vec![0u8; size]];
    let done = ping_pong(stream, job, is_server, &mut memory);
    if done.is_err() {
        // A request may be outstanding, and the ring ends some time after it was closed.
        std::mem::forget(memory);
    }
    done
}

fn ping_pong(
    stream: &TcpStream,
    job: &Job,
    is_server: bool,
    [bytes, back]: &mut [Vec<u8>; 2],
) -> io::Result<Report> {
    let mut ring = ring()?;
    ring.submitter().register_files(&[stream.as_raw_fd()])?;
    let socket = types::Fixed(0);
    let size = bytes.len();
    let mut histogram = histogram();
    let mut verified = true;
    for number in 0..job.iters + 200 {
        let start = Instant::now();
        stamp::write(bytes, number);
        let length = size as u32;
        let receive =
            opcode::Recv::new(socket, back.as_mut_ptr(), length).flags(libc::MSG_WAITALL).build();
        let mut waits = 1;
        if !is_server {
            let send = opcode::Send::new(socket, bytes.as_ptr(), length).build();
            push(&mut ring, &send)?;
            waits += 1;
        }
        push(&mut ring, &receive)?;
        for _ in 0..waits {
            if result(completion(&mut ring)?.0)? != size {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        let elapsed = start.elapsed();
        verified &= stamp::check(back, number);
        if is_server {
            let send = opcode::Send::new(socket, back.as_ptr(), length).build();
            push(&mut ring, &send)?;
            result(completion(&mut ring)?.0)?;
        } else if number >= 200 {
            histogram.saturating_record((elapsed.as_nanos() / 2) as u64);
        }
    }
    let mut report = report(job, "uring-latency");
    report.latencies(&histogram);
    report.verified = verified;
    Ok(report)
}

/// One direction: registered SEND_ZC against recv with MSG_WAITALL, one send outstanding.
pub(super) fn stream(stream: &TcpStream, job: &Job, is_server: bool) -> io::Result<Report> {
    let size = job.size.max(1);
    let mut memory = vec![0u8; size * job.window];
    let mut verified = true;
    let mut stream = stream;
    let mut start = Instant::now();
    let mut report = report(job, "uring-stream");
    if is_server {
        for number in 0..job.iters {
            let at = number as usize % job.window * size;
            let buffer = &mut memory[at..at + size];
            let mut have = 0;
            while have < size {
                // SAFETY: the pointer and the length are those of the rest of `buffer`.
                let got = unsafe {
                    let rest = buffer.as_mut_ptr().add(have).cast();
                    libc::recv(stream.as_raw_fd(), rest, size - have, libc::MSG_WAITALL)
                };
                match usize::try_from(got) {
                    Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                    Ok(got) => have += got,
                    Err(_) => return Err(io::Error::last_os_error()),
                }
            }
            verified &= check(job, buffer, number);
        }
    } else {
        match send_all(stream, job, &mut memory, &mut report) {
            Ok(begun) => start = begun,
            Err(error) => {
                // As above.
                std::mem::forget(memory);
                return Err(error);
            }
        }
    }
    finish(&mut stream, is_server)?;
    bandwidth(&mut report, job, start.elapsed().as_secs_f64());
    report.verified = verified;
    Ok(report)
}

fn send_all(
    stream: &TcpStream,
    job: &Job,
    memory: &mut [u8],
    report: &mut Report,
) -> io::Result<Instant> {
    let size = job.size.max(1);
    let mut ring = ring()?;
    ring.submitter().register_files(&[stream.as_raw_fd()])?;
    let whole = libc::iovec { iov_base: memory.as_mut_ptr().cast(), iov_len: memory.len() };
    // SAFETY: `memory` outlives the ring, which is dropped at the end of this function.
    let mut registered = unsafe { ring.submitter().register_buffers(&[whole]) }.is_ok();
    // The kernel gives locked memory of an earlier ring back a little after that is closed.
    for _ in 0..100 {
        if registered {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
        // SAFETY: as above.
        registered = unsafe { ring.submitter().register_buffers(&[whole]) }.is_ok();
    }
    let index = registered.then_some(0u16);
    report.zero_copy = Some(if registered { "on" } else { "on, unregistered" }.to_owned());
    // Notifications that are outstanding, by buffer of the window.
    let mut pending = vec![0u32; job.window];
    let mut chunks = Calibration::new();
    let start = Instant::now();
    for number in 0..job.iters {
        let slot = number as usize % job.window;
        while pending[slot] > 0 {
            let (_, flags, of) = tagged(&mut ring)?;
            debug_assert!(cqueue::notif(flags), "only notifications are outstanding here");
            pending[of] -= 1;
        }
        write(job, &mut memory[slot * size..(slot + 1) * size], number);
        let (mut sent, mut is_alone) = (0, false);
        while sent < size {
            let length = chunks.length().min(size - sent);
            let base = memory[slot * size + sent..].as_ptr();
            let entry = opcode::SendZc::new(types::Fixed(0), base, length as u32)
                .buf_index(index)
                .flags(libc::MSG_WAITALL)
                .build()
                .user_data(slot as u64);
            let begin = Instant::now();
            push(&mut ring, &entry)?;
            loop {
                let (value, flags, of) = tagged(&mut ring)?;
                if cqueue::notif(flags) {
                    pending[of] -= 1;
                    continue;
                }
                pending[slot] += u32::from(cqueue::more(flags));
                match result(value) {
                    // What is lent is locked memory, of which there is a limit: all has to come
                    // back before it is too little for one call.
                    Err(error) if is_short_of_memory(&error) && !is_alone => {
                        take_back(&mut ring, &mut pending)?;
                        is_alone = true;
                    }
                    got => {
                        let got = got?;
                        chunks.note(got, begin.elapsed().as_nanos() as u64);
                        sent += got;
                        is_alone = false;
                    }
                }
                break;
            }
        }
    }
    take_back(&mut ring, &mut pending)?;
    report.lanes = vec![format!("raw:tcp, {} KiB per call", chunks.length() / 1024)];
    Ok(start)
}

/// Waits for all notifications.
fn take_back(ring: &mut IoUring, pending: &mut [u32]) -> io::Result<()> {
    while pending.iter().any(|&count| count > 0) {
        let (_, _, of) = tagged(ring)?;
        pending[of] -= 1;
    }
    Ok(())
}

fn is_short_of_memory(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOMEM | libc::ENOBUFS))
}

fn tagged(ring: &mut IoUring) -> io::Result<(i32, u32, usize)> {
    loop {
        if let Some(entry) = ring.completion().next() {
            return Ok((entry.result(), entry.flags(), entry.user_data() as usize));
        }
        let queue = ring.submission();
        if !queue.is_empty() || queue.taskrun() {
            drop(queue);
            enter(ring)?;
        }
    }
}

/// Tries 64, 128 and 256 KiB per call and keeps the fastest.
struct Calibration {
    cost: [(u64, u64); 3],
    turns: usize,
}

const LENGTHS: [usize; 3] = [64 << 10, 128 << 10, 256 << 10];
const TURNS: usize = 96;

impl Calibration {
    fn new() -> Self {
        Self { cost: [(0, 1); 3], turns: 0 }
    }

    fn length(&self) -> usize {
        if self.turns < TURNS {
            return LENGTHS[self.turns % 3];
        }
        let best = (0..3).min_by_key(|&at| {
            let (bytes, ns) = self.cost[at];
            ns.saturating_mul(1 << 20) / bytes.max(1)
        });
        LENGTHS[best.unwrap_or(1)]
    }

    fn note(&mut self, bytes: usize, ns: u64) {
        if self.turns < TURNS {
            let cost = &mut self.cost[self.turns % 3];
            *cost = (cost.0 + bytes as u64, cost.1 + ns);
            self.turns += 1;
        }
    }
}
