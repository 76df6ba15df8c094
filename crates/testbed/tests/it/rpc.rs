//! A call client keeps a server busy, and gives up what is not answered.

use std::net::SocketAddr;
use std::time::Duration;

use plimsoll_testbed::rpc::{Config, run};
use plimsoll_testbed::server::{Config as ServerConfig, Kind, Server};

use crate::common::{bound, create, plimsoll, waited_for_cpu};

const TIMEOUT: Duration = Duration::from_millis(50);
/// Runs until one has the machine's time, at most.
const TRIES: u32 = 20;

fn config(target: SocketAddr) -> Config {
    Config {
        target,
        outstanding: 8,
        work: Duration::ZERO,
        duration: Duration::from_millis(300),
        timeout: TIMEOUT,
    }
}

#[test]
fn calls_are_answered_as_fast_as_the_server_works() {
    let testbed = create();
    let mut server = ServerConfig::new(Kind::Echo, 7);
    server.work = Duration::from_micros(100);
    let server = Server::start(testbed.test(), plimsoll(), &server).unwrap();
    let address = SocketAddr::from((testbed.test().ipv4(), 7));
    let client = || {
        let before = waited_for_cpu(None);
        let report = run(&config(address));
        (report, waited_for_cpu(None) - before)
    };
    for _ in 0..TRIES {
        let before = waited_for_cpu(Some(server.pid()));
        let received = server.counts().received;
        let (report, client_waited) = testbed.load().run_on_cpu(client).unwrap();
        let waited = client_waited + waited_for_cpu(Some(server.pid())) - before;
        let report = report.unwrap();
        assert!(server.counts().received - received >= report.completed);
        if report.lost == 0 && report.completed > 100 {
            return;
        }
        // A call is late if somebody had no CPU for as long as it may take.
        assert!(waited >= TIMEOUT, "nobody waited: {waited:?}, {report:?}");
    }
    panic!("in none of {TRIES} runs did client and server have their CPUs");
}

#[test]
fn calls_without_answer_are_given_up() {
    let testbed = create();
    let mute = bound(testbed.test(), testbed.test().ipv4());
    let target = mute.local_addr().unwrap();
    let client = || run(&config(target));
    let report = testbed.load().run_on_cpu(client).unwrap().unwrap();
    assert_eq!(report.completed, 0);
    assert!(report.lost >= 8, "{report:?}");
}
