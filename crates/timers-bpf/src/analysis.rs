//! From recorded states to the figures of the paper: distributions (figure 2,
//! table IV), medians in windows of time (figure 3), sources (table V) and
//! distributions with one of them left out (figure 4).

use serde::Serialize;

use crate::source::Source;

/// One trigger state of a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// When, on the kernel's monotonic clock.
    pub at_ns: u64,
    /// By what.
    pub source: Source,
}

/// The times between trigger states, and those in which a CPU was idle.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Intervals {
    /// Each with the moment of its end, in ns.
    pub ended: Vec<(u64, u64)>,
    /// In which the CPU had nothing to do and could have checked all the time.
    pub idle_ns: u64,
}

impl Intervals {
    /// The intervals of one CPU whose states are in the order of time, as if the
    /// sources for which `left_out` is true gave none.
    ///
    /// What begins with an idle entry is idle time, no interval: the paper's idle
    /// loop passes a trigger state every 2 µs, and Linux's would, too, while a
    /// soft event is pending.
    #[must_use]
    pub fn of(states: &[State], left_out: impl Fn(Source) -> bool) -> Self {
        let mut intervals = Self::default();
        let mut last: Option<State> = None;
        for &state in states.iter().filter(|state| !left_out(state.source)) {
            if let Some(last) = last {
                let interval = state.at_ns - last.at_ns;
                if last.source == Source::IdleEntry {
                    intervals.idle_ns += interval;
                } else {
                    intervals.ended.push((state.at_ns, interval));
                }
            }
            last = Some(state);
        }
        intervals
    }

    /// Puts another CPU's intervals to these.
    pub fn extend(&mut self, other: &Self) {
        self.ended.extend_from_slice(&other.ended);
        self.idle_ns += other.idle_ns;
    }

    /// The figures of table IV; nothing without an interval.
    #[must_use]
    pub fn distribution(&self) -> Option<Distribution> {
        let mut sorted: Vec<u64> = self.ended.iter().map(|&(_, interval)| interval).collect();
        sorted.sort_unstable();
        let count = sorted.len() as f64;
        let max = *sorted.last()?;
        let sum: f64 = sorted.iter().map(|&ns| ns as f64).sum();
        let squares: f64 = sorted.iter().map(|&ns| (ns as f64).powi(2)).sum();
        let mean = sum / count;
        let above = |micros: u64| {
            let upto = sorted.partition_point(|&ns| ns <= micros * 1000);
            100.0 * (count - upto as f64) / count
        };
        Some(Distribution {
            count: sorted.len(),
            max_us: max as f64 / 1000.0,
            mean_us: mean / 1000.0,
            median_us: quantile(&sorted, 0.5) / 1000.0,
            p99_us: quantile(&sorted, 0.99) / 1000.0,
            stddev_us: (squares / count - mean * mean).max(0.0).sqrt() / 1000.0,
            above_100us_percent: above(100),
            above_150us_percent: above(150),
            delay_us: squares / 2.0 / (sum + self.idle_ns as f64) / 1000.0,
            idle_percent: 100.0 * self.idle_ns as f64 / (sum + self.idle_ns as f64),
            curve: curve(&sorted),
        })
    }

    /// The median of the intervals that ended in each window of `window_ns`,
    /// from the first end on: start of the window in s, median in µs. Windows
    /// in which none ended are left out.
    #[must_use]
    pub fn window_medians(&self, window_ns: u64) -> Vec<(f64, f64)> {
        let Some(&(start, _)) = self.ended.first() else {
            return Vec::new();
        };
        let window_of = |end: u64| (end - start) / window_ns;
        self.ended
            .chunk_by(|a, b| window_of(a.0) == window_of(b.0))
            .map(|ended| {
                let mut sorted: Vec<u64> = ended.iter().map(|&(_, ns)| ns).collect();
                sorted.sort_unstable();
                let window = window_of(ended[0].0) * window_ns;
                (window as f64 / 1e9, quantile(&sorted, 0.5) / 1000.0)
            })
            .collect()
    }
}

/// How intervals between trigger states are distributed (table IV), in µs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Distribution {
    /// Intervals.
    pub count: usize,
    /// The longest.
    pub max_us: f64,
    /// Their mean.
    pub mean_us: f64,
    /// Their median.
    pub median_us: f64,
    /// 99 of 100 are no longer.
    pub p99_us: f64,
    /// Standard deviation.
    pub stddev_us: f64,
    /// Share of intervals longer than 100 µs.
    pub above_100us_percent: f64,
    /// Share of intervals longer than 150 µs.
    pub above_150us_percent: f64,
    /// Mean delay of an event that is due at a random moment: long intervals
    /// catch more of them, idle time delays none.
    pub delay_us: f64,
    /// Share of the time in which the CPU was idle.
    pub idle_percent: f64,
    /// Share of the intervals (0 to 1) that are no longer than so many µs.
    pub curve: Vec<(f64, f64)>,
}

