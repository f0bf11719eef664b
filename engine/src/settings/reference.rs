//! The reference page of settings, which is generated from the table.

use std::fmt::Write as _;
use std::path::Path;

use super::Settings;
use super::table::{RELATIONS, ROWS, position};

/// `RINGRAIL_WRITE_SETTINGS=1 cargo test -p ringrail --lib settings::reference` writes it anew.
const WRITE: &str = "RINGRAIL_WRITE_SETTINGS";
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/reference/settings.md");

const INTRODUCTION: &str = "\
# Settings

Generated from `engine/src/settings/table.rs`; do not edit. After a change of the table:
`RINGRAIL_WRITE_SETTINGS=1 cargo test -p ringrail --lib settings::reference`.

A value comes from the first of: the program (`Settings::builder`), the environment
(`RINGRAIL_` and the name in capitals), a TOML file, the default. [environment.md](environment.md)
has the files and the other variables. Unknown names and values outside their range are errors.
Sizes take the units K, M, G and T (powers of 1024), times us, ms and s.
`ringrail-perf info` prints the settings in force with their origin.
";

fn page() -> String {
    let mut page = INTRODUCTION.to_owned();
    for setting in Settings::definitions() {
        let default = match setting.default.as_str() {
            "" => "none".to_owned(),
            text => format!("`{text}`"),
        };
        write!(
            page,
            "\n## {}\n\n{}\n\n- Variable: `{}`\n- Default: {default}\n- Values: {}\n",
            setting.name, setting.doc, setting.variable, setting.takes
        )
        .expect("writing to a string does not fail");
    }
    page.push_str(
        "\n## Settings that limit each other\n\n\
         If only one of two is set, the default of the other is adjusted to it.\n\n\
         | not greater than | | because |\n|---|---|---|\n",
    );
    let is_listed = |name| position(name).is_some_and(|row| !ROWS[row].is_hidden);
    for relation in RELATIONS.iter().filter(|it| is_listed(it.lesser) && is_listed(it.greater)) {
        let gap = match relation.gap {
            0 => String::new(),
            gap => format!(" + {gap} bytes"),
        };
        writeln!(
            page,
            "| `{}`{gap} | `{}` | {} |",
            relation.lesser, relation.greater, relation.why
        )
        .expect("writing to a string does not fail");
    }
    page
}

#[test]
fn at_most_forty_settings_are_documented() {
    assert!(Settings::definitions().count() <= 40, "does a user have a reason to change them all?");
}

#[test]
fn the_page_of_settings_is_current() {
    let page = page();
    if std::env::var_os(WRITE).is_some() {
        std::fs::create_dir_all(Path::new(PAGE).parent().unwrap()).unwrap();
        std::fs::write(PAGE, &page).unwrap();
    }
    let kept = std::fs::read_to_string(PAGE).unwrap_or_default();
    let differs = kept.lines().zip(page.lines()).position(|(old, new)| old != new);
    assert!(
        kept == page,
        "docs/reference/settings.md differs from the table (line {}): {WRITE}=1 cargo test -p \
         ringrail --lib settings::reference",
        differs.map_or(0, |line| line + 1),
    );
}
