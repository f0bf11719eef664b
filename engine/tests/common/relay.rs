//! A relay on the path: connections pass through, and bytes can be changed.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use ringrail::Address;

/// Bytes of connection `number` (from 0), in the direction of who was connected to if `forward`;
/// the first of them is byte `at` of that stream.
pub(crate) struct Passing<'a> {
    pub(crate) number: usize,
    pub(crate) forward: bool,
    pub(crate) at: usize,
    pub(crate) bytes: &'a mut [u8],
}

impl Passing<'_> {
    /// Flips a bit of byte `at` of the stream if that is passing now.
    pub(crate) fn flip(&mut self, at: usize) {
        if let Some(byte) = at.checked_sub(self.at).and_then(|at| self.bytes.get_mut(at)) {
            *byte ^= 4;
        }
    }
}

type Change = Arc<Mutex<dyn FnMut(Passing<'_>) + Send>>;

/// See the module. Ends with what it started when it is dropped.
pub(crate) struct Relay {
    address: Address,
    is_over: Arc<AtomicBool>,
    acceptor: Option<JoinHandle<()>>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

impl Relay {
    /// In front of `target`.
    pub(crate) fn new(target: Address, change: impl FnMut(Passing<'_>) + Send + 'static) -> Self {
        let change: Change = Arc::new(Mutex::new(change));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut bytes = target.to_bytes();
        bytes[4..6].copy_from_slice(&port.to_le_bytes());
        let address = Address::from_bytes(&bytes).unwrap();
        assert_eq!(address.locator().port(), port);
        let is_over = Arc::new(AtomicBool::new(false));
        let streams = Arc::new(Mutex::new(Vec::new()));
        let (over, all) = (Arc::clone(&is_over), Arc::clone(&streams));
        let acceptor = thread::spawn(move || {
            let mut pumps = Vec::new();
            for (number, near) in listener.incoming().enumerate() {
                if over.load(Ordering::SeqCst) {
                    break;
                }
                let near = near.unwrap();
                let far = TcpStream::connect(target.locator()).unwrap();
                for (from, to, forward) in [(&near, &far, true), (&far, &near, false)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let change = Arc::clone(&change);
                    pumps.push(thread::spawn(move || pump(from, to, number, forward, &change)));
                }
                all.lock().unwrap().extend([near, far]);
            }
            for pump in pumps {
                pump.join().unwrap();
            }
        });
        Self { address, is_over, acceptor: Some(acceptor), streams }
    }

    /// Where the target seems to be.
    pub(crate) fn address(&self) -> Address {
        self.address
    }
}

fn pump(mut from: TcpStream, mut to: TcpStream, number: usize, forward: bool, change: &Change) {
    let mut buffer = vec![0; 65_536];
    let mut at = 0;
    while let Ok(got) = from.read(&mut buffer)
        && got > 0
    {
        let bytes = &mut buffer[..got];
        (change.lock().unwrap())(Passing { number, forward, at, bytes });
        at += got;
        if to.write_all(&buffer[..got]).is_err() {
            break;
        }
    }
    // A side that is gone already needs no end.
    let _ = to.shutdown(Shutdown::Write);
    let _ = from.shutdown(Shutdown::Read);
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address.locator());
        for stream in self.streams.lock().unwrap().iter() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}
