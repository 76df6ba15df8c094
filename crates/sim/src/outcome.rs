//! What a run measured.
//!
//! Counts and times are those of the measured span, after the warm-up. Every
//! figure also has a name ([`Outcome::measures`]) by which experiments find it.

use serde::Serialize;

use crate::trace::Trace;

/// Where a packet can be lost. Each packet is lost at most once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// The queue in front of a wire.
    Link,
    /// The adapter's receive ring: costs the host nothing.
    Interface,
    /// A channel, by the adapter's own processor: costs the host nothing.
    AdapterChannel,
    /// A channel, by the host's early demultiplexing.
    Channel,
    /// Shed by the guard before any other work.
    EarlyDiscard,
    /// The shared queue between device level and protocol level.
    IpQueue,
    /// A consumer's socket queue.
    SocketQueue,
    /// A listening socket's backlog.
    Backlog,
    /// The queue of the screening process.
    ScreeningQueue,
    /// The queue behind the packet filter.
    FilterQueue,
    /// The queue in front of an adapter's transmit ring.
    OutputQueue,
    /// Not a valid packet, or nobody's.
    Protocol,
}

impl Place {
    /// All places, from the wire inwards.
    pub const ALL: [Self; 12] = [
        Self::Link,
        Self::Interface,
        Self::AdapterChannel,
        Self::Channel,
        Self::EarlyDiscard,
        Self::IpQueue,
        Self::SocketQueue,
        Self::Backlog,
        Self::ScreeningQueue,
        Self::FilterQueue,
        Self::OutputQueue,
        Self::Protocol,
    ];

    /// A queue of the host's that was full: whoever finds that discards the packet.
    #[must_use]
    pub(crate) const fn is_full_queue(self) -> bool {
        matches!(
            self,
            Self::IpQueue
                | Self::SocketQueue
                | Self::ScreeningQueue
                | Self::FilterQueue
                | Self::OutputQueue
        )
    }

    /// As in measures and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Link => "link",
            Self::Interface => "interface",
            Self::AdapterChannel => "adapter-channel",
            Self::Channel => "channel",
            Self::EarlyDiscard => "early-discard",
            Self::IpQueue => "ip-queue",
            Self::SocketQueue => "socket-queue",
            Self::Backlog => "backlog",
            Self::ScreeningQueue => "screening-queue",
            Self::FilterQueue => "filter-queue",
            Self::OutputQueue => "output-queue",
            Self::Protocol => "protocol",
        }
    }
}

/// Packets lost at one place.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Loss {
    /// Where.
    pub place: Place,
    /// How many.
    pub packets: u64,
    /// CPU time of the host that had been spent on them, in ns.
    pub work_ns: u64,
}

/// Where the CPU time went, summed over all CPUs.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CpuTime {
    /// Handlers of device interrupts.
    pub interrupt_ns: u64,
    /// Software interrupts.
    pub soft_interrupt_ns: u64,
    /// Clock interrupts.
    pub clock_ns: u64,
    /// Handlers of timers for polling and transmission, soft or hard.
    pub timer_ns: u64,
    /// Changing from thread to thread.
    pub switch_ns: u64,
    /// Nothing to do.
    pub idle_ns: u64,
    /// Threads by name: consumers, and those of the receive path.
    pub threads: Vec<(String, u64)>,
    /// CPUs times measured span: the sum of all of the above.
    pub total_ns: u64,
}

/// A distribution of times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Latency {
    /// Values.
    pub count: u64,
    /// Their mean, in µs; 0 without values, as all below.
    pub mean_us: f64,
    /// Their standard deviation.
    pub stddev_us: f64,
    /// The smallest.
    pub min_us: f64,
    /// Half are not above this one, to three digits as all percentiles.
    pub p50_us: f64,
    /// 90 percent are not above this one.
    pub p90_us: f64,
    /// 99 percent are not above this one.
    pub p99_us: f64,
    /// The largest.
    pub max_us: f64,
}

/// What became of one consumer.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ConsumerOutcome {
    /// Its name.
    pub name: String,
    /// Packets or requests it completed.
    pub delivered: u64,
    /// Frames that were complete (media).
    pub frames: u64,
    /// From reaching the adapter to the end of the receive call.
    pub latency: Latency,
    /// Of forwarded packets: from reaching the adapter until a transmitter has them.
    pub handover: Latency,
    /// CPU time it used, in ns; 0 for those without a thread.
    pub cpu_ns: u64,
}

