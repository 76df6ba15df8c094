//! Compiles the crate's BPF programs.

fn main() {
    plimsoll_bpf_build::compile("steer");
    plimsoll_bpf_build::compile("refused");
    plimsoll_bpf_build::compile("take");
}
