//! Adaptive holdoff with control of the receive buffers (BL-11), Macpherson &
//! Heiser.
//!
//! **Rules.** After each run of the handler the holdoff is set so that the
//! handler takes its share of the CPU, and the number of buffers the device has
//! follows the packets that the kernel drops. Buffers go back to the device only
//! when the handler returns, so it never handles more packets than the device had
//! buffers. [`LoadTarget`], [`BufferCredit`] and [`BufferLedger`] of the core
//! decide.
//!
//! **Where excess is dropped.** On the device, at no cost to the host.

use std::time::Duration;

use plimsoll_core::config::Fraction;
use plimsoll_core::holdoff::{
    BufferCredit, BufferLedger, CreditConfig, HoldoffConfig, HoldoffRange, LoadTarget, Turn,
    TurnDrops,
};

use super::holdoff::Holdoffs;
use super::stages::{Behind, ReceiveHandler};
use super::{Parts, Path};
use crate::Error;
use crate::host::{Cx, Host, LineKind, Step};
use crate::outcome::Place;
use crate::scenario::AdaptiveHoldoffConfig;

/// The paper's constant for what its handler's own time samples miss: the way into the handler and
/// back (MH-11).
const UNMEASURED: Duration = Duration::from_micros(12);

/// One receive queue's control.
#[derive(Debug)]
struct Control {
    adapter: usize,
    queue: usize,
    load: LoadTarget,
    credit: BufferCredit,
    ledger: BufferLedger,
    /// When the driver's part of the handler was entered.
    entered: Option<u64>,
    /// When an earlier interrupt of it was over.
    dropped: u64,
    taken: u64,
    idle: u64,
    /// For the mean.
    holdoffs: (u64, u64),
    credits: u64,
}

/// The path. Its timers are numbered by receive queue.
#[derive(Debug)]
pub(super) struct AdaptiveHoldoff {
    config: AdaptiveHoldoffConfig,
    handler: ReceiveHandler,
    behind: Behind,
    holdoffs: Holdoffs,
    controls: Vec<Control>,
}

impl AdaptiveHoldoff {
    pub(super) fn new(parts: &Parts<'_>, config: AdaptiveHoldoffConfig) -> Result<Self, Error> {
        let made = Self {
            config,
            handler: ReceiveHandler::new(parts.costs),
            behind: Behind::new(parts.costs).shared(),
            holdoffs: Holdoffs::default(),
            controls: Vec::new(),
        };
        // Settings are refused here, not when the machine starts.
        made.control(0, 0, 64)?;
        Ok(made)
    }

    fn control(&self, adapter: usize, queue: usize, ring: u32) -> Result<Control, Error> {
        let AdaptiveHoldoffConfig {
            load_pct,
            backoff,
            granularity_us,
            tolerated_loss_pct,
            ..
        } = self.config;
        let part = |pct: f64| Fraction::from_ppm((pct * 1e4) as u32);
        let step = Duration::from_nanos((granularity_us * 1e3) as u64);
        let steps = (1_000.0 / granularity_us).max(1.0) as u32;
        let holdoff = HoldoffConfig {
            load: part(load_pct),
            overhead: UNMEASURED,
            range: HoldoffRange {
                min: Duration::ZERO,
                // Useful up to 1000 us (MH-27).
                max: step * steps,
                step,
            },
        };
        let credit = CreditConfig {
            min: 4.min(ring),
            max: ring,
            backoff,
            tolerated_loss: part(tolerated_loss_pct),
            ..CreditConfig::default()
        };
        let mut ledger = BufferLedger::new(ring);
        let _ = ledger.end_turn(ring);
        Ok(Control {
            adapter,
            queue,
            load: LoadTarget::new(&holdoff).map_err(Error::core("the adaptive holdoff"))?,
            credit: BufferCredit::new(&credit).map_err(Error::core("the buffer credit"))?,
            ledger,
            entered: None,
            dropped: 0,
            taken: 0,
            idle: 0,
            holdoffs: (0, 0),
            credits: 0,
        })
    }

    fn hold_off(&self, host: &mut Host, adapter: usize, queue: usize) {
        let index = self.holdoffs.index(adapter, queue);
        let holdoff = self.controls[index].load.holdoff();
        self.holdoffs.begin(host, index, holdoff.as_nanos() as u64);
    }

