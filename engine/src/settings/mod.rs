//! Settings: one typed table, four sources.
//!
//! A value comes from the first of these that has it:
//!
//! 1. the [`Builder`], in the program;
//! 2. the environment: `eager_limit_bytes` is `RINGRAIL_EAGER_LIMIT_BYTES`;
//! 3. a TOML file;
//! 4. the default.
//!
//! # Files
//!
//! `RINGRAIL_CONFIG` names the file, which must exist (set but empty: no file). Without it,
//! `/etc/ringrail.toml` is read and then `ringrail.toml` in `$XDG_CONFIG_HOME` (or
//! `~/.config`), each if present; the second wins setting by setting. One of these two that the
//! user of the process may not open is skipped with a warning.
//!
//! ```toml
//! eager_limit_bytes = "32K"
//! nics = ["rail0", "rail1"]
//!
//! [host."node*"]        # on hosts whose name fits; `*` any run of characters, `?` any one
//! port_range = "20000-20100"
//!
//! [host."node7"]        # stands further down, so it wins on node7
//! zero_copy = "off"
//! ```
//!
//! Inside one file, a host section wins over the top level, and of two sections that both fit
//! the host the one further down wins, however exact their patterns are. A pattern fits by the
//! full host name or by the part before its first dot, ignoring case.
//!
//! # Mistakes
//!
//! An unknown name is an error in every source, also in the sections of other hosts and for every
//! variable that begins with `RINGRAIL_`. So is a value that cannot be parsed, is out of range, or
//! contradicts another ([`SettingsError::Conflict`]). If only one of two related values was set,
//! the default of the other is adjusted to fit; its origin is then [`Origin::Fitted`].
//!
//! ```
//! use ringrail::settings::Settings;
//!
//! let settings = Settings::isolated().eager_limit_bytes(Some(8192)).set("spin", "20us").build()?;
//! assert_eq!(settings.eager_limit_bytes(), Some(8192));
//! for entry in settings.entries() {
//!     println!("{} = {} ({})", entry.name, entry.value, entry.origin);
//! }
//! # Ok::<(), ringrail::settings::SettingsError>(())
//! ```

mod error;
mod exporter;
mod faults;
#[cfg(test)]
mod fuzz;
pub(crate) mod glob;
pub(crate) mod nics;
#[cfg(test)]
mod reference;
mod secret;
mod sources;
mod table;
#[cfg(test)]
mod tests;
mod types;
mod value;

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use zeroize::{Zeroize, Zeroizing};

pub use error::{Origin, SettingsError};
pub use faults::Faults;
pub use nics::NicPattern;
pub use types::{
    BulkLane, ControlLane, EagerLane, Lanes, PortRange, SharedMemory, TcpCongestion, ZeroCopy,
};
pub(crate) use value::{Cores, ValueKind};

use sources::{Assignment, Environment};
use table::{RELATIONS, ROWS, Relation, Values};

/// The prefix of all environment variables of ringrail.
pub(crate) const PREFIX: &str = "RINGRAIL_";

/// Names the settings file.
pub(crate) const CONFIG_VARIABLE: &str = "RINGRAIL_CONFIG";

/// Selects the bootstrap of a job.
pub(crate) const BOOTSTRAP_VARIABLE: &str = "RINGRAIL_BOOTSTRAP";

/// Limits the duration of the bootstrap.
pub(crate) const BOOTSTRAP_TIMEOUT_VARIABLE: &str = "RINGRAIL_BOOTSTRAP_TIMEOUT";

/// Names the job.
pub(crate) const JOB_ID_VARIABLE: &str = "RINGRAIL_JOB_ID";

/// Variables with our prefix that are no settings: they differ from process to process or from job
/// to job, and are read where a process joins one.
pub(crate) const JOB_VARIABLES: [&str; 3] =
    [BOOTSTRAP_VARIABLE, BOOTSTRAP_TIMEOUT_VARIABLE, JOB_ID_VARIABLE];

