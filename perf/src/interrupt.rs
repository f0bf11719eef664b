//! Ctrl-C: what was measured by then is printed.
//!
//! The handler runs in a thread of its own, which waits until the signal comes, so that it ends the
//! process also where a measurement waits for a side that has gone.

use std::io::Write as _;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::process::{Pid, Signal, kill_process};

/// The exit code of a program that SIGINT ended, as shells have it.
pub(crate) const EXIT_CODE: u8 = 130;

type Print = Box<dyn FnOnce() + Send>;

/// What would be printed now; `None`: all that was measured has been.
static UNPRINTED: Mutex<Option<Print>> = Mutex::new(None);

/// SIGINT came while this process waits for another one to print.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// That one; 0: there is none.
static PRINTER: AtomicI32 = AtomicI32::new(0);

fn unprinted() -> MutexGuard<'static, Option<Print>> {
    UNPRINTED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From now on an interruption prints what was [offered](offer), and ends the process.
///
/// # Errors
/// No handler can be had, or there is one already.
pub(crate) fn print_what_is_there() -> Result<(), String> {
    let handler = || {
        // Whoever prints now ends first; nothing is printed after this.
        let mut unprinted = unprinted();
        match unprinted.take() {
            Some(print) => print(),
            None => eprintln!("ringrail-perf: interrupted"),
        }
        let _ = std::io::stdout().flush();
        std::process::exit(EXIT_CODE.into());
    };
    ctrlc::set_handler(handler).map_err(|error| format!("no handler of SIGINT: {error}"))
}

/// From now on an interruption ends nothing here: a terminal sends it to the process that prints,
/// too, and where it came to this process alone it is [passed on](pass_on_to).
///
/// # Errors
/// No handler can be had, or there is one already.
pub(crate) fn leave_to_others() -> Result<(), String> {
    let handler = || {
        INTERRUPTED.store(true, Ordering::Relaxed);
        if let Some(printer) = Pid::from_raw(PRINTER.load(Ordering::Relaxed)) {
            // It may have ended.
            let _ = kill_process(printer, Signal::INT);
        }
    };
    ctrlc::set_handler(handler).map_err(|error| format!("no handler of SIGINT: {error}"))
}

/// The process that prints, and that was not waited for; `None`: there is none any more.
pub(crate) fn pass_on_to(printer: Option<u32>) {
    let id = printer.and_then(|id| i32::try_from(id).ok()).unwrap_or_default();
    PRINTER.store(id, Ordering::Relaxed);
}

/// Whether SIGINT came and was left to others.
pub(crate) fn was_left_to_others() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// Has an interruption print this, in the place of what was offered before.
pub(crate) fn offer(print: impl FnOnce() + Send + 'static) {
    *unprinted() = Some(Box::new(print));
}

/// Prints, in the place of what was offered: never both, and never at the same time.
pub(crate) fn printing(print: impl FnOnce()) {
    let mut unprinted = unprinted();
    print();
    *unprinted = None;
}
