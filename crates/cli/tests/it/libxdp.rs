//! Beside libxdp: its dispatcher, as `xdp-loader` attaches it, and the guard meet on
//! one interface. Who comes first works on, who comes second is refused and told
//! what to do. Needs root.

use std::fs;
use std::net::UdpSocket;
use std::path::Path;
use std::process::Command;

use plimsoll_testbed::{Config, Host, Testbed};
use serde_json::Value;
use tempfile::TempDir;

use crate::common::machine::Machine;
use crate::common::{LIMIT, output, refused, start_with};

const LOAD: &str = "xdp-loader load --mode native --prog-name other test0 /tmp/files/other.o";
const UNLOAD: &str = "xdp-loader unload test0 --all";

/// Another product's XDP program, which passes all, for a machine.
fn files() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("other.c");
    let text = "__attribute__((section(\"xdp\"), used)) int other(void *c) { return 2; }\n\
                char terms[] __attribute__((section(\"license\"), used)) = \"GPL\";\n";
    fs::write(&source, text).unwrap();
    let clang = Command::new("clang")
        // libxdp reads the types.
        .args(["-O2", "-g", "-target", "bpf", "-c", "-o"])
        .args([&directory.path().join("other.o"), &source])
        .status();
    assert!(clang.expect("scripts/setup installs clang").success());
    directory
}

/// A machine with its own `/sys/fs/bpf`, where libxdp pins.
fn machine<'a>(host: &'a Host, files: &Path) -> Machine<'a> {
    assert_eq!(host.device(), "test0");
    let machine = Machine::start(host, files);
    machine.run("command -v xdp-loader || { echo scripts/setup installs it; false; }");
    machine
}

/// Id and name of the program on the interface.
fn attached(machine: &Machine<'_>) -> Option<(u64, String)> {
    let links = machine.run("ip -details -json link show test0");
    let links: Value = serde_json::from_str(&links).unwrap();
    let program = &links[0]["xdp"]["prog"];
    let name = program["name"].as_str().unwrap_or_default().to_owned();
    Some((program["id"].as_u64()?, name))
}

/// The command between backquotes in what the guard said.
fn remedy(said: &str) -> String {
    let remedy = said.rsplit('`').nth(1);
    remedy.unwrap_or_else(|| panic!("{said}")).to_owned()
}

/// With another's program attached, the guard is refused, harms nothing, and says
/// what makes room for it.
fn assert_refused_until_remedied(host: &Host, machine: &Machine<'_>, mode: &str, remedies: &str) {
    let (id, name) = attached(machine).expect("another's program");
    let listed = machine.run("xdp-loader status test0");
    let said = refused(host, &["test0"]);
    let expected = format!(
        "`test0` already runs an XDP program, `{name}`, id {id}, in {mode} mode, and the guard \
         replaces nobody's: {remedies}"
    );
    assert!(said.contains(&expected), "{said}");
    let checked = refused(host, &["check", "test0"]);
    assert!(
        checked.contains("cannot run on `test0` as it is"),
        "{checked}"
    );
    assert_eq!(machine.run("xdp-loader status test0"), listed);
    assert_eq!(attached(machine), Some((id, name)));

    machine.run(&remedy(&said));
    let (guard, _reports) = start_with(host, &[]);
    assert!(guard.stop(LIMIT).unwrap().success());
    assert_eq!(attached(machine), None);
}

const OF_DISPATCHER: &str = "it is libxdp's dispatcher, `xdp-loader unload test0 --all` ends it";
const OF_OTHERS: &str = "`bpftool link show` finds its owner, `ip link set test0 MODE off` \
                         detaches it if it has none";

