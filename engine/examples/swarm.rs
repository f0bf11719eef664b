//! Random runs of whole engines in a simulated world: `cargo xtask swarm` runs this. [`Options`]
//! lists the options.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::IsTerminal;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use libtest_mimic::{Arguments, Trial};
use ringrail::swarm::{
    BUGS, FIGURES, KNOWN_SEEDS, Report, WIRE_VERSION, bug_name, by_long_ways, run_logged,
    run_planted, run_seed, run_throughput,
};
use rustix::time::{ClockId, clock_gettime};

/// Time to run unless options say otherwise.
const SECONDS: u64 = 10;
/// Of so many seeds one runs twice, to see that it repeats.
const REPEAT_EVERY: u64 = 10;
/// Seeds whose wire hashes are written unless another number is given.
const HASHED_SEEDS: u64 = 1500;
/// Seeds that are named when their wire hashes differ.
const SEEDS_NAMED: usize = 10;
/// What the wire version stands behind in a file of wire hashes.
const VERSION_WORDS: &str = "wire version ";
/// A planted bug is searched for until so many seeds have found it.
const QUICKEST_OF: usize = 3;
/// A seed that finds each bug, tried before all others: a bug and a number in each line.
/// `--planted` prints which lines are not true any more.
const FOUND_BY: &str = include_str!("swarm-planted.txt");

/// Random runs of whole engines in a simulated world.
#[derive(Parser)]
#[command(
    name = "cargo xtask swarm",
    after_help = "RUST_LOG=ringrail=debug and a single --seed: also what the engines say of it"
)]
struct Options {
    /// Runs new seeds for that long [default: 10, if no other option determines what to run]
    #[arg(long, value_name = "N")]
    seconds: Option<u64>,
    /// Runs so many seeds, from 0 or --seed on
    #[arg(long, value_name = "N")]
    seeds: Option<u64>,
    /// The first seed; alone: runs just that one, twice, to see that it repeats
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Threads [default: as many as cores]
    #[arg(long, value_name = "J")]
    jobs: Option<u64>,
    /// Measures throughput, latency and fairness of simulated links, in virtual time, and fails
    /// where a figure is not what it has to be; those with this text in their names
    #[arg(
        long,
        value_name = "TEXT",
        num_args = 0..=1,
        conflicts_with_all = ["seconds", "seeds", "seed"]
    )]
    figures: Option<Option<String>>,
    /// Runs the seeds that failed once
    #[arg(long, conflicts_with_all = ["seconds", "seeds", "seed", "figures", "planted", "compare"])]
    known_seeds: bool,
    /// N sends and receives without faults, by streams and then by datagrams, on one thread:
    /// measures the simulator
    #[arg(long, value_name = "N", exclusive = true)]
    throughput: Option<u64>,
    /// Names a seed that finds each of the bugs that can be planted: the quickest of the first few
    /// among the one that is known to (in swarm-planted.txt) and N seeds from 0 or --seed on; with
    /// 0 only the known one runs; fails if a bug is not found
    #[arg(long, value_name = "N", conflicts_with_all = ["seconds", "seeds"])]
    planted: Option<u64>,
    /// Plants just that one: with --planted, or with --seed to see what it does
    #[arg(long, value_name = "B", value_parser = clap::value_parser!(u64).range(..BUGS as u64))]
    bug: Option<u64>,
    /// Runs --seeds seeds (1500 unless that is given) from 0 or --seed on, and writes the hash of
    /// what is sent in each
    #[arg(long, value_name = "FILE", conflicts_with_all = ["seconds", "planted", "bug"])]
    wire_hashes: Option<PathBuf>,
    /// Runs the seeds of such a file, and fails if what is sent in them is not the same
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["seconds", "seeds", "seed", "planted", "bug", "wire_hashes"]
    )]
    compare: Option<PathBuf>,
    /// Runs --seed S, and writes a line for everything that is sent; the first line that differs
    /// from that of another build shows what it sends instead
    #[arg(
        long,
        value_name = "FILE",
        requires = "seed",
        conflicts_with_all = ["seconds", "seeds", "planted", "bug", "wire_hashes", "compare"]
    )]
    wire_log: Option<PathBuf>,
    /// Takes no fast path, where each one is taken mostly otherwise; with --compare: what is sent
    /// does not depend on them
    #[arg(long, conflicts_with_all = ["figures", "planted", "bug"])]
    long_ways: bool,
}

