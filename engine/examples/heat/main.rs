//! The heat equation in two dimensions: Jacobi iteration over N ranks, halo exchange through
//! ringrail endpoints, the result compared bit for bit with a run of one process.
//!
//! `cargo run --release -p ringrail --example heat -- --ranks 2 --output heat.png`
//!
//! Without `RANK` in the environment it starts its ranks itself, as processes on loopback; under a
//! launcher that sets `RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT` it is one rank.

mod field;
mod picture;

use std::error::Error;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode};
use std::time::{Duration, Instant};

use field::{Field, rows_of};
use indicatif::{ProgressBar, ProgressStyle};
use ringrail::bootstrap::{self, Bootstrap};
use ringrail::settings::Settings;
use ringrail::{
    Address, CompletionLevel, Domain, Endpoint, Envelope, JobSecret, Owned, Peer, ReceiveOptions,
    Selector, SendOptions, SharedMemoryState,
};

/// What to compute.
#[derive(Clone, Debug)]
struct Options {
    ranks: usize,
    width: usize,
    height: usize,
    steps: usize,
    output: PathBuf,
    /// When the ranks are ended that have not come to an end.
    limit: Option<Duration>,
}

const USAGE: &str = "usage: heat [--ranks N] [--width W] [--height H] [--steps S] \
                     [--seconds LIMIT] [--output PNG]";

fn options() -> Result<Options, Box<dyn Error>> {
    let output = PathBuf::from("heat.png");
    let mut options =
        Options { ranks: 2, width: 512, height: 512, steps: 2000, output, limit: None };
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or(USAGE)?;
        match name.as_str() {
            "--ranks" => options.ranks = value.parse()?,
            "--width" => options.width = value.parse()?,
            "--height" => options.height = value.parse()?,
            "--steps" => options.steps = value.parse()?,
            "--seconds" => options.limit = Some(Duration::from_secs(value.parse()?)),
            "--output" => options.output = value.into(),
            _ => return Err(USAGE.into()),
        }
    }
    if options.ranks == 0 || options.width < 3 || options.height < options.ranks + 2 {
        return Err("the field needs 3 columns and a row for every rank beside its edges".into());
    }
    Ok(options)
}

