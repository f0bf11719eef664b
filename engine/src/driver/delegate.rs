//! A macro for driver methods that forward to a field.

/// Implements trait methods of [`crate::driver::traits`] by calling the method of the same name on
/// a field: `delegate!(field: name poll)`.
macro_rules! delegate {
    ($to:ident: $($method:ident)+) => { $(delegate!(@$method $to);)+ };

    (@name $to:ident) => { delegate!(# $to name(&self) -> &'static str); };
    (@polls_for_free $to:ident) => { delegate!(# $to polls_for_free(&self) -> bool); };
    (@set_rails $to:ident) => {
        delegate!(# $to set_rails(&mut self, rails: &[Rail]) -> io::Result<()>);
    };
    (@reach $to:ident) => { delegate!(# $to reach(&mut self, rail: u8, remote: IpAddr) -> Reach); };
    (@nic_of $to:ident) => { delegate!(# $to nic_of(&self, rail: u8) -> Option<u32>); };
    (@wake_fd $to:ident) => { delegate!(# $to wake_fd(&self) -> io::Result<OwnedFd>); };
    (@arm $to:ident) => {
        delegate!(# $to arm(&mut self, timeout: Duration) -> io::Result<Duration>);
    };
    (@begin_detached $to:ident) => { delegate!(# $to begin_detached(&mut self) -> bool); };
    (@end_detached $to:ident) => { delegate!(# $to end_detached(&mut self)); };
    (@counters $to:ident) => { delegate!(# $to counters(&self) -> DriverCounters); };

    (@listen $to:ident) => {
        delegate!(# $to listen(&mut self, listener: TcpListener) -> io::Result<()>);
    };
    (@rebind_listener $to:ident) => {
        delegate!(
            # $to rebind_listener(
                &mut self,
                rail: u8,
                everywhere: &TcpListener
            ) -> Option<TcpListener>
        );
    };
    (@pause_accept $to:ident) => {
        delegate!(# $to pause_accept(&mut self, pause: Duration));
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
        delegate!(# $to watch(&mut self, lane: LaneKey, interest: Interest) -> io::Result<()>);
    };
    (@addresses $to:ident) => {
        delegate!(# $to addresses(&self, lane: LaneKey) -> Option<(SocketAddr, SocketAddr)>);
    };
    (@unacked $to:ident) => {
        delegate!(# $to unacked(&mut self, lane: LaneKey) -> io::Result<Unacked>);
    };
    (@quickack $to:ident) => { delegate!(# $to quickack(&mut self, lane: LaneKey)); };
    (@tcp_figures $to:ident) => {
        delegate!(# $to tcp_figures(&mut self, lane: LaneKey) -> Option<TcpFigures>);
    };

    (@datagram_room $to:ident) => {
        delegate!(# $to datagram_room(&mut self) -> io::Result<&mut [u8]>);
    };
    (@send_datagram $to:ident) => {
        delegate!(
            # $to send_datagram(&mut self, to: SocketAddr, rail: u8, length: usize, how: TxFlags)
        );
    };
    (@recv_datagram $to:ident) => {
        delegate!(# $to recv_datagram(&mut self) -> io::Result<Option<(SocketAddr, &mut [u8])>>);
    };
    (@flush_datagrams $to:ident) => { delegate!(# $to flush_datagrams(&mut self)); };
    (@watch_datagrams $to:ident) => {
        delegate!(# $to watch_datagrams(&mut self) -> io::Result<()>);
    };
    (@datagram_bytes_max $to:ident) => { delegate!(# $to datagram_bytes_max(&self) -> usize); };
    (@frame_state $to:ident) => { delegate!(# $to frame_state(&self) -> FrameState); };
    (@frame_drops $to:ident) => { delegate!(# $to frame_drops(&mut self) -> Option<FrameDrops>); };

    // Everything about local peers.
    (@local_peers $to:ident) => {
        delegate!($to: local_peers_except_messages);
        delegate!(# $to connect_peer(&mut self, peer: crate::driver::traits::LocalPeer));
        delegate!(# $to disconnect_peer(&mut self, session: u64));
        delegate!(
            # $to write_segment(
                &mut self,
                ring: crate::driver::traits::RingName,
                segment: crate::driver::traits::RingSegment<'_>
            ) -> bool
        );
        fn write_piece(
            &mut self,
            session: u64,
            header: &crate::driver::traits::PieceHeader,
            bytes: &[u8],
        ) -> bool {
            self.$to.write_piece(session, header, bytes)
        }
        fn recv_from_ring(&mut self) -> Option<(u64, crate::driver::traits::RingEntry<'_>)> {
            self.$to.recv_from_ring()
        }
        unsafe fn read_by_cma(
            &mut self,
            session: u64,
            source: crate::driver::traits::CmaLocation,
            into: &crate::memory::Shape,
            offset: usize,
            length: usize,
        ) -> io::Result<()> {
            // SAFETY: the caller's contract, passed on.
            unsafe { self.$to.read_by_cma(session, source, into, offset, length) }
        }
    };
    (@local_peers_except_messages $to:ident) => {
        delegate!(# $to enable_shared_memory(&mut self, engine: u64));
        delegate!(# $to accepts_local_peers(&self) -> bool);
        delegate!(
            # $to take_unread(&mut self, session: u64)
                -> Option<Vec<crate::driver::traits::KeptFrames>>
        );
        delegate!(# $to read_body(&mut self, into: &mut [u8]));
        delegate!(# $to piece(&mut self) -> &[u8]);
        delegate!(# $to message(&mut self) -> &[u8]);
        delegate!(
            # $to process_cookie(&self)
                -> Option<std::sync::Arc<crate::driver::traits::ProcessCookie>>
        );
        delegate!(# $to shared_memory(&self) -> crate::types::SharedMemoryState);
        delegate!(# $to local_peers_fd(&self) -> Option<io::Result<OwnedFd>>);
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
