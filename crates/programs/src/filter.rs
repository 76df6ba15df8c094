//! Filter expressions of pcap-filter(7): compiled by libpcap, run by the kernel or by
//! libpcap's interpreter.
//!
//! Expressions come from operators, packets from anybody. The interpreter checks every
//! read against the packet's length, and its programs have no loops.
//!
//! **Limit.** The kernel takes VLAN tags out of frames before socket filters run, and an
//! expression that is compiled here looks for them in the frame. So an expression that
//! names tags is for whole frames only ([`Filter::names_vlan`]). Any other one sees behind the tag
//! what it looks for in the kernel, and not where it runs on whole frames.

pub(crate) mod in_driver;
pub(crate) mod trace;

use std::fmt;

use pcap::{BpfProgram, Capture, Linktype};
use plimsoll_stack::device::packet::Instruction;

/// A compiled expression, for Ethernet frames.
pub struct Filter {
    expression: String,
    program: BpfProgram,
    instructions: Vec<Instruction>,
}

impl fmt::Debug for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Filter").field(&self.expression).finish()
    }
}

/// Why an expression cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FilterError {
    /// libpcap does not take it.
    #[error("the filter `{expression}` is none: {why} (pcap-filter(7) has the grammar)")]
    Refused {
        /// As it was given.
        expression: String,
        /// libpcap's words.
        why: String,
    },
    /// Only a socket's kernel could answer it, and no socket runs it.
    #[error(
        "the filter `{expression}` asks for what stands in no frame, as its direction, so here it \
         matches nothing: leave `inbound` and `outbound` out. `screen`, `forward` and `capture \
         --mode take` get only frames that came in; `capture --mode copy` knows directions, but \
         not together with `vlan`"
    )]
    NotInFrames {
        /// As it was given.
        expression: String,
    },
}

/// libpcap's answer to an expression.
pub(crate) fn refused(expression: &str, error: pcap::Error) -> FilterError {
    FilterError::Refused {
        expression: expression.to_owned(),
        why: match error {
            pcap::Error::PcapError(text) => text,
            other => other.to_string(),
        },
    }
}

impl Filter {
    /// Compiles `expression`, to be answered from a frame's bytes; an empty one accepts
    /// everything.
    ///
    /// # Errors
    ///
    /// libpcap's words about it, or it asks for what is no byte of a frame.
    pub fn compile(expression: &str) -> Result<Self, FilterError> {
        let filter = Self::for_socket(expression)?;
        filter.check_in_frames()?;
        Ok(filter)
    }

    /// Compiles `expression` for a socket, whose kernel also knows a frame's direction.
    ///
    /// # Errors
    ///
    /// libpcap's words about it.
    pub(crate) fn for_socket(expression: &str) -> Result<Self, FilterError> {
        let refused = |error| refused(expression, error);
        let capture = Capture::dead(Linktype::ETHERNET).map_err(refused)?;
        let program = capture.compile(expression, true).map_err(refused)?;
        Ok(Self::of(expression, program))
    }

    /// What libpcap compiled of `expression`.
    pub(crate) fn of(expression: &str, program: BpfProgram) -> Self {
        let instructions = program.get_instructions().iter();
        Self {
            expression: expression.to_owned(),
            instructions: instructions.map(|one| parse(&one.to_string())).collect(),
            program,
        }
    }

    /// Whether the bytes of a frame answer it.
    pub(crate) fn check_in_frames(&self) -> Result<(), FilterError> {
        if self.instructions.iter().any(loads_no_byte) {
            return Err(FilterError::NotInFrames {
                expression: self.expression.clone(),
            });
        }
        Ok(())
    }

    /// The expression as it was given.
    #[must_use]
    pub fn expression(&self) -> &str {
        &self.expression
    }

    /// Whether the frame passes.
    #[must_use]
    #[inline]
    pub fn accepts(&self, frame: &[u8]) -> bool {
        self.program.filter(frame)
    }

    /// Whether the expression is about VLAN tags, or compares the Ethernet type with one of theirs.
    #[must_use]
    pub fn names_vlan(&self) -> bool {
        let is_word = |byte: char| byte.is_ascii_alphanumeric() || byte == '_';
        let mut words = self.expression.split(|byte| !is_word(byte));
        words.any(|word| word == "vlan") || compares_tag(&self.instructions)
    }

    /// The program, for a socket.
    #[must_use]
    pub fn instructions(&self) -> &[Instruction] {
        &self.instructions
    }
}

/// Whether the kernel would load something else than a byte of the frame (`SKF_AD_OFF`), as its
/// direction. Elsewhere such a load is behind every frame's end, and the frame does not match.
fn loads_no_byte(one: &Instruction) -> bool {
    let is_load = one.code & 7 <= 1;
    let is_of_frame = matches!(one.code & 0xe0, 0x20 | 0x40 | 0xa0);
    is_load && is_of_frame && one.operand.cast_signed() < 0
}

/// Where an untagged frame has its Ethernet type, and a tagged one its tag's.
const TYPE_AT: u32 = 12;
/// `ETH_P_8021Q`, `ETH_P_8021AD` and `ETH_P_QINQ1` of `linux/if_ether.h`.
const TAGS: [u32; 3] = [0x8100, 0x88a8, 0x9100];

