//! Outgoing connections.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};

use super::UringDriver;
use super::slots::RequestKind;
use super::tcp;
use crate::driver::traits::{CloseMode, ConnectionIo, DriverEvent, LaneKey};
use crate::driver::{no_such_lane, not_open, stopped};

impl UringDriver {
    /// The socket of a lane that is not being closed.
    pub(super) fn open_socket(&self, key: LaneKey) -> io::Result<RawFd> {
        let lane = self.lanes.get(key).ok_or_else(no_such_lane)?;
        if lane.closing.is_some() { Err(not_open()) } else { Ok(lane.socket.as_raw_fd()) }
    }

    pub(super) fn start_connection(
        &mut self,
        remote: SocketAddr,
        rail: u8,
        segment_bytes: Option<u16>,
    ) -> io::Result<LaneKey> {
        if self.is_stopped {
            return Err(stopped());
        }
        let binding = self.rails.binding(rail, remote, &mut self.counters)?;
        let opening = tcp::open(remote, binding, segment_bytes, &self.options)?;
        self.counters.syscalls += opening.syscalls;
        let key = self.insert(opening.socket, true)?;
        match opening.outcome {
            Ok(true) => self.connect_ended(key, None),
            Ok(false) => {
                if let Err(error) = self.request_poll(key, RequestKind::Connect(key), libc::POLLOUT)
                {
                    self.forget(key);
                    return Err(error);
                }
            }
            Err(error) => self.connect_ended(key, Some(error)),
        }
        Ok(key)
    }

    pub(super) fn connect_completed(&mut self, key: LaneKey, result: i32) {
        let Some(lane) = self.retire(key) else { return };
        if lane.closing.is_some() {
            self.finish_close(key);
            return;
        }
        if !lane.is_connecting {
            // Already handled in detached mode.
            return;
        }
        let outcome = match result {
            0.. => tcp::connect_error(&lane.socket),
            _ => Some(io::Error::from_raw_os_error(-result)),
        };
        self.counters.syscalls += 1;
        self.connect_ended(key, outcome);
    }

    pub(super) fn connect_ended(&mut self, key: LaneKey, error: Option<io::Error>) {
        if let Some(lane) = self.lanes.get_mut(key) {
            lane.is_connecting = false;
            if error.is_none() {
                self.counters.syscalls += tcp::established(&lane.socket, &self.options);
            }
        }
        match error {
            None => self.ready.push(DriverEvent::Connected { lane: key }),
            Some(error) => {
                self.ready.push(DriverEvent::ConnectFailed { lane: key, error });
                self.close(key, CloseMode::Reset);
            }
        }
    }
}
