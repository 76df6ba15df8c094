//! Verdicts that are remembered, and enforced in the driver.
//!
//! A verdict is remembered for a flow ([`super::flow`]) if it follows from what is the
//! same in all packets of the flow, and if the same is true of their not being protected.
//! Then the driver's program does what the screen would do, for a while.
//!
//! **What bounds it.** So many flows for each interface; of more, those are forgotten that
//! were not seen for longest. Each verdict ends after a time, however often it is used, so
//! the screen sees every flow again. All end at once when the screen is replaced, dies or
//! hangs: each carries the number of its generation, and only the newest counts. The
//! number is read before the screen decides, so that what an older one decided late is
//! never valid.
//!
//! **Accepted frames** are sent on by a redirect, which not every driver takes. The kernel
//! tells which do since Linux 6.3; for others only refusals are remembered.

use std::mem::{MaybeUninit, offset_of};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, MapHandle, OpenObject};
use parking_lot::Mutex;
use plimsoll_core::time::Instant;
use plimsoll_kernel::error::{self, CallError};
use plimsoll_kernel::knobs::Netdev;
use plimsoll_stack::device::packet::Instruction;
use plimsoll_stack::device::xdp::UnservedFrames;

use super::flow::{Flow, KEY_BYTES};
use super::{Side, Verdict};
use crate::filter::{in_driver, trace};
use crate::sent::Sent;

include!(concat!(env!("OUT_DIR"), "/screen.rs")); // mod skeleton
pub(super) use skeleton::types;

const ONLY: [u8; 4] = 0u32.to_ne_bytes();
/// The kernel is asked so often whether an interface takes redirected frames.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// What is wrong if a map of the program cannot be used.
const USE_MAP: &str = "remember a verdict in the XDP program";

/// How much is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remember {
    /// Flows of each interface; from 1 to 1,048,576.
    pub flows: u32,
    /// How long a verdict counts; above zero. Default 10 s.
    pub lifetime: Duration,
}

impl Remember {
    /// The largest number of flows: some 100 MB.
    pub const FLOWS_MAX: u32 = 1 << 20;
    /// Default of [`Remember::lifetime`].
    pub const LIFETIME: Duration = Duration::from_secs(10);

    pub(super) fn is_valid(&self) -> bool {
        (1..=Self::FLOWS_MAX).contains(&self.flows) && !self.lifetime.is_zero()
    }
}

/// The program of one interface, before it is attached, and its maps.
#[derive(Debug)]
pub(super) struct Program {
    program: OwnedFd,
    pub(super) sockets: MapHandle,
    /// Of protected frames.
    pub(super) chosen_sockets: MapHandle,
    generation: MapHandle,
    other: MapHandle,
    verdicts: MapHandle,
    counters: MapHandle,
}

/// What a program is told before it is loaded.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Constants<'a> {
    /// Flows that it remembers; `None`: it remembers nothing.
    pub(super) flows: Option<u32>,
    /// Which frames go to sockets of their own: those that this accepts.
    pub(super) protected: Option<&'a [Instruction]>,
    /// Without a socket frames are discarded.
    pub(super) fails_closed: bool,
}

impl Program {
    pub(super) fn load(constants: Constants<'_>) -> Result<Self, CallError> {
        let mut place = MaybeUninit::uninit();
        let loaded = load(&mut place, constants).map_err(error::bpf("load the XDP program"))?;
        Self::of(&loaded)
    }

    fn of(loaded: &skeleton::ScreenSkel<'_>) -> Result<Self, CallError> {
        let bpf = error::bpf("keep a map of the XDP program");
        let maps = &loaded.maps;
        let program = loaded.progs.screen.as_fd().try_clone_to_owned();
        Ok(Self {
            program: program.map_err(error::os("keep the XDP program"))?,
            sockets: MapHandle::try_from(&maps.sockets).map_err(&bpf)?,
            chosen_sockets: MapHandle::try_from(&maps.chosen_sockets).map_err(&bpf)?,
            generation: MapHandle::try_from(&maps.bss).map_err(&bpf)?,
            other: MapHandle::try_from(&maps.other).map_err(&bpf)?,
            verdicts: MapHandle::try_from(&maps.verdicts).map_err(&bpf)?,
            counters: MapHandle::try_from(&maps.counters).map_err(&bpf)?,
        })
    }

