//! HIP, hybrid interrupt-polling (BL-18): interrupts while packets are few,
//! polling at an interval that follows the packets' when they are many.
//!
//! **Rules.** The rate is that of the packets received. Above the threshold
//! interrupts are switched off and the adapters are polled once per packet
//! interarrival time, but not more often than the minimal interval allows; below
//! it interrupts come back.
//!
//! **Where excess is dropped.** The polling rate rises to its limit, and what is
//! taken is then dropped on the kernel's queues, as with interrupts. Few receive
//! buffers bound what one poll can bring (MH-30).

use super::poll_visit::PollVisit;
use super::stages::{Behind, ReceiveHandler};
use super::{Parts, Path};
use crate::Error;
use crate::host::{Cx, Host, LineKind, Step};
use crate::scenario::HipConfig;
use crate::source::nanos;

/// The rate is measured over windows of this length.
const WINDOW_NS: u64 = 2_000_000;

/// The path. Its timers are numbered by CPU.
#[derive(Debug)]
pub(super) struct Hip {
    threshold_pps: f64,
    interval_min: u64,
    poll_pass: u64,
    buffers: Option<u32>,
    handler: ReceiveHandler,
    behind: Behind,
    /// By CPU.
    cpus: Vec<PerCpu>,
}

#[derive(Clone, Debug, Default)]
struct PerCpu {
    visit: PollVisit,
    polling: bool,
    /// Packets received in the current window, which began then.
    packets: u32,
    window: u64,
    /// Of the last complete window.
    rate_pps: f64,
}

impl Hip {
    pub(super) fn new(parts: &Parts<'_>, config: &HipConfig) -> Result<Self, Error> {
        Ok(Self {
            threshold_pps: config.threshold_pps,
            interval_min: nanos(config.interval_min_us),
            poll_pass: parts.cost("poll_pass")?,
            buffers: config.buffers,
            handler: ReceiveHandler::new(parts.costs),
            behind: Behind::new(parts.costs),
            cpus: Vec::new(),
        })
    }

    /// Counts what was received, and changes between the two modes.
    fn received(&mut self, host: &mut Host, cpu: usize, packets: u32) {
        let per = &mut self.cpus[cpu];
        per.packets += packets;
        let elapsed = host.now - per.window;
        if elapsed >= WINDOW_NS {
            per.rate_pps = f64::from(per.packets) * 1e9 / elapsed as f64;
            per.packets = 0;
            per.window = host.now;
        }
        let polls = per.rate_pps > self.threshold_pps;
        if polls && !per.polling {
            per.polling = true;
            self.set_interrupts(host, cpu, false);
            let interval = self.interval(cpu);
            host.set_path_timer(cpu, host.now + interval);
        } else if !polls && per.polling {
            per.polling = false;
            self.set_interrupts(host, cpu, true);
        }
    }

    fn interval(&self, cpu: usize) -> u64 {
        let gap = 1e9 / self.cpus[cpu].rate_pps.max(1.0);
        (gap as u64).max(self.interval_min)
    }

    fn set_interrupts(&self, host: &mut Host, cpu: usize, on: bool) {
        for adapter in 0..host.adapters.len() {
            for queue in 0..host.adapters[adapter].rings.len() {
                if host.adapters[adapter].rings[queue].cpu != cpu {
                    continue;
                }
                host.adapters[adapter].rings[queue].enabled = false;
                if on {
                    host.enable_receive(adapter, queue);
                }
            }
        }
    }
}

impl Path for Hip {
    fn start(&mut self, host: &mut Host) {
        self.handler.start(host);
        self.behind.start(host);
        self.cpus = vec![PerCpu::default(); host.cpus.len()];
        if let Some(buffers) = self.buffers {
            for ring in host
                .adapters
                .iter_mut()
                .flat_map(|device| &mut device.rings)
            {
                ring.packets.set_limit(buffers as usize);
            }
        }
    }

    fn on_timer(&mut self, host: &mut Host, timer: usize) {
        host.raise(host.cpus[timer].timer);
    }

    fn line(&mut self, host: &mut Host, cx: Cx, kind: LineKind) -> Step {
        let costs = self.behind.costs;
        match kind {
            LineKind::Timer => {
                let per = &mut self.cpus[cx.cpu];
                let step = per.visit.step(host, cx, &costs, u32::MAX, self.poll_pass);
                if step == Step::Done {
                    let found = per.visit.found;
                    self.received(host, cx.cpu, found);
                    if self.cpus[cx.cpu].polling {
                        let interval = self.interval(cx.cpu);
                        host.set_path_timer(cx.cpu, host.now + interval);
                    }
                }
                step
            }
            LineKind::Receive { adapter, queue } => {
                let before = host.ledger.counts.taken;
                let at = (adapter, queue);
                let step = self.handler.step_queueing(host, cx, at, u32::MAX, |_| ());
                let taken = (host.ledger.counts.taken - before) as u32;
                self.received(host, cx.cpu, taken);
                if step == Step::Done && !self.cpus[cx.cpu].polling {
                    host.enable_receive(adapter, queue);
                }
                step
            }
            kind => self.behind.line(host, cx, kind),
        }
    }
}
