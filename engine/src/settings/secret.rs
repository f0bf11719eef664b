//! The job's secret among the settings: hidden wherever settings are shown, read from a file that
//! no other user can read.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

use super::value::{ValueKind, path_of, path_parts};
use super::{Settings, SettingsError};
use crate::secret::JobSecret;

/// The placeholder of a secret wherever settings are shown.
pub(super) const HIDDEN: &str = "(hidden)";

/// Bits of a file's mode that give access to users other than its owner.
pub(super) const OTHERS: u32 = 0o077;

/// The word for no secret, and for no file.
const NONE: &str = "none";

/// A secret file holds 64 digits and perhaps a line end.
const FILE_BYTES_MAX: u64 = 4096;

/// The job's secret.
pub(crate) struct Secret;

impl ValueKind for Secret {
    type Value = Option<JobSecret>;
    type View<'a> = Option<&'a JobSecret>;
    const IS_SECRET: bool = true;

    fn expected() -> String {
        "`none`, or 64 hexadecimal digits".into()
    }

    fn parse(text: &str) -> Result<Option<JobSecret>, String> {
        if text == NONE { Ok(None) } else { JobSecret::from_hex(text).map(Some) }
    }

    fn format(value: &Option<JobSecret>) -> String {
        if value.is_some() { HIDDEN } else { NONE }.into()
    }

    fn write(value: &Option<JobSecret>) -> String {
        value.as_ref().map_or_else(|| NONE.into(), |secret| secret.to_hex().to_string())
    }

    fn view(value: &Option<JobSecret>) -> Option<&JobSecret> {
        value.as_ref()
    }

    fn own(view: Option<&JobSecret>) -> Option<JobSecret> {
        view.cloned()
    }
}

/// The path of a file.
pub(crate) struct FilePath;

impl ValueKind for FilePath {
    path_parts!();

    fn expected() -> String {
        "`none`, or an absolute path".into()
    }

    fn parse(text: &str) -> Result<Option<PathBuf>, String> {
        if text == NONE || text.is_empty() {
            return Ok(None);
        }
        let path = path_of(text)?;
        if path.is_absolute() { Ok(Some(path)) } else { Err("the path is relative".into()) }
    }

    fn format(value: &Option<PathBuf>) -> String {
        value.as_ref().map_or_else(|| NONE.into(), |path| path.display().to_string())
    }
}

impl Settings {
    /// Returns the secret in force: `job_secret`, or else that in `job_secret_file`. `None` only
    /// with `insecure`.
    ///
    /// # Errors
    ///
    /// None is set and `insecure` is not, both are, or the file cannot be trusted or read.
    ///
    /// RR-AUTH-9.
    pub(crate) fn effective_secret(&self) -> Result<Option<JobSecret>, SettingsError> {
        let problem = |problem: String| Err(SettingsError::Secret { problem });
        let secret = match (self.job_secret(), self.job_secret_file()) {
            (Some(secret), _) => Some(secret.clone()),
            (None, Some(path)) => match read_file(path) {
                Ok(secret) => Some(secret),
                Err(cause) => return problem(format!("{}: {cause}", path.display())),
            },
            (None, None) => None,
        };
        match (secret, self.insecure()) {
            (None, false) => problem(
                "there is no job secret, so peers cannot be authenticated: set \
                 job_secret_file to a file of 64 hexadecimal digits with mode 0600, or \
                 RINGRAIL_JOB_SECRET to the digits, the same for all processes of the job; or \
                 insecure = true on a network where any host may send and read messages"
                    .into(),
            ),
            (Some(_), true) => problem(
                "there is a job secret, and insecure = true asks to run without: remove one of \
                 them"
                    .into(),
            ),
            (secret, _) => Ok(secret),
        }
    }
}

