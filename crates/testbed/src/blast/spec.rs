//! What a blast sends, when, and for how long; with every limit in one place.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::departures::Departures;
use super::frame;
use super::sources::Sources;
use crate::Error;
use crate::error::check;

/// The highest rate that can be asked for, in packets per second: one every
/// 50 ns. (One core reaches about 6 million; see [`Schedule::Unlimited`].)
pub const RATE_MAX_PPS: u64 = 20_000_000;
/// The longest blast.
pub const TIME_MAX: Duration = Duration::from_secs(600);
/// The most frames of one blast: what one core sends in [`TIME_MAX`].
pub const FRAMES_MAX: u64 = 4_000_000_000;
/// The largest batch of the kernel's test-run facility.
pub const BATCH_MAX_RUNS: u32 = 256;
/// The largest burst, whether scheduled or when catching up.
pub const BURST_MAX_FRAMES: u32 = 65_536;
/// The longest frame: Ethernet's, without the frame check sequence.
pub const FRAME_MAX_BYTES: usize = 1514;

/// What [`super::Blast::load`] is told.
#[derive(Clone, Debug)]
pub struct Spec {
    /// The interface to send on, in the calling thread's network namespace.
    pub interface: String,
    /// Send although no testbed made the interface. Default false.
    ///
    /// This is the only way to reach a real network; set it only where a
    /// person has named both interface and destination.
    pub foreign_interface: bool,
    /// The Ethernet address that frames are sent to.
    pub destination_mac: [u8; 6],
    /// Addresses, ports and protocol.
    pub flow: Flow,
    /// Frames of three lengths ([`super::IMIX_BYTES`]) in turns, cut from those of the flow:
    /// these must be UDP and as long as they may be ([`super::imix_payload`]). Default false.
    pub imix: bool,
    /// When frames depart.
    pub schedule: Schedule,
    /// The times of [`Schedule::Recorded`], set by [`Spec::depart_at`].
    departures: Option<Departures>,
    /// When the blast ends.
    pub bound: Bound,
    /// What is done about departures missed while the thread was not running.
    pub catch_up: CatchUp,
    /// Seed of all randomness: the same seed sends the same frames in the same
    /// order, whatever the schedule. Default 1.
    pub seed: u64,
    /// The CPU to run on. Default: where the caller is allowed to.
    pub cpu: Option<usize>,
    /// How the CPU is shared with others, such as probers. Default nice 0.
    pub priority: Priority,
    /// Program runs per batch, 1..=256. Default: by rate, see
    /// [`Schedule::batch_runs`].
    ///
    /// Frames leave in groups at the end of a batch (every 16 frames in longer
    /// ones), so a batch costs pacing and saves about 100 ns per frame.
    pub batch_runs: Option<u32>,
}

impl Spec {
    /// A blast with all defaults.
    #[must_use]
    pub fn new(
        interface: impl Into<String>,
        destination_mac: [u8; 6],
        flow: Flow,
        schedule: Schedule,
    ) -> Self {
        Self {
            interface: interface.into(),
            foreign_interface: false,
            destination_mac,
            flow,
            imix: false,
            schedule,
            departures: None,
            bound: Bound::default(),
            catch_up: CatchUp::default(),
            seed: 1,
            cpu: None,
            priority: Priority::default(),
            batch_runs: None,
        }
    }

    /// Frames depart when these did.
    pub fn depart_at(&mut self, departures: Departures) {
        self.schedule = departures.schedule();
        self.departures = Some(departures);
    }

    /// The times of [`Schedule::Recorded`].
    pub(super) fn recorded(&self) -> Option<&Departures> {
        let is_recorded = matches!(self.schedule, Schedule::Recorded { .. });
        self.departures.as_ref().filter(|_| is_recorded)
    }

    /// The mean rate over the first `elapsed`, in frames per second; `None` if unlimited.
    pub(super) fn mean_pps(&self, elapsed: Duration) -> Option<f64> {
        match self.recorded() {
            Some(departures) => Some(departures.mean_pps(elapsed)),
            None => self.schedule.mean_pps(elapsed, self.bound.time),
        }
    }

    /// How many frames depart at most.
    pub(super) fn frames_max(&self) -> u64 {
        let recorded = self
            .recorded()
            .map(|departures| departures.times_ns().len());
        recorded.map_or(self.bound.frames, |frames| {
            self.bound.frames.min(frames as u64)
        })
    }

