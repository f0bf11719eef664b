//! Drivers that wrap a driver: fault injection ([`fault`]), packet capture ([`pcap`]), and tracing
//! of calls and events ([`trace`]).
//!
//! Each keeps the contract of [`crate::driver::traits`] if the inner driver does. Without any, the
//! engine uses its driver directly.

mod capture;
mod fault;
mod pcap;
mod trace;

#[cfg(test)]
pub(super) use trace::is_enabled as is_traced;

use super::{AnyDriver, DriverConfig, DriverError};
use crate::driver::traits::Driver;

/// Wraps a driver as `config` and the trace filter request. The capture is innermost and shows what
/// the kernel did; the trace is outermost and shows what the engine saw.
pub(super) fn wrap(
    driver: AnyDriver<dyn Driver + Send>,
    config: &DriverConfig,
) -> Result<AnyDriver<dyn Driver + Send>, DriverError> {
    let mut driver = driver;
    if let Some(path) = &config.pcap_file {
        let capture = capture::Capture::create(path)?;
        driver = AnyDriver::Other(Box::new(pcap::Pcap::new(driver.boxed(), capture)));
    }
    if let Some(faults) = config.inject_faults {
        tracing::warn!(
            "the setting inject_faults is in force ({faults}): this engine fails on purpose, \
             which is for tests only"
        );
        driver = AnyDriver::Other(Box::new(fault::Fault::new(driver.boxed(), faults)));
    }
    if trace::is_enabled() {
        driver = AnyDriver::Other(Box::new(trace::Trace::new(driver.boxed())));
    }
    Ok(driver)
}
