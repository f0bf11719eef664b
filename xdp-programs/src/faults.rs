//! Faults on purpose, for tests.

use std::io;

use libbpf_rs::{MapCore as _, MapFlags};

use crate::Nic;
use crate::program::plain;

/// Rules of one NIC: `FAULTS_MAX` in `bpf/faults.h`.
const FAULTS_MAX: u32 = 8;

/// Bytes of `struct fault`.
const FAULT_BYTES: usize = 40;

/// What happens to UDP datagrams that come in on a NIC, for any receiver.
///
/// One that is neither a fragment nor malformed is compared with each rule in turn; the first that
/// hits it decides.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Fault {
    /// What is done.
    pub effect: Effect,
    /// Only datagrams to this port; 0: to any.
    pub to_port: u16,
    /// Only datagrams from this port; 0: from any.
    pub from_port: u16,
    /// So many datagrams that fit are left alone first.
    pub skip: u32,
    /// Each `every`-th of those that fit is hit; 0: by `share`.
    pub every: u32,
    /// The share of those that fit which is hit, at random: 0.01 for one of a hundred.
    pub share: f64,
}

impl Fault {
    /// Drops each datagram with this probability.
    pub fn drop_share(share: f64) -> Self {
        Self { effect: Effect::Drop, to_port: 0, from_port: 0, skip: 0, every: 0, share }
    }

    /// Drops each `every`-th datagram.
    pub fn drop_every(every: u32) -> Self {
        Self { every, ..Self::drop_share(0.0) }
    }

    /// Changes bit `bit` of the UDP payload of each `every`-th datagram, as long as it has one.
    pub fn flip_every(every: u32, bit: u32) -> Self {
        Self { effect: Effect::Flip { bit }, ..Self::drop_every(every) }
    }
}

/// What a [`Fault`] does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// The datagram is gone.
    Drop,
    /// One bit of its UDP payload is the opposite; bit 0 is the lowest of the first byte. Those
    /// that are shorter, or have it in a later buffer of a long frame, stay as they are.
    Flip {
        /// The bit, below 131072.
        bit: u32,
    },
}

/// What a rule has done.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct FaultReport {
    /// Datagrams that fitted.
    pub seen: u64,
    /// Of these, those dropped or changed.
    pub hits: u64,
}

/// Why faults could not be set.
#[derive(Debug, thiserror::Error)]
pub enum FaultError {
    /// The program of this NIC cannot do it.
    #[error(
        "{nic} runs the program that ships: the first process to join has to call \
         `Nic::join_with_faults`"
    )]
    PlainProgram {
        /// The interface.
        nic: String,
    },
    /// More rules than there is room for.
    #[error("{asked} rules, but there is room for {FAULTS_MAX}")]
    TooMany {
        /// How many were asked for.
        asked: usize,
    },
    /// The kernel refused.
    #[error("setting faults: {0}")]
    Os(#[from] io::Error),
}

impl Nic {
    /// Replaces all rules. The counts of all begin anew.
    ///
    /// # Errors
    ///
    /// See [`FaultError`].
    pub fn set_faults(&self, rules: &[Fault]) -> Result<(), FaultError> {
        let map = self.faults_map();
        let map = map.ok_or_else(|| FaultError::PlainProgram { nic: self.name().to_owned() })?;
        if rules.len() > FAULTS_MAX as usize {
            return Err(FaultError::TooMany { asked: rules.len() });
        }
        let none = std::iter::repeat([0; FAULT_BYTES]);
        let values = rules.iter().copied().map(Fault::to_bytes).chain(none);
        for (at, value) in (0..FAULTS_MAX).zip(values) {
            map.update(&at.to_ne_bytes(), &value, MapFlags::ANY).map_err(plain)?;
        }
        Ok(())
    }

    /// What rule `at` has done since it was set.
    ///
    /// # Errors
    ///
    /// See [`FaultError`].
    pub fn fault_report(&self, at: usize) -> Result<FaultReport, FaultError> {
        let map = self.faults_map();
        let map = map.ok_or_else(|| FaultError::PlainProgram { nic: self.name().to_owned() })?;
        let key = u32::try_from(at).unwrap_or(u32::MAX).to_ne_bytes();
        let value = map.lookup(&key, MapFlags::ANY).map_err(plain)?.unwrap_or_default();
        let number = |from: usize| {
            let bytes = value.get(from..from + 8).and_then(|bytes| bytes.try_into().ok());
            u64::from_ne_bytes(bytes.unwrap_or_default())
        };
        Ok(FaultReport { seen: number(24), hits: number(32) })
    }
}

impl Fault {
    /// `struct fault`.
    pub(crate) fn to_bytes(self) -> [u8; FAULT_BYTES] {
        let (action, bit): (u32, u32) = match self.effect {
            Effect::Drop => (1, 0),
            Effect::Flip { bit } => (2, bit),
        };
        // Saturates, as a share above 1 should.
        let share = (self.share * f64::from(u32::MAX)) as u32;
        let mut bytes = [0; FAULT_BYTES];
        for (at, number) in [action, self.every, share, bit].into_iter().enumerate() {
            bytes[at * 4..][..4].copy_from_slice(&number.to_ne_bytes());
        }
        bytes[16..18].copy_from_slice(&self.to_port.to_be_bytes());
        bytes[18..20].copy_from_slice(&self.from_port.to_be_bytes());
        bytes[20..24].copy_from_slice(&self.skip.to_ne_bytes());
        bytes
    }
}
