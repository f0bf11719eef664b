//! The plain non-blocking socket driver.
