//! Filter expressions of pcap-filter(7): compiled by libpcap, run by the kernel or by
//! libpcap's interpreter.
//!
//! Expressions come from operators, packets from anybody. The interpreter checks every
//! read against the packet's length, and its programs have no loops.
//!
//! **Limit.** The kernel takes VLAN tags out of frames before socket filters run, and an
//! expression that is compiled here looks for them in the frame. So an expression that
//! names tags is for whole frames only ([`Filter::names_vlan`]).

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

/// An expression that libpcap does not take.
#[derive(Debug, thiserror::Error)]
#[error("the filter `{expression}` is none: {why} (pcap-filter(7) has the grammar)")]
pub struct FilterError {
    expression: String,
    why: String,
}

/// libpcap's answer to an expression.
pub(crate) fn refused(expression: &str, error: pcap::Error) -> FilterError {
    FilterError {
        expression: expression.to_owned(),
        why: match error {
            pcap::Error::PcapError(text) => text,
            other => other.to_string(),
        },
    }
}

impl Filter {
    /// Compiles `expression`; an empty one accepts everything.
    ///
    /// # Errors
    ///
    /// libpcap's words about it.
    pub fn compile(expression: &str) -> Result<Self, FilterError> {
        let refused = |error| refused(expression, error);
        let capture = Capture::dead(Linktype::ETHERNET).map_err(refused)?;
        let program = capture.compile(expression, true).map_err(refused)?;
        let instructions = program.get_instructions().iter();
        Ok(Self {
            expression: expression.to_owned(),
            instructions: instructions.map(|one| parse(&one.to_string())).collect(),
            program,
        })
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

    /// Whether the expression is about VLAN tags.
    #[must_use]
    pub fn names_vlan(&self) -> bool {
        let is_word = |byte: char| byte.is_ascii_alphanumeric() || byte == '_';
        let mut words = self.expression.split(|byte| !is_word(byte));
        words.any(|word| word == "vlan")
    }

    /// The program, for a socket.
    #[must_use]
    pub fn instructions(&self) -> &[Instruction] {
        &self.instructions
    }
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

    #[test]
    fn tags_are_noticed() {
        let names = |text: &str| Filter::compile(text).unwrap().names_vlan();
        assert!(names("vlan 7 and ip") && names("(vlan)"));
        assert!(!names("udp"));
    }
}
