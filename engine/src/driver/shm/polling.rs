//! Which rings an engine looks into, and how neighbours are told of it.
//!
//! A few rings are polled: those by which most came lately. Neighbours that write to another one
//! ring a [`doorbell`](super::doorbell), one word for 64 of them. An engine that sleeps announces
//! that in all rings.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{Ordering, fence};

use super::Shm;
use super::channel::Channel;
use super::doorbell_page::Doorbells;
use super::incoming::Received;
use super::ring::Attention;
use crate::driver::lanes::DriverCounters;

/// Rings that are polled.
const POLLED: usize = 8;
/// Entries of one channel in a row; and of polled ones, and of others, before it is the turn of the
/// others, or the polled ones.
const STREAK: u32 = 16;
/// Entries by a ring that is not polled after which it may be.
const ENTRIES_BEFORE_POLL: u32 = 16;
/// Times that doorbells are listened to before one more ring is looked into: a neighbour may have
/// cleared the bell of another.
const LISTENS_BEFORE_CHECK: u32 = 16;

/// Which channels are looked at.
pub(super) struct Polling {
    doorbells: Doorbells,
    /// Channels whose rings are polled, in the order in which that happens.
    polled: Vec<u32>,
    /// Where in that order to look first.
    next: usize,
    /// Entries of the polled channel that is looked at, in a row.
    streak: u32,
    /// The same of the other channel whose turn it is.
    rung_streak: u32,
    /// Entries of polled channels since others had their turn.
    of_polled: u32,
    /// Entries of others in their turn.
    of_others: u32,
    /// Times that doorbells were listened to since a ring was looked into without one.
    unchecked: u32,
    /// The channel that was then looked at.
    checked: usize,
}

impl Polling {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            doorbells: Doorbells::create()?,
            polled: Vec::with_capacity(POLLED),
            next: 0,
            streak: 0,
            rung_streak: 0,
            of_polled: 0,
            of_others: 0,
            unchecked: 0,
            checked: 0,
        })
    }

    /// What neighbours are given to ring.
    pub(super) fn doorbells(&self) -> BorrowedFd<'_> {
        self.doorbells.memory()
    }

    fn polls(&self, index: u32) -> bool {
        self.polled.contains(&index)
    }

    /// Takes the doorbell of a channel for rung, unless that is polled.
    fn look_at(&mut self, index: u32) {
        if !self.polls(index) {
            self.doorbells.rung.add(index);
        }
    }

    #[cfg(test)]
    fn polled(&self) -> &[u32] {
        &self.polled
    }
}

impl Shm {
    /// Whether there are channels.
    #[inline]
    pub(in crate::driver) fn is_up(&self) -> bool {
        !self.by_session.is_empty()
    }

    /// Whether there are channels that are not polled.
    #[inline]
    fn has_unpolled(&self) -> bool {
        self.by_session.len() > self.polling.polled.len()
    }

    /// The next entry of any channel.
    #[inline]
    pub(super) fn receive(&mut self, counters: &mut DriverCounters) -> Option<Received> {
        if self.polling.of_polled >= STREAK && self.has_unpolled() {
            // Polled ones that always have something do not keep the others from being heard.
            let received = self.receive_unpolled(counters);
            self.polling.of_others += 1;
            if received.is_none() || self.polling.of_others >= STREAK {
                (self.polling.of_polled, self.polling.of_others) = (0, 0);
            }
            if received.is_some() {
                return received;
            }
        }
        for _ in 0..self.polling.polled.len() {
            let polled = self.polling.polled.len();
            let at = if self.polling.next < polled { self.polling.next } else { 0 };
            let index = *self.polling.polled.get(at)?;
            if let Some(received) = self.receive_from(index, counters) {
                self.polling.of_polled = self.polling.of_polled.saturating_add(1);
                self.polling.streak += 1;
                self.polling.next = at;
                if self.polling.streak >= STREAK {
                    (self.polling.next, self.polling.streak) = (at + 1, 0);
                }
                return Some(received);
            }
            // One that has ended has left its place to another.
            let has_stayed = self.polling.polled.get(at) == Some(&index);
            (self.polling.next, self.polling.streak) = (at + usize::from(has_stayed), 0);
        }
        if self.has_unpolled() { self.receive_unpolled(counters) } else { None }
    }

