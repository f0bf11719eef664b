//! Destinations of datagrams, and whether frames reach them.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use foldhash::quality::RandomState;

use super::headers::{Template, packet_bytes};
use super::routes::{NicLink, Resolution, XdpRoutes};

/// A destination is looked up again after this time, as neighbours and routes change.
const REFRESH: Duration = Duration::from_secs(4);
/// The same while its neighbour is unresolved: a datagram by the socket makes the kernel resolve
/// it.
const RETRY: Duration = Duration::from_millis(5);
/// Lookups per call: each takes some 10 µs.
const QUESTIONS_MAX: usize = 8;
/// Refreshes without traffic after which a destination is removed.
const IDLE_MAX: u8 = 15;
/// Number of destinations; further ones use the socket until others are removed.
const DESTINATIONS_MAX: usize = 1 << 16;

#[derive(Debug)]
struct Destination {
    to: SocketAddr,
    /// Headers and the longest payload; `None`: by the socket.
    route: Option<(Template, usize)>,
    /// The next datagram uses the socket, so that the kernel probes a stale neighbour.
    goes_by_socket_once: bool,
    ask_at: Instant,
    retry: Duration,
    is_used: bool,
    idle: u8,
}

/// All destinations of a socket.
#[derive(Debug)]
pub(super) struct Destinations {
    local: SocketAddr,
    nic: u32,
    link: NicLink,
    list: Vec<Destination>,
    by_address: HashMap<SocketAddr, u32, RandomState>,
    /// The destination used last.
    last: u32,
    /// When the next lookup is due.
    ask_at: Option<Instant>,
    now: Instant,
}

impl Destinations {
    /// Destinations reached from `local` by the NIC with index `nic`.
    pub(super) fn new(local: SocketAddr, nic: u32, link: NicLink, now: Instant) -> Self {
        let (list, by_address) = (Vec::new(), HashMap::default());
        Self { local, nic, link, list, by_address, last: 0, ask_at: None, now }
    }

    /// The headers of a datagram of `payload` bytes to `to`; `None`: use the socket.
    #[inline]
    pub(super) fn template(&mut self, to: SocketAddr, payload: usize) -> Option<&Template> {
        let is_last = self.list.get(self.last as usize).is_some_and(|last| last.to == to);
        if !is_last {
            self.last = self.find(to)?;
        }
        let destination = &mut self.list[self.last as usize];
        destination.is_used = true;
        if destination.goes_by_socket_once {
            destination.goes_by_socket_once = false;
            return None;
        }
        let (template, payload_max) = destination.route.as_ref()?;
        (payload <= *payload_max).then_some(template)
    }

    fn find(&mut self, to: SocketAddr) -> Option<u32> {
        match self.by_address.get(&to) {
            Some(&index) => Some(index),
            None => self.add(to),
        }
    }

    fn add(&mut self, to: SocketAddr) -> Option<u32> {
        if self.list.len() >= DESTINATIONS_MAX {
            return None;
        }
        let index = self.list.len() as u32;
        self.list.push(Destination {
            to,
            route: None,
            goes_by_socket_once: false,
            ask_at: self.now,
            retry: RETRY,
            is_used: true,
            idle: 0,
        });
        self.by_address.insert(to, index);
        self.ask_at = Some(self.now);
        Some(index)
    }

    /// Whether a new destination has not been looked up.
    pub(super) fn has_pending_lookups(&self) -> bool {
        self.ask_at.is_some_and(|at| at <= self.now)
    }

    /// Updates the state of the NIC.
    pub(super) fn set_link(&mut self, link: NicLink) {
        if self.link != link {
            self.link = link;
            self.ask_at = Some(self.now);
            for destination in &mut self.list {
                destination.ask_at = self.now;
            }
        }
    }

    /// Looks destinations up whose time has come.
    pub(super) fn refresh(&mut self, now: Instant, routes: &mut XdpRoutes) {
        self.now = now;
        if !self.has_pending_lookups() {
            return;
        }
        let mut questions = 0;
        let mut next: Option<Instant> = None;
        let mut has_idle = false;
        for destination in &mut self.list {
            if destination.ask_at <= now && questions < QUESTIONS_MAX {
                questions += 1;
                destination.ask(now, self.local, self.nic, &self.link, routes);
            }
            has_idle |= destination.idle > IDLE_MAX;
            next = Some(next.map_or(destination.ask_at, |next| next.min(destination.ask_at)));
        }
        self.ask_at = next;
        if has_idle {
            self.list.retain(|destination| destination.idle <= IDLE_MAX);
            let numbered = self.list.iter().zip(0..).map(|(destination, at)| (destination.to, at));
            self.by_address = numbered.collect();
        }
    }
}

impl Destination {
    fn ask(
        &mut self,
        now: Instant,
        local: SocketAddr,
        nic: u32,
        link: &NicLink,
        routes: &mut XdpRoutes,
    ) {
        self.idle = if std::mem::take(&mut self.is_used) { 0 } else { self.idle + 1 };
        let before = self.route.is_some();
        match routes.resolve(nic, local.ip(), self.to) {
            Ok(Resolution::Frames(hop)) => {
                let packet_max = hop.mtu.map_or(link.mtu, |mtu| mtu.min(link.mtu)) as usize;
                let template = Template::new(local, self.to, link.mac, hop.mac);
                let payload_max = packet_max.checked_sub(packet_bytes(local.ip(), 0));
                self.route = template.zip(payload_max);
                self.goes_by_socket_once = hop.is_stale;
                self.retry = RETRY;
                self.ask_at = now + REFRESH;
            }
            Ok(Resolution::Unresolved) => {
                self.route = None;
                self.ask_at = now + self.retry;
                self.retry = (self.retry * 2).min(REFRESH);
            }
            Ok(Resolution::Elsewhere) => {
                self.route = None;
                self.ask_at = now + REFRESH;
            }
            Err(error) => {
                tracing::debug!("cannot look up the route to {}: {error}", self.to);
                self.ask_at = now + REFRESH;
            }
        }
        if before != self.route.is_some() {
            let how = if before { "the socket" } else { "frames" };
            tracing::debug!("datagrams to {} use {how}", self.to);
        }
    }
}
