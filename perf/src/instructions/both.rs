//! The process that is counted: both sides of a connection in one thread.

use ringrail::{
    Access, Attached, Buffer, Completion, Detached, Domain, Endpoint, Error, Event, KeyOptions,
    OperationKind, Peer, ReceiveOptions, Region, RemoteKey, Selector, SendOptions,
};
use ringrail_tests::lab::HostNetwork;

use super::{Arguments, Pattern, SLOWNESS};
use crate::cli::Lanes;
use crate::secret;
use crate::test::{TAG, settings};

/// One of those that the first engine exchanges messages with.
struct Other<M: Attached> {
    side: Side<M>,
    /// The first engine as this one knows it, and the other way round.
    first: Peer,
    known_as: Peer,
}

/// How an endpoint is opened: owned by the thread, or shared.
type Open<M> = fn(Endpoint<Detached>) -> Result<Endpoint<M>, Error>;

/// What valgrind counts: the instructions of [`counted`] and of all that it calls.
pub(super) const COUNTED: &str = "ringrail_perf::instructions::both::counted*";
/// Messages that warm up.
const WARM_UP: u64 = 8_192;
/// Messages in a row.
const WINDOW: u64 = 64;
/// Longest put.
const REGION_BYTES: usize = 16 << 10;
/// Turns in which two engines connect, at the most.
const TURNS_TO_CONNECT: usize = 100_000;
/// Turns after that until nothing is opened any more.
const TURNS_TO_SETTLE: usize = 5_000;
/// Turns in which a message arrives, at the most.
const TURNS_TO_ARRIVE: usize = 100_000;

struct Side<M: Attached> {
    network: HostNetwork,
    open: Open<M>,
    endpoint: Endpoint<M>,
    done: Vec<Completion>,
    /// Memory that the others put to, and its key.
    region: Region<M>,
    key: RemoteKey,
    /// Memory for what is got.
    gets: Option<Buffer>,
}

impl<M: Attached> Side<M> {
    fn new(arguments: &Arguments, number: usize, open: Open<M>) -> Result<Self, String> {
        let network = network(arguments, number)?;
        // This process began in the first host, where neighbours by shared memory are, too.
        match number == 0 || arguments.lanes == Lanes::Shm {
            true => network.enter().map_err(message)?,
            false => network.enter_with_sys().map_err(message)?,
        }
        let settings = settings(arguments.lanes, None, None, None, &arguments.settings)?;
        Self::of(network, &Domain::with_settings(settings).map_err(message)?, open)
    }

    /// One more in the same host.
    fn beside(&self, arguments: &Arguments, number: usize) -> Result<Self, String> {
        self.network.enter().map_err(message)?;
        Self::of(network(arguments, number)?, self.endpoint.domain(), self.open)
    }

    fn of(network: HostNetwork, domain: &Domain, open: Open<M>) -> Result<Self, String> {
        let endpoint = domain.endpoint().and_then(open).map_err(message)?;
        let region = endpoint.allocate_region(REGION_BYTES).map_err(message)?;
        let key = region.key(&KeyOptions::new(Access::all())).map_err(message)?;
        Ok(Self { network, open, endpoint, done: Vec::with_capacity(128), region, key, gets: None })
    }

    /// A turn in the host of this side, where it may open sockets.
    fn progress_at_home(&self) -> Result<(), String> {
        self.network.enter().map_err(message)?;
        self.endpoint.progress().map(drop).map_err(message)
    }

    fn post(&self, peer: Peer, buffer: Buffer) -> Result<(), String> {
        let selector = Selector::from_peer(peer, TAG);
        self.endpoint
            .post_receive(selector, buffer, ReceiveOptions::new())
            .map(drop)
            .map_err(|e| e.to_string())
    }

    /// Whether the other side has connected since that was last asked.
    fn has_connected(&self) -> bool {
        std::iter::from_fn(|| self.endpoint.next_event())
            .any(|event| matches!(event, Event::Connected { .. }))
    }

    #[inline]
    fn send(&self, peer: Peer, bytes: &[u8], more: bool) -> Result<(), String> {
        for _ in 0..TURNS_TO_ARRIVE {
            match self.endpoint.inject(peer, TAG, bytes, SendOptions::new().more(more)) {
                Ok(()) => return Ok(()),
                Err(error) if error.is_would_block() => {
                    self.endpoint.progress().map(drop).map_err(message)?;
                }
                Err(error) => return Err(error.to_string()),
            }
        }
        Err("a message cannot go".to_owned())
    }