    /// The same of channels that are not polled.
    #[inline]
    fn receive_unpolled(&mut self, counters: &mut DriverCounters) -> Option<Received> {
        if self.listens() { self.receive_rung(counters) } else { None }
    }

    /// The same of those whose bells have been rung.
    fn receive_rung(&mut self, counters: &mut DriverCounters) -> Option<Received> {
        while let Some(index) = self.polling.doorbells.rung.current() {
            if self.polling.polls(index) {
                self.polling.doorbells.rung.remove(index);
                continue;
            }
            let received = self.receive_from(index, counters);
            let is_empty = received.is_none() && !self.is_waiting(index);
            if is_empty {
                self.polling.doorbells.rung.remove(index);
                self.polling.rung_streak = 0;
                continue;
            }
            self.polling.rung_streak += 1;
            // What came may be nobody's: the next call goes on.
            if self.polling.rung_streak >= STREAK || received.is_none() {
                self.polling.doorbells.rung.pass();
                self.polling.rung_streak = 0;
            }
            if self.lately(index) >= ENTRIES_BEFORE_POLL {
                self.consider(index);
            }
            return received;
        }
        None
    }

    /// Hears doorbells; whether there is a channel to be looked at.
    #[inline]
    fn listens(&mut self) -> bool {
        let is_rung = self.polling.doorbells.listen();
        self.polling.unchecked += 1;
        if self.polling.unchecked >= LISTENS_BEFORE_CHECK || self.owner_is_absent {
            return self.check() || is_rung;
        }
        is_rung
    }

    /// Looks at one more channel, whose bell may have been silenced. While the owner is absent
    /// nobody rings any, and what its caretaker does not find has no other wake-up: all are looked
    /// at.
    #[inline(never)]
    fn check(&mut self) -> bool {
        self.polling.unchecked = 0;
        let count = if self.owner_is_absent { self.channels.len() } else { 1 };
        let mut is_any = false;
        for _ in 0..count {
            let next = self.polling.checked + 1;
            self.polling.checked = if next < self.channels.len() { next } else { 0 };
            let index = self.polling.checked as u32;
            if self.is_waiting(index) {
                self.polling.look_at(index);
                is_any = true;
            }
        }
        is_any
    }

    /// Entries that came by a channel lately.
    fn lately(&self, index: u32) -> u32 {
        let channel = self.channels.get(index as usize).and_then(Option::as_ref);
        channel.map_or(0, |channel| channel.lately)
    }

    fn set_lately(&mut self, index: u32, entries: u32) {
        if let Some(Some(channel)) = self.channels.get_mut(index as usize) {
            channel.lately = entries;
        }
    }

    /// Polls a channel by which more came than by one of those that are polled.
    #[cold]
    fn consider(&mut self, index: u32) {
        let own = self.lately(index);
        let polled = self.polling.polled.iter().map(|&polled| self.lately(polled));
        let least = polled.enumerate().min_by_key(|&(_, entries)| entries);
        if let Some((at, _)) = least.filter(|&(_, entries)| entries < own) {
            let other = std::mem::replace(&mut self.polling.polled[at], index);
            self.polling.doorbells.rung.remove(index);
            self.announce(index, Attention::Polls);
            self.announce(other, Attention::Listens);
            self.set_lately(other, 0);
        } else {
            self.set_lately(index, 0);
        }
        // What came long ago counts ever less.
        for at in 0..self.polling.polled.len() {
            let polled = self.polling.polled[at];
            self.set_lately(polled, self.lately(polled) / 2);
        }
    }

