//! Writes down which instructions a message of 8 bytes executes: `cargo xtask walk` builds this
//! without optimisation, runs it, and names the functions.
//!
//! Two engines of this thread exchange messages until they are warm. Then the processor traps after
//! each instruction of one call, and the handler of that signal notes its address and the stack
//! pointer, which are printed in hexadecimal behind the name of the call.

use std::error::Error;

#[cfg(target_arch = "x86_64")]
fn main() -> Result<(), Box<dyn Error>> {
    walk::all()
}

#[cfg(not(target_arch = "x86_64"))]
fn main() -> Result<(), Box<dyn Error>> {
    Err("single steps are those of x86-64".into())
}

/// What is executed and written down.
#[cfg(target_arch = "x86_64")]
mod walk {
    use std::error::Error;
    use std::fmt::Write;

    use ringrail::settings::Settings;
    use ringrail::{
        Buffer, Completion, Domain, Endpoint, Envelope, Event, JobSecret, Owned, Peer,
        ReceiveOptions, Selector, SendOptions,
    };

    use super::steps;

    type Outcome<T> = Result<T, Box<dyn Error>>;

    /// What carries the messages, and the settings for that.
    const TRANSPORTS: [(&str, [(&str, &str); 3]); 2] = [
        ("udp", [("lanes", "uring"), ("control_lane", "udp"), ("shared_memory", "off")]),
        ("shm", [("lanes", "auto"), ("control_lane", "udp"), ("shared_memory", "auto")]),
    ];

    const TAG: Envelope = Envelope::tagged(7);
    const BYTES: [u8; 8] = *b"8 bytes.";

    /// Turns in which two engines connect, or a message arrives, at the most.
    const TURNS_MAX: usize = 100_000;
    /// Turns after that, until paths are known.
    const TURNS_TO_SETTLE: usize = 5_000;
    /// Messages each way before the first call is written down, and between two.
    const WARM_UP: usize = 200;
    const BETWEEN: usize = 5;
    /// Calls of each kind, of which the one in the middle by length is printed.
    const ROUNDS: usize = 9;

    /// How many times slower the engines' clock runs, so that no timer fires because of the traps.
    const SLOWNESS: u64 = 2_048;

    /// An engine, and the other one as it knows it.
    struct Side {
        endpoint: Endpoint<Owned>,
        peer: Peer,
        done: Vec<Completion>,
    }

    pub(super) fn all() -> Outcome<()> {
        steps::install()?;
        ringrail::bench::slow_clocks(SLOWNESS);
        for (transport, settings) in TRANSPORTS {
            let (mut left, mut right) = connected(&settings)?;
            warm_up(&mut left, &mut right, WARM_UP)?;
            let calls: [(&str, Call); 4] =
                [("inject", inject), ("send", send), ("post", post), ("receive", receive)];
            for (name, call) in calls {
                let mut rounds = Vec::new();
                for _ in 0..ROUNDS {
                    rounds.push(call(&mut left, &mut right)?);
                    warm_up(&mut left, &mut right, BETWEEN)?;
                }
                // What is done once in a few messages is in some of them.
                rounds.sort_by_key(Vec::len);
                print(transport, name, &rounds[ROUNDS / 2]);
            }
        }
        Ok(())
    }

    /// Executes a call, of the left side or of the right one, and what completes the message.
    type Call = fn(&mut Side, &mut Side) -> Outcome<Vec<[usize; 2]>>;

    fn inject(left: &mut Side, right: &mut Side) -> Outcome<Vec<[usize; 2]>> {
        right.post()?;
        let options = SendOptions::new();
        let steps = steps::of(|| left.endpoint.inject(left.peer, TAG, &BYTES, options))?;
        right.take_completion()?;
        // A turn, or the next message waits for the end of this one.
        left.turn()?;
        Ok(steps)
    }

