//! Rooms of the engine that use each other in a circle, as the code says and not as a table does.

use std::collections::{BTreeMap, BTreeSet};

use super::rules::paths_from_crate;
use super::source::Source;

/// Where the rooms are.
const ROOMS: &str = "engine/src/";

/// What a room uses, each with the first place where it does.
type Uses<'a> = BTreeMap<&'a str, BTreeMap<String, String>>;

/// Complaints about a circle of rooms, and about paths that hide which room they lead to.
pub(super) fn check(
    files: &BTreeMap<String, Source>,
    reached: &BTreeMap<String, bool>,
    found: &mut Vec<String>,
) {
    let code = files.iter().filter(|(name, _)| reached.get(*name) == Some(&false));
    let code: Vec<(&str, &str, &Source)> = code
        .filter_map(|(name, source)| Some((&**name, name.strip_prefix(ROOMS)?, source)))
        .filter(|(_, below, _)| *below != "lib.rs")
        .collect();
    let rooms: BTreeSet<&str> = code.iter().map(|(_, below, _)| room_of(below)).collect();
    let mut uses: Uses<'_> = rooms.iter().map(|room| (*room, BTreeMap::new())).collect();
    for (name, below, source) in code {
        let room = room_of(below);
        for (at, path) in paths_from_crate(below, &source.code) {
            let target = path.split("::").next().unwrap_or_default();
            if source.is_test_at(at) || target == room {
                continue;
            }
            let place = format!("{name}:{}", source.line_of(at));
            if rooms.contains(target) {
                uses.entry(room).or_default().entry(target.to_owned()).or_insert(place);
            } else {
                found.push(format!("{place}: `crate::{path}` names no room: which one is it of?"));
            }
        }
    }
    found.extend(circle(uses));
}

/// The room of a file, given its path below the rooms.
fn room_of(below: &str) -> &str {
    below.split(['/', '.']).next().unwrap_or_default()
}

/// One circle among rooms, with the places that close it.
fn circle(mut uses: Uses<'_>) -> Option<String> {
    // A room that uses nobody who is left is in no circle.
    loop {
        let left: BTreeSet<String> = uses.keys().map(|room| (*room).to_owned()).collect();
        for targets in uses.values_mut() {
            targets.retain(|target, _| left.contains(target));
        }
        uses.retain(|_, targets| !targets.is_empty());
        if uses.len() == left.len() {
            break;
        }
    }
    // Everybody who is left uses somebody who is left, so the walk comes back to where it was.
    let mut walked: Vec<(&str, &str)> = Vec::new();
    let mut room = *uses.keys().next()?;
    while !walked.iter().any(|(earlier, _)| *earlier == room) {
        let (target, place) = uses.get(room)?.first_key_value()?;
        walked.push((room, place));
        room = target;
    }
    let start = walked.iter().position(|(earlier, _)| *earlier == room)?;
    let steps = walked[start..].iter().map(|(room, place)| format!("`{room}` ({place})"));
    let steps: Vec<String> = steps.collect();
    let (_, place) = walked[start];
    Some(format!("{place}: rooms use each other in a circle: {}, `{room}`", steps.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(files: &[(&str, &str)]) -> Vec<String> {
        let source = |(name, text): &(&str, &str)| {
            (format!("{ROOMS}{name}"), Source::new((*text).to_owned()))
        };
        let files: BTreeMap<String, Source> = files.iter().map(source).collect();
        let reached = files.keys().map(|name| (name.clone(), name.ends_with("tests.rs"))).collect();
        let mut found = Vec::new();
        check(&files, &reached, &mut found);
        found
    }

    #[test]
    fn a_circle_is_named_with_its_places() {
        let found = complaints(&[
            ("lib.rs", "mod a; mod b; mod c; mod outside;"),
            ("a/mod.rs", "mod x;"),
            ("a/x.rs", "\nuse super::super::b::B;"),
            ("b.rs", "fn f(c: crate::c::C) {}"),
            ("c/mod.rs", "use crate::{leaf::L, a::x::{A, B}};"),
            ("leaf.rs", ""),
            ("outside.rs", "use crate::a::A;"),
        ]);
        let expected = "engine/src/a/x.rs:2: rooms use each other in a circle: \
                        `a` (engine/src/a/x.rs:2), `b` (engine/src/b.rs:1), \
                        `c` (engine/src/c/mod.rs:1), `a`";
        assert_eq!(found, [expected]);
    }

    #[test]
    fn one_way_tests_and_comments_are_no_circle() {
        let found = complaints(&[
            ("a.rs", "use crate::b::B;\nuse crate::c::C;"),
            ("b/mod.rs", "// crate::a::A\nuse crate::c::C;\nuse super::b::x;"),
            ("b/tests.rs", "use crate::a::A;"),
            ("c.rs", "#[cfg(test)]\nmod tests { use crate::a::A; }"),
        ]);
        assert_eq!(found, [""; 0]);
    }

    #[test]
    fn a_path_past_the_rooms_is_named() {
        let found = complaints(&[("a.rs", "use crate::Thing;"), ("b.rs", "")]);
        assert!(found.len() == 1 && found[0].contains("engine/src/a.rs:1"), "{found:?}");
        assert!(found[0].contains("`crate::Thing` names no room"), "{found:?}");
    }
}
