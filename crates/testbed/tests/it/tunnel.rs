//! What is sent to an address in a tunnel arrives at its other end. Needs root.

use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

use plimsoll_testbed::tunnel;

use crate::common::create;

const NEAR: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);
const FAR: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 2);

#[test]
fn datagrams_cross_a_tunnel_both_ways_and_leave_with_it() {
    let testbed = create();
    let (load, test) = (testbed.load(), testbed.test());
    let answered = tunnel::through([(load, NEAR), (test, FAR)], 51820, || {
        let server = test.run(|| UdpSocket::bind((FAR, 9))).unwrap().unwrap();
        let client = load.run(|| UdpSocket::bind((NEAR, 0))).unwrap().unwrap();
        for socket in [&server, &client] {
            socket
                .set_read_timeout(Some(Duration::from_secs(10)))
                .unwrap();
        }
        let mut payload = [0; 2000];
        for size in [1, 100, 1400] {
            client.send_to(&vec![7; size], (FAR, 9)).unwrap();
            let (length, from) = server.recv_from(&mut payload).unwrap();
            server.send_to(&payload[..length], from).unwrap();
            assert_eq!(client.recv(&mut payload).unwrap(), size);
        }
        true
    });
    assert!(answered.unwrap());
    let gone = load.run(|| UdpSocket::bind((NEAR, 0))).unwrap();
    assert!(gone.is_err(), "the tunnel is gone, and its address");
}