    fn send(left: &mut Side, right: &mut Side) -> Outcome<Vec<[usize; 2]>> {
        right.post()?;
        let (buffer, options) = (Buffer::from(BYTES.to_vec()), SendOptions::new());
        let steps = steps::of(|| left.endpoint.post_send(left.peer, TAG, buffer, options))?;
        right.take_completion()?;
        left.take_completion()?;
        Ok(steps)
    }

    fn post(left: &mut Side, right: &mut Side) -> Outcome<Vec<[usize; 2]>> {
        let (selector, buffer, options) = right.receive();
        let steps = steps::of(|| right.endpoint.post_receive(selector, buffer, options))?;
        left.send()?;
        right.take_completion()?;
        left.turn()?;
        Ok(steps)
    }

    fn receive(left: &mut Side, right: &mut Side) -> Outcome<Vec<[usize; 2]>> {
        right.post()?;
        left.send()?;
        let steps = steps::of(|| right.endpoint.completions(&mut right.done, 8))?;
        let message = right.done.pop().ok_or("one turn has not received the message")?;
        message.result?;
        left.turn()?;
        Ok(steps)
    }

    fn print(transport: &str, call: &str, steps: &[[usize; 2]]) {
        let mut text = format!("walk {transport} {call}\n");
        for [instruction, stack] in steps {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{instruction:x} {stack:x}");
        }
        print!("{text}");
    }

    /// Two engines that are connected and know their paths.
    fn connected(settings: &[(&str, &str)]) -> Outcome<(Side, Side)> {
        let secret = JobSecret::random();
        let open = || -> Outcome<Endpoint<Owned>> {
            let mut builder = Settings::builder().job_secret(Some(&secret)).set("nics", "lo");
            for (name, value) in settings {
                builder = builder.set(name, value);
            }
            Ok(Domain::with_settings(builder.build()?)?.endpoint()?.attach()?)
        };
        let (left, right) = (open()?, open()?);
        let peers = (left.insert_peer(&right.address())?, right.insert_peer(&left.address())?);
        let mut left = Side { endpoint: left, peer: peers.0, done: Vec::with_capacity(8) };
        let mut right = Side { endpoint: right, peer: peers.1, done: Vec::with_capacity(8) };
        // A message that cannot go asks for a connection.
        match left.endpoint.inject(left.peer, TAG, &BYTES, SendOptions::new()) {
            Err(error) if error.is_would_block() => {}
            other => return Err(format!("a message before a connection: {other:?}").into()),
        }
        let (mut is_left_there, mut is_right_there) = (false, false);
        for _ in 0..TURNS_MAX {
            left.turn()?;
            right.turn()?;
            is_left_there |= left.has_connected();
            is_right_there |= right.has_connected();
            if is_left_there && is_right_there {
                for _ in 0..TURNS_TO_SETTLE {
                    left.turn()?;
                    right.turn()?;
                }
                return Ok((left, right));
            }
        }
        Err("the two engines do not connect".into())
    }

    /// Messages by turns; the last one goes to the left, which owes an acknowledgement then.
    fn warm_up(left: &mut Side, right: &mut Side, count: usize) -> Outcome<()> {
        for _ in 0..count {
            right.post()?;
            left.send()?;
            right.take_completion()?;
            left.post()?;
            right.send()?;
            left.take_completion()?;
        }
        Ok(())
    }

    impl Side {
        fn has_connected(&self) -> bool {
            std::iter::from_fn(|| self.endpoint.next_event())
                .any(|event| matches!(event, Event::Connected { .. }))
        }

        /// The arguments of a receive.
        fn receive(&self) -> (Selector, Buffer, ReceiveOptions) {
            let buffer = Buffer::from(vec![0; BYTES.len()]);
            (Selector::from_peer(self.peer, TAG), buffer, ReceiveOptions::new())
        }

        fn post(&self) -> Outcome<()> {
            let (selector, buffer, options) = self.receive();
            let _ = self.endpoint.post_receive(selector, buffer, options)?;
            Ok(())
        }

        fn send(&self) -> Outcome<()> {
            Ok(self.endpoint.inject(self.peer, TAG, &BYTES, SendOptions::new())?)
        }

