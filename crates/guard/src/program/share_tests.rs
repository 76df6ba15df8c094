//! Shares in the BPF program itself: what a tick admits, who is protected, and
//! that every packet is counted once. Needs root.

use std::net::{Ipv4Addr, UdpSocket};
use std::process::Command;

use nix::sched::{CloneFlags, unshare};
use plimsoll_packets::frame::{Packet, TcpFlags};

use super::*;
use crate::{Config, Guard, Storage};

const HOST: Ipv4Addr = Ipv4Addr::LOCALHOST;
const FRAMES: u32 = 100;

/// Runs `test` with a loaded program in a network namespace of its own.
fn with_guard(test: impl FnOnce(&mut Guard<'_>) + Send) {
    std::thread::scope(|scope| {
        let host = scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET)
                .expect("this test makes a network namespace and needs root: run `sudo make test`");
            let status = Command::new("ip")
                .args(["link", "set", "lo", "up"])
                .status();
            assert!(status.expect("iproute2 is installed").success());
            let mut storage = Storage::default();
            let mut guard = Guard::load(&mut storage, &Config::default()).unwrap();
            test(&mut guard);
        });
        host.join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

fn from(source: Ipv4Addr) -> Packet {
    Packet::new(source.into(), HOST.into())
}

/// What becomes of many such frames at once: admitted, and beyond their share.
fn outcome(guard: &mut Guard<'_>, frame: &[u8]) -> (u64, u64) {
    let before = guard.counters().unwrap().all();
    guard.test_run(frame, FRAMES).unwrap();
    let after = guard.counters().unwrap().all();
    assert_eq!(after.offered() - before.offered(), u64::from(FRAMES));
    let new = |outcome| after.count(outcome) - before.count(outcome);
    assert_eq!(
        new(Outcome::Admitted) + new(Outcome::Share),
        u64::from(FRAMES)
    );
    (new(Outcome::Admitted), new(Outcome::Share))
}

/// The run may cross the end of a tick, and then gets two ticks' share.
fn is_share_of(packets: u64, admitted: u64) -> bool {
    admitted == packets || admitted == 2 * packets
}

#[test]
fn a_tick_admits_a_share_of_each_channel_and_all_again_afterwards() {
    with_guard(|guard| {
        let closed = from(HOST).udp(4000, 9, &[]);
        let icmp = from(HOST).icmp(8, &[0; 16]);
        guard.program.set_shares(Some((7, &BTreeMap::new())));
        let (admitted, shed) = outcome(guard, &closed);
        assert!(is_share_of(7, admitted), "{admitted}");
        assert!(shed > 0);
        assert!(
            outcome(guard, &icmp).0 >= 7,
            "another kind has its own share"
        );
        guard.program.set_shares(None);
        assert_eq!(outcome(guard, &closed), (u64::from(FRAMES), 0));
    });
}

#[test]
fn a_slot_with_an_allowance_of_its_own_goes_by_it() {
    with_guard(|guard| {
        let _server = UdpSocket::bind((HOST, 5000)).unwrap();
        let frame = from(HOST).udp(4000, 5000, &[]);
        guard.test_run(&frame, 1).unwrap();
        let slot = guard.program.sockets()[0].0;
        let slots = BTreeMap::from([(slot, 30)]);
        guard.program.set_shares(Some((2, &slots)));
        let (admitted, _) = outcome(guard, &frame);
        assert!(is_share_of(30, admitted), "{admitted}");
        let (admitted, _) = outcome(guard, &from(HOST).udp(4000, 9, &[]));
        assert!(is_share_of(2, admitted), "{admitted}");
        let cpus = u32::try_from(libbpf_rs::num_possible_cpus().unwrap()).unwrap();
        let demands: BTreeMap<u32, u64> = (0..cpus)
            .flat_map(|cpu| guard.program.demands(cpu).collect::<Vec<_>>())
            .filter(|(_, packets)| *packets > 0)
            .fold(BTreeMap::new(), |mut all, (slot, packets)| {
                *all.entry(slot).or_default() += packets;
                all
            });
        assert_eq!(demands.get(&slot), Some(&u64::from(FRAMES)));
    });
}

#[test]
fn protected_traffic_goes_by_the_protected_share() {
    with_guard(|guard| {
        let friend = Ipv4Addr::new(203, 0, 113, 5);
        let protection = Protection {
            sources: vec!["203.0.113.0/24".parse().unwrap()],
            ..Protection::default()
        };
        guard.protect(&protection).unwrap();
        let slots = BTreeMap::from([(SLOT_PROTECTED, 40)]);
        guard.program.set_shares(Some((1, &slots)));
        let ssh = from(HOST).tcp(4000, 22, TcpFlags::SYN, &[]);
        let http = from(HOST).tcp(4000, 80, TcpFlags::SYN, &[]);
        let udp_22 = from(HOST).udp(4000, 22, &[]);
        let from_friend = from(friend).udp(4000, 9, &[]);
        assert!(is_share_of(40, outcome(guard, &ssh).0));
        assert!(is_share_of(1, outcome(guard, &http).0));
        assert!(is_share_of(1, outcome(guard, &udp_22).0), "TCP's port 22");
        std::thread::sleep(Duration::from_millis(10));
        assert!(is_share_of(40, outcome(guard, &from_friend).0));

        guard
            .protect(&Protection {
                ports: vec![(Transport::Udp, 22)],
                ..Protection::default()
            })
            .unwrap();
        std::thread::sleep(Duration::from_millis(10));
        assert!(
            is_share_of(1, outcome(guard, &ssh).0),
            "no longer protected"
        );
        assert!(is_share_of(1, outcome(guard, &from_friend).0));
        assert!(is_share_of(40, outcome(guard, &udp_22).0));
    });
}

#[test]
fn a_protected_owner_s_socket_is_protected() {
    with_guard(|guard| {
        let _server = UdpSocket::bind((HOST, 5000)).unwrap();
        let frame = from(HOST).udp(4000, 5000, &[]);
        guard.test_run(&frame, 1).unwrap();
        guard.assign(|_, _, port| (None, port == 5000));
        let slots = BTreeMap::from([(SLOT_PROTECTED, 40)]);
        guard.program.set_shares(Some((1, &slots)));
        assert!(is_share_of(40, outcome(guard, &frame).0));
        guard.assign(|_, _, _| (None, false));
        std::thread::sleep(Duration::from_millis(10));
        assert!(is_share_of(1, outcome(guard, &frame).0));
    });
}

#[test]
fn a_delay_target_s_limit_discards_below_the_watermark() {
    with_guard(|guard| {
        let server = UdpSocket::bind((HOST, 5000)).unwrap();
        let frame = from(HOST).udp(4000, 5000, &[]);
        let client = UdpSocket::bind((HOST, 0)).unwrap();
        for _ in 0..20 {
            client.send_to(&[0; 64], (HOST, 5000)).unwrap();
        }
        assert!(guard.test_run(&frame, 1).unwrap().0, "far from full");
        let queues: Vec<_> = guard.program.queues().collect();
        assert_eq!(queues.len(), 1);
        let (slot, queue) = queues[0];
        assert_eq!(queue.queued, 20);
        guard.program.set_limit(slot, queue.occupancy / 2);
        guard.program.set_delay_targets(true);
        std::thread::sleep(Duration::from_millis(20));
        assert!(
            !guard.test_run(&frame, 1).unwrap().0,
            "its queue is too long"
        );
        for _ in 0..20 {
            server.recv(&mut [0; 64]).unwrap();
        }
        std::thread::sleep(Duration::from_millis(20));
        assert!(guard.test_run(&frame, 1).unwrap().0, "short again");
    });
}
