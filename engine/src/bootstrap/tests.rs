//! Tests of what all kinds of bootstrap have in common, and of what each one guarantees.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::*;

type Joined = Result<Box<dyn Bootstrap>, BootstrapError>;

const SHORT: Duration = Duration::from_millis(400);
/// Far above what anything here takes; a test that needs it has failed.
const LONG: Duration = Duration::from_secs(20);

fn member(rank: usize, size: usize, timeout: Duration) -> Member {
    Member { timeout, ..Member::new(rank, size) }
}

fn join_directory(path: &Path, member: Member) -> JoinHandle<Joined> {
    let path = path.to_path_buf();
    thread::spawn(move || Ok(Box::new(SharedDirectory::join(path, &member)?) as Box<_>))
}

fn join_tcp(port: u16, member: Member, listener: Option<TcpListener>) -> JoinHandle<Joined> {
    thread::spawn(move || {
        Ok(Box::new(Tcp::join_with("127.0.0.1", port, &member, listener)?) as Box<_>)
    })
}

fn listener() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

fn collect(joining: Vec<JoinHandle<Joined>>) -> Vec<Box<dyn Bootstrap>> {
    joining.into_iter().map(|one| one.join().unwrap().unwrap_or_else(|e| panic!("{e}"))).collect()
}

fn error(joining: JoinHandle<Joined>) -> BootstrapError {
    joining.join().unwrap().err().expect("joining must fail")
}

fn tcp_group(size: usize, timeout: Duration) -> Vec<Box<dyn Bootstrap>> {
    let (listener, port) = listener();
    let mut listener = Some(listener);
    // Rank 0 first in the list, so it takes the listener.
    collect(
        (0..size)
            .map(|rank| join_tcp(port, member(rank, size, timeout), listener.take()))
            .collect(),
    )
}

fn directory_group(path: &Path, size: usize, timeout: Duration) -> Vec<Box<dyn Bootstrap>> {
    collect((0..size).map(|rank| join_directory(path, member(rank, size, timeout))).collect())
}

/// Runs a check over a group of each kind.
fn with_each(size: usize, timeout: Duration, check: impl Fn(&str, Vec<Box<dyn Bootstrap>>)) {
    let threads = InProcess::group(size).unwrap();
    let threads = threads.into_iter().map(|one| Box::new(one.with_timeout(timeout)) as Box<_>);
    check("in process", threads.collect());
    let directory = tempfile::tempdir().unwrap();
    check("directory", directory_group(directory.path(), size, timeout));
    check("tcp", tcp_group(size, timeout));
}

/// Runs one body per rank, each on a thread of its own; results in rank order.
fn on_ranks<T: Send + 'static>(
    group: Vec<Box<dyn Bootstrap>>,
    body: impl Fn(&mut dyn Bootstrap) -> T + Clone + Send + 'static,
) -> Vec<T> {
    let threads = group.into_iter().map(|mut bootstrap| {
        let body = body.clone();
        thread::spawn(move || body(&mut *bootstrap))
    });
    threads.collect::<Vec<_>>().into_iter().map(|thread| thread.join().unwrap()).collect()
}

fn exchange_ranks(bootstrap: &mut dyn Bootstrap) -> Result<Vec<Vec<u8>>, BootstrapError> {
    let mine = [bootstrap.rank() as u8];
    exchange(bootstrap, "k", &mine)
}

#[test]
fn values_of_all_reach_all() {
    with_each(5, LONG, |kind, group| {
        let results = on_ranks(group, |bootstrap| {
            let rank = bootstrap.rank() as u8;
            assert_eq!(bootstrap.size(), 5);
            let mut seen = Vec::new();
            for round in 0..4u8 {
                // Lengths differ, and one is empty.
                let value = vec![rank ^ round; usize::from(rank) * 100];
                seen.push(exchange(bootstrap, &format!("round {round}"), &value).unwrap());
                bootstrap.barrier().unwrap();
            }
            // Earlier values stay.
            assert_eq!(bootstrap.get(2, "round 0").unwrap(), [2; 200]);
            seen
        });
        for seen in results {
            for (round, values) in seen.iter().enumerate() {
                for (rank, value) in values.iter().enumerate() {
                    assert_eq!(*value, vec![(rank ^ round) as u8; rank * 100], "{kind}");
                }
            }
        }
    });
}

#[test]
fn a_job_of_one_works() {
    with_each(1, LONG, |kind, group| {
        let values = on_ranks(group, |bootstrap| exchange(bootstrap, "k", b"v"));
        assert_eq!(values, [Ok(vec![b"v".to_vec()])], "{kind}");
    });
}

