//! The systems that are compared: their programs, and how those are started.

use std::cell::Cell;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use ringrail::JobSecret;
use ringrail_tests::lab::{Host, Lab, LabCommand};

use super::mpi::Mpi;
use super::pair::{self, Server};
use super::rows::{Figure, Kind};
use super::{Arguments, CompareTest, said};
use crate::cli::FloorName;
use crate::{floor, lab, secret};

/// Where servers listen: each measurement has a port of its own, below those that the kernel gives.
const PORTS: std::ops::Range<u16> = 20_000..32_000;
/// Messages of a peer that are not counted, at the most.
const WARM_UP_MAX: u64 = 10_000;

/// One of those that are compared.
pub(super) struct System {
    pub(super) name: String,
    pub(super) kind: Kind,
    /// What a round's value is: `p50` or `mean`.
    pub(super) statistic: &'static str,
    tool: Tool,
}

enum Tool {
    Ringrail,
    Floor(FloorName),
    /// `ucx_perftest`.
    Ucx(PathBuf),
    /// A program of fabtests.
    Fabtests(PathBuf),
    /// libfabric's own program.
    FiPingpong(PathBuf),
    /// A program of OSU's.
    Osu(Mpi),
}

impl System {
    fn new(name: &str, kind: Kind, statistic: &'static str, tool: Tool) -> Self {
        Self { name: name.to_owned(), kind, statistic, tool }
    }

    /// An empty figure.
    pub(super) fn figure(&self) -> Figure {
        Figure {
            system: self.name.clone(),
            kind: self.kind,
            statistic: self.statistic.to_owned(),
            value: None,
            rounds: Vec::new(),
            errors: Vec::new(),
        }
    }

    /// Whether it has messages of this size in bytes.
    pub(super) fn is_of(&self, size: usize) -> bool {
        match self.tool {
            Tool::Floor(name) => {
                let most = floor::size_max(name).unwrap_or(usize::MAX);
                (floor::size_min(name)..=most).contains(&size)
            }
            _ => true,
        }
    }
}

/// All that are here, and a line for each that is not.
pub(super) fn find(arguments: &Arguments) -> Result<(Vec<System>, Vec<String>), String> {
    let test = arguments.test;
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    let statistic = match test {
        CompareTest::Latency => "p50",
        CompareTest::Bw => "mean",
    };
    found.push(System::new("ringrail", Kind::Ringrail, statistic, Tool::Ringrail));
    let is_latency = test == CompareTest::Latency;
    let ucx = Place::new("ucx", "--ucx", arguments.ucx.as_deref(), "COMPARE_UCX");
    match ucx.find(&["ucx_perftest"])? {
        Some(program) => {
            found.push(System::new("ucx", Kind::Peer, statistic, Tool::Ucx(program)));
        }
        None => missing.push(ucx.missing("ucx_perftest")),
    }
    let given = arguments.fabtests.as_deref();
    let fabtests = Place::new("libfabric", "--fabtests", given, "COMPARE_FABTESTS");
    let programs: &[&str] = match is_latency {
        true => &["fi_rdm_tagged_pingpong", "fi_pingpong"],
        // That of libfabric itself has no stream.
        false => &["fi_rdm_tagged_bw"],
    };
    match fabtests.find(programs)? {
        Some(program) => {
            let tool = match program.ends_with("fi_pingpong") {
                true => Tool::FiPingpong(program),
                false => Tool::Fabtests(program),
            };
            found.push(System::new("libfabric", Kind::Peer, "mean", tool));
        }
        None => missing.push(fabtests.missing(programs[0])),
    }
    let osu = Place::new("osu", "--osu", arguments.osu.as_deref(), "COMPARE_OSU");
    let program = if is_latency { "osu_latency" } else { "osu_bw" };
    match (osu.find(&[program])?, in_path("mpirun")) {
        (Some(program), Some(mpirun)) => {
            let tool = Tool::Osu(Mpi { mpirun, program });
            found.push(System::new("osu", Kind::Peer, "mean", tool));
        }
        (Some(_), None) => missing.push("osu is left out: no mpirun in PATH".to_owned()),
        (None, _) => missing.push(osu.missing(program)),
    }
    let floors: &[FloorName] = match is_latency {
        true => &[
            FloorName::UdpLatency,
            FloorName::UdpGsoLatency,
            FloorName::TcpLatency,
            FloorName::TcpPipelineLatency,
        ],
        false => &[FloorName::TcpStream, FloorName::UringStream],
    };
    let frames = is_latency && arguments.lanes.wants_frames();
    for &floor in floors.iter().chain(frames.then_some(&FloorName::XdpLatency)) {
        let name = value_name(floor);
        found.push(System::new(&name, Kind::Floor, statistic, Tool::Floor(floor)));
    }
    Ok((found, missing))
}