    #[inline]
    fn put(&self, peer: Peer, key: RemoteKey, bytes: &[u8], more: bool) -> Result<(), String> {
        let options = SendOptions::new().more(more);
        for _ in 0..TURNS_TO_ARRIVE {
            match self.endpoint.inject_put(peer, key.at(0), bytes, options) {
                Ok(()) => return Ok(()),
                Err(error) if error.is_would_block() => {
                    self.endpoint.progress().map(drop).map_err(message)?;
                }
                Err(error) => return Err(error.to_string()),
            }
        }
        Err("a put cannot go".to_owned())
    }

    /// Makes progress until so many puts have come in all.
    #[inline]
    fn see_puts(&self, count: u64) -> Result<(), String> {
        for _ in 0..TURNS_TO_ARRIVE {
            if self.region.counters().puts >= count {
                return Ok(());
            }
            self.endpoint.progress().map_err(message)?;
        }
        Err("a put does not arrive".to_owned())
    }

    /// Gets memory of another one of this thread, which makes progress meanwhile.
    #[inline]
    fn get(&mut self, peer: Peer, other: &Self, length: usize) -> Result<(), String> {
        let buffer = self.gets.take().unwrap_or_else(|| Buffer::from(vec![0; length]));
        let posted = self.endpoint.post_get(peer, other.key.at(0), buffer, SendOptions::new());
        posted.map_err(|error| error.to_string())?;
        for _ in 0..TURNS_TO_ARRIVE {
            other.endpoint.progress().map_err(message)?;
            self.endpoint.completions(&mut self.done, 128).map_err(message)?;
            while let Some(completion) = self.done.pop() {
                completion.result.map_err(message)?;
                self.gets = completion.buffer;
            }
            if self.gets.is_some() {
                return Ok(());
            }
        }
        Err("an answer does not arrive".to_owned())
    }

    /// Takes so many messages, and posts a receive for each.
    #[inline]
    fn receive(&mut self, count: u64) -> Result<(), String> {
        let mut received = 0;
        for _ in 0..TURNS_TO_ARRIVE {
            self.endpoint.completions(&mut self.done, 128).map_err(message)?;
            while let Some(completion) = self.done.pop() {
                let status = completion.result.map_err(message)?;
                if completion.kind == OperationKind::Receive {
                    let peer = status.peer.ok_or("a message from nobody")?;
                    self.post(peer, completion.buffer.ok_or("a receive without its buffer")?)?;
                    received += 1;
                }
            }
            if received == count {
                return Ok(());
            }
        }
        Err("a message does not arrive".to_owned())
    }
}

fn network(arguments: &Arguments, number: usize) -> Result<HostNetwork, String> {
    let path = arguments.networks.get(number).ok_or("two networks, one for each host")?;
    HostNetwork::open(path).map_err(message)
}