/// Whether the type at its first place is compared with a tag's. Jumps lead forward only, so one
/// pass knows all ways to an instruction.
fn compares_tag(program: &[Instruction]) -> bool {
    const LOAD: u16 = 0;
    const LOAD_HALF: u16 = 0x28;
    const JUMP: u16 = 5;
    const JUMP_ALWAYS: u16 = 0x05;
    const JUMP_EQUAL: u16 = 0x15;
    const RETURN: u16 = 6;
    // Whether the accumulator may hold that type at an instruction.
    let mut holds = vec![false; program.len() + 1];
    for (at, one) in program.iter().enumerate() {
        let (held, next) = (holds[at], at + 1);
        let mut reach = |to: usize, held: bool| {
            if let Some(holds) = holds.get_mut(to) {
                *holds |= held;
            }
        };
        match one.code & 7 {
            LOAD => reach(next, one.code == LOAD_HALF && one.operand == TYPE_AT),
            JUMP if one.code == JUMP_ALWAYS => reach(next + one.operand as usize, held),
            JUMP if held && one.code == JUMP_EQUAL && TAGS.contains(&one.operand) => return true,
            JUMP => {
                reach(next + usize::from(one.jump_true), held);
                reach(next + usize::from(one.jump_false), held);
            }
            RETURN => {}
            // Arithmetic changes it; stores and the index register do not.
            class => reach(next, held && class < 4),
        }
    }
    false
}

/// The crate keeps the fields to itself, but prints them as `tcpdump -ddd` does.
fn parse(text: &str) -> Instruction {
    let mut numbers = text.split(' ').map(|word| word.parse::<u32>().ok());
    let mut number = || numbers.next().flatten().expect("four numbers");
    Instruction {
        code: number() as u16,
        jump_true: number() as u8,
        jump_false: number() as u8,
        operand: number(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_packets::frame;

    fn udp(to: &str) -> Vec<u8> {
        frame::udp(
            "10.0.0.1:1000".parse().unwrap(),
            to.parse().unwrap(),
            b"hello",
        )
    }

    #[test]
    fn an_expression_accepts_what_it_says() {
        let filter = Filter::compile("udp and dst port 53").unwrap();
        assert!(filter.accepts(&udp("10.0.0.2:53")));
        assert!(!filter.accepts(&udp("10.0.0.2:54")));
        assert!(!filter.accepts(&[]));
        let all = Filter::compile("").unwrap();
        assert!(all.accepts(&udp("10.0.0.2:54")) && all.accepts(&[1]));
    }

    #[test]
    fn a_wrong_expression_is_told_with_its_fault() {
        let error = Filter::compile("udp and").unwrap_err().to_string();
        assert!(
            error.contains("`udp and`") && error.contains("syntax"),
            "{error}"
        );
        assert!(Filter::compile("host nul\0").is_err());
    }

    #[test]
    fn a_program_for_sockets_ends_in_returns() {
        let filter = Filter::compile("udp port 53").unwrap();
        let program = filter.instructions();
        // BPF_LD | BPF_H | BPF_ABS of the ethertype, first.
        assert_eq!((program[0].code, program[0].operand), (0x28, 12));
        let returns = program.iter().filter(|one| one.code == 6);
        assert!(returns.map(|one| one.operand).any(|bytes| bytes == 0));
    }

    /// They had matched nothing, so that rules that discard let everything pass.
    #[test]
    fn what_stands_in_no_frame_is_refused() {
        for expression in [
            "inbound",
            "outbound and udp port 53",
            "not outbound",
            "udp or (tcp and inbound)",
            "ether[0xfffff004:2] = 4",
        ] {
            let refused = Filter::compile(expression).unwrap_err().to_string();
            assert!(refused.contains("leave `inbound`"), "{refused}");
            assert!(Filter::for_socket(expression).is_ok(), "{expression}");
        }
        for expression in [
            "",
            "greater 100",
            "vlan 7",
            "ip[ip[0] - 60] = 1",
            "ip6 protochain 6",
        ] {
            assert!(Filter::compile(expression).is_ok(), "{expression}");
        }
        // libpcap itself refuses what the link has not.
        for expression in ["ifname eth0", "on eth0", "rulenum 3", "dir in"] {
            assert!(Filter::for_socket(expression).is_err(), "{expression}");
        }
    }

    #[test]
    fn tags_are_noticed() {
        let names = |text: &str| Filter::compile(text).unwrap().names_vlan();
        assert!(names("vlan 7 and ip") && names("(vlan)"));
        assert!(!names("udp"));
    }

    /// In mode `copy` it ran in the kernel, which takes tags out of frames, and matched nothing.
    #[test]
    fn a_type_that_is_a_tags_is_noticed() {
        let names = |text: &str| Filter::compile(text).unwrap().names_vlan();
        for named in [
            "ether proto 0x8100",
            "ether[12:2] = 0x88a8 and ether[14:2] & 0xfff = 7",
            "ip proto 17 or ether proto 33024",
            "ether proto 0x9100 or arp",
            "not ether proto 0x8100",
        ] {
            assert!(names(named), "{named}");
        }
        for other in [
            "udp port 33024",
            "tcp port 0x8100",
            "ip[2:2] = 0x8100",
            "ether proto 0x806",
        ] {
            assert!(!names(other), "{other}");
        }
    }
}
