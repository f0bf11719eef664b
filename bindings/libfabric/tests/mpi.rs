//! Unmodified Open MPI over the provider: programs on one host and on two, and a rail that is cut.
//! `cargo xtask interop` runs the same again and again, and with other MPIs.

#[path = "common/mpi.rs"]
mod mpi;

use mpi::{BOTH, By, CASES, Case, program, with_a_rail_cut};
use ringrail_tests::require_lab;

fn run(case: &Case, by: By) {
    let mpirun = |cluster: &mpi::Cluster| cluster.mpirun(case.ranks, case.hosts, by);
    if let Err(error) = case.run(&program(case.program), mpirun) {
        panic!("{error}");
    }
}

#[test]
fn messages_of_four_ranks_on_two_hosts() {
    require_lab!();
    run(&CASES[0], By::Ringrail);
}

#[test]
fn messages_of_two_ranks_on_one_host() {
    require_lab!();
    run(&CASES[1], By::Ringrail);
}

#[test]
fn messages_of_four_ranks_by_puts_and_gets() {
    require_lab!();
    run(&CASES[0], By::RingrailBtl);
}

#[test]
fn collectives_of_four_ranks_with_two_rails() {
    require_lab!();
    run(&CASES[2], By::Ringrail);
}

#[test]
fn windows_of_two_ranks_on_two_hosts() {
    require_lab!();
    run(&CASES[3], By::Ringrail);
}

#[test]
fn threads_of_two_ranks_on_two_hosts() {
    require_lab!();
    run(&CASES[4], By::Ringrail);
}

#[test]
fn a_program_survives_the_cut_of_a_rail() {
    require_lab!();
    let cut = with_a_rail_cut(&program("steady"), |it| it.mpirun(2, &BOTH, By::Ringrail));
    if let Err(error) = cut {
        panic!("{error}");
    }
}
