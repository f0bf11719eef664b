//! A stream and a ping-pong over the same endpoints while rails fail and heal.
//!
//! The client streams to the server and has the rails of the lab cut by who holds it. The server
//! watches the *frontier*: how many bytes of the messages, in the order their receives were posted
//! in, are there without a gap. It sees them come, by the stamps in every 4 KiB of a message, and
//! not only whole messages.

mod alone;
pub(crate) mod control;
mod findings;
mod picture;
mod receiver;
mod record;
mod report;
mod schedule;
mod sender;
mod tally;
mod watched;

use ringrail::Envelope;

pub(crate) use self::report::FailoverReport;

use self::control::Control;
use self::findings::Findings;
use self::schedule::Cut;
use self::watched::Watched;
use super::{Side, message};
use crate::output::Report;
use crate::progress::Progress;
use crate::stamp;

const STREAM: Envelope = Envelope::tagged(4);
const PING: Envelope = Envelope::tagged(5);
/// Ends the stream, with the number of its messages.
const STOP: Envelope = Envelope::tagged(6);

/// How long what is under way may take when all rails are healed: a kernel that sent into a
/// blackhole for a second tries again within two.
const END_LIMIT_NS: u64 = 20_000_000_000;

/// Runs one side; the client's report means something.
pub(super) fn run(side: &mut Side<'_>, progress: &Progress) -> Result<Report, String> {
    let rails = side.job.lab_rails.clone();
    let alone_bytes_s = alone::rates(side.link, &rails, side.is_server)?;
    side.barrier()?;
    let before = side.endpoint.counters();
    if side.is_server {
        let seen = receiver::run(side)?;
        let cuts: Vec<Cut> = side.get()?;
        let (record, tally, fault) = (&seen.record, &seen.tally, side.job.fault);
        let findings = Findings::of(record, tally, seen.sent, &cuts, fault, &alone_bytes_s);
        side.link.put(&findings)?;
        let mut report = side.report();
        let verified = report::is_right(&findings);
        side.conclude(&mut report, &before, seen.sent, verified)?;
        return Ok(report);
    }
    let mut control = Control::of_standard_input()?;
    let sent = sender::run(side, &mut control, progress)?;
    side.link.put(&sent.cuts)?;
    let findings: Findings = side.get()?;
    if side.job.plots
        && let Some(course) = &findings.course
    {
        let names: Vec<String> = rails.iter().map(|rail| rail.nic.clone()).collect();
        let title = report::title(side.job.fault, &findings);
        control.write_picture(picture::draw(course, &names, &title)?)?;
    }
    let mut report = side.report();
    report::fill(&mut report, side.job, &findings, &sent, &alone_bytes_s);
    let verified = report::is_right(&findings) && sent.pings.wrong == 0;
    side.conclude(&mut report, &before, sent.messages, verified)?;
    Ok(report)
}

/// Sends a few bytes at once.
fn pong(side: &Side<'_>, bytes: &[u8]) -> Result<(), String> {
    loop {
        match side.endpoint.inject(side.peer, PING, bytes, SendOptions::new()) {
            Ok(()) => return Ok(()),
            Err(error) if error.is_would_block() => {
                side.endpoint.progress().map_err(message)?;
            }
            Err(error) => return Err(error.to_string()),
        }
    }
}

/// How much of a message is there without a gap, of which `offset` bytes have been seen: up to the
/// first 4 KiB whose stamp is missing.
fn seen_until(memory: &Watched, number: u64, mut offset: usize) -> usize {
    let size = memory.span().len;
    while offset < size && u64::from_le(memory.peek(offset)) == stamp::stamp_at(number, offset) {
        offset += stamp::STRIDE;
    }
    offset.min(size)
}
