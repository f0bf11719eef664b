//! Manual pages and completions of shells, as an installer puts them below `share`.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use clap_complete::Shell;
use ringrail::settings::Settings;

use crate::commands;

const PROGRAM: &str = "ringrail-perf";

/// Writes `ringrail-perf(1)`, a page for each subcommand, `ringrail(7)` and completions.
pub(crate) fn write(share: &Path) -> Result<(), String> {
    let failed = |error: io::Error| format!("{}: {error}", share.display());
    let section_1 = share.join("man/man1");
    fs::create_dir_all(&section_1).map_err(failed)?;
    clap_mangen::generate_to(commands::command(), &section_1).map_err(failed)?;
    let section_7 = share.join("man/man7");
    fs::create_dir_all(&section_7).map_err(failed)?;
    fs::write(section_7.join("ringrail.7"), overview()).map_err(failed)?;
    for (shell, folder, name) in [
        (Shell::Bash, "bash-completion/completions", "ringrail-perf"),
        (Shell::Zsh, "zsh/site-functions", "_ringrail-perf"),
        (Shell::Fish, "fish/vendor_completions.d", "ringrail-perf.fish"),
    ] {
        let folder = share.join(folder);
        fs::create_dir_all(&folder).map_err(failed)?;
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut commands::command(), PROGRAM, &mut text);
        let mut file = File::create(folder.join(name)).map_err(failed)?;
        file.write_all(&text).map_err(failed)?;
    }
    Ok(())
}

/// What stands before the settings.
const HEAD: &str = r#".TH ringrail 7 "" "ringrail" "Message transport"
.SH NAME
ringrail \- messages between processes over Ethernet NICs
.SH DESCRIPTION
ringrail moves messages between the processes of a job: by shared memory within a host, and
between hosts over all their Ethernet NICs by datagrams (UDP or AF_XDP) and TCP. A NIC that fails
costs no message. Programs use it by the Rust crate
.BR ringrail ,
by the C API
.RB ( ringrail (3)),
or by libfabric, as MPI libraries do: its provider is
.IR libringrail\-fi.so ,
found in the folder of providers of libfabric or by the variable
.BR FI_PROVIDER_PATH .
.PP
.B ringrail\-perf info
shows what a host can do, which NICs are used and why, and the settings in force with their origin.
.SH SETTINGS
A setting comes from the first of these that has it: the program; the environment (names begin with
.BR RINGRAIL_ ;
by libfabric also with
.BR FI_RINGRAIL_ );
a file of TOML; the default. A name that does not exist is an error in all of them.
.PP
All processes of a job prove to each other that they know its secret
.RB ( RINGRAIL_JOB_SECRET ,
32 bytes as hexadecimal digits), unless
.B insecure
is set.
"#;

/// What stands behind them.
const TAIL: &str = r#".SH ENVIRONMENT
.TP
.B RINGRAIL_CONFIG
The file of settings, which must exist; empty: none.
.TP
.B RINGRAIL_VERBOSE
1: one line for each process on standard error says what carries its traffic.
.TP
.B RUST_LOG
What is logged, for programs that show the log:
.B ringrail=info
for example.
.SH FILES
.TP
.I /etc/ringrail.toml
Settings of the host, where RINGRAIL_CONFIG names no other file.
.TP
.I $XDG_CONFIG_HOME/ringrail.toml
Settings of the user, which win over those of the host.
.TP
.I /run/ringrail/xdpd.sock
Where
.BR ringrail\-xdpd (8)
lends AF_XDP sockets.
.SH EXAMPLES
.nf
# /etc/ringrail.toml
nics = ["rail0", "rail1"]

[host."node*"]
port_range = "20000-20100"
.fi
.SH SEE ALSO
.BR ringrail\-perf (1),
.BR ringrail (3),
.BR ringrail\-xdpd (8),
.BR fabric (7)
"#;

/// The page of the whole, with a list of all settings.
fn overview() -> String {
    let mut text = HEAD.to_owned();
    for setting in Settings::definitions() {
        text += &format!(
            ".TP\n.BR {} \" (\" {} )\n{}\nTakes {}. Default: {}.\n",
            setting.name,
            setting.variable,
            escape(setting.doc),
            escape(&setting.takes),
            escape(if setting.default.is_empty() { "none" } else { &setting.default }),
        );
    }
    text + TAIL
}

/// What troff would take for its own.
fn escape(text: &str) -> String {
    let plain = text.replace('\\', "\\e").replace('-', "\\-");
    if plain.starts_with(['.', '\'']) { format!("\\&{plain}") } else { plain }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_have_every_test_and_every_setting() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path()).unwrap();
        let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
        let main = read("man/man1/ringrail-perf.1");
        for test in ["latency", "failover", "compare", "diff"] {
            let name = format!("ringrail\\-perf\\-{test}(1)");
            assert!(main.contains(&name), "{name}: {main}");
        }
        let bw = read("man/man1/ringrail-perf-bw.1");
        assert!(bw.contains("reuse") && !bw.contains("senders"), "{bw}");
        let whole = read("man/man7/ringrail.7");
        for setting in Settings::definitions() {
            assert!(whole.contains(&setting.variable), "{}", setting.name);
        }
        for completion in
            ["bash-completion/completions/ringrail-perf", "zsh/site-functions/_ringrail-perf"]
        {
            assert!(read(completion).contains("latency-under-load"), "{completion}");
        }
        assert!(!folder.path().join("man/man1/ringrail-perf-help.1").exists());
    }
}
