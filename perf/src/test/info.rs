//! What this host can do, and the settings in force.

use ringrail::{kernel_features, topology};

use crate::cli::Cli;

pub(crate) fn run(cli: &Cli) -> Result<(), String> {
    let settings =
        super::settings(cli.lanes.setting()?, cli.nics.as_deref(), None, None, &cli.settings)?;
    println!("io_uring features (each can be forced off with the setting uring_disable)");
    match kernel_features() {
        Ok(features) => {
            for feature in features {
                let state = if feature.is_available { "yes" } else { "no" };
                println!("  {:<20} {state:<4} since Linux {}", feature.name, feature.since);
            }
        }
        Err(error) => println!("  {error}; endpoints use plain sockets"),
    }
    println!("AF_XDP\n  not offered yet");
    println!("NICs");
    let nics = topology::nics().map_err(|error| error.to_string())?;
    let selection = topology::select(&nics, &settings).map_err(|error| error.to_string())?;
    for candidate in selection.candidates {
        println!("  {candidate}");
    }
    println!("limits");
    let limits = [
        ("memlock (for registered memory; raise with ulimit -l)", "Max locked memory"),
        ("open files (one per peer, one per bulk lane)", "Max open files"),
    ];
    let text = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    for (meaning, name) in limits {
        let value = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("unknown");
        let value = value.split_whitespace().next().unwrap_or("unknown");
        println!("  {meaning}: {value}");
    }
    for file in ["net/core/rmem_max", "net/core/wmem_max", "vm/nr_hugepages"] {
        let value = std::fs::read_to_string(format!("/proc/sys/{file}")).unwrap_or_default();
        println!("  {file}: {}", value.trim());
    }
    println!("  cores: {:?}", topology::cores());
    println!("settings");
    for entry in settings.entries() {
        println!("  {:<24} {:<16} {}", entry.name, entry.value, entry.origin);
    }
    Ok(())
}