/// What became of one source.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SourceOutcome {
    /// Its name.
    pub name: String,
    /// Packets it sent.
    pub sent: u64,
    /// Packets of it that were lost in the network or the host, at any place.
    pub lost: u64,
    /// Exchanges it completed (closed loops).
    pub completed: u64,
    /// Exchanges it gave up, or packets it had to send again.
    pub timeouts: u64,
    /// From the first packet of an exchange to its last. Of an open loop: from a packet
    /// to its answer, without waiting for others on the way to the adapter.
    pub round_trip: Latency,
    /// Of the first packets of its bursts: from reaching the adapter to the
    /// consumer.
    pub first_latency: Latency,
    /// The same until a transmitter has them, of forwarded ones.
    pub first_handover: Latency,
}

/// What a run measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// The profile's name.
    pub profile: String,
    /// The receive path's name.
    pub path: String,
    /// The seed that repeats the run.
    pub seed: u64,
    /// The measured span, in ns of virtual time.
    pub measured_ns: u64,
    /// Packets that reached an adapter, or would have if its ring had room.
    pub offered: u64,
    /// Packets that did what they were sent for: goodput.
    pub delivered: u64,
    /// Packets the adapters transmitted.
    pub transmitted: u64,
    /// Packets lost, by place; places without loss are left out.
    pub losses: Vec<Loss>,
    /// Where the CPU time went.
    pub cpu: CpuTime,
    /// By consumer, in the scenario's order.
    pub consumers: Vec<ConsumerOutcome>,
    /// By source, in the scenario's order.
    pub sources: Vec<SourceOutcome>,
    /// Device interrupts taken.
    pub interrupts: u64,
    /// Software interrupts, or activations of a thread in their place.
    pub soft_interrupts: u64,
    /// Visits of a polling loop or handler to an adapter.
    pub polls: u64,
    /// Changes from thread to thread.
    pub switches: u64,
    /// Further figures of the receive path, by name with unit: `holdoff_mean_us`.
    pub extra: Vec<(String, f64)>,
    /// Packets over the whole run, warm-up included; for the engine's speed.
    pub simulated_packets: u64,
    /// What was recorded, if asked for.
    #[serde(skip)]
    pub trace: Option<Trace>,
}

impl Outcome {
    /// Per second of measured time.
    fn rate(&self, count: u64) -> f64 {
        count as f64 * 1e9 / self.measured_ns as f64
    }

    fn share(&self, ns: u64) -> f64 {
        if self.cpu.total_ns == 0 {
            return 0.0;
        }
        ns as f64 * 100.0 / self.cpu.total_ns as f64
    }

    /// Packets lost at `place`.
    #[must_use]
    pub fn lost_at(&self, place: Place) -> u64 {
        let found = self.losses.iter().find(|loss| loss.place == place);
        found.map_or(0, |loss| loss.packets)
    }

