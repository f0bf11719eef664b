//! Picks a bootstrap by environment variables.

use std::collections::HashMap;
use std::ffi::OsString;
use std::time::Duration;

use super::{Bootstrap, BootstrapError, DEFAULT_TIMEOUT, Member, SharedDirectory, Tcp};
use crate::settings::{
    BOOTSTRAP_TIMEOUT_VARIABLE, BOOTSTRAP_VARIABLE, JOB_ID_VARIABLE, parse_time,
};

/// Joins the job that the environment of this process describes.
///
/// | variable | meaning |
/// |---|---|
/// | `RANK`, `WORLD_SIZE` | which rank this process is, and of how many |
/// | `MASTER_ADDR`, `MASTER_PORT` | where rank 0 listens (as for `torch.distributed`) |
/// | `RINGRAIL_BOOTSTRAP` | `tcp` (default), or `dir:PATH` (needs no `MASTER_*`) |
/// | `RINGRAIL_BOOTSTRAP_TIMEOUT` | how long each step may take, such as `120s` (default 60s) |
/// | `RINGRAIL_JOB_ID` | distinguishes jobs; default: the id of Slurm, PBS or LSF |
///
/// # Errors
/// The variables are missing, incomplete or contradict each other, or joining failed. If none is
/// set, that is an error, too: a process that assumed to be rank 0 of 1 would succeed silently.
pub fn from_env() -> Result<Box<dyn Bootstrap>, BootstrapError> {
    from_variables(std::env::vars_os())
}

/// Like [`from_env`], with these variables instead of the environment.
///
/// # Errors
/// As for [`from_env`].
pub fn from_variables<K, V>(
    variables: impl IntoIterator<Item = (K, V)>,
) -> Result<Box<dyn Bootstrap>, BootstrapError>
where
    K: Into<OsString>,
    V: Into<OsString>,
{
    let variables = variables.into_iter().map(|(name, value)| (name.into(), value.into()));
    Ok(match plan(&Variables(variables.collect()))? {
        Plan::Directory { path, member } => Box::new(SharedDirectory::join(path, &member)?),
        Plan::Tcp { host, port, member } => Box::new(Tcp::join(&host, port, &member)?),
    })
}

#[derive(Debug, PartialEq, Eq)]
enum Plan {
    Directory { path: String, member: Member },
    Tcp { host: String, port: u16, member: Member },
}

struct Variables(HashMap<OsString, OsString>);

