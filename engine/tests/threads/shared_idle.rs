//! What shared and dedicated engines cost while nothing happens: no wake-up but for what is due. In
//! a process of its own, for it counts the wake-ups of all threads of its process.

use std::collections::BTreeMap;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{domain, own_process};
use ringrail::{
    CompletionLevel, Endpoint, Envelope, ReceiveOptions, Selector, SendOptions, Shared,
};

const TAG: Envelope = Envelope::tagged(1);
const LIMIT: Duration = Duration::from_secs(20);
const REST: Duration = Duration::from_secs(2);

/// How often each thread but this one slept so far, by number and name.
fn sleeps() -> BTreeMap<(i32, String), u64> {
    let own = rustix::thread::gettid().as_raw_nonzero().get();
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let of_task = |path: std::path::PathBuf| {
        let number = path.file_name()?.to_str()?.parse().ok()?;
        let name = fs::read_to_string(path.join("comm")).ok()?.trim().to_owned();
        let status = fs::read_to_string(path.join("status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        Some(((number, name), line.trim().parse().ok()?))
    };
    let all = tasks.filter_map(|task| of_task(task.unwrap().path()));
    all.filter(|((number, _), _)| *number != own).collect()
}

fn exchange(endpoint: &Endpoint<Shared>, other: &Endpoint<Shared>) {
    let peer = endpoint.insert_peer(&other.address()).unwrap();
    let quiet = ReceiveOptions::new().silent(true);
    let delivered = SendOptions::at(CompletionLevel::Delivery).timeout(LIMIT);
    for _ in 0..100 {
        other.post_receive(Selector::from_any(TAG), vec![0; 8], quiet).unwrap();
        endpoint.send_blocking(peer, TAG, &[0; 8], delivered).unwrap();
    }
}

#[test]
fn idle_engines_sleep() {
    own_process::run("shared_idle::idle_engines_sleep", watch_idle_engines);
}

fn watch_idle_engines() {
    // Keep-alives are sent far apart.
    let own = domain(&[("peer_timeout", "120s")]);
    let new = || own.endpoint().unwrap();
    let (shared, waited_for) = (new().share().unwrap(), new().share().unwrap());
    let dedicated = [new().dedicate().unwrap(), new().dedicate().unwrap()];
    exchange(&shared, &dedicated[0]);
    exchange(&dedicated[0], &dedicated[1]);
    exchange(&dedicated[1], &waited_for);
    exchange(&waited_for, &shared);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let selector = Selector::from_any(Envelope::tagged(2));
            let options = ReceiveOptions::new().timeout(Duration::from_secs(60));
            waited_for.receive_blocking(selector, &mut [0; 8], options).unwrap();
        });
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let before = sleeps();
            assert!(before.len() >= 4, "a caretaker, two engines and who waits: {before:?}");
            thread::sleep(REST);
            let after = sleeps();
            let woken = after.iter().filter(|(task, count)| before.get(task) != Some(count));
            let woken: Vec<_> = woken.collect();
            if woken.is_empty() {
                break;
            }
            assert!(Instant::now() < deadline, "in {REST:?} woke {woken:?} of {before:?}");
        }
        let peer = shared.insert_peer(&waited_for.address()).unwrap();
        shared.send_blocking(peer, Envelope::tagged(2), &[0; 8], SendOptions::new()).unwrap();
        waiter.join().unwrap();
    });
}
