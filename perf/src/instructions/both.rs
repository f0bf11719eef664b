//! The process that is counted: both sides of a connection in one thread. The programs in C of
//! [`super::programs`] have the same loop.

use ringrail::{
    Access, Attached, Buffer, Completion, Detached, Domain, Endpoint, Error, Event, KeyOptions,
    OperationKind, Peer, ReceiveOptions, Region, RemoteKey, Selector, SendOptions,
};
use ringrail_tests::lab::HostNetwork;

use super::Arguments;
use super::marks::counted;
use super::row::{Pattern, WINDOW};
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
    /// Buffers of receives that are not posted.
    free: Vec<Buffer>,
    /// Memory that the others put to, and its key.
    region: Region<M>,
    key: RemoteKey,
    /// Memory for what is got.
    gets: Option<Buffer>,
    /// Buffers of sends that are not posted.
    sends: Vec<Buffer>,
}

impl<M: Attached> Side<M> {
    fn new(arguments: &Arguments, number: usize, open: Open<M>) -> Result<Self, String> {
        let network = network(arguments, number)?;
        // This process began in the first host, where neighbours by shared memory are, too.
        match number == 0 || lanes(arguments) == Lanes::Shm {
            true => network.enter().map_err(message)?,
            false => network.enter_with_sys().map_err(message)?,
        }
        let settings = settings(lanes(arguments), None, None, None, &arguments.settings)?;
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
        let (done, free) = (Vec::with_capacity(128), Vec::with_capacity(128));
        Ok(Self { network, open, endpoint, done, free, region, key, gets: None, sends: Vec::new() })
    }

    /// A turn in the host of this side, where it may open sockets.
    fn progress_at_home(&self) -> Result<(), String> {
        self.network.enter().map_err(message)?;
        self.endpoint.progress().map(drop).map_err(message)
    }

