//! Settings of the engine as libfabric's parameters.
//!
//! Each setting `x` is `RINGRAIL_X`, in files and in the environment, as for every user of
//! ringrail, and `FI_RINGRAIL_X`, which `fi_info -e` lists with its help and which wins. The job's
//! secret is not among the latter: `fi_info -e` prints values.

use std::ffi::OsString;
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::{Once, OnceLock};

use ringrail::settings::{Definition, Settings};
use ringrail::{Domain, JobSecret};

use crate::address::Location;
use crate::errno::Errno;
use crate::info::Given;
use crate::secret;
use crate::symbols;

/// Settings that are no parameters: what is never shown, and what is for tests of the engine.
const NO_PARAMETERS: [&str; 2] = ["job_secret", "inject_faults"];

fn parameters() -> impl Iterator<Item = Definition> {
    Settings::definitions().filter(|it| !NO_PARAMETERS.contains(&it.name))
}

/// Makes all parameters known to libfabric.
pub(crate) fn define() {
    static DEFINED: Once = Once::new();
    DEFINED.call_once(|| {
        for Definition { name, variable, takes, default, doc, .. } in parameters() {
            let doc = doc.split_whitespace().collect::<Vec<_>>().join(" ");
            symbols::define(
                name,
                &format!("{doc} Takes {takes} (default: {default}). The same as {variable}."),
            );
        }
    });
}

/// The parameters that the user has set, as the variables that the engine reads. Read once:
/// libfabric logs each question.
fn variables() -> &'static [(OsString, OsString)] {
    static VARIABLES: OnceLock<Vec<(OsString, OsString)>> = OnceLock::new();
    VARIABLES.get_or_init(|| {
        let value = |it: Definition| Some((it.variable.into(), symbols::value(it.name)?.into()));
        parameters().filter_map(value).collect()
    })
}

/// Variables `FI_RINGRAIL_X` that are no parameter, as `RINGRAIL_X`: the engine refuses an unknown
/// setting and names the nearest one. Were they ignored, a misspelt setting would silently not be
/// in force.
///
/// # Errors
///
/// [`Errno::INVAL`], with a line in the log, for variables of the engine that are no parameters.
fn unknown_parameters() -> Result<Vec<(OsString, OsString)>, Errno> {
    let mut unknown = Vec::new();
    for (variable, value) in std::env::vars_os() {
        let name = variable.to_str().and_then(|it| it.strip_prefix("FI_RINGRAIL_"));
        let Some(variable) = name.map(|name| format!("RINGRAIL_{name}")) else { continue };
        if parameters().any(|known| known.variable == variable) {
            continue;
        }
        let mut reserved = NO_PARAMETERS.iter().map(|name| name.to_ascii_uppercase());
        let is_setting = reserved.any(|name| variable.strip_prefix("RINGRAIL_") == Some(&name));
        if is_setting || variable == "RINGRAIL_CONFIG" {
            tracing::error!("FI_{variable} is no parameter of the provider: set {variable}");
            return Err(Errno::INVAL);
        }
        unknown.push((variable.into(), value));
    }
    Ok(unknown)
}

/// The settings in force: those of environment and files, with the engine at `listen`.
pub(crate) fn settings(listen: Option<IpAddr>) -> Result<Settings, Errno> {
    build(listen, None)
}

fn build(listen: Option<IpAddr>, secret: Option<&JobSecret>) -> Result<Settings, Errno> {
    let mut environment: Vec<(OsString, OsString)> = std::env::vars_os().collect();
    for (variable, value) in variables() {
        environment.retain(|(known, _)| known != variable);
        environment.push((variable.clone(), value.clone()));
    }
    environment.extend(unknown_parameters()?);
    let mut builder = Settings::builder().with_environment(environment);
    if let Some(address) = listen {
        builder = builder.set("listen_address", &address.to_string());
    }
    if let Some(secret) = secret {
        builder = builder.set("job_secret", &secret.to_hex());
    }
    builder.build().map_err(|error| {
        tracing::error!("settings cannot be used (FI_RINGRAIL_... are RINGRAIL_...): {error}");
        Errno::INVAL
    })
}

/// The context of an engine for a domain that is opened with `given`.
pub(crate) fn open_domain(given: &Given) -> Result<Domain, Errno> {
    let listen = match given.source()? {
        Some(Location::Place(place)) => Some(place.ip()).filter(|ip| !ip.is_unspecified()),
        Some(Location::Endpoint(address)) => Some(address.locator().ip()),
        None => None,
    };
    let found = settings(listen)?;
    let is_set =
        found.job_secret().is_some() || found.job_secret_file().is_some() || found.insecure();
    let settings = if is_set {
        found
    } else {
        match secret::of_launcher(std::env::vars_os()) {
            Some((secret, source)) => {
                tracing::info!(%source, "the job's secret");
                build(listen, Some(&secret))?
            }
            None => {
                tracing::error!("{}", secret::NONE_FOUND);
                return Err(Errno::ACCES);
            }
        }
    };
    Domain::with_settings(settings).map_err(|error| {
        tracing::error!("a domain cannot be opened: {error}");
        Errno::of(&error)
    })
}

/// The port of the first endpoint of a domain, if its user has set one.
pub(crate) fn listen_port(given: &Given) -> Result<Option<NonZeroU16>, Errno> {
    let port = match given.source()? {
        Some(Location::Place(place)) => place.port(),
        // An endpoint that was, in its info: its port is the old one's.
        Some(Location::Endpoint(_)) | None => 0,
    };
    Ok(NonZeroU16::new(port))
}