fn quantile(sorted: &[u64], share: f64) -> f64 {
    let place = (share * (sorted.len() - 1) as f64).round() as usize;
    sorted[place] as f64
}

/// Points of the cumulative distribution, ten per decade from 0.1 µs to 10 ms.
fn curve(sorted: &[u64]) -> Vec<(f64, f64)> {
    (0..=50)
        .map(|step| {
            let micros = 10_f64.powf(f64::from(step) / 10.0 - 1.0);
            let upto = sorted.partition_point(|&ns| ns as f64 <= micros * 1000.0);
            (micros, upto as f64 / sorted.len() as f64)
        })
        .collect()
}

/// Medians of many windows in short (figure 3).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Windows {
    /// Length of a window in ms.
    pub window_ms: u64,
    /// Windows with intervals.
    pub count: usize,
    /// A twentieth of the medians is no larger.
    pub p5_us: f64,
    /// The middle one.
    pub median_us: f64,
    /// A twentieth of the medians is larger.
    pub p95_us: f64,
    /// Share of windows whose median is above 40 µs.
    pub above_40us_percent: f64,
    /// Start of a window in s and its median in µs: at most 1000 of them, evenly
    /// taken.
    pub medians: Vec<(f64, f64)>,
}

impl Windows {
    /// From the intervals of one CPU; nothing without any.
    #[must_use]
    pub fn of(intervals: &Intervals, window_ms: u64) -> Option<Self> {
        let all = intervals.window_medians(window_ms * 1_000_000);
        let mut sorted: Vec<f64> = all.iter().map(|&(_, median)| median).collect();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().checked_sub(1)?;
        let at = |share: f64| sorted[(share * last as f64).round() as usize];
        let above = sorted.iter().filter(|&&median| median > 40.0).count();
        Some(Self {
            window_ms,
            count: all.len(),
            p5_us: at(0.05),
            median_us: at(0.5),
            p95_us: at(0.95),
            above_40us_percent: 100.0 * above as f64 / all.len() as f64,
            medians: all
                .iter()
                .copied()
                .step_by(all.len().div_ceil(1000))
                .collect(),
        })
    }
}

/// What a source contributes (table V, figure 4).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Contribution {
    /// Which.
    pub source: Source,
    /// Its share of the trigger states.
    pub share_percent: f64,
    /// The distribution if it gave none; without idle, neither entries nor exits
    /// count and the time between them is an interval as any.
    pub without: Option<Distribution>,
}

/// The states of one CPU or of all, in every respect the paper looks at.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Analysis {
    /// Trigger states per second and CPU.
    pub states_per_s: f64,
    /// All sources.
    pub all: Option<Distribution>,
    /// Each source that gave a state, most first.
    pub sources: Vec<Contribution>,
    /// Of the busiest CPU, in windows of 1 ms and 10 ms.
    pub windows: Vec<Windows>,
}