/// Whether runs take no fast path.
static LONG_WAYS: AtomicBool = AtomicBool::new(false);

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
    caught(|| by_chosen_ways(|| run_seed(seed)))
}

/// One run, without fast paths if the options say so.
fn by_chosen_ways<T>(run: impl FnOnce() -> T) -> T {
    if LONG_WAYS.load(Ordering::Relaxed) { by_long_ways(run) } else { run() }
}

fn caught(run: impl FnOnce() -> Result<Report, String>) -> Result<Report, String> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
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

/// One seed, and a line in a file for everything that is sent.
fn log_wire(seed: u64, file: &Path) -> ExitCode {
    let done = File::create(file).map_err(|error| format!("cannot write {file:?}: {error}"));
    match done.and_then(|log| caught(|| by_chosen_ways(|| run_logged(seed, log)))) {
        Ok(report) => {
            println!("seed {seed} holds: {report:?}");
            ExitCode::SUCCESS
        }
        Err(what) => {
            complain(seed, &what);
            ExitCode::FAILURE
        }
    }
}

/// The seed that is known to find a bug.
fn known_to_find(bug: &str) -> Option<u64> {
    let mut pairs = FOUND_BY.lines().filter_map(|line| line.split_once(' '));
    pairs.find_map(|(name, seed)| if name == bug { seed.trim().parse().ok() } else { None })
}

/// Plants the bugs, or `only` that one, each on one of `jobs` threads; each must be found by the
/// seed that is known to, or within `seeds` seeds. Names the quickest of the first few that find
/// it.
fn planted(from: u64, seeds: u64, only: Option<u64>, jobs: u64) -> ExitCode {
    let (next, is_missed) = (AtomicU64::new(0), AtomicBool::new(false));
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
            let others = (from..from + seeds).filter(|&seed| Some(seed) != hint);
            let all = hint.into_iter().chain(others);
            let found = all.filter_map(|seed| Some((time_to_find(seed, bug as usize)?, seed)));
            match found.take(QUICKEST_OF).min() {
                Some((time, seed)) => {
                    let change =
                        if Some(seed) == hint { "" } else { "; swarm-planted.txt names another" };
                    println!("{name} {seed} in {:.3} s{change}", time.as_secs_f64());
                }
                None => {
                    println!("{name}: not found");
                    is_missed.store(true, Ordering::Relaxed);
                }
            }
        }
    };
    std::thread::scope(|scope| (0..jobs).for_each(|_| drop(scope.spawn(work))));
    if is_missed.into_inner() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// How long a seed runs until it fails with a bug; `None` if it holds with it, or fails without:
