//! TCP bulk: one connection of a client on the kernel's sockets, which takes a large file
//! from `plimsoll serve http` on either network. One CPU for the server, an MTU of 1500.
//!
//! The kernel's side hands the link segments of up to 64 KiB, which ours cannot. Both have as
//! much to send under way as they like: the kernel's buffer grows by itself to 4 MiB, ours is
//! given its size. The client's part of the work is on the client's CPU, as on any link
//! between two machines; veth alone would have the server's CPU do it.

use std::time::Duration;

use plimsoll_kernel::error::with_causes;
use plimsoll_testbed::placement::receive_on;
use plimsoll_testbed::server::Kind;
use serde::Serialize;

use super::http::serve_configured;
use super::site::{Answers, Site};
use super::{Effort, Plan, Side};
use crate::Error;
use crate::passing::is_of_all;

const FILE_BYTES: usize = 64 << 20;
const PORT: u16 = 80;
/// What a round trip of some hundred microseconds, most of them threads that wait for their
/// turn, takes at several Gbit/s.
const BUFFER_BYTES: usize = 1 << 20;
const LIMIT: Duration = Duration::from_secs(60);

/// A server of one large file.
#[derive(Clone, Debug, Serialize)]
pub struct TcpCase {
    /// Whose sockets.
    pub way: &'static str,
    /// Content received, a value for each run.
    pub gbit_per_s: Vec<f64>,
    /// Why there are fewer runs than asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

pub(super) fn measure(plan: &Plan, progress: &mut impl FnMut(&str)) -> Result<Vec<TcpCase>, Error> {
    let sides = [Side::Kernel, Side::NiLrp, Side::SoftLrp];
    let sides = sides.into_iter().filter(|side| plan.sides.contains(side));
    let new = |side: Side| TcpCase {
        way: side.name(),
        gbit_per_s: Vec::new(),
        why: None,
    };
    let mut cases: Vec<(Side, TcpCase)> = sides.map(|side| (side, new(side))).collect();
    for run in 1..=plan.effort.runs {
        for (side, case) in &mut cases {
            if case.why.is_some() {
                continue;
            }
            progress(&format!("run {run}, tcp: {}", side.name()));
            match one_run(&plan.effort, *side) {
                Ok(value) => case.gbit_per_s.push(value),
                Err(error) if is_of_all(&error) => return Err(error),
                Err(error) => case.why = Some(with_causes(&error)),
            }
        }
    }
    Ok(cases.into_iter().map(|(_, case)| case).collect())
}

fn one_run(effort: &Effort, side: Side) -> Result<f64, Error> {
    let site = Site::new(effort, Answers::Received)?;
    let load = site.testbed.load();
    receive_on(load, load.cpu())?;
    let mut config = side.server(Kind::Http, PORT, site.testbed.test().device());
    config.tcp_buffer_bytes = (side != Side::Kernel).then_some(BUFFER_BYTES);
    let content = vec![b'x'; FILE_BYTES];
    let (server, at) = serve_configured(&site, config, "bulk", &content)?;
    let mut curl = site.testbed.load().command("curl");
    let output = curl
        .args(["-sS", "--fail", "-o", "/dev/null"])
        .args(["-w", "%{size_download} %{speed_download}"])
        .arg(format!("http://{at}/bulk"))
        .package("curl")
        .output(LIMIT)?;
    server.stop()?;
    let said = String::from_utf8_lossy(&output.stdout);
    let bytes_per_s = said.split_once(' ').and_then(|(size, speed)| {
        let whole = size.parse() == Ok(FILE_BYTES);
        whole.then(|| speed.trim().parse::<f64>().ok()).flatten()
    });
    let bytes_per_s = bytes_per_s.ok_or_else(|| Error::Tool {
        tool: "curl",
        problem: format!("did not get the whole file: {said}"),
    })?;
    Ok(bytes_per_s * 8.0 / 1e9)
}
