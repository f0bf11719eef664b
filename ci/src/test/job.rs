//! A job: one process that runs some tests, and what it needs of the machine.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use super::build::{Program, Test};
use super::libtest::Count;
use super::needs::{Needs, is_long, needs_of};
use crate::watch::{End, Limits, Mark, Outcome};

/// Tests of a library that one process runs at most.
const UNIT_TESTS_MAX: usize = 80;

/// Tests of a process that run at the same time.
const THREADS: &str = "2";

/// Lines that are kept of what a job prints.
const LINES_MAX: usize = 4_000;

/// A process to run, described so that it can be run again.
#[derive(Clone, Debug)]
pub(super) struct Job {
    /// What it is called in the log: package, program, module, variant.
    pub(super) name: String,
    program: PathBuf,
    arguments: Vec<String>,
    folder: PathBuf,
    variables: Vec<(&'static str, String)>,
    pub(super) needs: Needs,
    /// It runs libtest, and its tests can be asked for by name.
    is_libtest: bool,
}

/// How a job ended.
pub(super) struct Ended {
    pub(super) count: Count,
    pub(super) end: End,
    /// The CPU time that its processes took.
    pub(super) cpu: Duration,
    /// The last lines that it printed.
    pub(super) lines: Vec<String>,
}

impl Job {
    /// A command without libtest: it succeeds or fails as a whole.
    pub(super) fn of_command(name: &str, command: &Command) -> Self {
        Self {
            name: name.to_owned(),
            program: command.get_program().into(),
            arguments: command.get_args().map(|it| it.to_string_lossy().into_owned()).collect(),
            folder: command.get_current_dir().map_or_else(|| ".".into(), PathBuf::from),
            variables: Vec::new(),
            needs: needs_of(name),
            is_libtest: false,
        }
    }

    /// `tests` of a program.
    fn of_tests(program: &Program, name: String, tests: &[&Test]) -> Self {
        let names = tests.iter().map(|test| test.name.clone());
        let options = ["--exact".to_owned(), format!("--test-threads={THREADS}")];
        Self {
            needs: needs_of(&name),
            name,
            program: program.path.clone(),
            arguments: options.into_iter().chain(names).collect(),
            folder: program.folder.clone(),
            variables: Vec::new(),
            is_libtest: true,
        }
    }

