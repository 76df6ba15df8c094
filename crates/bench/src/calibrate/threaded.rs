//! Polled by a thread: what waking it takes. Without a timer of its own the host is also
//! quiet enough to see the clock's interrupts.

use std::io;
use std::time::{Duration, Instant};

use plimsoll_kernel::scheduling::set_fifo;
use plimsoll_lab::calibrate::Round;
use plimsoll_report::median;
use plimsoll_testbed::Placement;
use plimsoll_testbed::burner::Burner;

use super::site::{SINGLE_PPS, Site, traffic};
use crate::Error;
use crate::udp::SINK_PORT;

/// What is shorter is the reading of the clock, what is longer another machine's turn.
const TICK: std::ops::RangeInclusive<Duration> =
    Duration::from_nanos(300)..=Duration::from_micros(100);
/// A real-time thread must leave the CPU to others after 950 ms of each second.
const LOOK_MAX: Duration = Duration::from_millis(500);

pub(super) fn run(site: &Site<'_>, round: &mut Round) -> Result<(), Error> {
    let mut program = Burner::attach(site.stage.host())?;
    Placement::Threaded { nice: 0 }.apply(site.stage.testbed)?;
    program.drop_at_once();
    let spinning = site.spinning()?;
    let booked = site.flooded_well("thread", &site.flood_of(SINK_PORT, SINGLE_PPS))?;
    let dropped = round.get("drop").copied().unwrap_or(f64::NAN);
    round.insert("thread", booked.network_ns() / booked.frames() - dropped);
    drop(spinning);
    round.insert("tick", tick(site)?);
    Ok(())
}

fn tick(site: &Site<'_>) -> Result<f64, Error> {
    // At least some ticks, however short the windows are.
    let span = site.window.clamp(LOOK_MAX / 5, LOOK_MAX);
    let gaps = site.stage.host().run_on_cpu(|| gaps(span))?;
    let gaps = gaps.map_err(traffic("read the clock in a real-time thread"))?;
    median(&gaps).ok_or_else(|| Error::Tool {
        tool: "calibration",
        problem: "trial tick saw no interrupt of the clock".to_owned(),
    })
}

/// Gaps between two readings of the clock, in ns.
fn gaps(span: Duration) -> io::Result<Vec<f64>> {
    set_fifo(1)?;
    let begun = Instant::now();
    let (mut before, mut gaps) = (begun, Vec::with_capacity(1 << 12));
    while before - begun < span {
        let now = Instant::now();
        if TICK.contains(&(now - before)) {
            gaps.push((now - before).as_nanos() as f64);
        }
        before = now;
    }
    Ok(gaps)
}