/// Where the programs of a peer are.
struct Place<'a> {
    peer: &'a str,
    option: &'a str,
    /// What was said, and by what.
    given: Option<(String, PathBuf)>,
}

impl<'a> Place<'a> {
    fn new(peer: &'a str, option: &'a str, given: Option<&Path>, variable: &str) -> Self {
        let given = given.map(|path| (option.to_owned(), path.to_owned())).or_else(|| {
            let path = std::env::var_os(variable).filter(|path| !path.is_empty())?;
            Some((variable.to_owned(), path.into()))
        });
        Self { peer, option, given }
    }

    /// The first of these programs that is there.
    fn find(&self, programs: &[&str]) -> Result<Option<PathBuf>, String> {
        let Some((who, path)) = &self.given else {
            return Ok(programs.iter().find_map(|program| in_path(program)));
        };
        if path.is_file() {
            return absolute(path).map(Some);
        }
        let mut paths = programs.iter().map(|program| path.join(program));
        match paths.find(|path| path.is_file()) {
            Some(path) => absolute(&path).map(Some),
            None => Err(format!("{who}: no {} at {}", programs.join(" or "), path.display())),
        }
    }

    fn missing(&self, program: &str) -> String {
        let Self { peer, option, .. } = self;
        format!("{peer} is left out: no {program} in PATH, which {option} would name")
    }
}

fn absolute(path: &Path) -> Result<PathBuf, String> {
    std::path::absolute(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn in_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|path| path.is_file())
}

/// As the command line has it.
fn value_name(value: impl clap::ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// What a round brought.
pub(super) struct Measured {
    pub(super) value: f64,
    /// Of ringrail: what its messages went by.
    pub(super) lanes: Vec<String>,
}

/// Where all are measured.
pub(super) struct Bench<'a> {
    lab: &'a Lab,
    arguments: &'a Arguments,
    ringrail: PathBuf,
    secret: Option<&'static JobSecret>,
    port: Cell<u16>,
}

impl<'a> Bench<'a> {
    pub(super) fn new(lab: &'a Lab, arguments: &'a Arguments) -> Result<Self, String> {
        let ringrail = std::env::current_exe().map_err(|error| error.to_string())?;
        let secret = secret::fresh(arguments.lanes, &arguments.settings)?;
        Ok(Self { lab, arguments, ringrail, secret, port: Cell::new(PORTS.start) })
    }

    pub(super) fn test(&self) -> CompareTest {
        self.arguments.test
    }

    pub(super) fn iters(&self, size: usize) -> u64 {
        self.arguments.iters(size)
    }

    /// Messages in flight, where there is more than one.
    pub(super) fn window(&self, size: usize) -> Option<usize> {
        (self.test() == CompareTest::Bw).then(|| self.arguments.window(size))
    }

    /// One round of one system.
    pub(super) fn measure(&self, system: &System, size: usize) -> Result<Measured, String> {
        let test = self.test();
        let value = match &system.tool {
            Tool::Ringrail => return self.ringrail(test.name(), None, size),
            Tool::Floor(name) => return self.ringrail("floor", Some(*name), size),
            Tool::Ucx(program) => said::by_ucx(&self.ucx(program, size)?, test, size)?,
            Tool::Fabtests(program) => {
                said::by_fabtests(&self.libfabric(program, &self.of_fabtests(size), size)?, test)?
            }
            Tool::FiPingpong(program) => {
                // Tagged messages are what has more letters than `msg`.
                let options = ["-e", "rdm", "-m", "tagged"].map(str::to_owned);
                said::by_fi_pingpong(&self.libfabric(program, &options, size)?)?
            }
            Tool::Osu(mpi) => said::by_osu(&self.osu(mpi, size)?, size)?,
        };
        Ok(Measured { value, lanes: Vec::new() })
    }

    fn ringrail(
        &self,
        test: &str,
        floor: Option<FloorName>,
        size: usize,
    ) -> Result<Measured, String> {
        let (arguments, port) = (self.arguments, self.next_port());
        let address = format!("{}:{port}", self.lab.addr(Host::B, 0));
        let mut server = self.lab.host(Host::B).command(&self.ringrail);
        server.args(["latency", "--child", "--listen", &address]);
        let mut client = self.lab.host(Host::A).command(&self.ringrail);
        client.arg(test).args(floor.map(value_name));
        client.args(["--child", "--connect", &address, "--json", "--rounds", "1"]);
        client.args(["--lab-rails", &lab::rails(self.lab)]);
        client.args(["--size", &size.to_string(), "--iters", &self.iters(size).to_string()]);
        client.args(["--lanes", &value_name(arguments.lanes)]);
        // A floor has none of them.
        for setting in arguments.settings.iter().filter(|_| floor.is_none()) {
            client.args(["--set", setting]);
        }
        if self.lab.spec().decoys {
            client.arg("--lab-decoys");
        }
        match (floor, self.window(size)) {
            (None, Some(window)) => {
                client.args(["--reuse", "same", "--window", &window.to_string()]);
            }
            // One buffer, as above: a socket needs no more, whatever waits in it.
            (Some(FloorName::TcpStream), _) => {
                client.args(["--window", "1"]);
            }
            // Memory that the kernel lends has to wait for it: as many buffers as by default.
            (Some(_), _) | (None, None) => {}
        }
        for command in [&mut server, &mut client] {
            if let Some(secret) = self.secret {
                command.env(secret::VARIABLE, secret.to_hex().as_str());
            }
            if !arguments.keep_root && !arguments.lanes.wants_frames() {
                lab::as_ordinary_user(command);
            }
        }
        let said = pair::run(Some(Server { command: server, port }), client)?;
        let (value, lanes) = said::by_ringrail(&said, self.test())?;
        Ok(Measured { value, lanes })
    }

