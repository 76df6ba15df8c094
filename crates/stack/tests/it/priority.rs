//! The TCP thread works at the priority of those it works for (LRP-13, LRP-36).

use std::io::{Read, Write};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use caps::{CapSet, Capability};
use plimsoll_kernel::scheduling::{Level, Scheduling};
use plimsoll_stack::device::simulated::{SimulatedConfig, SimulatedDevice};
use plimsoll_stack::{Stack, StackConfig, TcpListener, TcpStream};

use crate::lan::{in_namespace, threads};

/// No test waits longer for what must come.
const SOON: Duration = Duration::from_secs(20);

/// A client's stack, a server's, and the server's TCP thread.
fn pair() -> (Stack, Stack, i32) {
    let (one, other) = SimulatedDevice::pair(&SimulatedConfig::default()).unwrap();
    let at = |last| StackConfig::at(format!("10.0.0.{last}/24").parse().unwrap());
    let (client, _) = start(one, &at(1));
    let (server, tcp) = start(other, &at(2));
    (client, server, tcp)
}

/// A stack and its TCP thread.
fn start(device: SimulatedDevice, config: &StackConfig) -> (Stack, i32) {
    let before = threads("plimsoll-tcp");
    let stack = Stack::start(device, config).unwrap();
    let mut found = None;
    eventually("its thread has its name", || {
        let mut now = threads("plimsoll-tcp").into_iter();
        found = now.find(|tid| !before.contains(tid));
        found.is_some()
    });
    (stack, found.unwrap())
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + SOON;
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

fn nice_of(thread: i32) -> i32 {
    Scheduling::of(thread).unwrap().nice()
}

/// A connection whose server's end belongs to a thread of its own, which echoes.
struct Owned {
    client: TcpStream,
    owner: i32,
}

impl Owned {
    fn new(stack: &Stack, listener: &TcpListener, nice: i8) -> Self {
        let client = TcpStream::connect(stack, listener.local_addr().unwrap()).unwrap();
        client.set_read_timeout(Some(SOON)).unwrap();
        let (mut accepted, _) = listener.accept().unwrap();
        let (told, tid): (Sender<i32>, Receiver<i32>) = channel();
        thread::spawn(move || {
            let this = nix::unistd::gettid().as_raw();
            Level::nice(nice).give_to(this).unwrap();
            told.send(this).unwrap();
            let mut buffer = [0; 256];
            while let Ok(length @ 1..) = accepted.read(&mut buffer) {
                accepted.write_all(&buffer[..length]).unwrap();
            }
        });
        let owner = tid.recv().unwrap();
        Self { client, owner }
    }

    /// One message there and back.
    fn exchange(&mut self) {
        self.client.write_all(&[7; 100]).unwrap();
        self.client.read_exact(&mut [0; 100]).unwrap();
    }
}

#[test]
fn it_follows_its_owner_up_and_down() {
    in_namespace(follow_up_and_down);
}

fn follow_up_and_down() {
    let (client, server, tcp) = pair();
    let listener = TcpListener::bind(&server, "10.0.0.2:80").unwrap();
    let mut owned = Owned::new(&client, &listener, 7);
    for nice in [7, 12, 0, -4, 3] {
        Level::nice(nice).give_to(owned.owner).unwrap();
        eventually(&format!("the thread is at {nice}"), || {
            owned.exchange();
            nice_of(tcp) == i32::from(nice)
        });
    }
}

/// Footnote 8 of the 1996 paper: of several processes the best priority counts.
#[test]
fn of_two_owners_the_better_one_counts_while_it_has_work() {
    in_namespace(follow_the_better_one);
}

fn follow_the_better_one() {
    let (client, server, tcp) = pair();
    let listener = TcpListener::bind(&server, "10.0.0.2:80").unwrap();
    let mut better = Owned::new(&client, &listener, 3);
    let mut worse = Owned::new(&client, &listener, 15);
    for round in 0..3 {
        eventually(&format!("{round}: the thread is at 3"), || {
            worse.exchange();
            better.exchange();
            nice_of(tcp) == 3
        });
        eventually(&format!("{round}: the thread is at 15"), || {
            worse.exchange();
            nice_of(tcp) == 15
        });
    }
}

/// Nobody but `CAP_SYS_NICE` can take back a worse level, so it is not begun with.
#[test]
fn without_privilege_it_stays_where_it_was() {
    in_namespace(|| {
        caps::drop(None, CapSet::Effective, Capability::CAP_SYS_NICE).unwrap();
        let (client, server, tcp) = pair();
        let before = nice_of(tcp);
        let listener = TcpListener::bind(&server, "10.0.0.2:80").unwrap();
        let mut owned = Owned::new(&client, &listener, 9);
        // Longer than it takes to follow.
        let end = Instant::now() + Duration::from_millis(500);
        while Instant::now() < end {
            owned.exchange();
            assert_eq!(nice_of(tcp), before);
        }
    });
}
