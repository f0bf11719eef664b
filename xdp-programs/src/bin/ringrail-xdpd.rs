//! `ringrail-xdpd`: lends AF_XDP sockets to users without privileges.

use std::error::Error;
use std::io::{Write as _, stderr};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, ValueEnum};
use clap_complete::Shell;
use ringrail_xdp::Missing;
use ringrail_xdp::lease::{
    DEFAULT_GROUP, DEFAULT_SOCKET, Daemon, DaemonConfig, group_id, termination,
};

/// Lends AF_XDP sockets to the members of a group, until SIGTERM or SIGINT.
///
/// Engines of ringrail whose processes lack privileges ask it for the queues of NICs, where
/// control_lane is auto or xdp (setting xdpd_socket). It needs CAP_NET_RAW, CAP_NET_ADMIN and
/// CAP_BPF, and before Linux 5.18 CAP_PERFMON. SECURITY.md of ringrail describes what a member
/// of the group can do.
#[derive(Debug, Parser)]
#[command(name = "ringrail-xdpd", version)]
struct Arguments {
    /// Where it listens.
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET)]
    socket: PathBuf,
    /// A group that is served, by name or number; may be given again. `ringrail` where neither
    /// this nor --user is given.
    #[arg(long = "group", value_name = "GROUP")]
    groups: Vec<String>,
    /// A user that is served besides; may be given again.
    #[arg(long = "user", value_name = "NUMBER")]
    users: Vec<u32>,
    /// Queues that one user may have at the same time.
    #[arg(long, value_name = "NUMBER", default_value_t = 16)]
    queues: u32,
    /// A NIC whose queues are leased; may be given again. All where this is not given.
    #[arg(long = "nic", value_name = "NAME")]
    nics: Vec<String>,
    /// Whether queues of NICs that receive without copies are leased, too, though the user of one
    /// can read and stop all that comes in on it.
    #[arg(long, value_name = "yes|no", value_enum, default_value_t = Trust::No)]
    trust_clients: Trust,
    /// Writes the manual page and completions of shells into a folder such as /usr/share.
    #[arg(long, value_name = "DIR", hide = true)]
    write_pages: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Trust {
    Yes,
    No,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(folder) = &arguments.write_pages {
        let manual = clap_mangen::Man::new(Arguments::command()).section("8");
        return ended(write_pages(manual, folder).map_err(Into::into));
    }
    match configure(&arguments) {
        Ok(config) => ended(serve(config)),
        Err(error) => {
            say(&format!("ringrail-xdpd: {error}"));
            ExitCode::from(2)
        }
    }
}

fn ended(result: Result<(), Box<dyn Error>>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("ringrail-xdpd: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Writes a line to the log. The end of its reader ends no lease.
fn say(line: &str) {
    let _ = writeln!(stderr(), "{line}");
}

/// Writes what an installer puts below `share`.
fn write_pages(manual: clap_mangen::Man, share: &Path) -> std::io::Result<()> {
    let folder = share.join("man/man8");
    std::fs::create_dir_all(&folder)?;
    manual.render(&mut std::fs::File::create(folder.join("ringrail-xdpd.8"))?)?;
    for (shell, folder, name) in [
        (Shell::Bash, "bash-completion/completions", "ringrail-xdpd"),
        (Shell::Zsh, "zsh/site-functions", "_ringrail-xdpd"),
        (Shell::Fish, "fish/vendor_completions.d", "ringrail-xdpd.fish"),
    ] {
        let folder = share.join(folder);
        std::fs::create_dir_all(&folder)?;
        let mut file = std::fs::File::create(folder.join(name))?;
        clap_complete::generate(shell, &mut Arguments::command(), "ringrail-xdpd", &mut file);
    }
    Ok(())
}

fn configure(arguments: &Arguments) -> Result<DaemonConfig, Box<dyn Error>> {
    let mut groups = Vec::new();
    for name in &arguments.groups {
        groups.push(group(name)?);
    }
    if groups.is_empty() && arguments.users.is_empty() {
        groups.push(group(DEFAULT_GROUP)?);
    }
    Ok(DaemonConfig {
        socket: arguments.socket.clone(),
        groups,
        users: arguments.users.clone(),
        queues_per_user: arguments.queues as usize,
        nics: arguments.nics.clone(),
        trusts_clients: arguments.trust_clients == Trust::Yes,
    })
}

fn group(name: &str) -> Result<u32, Box<dyn Error>> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    let found = group_id(name).map_err(|error| format!("asking for group {name}: {error}"))?;
    Ok(found.ok_or_else(|| {
        format!("no group {name}: `groupadd --system {name}`, or name another one by --group")
    })?)
}

fn serve(config: DaemonConfig) -> Result<(), Box<dyn Error>> {
    if let Some(missing) = Missing::of_this_thread() {
        return Err(missing.to_string().into());
    }
    // Before any thread starts, which then does not get them either.
    let stop = termination()?;
    let daemon = Daemon::listen(config, say)?;
    say("ready");
    Ok(daemon.run(stop.as_fd())?)
}