/// Variables by which launchers number their processes.
const LAUNCHERS: [(&str, &str, &str); 3] = [
    ("Open MPI's mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("an MPICH or Intel MPI launcher", "PMI_RANK", "PMI_SIZE"),
    ("Slurm's srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
];

/// Where schedulers leave the id of the job.
const JOB_IDS: [&str; 4] = [JOB_ID_VARIABLE, "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID"];

fn misconfigured(problem: String, cure: impl Into<String>) -> BootstrapError {
    BootstrapError::Misconfigured { problem, cure: cure.into() }
}

impl Variables {
    fn text(&self, name: &str) -> Result<Option<&str>, BootstrapError> {
        let Some(value) = self.0.get(&OsString::from(name)) else { return Ok(None) };
        let value = value.to_str();
        let value =
            value.ok_or_else(|| misconfigured(format!("{name} is not UTF-8"), "set it again"))?;
        Ok(Some(value.trim()))
    }

    /// A variable that is known to be set.
    fn required(&self, name: &str) -> Result<&str, BootstrapError> {
        match self.text(name)? {
            Some("") => Err(misconfigured(format!("{name} is set but empty"), "give it a value")),
            Some(value) => Ok(value),
            None => Err(misconfigured(format!("{name} is not set"), "set it")),
        }
    }

    fn number(&self, name: &str) -> Result<usize, BootstrapError> {
        let value = self.required(name)?;
        value.parse().map_err(|_| {
            misconfigured(format!("{name} = `{value}` is not a number"), "give it a whole number")
        })
    }

    fn has(&self, name: &str) -> bool {
        self.0.contains_key(&OsString::from(name))
    }

    /// The launcher that started this process, as far as its variables show.
    fn launcher(&self) -> Option<(&str, &str, &str)> {
        let started = |(_, rank, size): &(&str, &str, &str)| self.has(rank) || self.has(size);
        LAUNCHERS.into_iter().find(started)
    }
}

fn plan(variables: &Variables) -> Result<Plan, BootstrapError> {
    let directory = match variables.text(BOOTSTRAP_VARIABLE)? {
        None | Some("tcp") => None,
        Some(other) => match other.strip_prefix("dir:") {
            Some(path) if !path.is_empty() => Some(path),
            _ => {
                return Err(misconfigured(
                    format!("{BOOTSTRAP_VARIABLE} = `{other}` is neither `tcp` nor `dir:PATH`"),
                    "set it to one of them, or unset it for tcp",
                ));
            }
        },
    };
    let needed: &[&str] = match directory {
        Some(_) => &["RANK", "WORLD_SIZE"],
        None => &["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"],
    };
    check_complete(variables, needed)?;

    let (rank, size) = (variables.number("RANK")?, variables.number("WORLD_SIZE")?);
    if size == 0 || rank >= size {
        return Err(misconfigured(
            format!("RANK = {rank} with WORLD_SIZE = {size}"),
            "ranks count from 0 to WORLD_SIZE - 1",
        ));
    }
    check_launcher(variables, size)?;
    let timeout = match variables.text(BOOTSTRAP_TIMEOUT_VARIABLE)? {
        None => DEFAULT_TIMEOUT,
        Some(text) => parse_time(text)
            .ok()
            .filter(|time| *time >= Duration::from_millis(1))
            .ok_or(misconfigured(
                format!("{BOOTSTRAP_TIMEOUT_VARIABLE} = `{text}`"),
                "give a time of at least 1ms with its unit, such as 120s",
            ))?,
    };
    let mut job = String::new();
    for name in JOB_IDS {
        if let Some(id) = variables.text(name)?.filter(|_| job.is_empty()) {
            job = id.into();
        }
    }
    let member = Member { rank, size, job, timeout };
    if let Some(path) = directory {
        return Ok(Plan::Directory { path: path.into(), member });
    }
    let port = u16::try_from(variables.number("MASTER_PORT")?).ok().filter(|port| *port != 0);
    let port = port.ok_or_else(|| {
        misconfigured("MASTER_PORT is not a port".into(), "give it a number from 1 to 65535")
    })?;
    Ok(Plan::Tcp { host: variables.required("MASTER_ADDR")?.into(), port, member })
}

const ALL_OF_IT: &str = "set RANK (0 to WORLD_SIZE - 1), WORLD_SIZE, MASTER_ADDR (host of rank 0) \
    and MASTER_PORT for every process, or RINGRAIL_BOOTSTRAP=dir:PATH (a directory that all of \
    them see) with RANK and WORLD_SIZE";

fn check_complete(variables: &Variables, needed: &[&str]) -> Result<(), BootstrapError> {
    let missing: Vec<_> = needed.iter().copied().filter(|name| !variables.has(name)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let present: Vec<_> = needed.iter().copied().filter(|name| variables.has(name)).collect();
    let problem = match (present.is_empty(), variables.has(BOOTSTRAP_VARIABLE)) {
        (false, _) => {
            format!("{} set, but not {}", present.join(", "), missing.join(", "))
        }
        (true, true) => format!("{BOOTSTRAP_VARIABLE} is set, but not {}", missing.join(", ")),
        (true, false) => "the environment does not define the rank and job of this process".into(),
    };
    // Only rank and size can be had from the launcher.
    let from_launcher = variables
        .launcher()
        .filter(|_| missing.iter().any(|name| matches!(*name, "RANK" | "WORLD_SIZE")));
    Err(match from_launcher {
        Some((launcher, rank, size)) => misconfigured(
            format!("{problem}, although {launcher} started it"),
            format!(
                "pass the launcher's numbers on: start `sh -c 'RANK=${rank} WORLD_SIZE=${size} \
                 exec PROGRAM'`, and {ALL_OF_IT}"
            ),
        ),
        None => misconfigured(problem, ALL_OF_IT),
    })
}

/// A process that takes itself for a job of one while its launcher started several would do its
/// work without the others, as each of them would.
fn check_launcher(variables: &Variables, size: usize) -> Result<(), BootstrapError> {
    for (launcher, rank, launched) in LAUNCHERS {
        let count = variables.text(launched)?.and_then(|count| count.parse::<usize>().ok());
        if let Some(count) = count.filter(|count| size == 1 && *count > 1) {
            return Err(misconfigured(
                format!("WORLD_SIZE = 1, but {launcher} started {count} processes"),
                format!("set WORLD_SIZE=${launched} and RANK=${rank} in each of them"),
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(variables: &[(&str, &str)]) -> Result<Plan, BootstrapError> {
        plan(&Variables(
            variables.iter().map(|(name, value)| (name.into(), value.into())).collect(),
        ))
    }

    const TCP: [(&str, &str); 4] =
        [("RANK", "1"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "h"), ("MASTER_PORT", "29500")];

    #[test]
    fn tcp_needs_all_four() {
        let member = Member::new(1, 4);
        assert_eq!(planned(&TCP), Ok(Plan::Tcp { host: "h".into(), port: 29500, member }));
        for left_out in 0..4 {
            let mut rest = TCP.to_vec();
            let (name, _) = rest.remove(left_out);
            let text = planned(&rest).unwrap_err().to_string();
            assert!(text.contains(&format!("but not {name};")), "{text}");
        }
    }

    #[test]
    fn a_job_of_one_needs_them_too() {
        let text = planned(&[("WORLD_SIZE", "1")]).unwrap_err().to_string();
        assert!(text.contains("WORLD_SIZE set, but not RANK, MASTER_ADDR, MASTER_PORT"), "{text}");
    }

    #[test]
    fn nothing_set_is_an_error_that_explains() {
        let text = planned(&[]).unwrap_err().to_string();
        for part in ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "dir:PATH"] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn launcher_variables_alone_are_an_error_with_the_cure() {
        for (launcher, rank, size) in LAUNCHERS {
            let text = planned(&[(rank, "0"), (size, "4")]).unwrap_err().to_string();
            assert!(text.contains(launcher) && text.contains(&format!("RANK=${rank}")), "{text}");
        }
    }

    #[test]
    fn a_job_of_one_among_several_is_an_error() {
        let one = [("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "h"), ("MASTER_PORT", "1")];
        for (_, _, size) in LAUNCHERS {
            let text = planned(&[&one[..], &[(size, "2")]].concat()).unwrap_err().to_string();
            assert!(text.contains("WORLD_SIZE = 1, but"), "{text}");
            assert!(planned(&[&one[..], &[(size, "1")]].concat()).is_ok());
        }
    }

    #[test]
    fn directories_need_rank_and_size() {
        let set = [
            ("RINGRAIL_BOOTSTRAP", "dir:/x"),
            ("RANK", "0"),
            ("WORLD_SIZE", "2"),
            ("SLURM_JOB_ID", "17"),
            ("RINGRAIL_BOOTSTRAP_TIMEOUT", "5s"),
        ];
        let timeout = Duration::from_secs(5);
        let member = Member { job: "17".into(), timeout, ..Member::new(0, 2) };
        assert_eq!(planned(&set), Ok(Plan::Directory { path: "/x".into(), member }));
        let own = [&set[..], &[("RINGRAIL_JOB_ID", "mine")]].concat();
        let Ok(Plan::Directory { member, .. }) = planned(&own) else { panic!() };
        assert_eq!(member.job, "mine");
        let text = planned(&set[..1]).unwrap_err().to_string();
        assert!(text.contains("RINGRAIL_BOOTSTRAP is set, but not RANK, WORLD_SIZE"), "{text}");
    }

    #[test]
    fn wrong_values_are_named() {
        for (name, value) in [
            ("RANK", "4"),
            ("RANK", "-1"),
            ("RANK", ""),
            ("WORLD_SIZE", "0"),
            ("WORLD_SIZE", "two"),
            ("MASTER_PORT", "0"),
            ("MASTER_PORT", "65536"),
            ("MASTER_ADDR", ""),
            ("RINGRAIL_BOOTSTRAP", "dir:"),
            ("RINGRAIL_BOOTSTRAP", "pmix"),
            ("RINGRAIL_BOOTSTRAP_TIMEOUT", "5"),
            ("RINGRAIL_BOOTSTRAP_TIMEOUT", "0s"),
        ] {
            // Collected into a map, the later one wins.
            let text = planned(&[&TCP[..], &[(name, value)]].concat()).unwrap_err().to_string();
            assert!(text.contains(name), "{name}={value}: {text}");
        }
    }
}