    /// The same job in another environment, under another name.
    pub(super) fn with(mut self, variant: &str, variables: &[(&'static str, String)]) -> Self {
        self.name = format!("{} [{variant}]", self.name);
        self.needs = needs_of(&self.name);
        self.variables.extend_from_slice(variables);
        self
    }

    /// The same job for the named tests alone, one at a time.
    pub(super) fn only(&self, tests: &[String]) -> Self {
        let options = ["--exact".to_owned(), "--test-threads=1".to_owned()];
        let arguments = options.into_iter().chain(tests.iter().cloned()).collect();
        Self { arguments, ..self.clone() }
    }

    /// Runs it; what it starts carries `mark`.
    pub(super) fn run(&self, mark: &Mark) -> Result<Ended, String> {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).current_dir(&self.folder);
        // As `cargo test` sets it for the tests of a package.
        command.env("CARGO_MANIFEST_DIR", &self.folder);
        command.envs(self.variables.iter().map(|(key, value)| (key, value)));
        let (mut count, mut lines) = (Count::default(), std::collections::VecDeque::new());
        let limits = Limits { total: self.needs.limit(), silent: Duration::MAX };
        let outcome = mark.of_job(&self.name).run(&mut command, limits, |line| {
            count.look(line);
            if lines.len() == LINES_MAX {
                lines.pop_front();
            }
            lines.push_back(line.to_owned());
        })?;
        let Outcome { end, cpu } = outcome;
        count.close(end, &self.name, self.is_libtest);
        Ok(Ended { count, end, cpu, lines: lines.into() })
    }

    /// The tests that failed, if nothing else did and they can be asked for by name.
    pub(super) fn failed_tests(&self, ended: &Ended) -> Vec<String> {
        if self.is_libtest { ended.count.failed_tests(ended.end) } else { Vec::new() }
    }
}

/// The jobs of a program. A module of an integration test has a process of its own: what tests do
/// to their process (limits, signals, descriptors) ends with it. Tests of a library run some dozens
/// a process, module by module, without those of the long set.
pub(super) fn jobs_of(program: &Program) -> Result<Vec<Job>, String> {
    jobs_of_those(program, false)
}

/// The jobs of the unit tests of a program that only the long set runs.
pub(super) fn long_jobs_of(program: &Program) -> Result<Vec<Job>, String> {
    jobs_of_those(program, true)
}

fn jobs_of_those(program: &Program, are_long: bool) -> Result<Vec<Job>, String> {
    let mut tests = program.tests()?;
    tests.retain(|test| (!program.is_integration && is_long(&test.name)) == are_long);
    Ok(groups_of(program, &tests)
        .into_iter()
        .map(|(module, tests)| {
            let name = format!("{} {} {module}", program.package, program.target);
            Job::of_tests(program, name.trim_end().to_owned(), &tests)
        })
        .collect())
}

/// A job for each test of a program that is not ignored.
pub(super) fn jobs_of_each_test(program: &Program) -> Result<Vec<Job>, String> {
    let tests = program.tests()?;
    let tests = tests.iter().filter(|test| !test.is_ignored);
    Ok(tests
        .map(|test| {
            let name = format!("{} {} {}", program.package, program.target, test.name);
            Job::of_tests(program, name, &[test])
        })
        .collect())
}

/// The tests of each process and what the process is called: the module, and a number where a
/// library's module has several processes.
fn groups_of<'a>(program: &Program, tests: &'a [Test]) -> Vec<(String, Vec<&'a Test>)> {
    let mut groups: Vec<(&str, Vec<&Test>)> = Vec::new();
    for test in tests {
        let module = test.name.split_once("::").map_or("", |(module, _)| module);
        match groups.iter_mut().find(|(name, _)| *name == module) {
            Some((_, group)) => group.push(test),
            None => groups.push((module, vec![test])),
        }
    }
    let mut parts = Vec::new();
    for (module, tests) in groups {
        let most = if program.is_integration { usize::MAX } else { UNIT_TESTS_MAX };
        let is_whole = tests.len() <= most;
        for (number, part) in (1..).zip(tests.chunks(most)) {
            let name = if is_whole { module.to_owned() } else { format!("{module} {number}") };
            parts.push((name, part.to_vec()));
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(is_integration: bool) -> Program {
        let (package, target) = ("ringrail".to_owned(), "api".to_owned());
        Program { package, target, is_integration, path: "x".into(), folder: "y".into() }
    }

    fn tests(names: &[&str]) -> Vec<Test> {
        let test = |name: &&str| Test { name: (*name).to_owned(), is_ignored: false };
        names.iter().map(test).collect()
    }

    #[test]
    fn each_module_of_an_integration_test_has_its_process() {
        let tests = tests(&["fork::one", "waiting::deep::two", "fork::three", "alone"]);
        let groups = groups_of(&program(true), &tests);
        let names: Vec<(&str, usize)> =
            groups.iter().map(|(name, tests)| (name.as_str(), tests.len())).collect();
        assert_eq!(names, [("fork", 2), ("waiting", 1), ("", 1)]);
    }

    #[test]
    fn large_modules_of_a_library_have_several_processes() {
        let names: Vec<String> = (0..2 * UNIT_TESTS_MAX + 1).map(|it| format!("a::{it}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let tests = tests(&names);
        let count = |is_integration| groups_of(&program(is_integration), &tests).len();
        assert_eq!((count(false), count(true)), (3, 1));
        let last = groups_of(&program(false), &tests).pop().unwrap();
        assert_eq!((last.0.as_str(), last.1.len()), ("a 3", 1));
    }
}
