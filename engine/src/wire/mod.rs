//! Headers: one file per frame type, drawn, size-asserted. No I/O, no state.
