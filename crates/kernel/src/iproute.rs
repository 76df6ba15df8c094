//! What tests ask of iproute2.

use std::process::Command;

/// Runs ip(8) with these words.
pub(crate) fn ip(words: &str) {
    let status = Command::new("ip").args(words.split(' ')).status();
    assert!(status.expect("iproute2 is installed").success(), "{words}");
}
