//! `cargo xtask`: set-up, demo, tests and checks, the same here and in CI.

mod check;
mod demo;
mod fuzz;
mod install;
mod instructions;
mod interop;
mod lossy;
mod man;
mod package;
mod run;
mod sanitize;
mod setup;
mod swarm;
mod test;
mod tidy;
mod walk;
mod watch;

use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask COMMAND

  setup   installs the system packages that are missing, and says which
  demo    the heat equation on two ranks, then latency and bandwidth of this host
  test    the tests of each change (calls setup); prints `N passed, N failed, N skipped` at the end
  test --all [--only PART,PART...] [--repeat N]
          the long set: short, units, models, uring, planted, swarm, fuzz, sanitize, demo, interop,
          and labs, where each lab test runs N times (300 unless given) by turns beside CPU load
  swarm   random runs of whole engines in a simulated network: `--seconds N [--jobs J]` runs new
          seeds, `--seeds N [--seed S] [--jobs J]` so many from one on, `--seed S` alone replays
          one run; `--planted N [--seed S]` looks for each planted bug in so many seeds,
          `--throughput N` measures the simulator with N sends and receives, `--figures` what
          simulated links carry; `--known-seeds` runs the seeds that failed once;
          `--compare FILE` runs the seeds of a file of wire hashes, such as
          engine/tests/wire-hashes.txt, and fails if engines send other bytes, `--wire-hashes FILE
          [--seeds N] [--seed S]` writes one, `--wire-log FILE --seed S` writes all that is sent
          in one run
  lossy   a million messages (or `--messages N`) between NICs that drop up to a tenth of all
          packets, as AF_XDP frames and by UDP; prints a table of the goodput. Wants root
  interop [--repeat N] [--only WORD,WORD] [--fabtests DIR]
          unmodified MPI programs over the libfabric provider: the system's Open MPI N times (3
          unless said otherwise), MPICH, Intel MPI and Open MPI 5 of PyPI, ranks that are killed,
          and fabtests, whose sources are in DIR or cloned; prints a table. Wants root
  mpi-compare [--rounds N] [--only WORD,WORD] [--most BYTES] [--json FILE]
          latency, bandwidth, message rate and overlap of Open MPI by ringrail and by what it has
          otherwise, by turns, between two hosts and on one, for each power of two up to 4 MiB (or
          BYTES); rows whose names have a WORD; prints a table of each. Wants root
  instructions
          counts what a message costs, by valgrind, and compares that with perf/instructions.json;
          part of test. Wants root
  walk [WORD ...] [--max-functions N] [--max-files N]
          the functions of the engine that one 8-byte message passes, before inlining, in the order
          of their first calls, with their files. Calls are inject, send, post and receive, by udp
          and shm; a WORD selects those that have it. A function whose body is one expression and
          calls no others is an accessor: it is marked, and counted beside the functions. Limits are
          of functions that are no accessors. Wants x86-64 and addr2line
  check [--all]
          format, tidy rules, lints (calls setup); licences and advisories where cargo-deny is
          installed. With --all also lints without default features, rustdoc, the packages for a
          registry, and cargo-deny is installed where it is missing

  package
          makes the packages for a registry and checks what is in them; part of check --all

  install [--prefix DIR] [--libdir DIR] [--destdir DIR] [--profile NAME] [--from DIR]
          [--strip yes|no]
          builds and installs libringrail, its header, programs, the libfabric provider, manual
          pages, completions of shells, files for pkg-config, CMake and systemd, examples and
          licences; DIR of --prefix is /usr/local unless said otherwise, --destdir (or DESTDIR)
          goes before all paths, and --from takes what a build has left there. Debug information
          is left out, by `strip` or what STRIP names. For /usr and /usr/local root also runs
          ldconfig

  fuzz [TARGET [--seconds N]], fuzz --all [--only wire,proto,xdp] [--seconds N]
          lists the fuzz targets, or plays one of them, all, or those in some modules: with
          libFuzzer, by cargo-bolero, which is installed where it is missing

  sanitize [address|thread] [ARGUMENTS OF cargo test]
          the engine's tests under AddressSanitizer and ThreadSanitizer, or one of them; not part
          of CI. Wants a nightly toolchain, to which it adds rust-src; without one AddressSanitizer
          makes do with this toolchain and the standard library as it comes";

fn main() -> ExitCode {
    let command = std::env::args().nth(1).unwrap_or_default();
    let done = match command.as_str() {
        "setup" => setup::run(),
        "demo" => demo::run(),
        "test" => test::run(&std::env::args().skip(2).collect::<Vec<_>>()),
        "swarm" => swarm::run(&std::env::args().skip(2).collect::<Vec<_>>()),
        "interop" => interop::run(&std::env::args().skip(2).collect::<Vec<_>>()),
        "mpi-compare" => interop::compare(&std::env::args().skip(2).collect::<Vec<_>>()),
        "lossy" => lossy::run(&std::env::args().skip(2).collect::<Vec<_>>()),
        "package" => package::check(),
        "check" => check::run(&std::env::args().skip(2).collect::<Vec<_>>()),
        "install" => install::run(&std::env::args().skip(2).collect::<Vec<_>>()),
        "instructions" => instructions::run(),
        "walk" => walk::run(&std::env::args().skip(2).collect::<Vec<_>>()),
        "fuzz" => fuzz::run(&std::env::args().skip(2).collect::<Vec<_>>()),
        "sanitize" => sanitize::run(&std::env::args().skip(2).collect::<Vec<_>>()),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask {command}: {error}");
            ExitCode::FAILURE
        }
    }
}
