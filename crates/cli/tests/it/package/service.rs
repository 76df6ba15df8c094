//! The service as an administrator runs it: the package installed on a machine
//! where systemd has booted, the unit started on an interface, reloaded, killed,
//! stopped, upgraded and removed.

use std::collections::BTreeSet;
use std::thread;

use plimsoll_testbed::{Config, Host, Testbed};
use serde_json::Value;

use super::{INSTALL, PACKAGE, packages};
use crate::common::LIMIT;
use crate::common::machine::Machine;
use crate::common::overload::{Settings, busy_server, flood, flooded, settings};

const UNIT: &str = "plimsoll-guard@test0";
const PORT: u16 = 5000;
const FLOOD_PPS: u64 = 300_000;
/// systemd's grade of the unit's sandbox may not become worse: 0 is none of the
/// dangers it knows, 10 all.
const EXPOSURE_MAX: f64 = 3.5;

/// A machine whose interface has settings to turn without XDP, too.
fn booted(host: &Host) -> Machine<'_> {
    assert_eq!(UNIT, format!("plimsoll-guard@{}", host.device()));
    // With GRO, veth has an instance before and after XDP.
    let mut ethtool = host.command("ethtool");
    ethtool.args(["-K", host.device(), "gro", "on"]);
    ethtool.output(LIMIT).unwrap();
    Machine::boot(host, packages())
}

/// Installs the package. Polling threads, which the guard would turn at its start, have no names in
/// the machine's PID namespace: what it turns under a flood is looked at.
fn install(machine: &Machine<'_>) {
    machine.run(&format!("{INSTALL} {PACKAGE}"));
}

/// Does `work` while a flood has the guard hold off interrupts.
fn while_held_off<T>(
    testbed: &Testbed,
    machine: &Machine<'_>,
    before: &Settings,
    work: impl FnOnce() -> T,
) -> T {
    let host = testbed.test();
    let _server = busy_server(host, PORT);
    let (done, _) = flooded(testbed, &flood(testbed, PORT..=PORT, FLOOD_PPS), || {
        machine.wait("interrupts are held off", || settings(host).0 != *before);
        work()
    });
    done
}

/// [`booted`] with the package, whose guard is attached from the start, though to a veth.
fn installed(host: &Host) -> Machine<'_> {
    let machine = booted(host);
    install(&machine);
    machine.run("echo 'standby = false' >>/etc/plimsoll/guard.toml");
    machine
}

/// Starts the service as the guide says, and waits until it protects.
fn start(machine: &Machine<'_>) {
    let started = machine.try_run(&format!("systemctl enable --now {UNIT}"));
    if let Err(problem) = started {
        panic!("{problem}\n{}", machine.journal());
    }
    machine.wait("the guard answers", || try_status(machine).is_some());
}

fn try_status(machine: &Machine<'_>) -> Option<Value> {
    let status = machine.try_run("plimsoll guard status test0 --json").ok()?;
    serde_json::from_str(&status).ok()
}

fn status(machine: &Machine<'_>) -> Value {
    try_status(machine).unwrap_or_else(|| panic!("no status\n{}", machine.journal()))
}

/// A property of the unit (systemctl(1), `show`).
fn property(machine: &Machine<'_>, name: &str) -> String {
    let shown = machine.run(&format!("systemctl show --value -p {name} {UNIT}"));
    shown.trim().to_owned()
}

/// The id of the XDP program on the interface.
fn program(machine: &Machine<'_>) -> Option<u64> {
    let links = machine.run("ip -j link show test0");
    let links: Value = serde_json::from_str(&links).unwrap();
    links[0]["xdp"]["prog"]["id"].as_u64()
}

/// Packets of an outcome since the start, of all kinds.
fn packets(status: &Value, outcome: &str) -> u64 {
    let kinds = status["kinds"].as_array().unwrap().iter();
    kinds
        .filter_map(|kind| kind["packets"][outcome].as_u64())
        .sum()
}

