//! What the program that steps prints, and the order in which it passes functions.

use std::collections::BTreeMap;

/// Instructions of one call: address and stack pointer before each.
pub(super) type Steps = Vec<(u64, u64)>;

/// The longest instruction, in bytes.
const INSTRUCTION_BYTES_MAX: u64 = 15;
/// What a call puts on the stack.
const RETURN_ADDRESS_BYTES: u64 = 8;

/// A function that was passed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Passed<F> {
    pub(super) function: F,
    /// Functions above it when it was first called.
    pub(super) depth: usize,
    /// Functions that it called, by their places in the walk.
    pub(super) callees: Vec<usize>,
}

/// The calls that the program has printed, by their names.
pub(super) fn read(output: &str) -> Result<Vec<(String, Steps)>, String> {
    let mut calls: Vec<(String, Steps)> = Vec::new();
    for line in output.lines() {
        if let Some(name) = line.strip_prefix("walk ") {
            calls.push((name.to_owned(), Vec::new()));
            continue;
        }
        let numbers = line.split_once(' ').and_then(|(instruction, stack)| {
            let number = |text| u64::from_str_radix(text, 16).ok();
            Some((number(instruction)?, number(stack)?))
        });
        match (calls.last_mut(), numbers) {
            (Some((_, steps)), Some(step)) => steps.push(step),
            _ => return Err(format!("`{line}` is no step")),
        }
    }
    Ok(calls)
}

/// The frames of `addr2line -a -i`, innermost first, as file and line.
pub(super) fn frames(output: &str) -> BTreeMap<u64, Vec<(&str, usize)>> {
    let mut frames = BTreeMap::new();
    let mut at = None;
    for line in output.lines() {
        if let Some(address) = line.strip_prefix("0x") {
            at = u64::from_str_radix(address, 16).ok();
            continue;
        }
        // A number may have `(discriminator 2)` behind it.
        let place = line.split(" (").next().and_then(|place| place.rsplit_once(':'));
        let place = place.and_then(|(file, line)| Some((file, line.parse::<usize>().ok()?)));
        if let (Some(address), Some(place)) = (at, place) {
            frames.entry(address).or_insert_with(Vec::new).push(place);
        }
    }
    frames
}

/// The functions that a call passes, in the order of their first calls. `functions` says which ones
/// an address is in, outermost first.
pub(super) fn walk<F: Copy + PartialEq>(
    steps: &[(u64, u64)],
    functions: impl Fn(u64) -> Vec<F>,
) -> Vec<Passed<F>> {
    let mut passed: Vec<Passed<F>> = Vec::new();
    // Where each function that is running is, and the stack pointer at its return address.
    let mut running: Vec<(u64, Vec<F>)> = Vec::new();
    let mut before = (0, 0);
    for &(instruction, stack) in steps {
        let (last, last_stack) = before;
        let is_next = (1..=INSTRUCTION_BYTES_MAX).contains(&instruction.wrapping_sub(last));
        let is_call = !is_next && stack.wrapping_add(RETURN_ADDRESS_BYTES) == last_stack;
        while running.len() > 1 && running.last().is_some_and(|&(entry, _)| entry < stack) {
            running.pop();
        }
        let here = functions(instruction);
        match running.last_mut() {
            Some((_, place)) if !is_call => *place = here,
            _ => running.push((stack, here)),
        }
        note(&mut passed, running.iter().flat_map(|(_, place)| place.iter().copied()));
        before = (instruction, stack);
    }
    passed
}

/// Adds what runs, outermost first, where it is new.
fn note<F: Copy + PartialEq>(passed: &mut Vec<Passed<F>>, stack: impl Iterator<Item = F>) {
    let (mut caller, mut depth) = (None, 0);
    for function in stack {
        let known = passed.iter().position(|it| it.function == function);
        // A closure is part of the function around it.
        if known.is_some() && known == caller {
            continue;
        }
        let at = known.unwrap_or_else(|| {
            passed.push(Passed { function, depth, callees: Vec::new() });
            passed.len() - 1
        });
        if let Some(caller) = caller
            && !passed[caller].callees.contains(&at)
        {
            passed[caller].callees.push(at);
        }
        (caller, depth) = (Some(at), depth + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_read_by_their_names() {
        let calls = read("walk udp inject\n1f 7ff0\n24 7fe8\nwalk shm inject\n").unwrap();
        let expected = vec![(0x1f, 0x7ff0), (0x24, 0x7fe8)];
        assert_eq!(calls, [("udp inject".to_owned(), expected), ("shm inject".to_owned(), vec![])]);
        assert!(read("1f 7ff0\n").is_err() && read("walk a\n1g 0\n").is_err());
    }

    #[test]
    fn frames_are_those_of_their_address() {
        let text = "0x0000000000000010\n/a/b.rs:7 (discriminator 2)\n/a/c.rs:9\n0x20\n??:0\n\
                    0x30\n/a/b.rs:?\n";
        let expected = [(0x10, vec![("/a/b.rs", 7), ("/a/c.rs", 9)]), (0x20, vec![("??", 0)])];
        assert_eq!(frames(text), BTreeMap::from(expected));
    }

    #[test]
    fn functions_stand_in_the_order_of_their_first_calls() {
        // `a` calls `b`, inlined in which `c` is called, then `d`, which calls `b` again.
        let functions = |address: u64| match address {
            0x10..0x20 => vec!['a'],
            0x40 => vec!['b', 'c'],
            0x41..0x50 => vec!['b'],
            0x80..0x90 => vec!['d'],
            _ => vec![],
        };
        let steps = [
            (0x10, 0x100),
            (0x11, 0xf8),
            // Calls `b`.
            (0x40, 0xf0),
            (0x41, 0xf0),
            // Returns, and calls `d`.
            (0x15, 0xf8),
            (0x80, 0xf0),
            (0x41, 0xe8),
            (0x85, 0xf0),
            (0x1a, 0xf8),
        ];
        let walk = walk(&steps, functions);
        let found: Vec<_> =
            walk.iter().map(|it| (it.function, it.depth, it.callees.as_slice())).collect();
        let expected: [(char, usize, &[usize]); 4] =
            [('a', 0, &[1, 3]), ('b', 1, &[2]), ('c', 2, &[]), ('d', 1, &[1])];
        assert_eq!(found, expected);
    }
}
