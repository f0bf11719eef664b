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
/// Entries of one channel in a row, and of polled ones before doorbells are listened to.
const STREAK: u32 = 16;
/// Entries by a ring that is not polled after which it may be.
const ENTRIES_BEFORE_POLL: u32 = 16;
/// Times that no doorbell was heard after which one more ring is looked into: a neighbour may have
/// cleared the bell of another.
const UNHEARD: u32 = 16;

/// Which channels are looked at.
pub(super) struct Polling {
    doorbells: Doorbells,
    /// Channels whose rings are polled, in the order in which that happens.
    polled: Vec<u32>,
    /// Where in that order to look first.
    next: usize,
    /// Entries of the channel that is looked at, in a row.
    streak: u32,
    /// Entries by polled channels since the doorbells were listened to.
    since_listened: u32,
    /// Times that no doorbell was heard.
    unheard: u32,
    /// The channel that was then looked at last.
    checked: usize,
}

impl Polling {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            doorbells: Doorbells::create()?,
            polled: Vec::with_capacity(POLLED),
            next: 0,
            streak: 0,
            since_listened: 0,
            unheard: 0,
            checked: 0,
        })
    }

    /// What neighbours are given to ring.
    pub(super) fn doorbells(&self) -> BorrowedFd<'_> {
        self.doorbells.memory()
    }

    /// Whether neither is any channel polled nor any bell in use.
    #[inline]
    fn is_empty(&self) -> bool {
        self.polled.is_empty()
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
        !self.polling.is_empty()
    }

    /// Whether there are channels that are not polled.
    #[inline]
    fn has_unpolled(&self) -> bool {
        self.count > self.polling.polled.len()
    }

    /// The next entry of any channel.
    #[inline]
    pub(super) fn receive(&mut self, counters: &mut DriverCounters) -> Option<Received> {
        if self.polling.since_listened >= STREAK && self.has_unpolled() {
            // Polled ones that always have something do not keep the others from being heard.
            if let Some(received) = self.receive_unpolled(counters) {
                return Some(received);
            }
        }
        let polled = self.polling.polled.len();
        for _ in 0..polled {
            let at = if self.polling.next < polled { self.polling.next } else { 0 };
            self.polling.next = at;
            let index = *self.polling.polled.get(at)?;
            if let Some(received) = self.receive_from(index, counters) {
                self.polling.since_listened = self.polling.since_listened.saturating_add(1);
                self.polling.streak += 1;
                if self.polling.streak >= STREAK {
                    (self.polling.next, self.polling.streak) = (at + 1, 0);
                }
                return Some(received);
            }
            (self.polling.next, self.polling.streak) = (at + 1, 0);
        }
        if self.has_unpolled() { self.receive_unpolled(counters) } else { None }
    }

    /// The same of channels that are not polled.
    #[inline]
    fn receive_unpolled(&mut self, counters: &mut DriverCounters) -> Option<Received> {
        self.polling.since_listened = 0;
        if self.listens() { self.receive_rung(counters) } else { None }
    }

    /// The same of those whose bells have been rung.
    fn receive_rung(&mut self, counters: &mut DriverCounters) -> Option<Received> {
        while let Some(index) = self.polling.doorbells.rung.current() {
            let Some(received) = self.receive_from(index, counters) else {
                self.polling.doorbells.rung.remove(index);
                continue;
            };
            let channel = self.channels.get(index as usize).and_then(Option::as_ref);
            let lately = channel.map_or(0, |channel| channel.lately);
            if lately.is_multiple_of(STREAK) {
                self.polling.doorbells.rung.pass();
            }
            if lately >= ENTRIES_BEFORE_POLL {
                self.consider(index);
            }
            return Some(received);
        }
        None
    }

    /// Hears doorbells; whether there is a channel to be looked at.
    #[inline]
    fn listens(&mut self) -> bool {
        if self.polling.doorbells.listen() {
            self.polling.unheard = 0;
            return true;
        }
        self.polling.unheard += 1;
        (self.polling.unheard >= UNHEARD || self.owner_is_absent) && self.finds_unheard()
    }

    /// The same of a channel whose bell may have been silenced. While the owner is absent nobody
    /// rings any, and what its caretaker does not find has no other wake-up: all are looked at.
    #[inline(never)]
    fn finds_unheard(&mut self) -> bool {
        let Polling { doorbells, unheard, checked, .. } = &mut self.polling;
        *unheard = 0;
        let count = if self.owner_is_absent { self.channels.len() } else { 1 };
        let mut is_any = false;
        for _ in 0..count {
            *checked = if *checked + 1 < self.channels.len() { *checked + 1 } else { 0 };
            let channel = self.channels.get(*checked).and_then(Option::as_ref);
            if channel.is_some_and(Channel::is_waiting) {
                doorbells.rung.add(*checked as u32);
                is_any = true;
            }
        }
        is_any
    }

    /// Polls a channel that more came by than by one of those that are polled.
    #[cold]
    fn consider(&mut self, index: u32) {
        if self.polling.polled.contains(&index) {
            return;
        }
        let lately = |index: u32| {
            self.channels.get(index as usize).and_then(Option::as_ref).map_or(0, |it| it.lately)
        };
        let polled = self.polling.polled.iter().map(|&index| lately(index));
        let least = polled.enumerate().min_by_key(|&(_, entries)| entries);
        let (own, Some((at, entries))) = (lately(index), least) else { return };
        if entries < own {
            let other = std::mem::replace(&mut self.polling.polled[at], index);
            self.announce(index, Attention::Polls);
            self.announce(other, Attention::Listens);
        }
        let known = self.polling.polled.iter().chain([&index]);
        for &index in known {
            if let Some(Some(channel)) = self.channels.get_mut(index as usize) {
                channel.lately = 0;
            }
        }
    }

    /// Tells a neighbour how this engine hears of it, unless it sleeps.
    fn announce(&mut self, index: u32, attention: Attention) {
        let channel = self.channels.get(index as usize).and_then(Option::as_ref);
        if let Some(channel) = channel.filter(|_| !self.is_asleep)
            && !channel.announce(attention)
        {
            self.polling.doorbells.rung.add(index);
        }
    }

    /// A channel is new.
    pub(super) fn begin_to_look(&mut self, index: u32) {
        self.count += 1;
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
        self.count -= 1;
        self.polling.polled.retain(|&it| it != index);
        if self.has_unpolled() && self.polling.polled.len() < POLLED {
            let polled = &self.polling.polled;
            let others = (0..).zip(&self.channels).filter_map(|(index, channel)| {
                channel.as_ref().filter(|_| !polled.contains(&index)).map(|it| (it.lately, index))
            });
            if let Some((_, index)) = others.max() {
                self.polling.polled.push(index);
                self.announce(index, Attention::Polls);
            }
        }
    }

    /// A neighbour has woken this engine, and takes it for one that polls.
    pub(super) fn was_woken_by(&mut self, index: u32) {
        if !self.polling.polled.contains(&index) {
            self.announce(index, Attention::Listens);
        }
    }

    /// A channel is to be looked at although its neighbour gives no notice.
    pub(super) fn look_at(&mut self, index: u32) {
        self.polling.doorbells.rung.add(index);
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
    pub(super) fn fall_asleep(&mut self) {
        self.is_asleep = true;
        self.channels.iter().flatten().for_each(Channel::fall_asleep);
        self.look_once_more();
    }

    pub(super) fn wake_up(&mut self) {
        self.is_asleep = false;
        let polled = &self.polling.polled;
        for (index, channel) in (0..).zip(&self.channels) {
            let attention =
                if polled.contains(&index) { Attention::Polls } else { Attention::Listens };
            if let Some(channel) = channel {
                channel.wake_up(attention);
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
                self.polling.doorbells.rung.add(index);
            }
            self.has_news |= has_some | channel.has_new_room();
        }
    }
}

#[cfg(test)]
#[path = "polling_tests.rs"]
mod tests;