/// Nothing of a guard is left on the interface, or to be restored.
#[track_caller]
fn assert_restored(machine: &Machine<'_>, host: &Host, before: &Settings) {
    // systemd keeps the link for a guard that follows, and closes it when none does.
    machine.wait("the program is detached", || program(machine).is_none());
    assert_eq!(settings(host).0, *before, "{}", machine.journal());
    let left = machine.run("ls /run/plimsoll/guard 2>/dev/null || true");
    assert_eq!(left, "", "records, locks, sockets");
}

#[test]
fn it_protects_reloads_and_stops() {
    let testbed = Testbed::create(Config::default()).unwrap();
    let host = testbed.test();
    let machine = installed(host);
    let before = settings(host).0;
    start(&machine);
    assert_eq!(property(&machine, "ActiveState"), "active");
    let attached = program(&machine).expect("XDP");
    assert_sandboxed(&machine);

    let _server = busy_server(host, PORT);
    flooded(&testbed, &flood(&testbed, PORT..=PORT, FLOOD_PPS), || {
        machine.wait("it protects", || {
            packets(&status(&machine), "source_share") > 0
        });
    });

    let counted = status(&machine);
    assert_eq!(counted["observe"], false);
    let process = property(&machine, "MainPID");
    machine.run("echo 'observe = true' >>/etc/plimsoll/guard.toml");
    machine.run(&format!("systemctl reload {UNIT}"));
    machine.wait("the settings are read again", || {
        status(&machine)["observe"] == true
    });
    let reloaded = status(&machine);
    for outcome in ["admitted", "source_share"] {
        assert!(packets(&counted, outcome) > 0, "{counted}");
        assert!(
            packets(&reloaded, outcome) >= packets(&counted, outcome),
            "{outcome}"
        );
    }
    assert_eq!(property(&machine, "MainPID"), process);
    assert_eq!(program(&machine), Some(attached));

    machine.run(&format!("systemctl stop {UNIT}"));
    assert_eq!(property(&machine, "Result"), "success");
    assert_restored(&machine, host, &before);
}

/// What the running process may do, as the kernel tells, and systemd's opinion.
fn assert_sandboxed(machine: &Machine<'_>) {
    let process = property(machine, "MainPID");
    let told = machine.run(&format!("cat /proc/{process}/status"));
    let field = |name: &str| {
        let line = told.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap().trim_start_matches(':').trim().to_owned()
    };
    // linux/capability.h: NET_ADMIN, IPC_LOCK, SYS_NICE.
    let kept = (1_u64 << 12) | (1 << 14) | (1 << 23);
    for set in ["CapPrm", "CapEff", "CapBnd"] {
        assert_eq!(u64::from_str_radix(&field(set), 16).unwrap(), kept, "{set}");
    }
    for set in ["CapInh", "CapAmb"] {
        assert_eq!(u64::from_str_radix(&field(set), 16).unwrap(), 0, "{set}");
    }
    assert_eq!(field("NoNewPrivs"), "1");
    assert_eq!(field("Seccomp"), "2", "system calls are filtered");
    // The sandbox's file systems: nothing to write but what it needs.
    let mounts = machine.run(&format!("cat /proc/{process}/mounts"));
    let read_only = |path: &str| {
        let mount = mounts
            .lines()
            .rfind(|line| line.split(' ').nth(1) == Some(path));
        mount
            .and_then(|line| line.split(' ').nth(3))
            .unwrap()
            .starts_with("ro")
    };
    assert!(read_only("/"), "{mounts}");
    assert!(!read_only("/run/plimsoll/guard"), "{mounts}");

    let graded = machine.run(&format!(
        "systemd-analyze security --no-pager {UNIT}.service"
    ));
    let last = graded
        .lines()
        .rfind(|line| line.contains("Overall exposure level"));
    let grade = last
        .and_then(|line| line.split_once("service: "))
        .unwrap()
        .1;
    let grade: f64 = grade.split(' ').next().unwrap().parse().unwrap();
    assert!(grade <= EXPOSURE_MAX, "{graded}");
}

