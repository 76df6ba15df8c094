//! The steering program and a plain rule say the same of every frame: for tests and fuzzing, by
//! the kernel's test-run facility. Needs root. Not part of the public interface.

mod rule;

use std::fmt;
use std::mem::MaybeUninit;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, OpenObject, ProgramInput};

pub use self::rule::{Bound, To, Told};
use super::program::{Program, SteerSkel, SteerSkelBuilder, configure};
use super::room::{Room, Rooms};
use super::{MAIN_SOCKET, PLACES_OF_SOCKETS, XdpConfig};
use crate::device::{Endpoint, Takes};

const DROPPED: u32 = 1;
const PASSED: u32 = 2;

/// A program that was told something, and what it counted.
pub struct Steering<'program> {
    skeleton: SteerSkel<'program>,
    _program: Program,
    told: Told,
    rooms: std::sync::Arc<Rooms>,
    /// Nothing is counted for a socket without a limit.
    _limits: Vec<Room>,
    /// Numbers of sockets and, behind them, of channels.
    numbers: Vec<u32>,
}

impl fmt::Debug for Steering<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Steering").finish_non_exhaustive()
    }
}

/// What the program has counted.
#[derive(PartialEq, Eq)]
struct Counted {
    /// By the place in [`Steering::numbers`].
    given: Vec<u64>,
    strays: [u64; 9],
}

impl<'program> Steering<'program> {
    /// Loads the program and tells it.
    ///
    /// # Panics
    ///
    /// If the kernel refuses anything.
    #[must_use]
    pub fn load(place: &'program mut MaybeUninit<OpenObject>, told: Told) -> Self {
        let mut open = SteerSkelBuilder::default()
            .open(place)
            .expect("run as root");
        configure(&mut open, &XdpConfig::default()).expect("a secret");
        let skeleton = open.load().expect("the kernel takes the program");
        let program = Program::of(&skeleton.maps, None).expect("maps");
        let numbers = numbers(&told);
        tell(&program, &told).expect("room for all");
        let rooms = Rooms::of(&skeleton.maps.given, &skeleton.maps.given_up_to).expect("maps");
        let limit = |number: &u32| {
            let room = rooms.open(*number);
            room.limit(u64::MAX);
            room
        };
        Self {
            _limits: numbers.iter().map(limit).collect(),
            skeleton,
            _program: program,
            told,
            rooms,
            numbers,
        }
    }

    /// Program and rule must agree about a frame, of 14 bytes at least. Returns what they say.
    ///
    /// # Panics
    ///
    /// If they do not.
    pub fn check(&self, frame: &[u8]) -> To {
        let before = self.counted();
        let input = ProgramInput {
            data_in: Some(frame),
            repeat: 1,
            ..ProgramInput::default()
        };
        let run = self.skeleton.progs.steer.test_run(input);
        let verdict = run.expect("a frame of 14 bytes at least").return_value;
        let after = self.counted();
        let expected = self.told.decide(frame);
        let (given, strays) = (self.given(&before, &after), &after.strays);
        let dropped = strays[3] - before.strays[3];
        let agreed = match (&expected, &given[..]) {
            (To::Nobody, []) => dropped == 1 && verdict == DROPPED,
            (To::Nobody, [MAIN_SOCKET]) => *strays != before.strays && verdict == PASSED,
            (To::BeyondBacklog, []) => strays[4] == before.strays[4] + 1 && verdict == DROPPED,
            _ if *strays != before.strays || verdict != PASSED => false,
            (To::Kernel, []) | (To::Main, [MAIN_SOCKET]) => true,
            (To::Endpoint(numbers), [number]) => numbers.contains(number),
            (To::Channel(channel), [MAIN_SOCKET, number]) => *number == PLACES_OF_SOCKETS + channel,
            _ => false,
        };
        assert!(
            agreed,
            "{expected:?} is the rule; given to {given:?}, strays {:?} to {strays:?}, verdict \
             {verdict} of {frame:02x?}",
            before.strays
        );
        expected
    }

    /// The numbers whose counts changed.
    fn given(&self, before: &Counted, after: &Counted) -> Vec<u32> {
        let counts = before.given.iter().zip(&after.given);
        let changed = self.numbers.iter().zip(counts);
        let changed = changed.filter(|(_, (before, after))| before != after);
        changed.map(|(number, _)| *number).collect()
    }

    fn counted(&self) -> Counted {
        let given = self.numbers.iter().map(|number| *number as usize);
        let bytes = self.skeleton.maps.strays.lookup(&[0; 4], MapFlags::ANY);
        let bytes = bytes.expect("an array").expect("its only element");
        let mut strays = [0; 9];
        for (number, bytes) in strays.iter_mut().zip(bytes.chunks_exact(8)) {
            *number = u64::from_ne_bytes(bytes.try_into().expect("eight"));
        }
        Counted {
            given: given
                .map(|number| self.rooms.given(number).frames)
                .collect(),
            strays,
        }
    }
}

/// All that frames may be given to.
fn numbers(told: &Told) -> Vec<u32> {
    let mut numbers = vec![MAIN_SOCKET];
    for (_, _, bound) in &told.endpoints {
        match bound {
            Bound::Socket(number) => numbers.push(*number),
            Bound::Group(members) => numbers.extend(members),
            Bound::Listener { .. } => {}
        }
    }
    numbers.sort_unstable();
    numbers.dedup();
    numbers.extend((0..told.connections.len() as u32).map(|channel| PLACES_OF_SOCKETS + channel));
    numbers
}

/// As the stack tells the program.
fn tell(program: &Program, told: &Told) -> libbpf_rs::Result<()> {
    for (address, owned) in &told.addresses {
        match owned {
            true => program.own(*address)?,
            false => program.share(*address)?,
        }
    }
    for (protocol, local, bound) in &told.endpoints {
        let (protocol, local) = (*protocol, *local);
        let endpoint = Endpoint { protocol, local };
        match bound {
            Bound::Socket(number) => program.add_endpoint(endpoint, *number)?,
            Bound::Group(members) => {
                for member in members {
                    program.add_member(endpoint, *member)?;
                }
            }
            Bound::Listener { is_full } => {
                program.add_listener(endpoint)?;
                let takes = if *is_full { Takes::Known } else { Takes::All };
                program.set_takes(endpoint, takes)?;
            }
        }
    }
    for (channel, ends) in (0..).zip(&told.connections) {
        program.add_connection(*ends, channel)?;
    }
    if told.all_channels {
        program.all_connections_have_channels()?;
    }
    match told.vlan {
        0 => Ok(()),
        vlan => program.select_vlan(vlan),
    }
}