    /// Accepted frames are sent on by this interface.
    fn set_other(&self, index: u32) -> libbpf_rs::Result<()> {
        self.other
            .update(&ONLY, &index.to_ne_bytes(), MapFlags::ANY)
    }

    /// Verdicts of this generation count from now on.
    fn set_generation(&self, generation: u32) -> libbpf_rs::Result<()> {
        self.generation
            .update(&ONLY, &generation.to_ne_bytes(), MapFlags::ANY)
    }

    fn put(&self, key: &[u8; KEY_BYTES], until: Instant, generation: u32, verdict: Verdict) {
        let verdict = match verdict {
            Verdict::Accept => types::remembered::REMEMBERED_ACCEPT,
            Verdict::Discard => types::remembered::REMEMBERED_DISCARD,
        };
        let mut value = [0; size_of::<types::verdict>()];
        value[..8].copy_from_slice(&until.as_nanos().to_ne_bytes());
        value[8..12].copy_from_slice(&generation.to_ne_bytes());
        value[12..].copy_from_slice(&verdict.0.to_ne_bytes());
        // One that finds no place is decided on again.
        let _ = self.verdicts.update(key, &value, MapFlags::ANY);
    }

    /// Frames that were discarded here.
    fn discarded(&self) -> libbpf_rs::Result<u64> {
        self.counted(offset_of!(types::counters, discarded))
    }

    /// Frames of receive queues without a socket, by CPU.
    pub(super) fn unserved(&self) -> libbpf_rs::Result<Vec<UnservedFrames>> {
        let of_cpu = |cpu: &Vec<u8>| UnservedFrames {
            frames: number(cpu, offset_of!(types::counters, unserved)),
            queue: number(cpu, offset_of!(types::counters, unserved_queue)),
        };
        Ok(self.by_cpu()?.iter().map(of_cpu).collect())
    }

    /// Sum over all CPUs.
    fn counted(&self, offset: usize) -> libbpf_rs::Result<u64> {
        Ok(self.by_cpu()?.iter().map(|cpu| number(cpu, offset)).sum())
    }

    /// The counters of each CPU.
    fn by_cpu(&self) -> libbpf_rs::Result<Vec<Vec<u8>>> {
        let cpus = self.counters.lookup_percpu(&ONLY, MapFlags::ANY)?;
        Ok(cpus.unwrap_or_default())
    }
}

fn number(counters: &[u8], offset: usize) -> u64 {
    let bytes = counters.get(offset..).and_then(<[u8]>::first_chunk);
    bytes.map_or(0, |bytes| u64::from_ne_bytes(*bytes))
}

fn load<'a>(
    place: &'a mut MaybeUninit<OpenObject>,
    constants: Constants<'_>,
) -> libbpf_rs::Result<skeleton::ScreenSkel<'a>> {
    let mut open = skeleton::ScreenSkelBuilder::default().open(place)?;
    let filter = constants.protected.unwrap_or_default();
    if let Some(told) = open.maps.rodata_data.as_deref_mut() {
        told.remembers = constants.flows.is_some().into();
        told.fails_closed = constants.fails_closed.into();
        told.filter_length = filter.len() as u32;
    }
    if let Some(flows) = constants.flows {
        open.maps.verdicts.set_max_entries(flows)?;
    }
    if !filter.is_empty() {
        open.maps.filter.set_max_entries(filter.len() as u32)?;
    }
    let loaded = open.load()?;
    in_driver::put(&loaded.maps.filter, filter)?;
    Ok(loaded)
}

impl AsFd for Program {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }
}

/// What became of frames of an interface by remembered verdicts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Enforced {
    pub(super) discarded: u64,
    pub(super) accepted: u64,
    /// Accepted, but the other interface could not take them.
    pub(super) output: u64,
}

/// What both interfaces' programs remember.
#[derive(Debug)]
pub(super) struct Memory {
    lifetime: Duration,
    generation: AtomicU32,
    /// Held while programs are told another generation, so that none goes back.
    telling: Mutex<()>,
    /// Those of [`super::ScreenConfig::interfaces`].
    indices: [u32; 2],
    targets: Mutex<Targets>,
    sent: Sent,
}

