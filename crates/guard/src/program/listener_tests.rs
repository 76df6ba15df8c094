//! The program and `plimsoll_core::fairness` judge the SYNs of a listener alike: of many
//! sources, however full its two queues are. Needs root.

use std::collections::BTreeMap;
use std::mem::offset_of;
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::time::Duration;

use libbpf_rs::{MapCore, MapFlags};
use nix::sys::socket::{Backlog as Listening, listen};
use plimsoll_core::fairness::{
    Backlog, Fairness, FairnessConfig, Keys, Request, Share, Source, SynVerdict,
};
use plimsoll_core::time::{Instant, TICK_SHIFT};
use plimsoll_packets::frame::TcpFlags;

use super::SLOT_SOCKETS;
use super::share_tests::{SILENCE, defer_accept};
use super::test_host::{HOST, from, judged_at, with_guard};
use super::types::{self, answering};
use crate::address::{Class, LocalAddress};
use crate::{Guard, Kind, Outcome, Protection};

const PORT: u16 = 80;
/// All of them are known.
const KNOWN: [u8; 2] = [192, 168];

/// A listener with so many connections that nobody accepts, and so many handshakes that
/// nobody ends.
struct Listener {
    socket: TcpListener,
    waiting: u32,
    half_open: u32,
    _clients: Vec<TcpStream>,
}

impl Listener {
    fn new(waiting: u32, half_open: u32) -> Self {
        let socket = TcpListener::bind((HOST, PORT)).unwrap();
        listen(&socket, Listening::new(128).unwrap()).unwrap();
        let connect = || TcpStream::connect((HOST, PORT)).unwrap();
        let mut clients: Vec<_> = (0..waiting).map(|_| connect()).collect();
        defer_accept(&socket);
        clients.extend((0..half_open).map(|_| connect()));
        Self {
            socket,
            waiting,
            half_open,
            _clients: clients,
        }
    }

    /// With a backlog of so many.
    fn backlog(&self, capacity: u32) -> Backlog {
        let backlog = Listening::new(i32::try_from(capacity).unwrap()).unwrap();
        listen(&self.socket, backlog).unwrap();
        Backlog {
            accept_queue: self.waiting,
            syn_queue: self.half_open,
            capacity,
            cookies: true,
        }
    }
}

/// Packets that the CPUs have told the listener's share that they admitted.
fn told_as_admitted(guard: &Guard<'_>) -> u64 {
    let shares = &guard.program.skeleton.maps.fair_shares;
    let share = shares.lookup(&SLOT_SOCKETS.to_ne_bytes(), MapFlags::ANY);
    let at = offset_of!(types::fair_share, admitted);
    u64::from_ne_bytes(share.unwrap().unwrap()[at..at + 8].try_into().unwrap())
}

/// Both decisions, told the same.
struct Pair<'a, 'obj> {
    guard: &'a mut Guard<'obj>,
    core: Fairness,
    share: Share,
    /// By [`SynVerdict`], of known sources and others.
    seen: [[u32; 4]; 2],
}

impl<'a, 'obj> Pair<'a, 'obj> {
    fn new(guard: &'a mut Guard<'obj>, who: answering) -> Self {
        plimsoll_kernel::namespace::pin(0).unwrap();
        guard.program.set_answering(who);
        let [first, second] = KNOWN;
        let protection = Protection {
            known: vec![format!("{first}.{second}.0.0/16").parse().unwrap()],
            ..Protection::default()
        };
        guard.protect(&protection).unwrap();
        let keys = guard.program.settings().fair_keys;
        let cpus = libbpf_rs::num_possible_cpus().unwrap();
        Self {
            guard,
            core: Fairness::new(&FairnessConfig::for_cpus(cpus), Keys(keys)).unwrap(),
            share: Share::default(),
            seen: [[0; 4]; 2],
        }
    }

    /// The tick by which the program found the server behind, or judged by source.
    fn looked_at(&self, backlog: &Backlog) -> u32 {
        let part = self.guard.program.books.part(SLOT_SOCKETS, 0);
        if part.pressed != 0 || !backlog.is_behind() {
            return judged_at(&part);
        }
        let shares = &self.guard.program.skeleton.maps.fair_shares;
        let share = shares.lookup(&SLOT_SOCKETS.to_ne_bytes(), MapFlags::ANY);
        let share = share.unwrap().unwrap();
        let at = offset_of!(types::fair_share, behind_at);
        let low = u16::from_ne_bytes(share[at..at + 2].try_into().unwrap());
        // Less than 65,536 ticks after the last packet that was judged by source.
        let since = low.wrapping_sub(part.pressed_tick as u16);
        part.pressed_tick.wrapping_add(since.into())
    }

