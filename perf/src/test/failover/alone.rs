//! What each rail carries alone: one TCP stream, nothing of the engine in it.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

use crate::cli::LabRail;
use crate::link::{Link, unpace};

/// Until a stream has its rate.
const WARM_UP: Duration = Duration::from_millis(200);
/// Then it is measured for so long, several times, and the best counts: a busy machine makes a
/// stream slower, never faster.
const MEASURED: Duration = Duration::from_millis(150);
const TIMES: usize = 4;
/// How long a call may take: a second is a long time in a lab.
const LIMIT: Duration = Duration::from_secs(5);

fn text(error: impl std::fmt::Display) -> String {
    format!("cannot measure a rail alone: {error}")
}

/// Bytes per second of every rail, on both sides.
pub(super) fn rates(
    link: &mut Link,
    rails: &[LabRail],
    is_server: bool,
) -> Result<Vec<f64>, String> {
    let mut rates = Vec::new();
    for rail in rails {
        let rate: f64 = if is_server {
            let listener = TcpListener::bind(SocketAddr::new(rail.server, 0)).map_err(text)?;
            link.put(&listener.local_addr().map_err(text)?.port())?;
            let rate = receive(listener.accept().map_err(text)?.0).map_err(text)?;
            link.put(&rate)?;
            rate
        } else {
            let port: u16 = link.get()?;
            let stream = connect(rail, port).map_err(text)?;
            // Ends when the server has had enough.
            let _ = send(stream);
            link.get()?
        };
        rates.push(rate);
    }
    Ok(rates)
}

/// By this rail, whatever the routes say: rails may be in one network.
fn connect(rail: &LabRail, port: u16) -> std::io::Result<TcpStream> {
    let server = SocketAddr::new(rail.server, port);
    let socket = Socket::new(Domain::for_address(server), Type::STREAM, None)?;
    socket.bind_device(Some(rail.nic.as_bytes()))?;
    socket.bind(&SocketAddr::new(rail.client, 0).into())?;
    socket.connect_timeout(&server.into(), LIMIT)?;
    socket.set_write_timeout(Some(LIMIT))?;
    let stream = TcpStream::from(socket);
    unpace(&stream);
    Ok(stream)
}

fn send(mut stream: TcpStream) -> std::io::Result<()> {
    let bytes = vec![0; 256 * 1024];
    loop {
        stream.write_all(&bytes)?;
    }
}

fn receive(mut stream: TcpStream) -> std::io::Result<f64> {
    stream.set_read_timeout(Some(LIMIT))?;
    let mut into = vec![0; 256 * 1024];
    let begin = Instant::now();
    // Of the current measurement, once there is one.
    let (mut since, mut bytes, mut rates) = (None, 0, Vec::with_capacity(TIMES));
    while rates.len() < TIMES {
        let length = match stream.read(&mut into) {
            // The endpoint's ring has work for this thread.
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            length => length?,
        };
        if length == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let now = begin.elapsed();
        match since {
            None if now >= WARM_UP => since = Some(now),
            None => {}
            Some(first) => {
                bytes += length;
                if now - first >= MEASURED {
                    rates.push(bytes as f64 / (now - first).as_secs_f64());
                    (since, bytes) = (Some(now), 0);
                }
            }
        }
    }
    Ok(rates.into_iter().fold(0.0, f64::max))
}
