//! The process that is counted: both sides of a connection in one thread.

use ringrail::{Buffer, Completion, Domain, Endpoint, Event, OperationKind, Owned, Peer, Selector};
use ringrail_tests::lab::HostNetwork;

use super::{Arguments, Pattern, SLOWNESS};
use crate::secret;
use crate::test::{TAG, settings};

/// What valgrind counts: the instructions of [`counted`] and of all that it calls.
pub(super) const COUNTED: &str = "ringrail_perf::instructions::both::counted*";
/// Messages that warm up.
const WARM_UP: u64 = 8_192;
/// Messages in a row.
const WINDOW: u64 = 64;
/// Turns in which two engines connect, at the most.
const TURNS_TO_CONNECT: usize = 100_000;
/// Turns after that until nothing is opened any more.
const TURNS_TO_SETTLE: usize = 5_000;
/// Turns in which a message arrives, at the most.
const TURNS_TO_ARRIVE: usize = 100_000;

struct Side {
    network: HostNetwork,
    endpoint: Endpoint<Owned>,
    /// The other side.
    peer: Option<Peer>,
    done: Vec<Completion>,
}

impl Side {
    fn new(arguments: &Arguments, number: usize) -> Result<Self, String> {
        let path = arguments.networks.get(number).ok_or("two networks, one for each host")?;
        let network = HostNetwork::open(path).map_err(message)?;
        // This process began in the first host.
        match number {
            0 => network.enter().map_err(message)?,
            _ => network.enter_with_sys().map_err(message)?,
        }
        let settings = settings(arguments.lanes, None, None, None, &arguments.settings)?;
        let domain = Domain::with_settings(settings).map_err(message)?;
        let endpoint = domain.endpoint().map_err(message)?.attach().map_err(message)?;
        Ok(Self { network, endpoint, peer: None, done: Vec::with_capacity(128) })
    }

    fn peer(&self) -> Result<Peer, String> {
        self.peer.ok_or_else(|| "the other side is not known".to_owned())
    }

    /// A turn in the host of this side, where it may open sockets.
    fn progress_at_home(&self) -> Result<(), String> {
        self.network.enter().map_err(message)?;
        self.endpoint.progress().map(drop).map_err(message)
    }

    fn post(&self, buffer: Buffer) -> Result<(), String> {
        let selector = Selector::from(self.peer()?, TAG);
        self.endpoint.post_receive(selector, buffer, 0).map(drop).map_err(|e| e.to_string())
    }

    /// Whether the other side has connected since that was last asked.
    fn has_connected(&self) -> bool {
        std::iter::from_fn(|| self.endpoint.next_event())
            .any(|event| matches!(event, Event::Connected { .. }))
    }

    #[inline]
    fn send(&self, bytes: &[u8], more: bool) -> Result<(), String> {
        for _ in 0..TURNS_TO_ARRIVE {
            match self.endpoint.inject_with(self.peer()?, TAG, bytes, more) {
                Ok(()) => return Ok(()),
                Err(error) if error.is_would_block() => {
                    self.endpoint.progress().map(drop).map_err(message)?;
                }
                Err(error) => return Err(error.to_string()),
            }
        }
        Err("a message cannot go".to_owned())
    }

    /// Takes so many messages, and posts a receive for each.
    #[inline]
    fn receive(&mut self, count: u64) -> Result<(), String> {
        let mut received = 0;
        for _ in 0..TURNS_TO_ARRIVE {
            self.endpoint.completions(&mut self.done, 128).map_err(message)?;
            while let Some(completion) = self.done.pop() {
                completion.result.map_err(message)?;
                if completion.kind == OperationKind::Receive {
                    self.post(completion.buffer.ok_or("a receive without its buffer")?)?;
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

fn message(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Exchanges so many messages, after some that warm up.
pub(super) fn run(arguments: &Arguments, messages: u64) -> Result<(), String> {
    ringrail::bench::slow_clocks(SLOWNESS);
    secret::fresh(arguments.lanes, &arguments.settings)?;
    let (mut left, mut right) = (Side::new(arguments, 0)?, Side::new(arguments, 1)?);
    left.peer = Some(left.endpoint.insert(&right.endpoint.address()).map_err(message)?);
    right.peer = Some(right.endpoint.insert(&left.endpoint.address()).map_err(message)?);
    // A message that cannot go asks for a connection.
    match left.endpoint.inject(left.peer()?, TAG, &[]) {
        Err(error) if error.is_would_block() => {}
        other => return Err(format!("a message before there is a connection: {other:?}")),
    }
    let (mut is_left_there, mut is_right_there) = (false, false);
    let mut turns_left = TURNS_TO_CONNECT;
    while !(is_left_there && is_right_there) {
        turns_left -= 1;
        if turns_left == 0 {
            return Err("the two sides do not connect".to_owned());
        }
        left.progress_at_home()?;
        right.progress_at_home()?;
        is_left_there |= left.has_connected();
        is_right_there |= right.has_connected();
    }
    // Paths are asked, and bulk lanes opened.
    for _ in 0..TURNS_TO_SETTLE {
        left.progress_at_home()?;
        right.progress_at_home()?;
    }
    let pattern = arguments.pattern.unwrap_or(Pattern::PingPong);
    let receives = match pattern {
        Pattern::PingPong => 1,
        Pattern::Coalesced => 4 * WINDOW,
    };
    for _ in 0..receives {
        left.post(Buffer::from(vec![0; arguments.size]))?;
        right.post(Buffer::from(vec![0; arguments.size]))?;
    }
    let bytes = vec![1; arguments.size];
    exchange(&mut left, &mut right, pattern, &bytes, WARM_UP)?;
    counted(|| exchange(&mut left, &mut right, pattern, &bytes, messages))
}

/// Runs `work` below the name that valgrind is told to count.
#[inline(never)]
fn counted<T>(work: impl FnOnce() -> T) -> T {
    work()
}

fn exchange(
    left: &mut Side,
    right: &mut Side,
    pattern: Pattern,
    bytes: &[u8],
    messages: u64,
) -> Result<(), String> {
    match pattern {
        Pattern::PingPong => {
            for _ in 0..messages / 2 {
                left.send(bytes, false)?;
                right.receive(1)?;
                right.send(bytes, false)?;
                left.receive(1)?;
            }
        }
        Pattern::Coalesced => {
            for _ in 0..messages / WINDOW {
                for number in 1..=WINDOW {
                    left.send(bytes, number != WINDOW)?;
                }
                left.endpoint.progress().map_err(message)?;
                right.receive(WINDOW)?;
            }
        }
    }
    Ok(())
}
