//! Random runs of whole engines in a simulated world: `cargo xtask swarm` runs this. What options
//! there are, [`OPTIONS`] says.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use ringrail::swarm::{BUGS, Report, bug_name, run_planted, run_seed, run_throughput};
use rustix::time::{ClockId, clock_gettime};

/// Time to run when nothing else is said.
const SECONDS: u64 = 10;
/// Of so many seeds one runs twice, to see that it repeats.
const REPEAT_EVERY: u64 = 10;
/// Which seed found each bug when this was last written, tried before all others: a bug and a
/// number in each line. `--planted` says what is not true any more.
const FOUND_BY: &str = include_str!("swarm-planted.txt");

/// Shown to whoever gives another one.
const OPTIONS: &str = "options, each with a number:
  --seconds N     runs new seeds for that long
  --seeds N       runs so many seeds, from 0 or --seed on
  --seed S        the first seed; alone: runs just that one, twice, to see that it repeats
  --jobs J        threads, as many as cores if it is not given
  --throughput N  N sends and receives without faults, by streams and then by datagrams, on one
                  thread: measures the simulator
  --planted N     says which of N seeds, from 0 or --seed on, finds each of the bugs that can be
                  planted; the one that is known to, and those that found another one, come first;
                  fails if one is not found
  --bug B         plants just that one: with --planted, or with --seed to see what it does
RUST_LOG=ringrail=debug and a single --seed: also what the engines say of it";

#[derive(Default)]
struct Options {
    seconds: Option<u64>,
    seeds: Option<u64>,
    seed: Option<u64>,
    jobs: Option<u64>,
    throughput: Option<u64>,
    planted: Option<u64>,
    bug: Option<u64>,
}

fn options() -> Result<Options, String> {
    let mut options = Options::default();
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let place = match name.as_str() {
            "--seconds" => &mut options.seconds,
            "--seeds" => &mut options.seeds,
            "--seed" => &mut options.seed,
            "--jobs" => &mut options.jobs,
            "--planted" => &mut options.planted,
            "--bug" => &mut options.bug,
            "--throughput" => &mut options.throughput,
            _ => return Err(format!("there is no option {name}\n\n{OPTIONS}")),
        };
        let value = arguments.next().and_then(|value| value.parse().ok());
        *place = Some(value.ok_or_else(|| format!("{name} takes a number\n\n{OPTIONS}"))?);
    }
    Ok(options)
}

#[derive(Default)]
struct Total {
    runs: AtomicU64,
    messages: AtomicU64,
    faults: AtomicU64,
    virtual_ns: AtomicU64,
}

impl Total {
    fn add(&self, report: &Report) {
        self.runs.fetch_add(1, Ordering::Relaxed);
        self.messages.fetch_add(report.messages, Ordering::Relaxed);
        self.faults.fetch_add(report.faults, Ordering::Relaxed);
        self.virtual_ns.fetch_add(report.virtual_ns, Ordering::Relaxed);
    }

    fn line(&self, elapsed: Duration) -> String {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        format!(
            "{} seeds, {} messages, {} faults and rare branches, {:.0} s of virtual time, \
             in {:.1} s",
            get(&self.runs),
            get(&self.messages),
            get(&self.faults),
            get(&self.virtual_ns) as f64 / 1e9,
            elapsed.as_secs_f64()
        )
    }
}

/// One run; a panic of the engine is a failure like every other.
fn try_seed(seed: u64) -> Result<Report, String> {
    std::panic::catch_unwind(|| run_seed(seed)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()));
        Err(format!("a panic: {}", text.unwrap_or_default()))
    })
}

fn complain(seed: u64, what: &str) {
    eprintln!("seed {seed} fails {what}\nreplay it: cargo xtask swarm --seed {seed}");
}

/// One seed, twice.
fn replay(seed: u64) -> ExitCode {
    let (first, second) = (try_seed(seed), try_seed(seed));
    match (&first, &second) {
        (Ok(first), Ok(second)) if first.trace_hash == second.trace_hash => {
            println!("seed {seed} holds: {first:?}");
            ExitCode::SUCCESS
        }
        (Err(what), _) => {
            complain(seed, what);
            ExitCode::FAILURE
        }
        _ => {
            complain(seed, &format!("to repeat: {first:?}, then {second:?}"));
            ExitCode::FAILURE
        }
    }
}

/// The seed that is known to find a bug.
fn known_to_find(bug: &str) -> Option<u64> {
    let mut pairs = FOUND_BY.lines().filter_map(|line| line.split_once(' '));
    pairs.find_map(|(name, seed)| if name == bug { seed.trim().parse().ok() } else { None })
}