fn main() -> ExitCode {
    let done = options().and_then(|options| match std::env::var_os("RANK") {
        Some(_) => rank(&options),
        None => launch(&options),
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("heat: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Ends what it started, whatever happens.
struct Ranks(Vec<Child>);

impl Drop for Ranks {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // A rank that ended by itself needs no end.
            if let Ok(None) = child.try_wait() {
                let _ = child.kill();
            }
            let _ = child.wait();
        }
    }
}

fn launch(options: &Options) -> Result<(), Box<dyn Error>> {
    let start = Instant::now();
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let mut ranks = Ranks(Vec::new());
    // A secret of this run alone, by a way that only these processes can read; one of the
    // environment or of a settings file stays.
    let settings = Settings::load()?;
    let is_settled = settings.insecure()
        || settings.job_secret().is_some()
        || settings.job_secret_file().is_some();
    let secret = (!is_settled).then(|| JobSecret::random().to_hex());
    for rank in 0..options.ranks {
        let mut command = Command::new(std::env::current_exe()?);
        if let Some(secret) = &secret {
            command.env("RINGRAIL_JOB_SECRET", secret.as_str());
        }
        let child = command
            .args(std::env::args().skip(1))
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", options.ranks.to_string())
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", port.to_string())
            .spawn()?;
        ranks.0.push(child);
    }
    let mut left: Vec<usize> = (0..options.ranks).collect();
    while !left.is_empty() {
        let mut failed = None;
        left.retain(|&rank| match ranks.0[rank].try_wait() {
            Ok(None) => true,
            Ok(Some(status)) => {
                failed = failed.or((!status.success()).then_some(rank));
                false
            }
            Err(_) => {
                failed = Some(rank);
                false
            }
        });
        if let Some(rank) = failed {
            return Err(format!("rank {rank} failed").into());
        }
        if let Some(limit) = options.limit.filter(|&limit| start.elapsed() >= limit) {
            return Err(format!(
                "the ranks did not end in {limit:?} and were ended: ranks spin, and each needs a \
                 processor that no other program uses; allow more --seconds, or fewer --steps"
            )
            .into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Peers by rank; the place of this rank is empty.
type Peers = Vec<Option<Peer>>;

/// This rank's endpoint and the others.
fn connect(bootstrap: &mut dyn Bootstrap) -> Result<(Endpoint<Owned>, Peers), Box<dyn Error>> {
    let is_local = std::env::var("MASTER_ADDR").is_ok_and(|address| address == "127.0.0.1");
    let mut settings = Settings::builder();
    if is_local {
        settings = settings.set("listen_address", "127.0.0.1");
    }
    let domain = Domain::with_settings(settings.build()?)?;
    let endpoint = domain.endpoint()?.attach()?;
    let own = endpoint.address().to_bytes();
    let mut peers = Vec::new();
    for (rank, bytes) in bootstrap::exchange(bootstrap, "address", &own)?.iter().enumerate() {
        let is_other = rank != bootstrap.rank();
        peers.push(match is_other {
            true => Some(endpoint.insert_peer(&Address::from_bytes(bytes)?)?),
            false => None,
        });
    }
    Ok((endpoint, peers))
}

const UP: Envelope = Envelope::tagged(1);
const DOWN: Envelope = Envelope::tagged(2);
const RESULT: Envelope = Envelope::tagged(3);

fn rank(options: &Options) -> Result<(), Box<dyn Error>> {
    let mut bootstrap = bootstrap::from_env()?;
    let (endpoint, peers) = connect(&mut *bootstrap)?;
    let (rank, size) = (bootstrap.rank(), bootstrap.size());
    let rows = rows_of(options.height, size, rank);
    let mut field = Field::new(options.width, options.height, rows.clone());
    let above = rank.checked_sub(1).and_then(|other| peers[other]);
    let below = peers.get(rank + 1).copied().flatten();
    let bar =
        if rank == 0 { ProgressBar::new(options.steps as u64) } else { ProgressBar::hidden() };
    let style = "{bar:40} {pos}/{len} steps, {eta} left";
    bar.set_style(ProgressStyle::with_template(style)?);
    let start = Instant::now();
    for _ in 0..options.steps {
        exchange(&endpoint, &mut field, above, below)?;
        field.step();
        bar.inc(1);
    }
    bar.finish_and_clear();
    let seconds = start.elapsed().as_secs_f64();
    let carrier = carrier(&endpoint);
    if rank != 0 {
        let root = peers[0].ok_or("there is no rank 0")?;
        endpoint.send_blocking(
            root,
            RESULT,
            &field.interior_bytes(),
            SendOptions::at(CompletionLevel::Match),
        )?;
    } else {
        let mut whole = field.interior();
        for (other, peer) in peers.iter().enumerate().skip(1) {
            let peer = peer.ok_or("a rank is missing")?;
            let count = rows_of(options.height, size, other).len() * options.width;
            let mut bytes = vec![0; count * 8];
            endpoint.receive_blocking(
                Selector::from_peer(peer, RESULT),
                &mut bytes,
                ReceiveOptions::new(),
            )?;
            whole.extend(field::from_bytes(&bytes));
        }
        conclude(options, &whole, size, seconds, &carrier)?;
    }
    // Everybody has what it needs before anybody leaves.
    bootstrap.barrier()?;
    Ok(())
}

/// Sends the outermost own rows to the neighbours and receives theirs. All four are posted
/// before any is waited for, so the order of the ranks does not matter.
fn exchange(
    endpoint: &Endpoint<Owned>,
    field: &mut Field,
    above: Option<Peer>,
    below: Option<Peer>,
) -> Result<(), Box<dyn Error>> {
    let row_bytes = field.width() * 8;
    let mut receives = Vec::new();
    let mut sends = Vec::new();
    for (peer, out, back, is_top) in [(above, UP, DOWN, true), (below, DOWN, UP, false)] {
        let Some(peer) = peer else { continue };
        let receive = endpoint.receive(Selector::from_peer(peer, back), vec![0u8; row_bytes])?;
        receives.push((receive, is_top));
        let options = SendOptions::default();
        sends.push(endpoint.send(peer, out, field.edge_bytes(is_top), options)?);
    }
    for (receive, is_top) in receives {
        let outcome = receive.wait()?;
        field.set_halo(is_top, outcome.buffer.as_slice().ok_or("the row is in pieces")?);
    }
    for send in sends {
        send.wait()?;
    }
    Ok(())
}

/// What moved the rows of this rank: memory that ranks of one host share, or a NIC.
fn carrier(endpoint: &Endpoint<Owned>) -> String {
    let paths = endpoint.paths();
    // Each session has one path that carries its messages.
    let sessions = paths.iter().filter(|path| path.carries_messages).count().max(1);
    let by_nic = paths.iter().find(|path| path.carries_messages).map(|path| match path {
        path if path.carries_datagrams => format!("UDP on {}", path.nic),
        path => format!("TCP on {} ({})", path.nic, endpoint.driver()),
    });
    // The first rows go by a NIC, until both sides have mapped the memory.
    match (endpoint.shared_memory(), by_nic) {
        (SharedMemoryState::On { figures, .. }, _) if figures.local_peers >= sessions => {
            "shared memory".to_owned()
        }
        (SharedMemoryState::On { figures, .. }, Some(nic)) if figures.local_peers > 0 => {
            format!("shared memory and {nic}")
        }
        (_, Some(nic)) => nic,
        (_, None) => "nothing: one rank sends no rows".to_owned(),
    }
}

fn conclude(
    options: &Options,
    whole: &[f64],
    ranks: usize,
    seconds: f64,
    carrier: &str,
) -> Result<(), Box<dyn Error>> {
    let start = Instant::now();
    let mut alone = Field::new(options.width, options.height, rows_of(options.height, 1, 0));
    for _ in 0..options.steps {
        alone.step();
    }
    let seconds_alone = start.elapsed().as_secs_f64();
    let expected = alone.interior();
    let is_same = expected.len() == whole.len()
        && expected.iter().zip(whole).all(|(a, b)| a.to_bits() == b.to_bits());
    if !is_same {
        return Err("the field differs from the one that a single process computes".into());
    }
    picture::write(&options.output, whole, options.width)?;
    println!(
        "{}x{} field, {} steps: {seconds:.2} s on {ranks} ranks over {carrier}, \
         {seconds_alone:.2} s on one; equal bit for bit; picture: {}",
        options.width,
        options.height,
        options.steps,
        options.output.display()
    );
    Ok(())
}