    /// Checks everything that needs no look at the machine.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] naming field, value and what is allowed.
    pub fn validate(&self) -> Result<(), Error> {
        self.flow.validate()?;
        self.schedule.validate()?;
        let is_longest = matches!(self.flow.transport, Transport::Udp { .. })
            && self.flow.frame_bytes() == FRAME_MAX_BYTES;
        check(
            !self.imix || is_longest,
            "imix",
            &format_args!("true, with frames of {} bytes", self.flow.frame_bytes()),
            "of UDP frames of 1514 bytes",
        )?;
        let is_recorded = matches!(self.schedule, Schedule::Recorded { .. });
        check(
            !is_recorded || self.departures.is_some(),
            "schedule",
            &"recorded, without departures",
            "made by `Spec::depart_at`",
        )?;
        self.bound.validate()?;
        self.catch_up.validate(&self.schedule)?;
        check(
            self.destination_mac != [0; 6],
            "destination_mac",
            &"all zero",
            "an Ethernet address",
        )?;
        if let Some(runs) = self.batch_runs {
            let valid = (1..=BATCH_MAX_RUNS).contains(&runs);
            check(valid, "batch_runs", &runs, "1 to 256")?;
        }
        if let Priority::Nice(nice) = self.priority {
            let valid = (-20..=19).contains(&nice);
            check(valid, "priority", &nice, "a nice level, -20 to 19")?;
        }
        Ok(())
    }
}

/// Addresses, ports and protocol of the frames.
#[derive(Clone, Debug)]
pub struct Flow {
    /// Where frames claim to come from.
    pub source: Sources,
    /// The range that source ports are drawn from, uniformly, per frame.
    pub source_ports: RangeInclusive<u16>,
    /// Where they go.
    pub destination: IpAddr,
    /// The range that destination ports are drawn from.
    pub destination_ports: RangeInclusive<u16>,
    /// What they carry.
    pub transport: Transport,
}

impl Flow {
    fn validate(&self) -> Result<(), Error> {
        check(
            self.source.is_ipv4() == self.destination.is_ipv4(),
            "flow.source",
            &self.source,
            "of the same IP version as the destination",
        )?;
        self.source.validate()?;
        for (field, ports) in [
            ("flow.source_ports", &self.source_ports),
            ("flow.destination_ports", &self.destination_ports),
        ] {
            let valid = *ports.start() > 0 && ports.start() <= ports.end();
            check(
                valid,
                field,
                &format_args!("{ports:?}"),
                "first port 1 or more, and not above the last",
            )?;
        }
        check(
            self.destination.is_ipv4() || !self.transport.is_fragment(),
            "flow.transport",
            &"a fragment",
            "sent to an IPv4 address",
        )?;
        check(
            self.frame_bytes() <= FRAME_MAX_BYTES,
            "flow.transport.payload",
            &format_args!("{} bytes", self.payload().len()),
            "at most 1472 bytes with IPv4 and 1452 with IPv6",
        )
    }

    /// Length of each frame in bytes, Ethernet header included, without the
    /// frame check sequence that a virtual link does not have.
    #[must_use]
    pub fn frame_bytes(&self) -> usize {
        frame::header_bytes(self) + self.payload().len()
    }

    pub(super) fn payload(&self) -> &[u8] {
        match &self.transport {
            Transport::Udp { payload }
            | Transport::FirstFragment { payload }
            | Transport::LaterFragment { payload }
            | Transport::UnknownProtocol { payload }
            | Transport::UnknownEtherType { payload } => payload,
            Transport::TcpSyn => &[],
        }
    }
}

/// What a frame carries.
#[derive(Clone, Debug)]
pub enum Transport {
    /// A datagram with this payload, the same in every frame.
    Udp {
        /// As long as the frame does not exceed [`FRAME_MAX_BYTES`].
        payload: Vec<u8>,
    },
    /// A connection request as Linux sends it: MSS 1460 (IPv6: 1440), SACK,
    /// timestamps, window scale 7, window 64240; the sequence number is drawn.
    TcpSyn,
    /// As [`Transport::Udp`], but the first part of a longer IPv4 datagram whose
    /// rest never comes.
    FirstFragment {
        /// As for UDP.
        payload: Vec<u8>,
    },
    /// A later part of an IPv4 datagram whose beginning never came.
    LaterFragment {
        /// As for UDP; eight drawn bytes come before it.
        payload: Vec<u8>,
    },
    /// An IP packet of protocol 253, which is nobody's (RFC 3692).
    UnknownProtocol {
        /// As for UDP; eight drawn bytes come before it.
        payload: Vec<u8>,
    },
    /// A frame of `EtherType` 0x88b5, which is nobody's (IEEE 802); otherwise a
    /// UDP packet.
    UnknownEtherType {
        /// As for UDP.
        payload: Vec<u8>,
    },
}

