//! What libtest prints, read line by line: how many tests passed, and which failed with what words.

use std::collections::BTreeSet;
use std::fmt;

use crate::watch::End;

/// What a line of a test that cannot run here starts with; its name and the reason follow.
const SKIP_MARKS: [&str; 2] = ["RINGRAIL-SKIP: ", "SKIPPED "];

/// What libtest says of a test that only others start: it is part of those, and none itself.
const PART_MARK: &str = " ... ignored, started by other tests";

/// What the swarm's line begins with when all seeds held.
const SWARM_MARK: &str = "swarm holds: ";

/// What libtest reports of a test that takes long: `test NAME has been running for over 60 s...`.
const SLOW_MARK: &str = " has been running for over ";

/// Lines that are kept of what a failed test printed: a panic and what led to it.
const LINES_OF_A_TEST: usize = 40;

/// Lines that are kept of a command that failed without a failed test.
const LINES_OF_A_COMMAND: usize = 25;

/// What one command, or several, reported so far.
#[derive(Default)]
pub(crate) struct Count {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) ignored: usize,
    /// Among them those that are parts of other tests.
    parts: usize,
    /// Lines of tests that returned early, which libtest takes for passed.
    pub(crate) skips: BTreeSet<String>,
    /// Of each test that failed, its heading and the end of what it printed.
    pub(crate) failures: Vec<String>,
    /// The same of tests that passed when they ran once more.
    pub(crate) flaky: Vec<String>,
    /// The names of the failed tests, as libtest lists them.
    names: Vec<String>,
    /// libtest ran to its end: its closing line was there.
    is_closed: bool,
    /// Tests of which libtest reported that they run for long, while none of them has ended.
    slow: BTreeSet<String>,
    /// The part of the output that is being read.
    section: Section,
    /// The last lines of all, for a command that fails without a failed test.
    last: Vec<String>,
}

/// libtest prints `failures:` twice: before what the failed tests printed, and before their names.
#[derive(Default, PartialEq)]
enum Section {
    #[default]
    Progress,
    Outputs(Vec<Output>),
    Names,
}

/// What one failed test printed.
#[derive(Default, PartialEq)]
struct Output {
    heading: String,
    lines: Vec<String>,
}

impl Count {
    /// Takes a line of the output.
    pub(crate) fn look(&mut self, line: &str) {
        if let Some(rest) = line.strip_prefix("test result: ") {
            self.passed += number_before(rest, " passed");
            self.failed += number_before(rest, " failed");
            self.ignored += number_before(rest, " ignored");
            self.is_closed = true;
            self.section = Section::Progress;
        }
        if let Some(rest) = line.strip_prefix("test ") {
            match (rest.split_once(SLOW_MARK), rest.split_once(" ... ")) {
                (Some((name, _)), _) => drop(self.slow.insert(name.to_owned())),
                (None, Some((name, _))) => drop(self.slow.remove(name)),
                (None, None) => {}
            }
        }
        if line.ends_with(PART_MARK) {
            // Of those that the closing line calls ignored.
            self.parts += 1;
        }
        // All its seeds are one test; a failure is that of the command.
        self.passed += usize::from(line.starts_with(SWARM_MARK));
        // libtest may have begun a line of its own on the other side of the pipe.
        if let Some(at) = SKIP_MARKS.iter().find_map(|mark| line.find(mark)) {
            self.skips.insert(line[at..].trim_end().to_owned());
        }
        self.look_for_failures(line);
        keep_last(&mut self.last, line, LINES_OF_A_COMMAND);
    }

    fn look_for_failures(&mut self, line: &str) {
        let heading = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" ----"));
        match (&mut self.section, line, heading) {
            (Section::Outputs(outputs), "failures:", _) => {
                self.failures.extend(outputs.iter().map(Output::to_string));
                self.section = Section::Names;
            }
            (Section::Progress, "failures:", _) => self.section = Section::Outputs(Vec::new()),
            (Section::Outputs(outputs), _, Some(heading)) => {
                outputs.push(Output { heading: heading.to_owned(), lines: Vec::new() });
            }
            (Section::Outputs(outputs), ..) => {
                if let Some(output) = outputs.last_mut() {
                    keep_last(&mut output.lines, line, LINES_OF_A_TEST);
                }
            }
            (Section::Names, ..) => {
                self.names.extend(line.strip_prefix("    ").map(str::to_owned));
            }
            (Section::Progress, ..) => {}
        }
    }

    /// Takes how the process ended that is called `name`: one that fails without a failed test has
    /// failed itself. One without libtest is a test, unless its output had tests.
    pub(crate) fn close(&mut self, end: End, name: &str, is_libtest: bool) {
        for failure in &mut self.failures {
            *failure = format!("{name}: {failure}");
        }
        if end != End::Success && !self.is_only_of_tests(end) {
            let lines = std::mem::take(&mut self.last);
            let mut heading = format!("{name}: {end:?}");
            if !self.slow.is_empty() {
                let slow: Vec<&str> = self.slow.iter().map(String::as_str).collect();
                heading += &format!(", while these ran: {}", slow.join(", "));
            }
            self.failures.push(Output { heading, lines }.to_string());
            self.failed = self.failed.max(self.names.len() + 1);
        }
        if !is_libtest && end == End::Success {
            self.passed = self.passed.max(1);
        }
    }

    /// Whether all that failed is named tests: the process did not crash or run out of time.
    fn is_only_of_tests(&self, end: End) -> bool {
        end == End::Failure && self.is_closed && self.failed > 0 && self.names.len() == self.failed
    }

    /// The failed tests of a command that ended so, if nothing else failed. Those of documentation
    /// have names that cannot be asked for alone.
    pub(crate) fn failed_tests(&self, end: End) -> Vec<String> {
        let can_be_asked_for = !self.names.iter().any(|name| name.contains(' '));
        match self.is_only_of_tests(end) && can_be_asked_for {
            true => self.names.clone(),
            false => Vec::new(),
        }
    }

    /// Whether at least `tests` tests have passed and none was skipped.
    pub(crate) fn has_passed(&self, tests: usize) -> bool {
        self.passed >= tests && self.failed == 0 && self.skips.is_empty()
    }

    /// Takes the failed tests for passed ones: all of them did when they ran once more.
    pub(crate) fn forgive(&mut self) {
        self.passed += std::mem::take(&mut self.failed);
        self.flaky.append(&mut self.failures);
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored.saturating_sub(other.parts) + other.skips.len();
        // A test without libtest is nowhere else: it is in no count of passed ones.
        let libtest = |line: &&String| line.starts_with(SKIP_MARKS[0]);
        self.passed = self.passed.saturating_sub(other.skips.iter().filter(libtest).count());
        self.skips.extend(other.skips);
        self.failures.extend(other.failures);
        self.flaky.extend(other.flaky);
    }

    /// Adds the sum of several.
    pub(crate) fn add_total(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
        self.skips.extend(other.skips);
        self.failures.extend(other.failures);
        self.flaky.extend(other.flaky);
    }

    /// Adds a test that cannot run here, beside those of libtest.
    pub(crate) fn skip(&mut self, reason: &str) {
        self.ignored += 1;
        self.skips.insert(format!("{}{reason}", SKIP_MARKS[0]));
    }

    /// Adds a failure that is no test's of libtest.
    pub(crate) fn fail(&mut self, why: &str) {
        println!("test: {why}");
        self.failed += 1;
        self.failures.push(why.to_owned());
    }
}

