//! What a holdoff does: frames that come soon after others wait for it, and what comes after a pause does not. Needs
//! root.

use std::net::UdpSocket as KernelSocket;
use std::thread;
use std::time::{Duration, Instant};

use plimsoll_stack::device::xdp::XdpConfig;
use plimsoll_stack::{Stack, UdpSocket};

use crate::lan::{Lan, SOON, config, owned, xdp};

/// So long that no scheduler's delay is taken for it.
const HOLDOFF: Duration = Duration::from_millis(200);
/// After a poll that found frames, and two that found none, interrupts are back on.
const PAUSE: Duration = Duration::from_millis(3 * 200 + 100);
const TRIES: u32 = 3;

/// How long datagrams take that come after a pause, and those that come right behind them. Whatever else the machine does
/// makes it more: so the least of some.
fn delays(holdoff: Option<Duration>) -> [Duration; 2] {
    let mut least = [Duration::MAX; 2];
    Lan::create(|| {
        let config_of_device = XdpConfig { holdoff, ..owned() };
        let stack = Stack::start(xdp(&config_of_device), &config("soft-lrp")).unwrap();
        let server = UdpSocket::bind(&stack, "10.0.0.2:7").unwrap();
        server.set_read_timeout(Some(SOON)).unwrap();
        let client = KernelSocket::bind("10.0.0.1:0").unwrap();
        client.connect("10.0.0.2:7").unwrap();
        let delay = || {
            let sent = Instant::now();
            client.send(b"hello").unwrap();
            server.recv(&mut [0; 16]).unwrap();
            sent.elapsed()
        };
        // Neighbours are found.
        delay();
        for _ in 0..TRIES {
            thread::sleep(PAUSE);
            for least in &mut least {
                *least = delay().min(*least);
            }
        }
    });
    least
}

/// It was set, and nobody had looked whether it does anything.
#[test]
fn frames_that_follow_others_wait_for_it_and_those_after_a_pause_do_not() {
    let half = HOLDOFF / 2;
    let [after_pause, behind] = delays(None);
    assert!(
        after_pause < half && behind < half,
        "{after_pause:?} {behind:?}"
    );
    let [after_pause, behind] = delays(Some(HOLDOFF));
    assert!(after_pause < half, "{after_pause:?}");
    assert!((half..2 * HOLDOFF).contains(&behind), "{behind:?}");
}
