//! Which rings an engine polls, and how peers notify it of entries in the others.
//!
//! A few rings are polled: the busiest ones. Writers of the others set a
//! [`doorbell`](super::doorbell), one word for 64 of them. An engine that sleeps announces it in
//! all rings.

use std::io;
use std::mem;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{Ordering, fence};

use super::Shm;
use super::channel::Channel;
use super::doorbell_page::Doorbells;
use super::incoming::ReceivedEntry;
use super::ring::PollState;
use crate::driver::traits::DriverCounters;

/// Rings that are polled.
const POLLED: usize = 8;
/// Consecutive entries of one channel; and of polled, or unpolled, channels before the other group
/// is served, once a polled channel has had its turn.
const STREAK: u32 = 16;
/// Entries of an unpolled ring after which it may be polled.
const ENTRIES_BEFORE_POLL: u32 = 16;
/// Polls of doorbells before one more ring is checked: a local peer may have cleared the bit of
/// another.
const DOORBELL_POLLS_PER_CHECK: u32 = 16;

/// Which channels are polled.
pub(super) struct Polling {
    doorbells: Doorbells,
    /// Channels whose rings are polled, in this order.
    polled: Vec<u32>,
    /// Index in that order to start from: that of the current one, while it has a streak.
    next: usize,
    /// The polled channel that the last entry is from, while it has a streak.
    current: u32,
    /// Consecutive entries of the current polled channel; 0: there is none.
    streak: u32,
    /// Consecutive entries of the current unpolled channel.
    doorbell_streak: u32,
    /// Entries of polled channels since others were served.
    of_polled: u32,
    /// Entries of unpolled channels in their turn.
    of_others: u32,
    /// Doorbell polls since a ring was last checked without a doorbell.
    polls_since_check: u32,
    /// The channel checked last.
    last_checked: usize,
}