#[test]
fn killed_it_restores_the_settings_and_comes_back() {
    let testbed = Testbed::create(Config::default()).unwrap();
    let host = testbed.test();
    let machine = installed(host);
    let before = settings(host).0;

    // Without the restart, what the stop step leaves can be seen.
    let drop_in = format!("/run/systemd/system/{UNIT}.service.d");
    machine.run(&format!(
        "mkdir {drop_in} && printf '[Service]\\nRestart=no\\n' >{drop_in}/stay.conf && systemctl daemon-reload"
    ));
    start(&machine);
    // The guard and its keeper: nobody but systemd is left to restore.
    while_held_off(&testbed, &machine, &before, || {
        machine.run(&format!("systemctl kill -s KILL {UNIT}"));
    });
    machine.wait("the stop step", || {
        property(&machine, "ActiveState") == "failed"
    });
    assert_eq!(property(&machine, "Result"), "signal");
    assert_restored(&machine, host, &before);

    machine.run(&format!("rm -r {drop_in} && systemctl daemon-reload"));
    start(&machine);
    let first = property(&machine, "MainPID");
    machine.run(&format!("systemctl kill -s KILL {UNIT}"));
    machine.wait("another guard", || {
        try_status(&machine).is_some_and(|status| status["pid"] != first.parse::<u64>().unwrap())
    });
    assert_eq!(property(&machine, "NRestarts"), "1");
    assert!(program(&machine).is_some());
    machine.run(&format!("systemctl stop {UNIT}"));
    assert_restored(&machine, host, &before);
}

#[test]
fn upgraded_it_goes_on_and_removed_it_leaves_nothing() {
    let testbed = Testbed::create(Config::default()).unwrap();
    let host = testbed.test();
    let machine = booted(host);
    let of_package = || -> BTreeSet<_> {
        let changes = machine.changes().into_keys();
        changes.filter(|path| !path.starts_with("/var")).collect()
    };
    let (files, before) = (of_package(), settings(host).0);
    let pins = machine.run("find /sys/fs/bpf");
    install(&machine);
    start(&machine);
    assert_ne!(of_package(), files);

    let first = property(&machine, "MainPID");
    machine.run(&format!("{INSTALL} {PACKAGE}"));
    machine.wait("the new program", || try_status(&machine).is_some());
    assert_ne!(property(&machine, "MainPID"), first);
    assert_eq!(property(&machine, "ActiveState"), "active");
    thread::scope(|scope| {
        let removal = while_held_off(&testbed, &machine, &before, || {
            let removal = scope.spawn(|| machine.run("dpkg --no-triggers -r plimsoll"));
            // What follows has nothing to do with the flood, and would take long beside it.
            machine.wait("the guard has ended", || {
                program(&machine).is_none() && settings(host).0 == before
            });
            removal
        });
        removal.join().unwrap();
    });
    assert_restored(&machine, host, &before);
    assert_eq!(
        machine.run("grep -h plimsoll /proc/[0-9]*/comm || true"),
        ""
    );
    machine.run("test ! -e /run/plimsoll");
    machine.run("dpkg --no-triggers -P plimsoll");
    assert_eq!(
        machine.run("systemctl list-units --all --no-legend 'plimsoll*'"),
        ""
    );
    assert_eq!(of_package(), files, "also the link that enabled it");
    assert_eq!(machine.run("find /sys/fs/bpf"), pins);
}

#[test]
fn it_starts_and_ends_with_its_interface() {
    let testbed = Testbed::create(Config::default()).unwrap();
    let host = testbed.test();
    let machine = installed(host);
    start(&machine);
    machine.run("ip link delete test0");
    machine.wait("the service ends", || {
        property(&machine, "ActiveState") == "inactive"
    });
    assert_eq!(property(&machine, "Result"), "success");
    assert_eq!(
        machine.run("grep -h plimsoll /proc/[0-9]*/comm || true"),
        ""
    );
}
