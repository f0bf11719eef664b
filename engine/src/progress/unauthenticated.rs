//! Connections that are refused before they belong to a session: their rate, and what is logged.

use std::net::{IpAddr, SocketAddr};

use super::engine::Engine;

/// Connections refused in [`PERIOD_NS`] before accepting pauses.
const REFUSED_MAX: u32 = 64;
const PERIOD_NS: u64 = 100_000_000;
/// The pause. A few polls accept before the next connections are refused, some 30 per pause: 3000 a
/// second, whatever arrives.
const PAUSE: std::time::Duration = std::time::Duration::from_millis(10);
/// Hosts that the log names for a wrong secret, at most.
const NAMED_MAX: usize = 64;

/// State of unauthenticated connections; see the module.
#[derive(Debug, Default)]
pub(super) struct Unauthenticated {
    /// Connections refused since `since_ns`.
    refused: u32,
    since_ns: u64,
    /// Hosts with a wrong secret that the log has named.
    named: Vec<IpAddr>,
}

impl Unauthenticated {
    /// Counts a refused connection, and returns whether there are too many.
    pub(super) fn exceeds_rate(&mut self, now_ns: u64) -> bool {
        if now_ns.saturating_sub(self.since_ns) > PERIOD_NS {
            (self.since_ns, self.refused) = (now_ns, 0);
        }
        self.refused += 1;
        self.refused > REFUSED_MAX
    }

    /// Returns whether the log is to name the host now.
    fn is_new(&mut self, host: IpAddr) -> bool {
        let is_new = self.named.len() < NAMED_MAX && !self.named.contains(&host);
        if is_new {
            self.named.push(host);
        }
        is_new
    }
}

impl Engine {
    /// Counts a refused connection. If there are too many, accepting pauses, so that established
    /// sessions lose no time; peers that connect meanwhile wait in the backlog, too.
    ///
    /// RR-CONN-5.
    pub(super) fn throttle_accept(&mut self) {
        if self.state.unauthenticated.exceeds_rate(self.state.now_ns) {
            self.driver.pause_accept(PAUSE);
        }
    }

    /// Reports a connection whose secret differs from that of this engine, or where only one side
    /// has a secret. The caller makes an event of the text; the log has one line for each host.
    ///
    /// RR-AUTH-1.
    pub(super) fn report_wrong_secret(&mut self, remote: SocketAddr, cause: &str) -> String {
        let text = format!(
            "{cause}. Give both sides the same job_secret (or job_secret_file), or insecure = true \
             on both"
        );
        if self.state.unauthenticated.is_new(remote.ip()) {
            let own = self.state.address(0).locator();
            self.log_failure(&format!("{own} refused a connection from {remote}: {text}"));
        }
        text
    }

    /// Logs a line at the level of the setting `report_lost_peers`.
    pub(super) fn log_failure(&self, text: &str) {
        if self.state.config.report_lost_peers {
            tracing::error!("{text}");
        } else {
            tracing::debug!("{text}");
        }
    }
}
