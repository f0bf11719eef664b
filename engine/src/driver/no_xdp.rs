//! In the place of `xdp` in a build without it: there are never frames.

use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::time::Instant;

use crate::progress::lanes::DriverCounters;
use crate::progress::lanes::FrameState;

/// What frames are wanted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) frames: u32,
    #[expect(dead_code, reason = "there are no frames to poll for")]
    pub(super) busy_poll_us: u32,
}

/// Frames that there are not.
#[derive(Debug)]
pub(super) enum Frames {}

impl Frames {
    pub(super) fn open(_local: SocketAddr, _wanted: Wanted) -> Result<Self, String> {
        Err("this build has no AF_XDP: build with the cargo feature `xdp`".to_owned())
    }

    pub(super) fn is_up(&self) -> bool {
        match *self {}
    }

    pub(super) fn fd(&self) -> Option<RawFd> {
        match *self {}
    }

    pub(super) fn room(&mut self) -> Option<&mut [u8]> {
        match *self {}
    }

    pub(super) fn send(&mut self, _to: SocketAddr, _length: usize) -> bool {
        match *self {}
    }

    pub(super) fn flush(&mut self, _counters: &mut DriverCounters) {
        match *self {}
    }

    pub(super) fn has_received(&mut self) -> bool {
        match *self {}
    }

    pub(super) fn receive(&mut self, _counters: &mut DriverCounters) -> Option<SocketAddr> {
        match *self {}
    }

    pub(super) fn payload(&mut self) -> &mut [u8] {
        match *self {}
    }

    pub(super) fn has_questions(&self) -> bool {
        match *self {}
    }

    pub(super) fn tend(&mut self, _now: Instant, _is_watched: bool) {
        match *self {}
    }

    pub(super) fn state(&self) -> FrameState {
        match *self {}
    }
}
