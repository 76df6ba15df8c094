//! A hundred busy connections alone and beside 9,900 that are open and silent, and the memory
//! that those take.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use plimsoll_testbed::allow_descriptors;
use plimsoll_testbed::http::{FILE_BYTES, HttpLoad, run_wrk};
use plimsoll_testbed::server::Kind;
use serde::Serialize;

use super::http::serve_configured;
use super::site::{Answers, Site};
use super::turns::{SideCase, in_turns};
use super::{Effort, Plan, Side};
use crate::Error;

const PORT: u16 = 80;
const BUSY: u32 = 100;
/// With the busy ones 10,000.
pub(super) const IDLE: u32 = 9_900;
/// Whole seconds, as wrk counts.
const SECONDS: u32 = 2;
const PATIENCE: Duration = Duration::from_secs(4);
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
const REQUEST: &[u8] = b"GET /index.html HTTP/1.1\r\nHost: x\r\n\r\n";
const SIDES: [Side; 3] = [Side::Kernel, Side::NiLrp, Side::SoftLrp];

/// A server of busy connections and of idle ones.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct IdleRun {
    /// Answered requests per second of the busy ones, alone.
    pub alone_rps: f64,
    /// The same, beside the idle ones.
    pub beside_rps: f64,
    /// Idle connections that were there to the end.
    pub idle: usize,
    /// The server's memory that each of them took, in bytes.
    pub bytes_each: f64,
    /// What the server held with places for all connections, before there were any.
    pub bytes_before: f64,
}

pub(super) fn measure(
    plan: &Plan,
    progress: &mut impl FnMut(&str),
) -> Result<Vec<SideCase<IdleRun>>, Error> {
    let sides = SIDES.into_iter().filter(|side| plan.sides.contains(side));
    let sides: Vec<Side> = sides.collect();
    in_turns(plan, ("idle", &sides), Side::name, progress, |side| {
        one_run(&plan.effort, side)
    })
}

fn one_run(effort: &Effort, side: Side) -> Result<IdleRun, Error> {
    allow_descriptors()?;
    let site = Site::new(effort, Answers::Received)?;
    let load = site.testbed.load();
    let mut config = side.server(Kind::Http, PORT, site.testbed.test().device());
    // A place is left: where none is, idle connections end early.
    config.connections = (IDLE + BUSY + 1) as u16;
    let page = "x".repeat(FILE_BYTES);
    let (server, at) = serve_configured(&site, config, "index.html", page.as_bytes())?;
    let bytes_before = resident_bytes(server.pid())?;
    let served = || {
        let load_of_busy = HttpLoad {
            connections: BUSY,
            seconds: SECONDS,
            keep_alive: true,
            patience: PATIENCE,
        };
        Ok::<_, Error>(run_wrk(load, at, load_of_busy)?.requests_per_second)
    };
    let alone_rps = served()?;
    let without = resident_bytes(server.pid())?;
    let idle = load.run_on_cpu(|| open(at))?.map_err(unreachable)?;
    let with = resident_bytes(server.pid())?;
    let beside_rps = served()?;
    let there = idle.iter().filter(|stream| is_open(stream)).count();
    drop(idle);
    server.stop()?;
    Ok(IdleRun {
        alone_rps,
        beside_rps,
        idle: there,
        bytes_each: (with - without) / f64::from(IDLE),
        bytes_before,
    })
}

/// Connections that each got one answer.
fn open(at: SocketAddr) -> std::io::Result<Vec<TcpStream>> {
    let mut streams = Vec::new();
    for _ in 0..IDLE {
        let mut stream = TcpStream::connect(at)?;
        stream.set_read_timeout(Some(ANSWER_WITHIN))?;
        stream.write_all(REQUEST)?;
        let (mut got, mut chunk) = (0, [0; 4096]);
        while got < FILE_BYTES {
            match stream.read(&mut chunk)? {
                0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                length => got += length,
            }
        }
        stream.set_nonblocking(true)?;
        streams.push(stream);
    }
    Ok(streams)
}

/// Nothing came, also no end.
fn is_open(stream: &TcpStream) -> bool {
    let mut byte = [0];
    let peeked = stream.peek(&mut byte);
    // What was left of the answer's end.
    peeked.map_or_else(
        |error| error.kind() == std::io::ErrorKind::WouldBlock,
        |length| length > 0,
    )
}

fn unreachable(source: std::io::Error) -> Error {
    Error::Traffic {
        action: "open idle connections",
        source,
    }
}

/// The process's resident memory (`proc_pid_status(5)`).
fn resident_bytes(pid: u32) -> Result<f64, Error> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
    let status = status.map_err(|source| Error::Traffic {
        action: "read a server's memory",
        source,
    })?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    kib.map(|kib| kib * 1024.0).ok_or_else(|| Error::Tool {
        tool: "/proc",
        problem: "no VmRSS of the server".to_owned(),
    })
}
