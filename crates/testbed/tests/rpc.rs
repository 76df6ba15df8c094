//! A call client keeps a server busy, and gives up what is not answered.

mod common;

use std::net::SocketAddr;
use std::time::Duration;

use common::{bound, create, plimsoll};
use plimsoll_testbed::rpc::{Config, run};
use plimsoll_testbed::server::{Config as ServerConfig, Kind, Server};

fn config(target: SocketAddr) -> Config {
    Config {
        target,
        outstanding: 8,
        duration: Duration::from_millis(300),
        timeout: Duration::from_millis(50),
    }
}

#[test]
fn calls_are_answered_as_fast_as_the_server_works() {
    let testbed = create();
    let mut server = ServerConfig::new(Kind::Echo, 7);
    server.work = Duration::from_micros(100);
    let server = Server::start(testbed.test(), plimsoll(), &server).unwrap();
    let address = SocketAddr::from((testbed.test().ipv4(), 7));
    let client = || run(&config(address));
    let report = testbed.load().run_on_cpu(client).unwrap().unwrap();
    assert!(report.completed > 100, "{report:?}");
    assert_eq!(report.lost, 0, "{report:?}");
    assert!(server.counts().received >= report.completed);
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
