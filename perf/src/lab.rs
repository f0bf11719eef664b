//! Who runs where: client, server, both on loopback, both in a lab.

use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use ringrail_tests::lab::{Host, Lab, LabCommand, LabSpec};

use crate::busy::Busy;
use crate::cli::{Cli, FloorName, LabRail, Lanes, Sizes, TestName};
use crate::link::{Job, Link, PORT};
use crate::output::{Printer, Report, Style, median};
use crate::progress::Progress;
use crate::test::failover::control;
use crate::test::one_sided::{ATOMIC_BYTES_MAX, ELEMENT_BYTES};
use crate::test::threads;
use crate::test::{INJECT_BYTES_MAX, LOADED_BYTES_MAX, STAMP_BYTES, load};
use crate::{beside, crossover, floor, info, interrupt, rails, secret, stamp, test};

/// Messages in flight at most: as many as a peer's sends wait for credit by default.
const WINDOW_MAX: usize = 1 << 16;

/// Senders of `incast` at most: each is an engine.
const SENDERS_MAX: usize = 64;

/// Ranks of `alltoall` at most: each is an engine.
const RANKS_MAX: usize = 256;

/// Messages of each sender of `incast` in flight.
const INCAST_WINDOW: usize = 4;
/// Bytes that all of them send together.
const INCAST_BYTES: usize = 256 << 20;

/// Messages of `failover` in flight.
const FAILOVER_WINDOW: usize = 4;

/// Refuses what the command line should not say, before anything is started.
pub(crate) fn check(cli: &Cli) -> Result<(), String> {
    secret::refuse_on_command_line(&cli.settings)?;
    threads::check(cli)?;
    test::settings(cli.lanes, cli.nics.as_deref(), None, None, &cli.settings)?;
    check_window(cli.window)?;
    if let Some(bulk) = cli.bulk_size
        && !(STAMP_BYTES..=load::BULK_BYTES).contains(&bulk)
    {
        return Err(format!("--bulk-size is from {STAMP_BYTES} to {}", load::BULK_BYTES));
    }
    let can_pause = match cli.floor {
        None => true,
        Some(floor) => matches!(floor, FloorName::UdpLatency | FloorName::XdpLatency),
    };
    if cli.pause_us > 0 && !can_pause {
        return Err("--pause-us is of latency, floor udp-latency and floor xdp-latency".to_owned());
    }
    check_sizes(cli)?;
    match (cli.test, cli.floor) {
        (TestName::Floor, None) => {
            return Err("which floor? e.g. `ringrail-perf floor tcp-latency`".to_owned());
        }
        (TestName::Floor, Some(floor)) if floor::is_local(floor) => return Ok(()),
        _ => {}
    }
    if !(1..=SENDERS_MAX).contains(&cli.senders) {
        return Err(format!("--senders is from 1 to {SENDERS_MAX}"));
    }
    if !(2..=RANKS_MAX).contains(&cli.ranks) || !cli.ranks.is_multiple_of(2) {
        return Err(format!("--ranks is an even number from 2 to {RANKS_MAX}"));
    }
    if let Some(spec) = &cli.lab {
        return lab_spec(cli, spec).map(drop);
    }
    if cli.test == TestName::Failover && cli.lab_rails.is_empty() {
        return Err(
            "failover cuts the rails of a lab: --lab rails=2,rate=2gbit:2gbit (root)".to_owned()
        );
    }
    if cli.test == TestName::Rails && cli.lab_rails.is_empty() {
        return Err(
            "rails compares the rails of a lab: --lab rails=2,rate=1gbit:3gbit (root)".to_owned()
        );
    }
    // Neighbours by shared memory are of one host, unless an address says which two processes.
    let is_one_host = cli.loopback || cli.lanes == Lanes::Shm;
    let has_other_side = is_one_host || cli.listen.is_some() || cli.connect.is_some();
    if cli.test != TestName::Info && !has_other_side {
        return Err("say where the other side is: --listen ADDR on the server, --connect ADDR on \
                    the client, or --lab rails=1 (root), or --loopback"
            .to_owned());
    }
    Ok(())
}

