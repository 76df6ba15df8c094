//! A file added to `experiments/` must be noticed: the directory itself is watched.

fn main() {
    println!("cargo::rerun-if-changed=../../experiments");
}
