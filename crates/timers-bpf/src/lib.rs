//! Measures when a running Linux could fire soft timers: the trigger states of
//! each CPU, as Aron and Druschel did in sections 5.2 to 5.4 (figures 2 to 4,
//! tables IV and V).
//!
//! [`Recorder`] attaches BPF programs where a kernel with soft timers would look
//! for due events: at the ends of system calls, softirqs, interrupts and page
//! faults, at each packet's output, and at idle's entry and exit. They write one
//! word per state. [`Analysis`] makes the paper's figures of them.
//!
//! **Limits.** Only x86 shows the ends of timer interrupts; elsewhere this source is
//! missing. On a virtual machine an interval includes the time in which the
//! hypervisor ran somebody else. Probes cost time, at every state:
//! [`ProbeCost`] measures how much, and a rate of states is not what it would be
//! without them.

mod analysis;
mod faults;
mod recorder;
mod source;

pub use analysis::{Analysis, Contribution, Distribution, Intervals, State, Windows};
pub use recorder::{Error, ProbeCost, Reached, Record, Recorder};
pub use source::Source;
