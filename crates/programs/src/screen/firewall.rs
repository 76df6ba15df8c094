//! The two threads of the firewall, and the queues between them.

mod receiving;
mod screening;

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use nix::unistd::gettid;
use plimsoll_core::channel::{ChannelConfig, channel};
use plimsoll_core::feedback::{Change, Feedback, FeedbackConfig, QueueId, Watermarks};
use plimsoll_core::poll::SourceSet;
use plimsoll_core::time::Instant;
use plimsoll_kernel::clock::monotonic_ns;
use plimsoll_kernel::error::bpf;
use plimsoll_kernel::knobs::Keeper;
use plimsoll_kernel::link;
use plimsoll_kernel::scheduling::Scheduling;
use plimsoll_stack::device::Frame;
use plimsoll_stack::device::packet::Instruction;

use super::counts::{Counters, add};
use super::inhibited::{Inhibited, source};
use super::memory::{Constants, Memory, Program, Remember};
use super::port::Port;
use super::unserved::Unserved;
use super::{Counts, Error, PortCounts, Screen, ScreenConfig, Side, Verdict};
use crate::filter::Filter;
use crate::polling::{Polling, Wanted};
use receiving::Receiving;
use screening::Screening;

/// Frames of one interface in a turn of the screening thread.
const QUOTA: usize = 32;
/// Longest wait: signals are noticed so soon.
const WAIT: Duration = Duration::from_millis(20);
/// As the kernel names the calling thread.
const THIS_THREAD: i32 = 0;

/// Puts another screen in the place of the one at work, between two frames.
#[derive(Clone, Debug, Default)]
pub struct Reload(Arc<Mutex<Option<BoxedScreen>>>);

struct BoxedScreen(Box<dyn Screen>);

impl std::fmt::Debug for BoxedScreen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BoxedScreen")
    }
}

impl Reload {
    /// The next frame is decided by `screen`. Frames that wait are not lost.
    pub fn put(&self, screen: Box<dyn Screen>) {
        *lock(&self.0) = Some(BoxedScreen(screen));
    }

    fn take(&self) -> Option<Box<dyn Screen>> {
        lock(&self.0).take().map(|boxed| boxed.0)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Both interfaces, opened: frames wait in the rings.
#[derive(Debug)]
pub struct Firewall {
    config: ScreenConfig,
    /// The filter of frames that need no decision.
    protected: Option<Vec<Instruction>>,
    memory: Option<Memory>,
    ports: [Port; 2],
    reload: Reload,
    unserved: Unserved,
    problem: Mutex<Option<String>>,
    screens: AtomicBool,
}

/// What both threads see.
struct Shared<'a> {
    config: &'a ScreenConfig,
    ports: &'a [Port; 2],
    protected: Option<&'a [Instruction]>,
    memory: Option<&'a Memory>,
    unserved: &'a Unserved,
    counters: [Counters; 2],
    feedback: Mutex<(Feedback, [QueueId; 2])>,
    inhibited: Inhibited,
    /// Frames that the screen has decided on.
    decided: AtomicU64,
    died: AtomicBool,
    reloads: AtomicU64,
    /// Why the screening thread could not send.
    failure: OnceLock<io::Error>,
    over: AtomicBool,
}

impl Firewall {
    /// Forks the keepers that put the interfaces' settings back if this process is killed, and
    /// keep the interfaces closed if it [fails closed](ScreenConfig::on_failure). To be called
    /// before all else, and dropped last.
    ///
    /// # Errors
    ///
    /// A setting, an interface, or this process has other threads already.
    pub fn keepers(config: &ScreenConfig) -> Result<Vec<Keeper>, Error> {
        config.validate()?;
        Ok(match config.on_failure {
            Verdict::Discard => Keeper::start_closing(&config.interfaces)?,
            Verdict::Accept => Keeper::start_all(&config.interfaces)?,
        })
    }

    /// Takes both interfaces from the kernel. If this process is killed from then on, nothing
    /// passes between them until the next firewall takes them, or
    /// [`knobs::restore`](plimsoll_kernel::knobs::restore) gives them back. An interface that
    /// a killed one left closed stays so in between, also if this fails. Without keepers, and
    /// for a screen that fails open, the kernel has the interfaces then.
    ///
    /// # Errors
    ///
    /// A setting, the filter of protected traffic, an interface, or a keeper that cannot hold
    /// its program.
    pub fn open(config: &ScreenConfig, keepers: &mut [Keeper]) -> Result<Self, Error> {
        config.validate()?;
        let protected = config.protected.as_deref().map(Filter::compile);
        let protected = protected.transpose()?;
        let protected = protected.map(|filter| filter.instructions().to_vec());
        let constants = Constants {
            flows: config.remember.map(|remember| remember.flows),
            protected: protected.as_deref(),
            fails_closed: config.on_failure == Verdict::Discard,
        };
        let keepers = match config.on_failure {
            Verdict::Discard => keepers,
            Verdict::Accept => &mut [],
        };
        let [inside, outside] = &config.interfaces;
        let mut each = keepers.iter_mut();
        let mut open = |name| Port::open(name, config.queue_frames, constants, each.next());
        let ports = [open(inside)?, open(outside)?];
        let memory = config.remember.map(|one| memory(config, one, &ports));
        let memory = memory.transpose()?;
        Keeper::keep_all_closed(keepers)?;
        Ok(Self {
            protected,
            memory,
            ports,
            config: config.clone(),
            reload: Reload::default(),
            unserved: Unserved::default(),
            problem: Mutex::default(),
            screens: AtomicBool::new(false),
        })
    }

