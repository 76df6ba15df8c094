//! The program that passes everything does, and goes when it is dropped. A test copies all links of
//! its process: so this is a program of its own, lest others' links stay.

#![allow(unsafe_code, reason = "descriptors that other code owns are copied")]

#[path = "it/common/mod.rs"]
#[allow(dead_code, reason = "it uses a part")]
mod common;

use std::fs::{self, DirEntry};
use std::os::fd::{BorrowedFd, OwnedFd};

use common::{bound, create, drain};
use nix::unistd::dup;

#[test]
fn it_passes_frames_and_makes_room_when_dropped() {
    let testbed = create();
    let pass_all = testbed.load().pass_all().unwrap();
    let refused = testbed.load().pass_all().unwrap_err();
    assert!(refused.to_string().contains("XDP"), "{refused}");

    let receiver = bound(testbed.load(), testbed.load().ipv4());
    let sender = bound(testbed.test(), testbed.test().ipv4());
    for _ in 0..10 {
        sender
            .send_to(b"x", receiver.local_addr().unwrap())
            .unwrap();
    }
    assert_eq!(drain(&receiver), 10);

    drop(pass_all);
    testbed.load().pass_all().unwrap();
}

/// A child that another thread is starting has copies of all descriptors until it runs its
/// own program. (Seen in a busy test run: the interface was still taken.)
#[test]
fn it_goes_when_dropped_although_a_child_has_a_copy_of_its_link() {
    let testbed = create();
    let pass_all = testbed.load().pass_all().unwrap();
    let copies = copies_of_links();
    assert!(!copies.is_empty());
    drop(pass_all);
    testbed.load().pass_all().unwrap();
    drop(copies);
}

/// Copies of all descriptors of BPF links that this process has.
fn copies_of_links() -> Vec<OwnedFd> {
    let is_link = |entry: &DirEntry| {
        let file = fs::read_link(entry.path()).unwrap_or_default();
        file.to_string_lossy().contains("bpf_link") || file.to_string_lossy().contains("bpf-link")
    };
    let copy = |entry: DirEntry| {
        let number = entry.file_name().to_string_lossy().parse().unwrap();
        // SAFETY: open when it was listed; if it is closed meanwhile, `dup` says so.
        dup(unsafe { BorrowedFd::borrow_raw(number) }).ok()
    };
    let entries = fs::read_dir("/proc/self/fd").unwrap().flatten();
    entries.filter(is_link).filter_map(copy).collect()
}
