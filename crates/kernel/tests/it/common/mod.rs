//! A host for one test: a network namespace with a veth pair. `v0` is the
//! host's interface. Everything vanishes with the thread, however the test ends.

use std::process::Command;

use plimsoll_kernel::namespace;

/// Runs `test` in a namespace of its own.
pub(crate) fn in_namespace<T: Send>(test: impl FnOnce() -> T + Send) -> T {
    let inside = || {
        ip("link set lo up");
        ip("link add v0 type veth peer name v1");
        ip("link set v0 up");
        ip("link set v1 up");
        test()
    };
    namespace::in_new(inside).expect("these tests make namespaces: run `sudo make test`")
}

/// Runs ip(8) with these words.
pub(crate) fn ip(words: &str) {
    let ip = Command::new("ip").args(words.split(' ')).status();
    assert!(ip.expect("iproute2 is installed").success(), "{words}");
}
