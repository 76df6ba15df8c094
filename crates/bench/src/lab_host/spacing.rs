//! Paced packets that leave in the trigger states of a saturated web server (Aron &
//! Druschel's tables VIII and IX).

use std::time::Duration;

use plimsoll_lab::Figures;
use plimsoll_testbed::interrupt;
use plimsoll_testbed::periodic::PacedStream;
use plimsoll_testbed::server::PageServer;

use super::settings::{SpacingTrial, Trial};
use super::{Offer, of_kind};
use crate::Error;
use crate::timers::{begin_slices, saturated};

/// What the client needs beside the points.
const SPARE: Duration = Duration::from_secs(2);

/// All points of a curve take turns under one client.
pub(super) fn run(trials: &[(Trial, Offer)]) -> Result<Vec<Figures>, Error> {
    let points = of_kind(trials, |trial| match trial {
        Trial::Spacing(trial) => Some(trial),
        _ => None,
    });
    let all: Duration = points.iter().map(|(_, offer)| offer.window).sum();
    let seconds = (all + SPARE).as_secs_f64().ceil() as u32;
    saturated(seconds, |testbed, server, _| {
        let sink = testbed.load().run(PacedStream::sink)??;
        let (_, requests) = begin_slices(server)?;
        let one = |(trial, offer): &(&SpacingTrial, Offer)| {
            let (target, burst) = (
                Duration::from_micros(trial.target_us),
                Duration::from_micros(trial.burst_us),
            );
            let to = (testbed.load().ipv4(), sink.port()).into();
            let mut stream = testbed
                .test()
                .run(|| PacedStream::start(to, target, burst))??;
            serve(server, requests, &mut stream, offer.window)?;
            let spacing = stream.spacing();
            let given = [
                ("xmit_mean_us", spacing.mean_us),
                ("xmit_stddev_us", spacing.stddev_us),
                ("xmit_hz", 1e6 / spacing.mean_us),
            ];
            Ok(offer.figures(0.0, 0.0, given))
        };
        points.iter().map(one).collect()
    })
}

fn serve(
    server: &mut PageServer,
    requests: u64,
    stream: &mut PacedStream,
    window: Duration,
) -> Result<(), Error> {
    let begun = std::time::Instant::now();
    while begun.elapsed() < window {
        interrupt::check()?;
        let answered = server.serve(requests, stream);
        let answered = answered.map_err(|source| Error::Traffic {
            action: "serve a page",
            source,
        })?;
        if answered == 0 {
            return Err(Error::Tool {
                tool: "wrk",
                problem: "stopped asking".to_owned(),
            });
        }
    }
    Ok(())
}