#[test]
fn misuse_is_an_error() {
    with_each(2, LONG, |kind, group| {
        on_ranks(group, |bootstrap| {
            bootstrap.put("twice", b"1").unwrap();
            let invalid = |result| matches!(result, Err(BootstrapError::Invalid { .. }));
            assert!(invalid(bootstrap.put("twice", b"2")));
            assert!(invalid(bootstrap.put("big", &vec![0; VALUE_BYTES_MAX + 1])));
            assert!(invalid(bootstrap.put(&"k".repeat(KEY_BYTES_MAX + 1), b"")));
            assert!(invalid(bootstrap.get(2, "twice").map(drop)));
            bootstrap.fence().unwrap();
            assert_eq!(bootstrap.get(1, "twice").unwrap(), b"1");
            let absent = bootstrap.get(0, "never").unwrap_err();
            assert_eq!(absent, BootstrapError::NotPut { rank: 0, key: "never".into() });
            // As much as may be put in one go arrives.
            let mut put = 0;
            while bootstrap.put(&format!("bulk {put}"), &vec![7; VALUE_BYTES_MAX]).is_ok() {
                put += 1;
            }
            assert_eq!(put, PART_BYTES_MAX / VALUE_BYTES_MAX - 1);
            bootstrap.fence().unwrap();
            assert_eq!(bootstrap.get(0, "bulk 0").unwrap().len(), VALUE_BYTES_MAX);
        });
        let _ = kind;
    });
}

#[test]
fn leaving_rank_fails_waiting_ranks() {
    with_each(3, LONG, |kind, group| {
        let started = Instant::now();
        let results = on_ranks(group, |bootstrap| match bootstrap.rank() {
            1 => Ok(()),
            _ => bootstrap.barrier(),
        });
        assert!(started.elapsed() < LONG / 2, "{kind}");
        for rank in [0, 2] {
            let result = &results[rank];
            assert!(matches!(result, Err(BootstrapError::PeerLost { .. })), "{kind}: {result:?}");
        }
    });
}

#[test]
fn late_ranks_are_named() {
    with_each(3, SHORT, |kind, group| {
        let results = on_ranks(group, |bootstrap| match bootstrap.rank() {
            2 => {
                thread::sleep(SHORT * 4);
                bootstrap.barrier()
            }
            _ => bootstrap.barrier(),
        });
        // The first rank to give up reports it to the others, so at least one names the late rank.
        assert!(results.iter().all(Result::is_err), "{kind}: {results:?}");
        let named = results.iter().flat_map(|result| result.as_ref().err());
        let named = named.filter(|error| matches!(error, BootstrapError::Timeout { .. }));
        assert!(
            named.into_iter().any(|e| e.to_string().contains("ranks 2")),
            "{kind}: {results:?}"
        );
    });
}

#[test]
fn mismatched_collective_calls_are_an_error() {
    with_each(2, LONG, |kind, group| {
        let results = on_ranks(group, |bootstrap| match bootstrap.rank() {
            0 => bootstrap.fence(),
            _ => bootstrap.barrier(),
        });
        for result in results {
            assert!(matches!(result, Err(BootstrapError::OutOfStep { .. })), "{kind}: {result:?}");
        }
    });
}

#[test]
fn impossible_members_are_refused() {
    for (rank, size) in [(0, 0), (2, 2), (0, RANKS_MAX + 1)] {
        let invalid = |error| matches!(error, Some(BootstrapError::Invalid { .. }));
        assert!(invalid(Tcp::join("127.0.0.1", 1, &member(rank, size, SHORT)).err()));
        assert!(invalid(SharedDirectory::join("/nonexistent", &member(rank, size, SHORT)).err()));
    }
    assert!(InProcess::group(0).is_err());
}

fn is_duplicate(error: &BootstrapError, rank: usize) -> bool {
    matches!(error, BootstrapError::DuplicateRank { rank: named, .. } if *named == rank)
}

#[test]
fn two_ranks_zero_on_one_port_both_fail() {
    let (reserved, port) = listener();
    drop(reserved);
    for size in [2, 3] {
        let both = [0, 0].map(|rank| join_tcp(port, member(rank, size, LONG), None));
        for error in both.map(error) {
            assert!(is_duplicate(&error, 0), "{error}");
        }
    }
}

