//! With an XDP program in the driver that drops, passes, or takes its time.

use std::time::Duration;

use plimsoll_lab::calibrate::Round;
use plimsoll_testbed::blast::Schedule;
use plimsoll_testbed::burner::Burner;

use super::site::{RATE_PPS, Site};
use crate::Error;
use crate::traffic::send;

/// Few packets per run would leave the timer's cost in what is measured.
const DROP_PPS: u64 = 500_000;
/// Longer than a burst takes to arrive: only one packet leaves the ring meanwhile.
const BUSY: Duration = Duration::from_micros(500);
const BURST: u64 = 1024;
const TINY_QUEUE_BYTES: usize = 4096;

pub(super) fn run(site: &mut Site<'_>, round: &mut Round) -> Result<(), Error> {
    let host = site.stage.host();
    let mut program = Burner::attach(host)?;
    let _stock = site.stage.stock()?;
    let (_socket, port) = site.unread(TINY_QUEUE_BYTES)?;
    let full = site.flood_of(port, RATE_PPS);
    // The first packets of it fill the queue before the window begins.
    let passed = site.per_packet("pass", &full)?;
    let before = round.get("full").copied().unwrap_or(f64::NAN);
    round.insert("pass", passed - before);
    program.drop_at_once();
    let dropped = site.per_packet("drop", &site.flood_of(port, DROP_PPS))?;
    round.insert("drop", dropped);
    program.burn(BUSY);
    let mut burst = site.flood_of(port, RATE_PPS);
    burst.schedule = Schedule::Unlimited;
    burst.bound.frames = BURST;
    round.insert("ring", send(&site.stage, &burst)?.sent as f64);
    program.pass();
    Ok(())
}
