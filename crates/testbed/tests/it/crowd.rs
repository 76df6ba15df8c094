//! Many clients in one process: a server sees each under its own address, and answers
//! are given to whom they belong. Needs root.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use plimsoll_testbed::Testbed;
use plimsoll_testbed::crowd::{self, Client, Config, Report};
use plimsoll_testbed::dns::Nsd;

use crate::common::{self, create};

fn config(target: SocketAddr, clients: usize, rate_qps: f64) -> Config {
    let SocketAddr::V4(target) = target else {
        panic!("{target}")
    };
    let client = |number: usize| Client {
        address: Ipv4Addr::from(0x4600_000a + 0x1_0000 * number as u32),
        rate_qps,
    };
    Config {
        target,
        clients: (0..clients).map(client).collect(),
        duration: Duration::from_secs(1),
        timeout: Duration::from_millis(500),
        realtime: false,
    }
}

fn run(testbed: &Testbed, config: &Config) -> Report {
    testbed.route_all().unwrap();
    testbed.own(&["70.0.0.0/8".parse().unwrap()]).unwrap();
    let report = testbed.load().run_on_cpu(|| crowd::run(config));
    report.unwrap().unwrap()
}

#[test]
fn a_name_server_answers_every_client() {
    let testbed = create();
    let nsd = Nsd::start(testbed.test(), 53).unwrap();
    let report = run(&testbed, &config(nsd.address(), 50, 20.0));
    assert_eq!(report.send_errors, 0);
    let total = report.total();
    assert_eq!(total.asked, 1000);
    assert_eq!(total.answered, total.asked);
    assert!(report.by_client().iter().all(|tally| tally.answered == 20));
    assert!(report.longest_without() < Duration::from_millis(60));
}

/// Answers nobody in 70.2.0.0/16, and others twice, until nothing comes after `is_over`. Returns
/// the questions of each.
fn serve(socket: &UdpSocket, is_over: &AtomicBool) -> HashMap<Ipv4Addr, u32> {
    let mut buffer = [0; 512];
    let mut seen = HashMap::new();
    loop {
        let last = is_over.load(Ordering::Relaxed);
        match socket.recv_from(&mut buffer) {
            Ok((length, SocketAddr::V4(from))) => {
                *seen.entry(*from.ip()).or_default() += 1;
                if from.ip().octets()[1] != 2 {
                    for _ in 0..2 {
                        socket.send_to(&buffer[..length], from).unwrap();
                    }
                }
            }
            Ok((_, from)) => panic!("{from}"),
            Err(_) if last => return seen,
            Err(_) => {}
        }
    }
}

#[test]
fn clients_keep_their_addresses_and_lose_only_their_own_questions() {
    let testbed = create();
    let socket = common::bound(testbed.test(), testbed.test().ipv4());
    socket
        .set_read_timeout(Some(Duration::from_millis(50)))
        .unwrap();
    let config = config(socket.local_addr().unwrap(), 4, 50.0);
    // It once ended where nothing came for 700 ms, which the first question may take.
    let is_over = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&is_over);
    let server = std::thread::spawn(move || serve(&socket, &told));
    let report = run(&testbed, &config);
    is_over.store(true, Ordering::Relaxed);
    let seen = server.join().unwrap();
    let expected: HashMap<Ipv4Addr, u32> = config
        .clients
        .iter()
        .map(|client| (client.address, 50))
        .collect();
    assert_eq!(seen, expected);
    let answered: Vec<u64> = report
        .by_client()
        .iter()
        .map(|tally| tally.answered)
        .collect();
    assert_eq!(answered, [50, 50, 0, 50]);
    assert!(report.longest_without() > Duration::from_millis(900));
}

#[test]
fn an_address_that_is_not_the_hosts_own_is_named() {
    let testbed = create();
    let target = SocketAddrV4::new(testbed.test().ipv4(), 53).into();
    let config = config(target, 1, 10.0);
    let error = testbed
        .load()
        .run(|| crowd::run(&config))
        .unwrap()
        .unwrap_err();
    assert!(error.to_string().contains("70.0.0.10"), "{error}");
}
