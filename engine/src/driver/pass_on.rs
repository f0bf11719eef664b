//! Methods of a driver that only hand a call to something inside.

/// Methods of the traits of [`crate::driver::lanes`] that call the one of the same name of a
/// field: `pass_on!(field: name poll)`.
macro_rules! pass_on {
    ($to:ident: $($method:ident)+) => { $(pass_on!(@$method $to);)+ };

    (@name $to:ident) => { pass_on!(# $to name(&self) -> &'static str); };
    (@polls_for_free $to:ident) => { pass_on!(# $to polls_for_free(&self) -> bool); };
    (@set_rails $to:ident) => {
        pass_on!(# $to set_rails(&mut self, rails: &[Rail]) -> io::Result<()>);
    };
    (@reach $to:ident) => { pass_on!(# $to reach(&mut self, rail: u8, remote: IpAddr) -> Reach); };
    (@nic_of $to:ident) => { pass_on!(# $to nic_of(&self, rail: u8) -> Option<u32>); };
    (@wake_fd $to:ident) => { pass_on!(# $to wake_fd(&self) -> io::Result<OwnedFd>); };
    (@arm $to:ident) => {
        pass_on!(# $to arm(&mut self, timeout: Duration) -> io::Result<Duration>);
    };
    (@begin_absence $to:ident) => { pass_on!(# $to begin_absence(&mut self) -> bool); };
    (@end_absence $to:ident) => { pass_on!(# $to end_absence(&mut self)); };
    (@counters $to:ident) => { pass_on!(# $to counters(&self) -> DriverCounters); };

    (@listen $to:ident) => {
        pass_on!(# $to listen(&mut self, listener: TcpListener) -> io::Result<()>);
    };
    (@listen_anew $to:ident) => {
        pass_on!(
            # $to listen_anew(&mut self, rail: u8, everywhere: &TcpListener) -> Option<TcpListener>
        );
    };
    (@rest_from_accepting $to:ident) => {
        pass_on!(# $to rest_from_accepting(&mut self, pause: Duration));
    };
    (@connect $to:ident) => {
        fn connect(
            &mut self,
            remote: SocketAddr,
            rail: u8,
            segment_bytes: Option<u16>,
        ) -> io::Result<LaneKey> {
            self.$to.connect(remote, rail, segment_bytes)
        }
    };
    (@watch $to:ident) => {
        pass_on!(# $to watch(&mut self, lane: LaneKey, interest: Interest) -> io::Result<()>);
    };
    (@addresses $to:ident) => {
        pass_on!(# $to addresses(&self, lane: LaneKey) -> Option<(SocketAddr, SocketAddr)>);
    };
    (@owed $to:ident) => { pass_on!(# $to owed(&mut self, lane: LaneKey) -> io::Result<Owed>); };
    (@hasten_ack $to:ident) => { pass_on!(# $to hasten_ack(&mut self, lane: LaneKey)); };
    (@resent $to:ident) => {
        pass_on!(# $to resent(&mut self, lane: LaneKey) -> Option<crate::driver::lanes::Resent>);
    };
    (@tcp_figures $to:ident) => {
        pass_on!(# $to tcp_figures(&mut self, lane: LaneKey) -> Option<TcpFigures>);
    };

    (@datagram_room $to:ident) => {
        pass_on!(# $to datagram_room(&mut self) -> io::Result<&mut [u8]>);
    };
    (@send_datagram $to:ident) => {
        pass_on!(
            # $to send_datagram(&mut self, to: SocketAddr, rail: u8, length: usize, how: Handling)
        );
    };
    (@recv_datagram $to:ident) => {
        pass_on!(# $to recv_datagram(&mut self) -> io::Result<Option<(SocketAddr, &mut [u8])>>);
    };
    (@flush_datagrams $to:ident) => { pass_on!(# $to flush_datagrams(&mut self)); };
    (@watch_datagrams $to:ident) => {
        pass_on!(# $to watch_datagrams(&mut self) -> io::Result<()>);
    };
    (@datagram_bytes_max $to:ident) => { pass_on!(# $to datagram_bytes_max(&self) -> usize); };
    (@frame_state $to:ident) => { pass_on!(# $to frame_state(&self) -> FrameState); };
    (@frame_drops $to:ident) => { pass_on!(# $to frame_drops(&mut self) -> Option<FrameDrops>); };

    // All that concerns engines of the same host.
    (@neighbours $to:ident) => {
        pass_on!($to: neighbours_beside_messages);
        pass_on!(# $to meet(&mut self, neighbour: crate::driver::lanes::Neighbour));
        pass_on!(# $to part(&mut self, session: u64));
        pass_on!(# $to write_segment(&mut self, session: u64, segment: [&[u8]; 2]) -> bool);
        fn write_piece(
            &mut self,
            session: u64,
            header: &crate::driver::lanes::PieceHeader,
            bytes: &[u8],
        ) -> bool {
            self.$to.write_piece(session, header, bytes)
        }
        fn recv_from_ring(&mut self) -> Option<(u64, crate::driver::lanes::RingEntry<'_>)> {
            self.$to.recv_from_ring()
        }
        unsafe fn read_by_cma(
            &mut self,
            session: u64,
            source: crate::driver::lanes::CmaSource,
            into: &crate::memory::Shape,
            offset: usize,
            length: usize,
        ) -> io::Result<()> {
            // SAFETY: the caller's promise, passed on.
            unsafe { self.$to.read_by_cma(session, source, into, offset, length) }
        }
    };
    (@neighbours_beside_messages $to:ident) => {
        pass_on!(# $to listen_to_neighbours(&mut self, engine: u64));
        pass_on!(# $to takes_neighbours(&self) -> bool);
        pass_on!(# $to read_piece(&mut self, into: &mut [u8]));
        pass_on!(# $to piece(&mut self) -> &[u8]);
        pass_on!(# $to witness(&self) -> Option<std::sync::Arc<crate::driver::lanes::Witness>>);
        fn ask_for_memory(&mut self, session: u64, token: u32, key: u64) -> io::Result<()> {
            self.$to.ask_for_memory(session, token, key)
        }
        fn give_memory(
            &mut self,
            session: u64,
            token: u32,
            answer: Result<crate::driver::lanes::MemoryPiece<'_>, u8>,
        ) -> io::Result<()> {
            self.$to.give_memory(session, token, answer)
        }
        pass_on!(# $to shared_memory(&self) -> crate::types::SharedMemoryState);
        pass_on!(# $to neighbours_fd(&self) -> Option<io::Result<OwnedFd>>);
    };

    (# $to:ident $method:ident(&$self:ident $(, $name:ident: $of:ty)*) $(-> $result:ty)?) => {
        fn $method(&$self $(, $name: $of)*) $(-> $result)? {
            $self.$to.$method($($name),*)
        }
    };
    (# $to:ident $method:ident(&mut $self:ident $(, $name:ident: $of:ty)*) $(-> $result:ty)?) => {
        fn $method(&mut $self $(, $name: $of)*) $(-> $result)? {
            $self.$to.$method($($name),*)
        }
    };
}
