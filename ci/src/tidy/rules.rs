//! The rules, and the tables they go by.

use super::source::{Line, Source, is_name, words};

/// Columns of a line.
const COLUMNS_MAX: usize = 100;

/// Lines of a file; tests that stand in files of their own may be longer.
const LINES_MAX: usize = 600;

/// Where `unsafe` is confined to rooms.
const CONFINED: [&str; 2] = ["bindings/libfabric/src/", "engine/src/"];

/// Where `unsafe` may stand there: folders, and files one by one. Of the provider those that C
/// calls, or whose memory C has; what decides is safe.
const UNSAFE_ROOMS: [&str; 41] = [
    "bindings/libfabric/src/abi/",
    "bindings/libfabric/src/address.rs",
    "bindings/libfabric/src/av/calls.rs",
    "bindings/libfabric/src/av/mod.rs",
    "bindings/libfabric/src/cntr.rs",
    "bindings/libfabric/src/connections.rs",
    "bindings/libfabric/src/cq/",
    "bindings/libfabric/src/domain.rs",
    "bindings/libfabric/src/ep/",
    "bindings/libfabric/src/eq/",
    "bindings/libfabric/src/errno.rs",
    "bindings/libfabric/src/fabric.rs",
    "bindings/libfabric/src/fid.rs",
    "bindings/libfabric/src/info/given.rs",
    "bindings/libfabric/src/info/memory.rs",
    "bindings/libfabric/src/info/mod.rs",
    "bindings/libfabric/src/info/places.rs",
    "bindings/libfabric/src/lib.rs",
    "bindings/libfabric/src/mr.rs",
    "bindings/libfabric/src/pep.rs",
    "bindings/libfabric/src/symbols.rs",
    "engine/src/api/claims.rs",
    "engine/src/api/endpoint.rs",
    "engine/src/api/one_sided.rs",
    "engine/src/api/receive.rs",
    "engine/src/api/region.rs",
    "engine/src/api/send.rs",
    "engine/src/driver/",
    "engine/src/forks/",
    "engine/src/memory/",
    "engine/src/progress/bulk.rs",
    "engine/src/progress/caretaker/engine_cell.rs",
    "engine/src/progress/caretaker/send_engine.rs",
    "engine/src/progress/cma.rs",
    "engine/src/progress/completions.rs",
    "engine/src/progress/completions/",
    "engine/src/progress/post.rs",
    "engine/src/progress/shared/chunks.rs",
    "engine/src/progress/shared/queue.rs",
    "engine/src/progress/shared/sync.rs",
    "engine/src/topology/time_slice.rs",
];

/// Rooms that are sans-IO.
const SANS_IO: [&str; 2] = ["engine/src/proto/", "engine/src/wire/"];

/// What a rule forbids in code outside tests: where, what, and what to do instead.
const BANNED: &[(&[&str], &str, &str)] = &[
    (&SANS_IO, "Instant::now", "time comes in as an argument"),
    (&SANS_IO, "SystemTime", "time comes in as an argument"),
    (&SANS_IO, "rand::", "randomness comes in as an argument"),
    (&SANS_IO, "std::net::Tcp", "sockets live in driver/"),
    (&SANS_IO, "std::net::Udp", "sockets live in driver/"),
    (&SANS_IO, "std::thread", "threads live above the protocol"),
    (&SANS_IO, "std::fs", "files are read above the protocol"),
    (&["engine/src/"], "println!", "use tracing"),
    (&["engine/src/"], "eprintln!", "use tracing"),
    (&["engine/src/"], "print!", "use tracing"),
    (&["engine/src/"], "eprint!", "use tracing"),
    (&[""], "dbg!", "remove it"),
    (&[""], "todo!", "write it"),
    (&[""], "unimplemented!", "write it"),
];

/// Marks of unfinished work in comments.
const UNFINISHED: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];