pub(crate) fn check_window(window: Option<usize>) -> Result<(), String> {
    match window.is_some_and(|window| !(1..=WINDOW_MAX).contains(&window)) {
        true => Err(format!("--window is from 1 to {WINDOW_MAX}: messages in flight")),
        false => Ok(()),
    }
}

/// A size that a test does not measure would be reported as if it did.
fn check_sizes(cli: &Cli) -> Result<(), String> {
    let Some(Sizes { first, last }) = cli.size else { return Ok(()) };
    match cli.test {
        TestName::Mr if last > INJECT_BYTES_MAX => {
            Err(format!("mr is for small messages, of {INJECT_BYTES_MAX} bytes at most: use bw"))
        }
        TestName::Failover
            if first < stamp::STRIDE || !first.is_multiple_of(stamp::STRIDE) || last > 64 << 20 =>
        {
            Err("failover has messages of 4 KiB to 64 MiB, in steps of 4 KiB: it watches them \
                 arrive by what is in every 4 KiB"
                .to_owned())
        }
        TestName::PutMr if last > INJECT_BYTES_MAX => Err(format!(
            "put-mr is for small puts, of {INJECT_BYTES_MAX} bytes at most: use put-bw"
        )),
        TestName::AtomicLatency
            if last > ATOMIC_BYTES_MAX || first == 0 || !first.is_multiple_of(ELEMENT_BYTES) =>
        {
            Err(format!(
                "atomic-latency is of words of {ELEMENT_BYTES} bytes, {ATOMIC_BYTES_MAX} bytes of \
                 them at most"
            ))
        }
        TestName::PutLatency if first == 0 => {
            Err("a put of no byte changes nothing that could be looked at: 1 byte at least"
                .to_owned())
        }
        TestName::Incast if first <= INJECT_BYTES_MAX => {
            Err(format!("incast is of messages that are pulled, over {INJECT_BYTES_MAX} bytes"))
        }
        TestName::Alltoall if first < STAMP_BYTES || last > INJECT_BYTES_MAX => {
            Err(format!("alltoall is of {STAMP_BYTES} to {INJECT_BYTES_MAX} bytes"))
        }
        TestName::Overlap if first <= INJECT_BYTES_MAX => {
            Err(format!("overlap is of messages that are pulled, over {INJECT_BYTES_MAX} bytes"))
        }
        TestName::DedicatedWake if (first, last) != (ELEMENT_BYTES, ELEMENT_BYTES) => {
            Err(format!("dedicated-wake is of a word of {ELEMENT_BYTES} bytes"))
        }
        TestName::LatencyUnderLoad if first < STAMP_BYTES || last > LOADED_BYTES_MAX => {
            Err(format!(
                "latency-under-load has messages of {STAMP_BYTES} to {LOADED_BYTES_MAX} bytes: \
                 they are numbered, and short beside the load"
            ))
        }
        TestName::Floor if first == 0 => {
            Err("a floor has no empty message: 1 byte at least".to_owned())
        }
        TestName::Floor => match cli.floor.and_then(floor::size_max) {
            Some(most) if last > most => {
                Err(format!("messages of this floor have {most} bytes at most"))
            }
            _ => Ok(()),
        },
        _ => Ok(()),
    }
}

fn lab_spec(cli: &Cli, spec: &str) -> Result<LabSpec, String> {
    let parsed: Result<LabSpec, _> = spec.parse();
    let mut parsed = parsed.map_err(|error| format!("--lab {spec}: {error}"))?;
    // It is the switch that cuts.
    parsed.switch |= cli.test == TestName::Failover;
    Ok(parsed)
}

