//! Compiles the BPF program.

fn main() {
    plimsoll_bpf_build::compile("triggers");
}
