//! Tests that cannot run here say so in one line that `cargo xtask test` finds and counts.

use std::fmt::Display;
use std::io::Write as _;

/// What the line of a skipped test starts with: `RINGRAIL-SKIP: test: reason`.
pub const SKIP_MARK: &str = "RINGRAIL-SKIP:";

/// Reports on standard error that the calling test does not run, and why.
///
/// `room` is the test's crate, the rest of its name comes from the thread that libtest runs it on.
/// The line goes past libtest's capture, so that it is seen when the test passes.
pub fn skip(room: &str, reason: &dyn Display) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("unnamed thread");
    let reason = reason.to_string().replace('\n', " ");
    // A closed standard error leaves nobody to tell.
    let _ = writeln!(std::io::stderr(), "{SKIP_MARK} {room}::{test}: {reason}");
}

/// Leaves the calling test, heard and counted, where a [`lab`](crate::lab) cannot be had.
///
/// A test that returns a value passes it: `require_lab!(Ok(()))`.
#[macro_export]
macro_rules! require_lab {
    ($($result:expr)?) => {
        if let Err(cause) = $crate::lab::available() {
            $crate::skip(env!("CARGO_CRATE_NAME"), &cause);
            return $($result)?;
        }
    };
}
