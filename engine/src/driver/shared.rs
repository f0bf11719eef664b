//! What drivers of the system's sockets have in common: methods of a type with the fields
//! `options`, `lanes` (a [`Table`](crate::proto::table::Table) of lanes with a `socket`), `rails`,
//! `datagrams`, `ready`, `counters` and `is_stopped`, and with methods `insert` of a lane and
//! `watch_links`.

/// The methods of one trait: `shared!(control_lanes)`.
macro_rules! shared {
    (own) => {
        /// The datagram side, for [`super::AnyDriver`].
        #[inline(always)]
        pub(super) fn datagrams(&mut self) -> &mut Datagrams {
            &mut self.datagrams
        }

        fn handle_link_events(&mut self) {
            if self.rails.handle_links(&mut self.counters, &mut self.ready) {
                self.datagrams.set_rails(self.rails.list());
            }
        }

        /// Adopts an accepted connection, unless it was made to an address of no rail.
        fn accept_connection(&mut self, socket: OwnedFd, remote: SocketAddr) -> io::Result<()> {
            if let Some(guest) = self.rails.accept_on_rail(&socket, &mut self.counters) {
                let lane = self.adopt(socket)?;
                self.rails.lane_opened(guest, lane);
                self.ready.push(DriverEvent::Accepted { lane, remote, rail: guest.rail });
            }
            Ok(())
        }
    };
    (driver) => {
        delegate!(rails: reach nic_of);

        fn set_rails(&mut self, rails: &[Rail]) -> io::Result<()> {
            self.rails.set(rails)?;
            self.datagrams.set_rails(rails);
            if let Some(fd) = self.rails.subscribe_links(&mut self.counters)
                && let Err(error) = self.watch_links(fd)
            {
                DriverRails::warn_no_link_events(&error);
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

        fn unacked(&mut self, lane: LaneKey) -> io::Result<Unacked> {
            let lane = self.lanes.get(lane).ok_or_else(no_such_lane)?;
            self.counters.syscalls += 1;
            tcp::unacked(lane.socket.as_raw_fd())
        }

        fn quickack(&mut self, lane: LaneKey) {
            if let Some(lane) = self.lanes.get(lane) {
                self.counters.syscalls += 1;
                tcp::quickack(&lane.socket);
            }
        }

        fn tcp_figures(&mut self, lane: LaneKey) -> Option<TcpFigures> {
            let lane = self.lanes.get(lane)?;
            self.counters.syscalls += 1;
            tcp::figures(lane.socket.as_raw_fd()).ok()
        }
    };
    (datagram_port) => {
        delegate!(datagrams: datagram_room send_datagram flush_datagrams recv_datagram);
        delegate!(datagrams: watch_datagrams datagram_bytes_max);
        delegate!(datagrams: frame_state frame_drops local_peers);

        fn open_datagrams(&mut self, socket: UdpSocket) -> io::Result<()> {
            if self.is_stopped {
                return Err(stopped());
            }
            self.datagrams.open(socket)
        }
    };
}
