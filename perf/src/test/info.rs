//! What this host can do, and the settings in force.

use ringrail::{DatagramState, Domain, FrameState, kernel_features, topology};

use crate::cli::Cli;
use crate::secret;

pub(crate) fn run(cli: &Cli) -> Result<(), String> {
    let settings = super::settings(cli.lanes, cli.nics.as_deref(), None, None, &cli.settings)?;
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
    println!("NICs");
    let nics = topology::nics().map_err(|error| error.to_string())?;
    let selection = topology::select(&nics, &settings).map_err(|error| error.to_string())?;
    for candidate in selection.candidates {
        println!("  {candidate}");
    }
    println!("endpoint");
    println!("  {}", endpoint(cli)?);
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

/// What becomes of an endpoint with these settings, its datagrams above all.
fn endpoint(cli: &Cli) -> Result<String, String> {
    // Without a secret there is none; it talks to nobody and needs little memory.
    secret::fresh(cli)?;
    let mut extra = cli.settings.clone();
    extra.push("pcap_file=none".to_owned());
    let settings = super::settings(cli.lanes, cli.nics.as_deref(), None, Some(1 << 20), &extra)?;
    let opened = Domain::with_settings(settings)
        .and_then(|domain| domain.endpoint())
        .and_then(|endpoint| endpoint.attach());
    Ok(match opened {
        Ok(endpoint) => {
            let (at, driver) = (endpoint.address().locator(), endpoint.driver());
            format!("{at}, by {driver}: {}", datagrams(&endpoint.datagrams()))
        }
        Err(error) => format!("cannot be had with these settings: {error}"),
    })
}

fn datagrams(state: &DatagramState) -> String {
    match state {
        DatagramState::Taken {
            port,
            receive_buffer_bytes,
            send_buffer_bytes,
            wanted_buffer_bytes,
            frames,
            ..
        } => {
            let least = receive_buffer_bytes.min(send_buffer_bytes);
            let cure = match least < wanted_buffer_bytes {
                true => format!(
                    "; wanted were {wanted_buffer_bytes}, and less loses more datagrams: as root, \
                     sysctl -w net.core.rmem_max={0} net.core.wmem_max={0}",
                    wanted_buffer_bytes / 2
                ),
                false => String::new(),
            };
            format!(
                "datagrams are taken at UDP port {port}, buffers of {receive_buffer_bytes} bytes \
                 in and {send_buffer_bytes} out{cure}; {}",
                frames_text(frames)
            )
        }
        DatagramState::Off => "no datagrams, for control_lane = tcp (--lanes udp has them on, \
                               control_lane = udp elsewhere)"
            .to_owned(),
        DatagramState::Refused { cause, .. } => {
            format!("no datagrams, for {cause}; messages go by TCP")
        }
        // A state that this program does not know yet.
        other => format!("{other:?}"),
    }
}

/// AF_XDP in words.
fn frames_text(state: &FrameState) -> String {
    match state {
        FrameState::Off => "no AF_XDP frames were asked for (--lanes hybrid has them where they \
                            can be had, control_lane = auto elsewhere)"
            .to_owned(),
        FrameState::Up { nic, queue, how, .. } => {
            format!("they go as AF_XDP frames by queue {queue} of {nic} ({how})")
        }
        FrameState::Down { cause, .. } => format!("AF_XDP frames are down: {cause}"),
        FrameState::Refused { cause, .. } => format!("no AF_XDP frames: {cause}"),
        // A state that this program does not know yet.
        other => format!("{other:?}"),
    }
}
