//! How the program is linked: its relocations packed (`DT_RELR`), which saves a megabyte.
//! Needs the C library of Linux distributions from 2022 on (glibc 2.36), older than any
//! kernel that the guard runs on.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|env| env == "gnu") {
        println!("cargo:rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}
