//! Replaces `xdp` in a build without it: there are never frames.

use std::net::SocketAddr;
use std::os::fd::{OwnedFd, RawFd};
use std::time::Instant;

use super::datagrams::FrameSource;
use crate::driver::traits::DriverCounters;
use crate::driver::traits::{FrameDrops, FrameState, TxFlags};

/// Uninhabited: there are no frames.
#[derive(Debug)]
pub(super) enum Frames {}

impl Frames {
    pub(super) fn open(
        _socket: OwnedFd,
        _local: SocketAddr,
        _source: &FrameSource,
    ) -> Result<Self, String> {
        Err("this build has no AF_XDP: build with the cargo feature `xdp`".to_owned())
    }

    pub(super) fn datagram_bytes_max(&self) -> usize {
        match *self {}
    }

    pub(super) fn is_up(&self) -> bool {
        match *self {}
    }

    pub(super) fn fd(&self) -> Option<RawFd> {
        match *self {}
    }

    pub(super) fn room(&mut self, _counters: &mut DriverCounters) -> Option<&mut [u8]> {
        match *self {}
    }

    pub(super) fn written(&mut self) -> Option<&mut [u8]> {
        match *self {}
    }

    pub(super) fn send(&mut self, _to: SocketAddr, _length: usize, _handling: TxFlags) -> bool {
        match *self {}
    }

    pub(super) fn is_behind(&self) -> bool {
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

    pub(super) fn has_pending_lookups(&self) -> bool {
        match *self {}
    }

    pub(super) fn maintain(&mut self, _now: Instant, _is_watched: bool) {
        match *self {}
    }

    pub(super) fn state(&self) -> FrameState {
        match *self {}
    }

    pub(super) fn drops(&self) -> FrameDrops {
        match *self {}
    }
}
