//! Settings of a governor, and what they may be.

use core::time::Duration;

use crate::config::{CPUS_MAX, ConfigError, Field, Fraction, NANOSECOND, PPM};
use crate::holdoff::HoldoffRange;

/// Dwells are at most this long.
pub(super) const DWELL_MAX: Duration = Duration::from_secs(60);
/// The shortest and the longest interval between observations.
const INTERVAL_MIN: Duration = Duration::from_millis(1);
const INTERVAL_MAX: Duration = Duration::from_secs(1);
/// Between these are both `fill` and `fill_max`.
const FILL_MIN: Fraction = Fraction::from_percent(1);
const FILL_MAX: Fraction = Fraction::from_percent(90);

/// What is done about overload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// Nothing: the host's settings are never touched.
    Off,
    /// Poll in threads of a class above every process, with an adaptive holdoff.
    /// The polling limit demotes the threads.
    Thread,
    /// Poll in interrupt context with an adaptive holdoff, which also keeps the
    /// polling limit.
    Holdoff,
}

/// Settings of a [`Governor`](super::Governor).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GovernorConfig {
    /// What is done about overload. Default: [`Strategy::Holdoff`].
    pub strategy: Strategy,
    /// Frames that a receive ring holds; at least 16. Default: 256, as veth's.
    pub ring_frames: u32,
    /// Part of the ring that frames may fill during a holdoff; the rest is for
    /// those that come while the first are worked on, and for delays. More makes
    /// polling cheaper, less makes overflows rarer. Default: 25 %.
    pub fill: Fraction,
    /// Part of the ring that a holdoff of `holdoff.min` may fill. Not below `fill`.
    /// Default: 50 %.
    pub fill_max: Fraction,
    /// The holdoffs that are chosen while the ring holds them. Default: 30 µs to
    /// 200 µs; below, a polling run of 3 µs takes more than a tenth of the
    /// consumers' time, above, nothing more is saved.
    pub holdoff: HoldoffRange,
    /// Part of each CPU's time that receiving may take, or `None`. Default: none.
    pub cpu_limit: Option<Fraction>,
    /// Part of it that polling is held to where there is a `cpu_limit`, and not below that. To
    /// hold polling back lets the ring overflow, and what overflows is everybody's: beside a flood
    /// that takes `D` of a CPU, `1 − polling_limit/D` of it. Below it,
    /// [`shedding`](crate::charge::shedding) decides by what a packet is. Only
    /// [`Strategy::Holdoff`] keeps it here, by longer holdoffs; a polling thread is kept to it by
    /// [`CpuLimit`](crate::cpu_limit::CpuLimit). The whole: never, the default. Between two runs a
    /// holdoff leaves processes time, and a thread that polls all the time shares the CPU with them.
    pub polling_limit: Fraction,
    /// CPUs that may receive, from 1 to 8192: so many are kept to `polling_limit`, and have
    /// memory for it from the start. Default: 8192.
    pub cpus: usize,
    /// A CPU with less idle time than this has none to spare. Default: 5 %.
    pub idle_low: Fraction,
    /// Receiving that takes this part of a CPU without time to spare is overload
    /// even if nothing was discarded. Above [`calm_share`](Self::calm_share).
    /// Default: 50 %.
    pub overload_share: Fraction,
    /// Packets discarded early are a sign of overload where discarding them costs at
    /// least this part of a CPU without time to spare. Below, a consumer that reads
    /// nothing would keep overload up by the few packets that it is sent. Default:
    /// 0.1 %, some 6,000 packets/s.
    pub discard_share: Fraction,
    /// Receiving that takes more of a CPU without time to spare is not calm.
    /// Default: 15 %.
    pub calm_share: Fraction,
    /// Time between observations while nothing happens, or overload is settled, at most 1 s.
    /// Default: 40 ms.
    pub rest_interval: Duration,
    /// Time between observations while overload begins, or lasts and is not settled, at least
    /// 1 ms and at most `rest_interval`. Default: 10 ms.
    pub busy_interval: Duration,
    /// Overload must last this long. Longer ignores longer bursts. Default: 20 ms.
    pub enter_dwell: Duration,
    /// Calm must last this long. Default: 1 s.
    pub leave_dwell: Duration,
}

impl Default for GovernorConfig {
    fn default() -> Self {
        Self {
            strategy: Strategy::Holdoff,
            ring_frames: 256,
            fill: Fraction::from_percent(25),
            fill_max: Fraction::from_percent(50),
            holdoff: HoldoffRange {
                min: Duration::from_micros(30),
                max: Duration::from_micros(200),
                step: Duration::from_micros(1),
            },
            cpu_limit: None,
            polling_limit: Self::POLLING_LIMIT,
            cpus: CPUS_MAX,
            idle_low: Fraction::from_percent(5),
            overload_share: Fraction::from_percent(50),
            discard_share: Fraction::from_ppm(1000),
            calm_share: Fraction::from_percent(15),
            rest_interval: Duration::from_millis(40),
            busy_interval: Duration::from_millis(10),
            enter_dwell: Duration::from_millis(20),
            leave_dwell: Duration::from_secs(1),
        }
    }
}

impl GovernorConfig {
    /// The smallest receive ring that can be shared between waiting and arriving frames.
    pub const RING_FRAMES_MIN: u32 = 16;

    /// The default of [`polling_limit`](Self::polling_limit).
    pub const POLLING_LIMIT: Fraction = Fraction::WHOLE;

    /// What polling is held to, if anything.
    #[must_use]
    pub fn polling_held_to(&self) -> Option<Fraction> {
        let limit = self.cpu_limit?.max(self.polling_limit);
        Some(limit).filter(|limit| *limit != Fraction::WHOLE)
    }

    /// Checks every field.
    ///
    /// # Errors
    ///
    /// Names the first field that is out of range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.holdoff.validate()?;
        Field("ring_frames", self.ring_frames)
            .must_be_in(Self::RING_FRAMES_MIN.., "at least 16")?;
        Field("fill", self.fill).must_be_in(FILL_MIN..=FILL_MAX, "from 10000 to 900000 ppm")?;
        Field("fill_max", self.fill_max)
            .must_be_in(self.fill..=FILL_MAX, "from fill to 900000 ppm")?;
        Field("holdoff.min", self.holdoff.min).must_be_in(NANOSECOND.., "at least one step")?;
        if let Some(limit) = self.cpu_limit {
            Field("cpu_limit", limit).must_be_in(PPM..Fraction::WHOLE, "from 1 to 999999 ppm")?;
        }
        Field("polling_limit", self.polling_limit).must_be_in(PPM.., "above 0 ppm")?;
        Field("cpus", self.cpus).must_be_in(1..=CPUS_MAX, "from 1 to 8192")?;
        Field("overload_share", self.overload_share)
            .must_be(self.overload_share > self.calm_share, "above calm_share")?;
        self.validate_times()
    }

    fn validate_times(&self) -> Result<(), ConfigError> {
        Field("rest_interval", self.rest_interval)
            .must_be_in(INTERVAL_MIN..=INTERVAL_MAX, "from 1 ms to 1 s")?;
        Field("busy_interval", self.busy_interval).must_be_in(
            INTERVAL_MIN..=self.rest_interval,
            "from 1 ms to rest_interval",
        )?;
        let dwell = |field, given: Duration| {
            let dwells = self.busy_interval..=DWELL_MAX;
            Field(field, given).must_be_in(dwells, "from busy_interval to a minute")
        };
        dwell("enter_dwell", self.enter_dwell)?;
        dwell("leave_dwell", self.leave_dwell)
    }
}
