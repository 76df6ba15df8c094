//! The decisions of Plimsoll, each written once for whoever has to make it: the
//! guard, the user-space stack and the programs on it, soft timers, and the simulated
//! host, which makes nearly all. Ids such as `MR-20` are mechanisms of the papers
//! (`docs/mechanisms.md`).
//!
//! | module | decides | used by |
//! | --- | --- | --- |
//! | [`aggregation`] | when to poll next, so that a poll finds a wanted number of packets | sim, stack |
//! | [`answering`] | whether cookies are answered from the driver or by the stack | guard, stack |
//! | [`channel`] | which packets a queue between demultiplexing and consumer takes | programs, sim, stack, testbed (its size) |
//! | [`charge`] | whom work is charged to; what is shed ([`charge::shedding`]) | guard, sim |
//! | [`cpu_limit`] | when packets have used their part of a period | kernel (its polling limit), programs (its default), sim, stack |
//! | [`demux`] | which channel a packet belongs to | guard (kinds only), programs (its key), sim, stack |
//! | [`driver`] | what a driver believes of its adapter | sim, stack (its rings) |
//! | [`fairness`] | which sources' packets an overloaded channel takes | guard, sim |
//! | [`feedback`] | when a full queue stops its input | guard (watermarks only), programs, sim, stack |
//! | [`fidelity`] | how much a monitor keeps of each packet while its disk cannot follow | programs |
//! | [`governor`] | when the host leaves its own interrupt settings; where the kernel polls for a program | guard, sim, stack (the latter) |
//! | [`holdoff`] | how long an interrupt is held off | sim, stack (its credit), and the governor |
//! | [`pacing`] | when the next packet may leave | sim, stack, testbed, timers |
//! | [`poll`] | which source is served next | programs, sim, stack |
//! | [`quota`] | how many packets a turn may take | sim |
//! | [`soft_timer`] | which soft events fire at a trigger state | sim, timers |
//! | [`standby`] | when a program that waits is attached, and when detached again | guard |
//!
//! The guard's BPF program makes the decisions of `demux` and `fairness` in C, by the same
//! numbers: its build takes them from here. Both judge the same packets in a test. Of `charge`
//! only [`charge::contention`] and [`charge::shedding`] are used outside of tests.
//!
//! Every module is a pure state machine: it is constructed from a documented
//! config that validates itself, fed with events and the time, mostly by `on_*`,
//! and asked with `poll_*` or a plain getter. Nothing here reads a
//! clock, does I/O, draws random numbers, or allocates after construction.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod aggregation;
pub mod answering;
pub mod channel;
pub mod charge;
pub mod config;
pub mod cpu_limit;
pub mod demux;
pub mod driver;
pub mod fairness;
pub mod feedback;
pub mod fidelity;
pub mod governor;
pub mod holdoff;
pub mod pacing;
pub mod poll;
pub mod quota;
pub mod soft_timer;
pub mod standby;
mod sync;
pub mod time;