/// The settings in force, each with its origin.
///
/// Plain data: reading never changes it, and changing the environment afterwards has no effect.
///
/// ```
/// use ringrail::settings::Settings;
///
/// let settings = Settings::default(); // the defaults; `Settings::load()` reads the environment
/// assert_eq!(settings.rails_max(), 4);
/// let spin = settings.entries().find(|entry| entry.name == "spin");
/// assert_eq!(spin.map(|entry| entry.value), Some("50us".into()));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    values: Values,
    origins: Vec<Origin>,
}

/// One setting in force, as `info` prints it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// Its name.
    pub name: &'static str,
    /// Its value, in the form in which it can be set.
    pub value: String,
    /// Where the value comes from.
    pub origin: Origin,
    /// What it is, in one line.
    pub doc: &'static str,
}

/// The description of a setting, independent of its value.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Definition {
    /// Its name in files and for [`Builder::set`].
    pub name: &'static str,
    /// Its environment variable.
    pub variable: String,
    /// The form of its values, and their range.
    pub takes: String,
    /// Its default.
    pub default: String,
    /// What it is, in one line.
    pub doc: &'static str,
}

impl Default for Settings {
    /// Returns every setting at its default, ignoring the environment and files.
    fn default() -> Self {
        Self { values: Values::defaults(), origins: table::default_origins() }
    }
}

impl Settings {
    /// Reads the settings from this process's environment and files.
    ///
    /// # Errors
    /// See [`Builder::build`].
    pub fn load() -> Result<Self, SettingsError> {
        Self::builder().build()
    }

    /// Returns a builder over this process's environment and files.
    pub fn builder() -> Builder {
        Builder {
            environment: std::env::vars_os().collect(),
            files: Files::Search { system: "/etc/ringrail.toml".into() },
            host: host_name(),
            assigned: Vec::new(),
        }
    }

    /// Returns a builder over the defaults alone: no environment, no file.
    pub fn isolated() -> Builder {
        Builder {
            environment: Vec::new(),
            files: Files::None,
            host: String::new(),
            assigned: Vec::new(),
        }
    }

