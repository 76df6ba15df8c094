//! Compiles the BPF programs.

fn main() {
    plimsoll_bpf_build::compile("meter");
    plimsoll_bpf_build::compile("meter_steps");
    plimsoll_bpf_build::compile("pass_all");
    plimsoll_bpf_build::compile("sockets");
}