    /// Posts so many receives of messages of a peer.
    #[inline]
    fn post(&mut self, peer: Peer, count: u64) -> Result<(), String> {
        for _ in 0..count {
            let buffer = self.free.pop().ok_or("no buffer for a receive")?;
            let selector = Selector::from_peer(peer, TAG);
            let posted = self.endpoint.post_receive(selector, buffer, ReceiveOptions::new());
            posted.map(drop).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Polls so often, and finds nothing.
    #[inline]
    fn poll_empty(&mut self, count: u32) -> Result<(), String> {
        for _ in 0..count {
            self.endpoint.completions(&mut self.done, 128).map_err(message)?;
            if !self.done.is_empty() {
                return Err("a turn that was to be empty has a completion".to_owned());
            }
        }
        Ok(())
    }

    /// Whether the other side has connected since that was last asked.
    fn has_connected(&self) -> bool {
        std::iter::from_fn(|| self.endpoint.next_event())
            .any(|event| matches!(event, Event::Connected { .. }))
    }

    /// Sends a message: injects it, or, if it is too long for that, posts it.
    #[inline]
    fn send(&mut self, peer: Peer, load: &Load, more: bool) -> Result<(), String> {
        match load.is_posted {
            true => self.post_send(peer, load, more),
            false => self.inject(peer, &load.bytes, more),
        }
    }

    fn post_send(&mut self, peer: Peer, load: &Load, more: bool) -> Result<(), String> {
        let mut buffer = self.sends.pop().unwrap_or_else(|| Buffer::from(load.bytes.clone()));
        for _ in 0..TURNS_TO_ARRIVE {
            let options = SendOptions::new().more(more);
            match self.endpoint.post_send(peer, TAG, buffer, options) {
                Ok(_) => return Ok(()),
                Err(failed) if failed.error.is_would_block() => {
                    self.endpoint.progress().map(drop).map_err(message)?;
                    buffer = failed.buffer;
                }
                Err(failed) => return Err(failed.error.to_string()),
            }
        }
        Err("a message cannot go".to_owned())
    }

    #[inline]
    fn inject(&self, peer: Peer, bytes: &[u8], more: bool) -> Result<(), String> {
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
    fn get(&mut self, peer: Peer, other: &Self, load: &Load) -> Result<(), String> {
        let buffer = self.gets.take().unwrap_or_else(|| Buffer::from(vec![0; load.bytes.len()]));
        let posted = self.endpoint.post_get(peer, other.key.at(0), buffer, SendOptions::new());
        posted.map_err(|error| error.to_string())?;
        self.poll_empty(load.empty_turns)?;
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

    /// Makes progress and takes the buffers of sends that have completed.
    fn take_sent(&mut self) -> Result<(), String> {
        self.endpoint.completions(&mut self.done, 128).map_err(message)?;
        while let Some(completion) = self.done.pop() {
            completion.result.map_err(message)?;
            match completion.kind {
                OperationKind::Send => self.sends.extend(completion.buffer),
                other => return Err(format!("a sender has a completion of {other:?}")),
            }
        }
        Ok(())
    }

    /// Takes so many messages. Their sender makes progress meanwhile, if it has to.
    #[inline]
    fn receive(&mut self, count: u64, sender: &mut Self, load: &Load) -> Result<(), String> {
        let mut received = 0;
        for _ in 0..TURNS_TO_ARRIVE {
            self.endpoint.completions(&mut self.done, 128).map_err(message)?;
            while let Some(completion) = self.done.pop() {
                completion.result.map_err(message)?;
                if completion.kind == OperationKind::Receive {
                    self.free.push(completion.buffer.ok_or("a receive without its buffer")?);
                    received += 1;
                } else if load.is_posted {
                    self.sends.extend(completion.buffer);
                }
            }
            if received == count {
                return Ok(());
            }
            if load.is_posted {
                sender.take_sent()?;
            }
        }
        Err("a message does not arrive".to_owned())
    }
}

fn network(arguments: &Arguments, number: usize) -> Result<HostNetwork, String> {
    let path = arguments.counted.networks.get(number);
    HostNetwork::open(path.ok_or("two networks, one for each host")?).map_err(message)
}

/// One process is counted by one kind of lanes.
fn lanes(arguments: &Arguments) -> Lanes {
    arguments.lanes.first().copied().unwrap_or(Lanes::Auto)
}

/// The packets that the interfaces of both hosts have sent.
fn packets<M: Attached>(left: &Side<M>, right: &Side<M>) -> Result<u64, String> {
    let mut paths = Vec::new();
    let mut sum = 0;
    for side in [left, right] {
        side.network.enter().map_err(message)?;
        let network = std::fs::read_link("/proc/thread-self/ns/net").map_err(message)?;
        if paths.contains(&network) {
            continue;
        }
        paths.push(network);
        let table = std::fs::read_to_string("/proc/thread-self/net/dev").map_err(message)?;
        sum += sent_packets(&table);
    }
    Ok(sum)
}

/// The column of packets that were sent, of all interfaces.
fn sent_packets(table: &str) -> u64 {
    let counts = table.lines().filter_map(|line| line.split_once(':'));
    let sent =
        counts.filter_map(|(_, counts)| counts.split_whitespace().nth(9)?.parse::<u64>().ok());
    sent.sum()
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

/// What is exchanged.
struct Load {
    pattern: Pattern,
    bytes: Vec<u8>,
    /// Messages are too long to be injected.
    is_posted: bool,
    empty_turns: u32,
}

fn exchange_all<M: Attached>(
    arguments: &Arguments,
    messages: u64,
    open: Open<M>,
) -> Result<(), String> {
    let below = &arguments.counted;
    // While others have their turn hardly any time passes for an engine, so that acknowledgements
    // go with the next message, as they do between two.
    ringrail::bench::slow_clocks(below.slowness * u64::from(arguments.peers));
    secret::fresh(lanes(arguments), &arguments.settings)?;
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
    let load = Load {
        pattern: arguments.pattern.unwrap_or(Pattern::PingPong),
        bytes: vec![1; arguments.size],
        is_posted: arguments.size > left.endpoint.domain().settings().inject_limit_bytes(),
        empty_turns: arguments.empty_turns,
    };
    if !matches!(load.pattern, Pattern::PingPong | Pattern::Coalesced)
        && arguments.size > REGION_BYTES
    {
        return Err(format!("puts that are counted have {REGION_BYTES} bytes at most"));
    }
    for side in others.iter_mut().map(|other| &mut other.side).chain([&mut left]) {
        side.free.extend((0..WINDOW).map(|_| Buffer::from(vec![0; arguments.size])));
    }
    let _idle = idle(&left, arguments)?;
    let warm_up = below.warm_up.max(16 * others.len() as u64);
    exchange(&mut left, &mut others, &load, warm_up)?;
    let before = packets(&left, &others[0].side)?;
    for _ in 0..below.batches {
        counted(|| exchange(&mut left, &mut others, &load, messages))?;
    }
    println!("packets {}", packets(&left, &others[0].side)? - before);
    Ok(())
}

/// Endpoints beside the first one that are not used. Each has an engine.
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

/// Messages go to and come from all others by turns.
fn exchange<M: Attached>(
    left: &mut Side<M>,
    others: &mut [Other<M>],
    load: &Load,
    messages: u64,
) -> Result<(), String> {
    let count = others.len();
    for round in 0..(messages / load.pattern.round()) as usize {
        let Other { side, first, known_as } = &mut others[round % count];
        let empty_turns = load.empty_turns;
        match load.pattern {
            Pattern::PingPong => {
                side.post(*first, 1)?;
                side.poll_empty(empty_turns)?;
                left.send(*known_as, load, false)?;
                side.receive(1, left, load)?;
                left.post(*known_as, 1)?;
                left.poll_empty(empty_turns)?;
                side.send(*first, load, false)?;
                left.receive(1, side, load)?;
            }
            Pattern::Coalesced => {
                side.post(*first, WINDOW)?;
                side.poll_empty(empty_turns)?;
                for number in 1..=WINDOW {
                    left.send(*known_as, load, number != WINDOW)?;
                }
                left.endpoint.progress().map_err(message)?;
                side.receive(WINDOW, left, load)?;
            }
            Pattern::Put => {
                let seen = (side.region.counters().puts, left.region.counters().puts);
                side.poll_empty(empty_turns)?;
                left.put(*known_as, side.key, &load.bytes, false)?;
                side.see_puts(seen.0 + 1)?;
                left.poll_empty(empty_turns)?;
                side.put(*first, left.key, &load.bytes, false)?;
                left.see_puts(seen.1 + 1)?;
            }
            Pattern::PutCoalesced => {
                let seen = side.region.counters().puts;
                side.poll_empty(empty_turns)?;
                for number in 1..=WINDOW {
                    left.put(*known_as, side.key, &load.bytes, number != WINDOW)?;
                }
                left.endpoint.progress().map_err(message)?;
                side.see_puts(seen + WINDOW)?;
            }
            Pattern::Get => left.get(*known_as, side, load)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::sent_packets;

    #[test]
    fn packets_that_were_sent_are_the_tenth_column_of_all_interfaces() {
        let table = "\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo
    lo:     100       1    0    0    0     0          0         0      100       2    0    0    0
 rail0:6000      70    0    0    0     0          0         0      900       30    0    0    0
";
        assert_eq!(sent_packets(table), 32);
        assert_eq!(sent_packets(""), 0);
    }
}
