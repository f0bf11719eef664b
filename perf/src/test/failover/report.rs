//! The findings as a line of results.

use serde::{Deserialize, Serialize};

use super::findings::{Effect, Findings, percentile};
use super::sender::Sent;
use crate::cli::Fault;
use crate::link::Job;
use crate::output::Report;

/// What `failover` adds to a report. Times are in milliseconds.
///
/// *Gap*: the longest time from a fault to the next one that the frontier stood still, less the
/// 99th percentile of such times in the second before it. `recovered_ms`: from the end of a fault
/// until the rate is 0.95 of that before it, for 100 ms; the longest of all faults.
/// `surviving_share`: what arrived from 100 ms after a fault to its end (200 ms where packets still
/// pass at times), by what the rails that are left carry alone, as TCP.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct FailoverReport {
    pub(crate) fault: String,
    pub(crate) gap_ms_p50: f64,
    pub(crate) gap_ms_p99: f64,
    pub(crate) gap_ms_max: f64,
    /// The 99th percentile before faults: the median.
    pub(crate) before_ms_p99: f64,
    pub(crate) recovered_ms: f64,
    pub(crate) recovered_ms_p50: f64,
    /// Faults after which the rate did not come back before the next one.
    pub(crate) unrecovered: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) surviving_share: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) surviving_share_min: Option<f64>,
    /// From a fault until the rails that are left are used fully: the median of those faults where
    /// they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) surviving_ms: Option<f64>,
    /// The longest round trip of a ping that was under way after a fault.
    pub(crate) ping_ms_p50: f64,
    pub(crate) ping_ms_p99: f64,
    pub(crate) ping_ms_max: f64,
    pub(crate) lost: u64,
    pub(crate) duplicated: u64,
    pub(crate) reordered: u64,
    pub(crate) corrupted: u64,
    /// Of faults that hit this rail.
    pub(crate) rails: Vec<RailReport>,
}

/// One rail, and what the faults did that hit it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct RailReport {
    pub(crate) nic: String,
    /// What one TCP stream gets on it alone.
    pub(crate) alone_mb_s: f64,
    /// What the server's NIC got before faults, headers and all.
    pub(crate) received_mb_s: f64,
    pub(crate) faults: usize,
    pub(crate) gap_ms_p50: f64,
    pub(crate) gap_ms_p99: f64,
    pub(crate) gap_ms_max: f64,
    pub(crate) recovered_ms: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) surviving_share: Option<f64>,
}

/// Whether everything arrived once, whole and in order.
pub(super) fn is_right(findings: &Findings) -> bool {
    findings.lost + findings.duplicated + findings.reordered + findings.corrupted == 0
}

fn name(fault: Fault) -> String {
    let name = serde_json::to_value(fault).ok();
    name.as_ref().and_then(|name| name.as_str()).unwrap_or_default().to_owned()
}

/// What stands above a picture.
pub(super) fn title(fault: Fault, findings: &Findings) -> String {
    let gap = of(&findings.effects, Effect::gap_ms, 0.5);
    format!("{}: {gap:.1} ms of standstill (the median of the faults)", name(fault))
}

/// The percentile of a figure of all faults.
fn of(effects: &[Effect], figure: impl Fn(&Effect) -> f64, share: f64) -> f64 {
    percentile(&mut effects.iter().map(figure).collect::<Vec<_>>(), share).unwrap_or(0.0)
}

fn maybe(effects: &[Effect], figure: impl Fn(&Effect) -> Option<f64>, share: f64) -> Option<f64> {
    percentile(&mut effects.iter().filter_map(figure).collect::<Vec<_>>(), share)
}

/// Puts everything into `report`.
pub(super) fn fill(
    report: &mut Report,
    job: &Job,
    findings: &Findings,
    sent: &Sent,
    alone_bytes_s: &[f64],
) {
    let effects = &findings.effects;
    let share = |effect: &Effect| effect.surviving_share;
    let mut pings: Vec<f64> = sent
        .cuts
        .iter()
        .map(|cut| {
            let rounds = sent.pings.rounds.iter();
            let after =
                rounds.filter(|(begin, took)| begin + took > cut.cut_ns && *begin < cut.end_ns);
            after.map(|(_, took)| *took as f64 / 1e6).fold(0.0, f64::max)
        })
        .collect();
    let mut ping = |share| percentile(&mut pings, share).unwrap_or(0.0);
    let rails = job.lab_rails.iter().enumerate().map(|(rail, names)| {
        let hit = effects.iter().filter(|effect| effect.rails.contains(&(rail as u8)));
        let hit: Vec<Effect> = hit.cloned().collect();
        RailReport {
            nic: names.nic.clone(),
            alone_mb_s: alone_bytes_s[rail] / 1e6,
            received_mb_s: findings.nic_rates_bytes_s[rail] / 1e6,
            faults: hit.len(),
            gap_ms_p50: of(&hit, Effect::gap_ms, 0.5),
            gap_ms_p99: of(&hit, Effect::gap_ms, 0.99),
            gap_ms_max: of(&hit, Effect::gap_ms, 1.0),
            recovered_ms: of(&hit, |effect| effect.recovered_ms, 1.0),
            surviving_share: maybe(&hit, share, 0.5),
        }
    });
    report.failover = Some(FailoverReport {
        fault: name(job.fault),
        gap_ms_p50: of(effects, Effect::gap_ms, 0.5),
        gap_ms_p99: of(effects, Effect::gap_ms, 0.99),
        gap_ms_max: of(effects, Effect::gap_ms, 1.0),
        before_ms_p99: of(effects, |effect| effect.before_ms, 0.5),
        recovered_ms: of(effects, |effect| effect.recovered_ms, 1.0),
        recovered_ms_p50: of(effects, |effect| effect.recovered_ms, 0.5),
        unrecovered: effects.iter().filter(|effect| !effect.is_recovered).count() as u64,
        surviving_share: maybe(effects, share, 0.5),
        surviving_share_min: maybe(effects, share, 0.0),
        surviving_ms: maybe(effects, |effect| effect.surviving_ms, 0.5),
        ping_ms_p50: ping(0.5),
        ping_ms_p99: ping(0.99),
        ping_ms_max: ping(1.0),
        lost: findings.lost,
        duplicated: findings.duplicated,
        reordered: findings.reordered,
        corrupted: findings.corrupted,
        rails: rails.collect(),
    });
    report.latencies(&sent.pings.histogram);
    report.bandwidth_mb_s = Some(findings.rate_bytes_s / 1e6);
}
