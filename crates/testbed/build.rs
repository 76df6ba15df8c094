//! Compiles the crate's BPF programs.

fn main() {
    plimsoll_bpf_build::compile("bare_router");
    plimsoll_bpf_build::compile("blast");
    plimsoll_bpf_build::compile("burn");
    plimsoll_bpf_build::compile("consume");
}
