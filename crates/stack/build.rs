//! Compiles the crate's BPF program.

fn main() {
    plimsoll_bpf_build::compile("steer");
}
