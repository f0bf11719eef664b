//! What drivers of the system's sockets do in the same way: methods of a type with the fields
//! `options`, `lanes` (a [`Table`](crate::proto::table::Table) of lanes with a `socket`), `rails`,
//! `datagrams`, `ready`, `counters` and `is_stopped`, and with methods `insert` of a lane and
//! `watch_links`.

/// The methods of one trait: `shared!(control_lanes)`.
macro_rules! shared {
    (own) => {
        /// Its datagrams, for [`super::AnyDriver`].
        #[inline(always)]
        pub(super) fn datagrams(&mut self) -> &mut Datagrams {
            &mut self.datagrams
        }

        fn hear_of_links(&mut self) {
            if self.rails.take_news(&mut self.counters, &mut self.ready) {
                self.datagrams.set_rails(self.rails.list());
            }
        }

        /// Takes an accepted connection in, unless it came to an address that is no rail's.
        fn welcome(&mut self, socket: OwnedFd, remote: SocketAddr) -> io::Result<()> {
            if let Some(guest) = self.rails.welcome(&socket, &mut self.counters) {
                let lane = self.adopt(socket)?;
                self.rails.seated(guest, lane);
                self.ready.push(DriverEvent::Accepted { lane, remote, rail: guest.rail });
            }
            Ok(())
        }
    };
    (driver) => {
        pass_on!(rails: reach nic_of);

        fn set_rails(&mut self, rails: &[Rail]) -> io::Result<()> {
            self.rails.set(rails)?;
            self.datagrams.set_rails(rails);
            if let Some(fd) = self.rails.ask_for_news(&mut self.counters)
                && let Err(error) = self.watch_links(fd)
            {
                Rails::warn_of_silence(&error);
            }
            Ok(())
        }

        fn counters(&self) -> DriverCounters {
            self.counters.and(self.datagrams.counters())
        }
    };
    (control_lanes) => {
        fn adopt(&mut self, socket: OwnedFd) -> io::Result<LaneKey> {
            if self.is_stopped {
                return Err(stopped());
            }
            self.counters.syscalls += 8;
            tcp::prepare(&socket, &self.options)?;
            self.counters.syscalls += tcp::established(&socket, &self.options);
            self.insert(socket, false)
        }

        fn addresses(&self, lane: LaneKey) -> Option<(SocketAddr, SocketAddr)> {
            tcp::addresses(&self.lanes.get(lane)?.socket)
        }

        fn owed(&mut self, lane: LaneKey) -> io::Result<Owed> {
            let lane = self.lanes.get(lane).ok_or_else(no_such_lane)?;
            self.counters.syscalls += 1;
            tcp::owed(lane.socket.as_raw_fd())
        }

        fn hasten_ack(&mut self, lane: LaneKey) {
            if let Some(lane) = self.lanes.get(lane) {
                self.counters.syscalls += 1;
                tcp::hasten_ack(&lane.socket);
            }
        }

        fn resent(&mut self, lane: LaneKey) -> Option<crate::driver::lanes::Resent> {
            let lane = self.lanes.get(lane)?;
            self.counters.syscalls += 1;
            tcp::resent(lane.socket.as_raw_fd())
        }

        fn tcp_figures(&mut self, lane: LaneKey) -> Option<TcpFigures> {
            let lane = self.lanes.get(lane)?;
            self.counters.syscalls += 1;
            tcp::figures(lane.socket.as_raw_fd()).ok()
        }
    };
    (datagram_port) => {
        pass_on!(datagrams: datagram_room send_datagram flush_datagrams recv_datagram);
        pass_on!(datagrams: watch_datagrams datagram_bytes_max frame_state frame_drops neighbours);

        fn open_datagrams(&mut self, socket: UdpSocket) -> io::Result<()> {
            if self.is_stopped {
                return Err(stopped());
            }
            self.datagrams.open(socket)
        }
    };
}