    fn judge(&mut self, source: Ipv4Addr, backlog: &Backlog) {
        let frame = from(source).tcp(4000, PORT, TcpFlags::SYN, &[]);
        let before = *self.guard.counters().unwrap().of(Kind::TcpListener);
        // However long all of them take: a silent loader's program leaves SYNs to the stack.
        self.guard.program.beat();
        let _ = self.guard.test_run(&frame, 1).unwrap();
        let after = *self.guard.counters().unwrap().of(Kind::TcpListener);
        let is = |outcome| after.count(outcome) > before.count(outcome);
        let program = match () {
            () if is(Outcome::Admitted) => SynVerdict::Admitted,
            () if is(Outcome::AcceptQueue) => SynVerdict::AcceptQueue,
            () if is(Outcome::SynQueue) => SynVerdict::Cookie,
            () if is(Outcome::SourceShare) => SynVerdict::SourceShare,
            () => panic!("one of four outcomes"),
        };
        let now = Instant::from_nanos(u64::from(self.looked_at(backlog)) << TICK_SHIFT);
        let known = source.octets()[..2] == KNOWN;
        let request = Request {
            channel: SLOT_SOCKETS,
            source: Source::from(IpAddr::from(source)),
            known,
        };
        let core = self.core.judge_syn(&mut self.share, &request, backlog, now);
        assert_eq!(program, core, "(program, core) of {source} at {backlog:?}");
        self.seen[usize::from(known)][core as usize] += 1;
    }
}

/// Loud and silent hosts, in one network or in many, and known ones.
fn source(random: &mut fastrand::Rng) -> Ipv4Addr {
    let [first, second] = KNOWN;
    match random.u32(..10) {
        0..=3 => Ipv4Addr::new(10, 1, 1, 1),
        4 => Ipv4Addr::new(10, 1, random.u8(..4), random.u8(..)),
        5 => Ipv4Addr::new(20, random.u8(..), 1, 1),
        6 => Ipv4Addr::new(first, second, 0, random.u8(..3)),
        _ => Ipv4Addr::from_bits(random.u32(0x0b00_0000..0x7e00_0000)),
    }
}

/// What was seen of others and of known sources at these backlogs.
fn judge_all(waiting: u32, half_open: u32, backlogs: &[u32], who: answering) -> [[u32; 4]; 2] {
    let mut seen = [[0; 4]; 2];
    with_guard(|guard| {
        let listener = Listener::new(waiting, half_open);
        let mut pair = Pair::new(guard, who);
        let mut random = fastrand::Rng::with_seed(8);
        for capacity in backlogs {
            let mut backlog = listener.backlog(*capacity);
            backlog.cookies = who != answering::ANSWERING_NOBODY;
            for packet in 0..300 {
                if random.u32(..40) == 0 {
                    std::thread::sleep(Duration::from_millis(random.u64(1..15)));
                }
                // Together longer than a burst.
                if packet % 10 == 0 && packet < 30 && backlog.is_behind() {
                    std::thread::sleep(Duration::from_millis(100));
                }
                pair.judge(source(&mut random), &backlog);
            }
        }
        seen = pair.seen;
    });
    seen
}

#[test]
fn the_program_divides_an_accept_queue_as_core_does() {
    // Calm, behind, nearly full, full, and back. The stack would answer with a cookie, which
    // is of no use then.
    let backlogs = [100, 52, 48, 42, 39, 47, 44, 100];
    let [others, known] = judge_all(40, 6, &backlogs, answering::ANSWERING_STACK);
    for verdict in [
        SynVerdict::Admitted,
        SynVerdict::SourceShare,
        SynVerdict::AcceptQueue,
    ] {
        assert!(others[verdict as usize] > 100, "{others:?}");
    }
    assert!(known[SynVerdict::Admitted as usize] > 50, "{known:?}");
}

