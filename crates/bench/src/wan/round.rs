//! One way's turn: a path made anew, a server, and connections that fetch files.

use std::path::Path;
use std::time::Duration;

use plimsoll_testbed::fetch::Fetcher;
use plimsoll_testbed::server::Server;
use plimsoll_testbed::wide_area::{PathConfig, Report, WideArea};
use plimsoll_testbed::{Config as TestbedConfig, interrupt};

use super::{Plan, Transfer, Way};
use crate::Error;

/// Connections that fetch each file one after the other.
const CONNECTIONS: usize = 3;
/// What a connection fetches first.
const FIRST_PACKETS: u32 = 300;
/// What a TCP segment with time stamps carries in a frame of 1514 bytes.
const PACKET_BYTES: u64 = 1448;
/// Of the server's head, about.
const HEAD_BYTES: u64 = 200;
/// A fetch that takes longer has failed.
const LIMIT: Duration = Duration::from_secs(30);
/// Frames of a round whose times are kept.
const PASSAGES_MAX: usize = 100_000;

/// Content of a file whose answer fills so many packets.
pub(super) fn bytes(packets: u32) -> u64 {
    u64::from(packets) * PACKET_BYTES - HEAD_BYTES
}

/// Adds the response times to `transfers` and tells what the path did, and what it was.
pub(crate) fn measure(
    plan: &Plan,
    way: Way,
    rate_mbit: u32,
    transfers: &mut [Transfer],
) -> Result<(Report, &'static str), Error> {
    let place = tempfile::tempdir().map_err(writing)?;
    let lengths = transfers.iter().map(|transfer| transfer.packets);
    for packets in lengths.chain([FIRST_PACKETS]) {
        write_file(place.path(), packets)?;
    }
    let config = PathConfig {
        passages_max: PASSAGES_MAX,
        by: plan.path,
        ..PathConfig::of_megabits(rate_mbit)
    };
    let path = WideArea::create(TestbedConfig::default(), config)?;
    way.prepare(path.far())?;
    let (mut config, at) = way.server(path.far(), rate_mbit);
    config.root = Some(place.path().to_owned());
    let server = Server::start(path.far(), &plan.program, &config)?;
    let connect = |_| Ok(Fetcher::connect(path.near(), at, LIMIT)?);
    let connections: Result<Vec<Fetcher>, Error> = (0..CONNECTIONS).map(connect).collect();
    let mut connections = connections?;
    for connection in &mut connections {
        fetch(&path, connection, FIRST_PACKETS)?;
    }
    for transfer in transfers {
        interrupt::sleep(plan.idle)?;
        for connection in &mut connections {
            let took = fetch(&path, connection, transfer.packets)?;
            transfer.response_ms.push(took.as_secs_f64() * 1e3);
        }
    }
    drop(connections);
    server.stop()?;
    let carried_by = path.carried_by();
    Ok((path.stop()?, carried_by))
}

fn fetch(path: &WideArea, connection: &mut Fetcher, packets: u32) -> Result<Duration, Error> {
    let name = format!("/{packets}");
    let fetched = path.near().run_on_cpu(|| connection.fetch(&name))??;
    if fetched.content_bytes != bytes(packets) {
        return Err(Error::Tool {
            tool: "plimsoll serve http",
            problem: format!("sent {} bytes of {name}", fetched.content_bytes),
        });
    }
    Ok(fetched.took)
}

fn write_file(place: &Path, packets: u32) -> Result<(), Error> {
    let content = vec![b'x'; bytes(packets) as usize];
    std::fs::write(place.join(packets.to_string()), content).map_err(writing)
}

fn writing(source: std::io::Error) -> Error {
    Error::Traffic {
        action: "write the files that are fetched",
        source,
    }
}
