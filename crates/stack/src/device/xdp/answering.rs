//! Whether the XDP program answers SYNs that a listener has no answers left for.
//!
//! What the program sends back does not arrive everywhere: veth drops it unless its other end polls, and
//! by `XDP_TX` it does not always wake that (`answers_by` of steer.bpf.c).
//! So it answers while nothing speaks against it ([`core::answering`](plimsoll_core::answering)). What the link
//! refuses stops it at once, in the kernel (refused.bpf.c). All else is looked at once a second: whether anybody
//! brings a cookie back. While it does not answer, the stack's own answers are all there are, as on
//! any other device.
//!
//! **Limits.** It answers nothing without copies, which nobody has tried, nor where the kernel cannot tell
//! of refusals (no BTF, or Linux before 6.2).

use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::time::Duration;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Link, MapCore, MapHandle};
use parking_lot::Mutex;
use plimsoll_core::answering::{Answerer, Answering, Seen};
use plimsoll_core::time::Instant;
use plimsoll_kernel::error::CallError;
use plimsoll_kernel::host::{check_btf, check_release};
use plimsoll_kernel::mapped::Mapped;
use plimsoll_kernel::namespace;

use super::program::types::answers_place;
use crate::clock;

include!(concat!(env!("OUT_DIR"), "/refused.rs")); // mod skeleton

const WANTED: usize = answers_place::ANSWERS_WANTED.0 as usize;
const GIVEN: usize = answers_place::ANSWERS_GIVEN.0 as usize;
const REFUSED: usize = answers_place::ANSWERS_REFUSED.0 as usize;
const RETURNED: usize = answers_place::ANSWERS_RETURNED.0 as usize;

/// How often it is looked at.
const INTERVAL: Duration = Duration::from_secs(1);

/// What the program and its owner tell each other of its answers.
pub(super) struct Answers {
    places: Mapped<u64>,
    /// Nothing: the program answers none.
    watch: Mutex<Option<Watch>>,
}

struct Watch {
    answering: Answering,
    answerer: Answerer,
    /// Given, refused and returned up to the last look.
    before: [u64; 3],
    next: Instant,
    _refusals: Vec<Link>,
}

impl Answers {
    pub(super) fn of(map: &impl MapCore) -> Result<Self, CallError> {
        Ok(Self {
            places: Mapped::of(map)?,
            watch: Mutex::default(),
        })
    }

    /// From now on the program answers as long as that is seen to help. Where the kernel does not tell
    /// of what the link refuses, it answers none.
    pub(super) fn begin(&self, map: &MapHandle, ifindex: u32) {
        let Some(refusals) = watch_refusals(map, ifindex) else {
            return;
        };
        *self.watch.lock() = Some(Watch {
            answering: Answering::new(),
            answerer: Answerer::Driver,
            before: self.counted(),
            next: clock::now() + INTERVAL,
            _refusals: refusals,
        });
        self.places.store(WANTED, 1);
    }

    /// To be called about once a second, or more often.
    pub(super) fn tend(&self, now: Instant) {
        let mut watch = self.watch.lock();
        let Some(watch) = watch.as_mut().filter(|watch| watch.next <= now) else {
            return;
        };
        let counted = self.counted();
        let [answered, refused, returned] =
            std::array::from_fn(|at| counted[at] - watch.before[at]);
        (watch.before, watch.next) = (counted, now + INTERVAL);
        let seen = Seen {
            answered,
            refused,
            returned,
            // Whoever takes them is this stack.
            passed: returned,
            taken: returned,
        };
        let answerer = watch.answering.on_interval(now, &seen);
        // A refusal since then stays.
        if std::mem::replace(&mut watch.answerer, answerer) != answerer {
            let wanted = u64::from(answerer == Answerer::Driver);
            self.places.store(WANTED, wanted);
        }
    }

    /// Whether the program answers now.
    pub(super) fn are_given(&self) -> bool {
        self.places.get(WANTED) != 0
    }

    /// SYNs that it has answered.
    pub(super) fn given(&self) -> u64 {
        self.places.get(GIVEN)
    }