impl Analysis {
    /// Of the CPUs whose states are given. Intervals never span two CPUs.
    #[must_use]
    pub fn of(cpus: &[&[State]]) -> Self {
        let total: usize = cpus.iter().map(|states| states.len()).sum();
        let seconds: f64 = cpus
            .iter()
            .filter_map(|states| Some((states.first()?, states.last()?)))
            .map(|(first, last)| (last.at_ns - first.at_ns) as f64 / 1e9)
            .sum();
        let without = |left_out: &dyn Fn(Source) -> bool| {
            let mut intervals = Intervals::default();
            for states in cpus {
                intervals.extend(&Intervals::of(states, left_out));
            }
            intervals.distribution()
        };
        let mut sources: Vec<Contribution> = Source::ALL
            .into_iter()
            .filter_map(|source| {
                let of_source = |state: &&State| state.source == source;
                let states = cpus.iter().map(|cpu| cpu.iter().filter(of_source).count());
                let count: usize = states.sum();
                (count > 0).then(|| Contribution {
                    source,
                    share_percent: 100.0 * count as f64 / total as f64,
                    without: without(&|other| {
                        other == source || source.is_idle() && other.is_idle()
                    }),
                })
            })
            .collect();
        sources.sort_by(|a, b| b.share_percent.total_cmp(&a.share_percent));
        let busiest = cpus.iter().max_by_key(|states| states.len());
        let busiest = busiest.map(|states| Intervals::of(states, |_| false));
        Self {
            states_per_s: if seconds > 0.0 {
                total as f64 / seconds
            } else {
                0.0
            },
            all: without(&|_| false),
            sources,
            windows: busiest
                .iter()
                .flat_map(|intervals| [1, 10].map(|ms| Windows::of(intervals, ms)))
                .flatten()
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn states(list: &[(u64, Source)]) -> Vec<State> {
        let state = |&(at_us, source)| State {
            at_ns: at_us * 1000,
            source,
        };
        list.iter().map(state).collect()
    }

    fn example() -> Vec<State> {
        states(&[
            (0, Source::SystemCall),
            (10, Source::IpOutput),
            (12, Source::SystemCall),
            (14, Source::IdleEntry),
            (514, Source::DeviceInterrupt),
            (516, Source::IdleExit),
            (636, Source::SystemCall),
        ])
    }

    #[test]
    fn idle_time_is_no_interval() {
        let all = Intervals::of(&example(), |_| false);
        let lengths: Vec<u64> = all.ended.iter().map(|&(_, ns)| ns / 1000).collect();
        assert_eq!(lengths, [10, 2, 2, 2, 120]);
        assert_eq!(all.idle_ns, 500_000);
    }

    #[test]
    fn without_idle_passes_the_time_between_them_is_an_interval() {
        let busy = Intervals::of(&example(), Source::is_idle);
        let lengths: Vec<u64> = busy.ended.iter().map(|&(_, ns)| ns / 1000).collect();
        assert_eq!(lengths, [10, 2, 502, 122]);
        assert_eq!(busy.idle_ns, 0);
    }

    /// ST-62: distribution and tails.
    #[test]
    fn the_figures_of_table_four_by_hand() {
        let figures = Intervals::of(&example(), |_| false).distribution().unwrap();
        assert_eq!(figures.count, 5);
        assert_eq!((figures.max_us, figures.median_us), (120.0, 2.0));
        assert!((figures.mean_us - 27.2).abs() < 1e-9);
        // Squares: 100 + 4 + 4 + 4 + 14400 = 14512.
        let deviation = (14512.0 / 5.0 - 27.2_f64.powi(2)).sqrt();
        assert!((figures.stddev_us - deviation).abs() < 1e-9);
        assert!((figures.delay_us - 14512.0 / 2.0 / 636.0).abs() < 1e-9);
        assert_eq!(figures.above_100us_percent, 20.0);
        assert_eq!(figures.above_150us_percent, 0.0);
        let upto = |micros: f64| {
            let point = figures
                .curve
                .iter()
                .find(|(at, _)| (at - micros).abs() < 1e-9);
            point.unwrap().1
        };
        assert_eq!((upto(1.0), upto(10.0), upto(1000.0)), (0.0, 0.8, 1.0));
    }

    /// ST-62: with a source left out.
    #[test]
    fn sources_have_their_shares_and_what_they_spare() {
        let example = example();
        let analysis = Analysis::of(&[&example]);
        let first = &analysis.sources[0];
        assert_eq!(first.source, Source::SystemCall);
        assert!((first.share_percent - 300.0 / 7.0).abs() < 1e-9);
        let without = first.without.as_ref().unwrap();
        // From the output to idle, and from the interrupt to the idle exit.
        assert_eq!((without.count, without.max_us), (2, 4.0));
        assert!((analysis.states_per_s - 7.0 / 636e-6).abs() < 1e-6);
    }

    /// ST-62: windowed medians.
    #[test]
    fn medians_are_taken_window_by_window() {
        let call = |at_us| (at_us, Source::SystemCall);
        let states = states(&[
            call(0),
            call(100),
            call(300),
            call(600),
            call(1500),
            call(1510),
            call(1520),
        ]);
        let intervals = Intervals::of(&states, |_| false);
        // Windows start with the first end, at 100 µs.
        assert_eq!(
            intervals.window_medians(1_000_000),
            [(0.0, 200.0), (0.001, 10.0)]
        );
        assert!(Windows::of(&Intervals::default(), 1).is_none());
    }

    #[test]
    fn nothing_recorded_gives_no_figures() {
        let analysis = Analysis::of(&[&[], &[]]);
        assert_eq!(analysis.all, None);
        assert_eq!(analysis.states_per_s, 0.0);
        assert!(analysis.sources.is_empty() && analysis.windows.is_empty());
    }

    proptest! {
        /// Every nanosecond between the first state and the last is idle or in
        /// one interval, whatever is left out at the ends.
        #[test]
        fn time_is_conserved(
            gaps in prop::collection::vec((0..1_000_000_u64, 0..10_usize), 2..100),
            left_out in 0..10_usize,
        ) {
            let mut at_ns = 0;
            let states: Vec<State> = gaps
                .iter()
                .map(|&(gap, source)| {
                    at_ns += gap;
                    State { at_ns, source: Source::ALL[source] }
                })
                .collect();
            let left_out = Source::ALL[left_out];
            let kept: Vec<&State> =
                states.iter().filter(|state| state.source != left_out).collect();
            let intervals = Intervals::of(&states, |source| source == left_out);
            let sum: u64 = intervals.ended.iter().map(|&(_, ns)| ns).sum();
            let span = match (kept.first(), kept.last()) {
                (Some(first), Some(last)) => last.at_ns - first.at_ns,
                _ => 0,
            };
            prop_assert_eq!(sum + intervals.idle_ns, span);
        }
    }
}
