//! The handshake written down a second time: peers made by hand, honest ones and others.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use ringrail::Address;

pub(crate) const HELLO_BYTES: usize = 160;
pub(crate) const REPLY_BYTES: usize = 128;

pub(crate) type Secret = [u8; 32];

fn engine(address: &Address) -> [u8; 8] {
    address.to_bytes()[40..48].try_into().unwrap()
}

/// Version of the wire protocol.
pub(crate) const WIRE_VERSION: u8 = 13;

/// A hello of session 77 as a peer of this version would send it, to be bent and then signed.
pub(crate) fn hello(target: &Address, own: &Address) -> Vec<u8> {
    let mut hello = b"RINGRAIL".to_vec();
    hello.extend_from_slice(&[WIRE_VERSION, 0, 1, 0]);
    hello.extend_from_slice(&65_536u32.to_le_bytes());
    hello.extend_from_slice(&engine(own));
    hello.extend_from_slice(&engine(target));
    hello.extend_from_slice(&77u64.to_le_bytes());
    for word in [0u32, 16_384, 16, 4096] {
        hello.extend_from_slice(&word.to_le_bytes());
    }
    hello.extend_from_slice(&own.to_bytes());
    hello.extend_from_slice(&[0; 8]);
    // Epoch 1, no datagrams, no path, nothing answered, the nonce, room for the tag.
    hello.extend_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    hello.extend_from_slice(&[9; 16]);
    hello.extend_from_slice(&[0; 16]);
    assert_eq!(hello.len(), HELLO_BYTES);
    hello
}

fn keyed(key: &[u8; 32], parts: &[&[u8]]) -> [u8; 16] {
    let hash = blake3::keyed_hash(key, &parts.concat());
    hash.as_bytes()[..16].try_into().unwrap()
}

fn proof_key(secret: &Secret) -> [u8; 32] {
    blake3::derive_key("ringrail wire 6: proof of the job secret", secret)
}

fn sign(hello: &mut [u8], key: &[u8; 32]) {
    hello[144..].fill(0);
    let tag = keyed(key, &[b"hello...", hello]);
    hello[144..].copy_from_slice(&tag);
}

/// Signs the hello of a control lane.
pub(crate) fn sign_control(hello: &mut [u8], secret: &Secret) {
    let key = blake3::derive_key("ringrail wire 6: hello of a control lane", secret);
    sign(hello, &key);
}

/// The proof of a transcript by one of the sides.
pub(crate) fn transcript(secret: &Secret, label: &[u8; 8], hello: &[u8], reply: &[u8]) -> [u8; 16] {
    let bare = [&reply[..REPLY_BYTES - 16], &[0; 16]].concat();
    keyed(&proof_key(secret), &[label, hello, &bare])
}

/// The frame that the side that connected sends before its segments.
pub(crate) fn proof(secret: &Secret, hello: &[u8], reply: &[u8]) -> Vec<u8> {
    let mut frame = b"RRPF\0\0\0\0".to_vec();
    frame.extend_from_slice(&transcript(secret, b"initiatr", hello, reply));
    frame
}

/// A reply that accepts `hello`, as the engine of `own` would make it.
pub(crate) fn accepting(secret: &Secret, hello: &[u8], own: &Address) -> Vec<u8> {
    let mut reply = hello[..16].to_vec();
    reply[10..12].fill(0);
    reply.extend_from_slice(&own.to_bytes());
    reply.extend_from_slice(&[0; 8]);
    reply.extend_from_slice(&hello[32..40]);
    for word in [16u32, 4096, 16_384, 0] {
        reply.extend_from_slice(&word.to_le_bytes());
    }
    reply.extend_from_slice(&[3; 16]);
    reply.extend_from_slice(&[0; 16]);
    assert_eq!(reply.len(), REPLY_BYTES);
    let proof = transcript(secret, b"acceptor", hello, &reply);
    reply[REPLY_BYTES - 16..].copy_from_slice(&proof);
    reply
}

/// The join key of the session that an exchange led to.
pub(crate) fn join_key(secret: &Secret, hello: &[u8], reply: &[u8]) -> [u8; 32] {
    let root = blake3::derive_key("ringrail wire 6: root of session keys", secret);
    let mut hasher = blake3::Hasher::new_derive_key("ringrail wire 6: keys of a session");
    for part in [&root[..], &hello[128..144], &reply[96..112], &hello[16..32], &hello[32..40]] {
        hasher.update(part);
    }
    hasher.update(&hello[112..116]);
    let mut key = [0; 32];
    hasher.finalize_xof().fill(&mut key);
    key
}

/// The hello of bulk lane `number` of the session of `hello`.
pub(crate) fn join(hello: &[u8], number: u32, key: &[u8; 32]) -> Vec<u8> {
    let mut join = hello.to_vec();
    join[10] = 2;
    join[40..44].copy_from_slice(&number.to_le_bytes());
    sign(&mut join, key);
    join
}

/// A connection on which a hello was sent and a reply came.
pub(crate) struct Exchange {
    pub(crate) stream: TcpStream,
    pub(crate) hello: Vec<u8>,
    pub(crate) reply: Vec<u8>,
}

impl Exchange {
    /// Sends a hello.
    pub(crate) fn new(target: &Address, hello: Vec<u8>) -> Self {
        let mut stream = TcpStream::connect(target.locator()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(&hello).unwrap();
        let mut reply = vec![0; REPLY_BYTES];
        stream.read_exact(&mut reply).unwrap();
        Self { stream, hello, reply }
    }

    /// Sends a signed hello, checks that a peer with the secret accepts it, and proves it.
    pub(crate) fn honest(target: &Address, own: &Address, secret: &Secret) -> Self {
        Self::honest_with(target, hello(target, own), secret)
    }

    /// The same with a hello of the caller's, which is signed here.
    pub(crate) fn honest_with(target: &Address, mut hello: Vec<u8>, secret: &Secret) -> Self {
        sign_control(&mut hello, secret);
        let mut exchange = Self::new(target, hello);
        assert_eq!(exchange.status(), 0, "accepted");
        assert!(exchange.is_proved(secret));
        let proof = proof(secret, &exchange.hello, &exchange.reply);
        exchange.stream.write_all(&proof).unwrap();
        exchange
    }

    pub(crate) fn status(&self) -> u8 {
        self.reply[10]
    }

    /// Whether the reply was made by who knows the secret.
    pub(crate) fn is_proved(&self, secret: &Secret) -> bool {
        transcript(secret, b"acceptor", &self.hello, &self.reply) == self.reply[REPLY_BYTES - 16..]
    }

    /// Whether the other side closes the connection; false if it stays open for `patience`.
    pub(crate) fn is_closed_within(&mut self, patience: Duration) -> bool {
        self.stream.set_read_timeout(Some(patience)).unwrap();
        let mut buffer = [0; 4096];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => return error.kind() == std::io::ErrorKind::ConnectionReset,
            }
        }
    }
}