/// Does what the command line says, which [`check`] has seen.
pub(crate) fn run(cli: &Cli) -> Result<(), String> {
    let busy = (!cli.child && cli.test != TestName::Info).then(Busy::look);
    if let Some(busy) = &busy {
        busy.warn_terminal();
    }
    let done = run_there(cli);
    if done.is_ok() {
        if let Some(busy) = busy {
            busy.warn_reader();
        }
        cli.notes.iter().for_each(|note| eprintln!("ringrail-perf: warning: {note}"));
    }
    done
}

fn run_there(cli: &Cli) -> Result<(), String> {
    if let Some(spec) = &cli.lab {
        return in_lab(cli, spec);
    }
    match (cli.test, cli.floor) {
        (TestName::Info, _) => return info::run(cli),
        (TestName::Floor, Some(floor)) if floor::is_local(floor) => {
            return floor::local(cli, floor);
        }
        _ => {}
    }
    match &cli.listen {
        None => interrupt::print_what_is_there()?,
        Some(_) if cli.child => serve_as_child()?,
        Some(_) => {}
    }
    match (&cli.listen, &cli.connect) {
        (Some(address), _) => serve(&mut Link::listen(address)?),
        (None, Some(address)) => client(cli, &mut Link::connect(address)?),
        (None, None) => on_loopback(cli),
    }
}

/// A server whose client gets what the terminal sends, and that ends with its parent.
fn serve_as_child() -> Result<(), String> {
    let signal = Some(rustix::process::Signal::KILL);
    let done = rustix::process::set_parent_process_death_signal(signal);
    done.map_err(|error| format!("the server would outlive its client: {error}"))?;
    interrupt::leave_to_others()
}

/// Kills the server when the client is done, whatever happens.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // It has ended by itself unless something went wrong.
        if let Ok(None) = self.0.try_wait() {
            let _ = self.0.kill();
        }
        let _ = self.0.wait();
    }
}

fn on_loopback(cli: &Cli) -> Result<(), String> {
    let address = format!("127.0.0.1:{}", free_port()?);
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    if let Some(secret) = secret::fresh(cli.lanes, &cli.settings)? {
        command.env(secret::VARIABLE, secret.to_hex().as_str());
    }
    let server = command
        .args(["latency", "--child", "--listen", &address])
        .stdin(Stdio::null())
        .spawn()
        .map_err(|error| format!("cannot start the server: {error}"))?;
    let _server = Server(server);
    pin(0);
    client(cli, &mut Link::connect(&address)?)
}

fn free_port() -> Result<u16, String> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0");
    let address = listener.and_then(|listener| listener.local_addr());
    address.map(|address| address.port()).map_err(|error| format!("no free port: {error}"))
}

fn in_lab(cli: &Cli, spec: &str) -> Result<(), String> {
    interrupt::leave_to_others()?;
    let lab = Lab::build(&lab_spec(cli, spec)?).map_err(|error| error.to_string())?;
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let address = format!("{}:{PORT}", lab.addr(Host::B, 0));
    let mut server = lab.host(Host::B).command(&program);
    server.args(["latency", "--child", "--listen", &address]);
    let mut client = lab.host(Host::A).command(&program);
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some(at) = arguments.iter().position(|argument| argument == "--lab") {
        arguments.drain(at..at + 2);
    }
    arguments.retain(|argument| !argument.starts_with("--lab="));
    client.args(arguments).args(["--child", "--connect", &address]);
    client.args(["--lab-rails", &rails(&lab)]);
    if lab.spec().decoys {
        client.arg("--lab-decoys");
    }
    let (ours, theirs) = UnixStream::pair().map_err(|error| format!("no sockets: {error}"))?;
    client.stdin(OwnedFd::from(theirs));
    if let Some(secret) = secret::fresh(cli.lanes, &cli.settings)? {
        server.env(secret::VARIABLE, secret.to_hex().as_str());
        client.env(secret::VARIABLE, secret.to_hex().as_str());
    }
    let has_frames = cli.lanes.wants_frames() || cli.floor == Some(FloorName::XdpLatency);
    if !cli.keep_root && !has_frames {
        as_ordinary_user(&mut server);
        as_ordinary_user(&mut client);
    }
    let mut server = server.spawn().map_err(|error| error.to_string())?;
    let mut client = client.spawn().map_err(|error| error.to_string())?;
    interrupt::pass_on_to(Some(client.id()));
    let status = std::thread::scope(|scope| {
        scope.spawn(|| control::serve(&lab, &ours, cli.plot.as_deref()));
        let status = client.wait().map_err(|error| error.to_string());
        interrupt::pass_on_to(None);
        // Ends the other thread; fails only where that has happened.
        let _ = ours.shutdown(Shutdown::Both);
        status
    })?;
    server.kill().map_err(|error| error.to_string())?;
    if status.success() { Ok(()) } else { Err("the client in the lab failed".to_owned()) }
}