        fn turn(&mut self) -> Outcome<()> {
            self.endpoint.completions(&mut self.done, 8)?;
            Ok(())
        }

        /// Takes the completion of one operation.
        fn take_completion(&mut self) -> Outcome<()> {
            for _ in 0..TURNS_MAX {
                self.turn()?;
                if let Some(completion) = self.done.pop() {
                    completion.result?;
                    return Ok(());
                }
            }
            Err("an operation does not complete".into())
        }
    }
}

/// Single steps of this thread.
#[cfg(target_arch = "x86_64")]
mod steps {
    use std::error::Error;
    use std::io;
    use std::ptr::null_mut;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use libc::{c_int, c_void, siginfo_t, ucontext_t};

    /// Instructions of one call, at the most.
    const STEPS_MAX: usize = 1 << 20;
    /// The processor's trap flag.
    const TRAP_FLAG: i64 = 1 << 8;

    /// Address of each instruction, and the stack pointer before it.
    static STEPS: [[AtomicUsize; 2]; STEPS_MAX] =
        [const { [const { AtomicUsize::new(0) }; 2] }; STEPS_MAX];
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    static IS_RECORDING: AtomicBool = AtomicBool::new(false);

    unsafe extern "C" {
        /// Where the linker has put the beginning of this program.
        safe static __ehdr_start: u8;
    }

    /// Installs the handler of the signal that single steps are.
    pub(super) fn install() -> io::Result<()> {
        // SAFETY: all zeros are a valid `sigaction`, without flags and with an empty mask.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = note as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        // SAFETY: the handler has the signature that SA_SIGINFO asks for, and uses only atomics
        // and the context that it gets.
        match unsafe { libc::sigaction(libc::SIGTRAP, &action, null_mut()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Notes the instruction to come, and asks for the next signal.
    extern "C" fn note(_: c_int, _: *mut siginfo_t, context: *mut c_void) {
        // SAFETY: with SA_SIGINFO the third argument is the context of the interrupted thread,
        // which the kernel restores when the handler returns.
        let context = unsafe { &mut *context.cast::<ucontext_t>() };
        let registers = &mut context.uc_mcontext.gregs;
        let at = COUNT.load(Ordering::Relaxed);
        if !IS_RECORDING.load(Ordering::Relaxed) || at == STEPS_MAX {
            registers[libc::REG_EFL as usize] &= !TRAP_FLAG;
            return;
        }
        let noted = [libc::REG_RIP, libc::REG_RSP].map(|register| registers[register as usize]);
        for (place, register) in STEPS[at].iter().zip(noted) {
            place.store(register as usize, Ordering::Relaxed);
        }
        COUNT.store(at + 1, Ordering::Relaxed);
        registers[libc::REG_EFL as usize] |= TRAP_FLAG;
    }

    /// Does `work`; address, counted from the beginning of this program, and stack pointer of each
    /// instruction that it executes.
    pub(super) fn of<T, E: Error + 'static>(
        work: impl FnOnce() -> Result<T, E>,
    ) -> Result<Vec<[usize; 2]>, Box<dyn Error>> {
        COUNT.store(0, Ordering::Relaxed);
        IS_RECORDING.store(true, Ordering::Relaxed);
        // SAFETY: a signal that this program handles, to this thread; its handler sets the flag.
        unsafe { libc::raise(libc::SIGTRAP) };
        let result = work();
        IS_RECORDING.store(false, Ordering::Relaxed);
        let _ = result?;
        let count = COUNT.load(Ordering::Relaxed);
        if count == STEPS_MAX {
            return Err(format!("a call of more than {STEPS_MAX} instructions").into());
        }
        let base = (&raw const __ehdr_start).addr();
        let step = |[instruction, stack]: &[AtomicUsize; 2]| {
            let instruction = instruction.load(Ordering::Relaxed).wrapping_sub(base);
            [instruction, stack.load(Ordering::Relaxed)]
        };
        Ok(STEPS[..count].iter().map(step).collect())
    }
}
