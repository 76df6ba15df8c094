//! Build-script helper shared by the crates that carry BPF programs: compiles
//! `src/bpf/NAME.bpf.c` with clang and writes the libbpf skeleton to
//! `$OUT_DIR/NAME.skel.rs`, where the loader module includes it.
//!
//! The programs use CO-RE with hand-written, partial kernel types (see each
//! `*.bpf.c`), so no `vmlinux.h` is generated or kept.

use std::env;
use std::path::PathBuf;

use libbpf_cargo::SkeletonBuilder;

/// Compiles `src/bpf/{name}.bpf.c` of the calling crate into
/// `$OUT_DIR/{name}.skel.rs`.
///
/// # Panics
///
/// When clang is missing or rejects the program: a build script has no other
/// way to fail. The message names the remedy.
pub fn compile(name: &str) {
    let manifest_dir = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("set by cargo"));
    let out_dir = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo"));
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("set by cargo");
    let bpf_dir = manifest_dir.join("src/bpf");
    println!("cargo:rerun-if-changed={}", bpf_dir.display());

    // `-target bpf` does not search Debian's multiarch directory, where
    // <asm/types.h> lives.
    let multiarch = format!("/usr/include/{arch}-linux-gnu");
    SkeletonBuilder::new()
        .source(bpf_dir.join(format!("{name}.bpf.c")))
        .clang_args([
            "-I",
            &multiarch,
            "-Wall",
            "-Wextra",
            "-Wno-unused-parameter",
            "-Wno-missing-declarations",
            "-Wno-compare-distinct-pointer-types",
            "-Werror",
        ])
        .build_and_generate(out_dir.join(format!("{name}.skel.rs")))
        .unwrap_or_else(|error| {
            panic!(
                "cannot compile {name}.bpf.c: {error:?}\n\
                 clang 14 or newer and the kernel's user headers are needed: run scripts/setup"
            )
        });
}
