//! The io_uring features of this kernel.

use crate::types::Error;

/// One io_uring feature that the driver can use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct KernelFeature {
    /// Its name, as in the setting `uring_disable`.
    pub name: &'static str,
    /// The first kernel that has it.
    pub since: &'static str,
    /// Whether this kernel has it.
    pub is_available: bool,
}

/// Returns the io_uring features of this kernel; each is tried separately.
///
/// # Errors
///
/// [`Error::System`] with the reason and the cure where io_uring is refused altogether; endpoints
/// run over plain sockets then.
pub fn kernel_features() -> Result<Vec<KernelFeature>, Error> {
    #[cfg(feature = "uring")]
    {
        let features = crate::driver::uring::UringFeatures::probe()
            .map_err(|error| Error::system("io_uring is not available", error))?;
        let features = features.iter().map(|feature| KernelFeature {
            name: feature.name,
            since: feature.since,
            is_available: feature.is_available,
        });
        Ok(features.collect())
    }
    #[cfg(not(feature = "uring"))]
    Err(Error::system("io_uring is not available", "built without the cargo feature `uring`"))
}