impl Transport {
    fn is_fragment(&self) -> bool {
        matches!(
            self,
            Self::FirstFragment { .. } | Self::LaterFragment { .. }
        )
    }
}

/// When frames depart. All rates are frames per second, 1..=[`RATE_MAX_PPS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// Evenly spaced.
    Fixed {
        /// Frames per second.
        rate_pps: u64,
    },
    /// A Poisson process: exponential gaps.
    Poisson {
        /// Mean frames per second.
        rate_pps: u64,
    },
    /// Bursts back to back, evenly spaced.
    Bursts {
        /// Mean frames per second.
        rate_pps: u64,
        /// Frames per burst, 1..=[`BURST_MAX_FRAMES`].
        burst_frames: u32,
    },
    /// From one rate to another, linearly over [`Bound::time`].
    Ramp {
        /// Frames per second at the start.
        from_pps: u64,
        /// Frames per second at the end.
        to_pps: u64,
    },
    /// At recorded times, once ([`Spec::depart_at`]).
    Recorded {
        /// Mean frames per second.
        mean_pps: u64,
        /// Frames per second of the fastest 64 in a row.
        peak_pps: u64,
    },
    /// As fast as this CPU can.
    Unlimited,
}

impl Schedule {
    fn validate(self) -> Result<(), Error> {
        let rates = match self {
            Self::Fixed { rate_pps } | Self::Poisson { rate_pps } => {
                [("schedule.rate_pps", rate_pps); 2]
            }
            Self::Bursts {
                rate_pps,
                burst_frames,
            } => {
                let valid = (1..=BURST_MAX_FRAMES).contains(&burst_frames);
                check(valid, "schedule.burst_frames", &burst_frames, "1 to 65536")?;
                [("schedule.rate_pps", rate_pps); 2]
            }
            Self::Ramp { from_pps, to_pps } => {
                [("schedule.from_pps", from_pps), ("schedule.to_pps", to_pps)]
            }
            Self::Recorded { mean_pps, peak_pps } => [
                ("schedule.mean_pps", mean_pps),
                ("schedule.peak_pps", peak_pps),
            ],
            Self::Unlimited => return Ok(()),
        };
        for (field, rate) in rates {
            let valid = (1..=RATE_MAX_PPS).contains(&rate);
            check(valid, field, &rate, "1 to 20000000 packets per second")?;
        }
        Ok(())
    }

    /// The highest rate that is scheduled on the average; `None` if unlimited.
    #[must_use]
    pub fn peak_pps(self) -> Option<u64> {
        match self {
            Self::Fixed { rate_pps }
            | Self::Poisson { rate_pps }
            | Self::Bursts { rate_pps, .. } => Some(rate_pps),
            Self::Ramp { from_pps, to_pps } => Some(from_pps.max(to_pps)),
            Self::Recorded { peak_pps, .. } => Some(peak_pps),
            Self::Unlimited => None,
        }
    }

    /// The mean rate over the first `elapsed` of a blast that lasts `time`, in
    /// frames per second; `None` if unlimited.
    #[must_use]
    pub fn mean_pps(self, elapsed: Duration, time: Duration) -> Option<f64> {
        match self {
            Self::Fixed { rate_pps }
            | Self::Poisson { rate_pps }
            | Self::Bursts { rate_pps, .. } => Some(rate_pps as f64),
            Self::Ramp { from_pps, to_pps } => {
                let part = elapsed.div_duration_f64(time);
                Some(from_pps as f64 + (to_pps as f64 - from_pps as f64) * part / 2.0)
            }
            Self::Recorded { mean_pps, .. } => Some(mean_pps as f64),
            Self::Unlimited => None,
        }
    }

