//! Installed files have no debug information: it is ten times as large as the code.

use std::path::Path;
use std::process::Command;

use crate::run::run as execute;

/// What of a file is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Symbols that linkers need.
    Archive,
    /// Names of functions, which profilers and valgrind show.
    Shared,
    /// Dynamic symbols.
    Program,
}

impl Kind {
    fn option(self) -> &'static str {
        match self {
            Self::Archive => "--strip-debug",
            Self::Shared => "--strip-debug",
            Self::Program => "--strip-all",
        }
    }
}

/// Strips a file in its place, by `strip` or what the variable STRIP names.
pub(super) fn strip(file: &Path, kind: Kind) -> Result<(), String> {
    let program = std::env::var_os("STRIP").unwrap_or_else(|| "strip".into());
    let mut command = Command::new(program);
    execute(command.arg(kind.option()).arg(file)).map_err(|error| {
        format!(
            "{error}; install binutils, name the program of the target by STRIP, or keep the \
             debug information by --strip no"
        )
    })
}
