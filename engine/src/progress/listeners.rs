//! Listeners of this engine.

use std::io;
use std::net::TcpListener;

use super::traits::Driver;
use crate::forks::EngineFd;

/// The listeners of an engine.
#[derive(Debug)]
pub(crate) struct Listeners {
    /// The one at the wildcard address, or at that of the single rail.
    first: EngineFd<TcpListener>,
    /// Additional ones, each bound to a rail, if there are several.
    of_rails: Vec<EngineFd<TcpListener>>,
    /// Rails, bit by bit, whose listener is still bound to the previous NIC.
    due: u16,
}

impl Listeners {
    /// Creates the listeners of an engine that accepts connections at `first`, and on several rails
    /// at one of `of_rails` each.
    pub(crate) fn new(first: TcpListener, of_rails: Vec<TcpListener>) -> Self {
        let of_rails = of_rails.into_iter().map(EngineFd::new).collect();
        Self { first: EngineFd::new(first), of_rails, due: 0 }
    }

    /// Copies the descriptors of all listeners, that at the wildcard address first.
    pub(super) fn copies(&self) -> io::Result<Vec<EngineFd<TcpListener>>> {
        let all = [&self.first].into_iter().chain(&self.of_rails);
        all.map(EngineFd::<TcpListener>::copy).collect()
    }

    /// Notes that the listener of a rail is bound to the previous NIC.
    pub(super) fn note_moved(&mut self, rail: u8) {
        self.due |= 1 << (rail % 16);
    }

    /// Replaces the listeners of rails that have another NIC; until then the listener at the
    /// wildcard address accepts connections. Returns whether there were any.
    pub(super) fn replace_moved(&mut self, driver: &mut dyn Driver) -> bool {
        let mut is_replaced = false;
        while self.due != 0 {
            let rail = self.due.trailing_zeros();
            self.due &= self.due - 1;
            if let Some(fresh) = driver.rebind_listener(rail as u8, &self.first) {
                self.replace(fresh);
                is_replaced = true;
            }
        }
        is_replaced
    }

    fn replace(&mut self, fresh: TcpListener) {
        let ip = |listener: &TcpListener| listener.local_addr().map(|local| local.ip()).ok();
        match self.of_rails.iter_mut().find(|it| ip(it) == ip(&fresh)) {
            Some(old) => *old = fresh.into(),
            None => self.of_rails.push(fresh.into()),
        }
    }
}
