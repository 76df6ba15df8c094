//! The program, packet by packet, by the kernel's test-run facility. Needs root.

use libbpf_rs::ProgramInput;
use plimsoll_kernel::clock::monotonic_ns;
use plimsoll_kernel::{link, namespace};
use plimsoll_packets::host::Host;
use plimsoll_packets::{corpus, frame};

use super::*;
use crate::filter::Filter;
use crate::screen::{Rules, Screen as _};

const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;
const XDP_REDIRECT: u32 = 4;
const FLOWS: u32 = 512;
/// Of the verdicts that count.
const GENERATION: u32 = 7;

/// The program in a namespace of its own, without sockets: what nothing is remembered of
/// passes.
fn with_program(work: impl FnOnce(&Program, &dyn Fn(&[u8]) -> u32) + Send) {
    with_constants(Constants::default(), work);
}

/// The same with other constants, but for the number of flows.
fn with_constants(
    constants: Constants<'_>,
    work: impl FnOnce(&Program, &dyn Fn(&[u8]) -> u32) + Send,
) {
    let constants = Constants {
        flows: Some(FLOWS),
        ..constants
    };
    let inside = move || {
        let mut place = MaybeUninit::uninit();
        let loaded = load(&mut place, constants).expect("root, to load BPF programs");
        let program = Program::of(&loaded).unwrap();
        program.set_generation(GENERATION).unwrap();
        let run = |frame: &[u8]| {
            let input = ProgramInput {
                data_in: Some(frame),
                repeat: 1,
                ..ProgramInput::default()
            };
            loaded.progs.screen.test_run(input).unwrap().return_value
        };
        work(&program, &run);
    };
    namespace::in_new(inside).expect("root, to make a network namespace");
}

fn now() -> Instant {
    Instant::from_nanos(monotonic_ns())
}

fn later() -> Instant {
    now() + Duration::from_secs(60)
}

fn frames() -> Vec<Vec<u8>> {
    let frames = corpus::frames(&corpus::hand_built(&Host::default()));
    // The test-run facility takes nothing below an Ethernet header.
    frames
        .into_iter()
        .filter(|frame| frame.len() >= 14)
        .collect()
}

fn to(port: u16) -> Vec<u8> {
    frame::udp(
        "10.0.0.1:1000".parse().unwrap(),
        ([10, 0, 0, 2], port).into(),
        b"hello",
    )
}

/// A verdict on one flow is that of exactly the frames that are of this flow here.
#[test]
fn the_program_knows_the_flows_that_user_space_knows() {
    with_program(|program, run| {
        let frames = frames();
        let flows: Vec<Option<Flow>> = frames.iter().map(|frame| Flow::of(frame)).collect();
        assert!(frames.iter().all(|frame| run(frame) == XDP_PASS));
        let known: Vec<&Flow> = flows.iter().flatten().collect();
        for flow in known.iter().take(40) {
            program.put(&flow.key, later(), GENERATION, Verdict::Discard);
            for (frame, other) in frames.iter().zip(&flows) {
                let is_same = other.is_some_and(|other| other.key == flow.key);
                let expected = if is_same { XDP_DROP } else { XDP_PASS };
                assert_eq!(run(frame), expected, "{frame:x?}");
            }
            program.verdicts.delete(&flow.key).unwrap();
        }
        assert!(known.len() > 20, "{} flows", known.len());
        assert!(program.discarded().unwrap() >= 20);
    });
}

#[test]
fn a_verdict_ends_by_age_and_with_its_generation() {
    with_program(|program, run| {
        let flow = Flow::of(&to(53)).unwrap();
        let put = |until, generation| {
            program.put(&flow.key, until, generation, Verdict::Discard);
            run(&to(53))
        };
        assert_eq!(put(later(), GENERATION), XDP_DROP);
        assert_eq!(put(now(), GENERATION), XDP_PASS, "too old");
        assert_eq!(put(later(), GENERATION - 1), XDP_PASS, "decided before");
        assert_eq!(put(later(), GENERATION), XDP_DROP);
        program.set_generation(GENERATION + 1).unwrap();
        assert_eq!(run(&to(53)), XDP_PASS, "forgotten");
    });
}

#[test]
fn an_accepted_frame_leaves_by_the_other_interface() {
    with_program(|program, run| {
        let flow = Flow::of(&to(53)).unwrap();
        program.put(&flow.key, later(), GENERATION, Verdict::Accept);
        assert_eq!(run(&to(53)), XDP_PASS, "there is no other interface");
        program.set_other(link::index("lo").unwrap()).unwrap();
        assert_eq!(run(&to(53)), XDP_REDIRECT);
        assert_eq!(run(&to(54)), XDP_PASS);
        assert_eq!(program.discarded().unwrap(), 0);
    });
}

