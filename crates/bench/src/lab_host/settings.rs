//! What an experiment's `[scenario]` says about real packets.

use std::time::Duration;

use plimsoll_lab::{Error, Point, TestbedPath};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use toml::Value;

use super::{Offer, Rate};
use crate::capture::{Sink, Tool};
use crate::forward::Router;
use crate::guard::rpc::RpcSide;
use crate::protection::Protection;
use crate::screen::Screen;
use crate::stack::Side;
use crate::triggers::Workload;
use crate::wan::Way;

/// One point's `[scenario]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Settings {
    /// What is done.
    trial: Trial,
    /// What is offered, in multiples of the trial's unit.
    #[serde(default)]
    multiple: f64,
    /// How long it is measured, after a warm-up of 0.3 s where the trial has one.
    window_ms: u64,
}

/// What is done.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub(super) enum Trial {
    /// A server's socket is flooded, another server is probed.
    Flood(FloodTrial),
    /// The same on a receive path of the user-space stack.
    Sockets(SocketsTrial),
    /// Packets cross a router.
    Forward(ForwardTrial),
    /// Packets cross a screening router.
    Screen(ScreenTrial),
    /// Packets pass a monitor.
    Capture(CaptureTrial),
    /// The same beside a compute-bound process on the router's CPU.
    Beside(BesideTrial),
    /// nginx answers while SYNs flood another port.
    Web(WebTrial),
    /// Two RPC servers and a worker share the CPU.
    Rpc(RpcTrial),
    /// Files over a wide-area path.
    Wan(WanTrial),
    /// Requests to a web server on our stack.
    Polling(PollingTrial),
    /// An event every so many microseconds in a saturated web server.
    Events(EventsTrial),
    /// Paced packets from a saturated web server.
    Spacing(SpacingTrial),
    /// Trigger states under a workload.
    Triggers(TriggersTrial),
}

/// How the kernel's sockets receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum KernelPath {
    /// The kernel as it is.
    Stock,
    /// Its threaded polling, at the lowest nice level.
    Threaded,
    /// The guard's early demultiplexing and discard alone: it governs nothing.
    EarlyDemux,
    /// The guard.
    Guard,
}

impl KernelPath {
    pub(super) fn protection(self) -> Protection {
        match self {
            Self::Stock => Protection::Stock,
            Self::Threaded => Protection::Threaded,
            Self::EarlyDemux | Self::Guard => Protection::Guard,
        }
    }

