//! io_uring features of this kernel; each can be disabled.

use std::io;

use io_uring::{Builder, IoUring, Probe, cqueue, opcode, squeue};

use super::super::DriverError;
use crate::refused_call::refused;

/// One feature.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Feature {
    /// Its name in the setting `uring_disable`.
    pub(crate) name: &'static str,
    /// First kernel version with it.
    pub(crate) since: &'static str,
    /// The kernel has it.
    pub(crate) is_available: bool,
    /// It is disabled by the setting.
    pub(crate) is_disabled: bool,
}

/// Indices into the table, in the order of [`NAMES`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub(crate) enum Name {
    SingleIssuer,
    DeferTaskrun,
    CoopTaskrun,
    TaskrunFlag,
    NoSqarray,
    RegisteredFiles,
    RegisteredBuffers,
    SendZc,
    MultishotPoll,
}

const NAMES: [(&str, &str); 9] = [
    ("single_issuer", "6.0"),
    ("defer_taskrun", "6.1"),
    ("coop_taskrun", "5.19"),
    ("taskrun_flag", "5.19"),
    ("no_sqarray", "6.6"),
    ("registered_files", "5.19"),
    ("registered_buffers", "5.1"),
    ("send_zc", "6.0"),
    ("multishot_poll", "5.13"),
];

/// The features of this kernel.
#[derive(Clone, Debug)]
pub(crate) struct UringFeatures {
    features: [Feature; NAMES.len()],
}

type RingBuilder = Builder<squeue::Entry, cqueue::Entry>;

fn accepts(configure: impl FnOnce(&mut RingBuilder)) -> bool {
    let mut builder = IoUring::builder();
    configure(&mut builder);
    builder.build(2).is_ok()
}

impl UringFeatures {
    /// Probes every feature separately.
    ///
    /// # Errors
    ///
    /// Why io_uring is not available, and the remedy.
    pub(crate) fn probe() -> io::Result<Self> {
        let ring = IoUring::new(2).map_err(|error| {
            let cure = match error.raw_os_error() {
                Some(libc::EPERM | libc::EACCES) => {
                    "a seccomp profile or the sysctl kernel.io_uring_disabled forbids it; allow \
                     the io_uring system calls (containers: a profile that has them; hosts: \
                     sysctl kernel.io_uring_disabled=0)"
                }
                Some(libc::ENOSYS) => "this kernel has no io_uring; use Linux 5.15 or later",
                Some(libc::ENOMEM) => "not enough lockable memory (ulimit -l)",
                _ => "see io_uring_setup(2)",
            };
            io::Error::new(error.kind(), format!("{error} ({cure})"))
        })?;
        if !ring.params().is_feature_ext_arg() {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "the kernel is older than 5.11, which waiting with a timeout requires",
            ));
        }
        // A profile may allow the set-up alone.
        ring.submit().map_err(refused("io_uring_enter"))?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe).map_err(refused("io_uring_register"))?;
        let has = |code| probe.is_supported(code);
        let available = [
            accepts(|b| _ = b.setup_single_issuer()),
            accepts(|b| _ = b.setup_single_issuer().setup_defer_taskrun()),
            accepts(|b| _ = b.setup_coop_taskrun()),
            accepts(|b| _ = b.setup_coop_taskrun().setup_taskrun_flag()),
            accepts(|b| _ = b.setup_no_sqarray()),
            ring.submitter().register_files_sparse(2).is_ok(),
            // Whether memory can be locked is known when it is registered.
            true,
            has(opcode::SendZc::CODE),
            ring.params().is_feature_native_workers(),
        ];
        let mut features = NAMES.map(|(name, since)| Feature {
            name,
            since,
            is_available: false,
            is_disabled: false,
        });
        for (feature, is_available) in features.iter_mut().zip(available) {
            feature.is_available = is_available;
        }
        Ok(Self { features })
    }

    /// Disables features by name.
    pub(crate) fn disable(&mut self, names: &[String]) -> Result<(), DriverError> {
        for name in names {
            let found = self.features.iter_mut().find(|feature| feature.name == name);
            let Some(feature) = found else {
                let known = NAMES.map(|(name, _)| name).join(", ");
                return Err(DriverError::UnknownFeature { name: name.clone(), known });
            };
            feature.is_disabled = true;
        }
        Ok(())
    }

    /// Whether a feature is used.
    pub(crate) fn has(&self, name: Name) -> bool {
        let feature = &self.features[name as usize];
        feature.is_available && !feature.is_disabled
    }

    /// All features.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Feature> {
        self.features.iter()
    }

    /// Creates a ring with the used features.
    pub(super) fn build(&self, entries: u32, completions: u32) -> io::Result<IoUring> {
        let mut builder = IoUring::builder();
        builder.dontfork().setup_clamp().setup_cqsize(completions).setup_submit_all();
        if self.has(Name::SingleIssuer) {
            builder.setup_single_issuer();
        }
        if self.defers() {
            builder.setup_defer_taskrun();
        } else if self.has(Name::CoopTaskrun) {
            builder.setup_coop_taskrun();
        }
        if self.announces() {
            builder.setup_taskrun_flag();
        }
        if self.has(Name::NoSqarray) {
            builder.setup_no_sqarray();
        }
        builder.build(entries)
    }

    /// Completions run only in calls of this thread.
    pub(super) fn defers(&self) -> bool {
        self.has(Name::SingleIssuer) && self.has(Name::DeferTaskrun)
    }

    /// Completions arrive without a call of this thread.
    pub(super) fn completes_unasked(&self) -> bool {
        !self.defers() && !self.has(Name::CoopTaskrun)
    }

    /// The kernel sets a flag in shared memory when a call would find completions.
    pub(super) fn announces(&self) -> bool {
        (self.defers() || self.has(Name::CoopTaskrun)) && self.has(Name::TaskrunFlag)
    }
}