/// The closing line. For a command that still runs `skips` are counted as passed.
impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.ignored)
    }
}

impl fmt::Display for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.heading)?;
        self.lines
            .iter()
            .filter(|line| !line.is_empty())
            .try_for_each(|line| write!(f, "\n  {line}"))
    }
}

/// Adds a line to the last `limit` of them.
fn keep_last(lines: &mut Vec<String>, line: &str, limit: usize) {
    if lines.len() == limit {
        lines.remove(0);
    }
    lines.push(line.to_owned());
}

fn number_before(line: &str, word: &str) -> usize {
    let Some(end) = line.find(word) else { return 0 };
    let digits = line[..end].rsplit(|c: char| !c.is_ascii_digit()).next();
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &[&str], end: End) -> Count {
        let mut count = Count::default();
        for line in lines {
            count.look(line);
        }
        count.close(end, "api", true);
        let mut total = Count::default();
        total.add(count);
        total
    }

    fn counted(lines: &[&str], end: End) -> String {
        read(lines, end).to_string()
    }

    #[test]
    fn closing_lines_are_summed() {
        let lines = [
            "test result: FAILED. 12 passed; 3 failed; 4 ignored; 0 measured; 0 filtered out",
            "test other result: 1 passed",
            "test result: ok. 5 passed; 0 failed; 0 ignored; 0 measured; 7 filtered out",
        ];
        assert_eq!(counted(&lines, End::Success), "17 passed, 3 failed, 4 skipped");
    }

    #[test]
    fn a_skipped_test_has_not_passed() {
        let lines = [
            "RINGRAIL-SKIP: lab::one: no root",
            "test two ... RINGRAIL-SKIP: lab::two: no root",
            // Without libtest, so in no sum.
            "SKIPPED matching_cost: valgrind does not run",
            "test result: ok. 5 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out",
        ];
        assert_eq!(counted(&lines, End::Success), "3 passed, 0 failed, 3 skipped");
    }

    #[test]
    fn what_only_other_tests_start_is_no_test() {
        let lines = [
            "test victim ... ignored, started by other tests",
            "test slow ... ignored, takes an hour",
            "test result: ok. 5 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out",
        ];
        assert_eq!(counted(&lines, End::Success), "5 passed, 0 failed, 1 skipped");
    }

    #[test]
    fn a_command_that_fails_without_a_failed_test_counts() {
        let one = read(&["error: aborted"], End::Failure);
        assert_eq!(one.to_string(), "0 passed, 1 failed, 0 skipped");
        assert_eq!(one.failures, ["api: Failure\n  error: aborted"]);
        assert_eq!(counted(&[], End::TimedOut), "0 passed, 1 failed, 0 skipped");
    }

    #[test]
    fn failed_tests_are_named_with_what_they_printed() {
        let lines = [
            "test one ... FAILED",
            "",
            "failures:",
            "",
            "---- one stdout ----",
            "thread 'one' panicked at tests/one.rs:1:2:",
            "no answer",
            "",
            "---- two stdout ----",
            "Error: gone",
            "",
            "failures:",
            "    one",
            "    two",
            "",
            "test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out",
        ];
        let first = "api: one stdout\n  thread 'one' panicked at tests/one.rs:1:2:\n  no answer";
        let both = [first, "api: two stdout\n  Error: gone"];
        assert_eq!(read(&lines, End::Failure).failures, both);
        let mut count = Count::default();
        lines.iter().for_each(|line| count.look(line));
        count.close(End::Failure, "api", true);
        assert_eq!(count.failed_tests(End::TimedOut), [""; 0]);
        assert_eq!(count.failed_tests(End::Failure), ["one", "two"]);
        count.forgive();
        assert_eq!(count.to_string(), "3 passed, 0 failed, 0 skipped");
        assert!(count.failures.is_empty() && count.flaky == both);
    }
}