    /// The driver's part of the handler is about to return.
    fn end_turn(&mut self, host: &mut Host, index: usize) {
        let control = &mut self.controls[index];
        let Some(entered) = control.entered.take() else {
            return;
        };
        let turn = Turn {
            entered: plimsoll_core::time::Instant::from_nanos(entered),
            returned: host.instant(),
        };
        let holdoff = control.load.on_turn(turn);
        control.holdoffs.0 += holdoff.as_nanos() as u64;
        control.holdoffs.1 += 1;
        let counts = &host.ledger.counts;
        let dropped =
            counts.lost[Place::IpQueue as usize] + counts.lost[Place::SocketQueue as usize];
        let idle: u64 = host.cpus.iter().map(|cpu| cpu.accounts.idle).sum();
        let drops = TurnDrops {
            packets: counts.taken - control.taken,
            dropped: dropped - control.dropped,
            cpu_was_idle: self.config.idle_excuses && idle > control.idle,
        };
        control.taken = counts.taken;
        control.dropped = dropped;
        control.idle = idle;
        let credit = control.credit.on_turn(drops);
        control.credits += u64::from(credit);
        let _ = control.ledger.end_turn(credit);
        let ring = &mut host.adapters[control.adapter].rings[control.queue];
        // What the device holds: filled buffers and empty ones.
        ring.lent = 0;
        ring.packets.set_limit(control.ledger.at_device() as usize);
    }
}

impl Path for AdaptiveHoldoff {
    fn start(&mut self, host: &mut Host) {
        self.handler.start(host);
        self.behind.start(host);
        self.holdoffs = Holdoffs::new(host);
        for &(adapter, queue) in self.holdoffs.queues() {
            let ring = host.adapters[adapter].rings[queue].packets.limit() as u32;
            let control = self.control(adapter, queue, ring);
            self.controls
                .push(control.expect("the settings were accepted for another ring"));
        }
    }

    fn on_arrival(&mut self, host: &mut Host, adapter: usize, queue: usize) {
        self.hold_off(host, adapter, queue);
    }

    fn on_timer(&mut self, host: &mut Host, timer: usize) {
        self.holdoffs.expire(host, timer);
    }

    fn on_transmitted(&mut self, host: &mut Host, adapter: usize) {
        self.hold_off(host, adapter, 0);
    }

    fn line(&mut self, host: &mut Host, cx: Cx, kind: LineKind) -> Step {
        let LineKind::Receive { adapter, queue } = kind else {
            return self.behind.line(host, cx, kind);
        };
        let index = self.holdoffs.index(adapter, queue);
        let control = &mut self.controls[index];
        let was_in_driver = self.handler.is_in_driver(cx.line);
        if was_in_driver {
            control.entered.get_or_insert(host.now);
        }
        let early = self.config.free_early;
        let ledger = &mut control.ledger;
        let at = (adapter, queue);
        let step = self.handler.step_queueing(host, cx, at, u32::MAX, |host| {
            if !early {
                // One buffer less for the device, until the handler returns.
                let had_one = ledger.take();
                debug_assert!(had_one, "the ring holds no more than the device was given");
                host.adapters[adapter].rings[queue].lent += 1;
            }
        });
        if was_in_driver && !self.handler.is_in_driver(cx.line) {
            self.end_turn(host, index);
        }
        if step == Step::Done {
            host.adapters[adapter].rings[queue].enabled = true;
            self.hold_off(host, adapter, queue);
        }
        step
    }

    fn on_measure(&mut self, _host: &Host) {
        for control in &mut self.controls {
            control.holdoffs = (0, 0);
            control.credits = 0;
        }
    }

    fn figures(&self, _host: &Host, list: &mut Vec<(String, f64)>) {
        let turns: u64 = self.controls.iter().map(|control| control.holdoffs.1).sum();
        let sum: u64 = self.controls.iter().map(|control| control.holdoffs.0).sum();
        let credits: u64 = self.controls.iter().map(|control| control.credits).sum();
        if turns > 0 {
            list.push(("holdoff_mean_us".into(), sum as f64 / turns as f64 / 1e3));
            list.push(("credit_mean_packets".into(), credits as f64 / turns as f64));
        }
    }
}
