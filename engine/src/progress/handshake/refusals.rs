//! Connections that are refused before they belong to a session: their rate, and what is logged.

use std::net::{IpAddr, SocketAddr};

use crate::progress::setup::SetupCx;

/// Connections refused in [`PERIOD_NS`] before accepting pauses.
const REFUSED_MAX: u32 = 64;
const PERIOD_NS: u64 = 100_000_000;
/// The pause. A few polls accept before the next connections are refused, some 30 per pause: 3000 a
/// second, whatever arrives.
pub(super) const PAUSE: std::time::Duration = std::time::Duration::from_millis(10);
/// Hosts that the log names for a wrong secret, at most.
const NAMED_MAX: usize = 64;

/// Rate of refused connections, and hosts that the log has named.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    /// Connections refused since `since_ns`.
    refused: u32,
    since_ns: u64,
    /// Hosts with a wrong secret that the log has named.
    named: Vec<IpAddr>,
}

impl Refusals {
    /// Counts a refused connection, and returns whether there are too many.
    pub(super) fn exceed_rate(&mut self, now_ns: u64) -> bool {
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

    /// Reports a connection whose secret differs from that of this engine, or where only one side
    /// has a secret. The caller makes an event of the text; the log has one line for each host.
    ///
    /// RR-AUTH-1.
    pub(super) fn report_wrong_secret(
        &mut self,
        remote: SocketAddr,
        cause: &str,
        cx: &SetupCx<'_>,
    ) -> String {
        let text = format!(
            "{cause}. Give both sides the same job_secret (or job_secret_file), or insecure = true \
             on both"
        );
        if self.is_new(remote.ip()) {
            let own = cx.rails.locators().first();
            let line = format!("{own} refused a connection from {remote}: {text}");
            cx.lanes.config.log_failure(&line);
        }
        text
    }
}
