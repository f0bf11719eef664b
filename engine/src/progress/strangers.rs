//! Connections that were refused before they belonged to a session.

use std::net::{IpAddr, SocketAddr};

use super::engine::Engine;

/// Those that are refused in [`PERIOD_NS`] before accepting pauses.
const REFUSED_MAX: u32 = 64;
const PERIOD_NS: u64 = 100_000_000;
/// The pause. A few polls accept before those who came are known for strangers again, so it costs
/// some 30 connections per pause: 3000 a second, whatever comes.
const PAUSE: std::time::Duration = std::time::Duration::from_millis(10);
/// Hosts that are named in the log for another secret.
const NAMED_MAX: usize = 64;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Strangers {
    /// Refused since the time below.
    refused: u32,
    since_ns: u64,
    /// Hosts with another secret that the log has.
    named: Vec<IpAddr>,
}

impl Strangers {
    /// One more was refused; whether there is a crowd of them.
    pub(super) fn are_crowd(&mut self, now_ns: u64) -> bool {
        if now_ns.saturating_sub(self.since_ns) > PERIOD_NS {
            (self.since_ns, self.refused) = (now_ns, 0);
        }
        self.refused += 1;
        self.refused > REFUSED_MAX
    }

    /// Whether the log has not named the host yet, and may.
    fn is_new(&mut self, host: IpAddr) -> bool {
        let is_new = self.named.len() < NAMED_MAX && !self.named.contains(&host);
        if is_new {
            self.named.push(host);
        }
        is_new
    }
}

impl Engine {
    /// A stranger was refused. A crowd of them waits in the kernel, so that live sessions lose no
    /// time; so does who comes meanwhile and is no stranger.
    ///
    /// RR-CONN-5.
    pub(super) fn slow_strangers(&mut self) {
        if self.state.strangers.are_crowd(self.state.now_ns) {
            self.driver.pause_accept(PAUSE);
        }
    }

    /// Who connects has another secret than this engine, or just one of the two has one. Each
    /// attempt is an event; the log has one line for each host.
    ///
    /// RR-AUTH-1.
    pub(super) fn report_other_secret(&mut self, remote: SocketAddr, cause: &str) -> String {
        let text = format!(
            "{cause}. Give both sides the same job_secret (or job_secret_file), or insecure = true \
             on both"
        );
        if self.state.strangers.is_new(remote.ip()) {
            let own = self.state.address(0).locator();
            self.log_failure(&format!("{own} refused a connection from {remote}: {text}"));
        }
        text
    }

    /// A line in the log, as the setting `report_lost_peers` has it.
    pub(super) fn log_failure(&self, text: &str) {
        if self.state.config.report_lost_peers {
            tracing::error!("{text}");
        } else {
            tracing::debug!("{text}");
        }
    }
}
