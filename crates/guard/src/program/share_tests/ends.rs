//! Shares end with whoever adapts them.

use std::collections::BTreeMap;
use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use nix::unistd::{dup, dup2};

use crate::Guard;
use crate::program::SLOT_SOCKETS;
use crate::program::test_host::{ip, with_guard};

/// A step, and what it is called.
type Step = (&'static str, fn(&mut Guard<'_>));

/// Regulates while the kernel does not tell how many packets came.
fn regulate_in_vain(guard: &mut Guard<'_>) {
    let totals = guard.program.skeleton.maps.totals.as_fd().as_raw_fd();
    // SAFETY: the map's descriptor, which stays open and is libbpf's to close.
    let mut place = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(totals) });
    let kept = dup(&*place).unwrap();
    dup2(File::open("/dev/null").unwrap(), &mut place).unwrap();
    let regulated = guard.regulate();
    dup2(kept, &mut place).unwrap();
    regulated.unwrap_err();
    guard.regulate().unwrap();
}

/// Of shares that nobody adapts any more, the last ones would hold a calm host back: of a program that
/// was handed on until it notices that nobody is there, of one that stands by when it is attached again,
/// of one whose counts cannot be read as long as that is so.
#[test]
fn whoever_attaches_detaches_hands_on_errs_or_is_set_anew_sheds_nothing() {
    const STEPS: [Step; 5] = [
        ("attached", |guard| guard.attach_now().unwrap()),
        ("erred", regulate_in_vain),
        ("set anew", |guard| {
            let config = guard.config;
            guard.configure(&config).unwrap();
        }),
        ("handed on", |guard| assert!(guard.hand_on().is_some())),
        ("detached", |guard| guard.detach().unwrap()),
    ];
    with_guard(|guard| {
        ip("link add v0 type veth peer name v1");
        ip("link set v0 up");
        guard.prepare(None, "v0").unwrap();
        for (what, step) in STEPS {
            let of_a_socket = BTreeMap::from([(SLOT_SOCKETS, 7)]);
            guard.program.set_shares(Some((1, &of_a_socket)));
            step(guard);
            assert_eq!(guard.program.settings().shedding, 0, "{what}");
            // Else it would hold from when input is shed again.
            let allowance = guard.program.allowances.get(SLOT_SOCKETS as usize);
            assert_eq!(allowance.share_packets, 0, "{what}");
        }
    });
}