/// More flows than there is room for: the map stays as large as it is.
#[test]
fn what_is_remembered_is_bounded() {
    with_program(|program, run| {
        let ports = 1..=4 * FLOWS as u16;
        for port in ports.clone() {
            let flow = Flow::of(&to(port)).unwrap();
            program.put(&flow.key, later(), GENERATION, Verdict::Discard);
        }
        let known = ports.filter(|port| run(&to(*port)) == XDP_DROP).count();
        assert!((1..=FLOWS as usize).contains(&known), "{known} flows");
    });
}

/// Frames that the rules decide on are decided on in the same way afterwards, or go to
/// the screen.
#[test]
fn nothing_else_is_decided_than_the_screen_would() {
    let text = "default = 'discard'
        [[rule]]\nfilter = 'tcp[tcpflags] & tcp-syn != 0'\nverdict = 'discard'
        [[rule]]\nfilter = 'udp dst portrange 1-1023'\nverdict = 'accept'
        [[rule]]\nfilter = 'ip6 and less 100'\nverdict = 'accept'";
    with_program(|program, run| {
        program.set_other(link::index("lo").unwrap()).unwrap();
        let mut rules = Rules::parse(text).unwrap();
        let protected = Filter::compile("ip[1] = 0x20").unwrap();
        let mut learnt = 0;
        for frame in frames() {
            let verdict = rules.decide(&frame, Side::Inside);
            let flow = Flow::of(&frame).filter(|_| rules.holds_for_flow(&frame, Side::Inside));
            let known = |flow: &Flow| holds(protected.instructions(), &frame, flow);
            if let Some(flow) = flow.filter(|flow| known(flow) == Some(false)) {
                program.put(&flow.key, later(), GENERATION, verdict);
                learnt += 1;
            }
        }
        for frame in frames() {
            let expected = match rules.decide(&frame, Side::Inside) {
                Verdict::Accept => XDP_REDIRECT,
                Verdict::Discard => XDP_DROP,
            };
            let found = run(&frame);
            assert!(found == XDP_PASS || found == expected, "{frame:x?}");
            assert!(found == XDP_PASS || !protected.accepts(&frame));
        }
        // IPv6 only: of IPv4 the protected filter reads a byte that flows do not have.
        assert!(learnt > 0, "{learnt} learnt");
    });
}

/// Everything that libpcap's compiler makes of these: loads of all kinds and sizes, jumps,
/// arithmetic, memory, what a frame lacks, its length.
#[test]
fn the_driver_chooses_what_the_filter_accepts() {
    let expressions = [
        "",
        "arp or icmp6",
        "tcp port 22 or tcp port 179",
        "udp dst portrange 1-1023",
        "tcp[tcpflags] & (tcp-syn|tcp-ack) == tcp-syn",
        "ip6 and not host 2001:db8::1",
        "net 10.0.0.0/8 and (port 53 or port 443)",
        "ip[8] * 3 - 1 > 190 or ip[6] & 0x40 != 0",
        "ether multicast or ether host 02:00:00:00:00:01",
        "udp[8:4] & 0xff0f0000 = 0x68656c6c or udp[8] << 2 > 7 or udp[9] / 3 = 33",
        "udp[0:2] % 7 = 3 or udp[2:2] ^ 5 = 50 or ip[9] >> 1 = 8 or -ip[8] < 9",
        "ip[ip[0] & 15] / ip[1] = 0 or ip[100] = 0",
        "ip[2:2] << ip[8] = 0 or ip[2:2] >> ip[8] = 0",
        "greater 100 or less 50",
        "vlan 5 and udp",
    ];
    let frames = frames();
    let mut chosen = 0;
    for expression in expressions {
        let filter = Filter::compile(expression).unwrap();
        let expected: Vec<bool> = frames.iter().map(|frame| filter.accepts(frame)).collect();
        chosen += expected.iter().filter(|accepts| **accepts).count();
        let constants = Constants {
            protected: Some(filter.instructions()),
            ..Constants::default()
        };
        with_constants(constants, |program, run| {
            let chosen = || {
                program
                    .counted(offset_of!(types::counters, chosen))
                    .unwrap()
            };
            for (frame, expected) in frames.iter().zip(&expected) {
                let before = chosen();
                assert_eq!(run(frame), XDP_PASS);
                assert_eq!(chosen() > before, *expected, "{expression}: {frame:x?}");
            }
        });
    }
    let all = expressions.len() * frames.len();
    assert!(chosen > 100 && all - chosen > 100, "{chosen} of {all}");
}

/// The process is gone: what it accepted once does not pass any more either.
#[test]
fn without_sockets_nothing_passes_a_program_that_fails_closed() {
    let filter = Filter::compile("udp port 54").unwrap();
    let constants = Constants {
        protected: Some(filter.instructions()),
        fails_closed: true,
        ..Constants::default()
    };
    with_constants(constants, |program, run| {
        let flow = Flow::of(&to(53)).unwrap();
        program.put(&flow.key, later(), GENERATION, Verdict::Accept);
        program.set_other(link::index("lo").unwrap()).unwrap();
        for frame in frames().iter().chain(&[to(53), to(54)]) {
            assert_eq!(run(frame), XDP_DROP, "{frame:x?}");
        }
    });
}
