//! Why a lab cannot be had.

use std::io;

/// Why a lab cannot be had, or something cannot run in it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// The text that describes the lab is wrong.
    #[error("lab spec {text:?}: {reason}")]
    Spec {
        /// The text.
        text: String,
        /// What is wrong with it.
        reason: String,
    },
    /// This process may not make network namespaces.
    #[error("no lab without root: the kernel refuses {refused} ({source}); run as root")]
    Unprivileged {
        /// What was refused.
        refused: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// iproute2 is missing.
    #[error("no lab without `{tool}` of iproute2 ({source}); `cargo xtask setup` installs it")]
    NoTool {
        /// The program: `ip` or `tc`.
        tool: &'static str,
        /// What running it gave.
        source: io::Error,
    },
    /// `ip` or `tc` refused a command.
    #[error("building the lab: `{tool}` failed: {stderr}")]
    Refused {
        /// The program.
        tool: &'static str,
        /// What it wrote.
        stderr: String,
    },
    /// A rail carries no traffic although everything was set up.
    #[error("building the lab: {nic} is {state:?} {waited_s} s after it was switched on")]
    Down {
        /// The interface.
        nic: String,
        /// Its operational state.
        state: String,
        /// How long it was given, in seconds.
        waited_s: u64,
    },
    /// This kernel has no netem.
    #[error("no lab with `delay`: this kernel has no netem ({stderr}); leave `delay` out")]
    NoDelay {
        /// What `tc` wrote.
        stderr: String,
    },
    /// The lab has no switch that could do it.
    #[error("{what} is for the switch of a lab, and this one has none: add `switch` to its spec")]
    NoSwitch {
        /// What was asked for.
        what: &'static str,
    },
    /// The lab has no wire in user space that could do it.
    #[error("delays change in a lab with a wire only: add `delay=1us` or `nat` to its spec")]
    NoWire,
    /// The kernel refused something.
    #[error("{doing}: {source}")]
    Os {
        /// What was to be done.
        doing: String,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl LabError {
    /// An [`LabError::Os`], for `map_err`.
    pub(crate) fn os<E: Into<io::Error>>(doing: impl Into<String>) -> impl FnOnce(E) -> Self {
        let doing = doing.into();
        move |source| Self::Os { doing, source: source.into() }
    }
}
