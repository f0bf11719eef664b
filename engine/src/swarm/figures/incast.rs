//! Many senders and one receiver, whose link is what all of them wait for.

use super::rails::{delays, gigabits, settle, usual, world_of};
use super::*;

/// Senders at once.
const SENDERS: usize = 8;
/// Messages of each under way.
const AT_ONCE: usize = 4;

/// Bytes received from each sender until the first one was done, and the time of that.
struct Shares {
    bytes: Vec<u64>,
    time_ns: u64,
}

impl Shares {
    fn bits_per_second(&self) -> u64 {
        self.bytes.iter().sum::<u64>() * 8 * SECOND / self.time_ns
    }

    /// Returns the share of the slowest sender, in percent of the mean.
    fn slowest_percent(&self) -> u64 {
        let least = self.bytes.iter().min().copied().unwrap_or(0);
        least * 100 * self.bytes.len() as u64 / self.bytes.iter().sum::<u64>().max(1)
    }
}

/// Bytes of bulk lanes that the receiver, host 0, has from each sender.
fn received(world: &World, senders: usize) -> Vec<u64> {
    let core = world.look(0).unwrap().state.core();
    let of = |sender: usize| {
        let engine = world.look(sender).unwrap().state.core().shared().engine();
        let mut sessions = core.sessions().iter();
        let session = sessions.find(|(_, session)| session.peer().id() == engine);
        let paths = session.map(|(_, session)| &session.rails().paths);
        paths.into_iter().flatten().map(|path| path.counters().bytes_received).sum()
    };
    (1..=senders).map(of).collect()
}

/// Sender `n` begins `n` times `apart_ns` after the first; all are counted from when the last one
/// has had a little time until the first one is through.
fn incast(world: &mut World, senders: usize, length: usize, count: usize, apart_ns: u64) -> Shares {
    let traffic = |sender: usize| {
        Traffic::new(length, AT_ONCE, count).between(sender, 0).in_context(sender as u64)
    };
    let mut all: Vec<Traffic> = Vec::new();
    for sender in 1..=senders {
        all.push(traffic(sender));
        let end_ns = world.now_ns() + apart_ns;
        while apart_ns > 0 && step(world, &mut all, end_ns) != Step::Limit {}
    }
    let end_ns = world.now_ns() + 5 * MILLI;
    while step(world, &mut all, end_ns) != Step::Limit {}
    let (begin_ns, before) = (world.now_ns(), received(world, senders));
    run_all(world, &mut all, 100 * SECOND, |all| all.iter().any(|it| it.received == count));
    let time_ns = world.now_ns() - begin_ns;
    let bytes = received(world, senders).iter().zip(before).map(|(now, then)| now - then).collect();
    run_all(world, &mut all, 100 * SECOND, |all| all.iter().all(Traffic::is_done));
    Shares { bytes, time_ns }
}

/// A receiver with a link of `gigabits` and senders with these.
fn star(gigabits_of: u64, senders: &[u64], rtt_ns: u64, seed: u64) -> World {
    let link = |rate| vec![delays(gigabits(rate), rtt_ns)];
    let hosts: Vec<_> = [gigabits_of].iter().chain(senders).copied().map(link).collect();
    let mut world = world_of(&hosts, &usual(), seed);
    settle(&mut world, 0);
    world
}

pub(super) fn eight_senders_share_the_receiver_s_link_and_fill_it() {
    let near = 50 * MICRO;
    for (rate, rtt_ns, length, count) in
        [(1, near, MIB, 6), (10, near, 4 * MIB, 3), (10, 2 * MILLI, MIB, 12)]
    {
        let mut world = star(rate, &[rate; SENDERS], rtt_ns, rate + length as u64);
        let shares = incast(&mut world, SENDERS, length, count, 0);
        let what = format!("{rate} Gb/s, {rtt_ns} ns, {length} B: {:?}", shares.bytes);
        assert!(shares.bits_per_second() * 100 >= rate * GBIT * 90, "{what}");
        assert!(shares.slowest_percent() >= 70, "{what}");
    }
}

/// A sender that starts on a link that another one fills soon gets an equal share.
pub(super) fn a_sender_that_comes_late_gets_its_share() {
    let mut world = star(1, &[10; SENDERS], 50 * MICRO, 1);
    let shares = incast(&mut world, SENDERS, MIB, 16, 10 * MILLI);
    let bytes = &shares.bytes;
    assert!(shares.bits_per_second() * 100 >= GBIT * 90, "{bytes:?}");
    assert!(shares.slowest_percent() >= 70, "{bytes:?}");
}