fn message(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Exchanges so many messages, after some that warm up.
pub(super) fn run(arguments: &Arguments, messages: u64) -> Result<(), String> {
    match arguments.shared {
        true => exchange_all(arguments, messages, Endpoint::share),
        false => exchange_all(arguments, messages, Endpoint::attach),
    }
}

fn exchange_all<M: Attached>(
    arguments: &Arguments,
    messages: u64,
    open: Open<M>,
) -> Result<(), String> {
    // While others have their turn hardly any time passes for an engine, so that acknowledgements
    // go with the next message, as they do between two.
    ringrail::bench::slow_clocks(SLOWNESS * u64::from(arguments.peers));
    secret::fresh(arguments.lanes, &arguments.settings)?;
    let mut left = Side::new(arguments, 0, open)?;
    let mut sides = vec![Side::new(arguments, 1, open)?];
    for _ in 1..arguments.peers {
        sides.push(sides[0].beside(arguments, 1)?);
    }
    let others: Result<Vec<_>, _> = sides.into_iter().map(|it| connect(&left, it)).collect();
    let mut others = others?;
    // Paths are asked, and bulk lanes opened.
    for other in others.iter().cycle().take(TURNS_TO_SETTLE.max(4 * others.len())) {
        left.progress_at_home()?;
        other.side.progress_at_home()?;
    }
    let pattern = arguments.pattern.unwrap_or(Pattern::PingPong);
    let receives = match pattern {
        Pattern::PingPong => 1,
        Pattern::Coalesced => 4 * WINDOW,
        Pattern::Put | Pattern::PutCoalesced | Pattern::Get if arguments.size > REGION_BYTES => {
            return Err(format!("puts that are counted have {REGION_BYTES} bytes at most"));
        }
        Pattern::Put | Pattern::PutCoalesced | Pattern::Get => 0,
    };
    for other in &others {
        for _ in 0..receives {
            left.post(other.known_as, Buffer::from(vec![0; arguments.size]))?;
            other.side.post(other.first, Buffer::from(vec![0; arguments.size]))?;
        }
    }
    let _idle = idle(&left, arguments)?;
    let bytes = vec![1; arguments.size];
    let warm_up = WARM_UP.max(16 * others.len() as u64);
    exchange(&mut left, &mut others, pattern, &bytes, warm_up)?;
    counted(|| exchange(&mut left, &mut others, pattern, &bytes, messages))
}

/// Endpoints beside the first one that nobody uses. Each has an engine.
fn idle<M: Attached>(left: &Side<M>, arguments: &Arguments) -> Result<Vec<Endpoint<M>>, String> {
    left.network.enter().map_err(message)?;
    let endpoint = || left.endpoint.domain().endpoint().and_then(left.open).map_err(message);
    (1..arguments.endpoints).map(|_| endpoint()).collect()
}

/// The first engine connects to another one.
fn connect<M: Attached>(left: &Side<M>, side: Side<M>) -> Result<Other<M>, String> {
    let known_as = left.endpoint.insert_peer(&side.endpoint.address()).map_err(message)?;
    let first = side.endpoint.insert_peer(&left.endpoint.address()).map_err(message)?;
    // A message that cannot go asks for a connection.
    match left.endpoint.inject(known_as, TAG, &[], SendOptions::new()) {
        Err(error) if error.is_would_block() => {}
        other => return Err(format!("a message before there is a connection: {other:?}")),
    }
    let (mut is_left_there, mut is_right_there) = (false, false);
    for _ in 0..TURNS_TO_CONNECT {
        if is_left_there && is_right_there {
            return Ok(Other { side, first, known_as });
        }
        left.progress_at_home()?;
        side.progress_at_home()?;
        is_left_there |= left.has_connected();
        is_right_there |= side.has_connected();
    }
    Err("the two sides do not connect".to_owned())
}

/// Runs `work` below the name that valgrind is told to count.
#[inline(never)]
fn counted<T>(work: impl FnOnce() -> T) -> T {
    work()
}

/// Messages go to and come from all others by turns.
fn exchange<M: Attached>(
    left: &mut Side<M>,
    others: &mut [Other<M>],
    pattern: Pattern,
    bytes: &[u8],
    messages: u64,
) -> Result<(), String> {
    let rounds = match pattern {
        Pattern::PingPong | Pattern::Put | Pattern::Get => messages / 2,
        Pattern::Coalesced | Pattern::PutCoalesced => messages / WINDOW,
    };
    let count = others.len();
    for round in 0..rounds as usize {
        let Other { side, first, known_as } = &mut others[round % count];
        match pattern {
            Pattern::PingPong => {
                left.send(*known_as, bytes, false)?;
                side.receive(1)?;
                side.send(*first, bytes, false)?;
                left.receive(1)?;
            }
            Pattern::Coalesced => {
                for number in 1..=WINDOW {
                    left.send(*known_as, bytes, number != WINDOW)?;
                }
                left.endpoint.progress().map_err(message)?;
                side.receive(WINDOW)?;
            }
            Pattern::Put => {
                let seen = (side.region.counters().puts, left.region.counters().puts);
                left.put(*known_as, side.key, bytes, false)?;
                side.see_puts(seen.0 + 1)?;
                side.put(*first, left.key, bytes, false)?;
                left.see_puts(seen.1 + 1)?;
            }
            Pattern::PutCoalesced => {
                let seen = side.region.counters().puts;
                for number in 1..=WINDOW {
                    left.put(*known_as, side.key, bytes, number != WINDOW)?;
                }
                left.endpoint.progress().map_err(message)?;
                side.see_puts(seen + WINDOW)?;
            }
            Pattern::Get => left.get(*known_as, side, bytes.len())?,
        }
    }
    Ok(())
}
