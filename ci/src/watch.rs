//! A program watched while it runs: both outputs line by line, a time limit, and what it leaves.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Silence after which a line says that the program still runs.
const SILENCE: Duration = Duration::from_secs(30);

/// When a program that is watched has run for too long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Since it was started. It and what it started are killed then.
    pub(crate) total: Duration,
    /// Without a line of output. What it started is killed then, and it may go on.
    pub(crate) silent: Duration,
}

/// How long processes may take to end by themselves after the program that started them.
const GRACE: Duration = Duration::from_secs(2);

/// How a watched program ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    Success,
    Failure,
    /// The deadline came first; it and what it started were killed.
    TimedOut,
}

/// How a watched program ended, and the CPU time that it took.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Outcome {
    pub(crate) end: End,
    /// With that of the processes that it, or what it started, has waited for.
    pub(crate) cpu: Duration,
}

/// Marks processes by a variable in their environment, which what they start inherits.
#[derive(Clone, Debug)]
pub(crate) struct Mark {
    value: String,
}

impl Mark {
    const KEY: &str = "TEST_OF_RINGRAIL_RUN";

    /// A mark that no other run has.
    pub(crate) fn new() -> Self {
        let since = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
        Self { value: format!("{}-{}", std::process::id(), since.as_nanos()) }
    }

    /// The mark of one job of this run: its processes have both.
    pub(crate) fn of_job(&self, name: &str) -> Self {
        Self { value: format!("{}/{name}", self.value) }
    }

    /// Runs `command` and shows each line of its outputs to `look`.
    pub(crate) fn run(
        &self,
        command: &mut Command,
        limits: Limits,
        look: impl FnMut(&str),
    ) -> Result<Outcome, String> {
        let command_line = format!("{command:?}");
        let spawned = command
            .env(Self::KEY, &self.value)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut child = spawned.map_err(|error| format!("{command_line}: {error}"))?;
        let (sender, lines) = channel();
        pass_on(child.stdout.take(), sender.clone());
        pass_on(child.stderr.take(), sender);
        let program = child.id();
        let in_time = follow(&lines, limits, look, || self.end_hung(program));
        if !in_time {
            let _ = child.kill();
            kill(&self.processes());
        }
        let cpu = cpu_time(program);
        let status = child.wait().map_err(|error| format!("{command_line}: {error}"))?;
        let end = match (in_time, status.success()) {
            (false, _) => End::TimedOut,
            (true, true) => End::Success,
            (true, false) => End::Failure,
        };
        Ok(Outcome { end, cpu })
    }

    /// The same, with all lines passed on and a line now and then that says how far it is: what
    /// `look` returned last.
    pub(crate) fn run_aloud(
        &self,
        command: &mut Command,
        limits: Limits,
        mut look: impl FnMut(&str) -> String,
    ) -> Result<End, String> {
        println!("+ {command:?}");
        let progress = Mutex::new((String::new(), Instant::now()));
        let (start, is_over) = (Instant::now(), AtomicBool::new(false));
        let lock = || progress.lock().unwrap_or_else(|it| it.into_inner());
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    thread::sleep(Duration::from_millis(200));
                    let (text, since) = &mut *lock();
                    if since.elapsed() >= SILENCE {
                        println!("running for {} s; {text}", start.elapsed().as_secs());
                        *since = Instant::now();
                    }
                }
            });
            let end = self.run(command, limits, |line| {
                println!("{line}");
                *lock() = (look(line), Instant::now());
            });
            is_over.store(true, Ordering::Relaxed);
            end.map(|outcome| outcome.end)
        })
    }

    /// Kills what a watched program has started, which may go on with something else, or itself.
    fn end_hung(&self, program: u32) {
        let mut started: Vec<u32> =
            self.processes().into_iter().filter(|&pid| pid != program).collect();
        if started.is_empty() {
            // `cargo run` becomes the program that it runs.
            started.push(program);
        }
        for &pid in &started {
            println!("test: hangs, and is killed: {}", describe(pid));
        }
        kill(&started);
    }

    /// Kills the processes that outlived the runs, and names them.
    pub(crate) fn left_over(&self) -> Vec<String> {
        let deadline = Instant::now() + GRACE;
        loop {
            let left = self.processes();
            if left.is_empty() || Instant::now() >= deadline {
                let names = left.iter().map(|&pid| describe(pid)).collect();
                kill(&left);
                return names;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Processes with this mark.
    fn processes(&self) -> Vec<u32> {
        let wanted = format!("{}={}", Self::KEY, self.value).into_bytes();
        let of_jobs = [&wanted[..], b"/"].concat();
        let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
        entries
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
            .filter(|pid| {
                let variables = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
                variables
                    .split(|&byte| byte == 0)
                    .any(|each| each == wanted || each.starts_with(&of_jobs))
            })
            .collect()
    }
}

/// Named network namespaces, and others that a mount keeps alive.
pub(crate) fn mounted_namespaces() -> Vec<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut points: Vec<String> = mounts
        .lines()
        .filter(|line| line.contains(" - nsfs "))
        .filter_map(|line| line.split(' ').nth(4).map(str::to_owned))
        .collect();
    points.sort_unstable();
    points.dedup();
    points
}

/// Sends the lines of `from` to the channel, on a thread of its own.
fn pass_on(from: Option<impl Read + Send + 'static>, lines: Sender<String>) {
    let Some(from) = from else { return };
    thread::spawn(move || {
        // A test may print what is not UTF-8.
        for line in BufReader::new(from).split(b'\n').map_while(Result::ok) {
            if lines.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                return;
            }
        }
    });
}