#[test]
fn behind_the_dispatcher_the_guard_is_refused_and_its_remedy_works() {
    let testbed = Testbed::create(Config::default()).unwrap();
    let host = testbed.test();
    let files = files();
    let machine = machine(host, files.path());
    machine.run(
        "ip link set test0 xdp object $(dpkg --listfiles libxdp1 | grep /xdp-dispatcher.o) \
         program xdp_dispatcher",
    );
    assert_eq!(attached(&machine).unwrap().1, "xdp_dispatcher");
    assert_refused_until_remedied(host, &machine, "native", OF_DISPATCHER);
}

#[test]
fn behind_what_xdp_loader_attaches_the_guard_is_refused_and_its_remedy_works() {
    let testbed = Testbed::create(Config::default()).unwrap();
    let host = testbed.test();
    let files = files();
    let machine = machine(host, files.path());
    for (loader, mode, ip) in [
        ("native", "native", "xdp"),
        ("skb", "generic", "xdpgeneric"),
    ] {
        machine.run(&LOAD.replace("native", loader));
        // Kernels that let no program replace another's function make libxdp do
        // without its dispatcher.
        let remedies = match attached(&machine).unwrap().1.as_str() {
            "xdp_dispatcher" => OF_DISPATCHER,
            "other" => OF_OTHERS,
            name => panic!("xdp-loader has attached {name}"),
        };
        let remedies = remedies.replace("MODE", ip);
        assert_refused_until_remedied(host, &machine, mode, &remedies);
    }
}

/// What arrives is counted, and delivered.
fn assert_counts(testbed: &Testbed, machine: &Machine<'_>) {
    let (host, load) = (testbed.test(), testbed.load());
    let admitted = || -> u64 {
        let status = output(host, &["status", "test0", "--json"]);
        let status: Value = serde_json::from_str(&status).unwrap();
        let kinds = status["kinds"].as_array().unwrap().iter();
        kinds
            .filter(|kind| kind["kind"] == "udp_socket")
            .filter_map(|kind| kind["packets"]["admitted"].as_u64())
            .sum()
    };
    let bind = |host: &Host| {
        host.run(|| UdpSocket::bind((host.ipv4(), 0)).unwrap())
            .unwrap()
    };
    let (receiver, sender) = (bind(host), bind(load));
    receiver.set_read_timeout(Some(LIMIT)).unwrap();
    let before = admitted();
    sender
        .send_to(b"one", receiver.local_addr().unwrap())
        .unwrap();
    receiver.recv(&mut [0; 3]).unwrap();
    machine.wait("the packet is counted", || admitted() == before + 1);
}

#[test]
fn behind_the_guard_libxdp_is_refused_and_the_guard_works_on() {
    let testbed = Testbed::create(Config::default()).unwrap();
    let host = testbed.test();
    let files = files();
    let machine = machine(host, files.path());
    let pins = machine.run("find /sys/fs/bpf -type f");
    let (guard, _reports) = start_with(host, &[]);
    let own = attached(&machine);
    assert_eq!(own.as_ref().unwrap().1, "plimsoll_guard");
    for (attempt, answer) in [
        (LOAD, "is not using a dispatcher, can't replace"),
        (
            &LOAD.replace("native", "skb"),
            "is not using a dispatcher, can't replace",
        ),
        (UNLOAD, "Can't replace active BPF XDP link"),
        (
            "ip link set test0 xdp off",
            "Can't replace active BPF XDP link",
        ),
    ] {
        let said = machine.try_run(attempt).expect_err(attempt);
        assert!(said.contains(answer), "{said}");
        assert_eq!(attached(&machine), own, "{attempt}");
    }
    let listed = machine.run("xdp-loader status test0");
    assert!(listed.contains("plimsoll_guard"), "{listed}");
    assert_counts(&testbed, &machine);
    // libxdp has left nothing behind.
    assert_eq!(machine.run("find /sys/fs/bpf -type f"), pins);

    assert!(guard.stop(LIMIT).unwrap().success());
    machine.run(LOAD);
    assert!(attached(&machine).is_some());
    machine.run(UNLOAD);
    assert_eq!(attached(&machine), None);
}