    /// The batch that is used unless [`Spec::batch_runs`] says otherwise.
    ///
    /// Nobody else gets the CPU inside a batch, and its frames leave in groups.
    /// But the kernel also keeps as many pages for reuse as a batch has runs;
    /// with too few of them it stops for 150 µs every 2,000 frames to get new
    /// ones, and the receiver gives the old ones back 2,000 at a time, for which
    /// it stops for up to 300 µs: longer than a receive ring of 256 frames lasts
    /// from 800,000 frames per second on.
    #[must_use]
    pub fn batch_runs(self) -> u32 {
        let usual_pps = match self {
            // Between its bursts a recording has gaps, which end a batch early.
            Self::Recorded { mean_pps, .. } => Some(mean_pps),
            _ => self.peak_pps(),
        };
        match usual_pps {
            Some(..=20_000) => 1,
            Some(..=400_000) => 16,
            Some(..=600_000) => 64,
            Some(..=1_000_000) => 128,
            _ => BATCH_MAX_RUNS,
        }
    }

    fn burst_frames(self) -> u32 {
        match self {
            Self::Bursts { burst_frames, .. } => burst_frames,
            _ => 1,
        }
    }
}

/// When a blast ends: at whichever comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// From the first departure; at most [`TIME_MAX`]. Default 10 s.
    pub time: Duration,
    /// Departures; at most [`FRAMES_MAX`], the default.
    pub frames: u64,
}

impl Default for Bound {
    fn default() -> Self {
        Self {
            time: Duration::from_secs(10),
            frames: FRAMES_MAX,
        }
    }
}

impl Bound {
    fn validate(self) -> Result<(), Error> {
        check(
            self.time >= Duration::from_micros(1) && self.time <= TIME_MAX,
            "bound.time",
            &format_args!("{:?}", self.time),
            "1 µs to 600 s",
        )?;
        check(
            (1..=FRAMES_MAX).contains(&self.frames),
            "bound.frames",
            &self.frames,
            "1 to 4000000000",
        )
    }
}

/// What is done about departures that were missed because the thread was off
/// its CPU: they are made up for, but not in one flood that the receiver's ring
/// could not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CatchUp {
    /// This many at once, 1..=[`BURST_MAX_FRAMES`]. Default 64, a quarter of a
    /// veth ring. Scheduled bursts are never cut: their size applies if larger.
    pub burst_frames: u32,
    /// The rest no faster than this, in frames per second; must not be below
    /// the schedule's rate. Default: twice that rate, but at most 500,000 more
    /// than it. With r the default's ratio to the rate, the rate is kept as
    /// long as the thread has 1/r of the CPU.
    pub rate_pps: Option<u64>,
    /// What is later than this is given up and reported, at most [`TIME_MAX`].
    /// Default 100 ms.
    pub lag_max: Duration,
}

impl Default for CatchUp {
    fn default() -> Self {
        Self {
            burst_frames: 64,
            rate_pps: None,
            lag_max: Duration::from_millis(100),
        }
    }
}

impl CatchUp {
    fn validate(self, schedule: &Schedule) -> Result<(), Error> {
        check(
            (1..=BURST_MAX_FRAMES).contains(&self.burst_frames),
            "catch_up.burst_frames",
            &self.burst_frames,
            "1 to 65536",
        )?;
        check(
            self.lag_max <= TIME_MAX,
            "catch_up.lag_max",
            &format_args!("{:?}", self.lag_max),
            "at most 600 s",
        )?;
        let Some(rate) = self.rate_pps else {
            return Ok(());
        };
        check(
            rate >= schedule.peak_pps().unwrap_or(1) && rate <= 2 * RATE_MAX_PPS,
            "catch_up.rate_pps",
            &rate,
            "at least the schedule's rate and at most 40000000",
        )
    }

    /// The rate that applies to `schedule`; `None` if that is unlimited.
    pub(super) fn rate_for(self, schedule: Schedule) -> Option<u64> {
        let rate = schedule.peak_pps()?;
        Some(self.rate_pps.unwrap_or(rate + rate.min(500_000)))
    }

    /// The burst that applies to `schedule`.
    pub(super) fn burst_for(self, schedule: Schedule) -> u32 {
        self.burst_frames.max(schedule.burst_frames())
    }
}

/// How the generator shares its CPU. It never sleeps: between departures it
/// looks at the clock, and gives way every few microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// A nice level, -20..=19 (sched(7)).
    Nice(i8),
    /// `SCHED_IDLE`: runs when nobody else wants the CPU, and is preempted at
    /// once. For probers and clients on the same CPU.
    Idle,
}