/// Reads a secret file, if only the user of this process can read or replace its content.
fn read_file(path: &Path) -> Result<JobSecret, String> {
    let cannot = |error: std::io::Error| format!("cannot read the secret: {error}");
    let file = File::open(path).map_err(cannot)?;
    // Of the open file: its name may stand for another one by now.
    let status = file.metadata().map_err(cannot)?;
    if !status.is_file() {
        return Err("the secret must be in a regular file".into());
    }
    let user = rustix::process::geteuid().as_raw();
    if status.uid() != user {
        return Err(format!(
            "the secret file belongs to user {}, not to user {user} of this process: chown it",
            status.uid()
        ));
    }
    if status.mode() & OTHERS != 0 {
        return Err(format!(
            "the secret file has mode {:04o}, so others can get at it: chmod 600, and take a new \
             secret",
            status.mode() & 0o7777
        ));
    }
    let mut text = Zeroizing::new(String::with_capacity(FILE_BYTES_MAX as usize));
    file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(cannot)?;
    JobSecret::from_hex(text.trim()).map_err(|problem| format!("no secret: {problem}"))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;

    use super::super::*;
    use super::*;

    const DIGITS: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

    fn secret_file(text: &str, mode: u32) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file.as_file().set_permissions(std::fs::Permissions::from_mode(mode)).unwrap();
        file
    }

    fn of_file(file: &tempfile::NamedTempFile) -> Result<Option<JobSecret>, String> {
        let settings = Settings::isolated().job_secret_file(Some(file.path())).build().unwrap();
        settings.effective_secret().map_err(|error| error.to_string())
    }

    #[test]
    fn a_private_file_gives_the_secret() {
        let expected = JobSecret::from_hex(DIGITS).unwrap();
        for mode in [0o600, 0o400] {
            let file = secret_file(&format!("{DIGITS}\n"), mode);
            assert_eq!(of_file(&file), Ok(Some(expected.clone())));
        }
    }

    #[test]
    fn a_file_that_others_can_read_is_refused_and_stays_unread() {
        for mode in [0o640, 0o604, 0o620, 0o601, 0o660, 0o644] {
            let error = of_file(&secret_file(DIGITS, mode)).unwrap_err();
            assert!(error.contains(&format!("{mode:04o}")), "{error}");
            assert!(error.contains("chmod 600") && !error.contains(&DIGITS[..8]), "{error}");
        }
    }

    #[test]
    fn a_file_that_holds_no_secret_is_named_but_not_shown() {
        let error = of_file(&secret_file(&DIGITS[1..], 0o600)).unwrap_err();
        assert!(error.contains("63 digits") && !error.contains(&DIGITS[1..9]), "{error}");
        let folder = tempfile::tempdir().unwrap();
        for path in [folder.path().to_path_buf(), folder.path().join("missing")] {
            let settings = Settings::isolated().job_secret_file(Some(&path)).build().unwrap();
            let error = settings.effective_secret().unwrap_err().to_string();
            assert!(error.contains(&path.display().to_string()), "{error}");
        }
    }

    /// RR-AUTH-9
    #[test]
    fn either_a_secret_or_insecure_is_required() {
        let effective = |builder: Builder| builder.build().unwrap().effective_secret();
        let error = effective(Settings::isolated()).unwrap_err().to_string();
        for cure in ["job_secret_file", "RINGRAIL_JOB_SECRET", "insecure = true"] {
            assert!(error.contains(cure), "{error}");
        }
        assert_eq!(effective(Settings::isolated().insecure(true)).unwrap(), None);
        let both = Settings::isolated().insecure(true).set("job_secret", DIGITS);
        assert!(effective(both).unwrap_err().to_string().contains("insecure"));
    }

    #[test]
    fn the_environment_gives_it_and_wins_over_a_file_named_elsewhere() {
        let file = secret_file(&DIGITS.replace('0', "1"), 0o600);
        let settings = Settings::isolated()
            .job_secret_file(Some(file.path()))
            .with_environment([("RINGRAIL_JOB_SECRET", DIGITS)])
            .build()
            .unwrap();
        let secret = settings.effective_secret().unwrap();
        assert_eq!(secret, Some(JobSecret::from_hex(DIGITS).unwrap()));
    }

    /// RR-AUTH-9
    #[test]
    fn secret_is_hidden_in_all_listings() {
        let secret = JobSecret::from_hex(DIGITS).unwrap();
        let builder = Settings::isolated()
            .with_environment([("RINGRAIL_JOB_SECRET", DIGITS)])
            .set("job_secret", DIGITS)
            .job_secret(Some(&secret));
        let mut shown = format!("{builder:?}");
        let settings = builder.build().unwrap();
        assert_eq!(settings.job_secret(), Some(&secret));
        shown += &format!("{settings:?}");
        for entry in settings.entries() {
            shown += &format!("{entry:?}");
        }
        assert!(shown.contains(HIDDEN));
        // A slip, in every source.
        let slip = &DIGITS[..63];
        let mut file = tempfile::NamedTempFile::new().unwrap();
        writeln!(file, "job_secret = '{slip}'").unwrap();
        for wrong in [
            Settings::isolated().set("job_secret", slip),
            Settings::isolated().with_environment([("RINGRAIL_JOB_SECRET", slip)]),
            Settings::isolated().with_file(file.path()),
        ] {
            let error = wrong.build().unwrap_err();
            assert!(error.to_string().contains("63 digits"), "{error}");
            shown += &format!("{error} {error:?}");
        }
        assert!(!shown.contains(&DIGITS[..8]), "{shown}");
    }

    #[test]
    fn a_settings_file_that_others_can_read_may_not_hold_it() {
        let text = format!("job_secret = '{DIGITS}'\n");
        let loose = secret_file(&text, 0o644);
        let error = Settings::isolated().with_file(loose.path()).build().unwrap_err().to_string();
        assert!(error.contains("0644") && error.contains("job_secret_file"), "{error}");
        let private = secret_file(&text, 0o600);
        let settings = Settings::isolated().with_file(private.path()).build().unwrap();
        assert!(settings.job_secret().is_some());
    }
}
