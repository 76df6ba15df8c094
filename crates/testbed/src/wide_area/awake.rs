//! A CPU that never halts.
//!
//! An idle CPU halts, and waking it takes long, above all for a virtual machine: the timer's
//! interrupt then takes the way through the host. So the soft-timers paper lets the idle loop
//! go on checking (section 5.1). Here a thread does nothing on the CPU whenever nobody else
//! wants it (`SCHED_IDLE`). Every other thread comes before it at once.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use plimsoll_kernel::scheduling::{Class, Scheduling, set_class};

/// Its thread's name.
const NAME: &str = "wide-area-awake";

/// Keeps a CPU awake until it is dropped.
#[derive(Debug)]
pub(super) struct Awake {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Awake {
    /// Where the kernel refuses the idle class, nothing spins: wake-ups are then as they were.
    pub(super) fn keep(cpu: usize) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let spin = move || {
            if give_way(cpu).is_ok() {
                while !told.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            }
        };
        let thread = thread::Builder::new().name(NAME.to_owned()).spawn(spin)?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It runs nothing that panics.
            let _ = thread.join();
        }
    }
}

/// Binds the calling thread to a CPU, behind everybody else there.
fn give_way(cpu: usize) -> io::Result<()> {
    Scheduling::of(0)?.with_cpus(&[cpu]).give_to(0)?;
    set_class(0, Class::Idle)
}