#[test]
fn a_rank_zero_that_serves_elsewhere_and_the_one_it_reaches_both_fail() {
    // As two hosts would: each has its own listener, but the address leads both to the first.
    let (first, port) = listener();
    let (second, _) = listener();
    let first = join_tcp(port, member(0, 2, LONG), Some(first));
    let second = join_tcp(port, member(0, 2, LONG), Some(second));
    for error in [first, second].map(error) {
        assert!(is_duplicate(&error, 0), "{error}");
    }
}

#[test]
fn a_late_second_rank_zero_of_one_fails_the_first_too() {
    let (reserved, port) = listener();
    let mut first = join_tcp(port, member(0, 1, LONG), Some(reserved)).join().unwrap().unwrap();
    let second = error(join_tcp(port, member(0, 1, LONG), None));
    assert!(is_duplicate(&second, 0), "{second}");
    let reported = first.barrier().unwrap_err();
    assert!(is_duplicate(&reported, 0), "{reported}");
}

#[test]
fn duplicates_of_other_ranks_fail_the_whole_job() {
    let (listener, port) = listener();
    let zero = join_tcp(port, member(0, 3, LONG), Some(listener));
    let ones = [1, 1].map(|rank| join_tcp(port, member(rank, 3, LONG), None));
    for error in [zero].into_iter().chain(ones).map(error) {
        assert!(is_duplicate(&error, 1), "{error}");
    }
}

#[test]
fn disagreement_about_the_size_fails_both() {
    let (listener, port) = listener();
    let tcp = join_tcp(port, member(0, 2, LONG), Some(listener));
    let other = join_tcp(port, member(1, 4, LONG), None);
    let directory = tempfile::tempdir().unwrap();
    let zero = join_directory(directory.path(), member(0, 2, LONG));
    let one = join_directory(directory.path(), member(1, 4, LONG));
    for error in [tcp, other, zero, one].map(error) {
        assert!(matches!(error, BootstrapError::SizeMismatch { .. }), "{error}");
        assert!(error.to_string().contains("rank 1"), "{error}");
    }
}

#[test]
fn rank_zero_may_start_last_and_invalid_clients_are_ignored() {
    let (reserved, port) = listener();
    drop(reserved);
    let others = [1, 2].map(|rank| join_tcp(port, member(rank, 3, LONG), None));
    thread::sleep(Duration::from_millis(200));
    let zero = join_tcp(port, member(0, 3, LONG), None);
    let group = collect([zero].into_iter().chain(others).collect());
    let connect = || TcpStream::connect(("127.0.0.1", port)).unwrap();
    let hello =
        |size: u32, rest: &[u8]| [b"RRBOOT\0\x01", &size.to_le_bytes()[..], &[1], rest].concat();
    let silent = connect();
    let mut invalid_clients = Vec::new();
    for garbage in [
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        vec![0xff; 100_000],
        b"RRBO".to_vec(),
        hello(u32::MAX, &[]),
        hello(3, &[1, 2, 3]),
        hello(24, &[0xff; 24]),
        hello(0, &[]),
    ] {
        let mut client = connect();
        // It may be closed before all is written.
        let _ = client.write_all(&garbage);
        invalid_clients.push(client);
    }
    let values = on_ranks(group, exchange_ranks);
    for value in values {
        assert_eq!(value.unwrap(), [[0], [1], [2]]);
    }
    drop((silent, invalid_clients));
}

