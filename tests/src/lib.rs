//! Two-host labs.
