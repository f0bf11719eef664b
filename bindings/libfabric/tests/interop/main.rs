//! The long set of `cargo xtask interop`: MPIs other than the system's, the short set again and
//! again, ranks that are killed, fabtests. Each step has its time, and one that cannot be run says
//! why; a table closes.

#[path = "../common/mpi.rs"]
mod mpi;

mod compare;
mod fabtests;
mod others;
mod table;

use std::env;
use std::process::Stdio;
use std::time::{Duration, Instant};

use mpi::{BOTH, By, CASES, Cluster, HALO, SPAWN, SPAWN_NEAR, Said, program, with_a_rail_cut};
use others::Other;
use ringrail_tests::lab::{LabCommand, LabSpec};
use ringrail_tests::require_lab;
use table::{Outcome, Table};

/// How often the short set is run.
const REPEAT: &str = "TEST_OF_RINGRAIL_REPEAT";
/// Steps whose names contain one of these words, apart by commas; all if it is not there.
const ONLY: &str = "TEST_OF_RINGRAIL_ONLY";

/// How soon the other ranks know that one was killed.
const KNOWN_WITHIN: Duration = Duration::from_secs(5);

#[test]
#[ignore = "takes half an hour: cargo xtask interop"]
fn all_consumers() {
    require_lab!();
    let repeat = env::var(REPEAT).map_or(3, |text| text.parse().expect("a number"));
    let only = env::var(ONLY).unwrap_or_default();
    let mut table = Table::new(&only);
    let name = "Open MPI 4.1 (system)";
    let open_mpi =
        |ranks, hosts| move |it: &Cluster| -> LabCommand { it.mpirun(ranks, hosts, By::Ringrail) };
    table.step(&format!("{name}: goes by ringrail"), 1, || {
        goes_by_ringrail(&program("messages"), open_mpi(2, &BOTH))
    });
    for case in CASES.iter().chain([&SPAWN_NEAR]) {
        table.step(&case.name(name), repeat, || {
            case.run(&program(case.program), open_mpi(case.ranks, case.hosts)).into()
        });
    }
    table.step(&format!("{name}: steady, a rail is cut"), repeat, || {
        with_a_rail_cut(&program("steady"), open_mpi(2, &BOTH)).into()
    });
    // Its launcher would end them all before they know by themselves.
    table.step(&format!("{name}: a rank is killed"), repeat.min(10), || {
        a_rank_is_killed(&program("killed"), |cluster| {
            let mut run = cluster.mpirun(3, &BOTH, By::Ringrail);
            run.arg("--enable-recovery");
            run
        })
    });
    for other in others::ALL {
        others_of(&mut table, &other, repeat.min(3));
    }
    fabtests::run(&mut table, &only);
    table.close();
}

/// What `measure` finds, of the provider and of its peers.
#[test]
#[ignore = "takes minutes: cargo xtask mpi-compare"]
fn mpi_compare() {
    require_lab!();
    let rounds = env::var(REPEAT).map_or(3, |text| text.parse().expect("a number"));
    compare::compare(rounds, &env::var(ONLY).unwrap_or_default());
}

/// The same with an MPI of PyPI.
fn others_of(table: &mut Table, other: &Other, repeat: usize) {
    let of_other = |what| other.step(what);
    let spawn = if other.is_open_mpi() { SPAWN_NEAR } else { SPAWN };
    let steps: Vec<String> = CASES
        .iter()
        .map(|case| case.name(other.name()))
        .chain(["steady, a rail is cut", "a rank is killed", "goes by ringrail"].map(of_other))
        .chain([spawn, HALO].map(|case| case.name(other.name())))
        .chain(other.is_open_mpi().then(|| other.step("survivors of a killed rank go on")))
        .collect();
    if !table.wants_any(&steps) {
        return;
    }
    let installed = match other.install() {
        Ok(installed) => installed,
        Err(why) => {
            return steps.iter().for_each(|step| table.not_run(step, &why));
        }
    };
    for (case, step) in CASES.iter().zip(&steps) {
        table.step(step, repeat, || {
            let program = match installed.compile(case.program) {
                Ok(program) => program,
                Err(error) => return Outcome::Failed(error),
            };
            case.run(&program, |it| installed.mpirun(it, case.ranks, case.hosts, false)).into()
        });
    }
    let with = |name| installed.compile(name);
    table.step(&steps[CASES.len() + 3], repeat, || match with(spawn.program) {
        Ok(program) => {
            let mpirun = |it: &_| installed.mpirun(it, spawn.ranks, spawn.hosts, false);
            spawn.run(&program, mpirun).into()
        }
        Err(error) => Outcome::Failed(error),
    });
    match installed.python() {
        Ok(python) => table.step(&steps[CASES.len() + 4], repeat, || {
            let mpirun = |it: &_| installed.mpirun(it, HALO.ranks, HALO.hosts, false);
            let halo = concat!(env!("CARGO_MANIFEST_DIR"), "/mpi/halo.py");
            HALO.run_with(&python, &[halo], mpirun).into()
        }),
        Err(why) => table.not_run(&steps[CASES.len() + 4], &why),
    }
    table.step(&steps[CASES.len() + 2], 1, || match with("messages") {
        Ok(messages) => goes_by_ringrail(&messages, |it| installed.mpirun(it, 2, &BOTH, false)),
        Err(error) => Outcome::Failed(error),
    });
    table.step(&steps[CASES.len()], repeat, || match with("steady") {
        Ok(steady) => with_a_rail_cut(&steady, |it| installed.mpirun(it, 2, &BOTH, false)).into(),
        Err(error) => Outcome::Failed(error),
    });
    table.step(&steps[CASES.len() + 1], repeat, || match with("killed") {
        Ok(killed) => a_rank_is_killed(&killed, |it| installed.mpirun(it, 3, &BOTH, true)),
        Err(error) => Outcome::Failed(error),
    });
    if let Some(step) = steps.get(CASES.len() + 5) {
        table.step(step, repeat, || match with("survivors") {
            Ok(program) => survivors_go_on(&program, |it| installed.mpirun_with_failures(it, 4)),
            Err(error) => Outcome::Failed(error),
        });
    }
}