#[test]
fn the_program_divides_a_syn_queue_as_core_does() {
    // What finds no place and is not admitted can be seen if nobody answers it.
    let backlogs = [100, 45, 43, 41, 39, 44, 42, 100];
    let [others, known] = judge_all(0, 40, &backlogs, answering::ANSWERING_NOBODY);
    for verdict in [
        SynVerdict::Admitted,
        SynVerdict::SourceShare,
        SynVerdict::Cookie,
    ] {
        assert!(others[verdict as usize] > 100, "{others:?}");
    }
    assert!(known[SynVerdict::Admitted as usize] > 50, "{known:?}");
}

#[test]
fn where_cookies_are_made_the_program_leaves_a_syn_queue_with_room_to_whoever_comes() {
    for who in [answering::ANSWERING_STACK, answering::ANSWERING_DRIVER] {
        let seen = judge_all(0, 40, &[100, 45, 43, 41, 100], who);
        let sums = seen.map(|of_class| of_class.iter().sum::<u32>());
        assert_eq!(
            seen.map(|of_class| of_class[SynVerdict::Admitted as usize]),
            sums
        );
    }
}

/// What the share refused was taken off from what had been admitted, although the queue had
/// refused it before, and nobody had counted it. The sum wrapped around, and every source was
/// in profile from then on.
#[test]
fn a_syn_that_finds_no_place_is_not_taken_off_from_what_was_admitted() {
    const SYNS: u64 = 10;
    // Past its SYN queue alone; and with a server that is behind, where no answer would arrive.
    for (waiting, who) in [
        (0, answering::ANSWERING_NOBODY),
        (30, answering::ANSWERING_DRIVER),
    ] {
        with_guard(|guard| {
            let listener = Listener::new(waiting, 40);
            let _backlog = listener.backlog(40);
            guard.program.set_answering(who);
            guard.program.set_shares(Some((1, &BTreeMap::new())));
            let frame = from(Ipv4Addr::new(10, 1, 1, 1)).tcp(4000, PORT, TcpFlags::SYN, &[]);
            let mut sent = 0;
            // Longer than a burst.
            for _ in 0..100 {
                guard.program.beat();
                for _ in 0..SYNS {
                    guard.test_run(&frame, 1).unwrap();
                }
                sent += SYNS;
                std::thread::sleep(Duration::from_millis(5));
            }
            let counters = guard.counters().unwrap();
            let shed = counters.of(Kind::TcpListener).count(Outcome::SourceShare);
            assert!(shed > 0, "{who:?}: {counters:?}");
            let admitted = told_as_admitted(guard);
            assert!(admitted <= sent, "{who:?}: {admitted} of {sent}");
        });
    }
}

/// The address is one of the guarded interface.
fn be_of_interface(guard: &mut Guard<'_>, address: IpAddr) {
    let local = LocalAddress {
        class: Class::Local,
        of_interface: true,
        place: 0,
    };
    let addresses = BTreeMap::from([(address, local)]);
    guard.program.set_local_addresses(&addresses).unwrap();
}

/// What the host allowed may not be so any more.
#[test]
fn a_full_syn_queue_is_the_stack_s_while_the_loader_is_silent() {
    let syn = from(HOST).tcp(4000, PORT, TcpFlags::SYN, &[]);
    let ack = from(HOST).tcp(4000, PORT, TcpFlags::ACK, &[]);
    with_guard(|guard| {
        let listener = Listener::new(0, 40);
        let _backlog = listener.backlog(39);
        be_of_interface(guard, HOST.into());
        let is_as_told = |guard: &mut Guard<'_>, who| {
            guard.program.set_answering(who);
            guard.program.beat();
            let is_nobody = who == answering::ANSWERING_NOBODY;
            assert_eq!(guard.test_run(&syn, 1).unwrap().0, !is_nobody);
            assert_eq!(guard.test_run(&ack, 1).unwrap().0, is_nobody);
        };
        for who in [answering::ANSWERING_NOBODY, answering::ANSWERING_STACK] {
            is_as_told(guard, who);
            std::thread::sleep(SILENCE);
            assert!(guard.test_run(&syn, 1).unwrap().0, "{who:?}");
            assert!(guard.test_run(&ack, 1).unwrap().0, "{who:?}");
        }
        // It comes back with the loader.
        is_as_told(guard, answering::ANSWERING_NOBODY);
    });
}
