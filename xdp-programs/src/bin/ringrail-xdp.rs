//! `ringrail-xdp`: what XDP can do here, and a look at a NIC that ringrail uses.

use std::error::Error;
use std::io::{Read as _, stdin};
use std::process::ExitCode;

use ringrail_xdp::{AttachMode, Missing, Nic, memlock_bytes, verify};

const USAGE: &str = "usage: ringrail-xdp verify
       ringrail-xdp join NIC [auto|native|generic]

  verify  loads the program through the kernel's verifier, and prints what this user lacks
  join    joins the processes that use the program on a NIC (the first one attaches it), until
          standard input ends; then it prints what became of the frames, and leaves";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments[..] {
        ["verify"] => check(),
        ["join", nic] | ["join", nic, "auto"] => stay(nic, AttachMode::Auto),
        ["join", nic, "native"] => stay(nic, AttachMode::Native),
        ["join", nic, "generic"] => stay(nic, AttachMode::Generic),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ringrail-xdp: {error}");
            ExitCode::FAILURE
        }
    }
}

fn check() -> Result<(), Box<dyn Error>> {
    if let Some(missing) = Missing::of_this_thread() {
        println!("{missing}");
    }
    match memlock_bytes() {
        Some(bytes) => println!("locked memory: {} KiB (ulimit -l)", bytes / 1024),
        None => println!("locked memory: unlimited"),
    }
    let verified = verify()?;
    let frags = if verified.has_frags { "with" } else { "without" };
    println!("the program loads: {} instructions, {frags} jumbo frames", verified.instructions);
    Ok(())
}

fn stay(nic: &str, mode: AttachMode) -> Result<(), Box<dyn Error>> {
    let nic = Nic::join(nic, mode)?;
    let pinned = if nic.is_pinned() { "pinned" } else { "not pinned" };
    let (name, driver, queues) = (nic.name(), nic.driver(), nic.queues());
    println!("joined {name}: driver {driver:?}, {} mode, {queues} queues, {pinned}", nic.mode());
    stdin().read_to_end(&mut Vec::new())?;
    println!("{name}: {}", nic.counters()?);
    Ok(nic.is_attached()?)
}