/// One of four ranks is killed: the others shrink their communicator and use it.
fn survivors_go_on(
    program: &std::path::Path,
    mpirun: impl FnOnce(&Cluster) -> LabCommand,
) -> Outcome {
    let cluster = Cluster::new(&LabSpec::rails(1));
    let mut command = mpirun(&cluster);
    let output = match command.arg(program).output(Duration::from_secs(60)) {
        Ok(output) => output,
        Err(error) => return Outcome::Failed(error.to_string()),
    };
    let printed = String::from_utf8_lossy(&output.stdout);
    if printed.lines().filter(|line| line.ends_with("3 survive: ok")).count() == 3 {
        return Outcome::Passed;
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    Outcome::Failed(format!("{}:\n{printed}{errors}", output.status))
}

/// A program that cannot run where ringrail has no NIC, and says so, does not go another way
/// elsewhere.
fn goes_by_ringrail(
    program: &std::path::Path,
    mpirun: impl FnOnce(&Cluster) -> LabCommand,
) -> Outcome {
    let cluster = Cluster::new(&LabSpec::rails(1));
    let mut command = mpirun(&cluster);
    command.arg(program).env("RINGRAIL_NICS", "no-such-nic");
    let output = match command.output(Duration::from_secs(60)) {
        Ok(output) => output,
        Err(error) => return Outcome::Failed(error.to_string()),
    };
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let line = errors.lines().find(|line| line.contains("ringrail: no NIC can be used"));
    match line.filter(|_| !output.status.success()) {
        Some(_) => Outcome::Passed,
        None => Outcome::Failed(format!(
            "without a NIC for ringrail it ends with {}, not with a line that says so:\n{}{errors}",
            output.status,
            String::from_utf8_lossy(&output.stdout)
        )),
    }
}

/// The last of three ranks is killed: the others end with an error of MPI, or are ended by a
/// launcher that one of them has told. All of it within [`KNOWN_WITHIN`].
fn a_rank_is_killed(
    killed: &std::path::Path,
    mpirun: impl FnOnce(&Cluster) -> LabCommand,
) -> Outcome {
    match known_after(killed, mpirun) {
        Ok(took) => Outcome::PassedWith(format!("over {:.2} s after that", took.as_secs_f64())),
        Err(why) => Outcome::Failed(why),
    }
}

fn known_after(
    killed: &std::path::Path,
    mpirun: impl FnOnce(&Cluster) -> LabCommand,
) -> Result<Duration, String> {
    let cluster = Cluster::new(&LabSpec::rails(1));
    let mut command = mpirun(&cluster);
    command.arg(killed).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    let said = Said::by(&mut child);
    said.until("begun")?;
    let began = Instant::now();
    let status = child.wait_timeout(Duration::from_secs(60)).map_err(|error| error.to_string())?;
    let took = began.elapsed();
    let Some(status) = status else {
        return Err("no end within a minute".to_owned());
    };
    drop(child);
    let rest = said.rest();
    let after = |line: &str| -> Option<f64> {
        line.split_once(": error after ")?.1.split_once(' ')?.0.parse().ok()
    };
    let knew: Vec<f64> = rest.lines().filter_map(after).collect();
    let is_late = |seconds: &f64| *seconds > KNOWN_WITHIN.as_secs_f64();
    let is_wrong = rest.contains("nothing after") || knew.iter().any(is_late);
    // Where a launcher is told to leave them alone it may say that all is well; another one has
    // ended those who have said nothing.
    let is_told = knew.len() == 2 || (!status.success() && took <= KNOWN_WITHIN);
    if is_wrong || !is_told {
        return Err(format!("{status} after {took:?}: {rest}"));
    }
    Ok(took)
}