/// of one that fails anyhow nothing is learnt about the bug.
fn time_to_find(seed: u64, bug: usize) -> Option<Duration> {
    let start = Instant::now();
    let caught = catch_unwind(|| run_planted(seed, bug).1);
    let time = start.elapsed();
    (caught.map_or(true, |result| result.is_err()) && try_seed(seed).is_ok()).then_some(time)
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

/// The figures, each as a test.
fn figures(filter: Option<String>, jobs: Option<u64>) -> ExitCode {
    let trial = |&(name, figure): &(&str, fn())| {
        Trial::test(name, move || {
            figure();
            Ok(())
        })
    };
    as_tests(filter, jobs, FIGURES.iter().map(trial).collect())
}

/// The seeds that failed once, each list as a test.
fn known_seeds(jobs: Option<u64>) -> ExitCode {
    let trial = |&(name, seeds): &(&str, &'static [u64])| {
        Trial::test(name, move || {
            for &seed in seeds {
                try_seed(seed).map_err(|what| format!("seed {seed}: {what}"))?;
            }
            Ok(())
        })
    };
    as_tests(None, jobs, KNOWN_SEEDS.iter().map(trial).collect())
}

fn as_tests(filter: Option<String>, jobs: Option<u64>, trials: Vec<Trial>) -> ExitCode {
    let test_threads = jobs.map(|jobs| jobs as usize);
    let arguments = Arguments { filter, test_threads, ..Arguments::default() };
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn main() -> ExitCode {
    let options = Options::parse();
    if options.bug.is_some() && options.planted.is_none() && options.seed.is_none() {
        eprintln!("swarm: --bug goes with --planted or --seed");
        return ExitCode::from(2);
    }
    if let Some(filter) = options.figures {
        return figures(filter, options.jobs);
    }
    if options.known_seeds {
        return known_seeds(options.jobs);
    }
    if let Some(actions) = options.throughput {
        return throughput(actions);
    }
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
    let jobs = options.jobs.unwrap_or(cores).max(1);
    if let Some(seeds) = options.planted {
        return planted(options.seed.unwrap_or(0), seeds, options.bug, jobs);
    }
    LONG_WAYS.store(options.long_ways, Ordering::Relaxed);
    let first = options.seed.unwrap_or(0);
    if let Some(file) = &options.wire_hashes {
        return write_hashes(file, first, options.seeds.unwrap_or(HASHED_SEEDS), jobs);
    }
    if let Some(file) = &options.compare {
        return compare_hashes(file, jobs);
    }
    let is_single = options.seconds.is_none() && options.seeds.is_none();
    if let (Some(seed), true) = (options.seed, is_single) {
        tracing_subscriber::fmt()
            .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
            .with_writer(std::io::stderr)
            .without_time()
            .init();
        if let Some(file) = &options.wire_log {
            return log_wire(seed, file);
        }
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
    let seeds = first..first.saturating_add(options.seeds.unwrap_or(u64::MAX));
    run_all(seeds, seconds.map(Duration::from_secs), jobs).close()
}

/// What became of many seeds.
struct Outcome {
    /// The first of those that failed, and how.
    failure: Option<(u64, String)>,
    /// The wire hash of each that held.
    hashes: BTreeMap<u64, u64>,
    /// What was done.
    line: String,
}

impl Outcome {
    /// Prints how it went.
    fn close(self) -> ExitCode {
        let verdict = if self.failure.is_none() { "holds" } else { "fails" };
        println!("swarm {verdict}: {}", self.line);
        match self.failure {
            Some((seed, what)) => {
                complain(seed, &what);
                ExitCode::FAILURE
            }
            None => ExitCode::SUCCESS,
        }
    }
}

/// Runs seeds on `jobs` threads until there are no more, one fails, or the limit has passed.
fn run_all(seeds: impl Iterator<Item = u64> + Send, limit: Option<Duration>, jobs: u64) -> Outcome {
    let (start, total) = (Instant::now(), Total::default());
    let is_over = AtomicBool::new(false);
    let (failure, hashes) = (Mutex::new(None), Mutex::new(BTreeMap::new()));
    let bar = if std::io::stderr().is_terminal() {
        let count = seeds.size_hint().0 as u64;
        let length = limit.map_or(count, |limit| limit.as_secs());
        let style = ProgressStyle::with_template("{elapsed} {wide_bar} {pos}/{len} {msg}");
        ProgressBar::new(length).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
    } else {
        ProgressBar::hidden()
    };
    let mut seeds = seeds.enumerate().peekable();
    let first = seeds.peek().map_or(0, |&(_, seed)| seed);
    let seeds = Mutex::new(seeds);
    let work = || {
        while !is_over.load(Ordering::Relaxed) {
            let is_late = limit.is_some_and(|limit| start.elapsed() >= limit);
            let next = if is_late { None } else { locked(&seeds).next() };
            let Some((number, seed)) = next else { break };
            let mut result = try_seed(seed);
            if let (Ok(report), 0) = (&result, number as u64 % REPEAT_EVERY)
                && let again = try_seed(seed)
                && again.as_ref().map(hashes_of) != Ok(hashes_of(report))
            {
                result = Err(format!("to repeat: {report:?}, then {again:?}"));
            }
            match result {
                Ok(report) => {
                    total.add(&report);
                    locked(&hashes).insert(seed, report.wire_hash);
                }
                Err(what) => {
                    is_over.store(true, Ordering::Relaxed);
                    locked(&failure).get_or_insert((seed, what));
                }
            }
            bar.set_position(limit.map_or(number as u64, |_| start.elapsed().as_secs()));
            bar.set_message(total.line(start.elapsed()));
        }
    };
    std::thread::scope(|scope| (0..jobs).for_each(|_| drop(scope.spawn(work))));
    bar.finish_and_clear();
    let line = format!("{} (first seed {first})", total.line(start.elapsed()));
    let failure = failure.into_inner().unwrap_or_else(|it| it.into_inner());
    let hashes = hashes.into_inner().unwrap_or_else(|it| it.into_inner());
    Outcome { failure, hashes, line }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|it| it.into_inner())
}

/// What has to be the same when a seed runs again.
fn hashes_of(report: &Report) -> (u64, u64) {
    (report.trace_hash, report.wire_hash)
}

// ---- Wire hashes ----

/// Writes the wire hashes of seeds.
fn write_hashes(file: &Path, first: u64, seeds: u64, jobs: u64) -> ExitCode {
    let outcome = run_all(first..first.saturating_add(seeds), None, jobs);
    if outcome.failure.is_none() {
        let mut text = format!(
            "# What engines send in each of these seeds of the swarm, as a hash: see \
             engine/docs/internals/testing.md.\n{VERSION_WORDS}{WIRE_VERSION}\n"
        );
        for (seed, hash) in &outcome.hashes {
            let _ = writeln!(text, "{seed} {hash:016x}");
        }
        if let Err(error) = std::fs::write(file, text) {
            eprintln!("swarm: cannot write {file:?}: {error}");
            return ExitCode::FAILURE;
        }
    }
    outcome.close()
}

/// The wire version and the hashes in a file, or the number of a line that is neither.
fn parse_hashes(text: &str) -> Result<(u16, BTreeMap<u64, u64>), usize> {
    let (mut version, mut hashes) = (0, BTreeMap::new());
    for (number, line) in (1_usize..).zip(text.lines()).filter(|(_, line)| !line.starts_with('#')) {
        if let Some(number_of) = line.strip_prefix(VERSION_WORDS) {
            version = number_of.parse().map_err(|_| number)?;
            continue;
        }
        let (seed, hash) = line.split_once(' ').ok_or(number)?;
        let hash = u64::from_str_radix(hash, 16).map_err(|_| number)?;
        hashes.insert(seed.parse().map_err(|_| number)?, hash);
    }
    Ok((version, hashes))
}

/// Runs the seeds of a file, and compares.
fn compare_hashes(file: &Path, jobs: u64) -> ExitCode {
    let text = std::fs::read_to_string(file).map_err(|error| error.to_string());
    let parsed = text.and_then(|text| {
        parse_hashes(&text).map_err(|line| format!("line {line} is no seed with its hash"))
    });
    let (version, known) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => {
            eprintln!("swarm: {}: {error}", file.display());
            return ExitCode::FAILURE;
        }
    };
    let first = known.keys().next().copied().unwrap_or(0);
    let anew = format!(
        "to write it anew: cargo xtask swarm --wire-hashes {} --seed {first} --seeds {}",
        file.display(),
        known.len()
    );
    if version != WIRE_VERSION {
        eprintln!(
            "swarm: {} is of wire version {version}, not {WIRE_VERSION}\n{anew}",
            file.display()
        );
        return ExitCode::FAILURE;
    }
    let outcome = run_all(known.keys().copied(), None, jobs);
    if outcome.failure.is_some() {
        return outcome.close();
    }
    let differ = known.iter().filter(|(seed, hash)| outcome.hashes.get(seed) != Some(hash));
    let differ: Vec<u64> = differ.map(|(&seed, _)| seed).collect();
    if differ.is_empty() {
        return outcome.close();
    }
    println!("swarm differs: {}", outcome.line);
    let named: Vec<String> = differ.iter().take(SEEDS_NAMED).map(u64::to_string).collect();
    eprintln!(
        "engines send other bytes than {} records in {} of {} seeds, the first of them {}\n\
         what they send: cargo xtask swarm --wire-log FILE --seed {}\n{anew}",
        file.display(),
        differ.len(),
        known.len(),
        named.join(", "),
        differ[0],
    );
    ExitCode::FAILURE
}
