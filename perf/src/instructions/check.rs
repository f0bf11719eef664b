//! `--check`: the lines of a file are counted again.

use std::panic::resume_unwind;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::Counter;
use super::row::{Figures, IDLE_PERCENT, MARGIN_PERCENT, Row};

/// How often a message is counted that seems to cost more than it did. A machine that is busy adds
/// to a count, by timers that fire while a program stands still, and never takes from it.
const TRIES: u32 = 3;

/// Counts the lines of a file again, and compares the figures.
pub(super) fn check(counter: &Counter, file: &Path) -> Result<(), String> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| format!("cannot read {}: {error}", file.display()))?;
    let saved: Result<Vec<Row>, _> = text.lines().map(serde_json::from_str).collect();
    let saved = saved.map_err(|error| format!("{}: {error}", file.display()))?;
    let (saved, skipped): (Vec<Row>, Vec<Row>) =
        saved.into_iter().partition(|row| counter.refuses(&row.what).is_none());
    for row in &skipped {
        let reason = counter.refuses(&row.what).unwrap_or_default();
        println!("skipped: {}: {reason}", row.what);
    }
    if saved.is_empty() {
        return Err(format!("{} has no line to compare with", file.display()));
    }
    let mut above = Vec::new();
    let mut counted: Vec<Row> = Vec::new();
    let first = count_all(counter, &saved);
    for (before, figures) in saved.into_iter().zip(first) {
        let mut alone = counted.iter_mut().find(|it| before.what.is_same_beside_idle(&it.what));
        let mut now = Row { what: before.what.clone(), figures: figures? };
        for _ in 1..TRIES {
            let differs = |alone: &&mut Row| now.figures.differ_from(&alone.figures);
            let again = match alone.as_deref_mut().filter(differs) {
                Some(alone) if alone.figures.instructions > now.figures.instructions => alone,
                Some(_) => &mut now,
                None if now.figures.exceed(&before.figures) => &mut now,
                None => break,
            };
            again.figures = again.figures.least(&counter.count(&again.what, has_lines(&before))?);
        }
        println!("{now}, {} before", before.figures.instructions);
        if now.figures.are_better(&before.figures) {
            println!("  that is better: put it into {}, or it may be lost again", file.display());
        }
        if now.figures.exceed(&before.figures) {
            above.push(format!("{now} ({} before)", before.figures));
        }
        if now.what.endpoints > 1 {
            let alone = alone.ok_or_else(|| {
                let name = file.display();
                format!("{name} has no line before it with one endpoint to compare with: {now}")
            })?;
            if now.figures.differ_from(&alone.figures) {
                return Err(format!(
                    "idle endpoints change what a message costs by more than \
                     {IDLE_PERCENT} %: {now}, and {} with one",
                    alone.figures.instructions
                ));
            }
        }
        counted.push(now);
    }
    match above[..] {
        [] => Ok(()),
        _ => Err(format!(
            "more than {MARGIN_PERCENT} % above the figures of {}: {}; find out why (--profile), \
             or state in the commit that raises them what that is good for",
            file.display(),
            above.join("; ")
        )),
    }
}

fn has_lines(saved: &Row) -> bool {
    saved.figures.code_lines.is_some() || saved.figures.data_lines.is_some()
}

/// Counts each line, as many at a time as there are cores. Returns the figures in the same order.
fn count_all(counter: &Counter, lines: &[Row]) -> Vec<Result<Figures, String>> {
    let cores = thread::available_parallelism().map_or(1, |cores| cores.get());
    let next = AtomicUsize::new(0);
    let work = || {
        let mut counts = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(line) = lines.get(at) else { return counts };
            counts.push((at, counter.count(&line.what, has_lines(line))));
        }
    };
    let mut counts: Vec<_> = thread::scope(|scope| {
        let workers: Vec<_> = (0..cores.min(lines.len())).map(|_| scope.spawn(work)).collect();
        let counts = workers.into_iter().map(|worker| worker.join());
        counts.flat_map(|counts| counts.unwrap_or_else(|panic| resume_unwind(panic))).collect()
    });
    counts.sort_by_key(|(at, _): &(usize, _)| *at);
    counts.into_iter().map(|(_, count)| count).collect()
}
