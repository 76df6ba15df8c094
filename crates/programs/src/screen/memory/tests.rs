//! The program, packet by packet, by the kernel's test-run facility. Needs root.

use libbpf_rs::ProgramInput;
use plimsoll_kernel::{link, namespace};
use plimsoll_packets::host::Host;
use plimsoll_packets::{corpus, frame};

use super::*;
use crate::clock;
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
    let inside = move || {
        let mut place = MaybeUninit::uninit();
        let loaded = load(&mut place, Some(FLOWS)).expect("root, to load BPF programs");
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
    Instant::from_nanos(clock::monotonic_ns())
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