    fn counted(&self) -> [u64; 3] {
        [GIVEN, REFUSED, RETURNED].map(|place| self.places.get(place))
    }
}

/// Has the kernel tell of answers that the link refuses, as long as the links live.
fn watch_refusals(map: &MapHandle, ifindex: u32) -> Option<Vec<Link>> {
    check_release().and_then(|()| check_btf()).ok()?;
    let namespace = namespace::inode().ok()?;
    let mut place = MaybeUninit::uninit();
    let mut open = skeleton::RefusedSkelBuilder::default()
        .open(&mut place)
        .ok()?;
    let constants = open.maps.rodata_data.as_deref_mut()?;
    (constants.ifindex, constants.namespace_inode) = (ifindex, namespace);
    open.maps.answers.reuse_fd(map.as_fd()).ok()?;
    let program = open.load().ok()?;
    let programs = &program.progs;
    let all = [
        &programs.on_bulk_transmit,
        &programs.on_exception,
        &programs.on_redirected,
        &programs.on_redirect_error,
    ];
    let links = all.into_iter().map(libbpf_rs::ProgramMut::attach);
    links.collect::<Result<_, _>>().ok()
}

/// The program's answers to SYNs on frames of the kernel's test-run facility, for tests. Needs root.
#[cfg(test)]
pub(crate) mod trial {
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

    use libbpf_rs::ProgramInput;
    use plimsoll_core::demux::Protocol;

    use super::super::XdpConfig;
    use super::super::program::{Program, SteerSkelBuilder, configure};
    use super::*;
    use crate::device::{CookieAnswers, Endpoint, Mac, Takes};

    /// Of the network of the IPv4 address.
    pub(crate) const ALL_HOSTS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 255);
    const SENT_BACK: u32 = 3;
    const DROPPED: u32 = 1;

    /// What the program makes of each frame for port 80 of these addresses, in a VLAN or none (0), whose
    /// listener has no answers left. Nothing where it drops the frame.
    pub(crate) fn answers_of(
        answers: &CookieAnswers,
        mac: Mac,
        (addresses, vlan): ([IpAddr; 2], u16),
        frames: &[Vec<u8>],
    ) -> Vec<Option<Vec<u8>>> {
        let mut place = MaybeUninit::uninit();
        let mut open = SteerSkelBuilder::default()
            .open(&mut place)
            .expect("run as root");
        configure(&mut open, &XdpConfig::default()).unwrap();
        let skeleton = open.load().expect("the kernel takes the program");
        let program = Program::of(&skeleton.maps, None).unwrap();
        for address in addresses {
            program.own(address).unwrap();
        }
        program.add_broadcast(ALL_HOSTS).unwrap();
        let any = IpAddr::from(Ipv6Addr::UNSPECIFIED);
        for at in [any, Ipv4Addr::new(10, 0, 0, 2).into()] {
            let endpoint = Endpoint {
                protocol: Protocol::Tcp,
                local: SocketAddr::new(at, 80),
            };
            program.add_listener(endpoint).unwrap();
            program.set_takes(endpoint, Takes::Known).unwrap();
        }
        program.select_vlan(vlan).unwrap();
        program.know_cookies(answers, mac).unwrap();
        program.answers.places.store(WANTED, 1);
        let answer = |frame: &Vec<u8>| {
            let mut sent = vec![0; 256];
            let input = ProgramInput {
                data_in: Some(frame),
                data_out: Some(&mut sent),
                repeat: 1,
                ..ProgramInput::default()
            };
            let (before, lost) = (program.answers.given(), program.strays().beyond_backlog);
            let run = skeleton.progs.steer.test_run(input).unwrap();
            let (verdict, length) = (run.return_value, run.data.map_or(0, |sent| sent.len()));
            let given = program.answers.given() - before;
            let lost = program.strays().beyond_backlog - lost;
            sent.truncate(length);
            match (verdict, given, lost) {
                (SENT_BACK, 1, 0) => Some(sent),
                (DROPPED, 0, 1) => None,
                other => panic!("{other:?} of {frame:02x?}"),
            }
        };
        frames.iter().map(answer).collect()
    }
}
