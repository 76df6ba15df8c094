//! Compiles the BPF programs.

fn main() {
    plimsoll_bpf_build::compile("forward");
    plimsoll_bpf_build::compile("screen");
    plimsoll_bpf_build::compile("sent");
}