/// Which rooms, or modules of one, a room of the engine may use besides itself. Rooms that
/// are not listed may use all.
const MAY_USE: &[(&str, &[&str])] = &[
    ("hooks", &[]),
    ("wire", &[]),
    ("secret", &[]),
    ("proto", &["wire", "secret", "hooks"]),
    ("telemetry", &["types", "forks", "refused_call"]),
    ("netlink", &["refused_call"]),
    ("files", &[]),
    ("refused_call", &[]),
    ("forks", &[]),
    // Which atomic operations there are is said on the wire.
    ("memory", &["telemetry", "wire::atomic_op", "refused_call"]),
    // The simulated network looks into packets, as somebody on the way may.
    (
        "driver",
        &[
            "proto::table",
            "memory",
            "netlink",
            "files",
            "forks",
            "refused_call",
            "settings",
            "telemetry",
            "hooks",
            "types",
            "proto::packet",
            "proto::session::rails::pairing",
            "proto::silence",
            "wire::ack",
            "wire::chunk",
            "wire::frame_range",
            "wire::packet",
            "wire::piece",
            "wire::hello",
            "wire::local_peer",
            "wire::proof",
        ],
    ),
    ("settings", &["wire", "secret", "types::rail", "types::hint"]),
    ("bootstrap", &["settings", "files", "refused_call"]),
    ("topology", &["settings", "types::rail", "types::statistics", "netlink", "refused_call"]),
    ("types", &["wire", "proto", "memory", "refused_call"]),
    (
        "progress",
        &[
            "proto",
            "wire",
            "types",
            "memory",
            "telemetry",
            "hooks",
            "forks",
            "refused_call",
            "topology",
            "driver::traits",
            "driver::AnyDriver",
        ],
    ),
];

/// Starts of absolute paths that exist on somebody's machine only.
const MACHINE_PATHS: [&str; 5] = [
    concat!("/ho", "me/"),
    concat!("/ro", "ot/"),
    concat!("/Us", "ers/"),
    concat!("/wo", "rk/"),
    concat!("/tm", "p/wt/"),
];

/// Words that the reason in an `expect` has at least.
const REASON_WORDS_MIN: usize = 3;

/// All rules for a Rust file.
pub(super) fn rust(name: &str, source: &Source, is_test: bool, found: &mut Vec<String>) {
    machine_paths(name, &source.text, found);
    length(name, &source.text, is_test, found);
    for (number, line) in (1..).zip(source.text.lines()) {
        if line.chars().count() > COLUMNS_MAX {
            found.push(format!("{name}:{number}: longer than {COLUMNS_MAX} columns"));
        }
    }
    unfinished(name, &source.comments, found);
    for line in source.lines() {
        silent(name, &line, found);
        if is_test || line.is_test {
            continue;
        }
        banned(name, &line, found);
        reasons(name, &line, found);
    }
    unsafe_rooms(name, source, is_test, found);
    if let Some(below) = name.strip_prefix("engine/src/").filter(|_| !is_test) {
        dependencies(name, below, source, found);
    }
}

/// All rules for a text that is not Rust.
pub(super) fn other(name: &str, text: &str, found: &mut Vec<String>) {
    machine_paths(name, text, found);
    if name != "Cargo.lock" {
        unfinished(name, text, found);
    }
    if name.ends_with(".md") {
        let mut in_code = false;
        let mut headings = 0;
        for line in text.lines() {
            in_code ^= line.trim_start().starts_with("```");
            headings += usize::from(!in_code && line.starts_with("# "));
        }
        if headings != 1 {
            found.push(format!("{name}: {headings} headings of the first level, one is right"));
        }
    }
}

fn machine_paths(name: &str, text: &str, found: &mut Vec<String>) {
    for (number, line) in (1..).zip(text.lines()) {
        for path in MACHINE_PATHS {
            for (at, _) in line.match_indices(path) {
                // Inside a longer path or an address it is no absolute one.
                let before = line[..at].bytes().last().unwrap_or(b' ');
                let after = line.as_bytes().get(at + path.len()).copied().unwrap_or(b' ');
                if !is_name(before) && !matches!(before, b'/' | b'.' | b'-') && is_name(after) {
                    found.push(format!("{name}:{number}: `{path}...` is a path of one machine"));
                }
            }
        }
    }
}

fn length(name: &str, text: &str, is_test: bool, found: &mut Vec<String>) {
    let lines = text.lines().count();
    if lines > LINES_MAX && !is_test {
        found.push(format!("{name}: {lines} lines, over {LINES_MAX}: split it by concept"));
    }
}

fn unfinished(name: &str, text: &str, found: &mut Vec<String>) {
    for (number, line) in (1..).zip(text.lines()) {
        for mark in UNFINISHED {
            if words(line, mark).next().is_some() {
                found.push(format!("{name}:{number}: `{mark}`: finish it or open an issue"));
            }
        }
    }
}

fn banned(name: &str, line: &Line<'_>, found: &mut Vec<String>) {
    for (places, what, instead) in BANNED {
        let is_here = places.iter().any(|place| name.starts_with(place));
        if is_here && words(line.code, what).next().is_some() {
            found.push(format!("{name}:{}: `{what}`: {instead}", line.number));
        }
    }
}

/// A test that returns where a variable is not set has passed without a word.
fn silent(name: &str, line: &Line<'_>, found: &mut Vec<String>) {
    if line.code.contains("env::var") && line.code.contains("else { return }") {
        found.push(format!(
            "{name}:{}: it passes without doing anything where the variable is not set: give it \
             `#[ignore = \"started by other tests\"]`, and expect the variable",
            line.number
        ));
    }
}

