//! A flash crowd: ten thousand honest sources that ask once a second each, at any time in it, and
//! together more than the consumer takes.
//!
//! The goal is that nobody goes without an answer for more than three seconds. It is missed
//! (`turns`), but nobody is worse off than by chance.

use super::*;

const CROWD: u32 = 10_000;
const SECONDS: u64 = 10;
const SECOND_NS: u64 = 1_000_000_000;

/// A second of the crowd. Says when it has served whom, and how many.
fn ask_all(host: &mut Host, order: &mut [u32], served_at: &mut [u64]) -> u32 {
    for place in (1..order.len()).rev() {
        let other = host.random.below(place as u64 + 1) as usize;
        order.swap(place, other);
    }
    let mut served = 0;
    for client in order {
        host.now_ns += SECOND_NS / u64::from(CROWD);
        host.queued = (host.queued - f64::from(host.rate) / f64::from(CROWD)).max(0.0);
        // A /24 each, 64 of them in a /16.
        let address = Ipv4Addr::from(0x4600_000a + *client * 1024);
        let request = Request {
            channel: 3,
            source: IpAddr::from(address).into(),
            known: false,
        };
        if host.judge(&request) == Verdict::Admitted && host.queued < f64::from(CAPACITY) {
            host.queued += 1.0;
            served += 1;
            served_at[*client as usize] = host.now_ns;
        }
    }
    served
}

#[test]
fn a_crowd_is_served_at_full_goodput_and_no_worse_than_by_chance() {
    for rate in [5000, 8000] {
        let mut host = Host::new(rate);
        let mut order: Vec<u32> = (0..CROWD).collect();
        let mut served_at = std::vec![host.now_ns; CROWD as usize];
        let mut served = 0;
        for _ in 0..SECONDS {
            served += ask_all(&mut host, &mut order, &mut served_at);
        }
        let goodput = f64::from(served) / SECONDS as f64;
        assert!(goodput > 0.98 * f64::from(rate), "{goodput} of {rate}");
        let is_starved = |at: &&u64| host.now_ns - **at > 3 * SECOND_NS;
        let starved = served_at.iter().filter(is_starved).count() as f64 / f64::from(CROWD);
        let refused = 1.0 - f64::from(rate) / f64::from(CROWD);
        let by_chance = refused.powi(3);
        assert!(
            starved < 1.3 * by_chance,
            "{starved}, {by_chance} of {rate}"
        );
    }
}