/// Shows all lines to `look` until both outputs end; false when the time is over before. Calls
/// `end_hung` each time that nothing came for too long.
fn follow(
    lines: &Receiver<String>,
    limits: Limits,
    mut look: impl FnMut(&str),
    end_hung: impl Fn(),
) -> bool {
    let start = Instant::now();
    let mut last = start;
    loop {
        let left = limits.total.saturating_sub(start.elapsed());
        let quiet = limits.silent.saturating_sub(last.elapsed());
        match lines.recv_timeout(left.min(quiet)) {
            Ok(line) => {
                look(&line);
                last = Instant::now();
            }
            Err(RecvTimeoutError::Disconnected) => return true,
            Err(RecvTimeoutError::Timeout) if start.elapsed() >= limits.total => return false,
            Err(RecvTimeoutError::Timeout) => {
                if last.elapsed() >= limits.silent {
                    end_hung();
                    last = Instant::now();
                }
            }
        }
    }
}

fn describe(pid: u32) -> String {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let line = String::from_utf8_lossy(&line).replace('\0', " ");
    format!("{pid} ({})", line.trim())
}

/// Waits for a child to end, and returns its CPU time with that of what it has waited for. The
/// kernel keeps it until the child is waited for.
fn cpu_time(child: u32) -> Duration {
    /// In 1/100 s: `USER_HZ`, the same on all architectures that are supported.
    const TICK: Duration = Duration::from_millis(10);
    loop {
        let stat = fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
        // The name may have spaces; the state comes after it.
        let Some((_, fields)) = stat.rsplit_once(") ") else { return Duration::ZERO };
        let fields: Vec<&str> = fields.split(' ').collect();
        if fields.first() == Some(&"Z") {
            // Its user and system time, and those of its children.
            let ticks = fields.iter().skip(11).take(4).filter_map(|it| it.parse::<u32>().ok());
            return TICK * ticks.sum();
        }
        thread::sleep(Duration::from_millis(2));
    }
}

fn kill(pids: &[u32]) {
    if pids.is_empty() {
        return;
    }
    let mut command = Command::new("sh");
    command.args(["-c", "kill -KILL \"$@\"", "kill"]).args(pids.iter().map(u32::to_string));
    // One that has just ended is no failure.
    let _ = command.stderr(Stdio::null()).status();
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(20);
    const USUAL: Limits = Limits { total: SOON, silent: SOON };

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn both_outputs_are_seen() {
        let mut seen = Vec::new();
        let mut command = shell("echo one; echo two >&2; printf '\\377three'; exit 3");
        let end = Mark::new().run(&mut command, USUAL, |line| seen.push(line.to_owned()));
        seen.sort();
        assert_eq!(end.map(|it| it.end), Ok(End::Failure));
        assert_eq!(seen, ["one", "two", "\u{fffd}three"]);
    }

    #[test]
    fn a_time_limit_ends_whole_trees() {
        let mark = Mark::new();
        let start = Instant::now();
        let mut command = shell("setsid sleep 1000 & sleep 1000");
        let limits = Limits { total: Duration::from_millis(300), ..USUAL };
        let end = mark.of_job("one").run(&mut command, limits, |_| ());
        assert_eq!(end.map(|it| it.end), Ok(End::TimedOut));
        assert!(start.elapsed() < SOON);
        assert_eq!(mark.left_over(), [""; 0]);
    }

    #[test]
    fn cpu_time_is_that_of_the_program_and_its_children() {
        let count = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done";
        let both = shell(&format!("{count}; sh -c '{count}'"));
        let of = |mut command: Command| Mark::new().run(&mut command, USUAL, |_| ()).unwrap().cpu;
        assert!(of(both) >= Duration::from_millis(20));
        assert!(of(shell("sleep 0.3")) < Duration::from_millis(200));
    }

    #[test]
    fn a_silent_program_is_killed_and_its_parent_goes_on() {
        let mark = Mark::new();
        let limits = Limits { silent: Duration::from_millis(300), ..USUAL };
        let (start, mut seen) = (Instant::now(), Vec::new());
        // In the background, for a shell becomes the last program that it starts.
        let mut command = shell("sleep 1000 & wait $! 2>/dev/null; echo \"ended by $?\"");
        let end = mark.run(&mut command, limits, |line| seen.push(line.to_owned()));
        assert_eq!(end.map(|it| it.end), Ok(End::Success));
        assert_eq!(seen, ["ended by 137"]);
        let end = mark.run(&mut shell("exec sleep 1000"), limits, |_| ());
        assert_eq!(end.map(|it| it.end), Ok(End::Failure));
        assert!(start.elapsed() < SOON);
    }

    #[test]
    fn a_process_that_outlives_its_job_is_named_and_killed() {
        let (mark, other) = (Mark::new(), Mark::new());
        // A process that is about to become another program has no marks for a moment.
        let mut command = shell(
            "setsid sleep 1003 >/dev/null 2>&1 & \
             until grep -q 1003 /proc/$!/cmdline; do sleep 0.01; done",
        );
        let end = mark.of_job("one").run(&mut command, USUAL, |_| ());
        assert_eq!(end.map(|it| it.end), Ok(End::Success));
        assert_eq!(other.processes(), [0; 0]);
        assert_eq!(mark.of_job("on").processes(), [0; 0]);
        let left = mark.left_over();
        assert!(matches!(left.as_slice(), [one] if one.contains("sleep 1003")), "{left:?}");
        assert_eq!(mark.left_over(), [""; 0]);
    }
}
