//! Threads that exchange halos: the heat equation on a square, a band of rows for each thread, and
//! an endpoint for each thread. The result is compared bit for bit with that of one thread.
//!
//! `cargo run --release -p ringrail --example stencil -- THREADS SIZE STEPS`

use std::error::Error;
use std::ops::Range;
use std::sync::Barrier;

use ringrail::settings::Settings;
use ringrail::{
    Address, Buffer, Detached, Domain, Endpoint, Envelope, JobSecret, Owned, Peer, Selector,
    SendOptions,
};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Rows that go to the neighbour above, and to the one below.
const UP: Envelope = Envelope::tagged(1);
const DOWN: Envelope = Envelope::tagged(2);

fn main() -> Outcome<()> {
    let mut numbers = std::env::args().skip(1).map(|argument| argument.parse::<usize>());
    let mut number = |default: usize| numbers.next().unwrap_or(Ok(default));
    let (threads, size, steps) = (number(4)?, number(512)?, number(200)?);
    if threads == 0 || size < threads.max(3) {
        return Err("stencil THREADS SIZE STEPS: a row for each thread, and 3 at least".into());
    }
    // All endpoints are there before any thread needs the address of another one.
    let settings = Settings::builder()
        .set("listen_address", "127.0.0.1")
        .job_secret(Some(&JobSecret::random()))
        .build()?;
    let domain = Domain::with_settings(settings)?;
    let endpoints: Vec<Endpoint<Detached>> =
        (0..threads).map(|_| domain.endpoint()).collect::<Result<_, _>>()?;
    let addresses: Vec<Address> = endpoints.iter().map(|endpoint| endpoint.address()).collect();
    let all_done = Barrier::new(threads);
    let bands: Vec<Outcome<Band>> = std::thread::scope(|scope| {
        let start = |(rank, endpoint)| {
            let (addresses, all_done) = (&addresses, &all_done);
            let band = Band::new(size, size * rank / threads..size * (rank + 1) / threads);
            scope.spawn(move || run(rank, endpoint, addresses, band, steps, all_done))
        };
        let running: Vec<_> = endpoints.into_iter().enumerate().map(start).collect();
        let joined = running.into_iter().map(|thread| thread.join());
        joined.map(|band| band.unwrap_or_else(|_| Err("a thread panicked".into()))).collect()
    });
    let mut field = Vec::new();
    for band in bands {
        field.extend_from_slice(band?.own_rows());
    }
    let mut alone = Band::new(size, 0..size);
    (0..steps).for_each(|_| alone.step());
    if field != alone.own_rows() {
        return Err("the field differs from the one that a single thread computes".into());
    }
    println!("{size}x{size}, {steps} steps on {threads} threads: equal bit for bit");
    Ok(())
}

/// One thread: attaches its endpoint, and works until all threads have what they need.
fn run(
    rank: usize,
    endpoint: Endpoint<Detached>,
    addresses: &[Address],
    mut band: Band,
    steps: usize,
    all_done: &Barrier,
) -> Outcome<Band> {
    let work = || {
        let endpoint = endpoint.attach()?;
        let peer = |rank: usize| addresses.get(rank).map(|it| endpoint.insert_peer(it)).transpose();
        let above = rank.checked_sub(1).map_or(Ok(None), peer)?;
        let below = peer(rank + 1)?;
        for _ in 0..steps {
            exchange(&endpoint, &mut band, above, below)?;
            band.step();
        }
        Ok(endpoint)
    };
    // Even after an error: no thread waits for ever. The endpoint stays open until all are done.
    let ended = work();
    all_done.wait();
    ended.map(|_| band)
}

/// Sends the outermost own rows to the neighbours and receives theirs. Receives are posted first,
/// so that no row waits for its memory; all are posted before any is waited for, so that no thread
/// waits for its turn.
fn exchange(
    endpoint: &Endpoint<Owned>,
    band: &mut Band,
    above: Option<Peer>,
    below: Option<Peer>,
) -> Outcome<()> {
    let first = 1;
    let last = band.rows.len();
    let sides = [(above, UP, DOWN, first, first - 1), (below, DOWN, UP, last, last + 1)];
    let (mut receives, mut sends) = (Vec::new(), Vec::new());
    for (peer, out, back, edge, halo) in sides {
        let Some(peer) = peer else { continue };
        let memory = vec![0; band.width * 8];
        receives.push((endpoint.receive(Selector::from_peer(peer, back), memory)?, halo));
        sends.push(endpoint.send(peer, out, band.row_bytes(edge), SendOptions::default())?);
    }
    for (receive, halo) in receives {
        let received = receive.wait()?;
        band.set_row(halo, &received.buffer)?;
    }
    for send in sends {
        send.wait()?;
    }
    Ok(())
}

/// The rows of one thread, with one above and one below that belong to the neighbours.
struct Band {
    width: usize,
    rows: Range<usize>,
    now: Vec<f64>,
    next: Vec<f64>,
}

impl Band {
    /// Cold, but for the first row of the field, which is hot.
    fn new(width: usize, rows: Range<usize>) -> Self {
        let mut now = vec![0.0; (rows.len() + 2) * width];
        if rows.start == 0 {
            now[width..2 * width].fill(1.0);
        }
        Self { width, rows, next: now.clone(), now }
    }

    /// One step: each cell becomes the mean of its neighbours. The edges of the field stay.
    fn step(&mut self) {
        let (width, height) = (self.width, self.width);
        for (line, row) in (1..).zip(self.rows.clone()) {
            if row == 0 || row == height - 1 {
                continue;
            }
            for at in line * width + 1..(line + 1) * width - 1 {
                let vertical = self.now[at - width] + self.now[at + width];
                self.next[at] = 0.25 * (vertical + (self.now[at - 1] + self.now[at + 1]));
            }
        }
        std::mem::swap(&mut self.now, &mut self.next);
    }

    fn own_rows(&self) -> &[f64] {
        &self.now[self.width..(self.rows.len() + 1) * self.width]
    }

    fn row_bytes(&self, line: usize) -> Vec<u8> {
        let row = &self.now[line * self.width..(line + 1) * self.width];
        row.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    fn set_row(&mut self, line: usize, buffer: &Buffer) -> Outcome<()> {
        let bytes = buffer.as_slice().ok_or("the row is in pieces")?;
        let row = &mut self.now[line * self.width..(line + 1) * self.width];
        for (value, bytes) in row.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *value = f64::from_le_bytes(*bytes);
        }
        Ok(())
    }
}