    /// Tells a neighbour how this engine hears of it, unless it sleeps.
    fn announce(&mut self, index: u32, attention: Attention) {
        let channel = self.channels.get(index as usize).and_then(Option::as_ref);
        if let Some(channel) = channel.filter(|_| !self.is_asleep)
            && !channel.announce(attention)
        {
            self.polling.look_at(index);
        }
    }

    /// A channel is new.
    pub(super) fn begin_to_look(&mut self, index: u32) {
        self.polling.doorbells.rung.extend_to(index + 1);
        if self.polling.polled.len() < POLLED {
            self.polling.polled.push(index);
        } else {
            self.announce(index, Attention::Listens);
        }
        if self.is_asleep
            && let Some(Some(channel)) = self.channels.get_mut(index as usize)
        {
            channel.fall_asleep();
            fence(Ordering::SeqCst);
            self.is_called |= channel.has_received();
        }
    }

    /// Its place is empty.
    pub(super) fn cease_to_look(&mut self, index: u32) {
        self.polling.polled.retain(|&it| it != index);
        if self.has_unpolled() && self.polling.polled.len() < POLLED {
            let others = (0..).zip(&self.channels).filter_map(|(index, channel)| {
                let channel = channel.as_ref().filter(|_| !self.polling.polls(index))?;
                Some((channel.lately, index))
            });
            if let Some((_, index)) = others.max() {
                self.polling.polled.push(index);
                self.announce(index, Attention::Polls);
            }
        }
    }

    /// A neighbour has woken this engine, and takes it for one that polls.
    pub(super) fn was_woken_by(&mut self, index: u32) {
        if !self.polling.polls(index) {
            self.announce(index, Attention::Listens);
        }
    }

    /// A channel is to be looked at although its neighbour gives no notice.
    pub(super) fn look_at(&mut self, index: u32) {
        self.polling.look_at(index);
    }

    /// Whether something is in a ring, or has been made room for since this engine slept; of one
    /// that polls, in one of those rings that the next call for a datagram looks at.
    pub(in crate::driver) fn has_received(&mut self, sleeps: bool) -> bool {
        if self.untaken.is_some() || std::mem::take(&mut self.has_news) {
            return true;
        }
        if sleeps || self.owner_is_absent {
            return self.channels.iter().flatten().any(Channel::has_received);
        }
        self.polling.polled.iter().any(|&index| self.is_waiting(index))
            || (self.has_unpolled() && self.is_unpolled_waiting())
    }

    fn is_waiting(&self, index: u32) -> bool {
        let channel = self.channels.get(index as usize).and_then(Option::as_ref);
        channel.is_some_and(Channel::is_waiting)
    }

    fn is_unpolled_waiting(&mut self) -> bool {
        if !self.listens() {
            return false;
        }
        while let Some(index) = self.polling.doorbells.rung.current() {
            if self.is_waiting(index) {
                return true;
            }
            self.polling.doorbells.rung.remove(index);
        }
        false
    }

    /// Neighbours wake this engine from now on.
    ///
    /// RR-SHM-6.
    pub(super) fn fall_asleep(&mut self) {
        self.is_asleep = true;
        self.channels.iter().flatten().for_each(Channel::fall_asleep);
        self.look_once_more();
    }

    /// The opposite.
    ///
    /// RR-SHM-11.
    pub(super) fn wake_up(&mut self) {
        self.is_asleep = false;
        for (index, channel) in (0..).zip(&self.channels) {
            let is_polled = self.polling.polls(index);
            if let Some(channel) = channel {
                channel.wake_up(if is_polled { Attention::Polls } else { Attention::Listens });
            }
        }
        self.look_once_more();
    }

    /// What was there before all was announced.
    fn look_once_more(&mut self) {
        fence(Ordering::SeqCst);
        self.has_news = false;
        for (index, channel) in (0..).zip(&mut self.channels) {
            let Some(channel) = channel else { continue };
            let has_some = channel.is_waiting();
            if has_some {
                self.polling.look_at(index);
            }
            self.has_news |= has_some | channel.has_new_room();
        }
    }
}

#[cfg(test)]
#[path = "polling_tests.rs"]
mod tests;