/// Plants the bugs, or `only` that one, each on one of `jobs` threads; each must be found within
/// `seeds` seeds.
fn planted(from: u64, seeds: u64, only: Option<u64>, jobs: u64) -> ExitCode {
    let (next, is_missed) = (AtomicU64::new(0), AtomicBool::new(false));
    // What shows one bug often shows another one, too.
    let telling: Mutex<Vec<u64>> = Mutex::default();
    let telling = || telling.lock().unwrap_or_else(|it| it.into_inner());
    std::panic::set_hook(Box::new(|_| {}));
    let work = || {
        loop {
            let bug = next.fetch_add(1, Ordering::Relaxed);
            if bug >= BUGS as u64 {
                return;
            }
            if only.is_some_and(|only| bug != only) {
                continue;
            }
            let name = bug_name(bug as usize);
            let hint = known_to_find(&name);
            let known = telling().clone();
            let others = (from..from + seeds).filter(|seed| !known.contains(seed));
            let mut all = hint.into_iter().chain(known.iter().copied()).chain(others);
            let seen_by = all.find(|&seed| finds(seed, bug as usize));
            let change = if seen_by == hint { "" } else { "; swarm-planted.txt says another one" };
            println!("bug {bug} {name}: seen by seed {seen_by:?}{change}");
            match seen_by {
                None => is_missed.store(true, Ordering::Relaxed),
                Some(seed) if !telling().contains(&seed) => telling().push(seed),
                Some(_) => {}
            }
        }
    };
    std::thread::scope(|scope| (0..jobs).for_each(|_| drop(scope.spawn(work))));
    if is_missed.into_inner() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Whether a seed fails with a bug, and holds without it: of one that fails anyhow nothing is
/// learnt about the bug.
fn finds(seed: u64, bug: usize) -> bool {
    let caught = std::panic::catch_unwind(|| run_planted(seed, bug).1);
    caught.map_or(true, |result| result.is_err()) && try_seed(seed).is_ok()
}

/// CPU time of this process so far.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// Measures the simulator without faults, once with streams alone and once with datagrams.
fn throughput(actions: u64) -> ExitCode {
    for by_datagrams in [false, true] {
        let (start, cpu_start) = (Instant::now(), cpu_time());
        let report = match run_throughput(1, actions as usize, by_datagrams) {
            Ok(report) => report,
            Err(what) => {
                eprintln!("{what}");
                return ExitCode::FAILURE;
            }
        };
        let (wall_s, cpu_s) =
            (start.elapsed().as_secs_f64(), (cpu_time() - cpu_start).as_secs_f64());
        let messages = report.messages as f64;
        println!(
            "by {}: {} messages in {cpu_s:.2} s of CPU time ({:.0} per second, {:.2} µs each) and \
             {wall_s:.2} s by the clock ({:.0} per second); {} turns, {} ms of virtual time",
            if by_datagrams { "datagrams" } else { "streams" },
            report.messages,
            messages / cpu_s,
            1e6 * cpu_s / messages,
            messages / wall_s,
            report.turns,
            report.virtual_ns / 1_000_000,
        );
    }
    ExitCode::SUCCESS
}

fn main() -> ExitCode {
    let options = match options() {
        Ok(options) => options,
        Err(error) => {
            eprintln!("swarm: {error}");
            return ExitCode::from(2);
        }
    };
    if let Some(bug) = options.bug
        && (bug >= BUGS as u64 || options.planted.is_none() && options.seed.is_none())
    {
        eprintln!("swarm: --bug takes a number below {BUGS}, beside --planted or --seed");
        return ExitCode::from(2);
    }
    if let Some(actions) = options.throughput {
        return throughput(actions);
    }
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
    let jobs = options.jobs.unwrap_or(cores).max(1);
    if let Some(seeds) = options.planted {
        return planted(options.seed.unwrap_or(0), seeds, options.bug, jobs);
    }
    let is_single = options.seconds.is_none() && options.seeds.is_none();
    if let (Some(seed), true) = (options.seed, is_single) {
        tracing_subscriber::fmt()
            .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
            .with_writer(std::io::stderr)
            .without_time()
            .init();
        if let Some(bug) = options.bug {
            let (name, result) = run_planted(seed, bug as usize);
            println!("{name}: {result:?}");
            return ExitCode::SUCCESS;
        }
        return replay(seed);
    }
    let first = options.seed.unwrap_or_else(|| {
        let since = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
        if options.seeds.is_some() { 0 } else { since.as_secs() << 24 }
    });
    let seconds = options.seconds.or(if options.seeds.is_none() { Some(SECONDS) } else { None });
    swarm(first, seconds.map(Duration::from_secs), options.seeds.unwrap_or(u64::MAX), jobs)
}

fn swarm(first: u64, limit: Option<Duration>, seeds: u64, jobs: u64) -> ExitCode {
    let (start, total) = (Instant::now(), Total::default());
    let (next, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let failure = Mutex::new(None);
    let bar = if std::io::stderr().is_terminal() {
        let length = limit.map_or(seeds, |limit| limit.as_secs());
        let style = ProgressStyle::with_template("{elapsed} {wide_bar} {pos}/{len} {msg}");
        ProgressBar::new(length).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
    } else {
        ProgressBar::hidden()
    };
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let is_late = limit.is_some_and(|limit| start.elapsed() >= limit);
                    if number >= seeds || is_late {
                        break;
                    }
                    let seed = first.wrapping_add(number);
                    let mut result = try_seed(seed);
                    if let (Ok(report), 0) = (&result, number % REPEAT_EVERY)
                        && let again = try_seed(seed)
                        && again.as_ref().map(|it| it.trace_hash) != Ok(report.trace_hash)
                    {
                        result = Err(format!("to repeat: {report:?}, then {again:?}"));
                    }
                    match result {
                        Ok(report) => total.add(&report),
                        Err(what) => {
                            is_over.store(true, Ordering::Relaxed);
                            let mut failure = failure.lock().unwrap_or_else(|it| it.into_inner());
                            failure.get_or_insert((seed, what));
                        }
                    }
                    let done = limit.map_or(number, |_| start.elapsed().as_secs());
                    bar.set_position(done);
                    bar.set_message(total.line(start.elapsed()));
                }
            });
        }
    });
    bar.finish_and_clear();
    let failure = failure.into_inner().unwrap_or_else(|it| it.into_inner());
    let verdict = if failure.is_none() { "holds" } else { "fails" };
    println!("swarm {verdict}: {} (first seed {first})", total.line(start.elapsed()));
    match failure {
        Some((seed, what)) => {
            complain(seed, &what);
            ExitCode::FAILURE
        }
        None => ExitCode::SUCCESS,
    }
}