    /// Packets lost, at all places together.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.losses.iter().map(|loss| loss.packets).sum()
    }

    /// The figure called `name`, if this run has it.
    #[must_use]
    pub fn measure(&self, name: &str) -> Option<f64> {
        let found = self.measures().into_iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value)
    }

    /// Every figure by name. The last part of a name is its unit.
    ///
    /// - `offered_pps`, `delivered_pps`, `transmitted_pps`, `lost_pps`,
    ///   `loss.<place>_pps`, `loss.<place>_work_pct` (of the CPU);
    /// - `interrupts_hz`, `soft_interrupts_hz`, `polls_hz`, `switches_hz`;
    /// - `cpu.<account>_pct` with the accounts of [`CpuTime`], `cpu.busy_pct`,
    ///   `cpu.thread.<name>_pct`, `cpu.per_delivered_us`;
    /// - `consumer.<name>.delivered_pps`, `.cpu_pct`, `.frames_hz`,
    ///   `.latency_<mean|stddev|min|p50|p90|p99|max>_us`, `.missed_pct` and `.missed_per_delivered_us`
    ///   (CPU time in use that it did not get: what a process that loops finds used by others);
    /// - `source.<name>.sent_pps`, `.lost_pps`, `.completed_hz`, `.timeouts_hz`,
    ///   `.round_trip_<…>_us`, `.first_latency_<…>_us` (of bursts);
    /// - `path.taken_pps` and `path.ring_wait_mean_us` (from receive rings), and
    ///   those the path adds: `path.<name>`.
    #[must_use]
    pub fn measures(&self) -> Vec<(String, f64)> {
        let mut list = vec![
            ("offered_pps".to_owned(), self.rate(self.offered)),
            ("delivered_pps".into(), self.rate(self.delivered)),
            ("transmitted_pps".into(), self.rate(self.transmitted)),
            ("lost_pps".into(), self.rate(self.lost())),
            ("interrupts_hz".into(), self.rate(self.interrupts)),
            ("soft_interrupts_hz".into(), self.rate(self.soft_interrupts)),
            ("polls_hz".into(), self.rate(self.polls)),
            ("switches_hz".into(), self.rate(self.switches)),
        ];
        for place in Place::ALL {
            let found = self.losses.iter().find(|loss| loss.place == place);
            let (packets, work) = found.map_or((0, 0), |loss| (loss.packets, loss.work_ns));
            let name = place.name();
            list.push((format!("loss.{name}_pps"), self.rate(packets)));
            list.push((format!("loss.{name}_work_pct"), self.share(work)));
        }
        self.cpu_measures(&mut list);
        for consumer in &self.consumers {
            let name = format!("consumer.{}", consumer.name);
            let rate = self.rate(consumer.delivered);
            list.push((format!("{name}.delivered_pps"), rate));
            list.push((format!("{name}.frames_hz"), self.rate(consumer.frames)));
            list.push((format!("{name}.cpu_pct"), self.share(consumer.cpu_ns)));
            let missed = self.cpu.total_ns - self.cpu.idle_ns - consumer.cpu_ns;
            list.push((format!("{name}.missed_pct"), self.share(missed)));
            if self.delivered > 0 {
                let each = missed as f64 / 1e3 / self.delivered as f64;
                list.push((format!("{name}.missed_per_delivered_us"), each));
            }
            consumer
                .latency
                .measures(&format!("{name}.latency"), &mut list);
            let handover = &consumer.handover;
            handover.measures(&format!("{name}.handover"), &mut list);
        }
        for source in &self.sources {
            let name = format!("source.{}", source.name);
            list.push((format!("{name}.sent_pps"), self.rate(source.sent)));
            list.push((format!("{name}.lost_pps"), self.rate(source.lost)));
            list.push((format!("{name}.completed_hz"), self.rate(source.completed)));
            list.push((format!("{name}.timeouts_hz"), self.rate(source.timeouts)));
            let round_trip = &source.round_trip;
            round_trip.measures(&format!("{name}.round_trip"), &mut list);
            let first = &source.first_latency;
            first.measures(&format!("{name}.first_latency"), &mut list);
            let first = &source.first_handover;
            first.measures(&format!("{name}.first_handover"), &mut list);
        }
        let extra = self.extra.iter();
        list.extend(extra.map(|(name, value)| (format!("path.{name}"), *value)));
        list
    }

    fn cpu_measures(&self, list: &mut Vec<(String, f64)>) {
        let cpu = &self.cpu;
        let accounts = [
            ("interrupt", cpu.interrupt_ns),
            ("soft_interrupt", cpu.soft_interrupt_ns),
            ("clock", cpu.clock_ns),
            ("timer", cpu.timer_ns),
            ("switch", cpu.switch_ns),
            ("idle", cpu.idle_ns),
            ("busy", cpu.total_ns - cpu.idle_ns),
        ];
        for (name, ns) in accounts {
            list.push((format!("cpu.{name}_pct"), self.share(ns)));
        }
        for (name, ns) in &cpu.threads {
            list.push((format!("cpu.thread.{name}_pct"), self.share(*ns)));
        }
        if self.delivered > 0 {
            let busy_us = (cpu.total_ns - cpu.idle_ns) as f64 / 1e3;
            let each = busy_us / self.delivered as f64;
            list.push(("cpu.per_delivered_us".into(), each));
        }
    }
}

impl Latency {
    fn measures(&self, name: &str, list: &mut Vec<(String, f64)>) {
        let values = [
            ("mean", self.mean_us),
            ("stddev", self.stddev_us),
            ("min", self.min_us),
            ("p50", self.p50_us),
            ("p90", self.p90_us),
            ("p99", self.p99_us),
            ("max", self.max_us),
        ];
        if self.count > 0 {
            list.extend(values.map(|(part, value)| (format!("{name}_{part}_us"), value)));
        }
    }
}
