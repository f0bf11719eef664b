//! The header that is checked in is the one that cbindgen makes of the sources.

use std::path::Path;

/// `RINGRAIL_WRITE_HEADER=1 cargo test -p ringrail-c --test header` writes it anew.
const WRITE: &str = "RINGRAIL_WRITE_HEADER";

#[test]
fn the_header_is_current() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(here.join("cbindgen.toml")).unwrap();
    let bindings = cbindgen::Builder::new().with_config(config).with_crate(here).generate();
    let mut made = Vec::new();
    bindings.unwrap().write(&mut made);
    let made = String::from_utf8(made).unwrap();
    let path = here.join("include/ringrail.h");
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = kept.lines().zip(made.lines()).position(|(old, new)| old != new);
    assert!(
        kept == made,
        "include/ringrail.h is not what the sources say (line {}): {WRITE}=1 cargo test -p \
         ringrail-c --test header",
        differs.map_or(0, |line| line + 1),
    );
}
