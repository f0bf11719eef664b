//! What the kernel knows of a connection: its ends, and what `TCP_INFO` says of its peer.

use std::io;
use std::mem;
use std::net::SocketAddr;
use std::os::fd::{OwnedFd, RawFd};
use std::time::Duration;

use socket2::SockRef;

use crate::driver::lanes::{Owed, Resent, TcpFigures};

/// Both ends of a connected socket, this one first. Two system calls.
pub(crate) fn addresses(socket: &OwnedFd) -> Option<(SocketAddr, SocketAddr)> {
    let socket = SockRef::from(socket);
    let local = socket.local_addr().ok()?.as_socket()?;
    let remote = socket.peer_addr().ok()?.as_socket()?;
    Some((local, remote))
}

/// Questions of keep-alive that have to be unanswered: one may be lost on its way.
const QUESTIONS_MIN: u8 = 3;

/// The same of those about a window, of which there may be one in two minutes.
const PROBES_MIN: u8 = 2;

/// What the peer's kernel owes. One system call, two where nothing is on the wire.
pub(crate) fn owed(socket: RawFd) -> io::Result<Owed> {
    let info = read(socket)?;
    let has_queued = info.tcpi_unacked == 0 && queued(socket)? > 0;
    Ok(judge(&info, has_queued))
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

/// What the kernel has sent again since the peer's last acknowledged more, by its timer alone. One
/// system call.
pub(crate) fn resent(socket: RawFd) -> Option<Resent> {
    let info = read(socket).ok()?;
    let times = u32::from(info.tcpi_retransmits);
    let is_due = times > 0 && info.tcpi_unacked > 0;
    is_due.then_some(Resent { times, segment_bytes: info.tcpi_snd_mss })
}

/// `has_queued`: nothing is on the wire, but bytes wait to go there.
///
/// - On the wire: the last transmission was `last_data_sent` ago, and is not answered.
/// - Questions about a window that is shut, or for a rail that does not take the first bytes:
///   nothing says when the first one went.
/// - Questions of keep-alive: nothing went since the last answer but these.
fn judge(info: &libc::tcp_info, has_queued: bool) -> Owed {
    let heard = Duration::from_millis(info.tcpi_last_ack_recv.into());
    let sent = Duration::from_millis(info.tcpi_last_data_sent.into());
    if info.tcpi_unacked > 0 {
        Owed::Answer { heard, asked: sent }
    } else if has_queued && info.tcpi_probes >= PROBES_MIN {
        Owed::Answer { heard, asked: Duration::ZERO }
    } else if has_queued {
        Owed::Later
    } else if info.tcpi_probes >= QUESTIONS_MIN {
        Owed::Answer { heard, asked: heard }
    } else {
        Owed::Nothing
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
    fn an_idle_hour_is_no_debt() {
        let mut info = info();
        info.tcpi_last_ack_recv = 3_600_000;
        assert_eq!(judge(&info, false), Owed::Nothing);
        info.tcpi_unacked = 1;
        info.tcpi_last_data_sent = 3;
        let heard = Duration::from_secs(3600);
        let asked = Duration::from_millis(3);
        assert_eq!(judge(&info, false), Owed::Answer { heard, asked });
    }

    #[test]
    fn one_question_of_keep_alive_may_be_lost() {
        let mut info = info();
        info.tcpi_last_ack_recv = 4_000;
        for probes in 0..QUESTIONS_MIN {
            info.tcpi_probes = probes;
            assert_eq!(judge(&info, false), Owed::Nothing);
        }
        info.tcpi_probes = QUESTIONS_MIN;
        let silence = Duration::from_secs(4);
        assert_eq!(judge(&info, false), Owed::Answer { heard: silence, asked: silence });
    }

    #[test]
    fn questions_about_a_window_are_owed_an_answer_from_now_on() {
        let mut info = info();
        info.tcpi_last_ack_recv = 60_000;
        assert_eq!(judge(&info, true), Owed::Later);
        info.tcpi_probes = 1;
        assert_eq!(judge(&info, true), Owed::Later);
        info.tcpi_probes = 2;
        let heard = Duration::from_secs(60);
        assert_eq!(judge(&info, true), Owed::Answer { heard, asked: Duration::ZERO });
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
            assert_ne!(owed(near.as_raw_fd()).unwrap(), Owed::Nothing);
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
        assert_eq!(owed(near.as_raw_fd()).unwrap(), Owed::Nothing);
        let figures = figures(near.as_raw_fd()).unwrap();
        assert!(figures.round_trip > Duration::ZERO, "{figures:?}");
        assert_eq!(figures.retransmits, 0);
    }
}