impl Default for Priority {
    fn default() -> Self {
        Self::Nice(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> Spec {
        let flow = Flow {
            source: "198.18.0.0/24".parse().unwrap(),
            source_ports: 1024..=65535,
            destination: "198.18.0.2".parse().unwrap(),
            destination_ports: 9..=9,
            transport: Transport::TcpSyn,
        };
        Spec::new("load0", [2; 6], flow, Schedule::Fixed { rate_pps: 1000 })
    }

    fn refusal(change: impl FnOnce(&mut Spec)) -> String {
        let mut spec = spec();
        change(&mut spec);
        spec.validate().unwrap_err().to_string()
    }

    #[test]
    fn defaults_are_valid() {
        spec().validate().unwrap();
    }

    #[test]
    fn errors_name_field_value_and_range() {
        let udp = |bytes| Transport::Udp {
            payload: vec![0; bytes],
        };
        let refusals = [
            refusal(|spec| spec.schedule = Schedule::Poisson { rate_pps: 0 }),
            refusal(|spec| {
                spec.schedule = Schedule::Ramp {
                    from_pps: 1,
                    to_pps: 20_000_001,
                };
            }),
            refusal(|spec| {
                spec.schedule = Schedule::Bursts {
                    rate_pps: 1,
                    burst_frames: 0,
                };
            }),
            refusal(|spec| spec.bound.time = Duration::from_secs(601)),
            refusal(|spec| spec.bound.frames = 0),
            refusal(|spec| spec.catch_up.rate_pps = Some(999)),
            refusal(|spec| spec.catch_up.burst_frames = 0),
            refusal(|spec| spec.batch_runs = Some(257)),
            refusal(|spec| spec.imix = true),
            refusal(|spec| spec.priority = Priority::Nice(20)),
            refusal(|spec| spec.destination_mac = [0; 6]),
            refusal(|spec| spec.flow.destination = "2001:2::2".parse().unwrap()),
            refusal(|spec| spec.flow.source_ports = 0..=9),
            refusal(|spec| spec.flow.transport = udp(1473)),
            refusal(|spec| {
                spec.flow.source = "2001:2::/64".parse().unwrap();
                spec.flow.destination = "2001:2::2".parse().unwrap();
                spec.flow.transport = Transport::LaterFragment { payload: vec![] };
            }),
        ];
        assert_eq!(
            refusals,
            [
                "schedule.rate_pps = 0: must be 1 to 20000000 packets per second",
                "schedule.to_pps = 20000001: must be 1 to 20000000 packets per second",
                "schedule.burst_frames = 0: must be 1 to 65536",
                "bound.time = 601s: must be 1 µs to 600 s",
                "bound.frames = 0: must be 1 to 4000000000",
                "catch_up.rate_pps = 999: must be at least the schedule's rate and at most 40000000",
                "catch_up.burst_frames = 0: must be 1 to 65536",
                "batch_runs = 257: must be 1 to 256",
                "imix = true, with frames of 74 bytes: must be of UDP frames of 1514 bytes",
                "priority = 20: must be a nice level, -20 to 19",
                "destination_mac = all zero: must be an Ethernet address",
                "flow.source = 198.18.0.0/24: must be of the same IP version as the destination",
                "flow.source_ports = 0..=9: must be first port 1 or more, and not above the last",
                "flow.transport.payload = 1473 bytes: must be at most 1472 bytes with IPv4 and 1452 with IPv6",
                "flow.transport = a fragment: must be sent to an IPv4 address",
            ]
        );
    }

    #[test]
    fn frame_lengths_include_every_header() {
        let mut flow = spec().flow;
        assert_eq!(flow.frame_bytes(), 14 + 20 + 40);
        flow.transport = Transport::Udp {
            payload: vec![0; 1472],
        };
        assert_eq!(flow.frame_bytes(), FRAME_MAX_BYTES);
    }

    #[test]
    fn catching_up_never_means_more_than_half_a_million_above_the_rate() {
        let rate = |rate_pps| CatchUp::default().rate_for(Schedule::Fixed { rate_pps });
        assert_eq!(rate(1000), Some(2000));
        assert_eq!(rate(3_000_000), Some(3_500_000));
        assert_eq!(CatchUp::default().rate_for(Schedule::Unlimited), None);
    }

    #[test]
    fn a_ramp_stopped_early_has_the_mean_of_what_it_covered() {
        let ramp = Schedule::Ramp {
            from_pps: 100,
            to_pps: 300,
        };
        let second = Duration::from_secs(1);
        assert_eq!(ramp.mean_pps(second, second), Some(200.0));
        assert_eq!(ramp.mean_pps(second / 2, second), Some(150.0));
    }
}
