//! What the tests of `plimsoll guard` share.

#![allow(dead_code, reason = "each program uses its part")]

pub(crate) mod machine;
pub(crate) mod overload;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::Duration;

use plimsoll_testbed::{Host, Process};

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_plimsoll");
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// Runs `plimsoll guard` to its end; returns what it wrote to standard error.
pub(crate) fn refused(host: &Host, arguments: &[&str]) -> String {
    let error = host
        .command(PROGRAM)
        .arg("guard")
        .args(arguments)
        .output(LIMIT)
        .unwrap_err();
    error.to_string()
}

/// Starts the guard and waits for its first line: from then on it protects.
/// Its output is read as long as the reader lives.
pub(crate) fn start(host: &Host) -> (Process, impl BufRead + use<>) {
    start_with(host, &[])
}

/// As [`start`], with more arguments.
pub(crate) fn start_with(host: &Host, arguments: &[&str]) -> (Process, impl BufRead + use<>) {
    start_logging(host, arguments, Stdio::inherit())
}

/// As [`start_with`], with what it writes to standard error somewhere else.
pub(crate) fn start_logging(
    host: &Host,
    arguments: &[&str],
    log: Stdio,
) -> (Process, impl BufRead + use<>) {
    let mut command = host.command(PROGRAM);
    let stands_by = arguments.contains(&"--standby");
    // From the start, though it is a veth.
    let attached = if stands_by {
        None
    } else {
        Some("--standby=false")
    };
    command
        .args(["guard", host.device(), "--json", "-"])
        .args(attached)
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(log)
        .own_session();
    let mut process = command.spawn().unwrap();
    let mut line = String::new();
    let mut output = BufReader::new(process.take_stdout().unwrap());
    output.read_line(&mut line).unwrap();
    let first: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(first["schema"], 1);
    assert_eq!(first["interface"], host.device());
    assert!(first["totals"]["udp_socket"]["admitted"].is_u64(), "{line}");
    (process, output)
}

/// What a command that succeeds writes to standard output.
pub(crate) fn output(host: &Host, arguments: &[&str]) -> String {
    let output = host
        .command(PROGRAM)
        .arg("guard")
        .args(arguments)
        .own_session()
        .output(LIMIT)
        .unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// The process that keeps the settings of a running guard.
pub(crate) fn keeper_of(guard: &Process) -> u32 {
    let is_child = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let parent = stat
            .rsplit(')')
            .next()
            .and_then(|rest| rest.split(' ').nth(2));
        parent == Some(&guard.pid().to_string())
    };
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let children: Vec<u32> = pids.filter(is_child).collect();
    assert_eq!(children.len(), 1, "a guard has one child: {children:?}");
    children[0]
}

/// One request over HTTP/1.1; returns the head and the body.
pub(crate) fn get(host: &Host, address: (&str, u16), path: &str, accept: &str) -> (String, String) {
    let mut stream = host.run(|| TcpStream::connect(address)).unwrap().unwrap();
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: plimsoll\r\nAccept: {accept}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}