/// Without root's rights, and without its home, where settings would be looked for.
pub(crate) fn as_ordinary_user(command: &mut LabCommand) {
    command.drop_privileges().env("HOME", "/nonexistent");
}

/// What a client is told of the lab's rails.
pub(crate) fn rails(lab: &Lab) -> String {
    let rail = |rail| LabRail {
        nic: lab.nic(rail),
        client: lab.addr(Host::A, rail),
        server: lab.addr(Host::B, rail),
    };
    let rails = (0..lab.spec().rails).map(|number| rail(number).to_string());
    rails.collect::<Vec<_>>().join(",")
}

/// Pins to a core if there is one of that number; a lab pins from outside.
fn pin(index: usize) {
    if let Some(cores) = core_affinity::get_core_ids()
        && cores.len() > 1
        && let Some(&core) = cores.get(index % cores.len())
    {
        core_affinity::set_for_current(core);
    }
}

/// Iterations of a round by default, for about half a second: long messages get fewer, because
/// bytes are what they cost.
fn default_iters(cli: &Cli, size: usize) -> u64 {
    let bytes = size.max(1) as u64;
    let is_stream = match cli.test {
        TestName::Bw | TestName::Bibw | TestName::PutBw | TestName::GetBw => true,
        TestName::Floor => cli.floor.is_some_and(floor::is_stream),
        _ => false,
    };
    let iters = match cli.test {
        _ if is_stream => stream_iters(size),
        TestName::Mr | TestName::PutMr => ((1 << 30) / bytes).clamp(1000, 3_000_000),
        TestName::LatencyUnderLoad => 5_000,
        TestName::Failover => return if cli.brief { 5 } else { 50 },
        TestName::Overlap => ((128 << 20) / bytes).max(4),
        TestName::DedicatedWake => 1_000,
        TestName::Alltoall => 400_000,
        TestName::Incast => ((INCAST_BYTES / cli.senders) as u64 / bytes).max(16),
        _ => ping_iters(size),
    };
    // As many messages in all as one thread has.
    let iters = (iters / cli.threads as u64).max(8);
    if cli.brief { (iters / BRIEF).max(8) } else { iters }
}

/// How much less is measured for a first look.
pub(crate) const BRIEF: u64 = 10;

/// Messages of a stream by default.
pub(crate) fn stream_iters(size: usize) -> u64 {
    ((2 << 30) / size.max(1) as u64).clamp(8, 200_000)
}

/// Round trips by default.
pub(crate) fn ping_iters(size: usize) -> u64 {
    ((80 << 20) / size.max(1) as u64).clamp(20, 20_000)
}

/// Bytes of a transfer of `latency-under-load`.
pub(crate) fn bulk_size(cli: &Cli) -> usize {
    cli.bulk_size.unwrap_or(load::BULK_BYTES)
}

