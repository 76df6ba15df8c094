//! Shares end with whoever adapts them.

use std::collections::BTreeMap;
use std::process::Command;

use crate::Guard;
use crate::program::test_host::with_guard;

fn ip(line: &str) {
    let status = Command::new("ip").args(line.split(' ')).status();
    assert!(status.expect("iproute2 is installed").success(), "{line}");
}

/// A step, and what it is called.
type Step = (&'static str, fn(&mut Guard<'_>));

/// Of shares that nobody adapts any more, the last ones would hold a calm host back: of a program that
/// was handed on until it notices that nobody is there, of one that stands by when it is attached again.
#[test]
fn whoever_attaches_detaches_hands_on_or_is_set_anew_sheds_nothing() {
    const STEPS: [Step; 4] = [
        ("attached", |guard| guard.attach_now().unwrap()),
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
            let none = BTreeMap::new();
            guard.program.set_shares(Some((1, &none)));
            step(guard);
            assert_eq!(guard.program.settings().shedding, 0, "{what}");
        }
    });
}