    /// Arguments for the guard.
    pub(super) fn arguments(self) -> Vec<String> {
        match self {
            Self::EarlyDemux => vec!["--strategy=off".to_owned()],
            Self::Stock | Self::Threaded | Self::Guard => Vec::new(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FloodTrial {
    pub(super) path: KernelPath,
    /// The flooded server's work on each packet.
    pub(super) work_us: u64,
    /// Interrupt holdoff.
    pub(super) holdoff_us: u64,
    /// That of the stock path which the unit is measured with, if it is another.
    #[serde(default)]
    pub(super) unit_holdoff_us: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SocketsTrial {
    /// A receive path by its name in `plimsoll bench stack`.
    #[serde(deserialize_with = "side")]
    pub(super) path: Side,
    pub(super) work_us: u64,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ForwardTrial {
    /// A router by its name in `plimsoll bench forward`.
    #[serde(deserialize_with = "router")]
    pub(super) router: Router,
    /// Packets of a turn of polling, of `user`. With it loads are multiples of what this
    /// router forwards at its peak with its own quota.
    #[serde(default)]
    pub(super) quota: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ScreenTrial {
    /// A screen by its name in `plimsoll bench screen`.
    #[serde(deserialize_with = "screen")]
    pub(super) screen: Screen,
    /// The kernel polls in a thread.
    #[serde(default)]
    pub(super) threaded: bool,
    /// Packets of a turn of polling, of `screen`.
    #[serde(default)]
    pub(super) quota: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CaptureTrial {
    /// A monitor by its name in documents of `plimsoll bench capture`.
    pub(super) monitor: Tool,
    /// Where its packets go: `null` or `disk`.
    pub(super) sink: Sink,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BesideTrial {
    #[serde(deserialize_with = "router")]
    pub(super) router: Router,
    /// Part of the CPU that ours may take where others want it.
    #[serde(default)]
    pub(super) limit_pct: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WebTrial {
    pub(super) path: KernelPath,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RpcTrial {
    pub(super) path: RpcSide,
    /// CPU time of the servers per request.
    pub(super) work_us: u64,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WanTrial {
    /// A sender by its name in `plimsoll bench wan`.
    #[serde(deserialize_with = "way")]
    pub(super) way: Way,
    /// The bottleneck.
    pub(super) rate_mbit: u32,
    /// The file's length.
    pub(super) packets: u32,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PollingTrial {
    /// A receive path of the stack, or `kernel`.
    pub(super) path: String,
    /// 1: connections persist. 0: each request has its own.
    pub(super) persistent: u8,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EventsTrial {
    pub(super) by: Means,
    pub(super) every_us: u64,
    /// The handler touches 50 cache lines.
    #[serde(default)]
    pub(super) lines: bool,
    /// With `by = "deadline"`: so long after an event is due the kernel's timer fires it.
    #[serde(default)]
    pub(super) slack_us: u64,
}

/// By which means an event comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Means {
    Soft,
    /// Soft timers, in every trigger state.
    SoftEach,
    /// Soft timers with deadlines, compared with soft timers without.
    Deadline,
    TimerFd,
    /// A POSIX timer, whose signal interrupts the server.
    Signal,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SpacingTrial {
    pub(super) target_us: u64,
    /// The least interval, while it catches up.
    pub(super) burst_us: u64,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TriggersTrial {
    /// A workload by its name in `plimsoll triggers`.
    #[serde(deserialize_with = "workload")]
    pub(super) workload: Workload,
}

fn side<'de, D: Deserializer<'de>>(given: D) -> Result<Side, D::Error> {
    let sides = Side::ALL.into_iter().filter(|side| side.has_sockets());
    named(given, sides, Side::name)
}

fn router<'de, D: Deserializer<'de>>(given: D) -> Result<Router, D::Error> {
    named(given, Router::ALL, Router::name)
}

fn screen<'de, D: Deserializer<'de>>(given: D) -> Result<Screen, D::Error> {
    named(given, Screen::ALL, Screen::name)
}

fn way<'de, D: Deserializer<'de>>(given: D) -> Result<Way, D::Error> {
    named(given, Way::ALL, Way::name)
}

fn workload<'de, D: Deserializer<'de>>(given: D) -> Result<Workload, D::Error> {
    named(given, Workload::ALL, Workload::name)
}

/// The one of this name.
fn named<'de, D: Deserializer<'de>, T: Copy>(
    given: D,
    all: impl IntoIterator<Item = T>,
    name: fn(T) -> &'static str,
) -> Result<T, D::Error> {
    let given = String::deserialize(given)?;
    let all: Vec<T> = all.into_iter().collect();
    let found = all.iter().find(|one| name(**one) == given).copied();
    found.ok_or_else(|| {
        let names: Vec<&str> = all.iter().map(|one| name(*one)).collect();
        D::Error::custom(format!("{given:?} is none of {}", names.join(", ")))
    })
}

/// The window of a twin.
const TWIN_WINDOW: Duration = Duration::from_millis(1000);
/// As in the demo.
const TWIN_HOLDOFF_US: u64 = 30;

impl Settings {
    /// A point of an experiment on real packets alone.
    pub(super) fn read(point: &Point<'_>) -> Result<(Trial, Offer), Error> {
        let settings = Value::Table(point.settings.clone());
        let settings: Self = settings.try_into().map_err(|error: toml::de::Error| {
            let problem = format!("scenario: {}", error.message());
            let remedy = "correct [scenario] or the curve's `set`; docs/lab.md lists the trials";
            point.error(problem, remedy)
        })?;
        let offer = Offer {
            rate: Rate::Multiple(settings.multiple),
            window: Duration::from_millis(settings.window_ms),
            seed: point.seed,
        };
        Ok((settings.trial, offer))
    }

    /// A point that is modelled as well: the flood of a socket at the swept rate.
    pub(super) fn of_twin(point: &Point<'_>) -> Result<(Trial, Offer), Error> {
        let path = match point.curve.testbed {
            Some(TestbedPath::Stock) => KernelPath::Stock,
            Some(TestbedPath::Threaded) => KernelPath::Threaded,
            Some(TestbedPath::Guard) => KernelPath::Guard,
            None => {
                let remedy = "add testbed = \"stock\", \"threaded\" or \"guard\" to the curve";
                return Err(point.error("has no receive path on the testbed", remedy));
            }
        };
        let trial = FloodTrial {
            path,
            work_us: modelled_work_us(point)?,
            holdoff_us: TWIN_HOLDOFF_US,
            unit_holdoff_us: None,
        };
        let offer = Offer {
            rate: Rate::Absolute(point.x),
            window: TWIN_WINDOW,
            seed: point.seed,
        };
        Ok((Trial::Flood(trial), offer))
    }
}

/// The model has to be one of what the trial does: a sink that works, and an echo.
fn modelled_work_us(point: &Point<'_>) -> Result<u64, Error> {
    let consumers = point.settings.get("consumer").and_then(Value::as_array);
    let named = |name: &str| {
        let mut all = consumers?.iter();
        all.find(|consumer| consumer.get("name").and_then(Value::as_str) == Some(name))
    };
    let work = named("sink").and_then(|sink| sink.get("role")?.get("work_us"));
    let whole = |work: &Value| work.as_integer().or(work.as_float().map(|us| us as i64));
    let work = work.and_then(whole).and_then(|us| u64::try_from(us).ok());
    match work {
        Some(us) if named("echo").is_some() => Ok(us),
        _ => {
            let remedy = "model a consumer sink with whole work_us and a consumer echo";
            Err(point.error("differs from what the testbed does", remedy))
        }
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_lab::{Catalogue, Curve, Experiment};

    use super::*;

    fn read(experiment: &Experiment, curve: &Curve, x: f64) -> Result<(Trial, Offer), Error> {
        Settings::read(&Point {
            experiment,
            curve,
            x,
            settings: experiment.settings(curve, x)?,
            seed: 1,
        })
    }

    #[test]
    fn every_experiment_on_real_packets_has_trials() {
        let real = Catalogue::built_in().unwrap();
        for experiment in real.select(&["real".to_owned()]).unwrap() {
            for curve in &experiment.curves {
                let first = experiment.sweep.values[0];
                let (trial, offer) = read(&experiment, curve, first).unwrap();
                assert!(offer.window >= Duration::from_millis(100), "{trial:?}");
                for other in experiment.curves.iter().filter(|one| one.id != curve.id) {
                    let (another, _) = read(&experiment, other, first).unwrap();
                    assert_ne!(trial, another, "{}: {} twice", experiment.id, curve.id);
                }
            }
        }
    }

    #[test]
    fn what_no_trial_has_is_answered_with_what_there_is() {
        let catalogue = Catalogue::built_in().unwrap();
        let mut experiment = catalogue.get("real-mr-fig6").unwrap().clone();
        let told = |experiment: &Experiment| {
            let error = read(experiment, &experiment.curves[0], 1.0).unwrap_err();
            assert!(error.is_usage(), "{error}");
            error.to_string()
        };
        experiment.curves[0].set = toml::from_str("trial.screen = 'magic'").unwrap();
        let text = told(&experiment);
        assert!(text.contains("nfqueue, nftables"), "{text}");
        experiment.curves[0].set = toml::from_str("trial = { kind = 'magic' }").unwrap();
        let text = told(&experiment);
        assert!(text.contains("sockets"), "{text}");
        experiment.curves[0].set = toml::from_str("windows_ms = 1").unwrap();
        let text = told(&experiment);
        assert!(text.contains("windows_ms"), "{text}");
    }
}