    /// Whether frames are taken out of the rings by now. Setting up the threads may take a tenth
    /// of a second beside processes that compute; frames wait meanwhile, until a ring is full.
    pub fn is_screening(&self) -> bool {
        self.screens.load(Ordering::Relaxed)
    }

    /// What the running firewall does less well than asked for, and why: the kernel does not
    /// poll in threads, no meter corrects the CPU limit, or a receive queue has no socket. Told
    /// once.
    pub fn take_problem(&self) -> Option<String> {
        let problem = lock(&self.problem).take();
        problem.or_else(|| match self.is_screening() {
            true => self.unserved.look(&self.config, &self.ports),
            false => None,
        })
    }

    /// By which another screen takes over.
    #[must_use]
    pub fn reload(&self) -> Reload {
        self.reload.clone()
    }

    /// Screens until `stop` is set, in the network namespace where this was opened. This thread
    /// and the screen's are real-time ones meanwhile, up to the CPU limit, and the kernel polls
    /// in threads beneath them.
    ///
    /// # Errors
    ///
    /// An interface failed or was deleted: [`Error::Ended`], with the counts. A CPU limit that
    /// was asked for cannot be kept.
    pub fn run(&self, screen: Box<dyn Screen>, stop: &AtomicBool) -> Result<Counts, Error> {
        let mut shared = Shared::of(self)?;
        shared.forget()?;
        self.unserved.begin(&self.ports);
        let queue = || channel::<Frame>(&ChannelConfig::drop_tail(self.config.queue_frames));
        let refused = |_| Error::Config {
            field: "queue_frames",
            allowed: "from 4 to 65536",
        };
        let (inside_in, inside_out) = queue().map_err(refused)?;
        let (outside_in, outside_out) = queue().map_err(refused)?;
        let own = Scheduling::of(THIS_THREAD);
        let received = thread::scope(|scope| {
            let screening = Screening {
                shared: &shared,
                screen,
                reload: &self.reload,
            };
            let (began, beginning) = mpsc::channel();
            let thread = scope.spawn(move || {
                // Whoever started this waits for it.
                let _ = began.send(gettid().as_raw());
                screening.run([inside_out, outside_out]);
            });
            let queues = [inside_in, outside_in];
            let mut receiving = Receiving::new(&shared, queues, thread.thread());
            let screening: Vec<i32> = beginning.recv().into_iter().collect();
            let received = self.poll_in_threads(screening).map(|_polling| {
                self.screens.store(true, Ordering::Relaxed);
                receiving.run(stop)
            });
            self.screens.store(false, Ordering::Relaxed);
            shared.over.store(true, Ordering::Relaxed);
            thread.thread().unpark();
            received
        });
        // Polling limited this thread; it is its caller's again.
        let _ = own.and_then(|own| own.give_to(THIS_THREAD));
        let failure = received?.err().or_else(|| shared.failure.take());
        // From now on nobody decides anything.
        shared.forget()?;
        let counts = shared.counts()?;
        match failure {
            Some(source) => Err(Error::Ended {
                source,
                counts: Box::new(counts),
            }),
            None => Ok(counts),
        }
    }

