//! The job's secret, where the user has set none: what a launcher passes to the processes of a job
//! only.
//!
//! * *Open MPI 4* (ORTE): `OMPI_MCA_orte_precondition_transports`, 128 random bits: taken. So it is
//!   where the launcher of *Open MPI 5* (PRRTE) sets it.
//! * *PMIx*: `PMIX_NAMESPACE`, `PMIX_RANK`, `PMIX_SERVER_URI*`: names, and a place on the host.
//! * *Hydra* (MPICH, Intel MPI): `PMI_RANK`, `PMI_SIZE`, `PMI_FD` or `PMI_PORT`: numbers.
//! * *PMI2* under *Slurm*: `PMI_FD`, `PMI_JOBID`, `SLURM_JOB_ID`: numbers that are public.
//!
//! All of them hand the user's own environment on, by ways that they keep to the user: so with the
//! last three `RINGRAIL_JOB_SECRET` in the environment of `mpiexec` or `srun` does.
//!
//! Environments can be read by the user of a process and by root alone. What is taken is hashed
//! with a name for this purpose, so that the launcher's key cannot be derived from the secret.

use std::ffi::OsString;

use ringrail::JobSecret;
use zeroize::Zeroizing;

/// Where Open MPI has its transport key.
const OPEN_MPI: &str = "OMPI_MCA_orte_precondition_transports";

/// The context string of the key derivation.
const PURPOSE: &str = "ringrail 2026-11 job secret from Open MPI's transport key";

/// What to do when there is no secret: one line.
pub(crate) const NONE_FOUND: &str = "there is no job secret, so a rank cannot be verified to be \
    one of this job: set RINGRAIL_JOB_SECRET to 64 hexadecimal digits (`openssl rand -hex \
    32`) in the environment of mpirun, mpiexec or srun, or RINGRAIL_JOB_SECRET_FILE to a file of \
    mode 0600 with them; or RINGRAIL_INSECURE=true where everybody on the network may send and \
    read messages";

/// The variable of a launcher that a secret comes from.
pub(crate) type Source = &'static str;

/// A secret of what a launcher has put into the environment of this process.
pub(crate) fn of_launcher(
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> Option<(JobSecret, Source)> {
    let (_, key) = environment.into_iter().find(|(name, _)| name == OPEN_MPI)?;
    let key = Zeroizing::new(key.into_string().ok()?);
    if !is_random(&key) {
        tracing::warn!("{OPEN_MPI} is not a transport key of Open MPI, and is not used");
        return None;
    }
    let secret = Zeroizing::new(blake3::derive_key(PURPOSE, key.as_bytes()));
    let digits =
        Zeroizing::new(secret.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
    Some((JobSecret::from_hex(&digits).ok()?, OPEN_MPI))
}

/// Whether it is two numbers of 64 bits, as Open MPI writes them, and not chosen by hand.
fn is_random(key: &str) -> bool {
    let Some((first, second)) = key.split_once('-') else { return false };
    let is_number =
        |half: &str| half.len() == 16 && half.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_guessed = |half: &str| half.bytes().all(|byte| byte == half.as_bytes()[0]);
    is_number(first) && is_number(second) && !is_guessed(first) && !is_guessed(second)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(key: &str) -> Option<JobSecret> {
        let noise = [("PMIX_RANK".into(), "0".into()), (OPEN_MPI.into(), key.into())];
        of_launcher(noise).map(|(secret, _)| secret)
    }

    #[test]
    fn each_transport_key_gives_a_secret_of_its_own() {
        let key = "5b0b3ea6ac6a1b1a-1c5e2f0e0cf3ab26";
        let secret = of(key).expect("it is a key");
        assert_eq!(of(key), Some(secret.clone()), "the same for all ranks");
        assert_ne!(of("5b0b3ea6ac6a1b1a-1c5e2f0e0cf3ab27"), Some(secret.clone()));
        assert!(!secret.to_hex().contains(&key[..16]), "the key cannot be derived from it");
    }

    #[test]
    fn guessable_values_are_no_secret() {
        for key in [
            "",
            "none",
            "0000000000000000-0000000000000000",
            "5b0b3ea6ac6a1b1a-ffffffffffffffff",
            "5b0b3ea6ac6a1b1a1c5e2f0e0cf3ab26",
            "5b0b3ea6ac6a1b1-1c5e2f0e0cf3ab26",
        ] {
            assert!(of(key).is_none(), "{key}");
        }
        let numbers = [("SLURM_JOB_ID", "4711"), ("PMI_RANK", "3"), ("PMIX_NAMESPACE", "prte-1@1")];
        let numbers = numbers.map(|(name, value)| (name.into(), value.into()));
        assert!(of_launcher(numbers).is_none());
        assert!(!NONE_FOUND.contains('\n'));
    }
}
