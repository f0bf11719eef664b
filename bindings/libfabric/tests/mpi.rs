//! Unmodified Open MPI over the provider: programs on one host and on two, and a rail that is cut.

#[path = "common/mpi.rs"]
mod mpi;

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::Stdio;
use std::time::Duration;

use mpi::{BOTH, By, Cluster, LIMIT, ONE, outcome, program};
use ringrail_tests::lab::LabSpec;
use ringrail_tests::require_lab;

/// What a program that has passed says.
fn assert_passed(said: &str, parts: usize) {
    let good = said.lines().filter(|line| line.ends_with(": good")).count();
    assert_eq!(good, parts, "all parts have passed:\n{said}");
}

#[test]
fn messages_of_four_ranks_on_two_hosts() {
    require_lab!();
    let cluster = Cluster::new(&LabSpec::rails(1));
    let run = &mut cluster.mpirun(4, &BOTH, By::Ringrail);
    assert_passed(&outcome(run, &program("messages"), &[]), 8);
}

#[test]
fn messages_of_two_ranks_on_one_host() {
    require_lab!();
    let cluster = Cluster::new(&LabSpec::rails(1));
    let run = &mut cluster.mpirun(2, &ONE, By::Ringrail);
    assert_passed(&outcome(run, &program("messages"), &[]), 8);
}

#[test]
fn collectives_of_four_ranks_with_two_rails() {
    require_lab!();
    let cluster = Cluster::new(&LabSpec::rails(2));
    let run = &mut cluster.mpirun(4, &BOTH, By::Ringrail);
    assert_passed(&outcome(run, &program("collectives"), &[]), 3);
}

#[test]
fn windows_of_two_ranks_on_two_hosts() {
    require_lab!();
    let cluster = Cluster::new(&LabSpec::rails(1));
    let run = &mut cluster.mpirun(2, &BOTH, By::Ringrail);
    assert_passed(&outcome(run, &program("windows"), &[]), 4);
}

#[test]
fn threads_of_two_ranks_on_two_hosts() {
    require_lab!();
    let cluster = Cluster::new(&LabSpec::rails(1));
    let run = &mut cluster.mpirun(2, &BOTH, By::Ringrail);
    assert_passed(&outcome(run, &program("threads"), &[]), 1);
}

/// One of two rails swallows everything from the first second on: the program does not notice.
#[test]
fn a_program_survives_the_cut_of_a_rail() {
    require_lab!();
    let cluster = Cluster::new(&LabSpec { switch: true, ..LabSpec::rails(2) });
    let steady = program("steady");
    let mut run = cluster.mpirun(2, &BOTH, By::Ringrail);
    let mut child =
        run.arg(&steady).arg("4").stdout(Stdio::piped()).spawn().expect("mpirun starts");
    let mut said = BufReader::new(child.inner().stdout.take().expect("it is piped"));
    let mut line = String::new();
    while !line.contains("begun") {
        line.clear();
        // Why is on the standard error of this test.
        assert!(said.read_line(&mut line).expect("lines") > 0, "it ended before it had begun");
    }
    std::thread::sleep(Duration::from_secs(1));
    // Not that of the launcher, which has no second way.
    cluster.lab.blackhole(1).expect("the rail is cut");
    let status = child.wait_timeout(LIMIT).expect("it can be waited for");
    let mut rest = String::new();
    said.read_to_string(&mut rest).expect("lines");
    assert!(status.is_some_and(|status| status.success()), "{status:?}: {rest}");
    assert!(rest.contains(" rounds in "), "{rest}");
}