/// A measurement for each size.
pub(crate) fn jobs(cli: &Cli) -> Vec<Job> {
    let is_long = match cli.test {
        TestName::Bw | TestName::Bibw | TestName::PutBw | TestName::GetBw => true,
        TestName::Floor => cli.floor.is_some_and(floor::is_stream),
        _ => false,
    };
    let size = match cli.test {
        TestName::Failover => 4 << 20,
        TestName::Incast => 1 << 20,
        TestName::Overlap => 16 << 20,
        _ if is_long => 1 << 20,
        _ => 8,
    };
    let sizes = cli.size.map_or_else(|| vec![size], |sizes| sizes.list());
    let job = |size: usize| Job {
        test: cli.test,
        floor: cli.floor,
        size,
        bulk_size: bulk_size(cli),
        pause_us: cli.pause_us,
        iters: cli.iters.unwrap_or_else(|| default_iters(cli, size)).max(1),
        window: match cli.test {
            TestName::Mr | TestName::PutMr => cli.window.unwrap_or(1024),
            TestName::Failover => cli.window.unwrap_or(FAILOVER_WINDOW),
            TestName::Incast => cli.window.unwrap_or(INCAST_WINDOW),
            _ => stamp::window(cli.window, size),
        },
        buffers: cli.buffers,
        reuse: cli.reuse,
        verify: cli.verify,
        lanes: cli.lanes,
        nics: cli.nics.clone(),
        hint: cli.hint,
        settings: cli.settings.clone(),
        pcap: cli.pcap.clone(),
        rounds: cli.rounds.unwrap_or(if cli.brief { 1 } else { 3 }).max(1),
        fault: cli.fault,
        lab_rails: cli.lab_rails.clone(),
        has_decoys: cli.lab_decoys,
        plots: cli.plot.is_some(),
        senders: cli.senders,
        ranks: cli.ranks,
        threads: cli.threads,
        is_shared: cli.shared,
    };
    sizes.into_iter().map(job).collect()
}

fn client(cli: &Cli, link: &mut Link) -> Result<(), String> {
    match cli.test {
        TestName::Crossover => return crossover::run(cli, link),
        TestName::Rails => return rails::run(cli, link),
        _ => {}
    }
    if let Some(two_sided) = beside::two_sided(cli.test) {
        return beside::run(cli, link, two_sided);
    }
    let mut printer = Printer::new(Style::of(cli));
    let jobs = jobs(cli);
    // The steps of failover are faults.
    let steps = |job: &Job| match job.test {
        TestName::Failover => job.iters,
        _ => job.rounds as u64 + 1,
    };
    let progress = Progress::new(jobs.iter().map(steps).sum());
    for job in jobs {
        link.put(&job)?;
        progress.begin(job.test, job.size);
        progress.offer_rounds(&printer, job.rounds);
        let rounds: Vec<Report> = measure(link, &job, false, &progress)?;
        // A floor has none; those of incast and alltoall are of several engines, and not added up.
        let of_several = matches!(job.test, TestName::Incast | TestName::Alltoall);
        let is_counted = job.test != TestName::Floor && !of_several;
        if job.lanes.wants_datagrams() && is_counted {
            rounds.iter().try_for_each(|round| round.check_datagrams(job.lanes))?;
        }
        let report = median(rounds).ok_or("no round was measured")?;
        progress.suspend(|| printer.print(&report));
        if !report.verified {
            return Err(format!(
                "{} at {} bytes: content was wrong; please report it",
                report.test, report.size_bytes
            ));
        }
    }
    Ok(())
}

fn serve(link: &mut Link) -> Result<(), String> {
    // In a lab the core was set from outside; elsewhere the second one is free.
    pin(1);
    while let Some(job) = link.get_or_end::<Job>()? {
        measure(link, &job, true, &Progress::hidden())?;
    }
    Ok(())
}

fn measure(
    link: &mut Link,
    job: &Job,
    is_server: bool,
    progress: &Progress,
) -> Result<Vec<Report>, String> {
    match (job.test, job.floor) {
        (TestName::Floor, Some(name)) => floor::run(link, job, name, is_server, progress),
        _ => test::run(link, job, is_server, progress),
    }
}
