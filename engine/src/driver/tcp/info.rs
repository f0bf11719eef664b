//! The kernel's view of a connection: addresses, and `TCP_INFO`.

use std::io;
use std::mem;
use std::net::SocketAddr;
use std::os::fd::{OwnedFd, RawFd};
use std::time::Duration;

use socket2::SockRef;

use crate::driver::traits::{Resent, TcpFigures, Unacked};
use crate::refused_call::if_refused;

/// Local and remote address of a connected socket. Two system calls.
pub(crate) fn addresses(socket: &OwnedFd) -> Option<(SocketAddr, SocketAddr)> {
    let socket = SockRef::from(socket);
    let local = socket.local_addr().ok()?.as_socket()?;
    let remote = socket.peer_addr().ok()?.as_socket()?;
    Some((local, remote))
}

/// Unanswered keep-alive probes that count: a single one may be lost.
const QUESTIONS_MIN: u8 = 3;

/// The same for zero-window probes, which may be two minutes apart.
const PROBES_MIN: u8 = 2;

/// What the peer's kernel has not acknowledged. One system call, two if nothing is in flight or the
/// kernel sends again.
pub(crate) fn unacked(socket: RawFd) -> io::Result<Unacked> {
    let info = read(socket)?;
    let is_length_needed = info.tcpi_unacked == 0 || info.tcpi_retransmits > 0;
    let queued_bytes = if is_length_needed { queued(socket)? } else { 0 };
    Ok(judge(&info, queued_bytes))
}

/// Unacknowledged bytes in the send queue, sent or not. One system call.
fn queued(socket: RawFd) -> io::Result<u32> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the request writes one `int`, and `bytes` outlives the call.
    let rc = unsafe { libc::ioctl(socket, libc::TIOCOUTQ, &raw mut bytes) };
    if rc == 0 { Ok(bytes.max(0) as u32) } else { Err(io::Error::last_os_error()) }
}

/// Reads `TCP_INFO`. One system call.
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
    if rc == 0 { Ok(info) } else { Err(if_refused("getsockopt")(io::Error::last_os_error())) }
}

/// Kernel statistics of a connection. One system call.
pub(crate) fn figures(socket: RawFd) -> io::Result<TcpFigures> {
    let info = read(socket)?;
    Ok(TcpFigures {
        retransmits: info.tcpi_total_retrans.into(),
        round_trip: Duration::from_micros(info.tcpi_rtt.into()),
    })
}

/// Returns the kernel's retransmissions of data in flight since the peer last acknowledged more, by
/// timer alone. No segment of it is longer than all that is unacknowledged.
fn resent(info: &libc::tcp_info, queued_bytes: u32) -> Option<Resent> {
    let times = u32::from(info.tcpi_retransmits);
    let segment_bytes = info.tcpi_snd_mss.min(queued_bytes);
    // Everything may have been acknowledged since the statistics were read.
    (times > 0 && segment_bytes > 0).then_some(Resent { times, segment_bytes })
}

/// `queued_bytes`: what is unacknowledged, whether it is on the wire or waits to go there.
///
/// - Data in flight: the last transmission was `last_data_sent` ago, and is unacknowledged.
/// - Zero-window probes, also when the NIC does not take the first bytes: the time of the first one
///   is not known.
/// - Keep-alive probes: nothing else was sent since the last acknowledgement.
fn judge(info: &libc::tcp_info, queued_bytes: u32) -> Unacked {
    let has_queued = queued_bytes > 0;
    let since_answer = Duration::from_millis(info.tcpi_last_ack_recv.into());
    let sent = Duration::from_millis(info.tcpi_last_data_sent.into());
    if info.tcpi_unacked > 0 {
        Unacked::Answer { since_answer, since_sent: sent, resent: resent(info, queued_bytes) }
    } else if has_queued && info.tcpi_probes >= PROBES_MIN {
        Unacked::Answer { since_answer, since_sent: Duration::ZERO, resent: None }
    } else if has_queued {
        Unacked::Later
    } else if info.tcpi_probes >= QUESTIONS_MIN {
        Unacked::Answer { since_answer, since_sent: since_answer, resent: None }
    } else {
        Unacked::Nothing
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    use super::*;

    fn info() -> libc::tcp_info {
        // SAFETY: `tcp_info` is plain integers, for which zero bytes are a value.
        unsafe { mem::zeroed() }
    }

    #[test]
    fn idle_connection_has_nothing_unacked() {
        let mut info = info();
        info.tcpi_last_ack_recv = 3_600_000;
        assert_eq!(judge(&info, 0), Unacked::Nothing);
        info.tcpi_unacked = 1;
        info.tcpi_last_data_sent = 3;
        let since_answer = Duration::from_secs(3600);
        let since_sent = Duration::from_millis(3);
        assert_eq!(judge(&info, 0), Unacked::Answer { since_answer, since_sent, resent: None });
        (info.tcpi_retransmits, info.tcpi_snd_mss) = (2, 8948);
        // A short message alone is in a short segment, whatever the longest may be.
        for (queued_bytes, segment_bytes) in [(8948, 8948), (100_000, 8948), (16, 16)] {
            let resent = Some(Resent { times: 2, segment_bytes });
            let owed = Unacked::Answer { since_answer, since_sent, resent };
            assert_eq!(judge(&info, queued_bytes), owed);
        }
    }

    #[test]
    fn one_lost_keep_alive_probe_is_tolerated() {
        let mut info = info();
        info.tcpi_last_ack_recv = 4_000;
        for probes in 0..QUESTIONS_MIN {
            info.tcpi_probes = probes;
            assert_eq!(judge(&info, 0), Unacked::Nothing);
        }
        info.tcpi_probes = QUESTIONS_MIN;
        let silence = Duration::from_secs(4);
        assert_eq!(
            judge(&info, 0),
            Unacked::Answer { since_answer: silence, since_sent: silence, resent: None }
        );
    }

    #[test]
    fn zero_window_probes_count_as_unacked() {
        let mut info = info();
        info.tcpi_last_ack_recv = 60_000;
        assert_eq!(judge(&info, 1), Unacked::Later);
        info.tcpi_probes = 1;
        assert_eq!(judge(&info, 1), Unacked::Later);
        info.tcpi_probes = 2;
        let since_answer = Duration::from_secs(60);
        let since_sent = Duration::ZERO;
        assert_eq!(judge(&info, 1), Unacked::Answer { since_answer, since_sent, resent: None });
    }

    #[test]
    fn bytes_behind_a_zero_window_count_as_unacked() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        near.set_nonblocking(true).unwrap();
        let full = [0; 65_536];
        while near.write(&full).is_ok() {}
        // Data in flight is acknowledged soon; the rest waits for the window.
        for _ in 0..200 {
            assert_ne!(unacked(near.as_raw_fd()).unwrap(), Unacked::Nothing);
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(far);
    }

    #[test]
    fn responsive_peer_has_nothing_unacked() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        near.write_all(b"x").unwrap();
        far.read_exact(&mut [0]).unwrap();
        far.write_all(b"y").unwrap();
        near.read_exact(&mut [0]).unwrap();
        assert_eq!(unacked(near.as_raw_fd()).unwrap(), Unacked::Nothing);
        let figures = figures(near.as_raw_fd()).unwrap();
        assert!(figures.round_trip > Duration::ZERO, "{figures:?}");
        assert_eq!(figures.retransmits, 0);
    }
}