    /// Returns every setting in force, in table order. Those that are not documented are among
    /// them if they have been set.
    pub fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        let rows = ROWS.iter().zip(&self.origins);
        let listed = rows.filter(|(row, origin)| !row.is_hidden || **origin != Origin::Default);
        listed.map(|(row, _)| self.entry(row.name))
    }

    fn entry(&self, name: &str) -> Entry {
        let index = table::position(name).expect("callers name rows of the table");
        let row = &ROWS[index];
        Entry {
            name: row.name,
            value: (row.format)(&self.values),
            origin: self.origins[index].clone(),
            doc: row.doc,
        }
    }

    /// Returns the descriptions of all documented settings, in table order: the reference listing.
    pub fn definitions() -> impl Iterator<Item = Definition> {
        let listed = ROWS.iter().filter(|row| !row.is_hidden);
        let defaults = Values::defaults();
        listed.map(move |row| Definition {
            name: row.name,
            variable: row.variable(),
            takes: row.takes(),
            default: (row.format)(&defaults),
            doc: row.doc,
        })
    }

    /// Returns whether a setting was set explicitly, even to its default.
    pub(crate) fn is_chosen(&self, name: &str) -> bool {
        let row = table::position(name).expect("callers name rows of the table");
        !matches!(self.origins[row], Origin::Default | Origin::Fitted { .. })
    }

    /// Applies checked texts; a later one overrides an earlier one.
    fn assign(&mut self, assignments: Vec<Assignment>) -> Result<(), SettingsError> {
        for assignment in assignments {
            let Assignment { row: index, text, origin, applies } = assignment;
            let row = &ROWS[index];
            // A value for other hosts is still checked, into a value that is not used.
            let mut elsewhere;
            let values = if applies {
                &mut self.values
            } else {
                elsewhere = self.values.clone();
                &mut elsewhere
            };
            if let Err(problem) = (row.assign)(values, &text) {
                let value = if row.is_secret { secret::HIDDEN } else { &*text };
                return Err(SettingsError::InvalidValue {
                    name: row.name,
                    value: value.to_owned(),
                    place: Box::new(origin),
                    problem,
                    expected: row.takes(),
                });
            }
            if applies {
                self.origins[index] = origin;
            }
        }
        Ok(())
    }

    /// Makes related values consistent by adjusting defaults to values that were set explicitly.
    fn fit(&mut self) -> Result<(), SettingsError> {
        // Moving one value may touch the next relation; a chain cannot be longer than the table
        // of relations unless two set values pull at both ends, which no number of rounds settles.
        for _ in 0..=RELATIONS.len() {
            let mut settled = true;
            for relation in RELATIONS {
                settled &= self.fit_one(relation)?;
            }
            if settled {
                return Ok(());
            }
        }
        match RELATIONS.iter().find(|relation| !self.holds(relation)) {
            Some(relation) => Err(self.conflict(relation)),
            None => Ok(()),
        }
    }

    fn holds(&self, relation: &Relation) -> bool {
        (relation.numbers)(&self.values)
            .is_none_or(|(lesser, greater)| lesser.saturating_add(relation.gap) <= greater)
    }

    /// Returns whether the relation held already.
    fn fit_one(&mut self, relation: &Relation) -> Result<bool, SettingsError> {
        let numbers = (relation.numbers)(&self.values).filter(|_| !self.holds(relation));
        let Some((lesser, greater)) = numbers else { return Ok(true) };
        let firmness = |origin: &Origin| match origin {
            Origin::Default => 0,
            Origin::Fitted { .. } => 1,
            _ => 2,
        };
        let row = |name| table::position(name).expect("relations are written over table rows");
        let (lesser_row, greater_row) = (row(relation.lesser), row(relation.greater));
        let lesser_firmness = firmness(&self.origins[lesser_row]);
        let greater_firmness = firmness(&self.origins[greater_row]);
        let (moved, value, to) = if greater_firmness < lesser_firmness {
            (greater_row, lesser.checked_add(relation.gap), relation.lesser)
        } else if lesser_firmness < greater_firmness {
            (lesser_row, greater.checked_sub(relation.gap), relation.greater)
        } else {
            return Err(self.conflict(relation));
        };
        let assigned =
            value.map(|value| (ROWS[moved].assign)(&mut self.values, &value.to_string()));
        if !matches!(assigned, Some(Ok(()))) {
            return Err(self.conflict(relation));
        }
        self.origins[moved] = Origin::Fitted { to };
        Ok(false)
    }

    /// Checks that bulk data goes in datagrams only if the control lane has them.
    fn check_lanes(&self) -> Result<(), SettingsError> {
        let wants = self.bulk_lane() == BulkLane::Datagram;
        if !wants || self.control_lane() != ControlLane::Tcp {
            return Ok(());
        }
        let origin = |name| {
            let row = table::position(name).expect("both are rows of the table");
            &self.origins[row]
        };
        let problem = format!(
            "bulk_lane = datagram ({}) with control_lane = tcp ({}): bulk data goes in the \
             control lane's datagrams, and there would be none; set control_lane to udp, xdp or \
             auto, or bulk_lane to tcp",
            origin("bulk_lane"),
            origin("control_lane")
        );
        Err(SettingsError::Exclusive { problem })
    }

    fn conflict(&self, relation: &Relation) -> SettingsError {
        let (lesser, greater) = (self.entry(relation.lesser), self.entry(relation.greater));
        SettingsError::Conflict {
            lesser: lesser.name,
            lesser_value: lesser.value,
            lesser_place: Box::new(lesser.origin),
            greater: greater.name,
            greater_value: greater.value,
            greater_place: Box::new(greater.origin),
            why: relation.why,
        }
    }
}

/// Which files to read.
#[derive(Clone, Debug)]
enum Files {
    None,
    Exactly(PathBuf),
    /// `RINGRAIL_CONFIG`, or the system's file and the user's.
    Search {
        system: PathBuf,
    },
}

/// Builds [`Settings`]. Values set here override the environment and files.
///
/// Besides one method per setting there is [`set`](Self::set), by name. Setting one twice keeps
/// the second value.
///
/// ```
/// use std::time::Duration;
/// use ringrail::settings::Settings;
///
/// let settings = Settings::builder() // over the environment and files
///     .spin(Duration::from_micros(20))
///     .set("chunk_bytes", "126K")
///     .build()?;
/// assert_eq!(settings.chunk_bytes(), 126 << 10);
/// let error = Settings::isolated().rails_max(99).build().unwrap_err();
/// assert!(error.to_string().contains("rails_max"), "{error}");
/// # Ok::<(), ringrail::settings::SettingsError>(())
/// ```
#[derive(Clone)]
pub struct Builder {
    environment: Environment,
    files: Files,
    host: String,
    assigned: Vec<(String, Zeroizing<String>)>,
}

