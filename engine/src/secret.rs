//! The job's secret, read by the settings and proved in the handshake.

use std::fmt;

use rand::RngExt;
use rand::rand_core::UnwrapErr;
use rand::rngs::SysRng;
use subtle::ConstantTimeEq;
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

/// Length of the secret, in bytes.
pub(crate) const SECRET_BYTES: usize = 32;

/// The secret of a job: 32 bytes by which its processes authenticate each other.
///
/// Its memory is overwritten when it is dropped, comparison takes constant time, and `Debug` does
/// not show it.
///
/// ```
/// use ringrail::{JobSecret, settings::Settings};
///
/// let secret = JobSecret::random(); // in the process that starts the others
/// let text = secret.to_hex(); // passed on where only they can read it
/// let secret = JobSecret::from_hex(&text)?;
/// let settings = Settings::isolated().job_secret(Some(&secret)).build()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct JobSecret(Box<[u8; SECRET_BYTES]>);

impl JobSecret {
    /// Returns a new secret of random numbers from the operating system. Pass it to the other
    /// processes of the job where only they can read it.
    pub fn random() -> Self {
        // The generators that a process has are the same in all of its children of `fork`.
        Self(Box::new(UnwrapErr(SysRng).random()))
    }

    /// Reads the text of [`Self::to_hex`], in upper or lower case.
    ///
    /// # Errors
    ///
    /// What is wrong with the text. The message contains no part of the text, which may be a
    /// mistyped secret.
    pub fn from_hex(text: &str) -> Result<Self, String> {
        let mut secret = Self(Box::new([0; SECRET_BYTES]));
        let length = text.chars().count();
        if length != 2 * SECRET_BYTES {
            return Err(format!("it has {length} digits, {} are right", 2 * SECRET_BYTES));
        }
        let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
        for (byte, pair) in secret.0.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            match (digit(pair[0]), digit(pair[1])) {
                (Some(high), Some(low)) => *byte = high << 4 | low,
                _ => return Err("it has characters that are no hexadecimal digits".into()),
            }
        }
        if secret.0.iter().all(|byte| *byte == secret.0[0]) {
            return Err("all its bytes are the same, so anybody can guess it".into());
        }
        Ok(secret)
    }

    /// Returns 64 hexadecimal digits, as the setting `job_secret` takes them. The text is
    /// overwritten when it is dropped.
    pub fn to_hex(&self) -> Zeroizing<String> {
        let mut text = Zeroizing::new(String::with_capacity(2 * SECRET_BYTES));
        for byte in self.0.iter() {
            for digit in [byte >> 4, byte & 15] {
                text.push(char::from_digit(u32::from(digit), 16).unwrap_or('0'));
            }
        }
        text
    }

    pub(crate) fn bytes(&self) -> &[u8; SECRET_BYTES] {
        &self.0
    }
}

impl PartialEq for JobSecret {
    fn eq(&self, other: &Self) -> bool {
        self.0[..].ct_eq(&other.0[..]).into()
    }
}

impl Eq for JobSecret {}

impl fmt::Debug for JobSecret {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("JobSecret(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_come_back_and_slips_are_named_without_being_shown() {
        let secret = JobSecret::random();
        assert_eq!(JobSecret::from_hex(&secret.to_hex()), Ok(secret.clone()));
        assert_eq!(JobSecret::from_hex(&secret.to_hex().to_uppercase()), Ok(secret.clone()));
        assert_ne!(JobSecret::random(), secret);
        let text = secret.to_hex();
        let slips = [text[..63].to_owned(), format!("{}x", &text[..63]), "é".repeat(64)];
        for slip in slips {
            let error = JobSecret::from_hex(&slip).unwrap_err();
            assert!(!error.contains(&text[..8]), "{error}");
        }
        assert!(JobSecret::from_hex(&"00".repeat(32)).unwrap_err().contains("guess"));
    }

    #[test]
    fn debug_hides_it() {
        let secret = JobSecret::random();
        assert!(!format!("{secret:?}").contains(&secret.to_hex()[..8]));
        assert!(!format!("{secret:?}").contains(&format!("{:?}", &secret.bytes()[..4])));
    }
}