    /// Has the kernel poll in threads beneath this one and the screening one, until it is
    /// dropped. Where there are protected frames it polls before the screen decides, or they
    /// would be lost in the adapter's ring while it does.
    fn poll_in_threads(&self, screening: Vec<i32>) -> Result<Polling, Error> {
        let mut takers = vec![gettid().as_raw()];
        let deciders = match self.protected {
            Some(_) => screening,
            None => {
                takers.extend(screening);
                Vec::new()
            }
        };
        let polling = Polling::start(&Wanted {
            interfaces: &self.config.interfaces,
            takers: &takers,
            deciders: &deciders,
            cpu_limit: self.config.cpu_limit,
            cpu: None,
            any_driver: self.config.any_driver,
        })?;
        *lock(&self.problem) = polling.problem().map(ToString::to_string);
        Ok(polling)
    }
}

fn memory(config: &ScreenConfig, remember: Remember, ports: &[Port; 2]) -> Result<Memory, Error> {
    let [inside, outside] = &config.interfaces;
    let indices = [link::index(inside)?, link::index(outside)?];
    Ok(Memory::new(remember.lifetime, indices, programs(ports))?)
}

fn programs(ports: &[Port; 2]) -> [&Program; 2] {
    ports.each_ref().map(|port| &port.program)
}

fn feedback(queue_frames: u32) -> Result<(Feedback, [QueueId; 2]), Error> {
    let refused = |_| Error::Config {
        field: "queue_frames",
        allowed: "from 4 to 65536",
    };
    let mut feedback = Feedback::new(FeedbackConfig::default(), 2).map_err(refused)?;
    let watermarks = Watermarks::of_queue(queue_frames);
    let mut register = |side: Side| {
        let source = SourceSet::EMPTY.with(source(side));
        let registered = feedback.register(watermarks, source);
        registered.map(|(queue, _)| queue).expect("room for two")
    };
    let queues = [register(Side::Inside), register(Side::Outside)];
    Ok((feedback, queues))
}

fn now() -> Instant {
    Instant::from_nanos(monotonic_ns())
}

impl<'a> Shared<'a> {
    fn of(firewall: &'a Firewall) -> Result<Self, Error> {
        let (feedback, queues) = feedback(firewall.config.queue_frames)?;
        Ok(Self {
            config: &firewall.config,
            ports: &firewall.ports,
            protected: firewall.protected.as_deref(),
            memory: firewall.memory.as_ref(),
            unserved: &firewall.unserved,
            counters: Default::default(),
            feedback: Mutex::new((feedback, queues)),
            inhibited: Inhibited::new().map_err(failed_to("make an event descriptor"))?,
            decided: AtomicU64::new(0),
            died: AtomicBool::new(false),
            reloads: AtomicU64::new(0),
            failure: OnceLock::new(),
            over: AtomicBool::new(false),
        })
    }

    fn counters(&self, side: Side) -> &Counters {
        &self.counters[side.index()]
    }

    /// Nothing that was decided so far is remembered.
    fn forget(&self) -> Result<(), Error> {
        let Some(memory) = self.memory else {
            return Ok(());
        };
        let forgotten = memory.forget(programs(self.ports));
        Ok(forgotten.map_err(bpf("have the XDP program forget verdicts"))?)
    }

    fn counts(&self) -> Result<Counts, Error> {
        Ok(Counts {
            inside: self.read(Side::Inside)?,
            outside: self.read(Side::Outside)?,
            reloads: self.reloads.load(Ordering::Relaxed),
            screen_died: self.died.load(Ordering::Relaxed),
        })
    }

    /// All that became of an interface's frames.
    fn read(&self, side: Side) -> Result<PortCounts, Error> {
        let port = &self.ports[side.index()];
        let mut counts = self.counters(side).read(port.dropped());
        if self.config.on_failure == Verdict::Discard {
            let unserved = self.unserved.frames(side, &port.program);
            counts.failed += unserved.map_err(bpf("read counters"))?;
        }
        if let Some(memory) = self.memory {
            counts.add(memory.enforced(side, &port.program)?);
        }
        Ok(counts)
    }

    /// Tells feedback what happened to a queue, and does what it says.
    fn tell(&self, event: impl FnOnce(&mut Feedback, &[QueueId; 2]) -> Change) {
        let mut feedback = lock(&self.feedback);
        let (feedback, queues) = &mut *feedback;
        let change = event(feedback, queues);
        for side in Side::ALL {
            let inhibits = change.inhibit.contains(source(side));
            add(&self.counters(side).inhibited, inhibits.into());
        }
        self.inhibited.apply(change);
    }

    fn is_inhibited(&self, side: Side) -> bool {
        self.inhibited.is(side)
    }

    /// Sends frames that came from `side`; returns how many left. An interface that fails has
    /// taken none.
    fn send(&self, side: Side, frames: &[&[u8]]) -> io::Result<usize> {
        let sent = self.ports[side.other().index()].transmit(frames);
        let left = *sent.as_ref().unwrap_or(&0);
        let counters = self.counters(side);
        add(&counters.accepted, left);
        add(&counters.output, frames.len() - left);
        sent
    }

    /// Does with undecided frames as the operator wants it when there is no screen.
    fn without_screen(&self, side: Side, frames: &[&[u8]]) -> io::Result<()> {
        let counters = self.counters(side);
        match self.config.on_failure {
            Verdict::Accept => add(&counters.passed, self.send(side, frames)?),
            Verdict::Discard => add(&counters.failed, frames.len()),
        }
        Ok(())
    }
}

fn failed_to(action: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Io { action, source }
}

fn bytes(frames: &[Frame]) -> Vec<&[u8]> {
    frames.iter().map(|frame| &frame[..]).collect()
}
