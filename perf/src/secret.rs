//! The job's secret of a run whose two sides this program starts itself.

use std::sync::OnceLock;

use ringrail::JobSecret;

use crate::cli::Lanes;
use crate::test;

/// By which a child gets it: nobody else can read its environment.
pub(crate) const VARIABLE: &str = "RINGRAIL_JOB_SECRET";

static OF_THIS_RUN: OnceLock<JobSecret> = OnceLock::new();

/// A fresh secret for both sides of a run; `None` where the user has settled it (a secret of the
/// environment or of a file, or `insecure`).
pub(crate) fn fresh(
    lanes: Lanes,
    settings: &[String],
) -> Result<Option<&'static JobSecret>, String> {
    let settings = test::settings(lanes, None, None, None, settings)?;
    let is_settled = settings.insecure()
        || settings.job_secret().is_some()
        || settings.job_secret_file().is_some();
    Ok((!is_settled).then(|| OF_THIS_RUN.get_or_init(JobSecret::random)))
}

/// What [`fresh`] made in this process.
pub(crate) fn of_this_run() -> Option<&'static JobSecret> {
    OF_THIS_RUN.get()
}

/// A secret on the command line would be seen by everybody on both hosts and on the wire.
pub(crate) fn refuse_on_command_line(settings: &[String]) -> Result<(), String> {
    match settings.iter().any(|setting| setting.starts_with("job_secret=")) {
        true => Err(format!(
            "a secret on the command line is none: set {VARIABLE}, or job_secret_file in a \
             settings file, on both sides"
        )),
        false => Ok(()),
    }
}