/// A panic outside tests names the invariant that excludes it: in the `expect` itself, or in a
/// constant.
fn reasons(name: &str, line: &Line<'_>, found: &mut Vec<String>) {
    let cure = "return an error, or `expect` with the invariant that excludes it";
    if line.code.contains(".unwrap()") {
        found.push(format!("{name}:{}: `unwrap`: {cure}", line.number));
    }
    for (at, call) in line.code.match_indices(".expect(\"") {
        let text = &line.text[at + call.len()..];
        let reason = text.split('"').next().unwrap_or_default();
        if reason.split_whitespace().count() < REASON_WORDS_MIN {
            found.push(format!("{name}:{}: `expect({reason:?})`: {cure}", line.number));
        }
    }
}

fn unsafe_rooms(name: &str, source: &Source, is_test: bool, found: &mut Vec<String>) {
    let forbids = source.code.contains("#![forbid(unsafe_code)]");
    if SANS_IO.iter().any(|room| name == format!("{room}mod.rs")) && !forbids {
        found.push(format!("{name}: lacks `#![forbid(unsafe_code)]`, as a sans-IO room has"));
    }
    let is_allowed = UNSAFE_ROOMS.iter().any(|room| name.starts_with(room));
    let is_confined = CONFINED.iter().any(|place| name.starts_with(place));
    if is_test || is_allowed || !is_confined {
        return;
    }
    for line in source.lines().filter(|line| !line.is_test) {
        if words(line.code, "unsafe").next().is_some() {
            let cure = "move it to memory or a driver, or list the file in UNSAFE_ROOMS";
            found.push(format!("{name}:{}: unsafe code outside its rooms: {cure}", line.number));
        }
    }
}

/// What the room of a file uses of other rooms.
fn dependencies(name: &str, below: &str, source: &Source, found: &mut Vec<String>) {
    let room = below.split(['/', '.']).next().unwrap_or_default();
    let Some((_, allowed)) = MAY_USE.iter().find(|(listed, _)| *listed == room) else { return };
    for (at, path) in paths_from_crate(below, &source.code) {
        let is_itself = starts_path(&path, room);
        let is_allowed = allowed.iter().any(|prefix| starts_path(&path, prefix));
        if !is_itself && !is_allowed && !source.is_test_at(at) {
            let line = source.line_of(at);
            found.push(format!(
                "{name}:{line}: `{room}` may not use `crate::{path}`: rooms depend one way, as \
                 MAY_USE in ci/src/tidy/rules.rs says"
            ));
        }
    }
}

/// Whether `path` is `prefix` or below it.
fn starts_path(path: &str, prefix: &str) -> bool {
    path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// The paths that start at the crate: `crate::x`, the members of `crate::{...}`, and `super::x`
/// where it climbs that high. With where they stand.
pub(super) fn paths_from_crate(below: &str, code: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for at in words(code, "crate::") {
        collect(at, "", &code[at + "crate::".len()..], &mut found);
    }
    // `engine/src/a/b.rs` is `crate::a::b`: two steps up is the crate.
    let depth = below.trim_end_matches(".rs").trim_end_matches("/mod").split('/').count();
    let climb = "super::".repeat(depth);
    for at in words(code, &climb) {
        let is_longer = code[..at].ends_with("super::");
        let rest = &code[at + climb.len()..];
        if !is_longer && !rest.starts_with("super::") {
            collect(at, "", rest, &mut found);
        }
    }
    found
}

/// Adds the path at the start of `rest` behind `prefix`, or those of the group there.
fn collect(at: usize, prefix: &str, rest: &str, found: &mut Vec<(usize, String)>) {
    let is_path = |byte: &u8| is_name(*byte) || *byte == b':';
    let end = rest.bytes().take_while(is_path).count();
    let path = format!("{prefix}{}", &rest[..end]);
    let Some(group) =
        rest[end..].strip_prefix('{').filter(|_| path.is_empty() || path.ends_with("::"))
    else {
        found.push((at, path.trim_end_matches(':').to_owned()));
        return;
    };
    let (mut depth, mut start) = (0_usize, 0);
    for (position, byte) in group.bytes().enumerate() {
        let ends_group = byte == b'}' && depth == 0;
        if ends_group || (byte == b',' && depth == 0) {
            let member = group[start..position].trim();
            if !member.is_empty() {
                collect(at, &path, member, found);
            }
            start = position + 1;
        }
        match byte {
            b'}' if ends_group => return,
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => {}
        }
    }
}
