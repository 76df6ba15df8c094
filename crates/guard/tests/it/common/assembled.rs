//! BPF programs of bare instructions, for what the tests need beside the guard's own.

#![allow(unsafe_code, reason = "libbpf-rs does not load bare instructions")]

use std::os::fd::{FromRawFd, OwnedFd};

use libbpf_sys::{bpf_attach_type, bpf_insn, bpf_prog_load_opts, bpf_prog_type};

/// An instruction: its code, the registers that it writes and reads, offset and immediate.
pub(crate) fn instruction(code: u8, registers: (u8, u8), off: i16, imm: i32) -> bpf_insn {
    let mut instruction = bpf_insn {
        code,
        off,
        imm,
        ..Default::default()
    };
    instruction.set_dst_reg(registers.0);
    instruction.set_src_reg(registers.1);
    instruction
}

/// What kind of program it is: its type, where it may be attached, and flags.
pub(crate) type Kind = (bpf_prog_type, bpf_attach_type, u32);

pub(crate) fn load((kind, attach, flags): Kind, instructions: &[bpf_insn]) -> OwnedFd {
    let mut options = bpf_prog_load_opts {
        sz: size_of::<bpf_prog_load_opts>() as u64,
        expected_attach_type: attach,
        prog_flags: flags,
        ..Default::default()
    };
    // SAFETY: names and instructions live through the call, and so do the options.
    let fd = unsafe {
        libbpf_sys::bpf_prog_load(
            kind,
            c"assembled".as_ptr(),
            c"GPL".as_ptr(),
            instructions.as_ptr(),
            instructions.len() as u64,
            &raw mut options,
        )
    };
    assert!(fd >= 0, "the kernel takes the program: {fd}");
    // SAFETY: just opened, and nobody else has it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}
