//! A filter for the interpreter in the driver (`bpf/classic.h`).

use libbpf_rs::{MapCore, MapFlags};
use plimsoll_stack::device::packet::Instruction;

/// Of an instruction there.
const INSTRUCTION_BYTES: usize = 8;

/// Puts a filter in the program's map, which has room for it.
pub(crate) fn put(map: &impl MapCore, filter: &[Instruction]) -> libbpf_rs::Result<()> {
    let mut all = (0_u32..).zip(filter);
    all.try_for_each(|(place, one)| map.update(&place.to_ne_bytes(), &laid_out(one), MapFlags::ANY))
}

/// As `struct instruction`.
fn laid_out(one: &Instruction) -> [u8; INSTRUCTION_BYTES] {
    let mut bytes = [0; INSTRUCTION_BYTES];
    bytes[..2].copy_from_slice(&one.code.to_ne_bytes());
    bytes[2..4].copy_from_slice(&[one.jump_true, one.jump_false]);
    bytes[4..].copy_from_slice(&one.operand.to_ne_bytes());
    bytes
}
