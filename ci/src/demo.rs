//! What ringrail looks like on this host.

use std::fs;
use std::process::Command;
use std::time::Duration;

use crate::run::{cargo, is_root, root, run as execute, run_within};
use crate::setup;

/// How long the processors are watched before anything is measured.
const WATCHED: Duration = Duration::from_secs(1);
/// How long each of the three programs may take. On an idle host the longest takes half of it.
const LIMIT: Duration = Duration::from_secs(90);
/// Two ranks spin. With less than this left for them they wait for the scheduler's time slices.
const PROCESSORS: f64 = 1.5;

/// The heat equation on two ranks, then latency and bandwidth.
pub(crate) fn run() -> Result<(), String> {
    setup::run()?;
    let folder = root().join("target/demo");
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let picture = folder.join("heat.png");
    let picture = picture.to_string_lossy();
    // What the compiler uses is not counted as use by others, and its time is no part of a limit.
    let profile = ["build", "--release", "--quiet"];
    execute(cargo(&profile).args(["-p", "ringrail", "--example", "heat"]))?;
    execute(cargo(&profile).args(["-p", "ringrail-perf"]))?;
    let busy = busy();
    let warn = || {
        if let Some(busy) = &busy {
            println!("{busy}");
        }
    };
    warn();
    // On a busy host a step or a round trip takes a time slice of the scheduler: few show that it
    // works.
    let few: [&[&str]; 2] = match busy {
        Some(_) => [&["--steps", "200"], &["--iters", "20"]],
        None => [&[], &[]],
    };
    let heat = ["run", "--release", "--quiet", "-p", "ringrail", "--example", "heat", "--"];
    let limit = LIMIT.as_secs().to_string();
    let ranks = ["--ranks", "2", "--seconds", &limit, "--output", &picture];
    execute(cargo(&heat).args(ranks).args(few[0]))?;
    let place: &[&str] = if is_root() { &["--lab", "rails=1"] } else { &["--loopback"] };
    let perf = ["run", "--release", "--quiet", "-p", "ringrail-perf", "--"];
    // A first look: a table of all sizes has to end while somebody watches.
    let measure = |what: &[&str]| {
        let mut command = cargo(&perf);
        bounded(command.args(what).args(place).args(few[1]))
    };
    measure(&["latency", "--brief", "--size", "8:65536"])?;
    measure(&["bw", "--brief", "--size", "4096:4194304"])?;
    println!("the final field of the heat equation: {picture}");
    warn();
    Ok(())
}

/// Runs a measurement for [`LIMIT`] at the most. One that takes longer is ended and no failure.
fn bounded(command: &mut Command) -> Result<(), String> {
    if !run_within(command, LIMIT)? {
        println!(
            "stopped after {} s: other programs use the processors of this host, and the rest of \
             this table would not end soon",
            LIMIT.as_secs()
        );
    }
    Ok(())
}

/// Why figures of this host would mean nothing; `None`: nothing is in their way.
fn busy() -> Option<String> {
    let stat = || fs::read_to_string("/proc/stat").ok().and_then(|text| Ticks::of(&text));
    let before = stat()?;
    std::thread::sleep(WATCHED);
    let free = stat()?.free_since(&before)?;
    let allowed = std::thread::available_parallelism().map_or(1, usize::from);
    complaint(free, allowed)
}

/// What is wrong with so many free processors, of which this process may use `allowed`.
fn complaint(free: f64, allowed: usize) -> Option<String> {
    let cause = match allowed {
        1 => "this process may use one processor, and two ranks need one each".to_owned(),
        _ if free < PROCESSORS => format!(
            "other programs leave {free:.1} processors of this host free, and two ranks need one \
             each"
        ),
        _ => return None,
    };
    Some(format!(
        "busy host: {cause}. Times, latencies and bandwidths of this run say how the scheduler \
         shares processors out, not how fast ringrail is: run it again on an idle host"
    ))
}

/// What the processors of a host did so far, in ticks of the kernel.
#[derive(Debug)]
struct Ticks {
    idle: u64,
    all: u64,
    processors: usize,
}

impl Ticks {
    /// From the text of `/proc/stat`.
    fn of(text: &str) -> Option<Self> {
        let sum = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
        // user, nice, system, idle, iowait, irq, softirq, steal; what follows is in user already.
        let ticks: Vec<u64> = sum.split_whitespace().take(8).flat_map(str::parse).collect();
        let is_processor = |line: &&str| {
            line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|c: char| c.is_numeric()))
        };
        Some(Self {
            idle: ticks.get(3)? + ticks.get(4)?,
            all: ticks.iter().sum(),
            processors: text.lines().filter(is_processor).count(),
        })
    }

    /// How many processors did nothing since `before`, on average.
    fn free_since(&self, before: &Self) -> Option<f64> {
        let all = self.all.checked_sub(before.all).filter(|&all| all > 0)?;
        let idle = self.idle.saturating_sub(before.idle);
        Some(idle as f64 / all as f64 * self.processors as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "cpu  100 0 100 1000 50 0 0 0 90 0\ncpu0 50 0 50 500 25 0 0 0 45 0\n\
                          cpu1 50 0 50 500 25 0 0 0 45 0\nintr 5\n";

    #[test]
    fn free_processors_are_those_that_idled() {
        let before = Ticks::of(BEFORE).unwrap();
        // 200 ticks: 50 of work, 10 stolen, 140 of idling.
        let after = Ticks::of(&BEFORE.replace(
            "cpu  100 0 100 1000 50 0 0 0", //
            "cpu  140 0 110 1100 90 0 0 10",
        ))
        .unwrap();
        assert!((after.free_since(&before).unwrap() - 1.4).abs() < 1e-9);
        assert_eq!(before.free_since(&before), None);
        assert!(Ticks::of("intr 5\n").is_none());
    }

    #[test]
    fn a_busy_host_is_named_with_the_cause_and_the_cure() {
        assert_eq!(complaint(1.9, 2), None);
        let busy = complaint(0.2, 2).unwrap();
        assert!(busy.contains("leave 0.2 processors") && busy.contains("idle host"), "{busy}");
        assert!(complaint(7.9, 1).unwrap().contains("may use one processor"));
    }

    #[test]
    fn a_program_is_ended_at_its_limit() {
        let start = std::time::Instant::now();
        let ended = run_within(Command::new("sleep").arg("600"), Duration::from_millis(50));
        assert_eq!(ended, Ok(false));
        assert!(start.elapsed() < Duration::from_secs(300));
        assert_eq!(run_within(&mut Command::new("true"), Duration::from_secs(300)), Ok(true));
        assert!(run_within(&mut Command::new("false"), Duration::from_secs(300)).is_err());
    }
}
