//! How the client of a lab cuts its rails: it has no rights, so it asks the process that holds the
//! lab, over a pair of sockets that is its standard input.
//!
//! Orders and answers are lines of JSON. An answer has the time of the monotonic clock, which is
//! one for all processes and namespaces of a machine.

use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;

use ringrail_tests::lab::{BROWN_OUT, Host, Lab};
use serde::{Deserialize, Serialize};

use crate::cli::Fault;

/// What is to happen to a rail.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Order {
    pub(super) rail: u8,
    pub(super) fault: Fault,
    pub(super) stage: Stage,
}

/// Where in a fault an order stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Stage {
    /// It begins. A fault of one way is that of what the client sends.
    Cut,
    /// The same, one way: what the server sends.
    CutBack,
    /// It is over.
    Heal,
}

/// What goes to the process that holds the lab.
#[derive(Serialize, Deserialize)]
enum Line {
    Order(Order),
    /// A picture, for the file of `--plot`.
    Picture(String),
}

/// What it answers: when it was done, or why not.
type Answer = Result<u64, String>;

/// Time of the monotonic clock in nanoseconds.
pub(super) fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the time goes into `now`; this clock is always there.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

fn text(error: impl std::fmt::Display) -> String {
    format!("the process that holds the lab does not answer: {error}")
}

/// The client's end.
pub(crate) struct Control {
    stream: UnixStream,
    /// The beginning of a line.
    begun: Vec<u8>,
}

impl Control {
    /// Standard input of the client of a lab.
    pub(crate) fn of_standard_input() -> Result<Self, String> {
        let stream = std::io::stdin().as_fd().try_clone_to_owned().map_err(text)?;
        let stream = UnixStream::from(stream);
        stream.set_nonblocking(true).map_err(text)?;
        Ok(Self { stream, begun: Vec::new() })
    }

    /// Asks; the answer comes to [`Self::answer`]. A few lines wait in the socket.
    pub(super) fn ask(&mut self, order: Order) -> Result<(), String> {
        self.put(&Line::Order(order))
    }

    /// The time of an order that was carried out, oldest first, if the answer is there.
    pub(super) fn answer(&mut self) -> Result<Option<u64>, String> {
        loop {
            if let Some(end) = self.begun.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.begun.drain(..=end).collect();
                return serde_json::from_slice::<Answer>(&line).map_err(text)?.map(Some);
            }
            let mut bytes = [0; 256];
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err(text("it has gone")),
                Ok(length) => self.begun.extend_from_slice(&bytes[..length]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(text(error)),
            }
        }
    }

    /// Has a picture written, and waits for that.
    pub(crate) fn write_picture(&mut self, picture: String) -> Result<(), String> {
        self.stream.set_nonblocking(false).map_err(text)?;
        self.put(&Line::Picture(picture))?;
        self.answer().map(drop)
    }

    fn put(&mut self, line: &Line) -> Result<(), String> {
        let mut line = serde_json::to_string(line).map_err(text)?;
        line.push('\n');
        self.stream.write_all(line.as_bytes()).map_err(text)
    }
}

/// Carries out what the client asks for until it ends.
pub(crate) fn serve(lab: &Lab, stream: &UnixStream, plot: Option<&str>) {
    // Both cores are busy with what is measured; a cut is not to wait for them.
    // SAFETY: changes the calling thread's priority only. Without it, cuts come a little later.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) };
    let lines = BufReader::new(stream).lines().map_while(Result::ok);
    for line in lines {
        let answer: Answer = match serde_json::from_str(&line) {
            Ok(Line::Order(order)) => carry_out(lab, order),
            Ok(Line::Picture(picture)) => write(plot, &picture),
            Err(error) => Err(format!("`{line}`: {error}")),
        };
        let Ok(mut answer) = serde_json::to_string(&answer) else { return };
        answer.push('\n');
        let mut to = stream;
        if to.write_all(answer.as_bytes()).is_err() {
            // The client has ended.
            return;
        }
    }
}

fn carry_out(lab: &Lab, order: Order) -> Answer {
    let Order { rail, fault, stage } = order;
    let ways = [Host::A, Host::B];
    // Before, so that nothing that stood still because of it began earlier.
    let at = now_ns();
    let done = match (fault, stage) {
        (Fault::LinkDown, Stage::Heal) => lab.link_up(Host::A, rail),
        (Fault::LinkDown, _) => lab.link_down(Host::A, rail),
        (_, Stage::Heal) => lab.heal(rail),
        (Fault::OneWay, Stage::Cut) => lab.blackhole_one_way(rail, Host::A),
        (Fault::OneWay, Stage::CutBack) => lab.blackhole_one_way(rail, Host::B),
        (Fault::BrownOut, _) => {
            ways.into_iter().try_for_each(|from| lab.set_loss(rail, from, BROWN_OUT))
        }
        (Fault::Blackhole | Fault::Flap | Fault::AllRails, _) => lab.blackhole(rail),
    };
    done.map(|()| at).map_err(|error| error.to_string())
}

fn write(plot: Option<&str>, picture: &str) -> Answer {
    let Some(plot) = plot else { return Ok(now_ns()) };
    std::fs::write(plot, picture).map(|()| now_ns()).map_err(|error| format!("{plot}: {error}"))
}
