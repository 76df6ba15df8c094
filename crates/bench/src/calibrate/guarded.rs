//! With the guard, which discards early what a full socket cannot take.

use plimsoll_lab::calibrate::Round;

use super::site::{LITTLE, RATE_PPS, Site};
use crate::Error;
use crate::udp::SINK_RCVBUF_BYTES;

/// Early discard alone, for every packet of a full channel: the model adds fairness itself,
/// and a governor would change how packets are received.
const ARGUMENTS: [&str; 4] = ["--fairness", "off", "--strategy", "off"];

pub(super) fn run(site: &Site<'_>, round: &mut Round) -> Result<(), Error> {
    let (_socket, port) = site.unread(SINK_RCVBUF_BYTES)?;
    let guard = site.stage.guard(&ARGUMENTS.map(str::to_owned))?;
    let spec = site.flood_of(port, 2 * RATE_PPS);
    let guarded = site.per_packet("guard", &spec)?;
    let line = guard.stop()?;
    // Nothing else came in numbers.
    let (discarded, offered) = (line.discarded() as f64, line.offered() as f64);
    site.require("guard", discarded, offered, LITTLE)?;
    round.insert("guard", guarded);
    Ok(())
}
