//! Who knew an address of the stack's at another host is told where it is now. Needs root.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use plimsoll_stack::{ProxyConfig, Stack, StackConfig};

use crate::lan::{Lan, SOON, config, owned, run, xdp};

const ELSEWHERE: &str = "02:00:00:00:99:99";

/// What the kernel's side knows of the stack's addresses.
fn known() -> String {
    let output = Command::new("ip")
        .args(["neigh", "show", "dev", "kernel0"])
        .output();
    String::from_utf8(output.unwrap().stdout).unwrap()
}

fn start(announce: bool) -> (Stack, String) {
    for address in ["10.0.0.2", "fd00::2"] {
        run(&format!(
            "ip neigh replace {address} lladdr {ELSEWHERE} dev kernel0 nud reachable"
        ));
    }
    let device = xdp(&owned());
    let mac = device.mac().map(|byte| format!("{byte:02x}")).join(":");
    let config = StackConfig {
        proxies: ProxyConfig {
            announce,
            ..ProxyConfig::default()
        },
        ..config("soft-lrp")
    };
    (Stack::start(device, &config).unwrap(), mac)
}

/// A server that came to another host was found once neighbours asked again.
#[test]
fn addresses_are_announced_to_who_knew_them_elsewhere() {
    Lan::create(|| {
        let (_stack, mac) = start(true);
        let end = Instant::now() + SOON;
        // The kernel believes no other word for a second after it has learnt one: the next one it does.
        while known().matches(&mac).count() < 2 {
            assert!(Instant::now() < end, "{}", known());
            thread::sleep(Duration::from_millis(10));
        }
    });
}

#[test]
fn nobody_is_told_unless_that_is_wanted() {
    Lan::create(|| {
        let (_stack, _) = start(false);
        // Longer than the announcements take.
        thread::sleep(Duration::from_secs(3));
        assert_eq!(known().matches(ELSEWHERE).count(), 2, "{}", known());
    });
}
