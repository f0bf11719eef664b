//! The functions of the engine's source that a message of 8 bytes passes, before inlining.
//!
//! A build without optimisation steps through one call. What is inlined all the same has its frames
//! in the debug information. An address is of the function whose lines in the source it has: a
//! closure is part of the function around it, and what a derive writes is none.

mod functions;
mod steps;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use self::functions::{Function, function_at, functions};
use self::steps::{Passed, Steps};
use crate::run::{cargo, output, root, run as execute};

const USAGE: &str = "usage: cargo xtask walk [WORD ...] [--max-functions N] [--max-files N]";

/// Where functions are counted.
const SOURCE: &str = "engine/src/";

/// The program that steps.
const PROGRAM: &str = "walk";

/// What is asked for.
#[derive(Default, PartialEq, Debug)]
struct Options {
    /// Words that the name of a call has.
    words: Vec<String>,
    functions_max: Option<usize>,
    files_max: Option<usize>,
}

/// A function: its file below [`SOURCE`], and its place there.
type Place<'a> = (&'a str, usize);

/// Functions of files of the engine.
type Files = BTreeMap<String, Vec<Function>>;

/// Prints the walks that the options name; fails where one is longer than they allow.
pub(crate) fn run(options: &[String]) -> Result<(), String> {
    let options = Options::read(options)?;
    let program = build()?;
    let calls = steps::read(&output(&mut Command::new(&program))?)?;
    let calls: Vec<_> = calls.into_iter().filter(|(name, _)| options.has(name)).collect();
    let lines = lines(&program, &calls)?;
    let frames = steps::frames(&lines);
    let files = files(frames.values().flatten().filter_map(|&(file, _)| file_of(file)))?;
    let mut longer = Vec::new();
    for (name, steps) in &calls {
        let walk = steps::walk(steps, |address| places(&frames, &files, address));
        let count = print(name, &walk, &files);
        longer.extend(options.exceeded_by(count).then_some(name.as_str()));
    }
    match longer.as_slice() {
        [] if calls.is_empty() => Err(format!("no call has all of {:?}", options.words)),
        [] => Ok(()),
        _ => Err(format!("longer than allowed: {}", longer.join(", "))),
    }
}

impl Options {
    fn read(options: &[String]) -> Result<Self, String> {
        let mut read = Self::default();
        let mut options = options.iter();
        while let Some(option) = options.next() {
            let mut number = || options.next().and_then(|text| text.parse().ok()).ok_or(USAGE);
            match option.as_str() {
                "--max-functions" => read.functions_max = Some(number()?),
                "--max-files" => read.files_max = Some(number()?),
                option if option.starts_with('-') => return Err(USAGE.to_owned()),
                word => read.words.push(word.to_owned()),
            }
        }
        Ok(read)
    }

    fn has(&self, name: &str) -> bool {
        self.words.iter().all(|word| name.split(' ').any(|part| part == word))
    }

    fn exceeded_by(&self, count: Count) -> bool {
        self.functions_max.is_some_and(|max| count.functions > max)
            || self.files_max.is_some_and(|max| count.files > max)
    }
}

/// Builds the program that steps, and returns its path.
fn build() -> Result<PathBuf, String> {
    let arguments = ["build", "--profile", PROGRAM, "--package", "ringrail", "--features", "bench"];
    let mut command = cargo(&arguments);
    command.args(["--example", PROGRAM]);
    execute(&mut command)?;
    let metadata = output(&mut cargo(&["metadata", "--no-deps", "--format-version", "1"]))?;
    let metadata: serde_json::Value =
        serde_json::from_str(&metadata).map_err(|error| format!("cargo metadata: {error}"))?;
    let target = metadata["target_directory"].as_str().ok_or("cargo metadata: no folder")?;
    Ok(PathBuf::from(target).join(PROGRAM).join("examples").join(PROGRAM))
}

/// What `addr2line` says of all addresses.
fn lines(program: &PathBuf, calls: &[(String, Steps)]) -> Result<String, String> {
    let size = std::fs::metadata(program).map_err(|error| format!("{program:?}: {error}"))?.len();
    let addresses = calls.iter().flat_map(|(_, steps)| steps.iter().map(|&(address, _)| address));
    // Others are of libraries.
    let addresses: BTreeSet<u64> = addresses.filter(|&address| address < size).collect();
    let mut command = Command::new("addr2line");
    command.args(["-a", "-i", "-e"]).arg(program);
    let failed = |error: std::io::Error| format!("addr2line, of binutils: {error}");
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut child = child.map_err(failed)?;
    let input = child.stdin.take();
    let output = std::thread::scope(|scope| {
        scope.spawn(move || {
            let text: String = addresses.iter().map(|address| format!("{address:x}\n")).collect();
            // A program that has ended says so itself.
            input.map(|mut input| input.write_all(text.as_bytes()))
        });
        child.wait_with_output()
    });
    let output = output.map_err(failed)?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("addr2line ended with {}", output.status)),
    }
}

/// The part of a path below [`SOURCE`], of a file of this tree.
fn file_of(path: &str) -> Option<&str> {
    path.strip_prefix(root().to_str()?)?.strip_prefix('/')?.strip_prefix(SOURCE)
}

