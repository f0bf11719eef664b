//! Chunks in progress on simulated lanes, and watches of lanes.

use std::io::{self, ErrorKind};

use super::lane::{Chunk, PendingEvent, Watch, What};
use super::net::Net;
use crate::driver::traits::{DriverEvent, LaneKey};

impl Net {
    pub(super) fn report_sent(
        &mut self,
        host: usize,
        key: LaneKey,
        chunk: &Chunk,
        result: io::Result<()>,
    ) {
        self.post_event(host, Some(key), DriverEvent::ChunkSent { lane: key, result });
        let event = DriverEvent::ChunkReleased { token: chunk.token };
        let (what, releases) = (What::DriverEvent(event), Some(chunk.spans.clone()));
        if let Some(lane) = self.hosts[host].lane_mut(key) {
            // The kernel releases the memory once the peer has acknowledged.
            lane.last_event_ns += self.impairments.delay_ns;
        }
        self.post_event(host, Some(key), PendingEvent { what, releases, scribbles: false });
    }

    /// Continues chunks and reports watches of a lane whose state may have changed.
    pub(super) fn look_at(&mut self, index: usize, side: usize) {
        let end = &self.connections[index].ends[side];
        let (Some(host), Some((lane, generation))) = (end.host, end.lane) else { return };
        let key = LaneKey { index: lane, generation };
        let Some(lane) = self.hosts[host].lane_mut(key).filter(|lane| !lane.is_closing) else {
            return;
        };
        let sending = lane.sending.take_if(|_| !lane.send_is_over);
        let receiving = lane.receiving.take_if(|_| !lane.receive_is_over);
        if let Some(chunk) = sending {
            self.go_on_sending(host, key, (index, side), chunk);
        }
        if let Some(chunk) = receiving {
            self.go_on_receiving(host, key, (index, side), chunk);
        }
        let is_readable = self.connections[index].is_readable(side);
        let connection = &mut self.connections[index];
        let room = connection.pipes[side].room(self.impairments.capacity);
        let is_writable =
            connection.ends[side].knows_broken || room > self.impairments.capacity / 2;
        if !is_writable {
            connection.pipes[side].wants_room = true;
        }
        let Some(lane) = self.hosts[host].lane_mut(key) else { return };
        let reads = is_readable && lane.reads == Watch::Armed;
        let writes = is_writable && lane.writes == Watch::Armed;
        if reads {
            lane.reads = Watch::Reported;
        }
        if writes {
            lane.writes = Watch::Reported;
        }
        if reads {
            self.post_event(host, Some(key), DriverEvent::Readable { lane: key });
        }
        if writes {
            self.post_event(host, Some(key), DriverEvent::Writable { lane: key });
        }
    }

    fn go_on_sending(
        &mut self,
        host: usize,
        key: LaneKey,
        (index, side): (usize, usize),
        mut chunk: Chunk,
    ) {
        let result = loop {
            if chunk.is_whole() {
                break Some(Ok(()));
            }
            // SAFETY: the caller of `send_chunk` guarantees the memory until the chunk is released.
            let bytes = unsafe { chunk.bytes_to_send() };
            match self.write(index, side, bytes) {
                Ok(count) => chunk.advance(count),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break None,
                Err(error) => break Some(Err(error)),
            }
        };
        if let Some(result) = result {
            self.report_sent(host, key, &chunk, result);
            let lane = self.hosts[host].lane_mut(key);
            lane.expect("it was there above").send_is_over = true;
        }
        let lane = self.hosts[host].lane_mut(key).expect("it was there above");
        lane.sending = Some(chunk);
    }

    fn go_on_receiving(
        &mut self,
        host: usize,
        key: LaneKey,
        (index, side): (usize, usize),
        mut chunk: Chunk,
    ) {
        let result = loop {
            if chunk.is_whole() {
                break Some(Ok(chunk.header));
            }
            // SAFETY: the caller of `recv_chunk` guarantees the memory until the chunk is reported.
            let room = unsafe { chunk.room() };
            match self.read(index, side, room) {
                Ok(0) => break Some(Err(ErrorKind::UnexpectedEof.into())),
                Ok(count) => chunk.advance(count),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break None,
                Err(error) => break Some(Err(error)),
            }
        };
        if let Some(result) = result {
            let event = DriverEvent::ChunkReceived { lane: key, result };
            let (what, releases) = (What::DriverEvent(event), Some(chunk.spans.clone()));
            self.post_event(host, Some(key), PendingEvent { what, releases, scribbles: false });
            let lane = self.hosts[host].lane_mut(key);
            lane.expect("it was there above").receive_is_over = true;
        }
        let lane = self.hosts[host].lane_mut(key).expect("it was there above");
        lane.receiving = Some(chunk);
    }
}