impl Polling {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            doorbells: Doorbells::create()?,
            polled: Vec::with_capacity(POLLED),
            next: 0,
            current: 0,
            streak: 0,
            doorbell_streak: 0,
            of_polled: 0,
            of_others: 0,
            polls_since_check: 0,
            last_checked: 0,
        })
    }

    /// The memory of doorbells, as passed to peers.
    pub(super) fn doorbells(&self) -> BorrowedFd<'_> {
        self.doorbells.memory()
    }

    /// Whether the current polled channel comes first.
    #[inline]
    fn continues_streak(&self) -> bool {
        (1..STREAK).contains(&self.streak)
    }

    /// Ends the streak of the current polled channel: the one after it is next.
    fn end_streak(&mut self) {
        let entries = mem::take(&mut self.streak);
        self.of_polled = self.of_polled.saturating_add(entries);
        // If it has closed, the one after it has its place.
        if entries > 0 && self.polled.get(self.next) == Some(&self.current) {
            self.next += 1;
        }
    }

    fn polls(&self, index: u32) -> bool {
        self.polled.contains(&index)
    }

    /// Marks the doorbell of a channel as pending, unless it is polled.
    fn mark_pending(&mut self, index: u32) {
        if !self.polls(index) {
            self.doorbells.pending.add(index);
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
    pub(super) fn receive(&mut self, counters: &mut DriverCounters) -> Option<ReceivedEntry> {
        let is_only = self.by_session.len() == 1;
        if self.polling.continues_streak() {
            let received = self.receive_from(self.polling.current, counters);
            if received.is_some() {
                self.polling.streak += 1;
                return received;
            }
            if is_only {
                return None;
            }
        }
        self.receive_from_next(counters)
    }

    /// The next entry, if the polled channel read last has no more, or had its turn.
    #[inline(never)]
    fn receive_from_next(&mut self, counters: &mut DriverCounters) -> Option<ReceivedEntry> {
        self.polling.end_streak();
        if self.polling.of_polled >= STREAK && self.has_unpolled() {
            // Busy polled channels must not starve the others.
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
                (self.polling.next, self.polling.current) = (at, index);
                self.polling.streak = 1;
                return Some(received);
            }
            // A closed channel was removed from the list, so that the next one has its index.
            let has_stayed = self.polling.polled.get(at) == Some(&index);
            self.polling.next = at + usize::from(has_stayed);
        }
        if self.has_unpolled() { self.receive_unpolled(counters) } else { None }
    }

    /// The next entry of channels that are not polled.
    #[inline]
    fn receive_unpolled(&mut self, counters: &mut DriverCounters) -> Option<ReceivedEntry> {
        if self.poll_doorbells() { self.receive_by_doorbell(counters) } else { None }
    }

    /// The next entry of channels whose doorbells are pending.
    fn receive_by_doorbell(&mut self, counters: &mut DriverCounters) -> Option<ReceivedEntry> {
        while let Some(index) = self.polling.doorbells.pending.current() {
            if self.polling.polls(index) {
                self.polling.doorbells.pending.remove(index);
                continue;
            }
            let received = self.receive_from(index, counters);
            let is_empty = received.is_none() && !self.is_waiting(index);
            if is_empty {
                self.polling.doorbells.pending.remove(index);
                self.polling.doorbell_streak = 0;
                continue;
            }
            self.polling.doorbell_streak += 1;
            // The entry may have been rejected: the next call continues.
            if self.polling.doorbell_streak >= STREAK || received.is_none() {
                self.polling.doorbells.pending.advance();
                self.polling.doorbell_streak = 0;
            }
            if self.recent_entries(index) >= ENTRIES_BEFORE_POLL {
                self.promote_if_busier(index);
            }
            return received;
        }
        None
    }

    /// Polls doorbells; returns whether a channel needs service.
    #[inline]
    fn poll_doorbells(&mut self) -> bool {
        let is_set = self.polling.doorbells.collect();
        self.polling.polls_since_check += 1;
        if self.polling.polls_since_check >= DOORBELL_POLLS_PER_CHECK || self.is_detached {
            return self.check_next() || is_set;
        }
        is_set
    }

    /// Checks one more channel, whose doorbell may have been cleared. In detached mode peers set no
    /// doorbells, and an entry that the background thread misses has no other wake-up: all are
    /// checked.
    #[inline(never)]
    fn check_next(&mut self) -> bool {
        self.polling.polls_since_check = 0;
        let count = if self.is_detached { self.channels.len() } else { 1 };
        let mut is_any = false;
        for _ in 0..count {
            let next = self.polling.last_checked + 1;
            self.polling.last_checked = if next < self.channels.len() { next } else { 0 };
            let index = self.polling.last_checked as u32;
            if self.is_waiting(index) {
                self.polling.mark_pending(index);
                is_any = true;
            }
        }
        is_any
    }

    /// Recent entries of a channel.
    fn recent_entries(&self, index: u32) -> u32 {
        let channel = self.channels.get(index as usize).and_then(Option::as_ref);
        channel.map_or(0, |channel| channel.recent_entries)
    }

    fn set_recent_entries(&mut self, index: u32, entries: u32) {
        if let Some(Some(channel)) = self.channels.get_mut(index as usize) {
            channel.recent_entries = entries;
        }
    }

    /// Polls a channel if it is busier than one of the polled ones.
    #[cold]
    fn promote_if_busier(&mut self, index: u32) {
        let own = self.recent_entries(index);
        let polled = self.polling.polled.iter().map(|&polled| self.recent_entries(polled));
        let least = polled.enumerate().min_by_key(|&(_, entries)| entries);
        if let Some((at, _)) = least.filter(|&(_, entries)| entries < own) {
            let other = mem::replace(&mut self.polling.polled[at], index);
            self.polling.doorbells.pending.remove(index);
            self.set_poll_state(index, PollState::Polling);
            self.set_poll_state(other, PollState::Doorbell);
            self.set_recent_entries(other, 0);
        } else {
            self.set_recent_entries(index, 0);
        }
        // Older entries count less and less.
        for at in 0..self.polling.polled.len() {
            let polled = self.polling.polled[at];
            self.set_recent_entries(polled, self.recent_entries(polled) / 2);
        }
    }

    /// Sets how a local peer notifies this engine, unless it sleeps.
    fn set_poll_state(&mut self, index: u32, state: PollState) {
        let channel = self.channels.get(index as usize).and_then(Option::as_ref);
        if let Some(channel) = channel.filter(|_| !self.is_asleep)
            && !channel.set_poll_state(state)
        {
            self.polling.mark_pending(index);
        }
    }

    /// Adds a new channel.
    pub(super) fn add_channel(&mut self, index: u32) {
        self.polling.doorbells.pending.extend_to(index + 1);
        if self.polling.polled.len() < POLLED {
            self.polling.polled.push(index);
        } else {
            self.set_poll_state(index, PollState::Doorbell);
        }
        if self.is_asleep
            && let Some(Some(channel)) = self.channels.get_mut(index as usize)
        {
            channel.prepare_sleep();
            fence(Ordering::SeqCst);
            self.has_socket_events |= channel.has_received();
        }
    }

    /// Removes a closed channel.
    pub(super) fn remove_channel(&mut self, index: u32) {
        self.polling.polled.retain(|&it| it != index);
        if self.polling.current == index {
            self.polling.end_streak();
        }
        if self.has_unpolled() && self.polling.polled.len() < POLLED {
            let others = (0..).zip(&self.channels).filter_map(|(index, channel)| {
                let channel = channel.as_ref().filter(|_| !self.polling.polls(index))?;
                Some((channel.recent_entries, index))
            });
            if let Some((_, index)) = others.max() {
                self.polling.polled.push(index);
                self.set_poll_state(index, PollState::Polling);
            }
        }
    }

    /// Handles a wake-up by a local peer, which then takes this engine for one that polls.
    pub(super) fn handle_wakeup(&mut self, index: u32) {
        if !self.polling.polls(index) {
            self.set_poll_state(index, PollState::Doorbell);
        }
    }

    /// Has a channel checked although its peer gives no notice.
    pub(super) fn mark_pending(&mut self, index: u32) {
        self.polling.mark_pending(index);
    }

    /// Whether an entry is present, or room was made since this engine slept. While polling, only
    /// in the rings that the next receive call reads.
    pub(in crate::driver) fn has_received(&mut self, sleeps: bool) -> bool {
        if self.untaken.is_some() || mem::take(&mut self.has_pending) {
            return true;
        }
        if sleeps || self.is_detached {
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
        if !self.poll_doorbells() {
            return false;
        }
        while let Some(index) = self.polling.doorbells.pending.current() {
            if self.is_waiting(index) {
                return true;
            }
            self.polling.doorbells.pending.remove(index);
        }
        false
    }

    /// Makes peers wake this engine from now on.
    ///
    /// RR-SHM-6.
    pub(super) fn prepare_sleep(&mut self) {
        self.is_asleep = true;
        self.channels.iter().flatten().for_each(Channel::prepare_sleep);
        self.recheck_before_sleep();
    }

    /// Ends the sleep.
    ///
    /// RR-SHM-11.
    pub(super) fn end_sleep(&mut self) {
        self.is_asleep = false;
        for (index, channel) in (0..).zip(&self.channels) {
            let is_polled = self.polling.polls(index);
            if let Some(channel) = channel {
                channel.end_sleep(if is_polled { PollState::Polling } else { PollState::Doorbell });
            }
        }
        self.recheck_before_sleep();
    }

    /// Checks for entries that preceded the announcements.
    fn recheck_before_sleep(&mut self) {
        fence(Ordering::SeqCst);
        self.has_pending = false;
        for (index, channel) in (0..).zip(&mut self.channels) {
            let Some(channel) = channel else { continue };
            let has_some = channel.is_waiting();
            if has_some {
                self.polling.mark_pending(index);
            }
            self.has_pending |= has_some | channel.has_new_room();
        }
    }
}

#[cfg(test)]
#[path = "polling_tests.rs"]
mod tests;