/// Reads files of the engine.
fn files<'a>(names: impl Iterator<Item = &'a str>) -> Result<Files, String> {
    let names: BTreeSet<&str> = names.collect();
    let read = |name: &str| {
        let text = std::fs::read_to_string(root().join(SOURCE).join(name));
        text.map(|text| (name.to_owned(), functions(text))).map_err(|e| format!("{name}: {e}"))
    };
    names.into_iter().map(read).collect()
}

/// The functions that an address is in, outermost first.
fn places<'a>(
    frames: &BTreeMap<u64, Vec<(&str, usize)>>,
    files: &'a Files,
    address: u64,
) -> Vec<Place<'a>> {
    let frames = frames.get(&address).map_or(&[][..], Vec::as_slice);
    let place = |&(path, line): &(&str, usize)| {
        let (file, functions) = files.get_key_value(file_of(path)?)?;
        Some((file.as_str(), function_at(functions, line)?))
    };
    frames.iter().rev().filter_map(place).collect()
}

/// Functions of a walk that are no accessors, and their files.
#[derive(Clone, Copy)]
struct Count {
    functions: usize,
    files: usize,
}

/// Prints a walk: each function below that which first calls it.
fn print(name: &str, walk: &[Passed<Place<'_>>], files: &Files) -> Count {
    println!("\n{name}");
    let mut functions = 0;
    let mut of_functions = BTreeSet::new();
    let mut of_all = BTreeSet::new();
    for (at, Passed { function: (file, place), depth, .. }) in walk.iter().enumerate() {
        let function = &files[*file][*place];
        let is_accessor = is_accessor(walk, files, at, &mut Vec::new());
        of_all.insert(file);
        if !is_accessor {
            functions += 1;
            of_functions.insert(file);
        }
        let number = if is_accessor { "-".to_owned() } else { functions.to_string() };
        let name = format!("{:1$}{2}", "", 2 * depth, function.name);
        println!("{number:>4}  {name:<60}  {file}:{}", function.lines.start());
    }
    let (accessors, more) = (walk.len() - functions, of_all.len() - of_functions.len());
    println!(
        "{name}: {functions} functions in {} files; accessors of one expression, marked -: \
         {accessors}, in {more} files more",
        of_functions.len()
    );
    Count { functions, files: of_functions.len() }
}

/// Whether a function is one expression that calls nothing of the engine but such functions.
fn is_accessor(
    walk: &[Passed<Place<'_>>],
    files: &Files,
    at: usize,
    above: &mut Vec<usize>,
) -> bool {
    let Passed { function: (file, place), callees, .. } = &walk[at];
    if !files[*file][*place].is_one_expression || above.contains(&at) {
        return false;
    }
    above.push(at);
    let is_one = callees.iter().all(|&callee| is_accessor(walk, files, callee, above));
    above.pop();
    is_one
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(name: &str, is_one_expression: bool) -> Function {
        Function { name: name.to_owned(), lines: 1..=1, is_one_expression }
    }

    #[test]
    fn options_name_calls_and_limits() {
        let read = |line: &str| {
            Options::read(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
        };
        let options = read("udp inject --max-functions 20 --max-files 10").unwrap();
        assert!(
            options.has("udp inject") && !options.has("udp send") && !options.has("shm inject")
        );
        assert!(!options.exceeded_by(Count { functions: 20, files: 10 }));
        assert!(options.exceeded_by(Count { functions: 21, files: 1 }));
        assert!(options.exceeded_by(Count { functions: 1, files: 11 }));
        assert_eq!(read("").unwrap(), Options::default());
        assert!(read("--max-files").is_err() && read("--all").is_err());
    }

    #[test]
    fn an_accessor_calls_only_accessors() {
        let functions =
            [function("a", true), function("b", true), function("c", false), function("d", true)];
        let files = Files::from([("a.rs".to_owned(), functions.to_vec())]);
        // `a` calls `b`; `d` calls `c` and itself.
        let callees = [vec![1], vec![], vec![], vec![2, 3]];
        let walk: Vec<Passed<Place<'_>>> = callees
            .into_iter()
            .enumerate()
            .map(|(at, callees)| Passed { function: ("a.rs", at), depth: 0, callees })
            .collect();
        let accessors: Vec<bool> =
            (0..4).map(|at| is_accessor(&walk, &files, at, &mut Vec::new())).collect();
        assert_eq!(accessors, [true, true, false, false]);
    }

    #[test]
    fn frames_of_other_crates_are_not_counted() {
        let root = root();
        let path = |name: &str| root.join(name).display().to_string();
        let (ours, other) = (path("engine/src/a/b.rs"), path("perf/src/main.rs"));
        assert_eq!(file_of(&ours), Some("a/b.rs"));
        assert_eq!(file_of(&other), None);
        let files = Files::from([("a/b.rs".to_owned(), vec![function("f", true)])]);
        let frames = BTreeMap::from([(16, vec![(other.as_str(), 1), (ours.as_str(), 1)])]);
        assert_eq!(places(&frames, &files, 16), [("a/b.rs", 0)]);
        assert_eq!(places(&frames, &files, 17), []);
    }
}
