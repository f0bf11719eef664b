//! What the kernel knows of a connection: its ends, and what `TCP_INFO` says of a silent peer.

use std::io;
use std::mem;
use std::net::SocketAddr;
use std::os::fd::{OwnedFd, RawFd};
use std::time::Duration;

use socket2::SockRef;

use crate::progress::lanes::TcpFigures;

/// Both ends of a connected socket, this one first. Two system calls.
pub(crate) fn addresses(socket: &OwnedFd) -> Option<(SocketAddr, SocketAddr)> {
    let socket = SockRef::from(socket);
    let local = socket.local_addr().ok()?.as_socket()?;
    let remote = socket.peer_addr().ok()?.as_socket()?;
    Some((local, remote))
}

/// How long the peer's kernel has left sent bytes unanswered, `None` when it owes no answer.
///
/// Bytes that could not leave this host yet (its rail is down, the peer's window is shut) are
/// owed an answer, too, though its time has not begun: `Some(0)`.
///
/// One system call, two where nothing is on the wire. See [`silence`] for the formula.
pub(crate) fn unanswered(socket: RawFd) -> io::Result<Option<Duration>> {
    Ok(match silence(&read(socket)?) {
        None if queued(socket)? > 0 => Some(Duration::ZERO),
        silence => silence,
    })
}

/// Bytes in the send queue, sent or not, that are not acknowledged. One system call.
fn queued(socket: RawFd) -> io::Result<libc::c_int> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the request writes one `int`, and `bytes` outlives the call.
    let rc = unsafe { libc::ioctl(socket, libc::TIOCOUTQ, &raw mut bytes) };
    if rc == 0 { Ok(bytes) } else { Err(io::Error::last_os_error()) }
}

/// What the kernel knows of a connection. One system call.
pub(super) fn read(socket: RawFd) -> io::Result<libc::tcp_info> {
    // SAFETY: `tcp_info` is plain integers, for which zero bytes are a value.
    let mut info: libc::tcp_info = unsafe { mem::zeroed() };
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the pointers describe `info` and its length; both outlive the call.
    let rc = unsafe {
        libc::getsockopt(
            socket,
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut length,
        )
    };
    if rc == 0 { Ok(info) } else { Err(io::Error::last_os_error()) }
}

/// What the kernel counted of a connection. One system call.
pub(crate) fn figures(socket: RawFd) -> io::Result<TcpFigures> {
    let info = read(socket)?;
    Ok(TcpFigures {
        retransmits: info.tcpi_total_retrans.into(),
        round_trip: Duration::from_micros(info.tcpi_rtt.into()),
    })
}

/// The time since the last acknowledgement, bounded by how long the oldest unanswered packet can
/// have been out; without that bound the first packet after an idle hour would count as an hour.
///
/// - Nothing retransmitted: it went out less than one RTO before the last data did, which is
///   neglected.
/// - `n` retransmissions: the timeouts so far were `rto / 2^n + ... + rto / 2 < rto`, where `rto`
///   is the current, backed-off one; the last transmission was `last_data_sent` ago.
/// - Zero-window probes: a first probe is answered as fast as data is, so only a second one says
///   that the peer's kernel is silent; the intervals so far add up to less than the next one.
fn silence(info: &libc::tcp_info) -> Option<Duration> {
    let last_ack = Duration::from_millis(info.tcpi_last_ack_recv.into());
    let last_sent = Duration::from_millis(info.tcpi_last_data_sent.into());
    let rto = Duration::from_micros(info.tcpi_rto.into());
    let bound = if info.tcpi_probes >= 2 {
        rto.saturating_mul(1 << info.tcpi_backoff.min(20))
    } else if info.tcpi_unacked == 0 {
        return None;
    } else if info.tcpi_retransmits > 0 {
        rto.saturating_add(last_sent)
    } else {
        last_sent
    };
    Some(last_ack.min(bound))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    use super::*;

    fn info() -> libc::tcp_info {
        // SAFETY: `tcp_info` is plain integers, for which zero bytes are a value.
        let mut info: libc::tcp_info = unsafe { mem::zeroed() };
        info.tcpi_rto = 200_000;
        info
    }

    #[test]
    fn an_idle_hour_does_not_count() {
        let mut info = info();
        info.tcpi_last_ack_recv = 3_600_000;
        assert_eq!(silence(&info), None);
        info.tcpi_unacked = 1;
        info.tcpi_last_data_sent = 3;
        assert_eq!(silence(&info), Some(Duration::from_millis(3)));
        info.tcpi_retransmits = 1;
        info.tcpi_rto = 400_000;
        assert_eq!(silence(&info), Some(Duration::from_millis(403)));
    }

    #[test]
    fn retransmissions_into_silence_count_from_the_last_answer() {
        let mut info = info();
        info.tcpi_unacked = 4;
        info.tcpi_retransmits = 4;
        info.tcpi_rto = 3_200_000;
        info.tcpi_last_data_sent = 900;
        info.tcpi_last_ack_recv = 3_900;
        assert_eq!(silence(&info), Some(Duration::from_millis(3_900)));
    }

    #[test]
    fn one_window_probe_is_no_silence_and_two_are() {
        let mut info = info();
        info.tcpi_last_ack_recv = 60_000;
        info.tcpi_probes = 1;
        info.tcpi_backoff = 3;
        assert_eq!(silence(&info), None);
        info.tcpi_probes = 2;
        assert_eq!(silence(&info), Some(Duration::from_millis(1_600)));
    }

    #[test]
    fn bytes_behind_a_shut_window_are_owed_an_answer() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        near.set_nonblocking(true).unwrap();
        let full = [0; 65_536];
        while near.write(&full).is_ok() {}
        // What was on the wire is answered soon; the rest waits for the window.
        for _ in 0..200 {
            assert!(unanswered(near.as_raw_fd()).unwrap().is_some());
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(far);
    }

    #[test]
    fn a_live_peer_owes_nothing() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        near.write_all(b"x").unwrap();
        far.read_exact(&mut [0]).unwrap();
        far.write_all(b"y").unwrap();
        near.read_exact(&mut [0]).unwrap();
        assert_eq!(unanswered(near.as_raw_fd()).unwrap(), None);
        let figures = figures(near.as_raw_fd()).unwrap();
        assert!(figures.round_trip > Duration::ZERO, "{figures:?}");
        assert_eq!(figures.retransmits, 0);
    }
}
