//! Compiles the BPF programs.

fn main() {
    plimsoll_bpf_build::compile("guard");
    plimsoll_bpf_build::compile("meter");
    plimsoll_bpf_build::compile("sockets");
}