    fn ucx(&self, program: &Path, size: usize) -> Result<String, String> {
        let port = self.next_port();
        let name = match self.test() {
            CompareTest::Latency => "tag_lat",
            CompareTest::Bw => "tag_bw",
        };
        let mut common = ["-p", &port.to_string(), "-t", name].map(str::to_owned).to_vec();
        common.extend(["-s", &size.to_string(), "-n", &self.iters(size).to_string()].map(own));
        common.extend(["-w", &self.warm_up(size).to_string(), "-f", "-v"].map(own));
        if let Some(window) = self.window(size) {
            common.extend(["-O", &window.to_string()].map(own));
        }
        let nics: Vec<String> = (0..self.lab.spec().rails).map(|rail| self.lab.nic(rail)).collect();
        let side = |host, address: Option<String>| {
            let mut command = self.peer(host, program);
            usual_env(&mut command, "UCX_TLS", "tcp");
            usual_env(&mut command, "UCX_NET_DEVICES", &nics.join(","));
            // Warnings go to standard output.
            usual_env(&mut command, "UCX_LOG_LEVEL", "error");
            command.args(address).args(&common);
            command
        };
        let server = Server { command: side(Host::B, None), port };
        pair::run(Some(server), side(Host::A, Some(self.lab.addr(Host::B, 0).to_string())))
    }

    fn of_fabtests(&self, size: usize) -> Vec<String> {
        let mut options = ["-m", "-w", &self.warm_up(size).to_string()].map(own).to_vec();
        if let Some(window) = self.window(size) {
            options.extend(["-W", &window.to_string()].map(own));
        }
        options
    }

    /// A program with the options that all of libfabric's have.
    fn libfabric(&self, program: &Path, more: &[String], size: usize) -> Result<String, String> {
        let port = self.next_port();
        let side = |host, port_option: &str| {
            let mut command = self.peer(host, program);
            command.args(["-p", "tcp", port_option, &port.to_string()]);
            command.args(["-s", &self.lab.addr(host, 0).to_string()]);
            command.args(["-S", &size.to_string(), "-I", &self.iters(size).to_string()]);
            command.args(more);
            command
        };
        let server = Server { command: side(Host::B, "-B"), port };
        let mut client = side(Host::A, "-P");
        client.arg(self.lab.addr(Host::B, 0).to_string());
        pair::run(Some(server), client)
    }

    fn osu(&self, mpi: &Mpi, size: usize) -> Result<String, String> {
        let mut options: Vec<OsString> = Vec::new();
        let sizes = format!("{size}:{size}");
        let (iters, warm_up) = (self.iters(size), self.warm_up(size));
        let mut add = |option: &str, value: String| {
            options.extend([OsString::from(option), OsString::from(value)]);
        };
        add("-m", sizes);
        match self.window(size) {
            None => {
                add("-i", iters.to_string());
                add("-x", warm_up.to_string());
            }
            // Its iterations are windows.
            Some(window) => {
                let windows = |messages: u64| (messages / window as u64).max(1).to_string();
                add("-W", window.to_string());
                add("-i", windows(iters));
                add("-x", windows(warm_up));
            }
        }
        mpi.run(self.lab, self.peer(Host::A, &mpi.mpirun), &options)
    }

    /// A program of a peer. It keeps root: it may be installed where nobody else can read, and
    /// over TCP it gains nothing.
    fn peer(&self, host: Host, program: &Path) -> LabCommand {
        self.lab.host(host).command(program)
    }

    fn next_port(&self) -> u16 {
        let port = self.port.get();
        self.port.set(if port + 1 < PORTS.end { port + 1 } else { PORTS.start });
        port
    }

    fn warm_up(&self, size: usize) -> u64 {
        (self.iters(size) / 2).clamp(1, WARM_UP_MAX)
    }
}

fn own(text: &str) -> String {
    text.to_owned()
}

/// What a variable is unless the user has set it.
fn usual_env(command: &mut LabCommand, name: &str, value: &str) {
    if std::env::var_os(name).is_none() {
        command.env(name, value);
    }
}