/// Whether interfaces take redirected frames, as the kernel last said.
#[derive(Debug)]
struct Targets {
    netdev: Netdev,
    asked_at: Option<Instant>,
    take: [bool; 2],
}

impl Memory {
    /// For interfaces of the current network namespace, whose programs these are.
    pub(super) fn new(
        lifetime: Duration,
        indices: [u32; 2],
        programs: [&Program; 2],
    ) -> Result<Self, CallError> {
        let sent = Sent::watch(&indices)?;
        for side in Side::ALL {
            let other = indices[side.other().index()];
            let set = programs[side.index()].set_other(other);
            set.map_err(error::bpf(USE_MAP))?;
        }
        let mut targets = Targets {
            netdev: Netdev::new(),
            asked_at: None,
            take: [false; 2],
        };
        // Its socket belongs to the namespace of the first question.
        targets.ask(&indices);
        Ok(Self {
            lifetime,
            generation: AtomicU32::new(0),
            telling: Mutex::new(()),
            indices,
            targets: Mutex::new(targets),
            sent,
        })
    }

    /// To be read before the screen decides.
    pub(super) fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }

    /// Nothing that was decided so far counts any more.
    pub(super) fn forget(&self, programs: [&Program; 2]) -> libbpf_rs::Result<()> {
        let _telling = self.telling.lock();
        // Never 0, by which a new program knows that nothing is remembered.
        let next = self.generation().checked_add(1).unwrap_or(1);
        self.generation.store(next, Ordering::Release);
        let mut told = programs.iter().map(|program| program.set_generation(next));
        told.try_for_each(std::convert::identity)
    }

    /// Remembers the verdict on a frame from `side`, which holds for its flow as far as
    /// the screen is concerned.
    pub(super) fn learn(
        &self,
        program: &Program,
        protected: Option<&[Instruction]>,
        decided: &Decided<'_>,
        now: Instant,
    ) {
        let Some(flow) = Flow::of(decided.frame) else {
            return;
        };
        let is_flows = |filter: &[Instruction]| holds(filter, decided.frame, &flow).is_some();
        if !protected.is_none_or(is_flows) {
            return;
        }
        let target = decided.from.other().index();
        if decided.verdict == Verdict::Accept && !self.takes_redirected(target, now) {
            return;
        }
        let until = now + self.lifetime;
        program.put(&flow.key, until, decided.generation, decided.verdict);
    }

    fn takes_redirected(&self, target: usize, now: Instant) -> bool {
        let mut targets = self.targets.lock();
        let is_old = |at: Instant| now.saturating_since(at) >= ASK_AGAIN;
        if targets.asked_at.is_none_or(is_old) {
            targets.asked_at = Some(now);
            targets.ask(&self.indices);
        }
        targets.take[target]
    }

    pub(super) fn enforced(&self, side: Side, program: &Program) -> Result<Enforced, CallError> {
        let (own, other) = (side.index(), side.other().index());
        let sent = self.sent.of(self.indices[other])?;
        let failed = self.sent.of(self.indices[own])?.failed;
        Ok(Enforced {
            discarded: program.discarded().map_err(error::bpf("read counters"))?,
            accepted: sent.sent,
            output: sent.dropped + failed,
        })
    }
}

impl Targets {
    fn ask(&mut self, indices: &[u32; 2]) {
        for (index, takes) in indices.iter().zip(&mut self.take) {
            let answer = self.netdev.takes_redirected(*index);
            *takes = matches!(answer, Ok(Some(true)));
        }
    }
}

/// A frame that the screen decided on.
pub(super) struct Decided<'a> {
    pub(super) frame: &'a [u8],
    pub(super) from: Side,
    pub(super) verdict: Verdict,
    /// [`Memory::generation`] before.
    pub(super) generation: u32,
}

/// What a filter says of all packets of the flow, if that can be known from this one.
pub(super) fn holds(filter: &[Instruction], frame: &[u8], flow: &Flow) -> Option<bool> {
    trace::answer(filter, frame, &|read| flow.has(&read))
}

#[cfg(test)]
mod tests;
