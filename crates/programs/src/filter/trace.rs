//! Which bytes of a frame an expression's answer came from.
//!
//! A program of classic BPF is deterministic: another frame with the same bytes in the
//! places that it read takes the same way through it, to the same answer. So to know
//! that an answer holds for all packets of a flow it is enough that all bytes that were
//! read are the flow's. The length of a frame is no byte of it.
//!
//! **Limits.** It is run beside libpcap's interpreter, which decides; tests compare the
//! two. It is slower, and meant for few frames.

use std::ops::Range;

use plimsoll_stack::device::packet::Instruction;

/// Words of a program's memory (`BPF_MEMWORDS`).
const MEMORY_WORDS: usize = 16;
/// The operand is the index register (`BPF_X`).
const BY_INDEX: u16 = 8;

/// The answer to a frame, if it came from bytes that `may_read` alone. `None` also if it
/// asked for the frame's length, or for bytes that it has not.
pub(crate) fn answer(
    program: &[Instruction],
    frame: &[u8],
    may_read: &dyn Fn(Range<usize>) -> bool,
) -> Option<bool> {
    let mut machine = Machine {
        frame,
        may_read,
        accumulator: 0,
        index: 0,
        memory: [0; MEMORY_WORDS],
    };
    let mut place = 0;
    loop {
        let one = program.get(place)?;
        place += 1;
        match one.code & 7 {
            0 => machine.accumulator = machine.load(one)?,
            1 => machine.index = machine.load(one)?,
            2 => *machine.word(one)? = machine.accumulator,
            3 => *machine.word(one)? = machine.index,
            4 => machine.accumulator = machine.compute(one)?,
            5 => place += machine.jump(one)?,
            6 => return Some(machine.returned(one)? != 0),
            _ if one.code & 0xf8 == 0 => machine.index = machine.accumulator,
            _ => machine.accumulator = machine.index,
        }
    }
}

struct Machine<'a> {
    frame: &'a [u8],
    may_read: &'a dyn Fn(Range<usize>) -> bool,
    accumulator: u32,
    index: u32,
    memory: [u32; MEMORY_WORDS],
}

impl Machine<'_> {
    fn load(&mut self, one: &Instruction) -> Option<u32> {
        let bytes = match one.code & 0x18 {
            0x00 => 4,
            0x08 => 2,
            0x10 => 1,
            _ => return None,
        };
        let at = one.operand as usize;
        match one.code & 0xe0 {
            0x00 => Some(one.operand),
            0x20 => self.read(at, bytes),
            0x40 => self.read(at.checked_add(self.index as usize)?, bytes),
            0x60 => self.word(one).copied(),
            // The length of an IPv4 header (`4*([k]&0xf)`).
            0xa0 => Some(4 * (self.read(at, 1)? & 0xf)),
            // The frame's length, and what is none.
            _ => None,
        }
    }

    fn read(&self, at: usize, bytes: usize) -> Option<u32> {
        let range = at..at.checked_add(bytes)?;
        let read = self.frame.get(range.clone())?;
        if !(self.may_read)(range) {
            return None;
        }
        Some(
            read.iter()
                .fold(0, |value, byte| value << 8 | u32::from(*byte)),
        )
    }

    fn word(&mut self, one: &Instruction) -> Option<&mut u32> {
        self.memory.get_mut(one.operand as usize)
    }

    fn operand(&self, one: &Instruction) -> u32 {
        match one.code & BY_INDEX {
            0 => one.operand,
            _ => self.index,
        }
    }

    fn compute(&self, one: &Instruction) -> Option<u32> {
        let (left, right) = (self.accumulator, self.operand(one));
        match one.code & 0xf0 {
            0x00 => Some(left.wrapping_add(right)),
            0x10 => Some(left.wrapping_sub(right)),
            0x20 => Some(left.wrapping_mul(right)),
            0x30 => left.checked_div(right),
            0x40 => Some(left | right),
            0x50 => Some(left & right),
            0x60 => Some(left.checked_shl(right).unwrap_or(0)),
            0x70 => Some(left.checked_shr(right).unwrap_or(0)),
            0x80 => Some(left.wrapping_neg()),
            0x90 => left.checked_rem(right),
            0xa0 => Some(left ^ right),
            _ => None,
        }
    }

    /// How many instructions are skipped.
    fn jump(&self, one: &Instruction) -> Option<usize> {
        let (left, right) = (self.accumulator, self.operand(one));
        let holds = match one.code & 0xf0 {
            0x00 => return Some(one.operand as usize),
            0x10 => left == right,
            0x20 => left > right,
            0x30 => left >= right,
            0x40 => left & right != 0,
            _ => return None,
        };
        Some(usize::from(match holds {
            true => one.jump_true,
            false => one.jump_false,
        }))
    }

    fn returned(&self, one: &Instruction) -> Option<u32> {
        match one.code & 0x18 {
            0x00 => Some(one.operand),
            0x08 => Some(self.index),
            0x10 => Some(self.accumulator),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use plimsoll_packets::host::Host;
    use plimsoll_packets::{corpus, frame};

    use super::answer;
    use crate::filter::Filter;

    /// Whatever bytes may be read, the answer is libpcap's.
    #[test]
    fn it_answers_as_libpcap_does() {
        let expressions = [
            "",
            "arp or icmp6",
            "udp dst portrange 1-1023",
            "tcp[tcpflags] & (tcp-syn|tcp-ack) == tcp-syn",
            "ip6 and not host 2001:db8::1",
            "net 10.0.0.0/8 and (port 53 or port 443)",
            "ip[8] * 3 - 1 > 190 or ip[6] & 0x40 != 0",
            "ether multicast or ether host 02:00:00:00:00:01",
            "udp[8:4] & 0xff0f0000 = 0x68656c6c or udp[8] << 2 > 7 or udp[9] / 3 = 33",
        ];
        let frames = corpus::frames(&corpus::hand_built(&Host::default()));
        let mut answered = 0;
        for expression in expressions {
            let filter = Filter::compile(expression).unwrap();
            for frame in &frames {
                let found = answer(filter.instructions(), frame, &|_| true);
                if let Some(found) = found {
                    answered += 1;
                    assert_eq!(found, filter.accepts(frame), "{expression}: {frame:x?}");
                }
            }
        }
        assert!(answered > 300, "{answered} answers");
    }

    #[test]
    fn what_was_read_is_told() {
        let (from, to) = ("10.0.0.1:1000", "10.0.0.2:53");
        let frame = frame::udp(from.parse().unwrap(), to.parse().unwrap(), b"hello");
        let read = |expression: &str| {
            let seen = RefCell::new(Vec::new());
            let filter = Filter::compile(expression).unwrap();
            let answer = answer(filter.instructions(), &frame, &|range| {
                seen.borrow_mut().push(range);
                true
            });
            (answer, seen.into_inner())
        };
        let (passes, places) = read("ip");
        assert_eq!((passes, places.len()), (Some(true), 1));
        assert_eq!(places[0], 12..14);
        assert_eq!(read("ip[8] = 64").1.last(), Some(&(22..23)));
        assert_eq!(read("greater 20").0, None, "it asks for the length");
        let filter = Filter::compile("udp port 53").unwrap();
        assert_eq!(
            answer(filter.instructions(), &frame, &|range| range.end <= 36),
            None
        );
        assert_eq!(answer(filter.instructions(), &frame[..30], &|_| true), None);
    }
}
