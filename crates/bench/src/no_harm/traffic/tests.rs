//! What of the traffic can be tested without a flood.

use std::sync::mpsc;

use plimsoll_testbed::{Config, Testbed};

use super::*;

/// The receiver had waited for ever for a sender that nobody could ask. Needs root.
#[test]
fn a_sender_that_cannot_be_asked_is_an_error() {
    let (sender, ended) = mpsc::channel();
    // Not awaited: it would not come back.
    thread::spawn(move || {
        let testbed = Testbed::create(Config::default()).unwrap();
        let flow = Flow {
            packets: 10,
            rate_pps: 1000,
            payload_bytes: 10,
        };
        let (load, test) = (testbed.load(), testbed.test());
        // Nobody sends there.
        let nowhere = SocketAddr::new(load.ipv4().into(), 0);
        let asked = udp(load, test, Receiver::Asking, nowhere, flow);
        drop(testbed);
        sender
            .send(asked.map_err(|error| error.to_string()))
            .unwrap();
    });
    let asked = ended.recv_timeout(Duration::from_secs(20)).unwrap();
    assert_eq!(asked.unwrap_err(), "cannot ask for datagrams");
}

/// The bench had waited for ever for a client that could not connect.
#[test]
fn nobody_is_waited_for_longer_than_a_client_tries() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let error = accept(&listener).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    accept(&listener).unwrap();
}