#[test]
fn a_port_of_another_program_is_named() {
    let (busy, port) = listener();
    let serving = thread::spawn(move || {
        // Answers every client like a web server until the test's own connection sends `stop`.
        for stream in busy.incoming() {
            let mut stream = stream.unwrap();
            let mut first = [0; 4];
            let _ = stream.read(&mut first);
            if &first == b"stop" {
                return;
            }
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let zero = error(join_tcp(port, member(0, 2, SHORT), None));
    assert!(matches!(zero, BootstrapError::System { .. }), "{zero}");
    assert!(zero.to_string().contains("MASTER_PORT"), "{zero}");
    let one = error(join_tcp(port, member(1, 2, SHORT), None));
    assert!(matches!(one, BootstrapError::Timeout { .. }), "{one}");
    TcpStream::connect(("127.0.0.1", port)).unwrap().write_all(b"stop").unwrap();
    serving.join().unwrap();
}

#[test]
fn missing_ranks_are_named_and_missing_rank_zero_times_out() {
    let (listener, port) = listener();
    let zero = join_tcp(port, member(0, 4, SHORT), Some(listener));
    let two = join_tcp(port, member(2, 4, LONG), None);
    for error in [zero, two].map(error) {
        assert!(error.to_string().contains("ranks 1, 3"), "{error}");
    }
    let alone = error(join_tcp(port, member(1, 2, SHORT), None));
    assert!(alone.to_string().contains("for rank 0 at 127.0.0.1"), "{alone}");
    let directory = tempfile::tempdir().unwrap();
    let zero = error(join_directory(directory.path(), member(0, 4, SHORT)));
    assert!(zero.to_string().contains("ranks 1, 2, 3"), "{zero}");
}

#[test]
fn another_job_on_the_port_is_refused_without_harm() {
    let (listener, port) = listener();
    let zero = join_tcp(port, member(0, 2, LONG), Some(listener));
    let foreign = Member { job: "other".into(), ..member(1, 2, SHORT) };
    let refused = error(join_tcp(port, foreign, None));
    let refused = refused.to_string();
    let is_named = refused.contains("job `other`") || refused.contains("not `other`");
    assert!(is_named, "{refused}");
    let one = join_tcp(port, member(1, 2, LONG), None);
    assert_eq!(collect(vec![zero, one]).len(), 2);
}

#[test]
fn refusal_is_reported_although_the_last_attempt_timed_out() {
    let (rank_zero, port) = listener();
    let serving = thread::spawn(move || {
        let (mut first, _) = rank_zero.accept().unwrap();
        first.write_all(b"\x05\0\0\0\x03never").unwrap();
        // The kernel accepts the next connection; no process answers it.
        (rank_zero, first)
    });
    let refused = error(join_tcp(port, member(1, 2, SHORT * 5), None)).to_string();
    assert!(refused.contains("never"), "{refused}");
    drop(serving.join().unwrap());
}

#[test]
fn death_of_a_rank_is_reported_to_the_others() {
    let (listener, port) = listener();
    let zero = join_tcp(port, member(0, 3, LONG), Some(listener));
    let one = join_tcp(port, member(1, 3, LONG), None);
    // A proper rank 2 that is killed: its kernel closes the connection without a goodbye.
    let mut two = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let mut body = [2u32.to_le_bytes(), 3u32.to_le_bytes()].concat();
    body.extend_from_slice(&[9; 16]);
    body.extend_from_slice(&[0; 8]);
    let hello = [b"RRBOOT\0\x01", &(body.len() as u32).to_le_bytes()[..], &[1], &body].concat();
    two.write_all(&hello).unwrap();
    // Its part of joining, so that the job starts.
    two.write_all(&[&[9, 0, 0, 0, 4][..], &[0; 9]].concat()).unwrap();
    let group = collect(vec![zero, one]);
    drop(two);
    for result in on_ranks(group, |bootstrap| bootstrap.barrier()) {
        let error = result.unwrap_err();
        assert!(matches!(error, BootstrapError::PeerLost { .. }), "{error}");
        assert!(error.to_string().contains("rank 2"), "{error}");
    }
}

#[test]
fn directories_are_left_as_they_were() {
    let directory = tempfile::tempdir().unwrap();
    let group = directory_group(directory.path(), 3, LONG);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    on_ranks(group, |bootstrap| exchange(bootstrap, "k", b"v").unwrap());
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn leftovers_of_a_dead_job_are_ignored() {
    let directory = tempfile::tempdir().unwrap();
    let job = directory.path().join("ringrail-");
    let old = |digit: char| digit.to_string().repeat(32);
    let room = job.join(format!("session-{}", old('0')));
    fs::create_dir_all(&room).unwrap();
    // A whole job of two, killed in its first fence; one rank had another size before that.
    fs::write(job.join("session"), format!("{}\n2\n{}\n{}", old('0'), old('0'), old('1'))).unwrap();
    for rank in 0..2 {
        fs::write(job.join(format!("lock-{rank}")), format!("{} 2 old", old('a'))).unwrap();
        let size = 2 + rank;
        fs::write(job.join(format!("join-{rank}")), format!("{} {size} old", old('1'))).unwrap();
        fs::write(room.join(format!("ack-{rank}")), old('1')).unwrap();
        fs::write(room.join(format!("part-0-{rank}")), "stale").unwrap();
    }
    fs::write(room.join("abort"), "stale").unwrap();
    let zero = join_directory(directory.path(), member(0, 2, LONG));
    thread::sleep(Duration::from_millis(100));
    let one = join_directory(directory.path(), member(1, 2, LONG));
    let values = on_ranks(collect(vec![zero, one]), |bootstrap| exchange_ranks(bootstrap).unwrap());
    assert_eq!(values, [[[0], [1]], [[0], [1]]]);
}

#[test]
fn jobs_follow_each_other_in_one_directory() {
    let directory = tempfile::tempdir().unwrap();
    for run in 0..5u8 {
        let group = directory_group(directory.path(), 2, LONG);
        let values = on_ranks(group, move |bootstrap| exchange(bootstrap, "k", &[run]).unwrap());
        assert_eq!(values, [[[run], [run]], [[run], [run]]]);
    }
}

#[test]
fn two_of_a_rank_in_one_directory_both_fail() {
    for rank in [0, 1] {
        let directory = tempfile::tempdir().unwrap();
        let both = [rank, rank].map(|rank| join_directory(directory.path(), member(rank, 3, LONG)));
        for error in both.map(error) {
            assert!(is_duplicate(&error, rank), "{error}");
        }
    }
}

/// Creates the job's directory, as an earlier job or another user would.
fn job_directory(parent: &Path, mode: u32) -> PathBuf {
    let job = parent.join("ringrail-");
    fs::DirBuilder::new().mode(mode).create(&job).unwrap();
    // The mask takes nothing away.
    fs::set_permissions(&job, fs::Permissions::from_mode(mode)).unwrap();
    job
}

#[test]
fn links_in_place_of_files_are_not_followed() {
    let linked = |name: &str, link: fn(&Path, &Path) -> std::io::Result<()>| {
        let directory = tempfile::tempdir().unwrap();
        let precious = directory.path().join("precious");
        fs::write(&precious, "mine").unwrap();
        link(&precious, &job_directory(directory.path(), 0o700).join(name)).unwrap();
        let joined = join_directory(directory.path(), member(0, 1, SHORT)).join().unwrap();
        assert_eq!(fs::read_to_string(&precious).unwrap(), "mine", "{name}");
        joined.err().map(|error| error.to_string())
    };
    for name in ["lock-0", "join-0", "session"] {
        let refusal = linked(name, |to, at| std::os::unix::fs::symlink(to, at));
        // What is renamed over a link takes its place.
        assert_eq!(refusal.is_some(), name == "lock-0", "{name}: {refusal:?}");
        assert!(refusal.is_none_or(|words| words.contains("lock-0: it is a link")));
    }
    let refusal = linked("lock-0", |to, at| fs::hard_link(to, at)).expect("refused");
    assert!(refusal.contains("other names"), "{refusal}");
}

#[test]
fn a_directory_that_others_can_change_is_refused() {
    let refusal = |path: &Path| error(join_directory(path, member(0, 1, SHORT))).to_string();
    for mode in [0o770, 0o703, 0o1777] {
        let directory = tempfile::tempdir().unwrap();
        job_directory(directory.path(), mode);
        let words = refusal(directory.path());
        assert!(words.contains("others may write"), "{mode:o}: {words}");
    }
    // The creator of a link may change its target at any time.
    let directory = tempfile::tempdir().unwrap();
    let elsewhere = directory.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, directory.path().join("ringrail-")).unwrap();
    let words = refusal(directory.path());
    assert!(words.contains("it is a link"), "{words}");
    assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
}

#[test]
fn a_directory_of_another_user_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let job = job_directory(directory.path(), 0o700);
    if let Err(error) = std::os::unix::fs::chown(&job, Some(65_534), None) {
        // Past libtest's capture, so that it is counted when the test passes.
        let _ = writeln!(
            std::io::stderr(),
            "RINGRAIL-SKIP: bootstrap::tests: no directory can be given away: {error}"
        );
        return;
    }
    let words = error(join_directory(directory.path(), member(0, 1, SHORT))).to_string();
    assert!(words.contains("it belongs to user 65534"), "{words}");
    assert_eq!(fs::read_dir(&job).unwrap().count(), 0);
}

#[test]
fn a_directory_that_cannot_be_made_is_named() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let failed = error(join_directory(file.path(), member(0, 1, SHORT)));
    assert!(failed.to_string().contains(&file.path().display().to_string()), "{failed}");
}

#[test]
fn environment_selects_the_bootstrap() {
    let directory = tempfile::tempdir().unwrap();
    let choice = format!("dir:{}", directory.path().display());
    let set = [("RANK", "0"), ("WORLD_SIZE", "1"), ("RINGRAIL_BOOTSTRAP", &*choice)];
    let mut by_directory = from_variables(set).unwrap();
    assert_eq!(exchange(&mut *by_directory, "k", b"v").unwrap(), [b"v"]);
    let (reserved, port) = listener();
    drop(reserved);
    let port = port.to_string();
    let set =
        [("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "localhost"), ("MASTER_PORT", &*port)];
    assert_eq!(exchange(&mut *from_variables(set).unwrap(), "k", b"v").unwrap(), [b"v"]);
}