impl fmt::Debug for Builder {
    /// Names, no values: one of them may be the job's secret.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let assigned: Vec<_> = self.assigned.iter().map(|(name, _)| name).collect();
        out.debug_struct("Builder")
            .field("files", &self.files)
            .field("host", &self.host)
            .field("assigned", &assigned)
            .finish_non_exhaustive()
    }
}

impl Drop for Builder {
    fn drop(&mut self) {
        wipe(&mut self.environment);
    }
}

impl Builder {
    /// Sets a setting by its name, in the form that files and environment use.
    /// Name and value are checked by [`build`](Self::build).
    #[must_use]
    pub fn set(mut self, name: &str, value: &str) -> Self {
        self.assigned.push((name.into(), value.trim().to_owned().into()));
        self
    }

    /// Reads these variables instead of the process's environment; they also decide which files
    /// are looked for.
    #[must_use]
    pub fn with_environment<K, V>(mut self, variables: impl IntoIterator<Item = (K, V)>) -> Self
    where
        K: Into<OsString>,
        V: Into<OsString>,
    {
        wipe(&mut self.environment);
        self.environment =
            variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
        self
    }

    /// Reads this file, which must exist, and no other.
    #[must_use]
    pub fn with_file(mut self, path: impl AsRef<Path>) -> Self {
        self.files = Files::Exactly(path.as_ref().into());
        self
    }

    /// Reads no file.
    #[must_use]
    pub fn without_files(mut self) -> Self {
        self.files = Files::None;
        self
    }

    /// Uses this as the name of the host when host sections are selected.
    #[must_use]
    pub fn with_host(mut self, name: &str) -> Self {
        self.host = name.into();
        self
    }

    /// Reads the sources and checks everything.
    ///
    /// # Errors
    /// A file cannot be read, a name is not known, a value does not fit its setting, or two
    /// values contradict each other. The message names the place and the cure.
    pub fn build(mut self) -> Result<Settings, SettingsError> {
        let mut settings = Settings::default();
        let files = match &self.files {
            Files::None => Vec::new(),
            Files::Exactly(path) => vec![(path.clone(), true)],
            Files::Search { system } => sources::find_files(&self.environment, system)?,
        };
        for (path, required) in files {
            settings.assign(sources::read_file(&path, required, &self.host)?)?;
        }
        settings.assign(sources::read_environment(&self.environment)?)?;
        let assigned = std::mem::take(&mut self.assigned);
        let assigned = assigned.into_iter().map(|(name, text)| match table::position(&name) {
            Some(row) => Ok(Assignment { row, text, origin: Origin::Builder, applies: true }),
            None => {
                let nearest = error::nearest(&name, ROWS.iter().map(|row| row.name));
                let nearest = nearest.map(str::to_string);
                Err(SettingsError::UnknownName { name, place: Box::new(Origin::Builder), nearest })
            }
        });
        settings.assign(assigned.collect::<Result<_, _>>()?)?;
        settings.fit()?;
        settings.check_lanes()?;
        Ok(settings)
    }
}

/// Overwrites the values of a copy of an environment: one of them may be the job's secret.
fn wipe(environment: &mut Environment) {
    for (_, value) in environment.drain(..) {
        value.into_encoded_bytes().zeroize();
    }
}

/// Returns the name of this host, empty if it cannot be read (no `/proc`): then sections that name
/// a host do not apply.
pub(crate) fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname");
    name.map(|name| name.trim().to_string()).unwrap_or_default()
}

/// Reads a time as settings write it.
pub(crate) fn parse_time(text: &str) -> Result<Duration, String> {
    value::Time::parse(text)
        .map_err(|problem| format!("{problem}; use {}", value::Time::expected()))
}

/// Writes a time as settings read it.
pub(crate) fn format_time(time: Duration) -> String {
    value::Time::format(&time)
}
