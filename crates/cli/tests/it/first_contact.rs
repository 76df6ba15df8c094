//! What a newcomer meets first: `plimsoll` alone, and the guard where it cannot
//! work. Every message word for word, with its exit code. Needs root.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use plimsoll_testbed::{Config, Host, Testbed};

use crate::common::{LIMIT, PROGRAM, output, refused, start};
use crate::shell;

/// Runs a program to its end, whatever that is, in the host's namespace.
fn run(host: &Host, words: &[&str]) -> Output {
    let run = || Command::new(words[0]).args(&words[1..]).output().unwrap();
    host.run(run).unwrap()
}

/// The exit code, and what was said on standard error.
fn said(output: &Output) -> (Option<i32>, String) {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    (output.status.code(), text)
}

#[test]
fn alone_it_says_in_ten_lines_what_it_is_and_three_commands() {
    let output = Command::new(PROGRAM).output().unwrap();
    assert!(output.status.success());
    let expected = "\
Plimsoll keeps a Linux host useful when the network offers it more packets
than it can take. A stock host then does little but receive them.
An XDP program discards early what a full socket could not take; servers
need no change. Only a restart by systemd lets it outlive its process.

  sudo plimsoll guard check eth0   what guard can do here; changes nothing
  sudo plimsoll guard eth0         guard an interface until Ctrl-C
  sudo plimsoll demo               see a flood with and without it, in namespaces

`plimsoll --help` lists all commands, `plimsoll guard --help` all settings.
";
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
    assert_eq!(expected.lines().count(), 10);
}

#[test]
fn an_interface_without_native_xdp() {
    let testbed = Testbed::create(Config::default()).unwrap();
    let answer = run(testbed.test(), &[PROGRAM, "guard", "lo"]);
    let expected = "plimsoll: the driver of `lo` has no native XDP, and generic mode, which \
                    costs more than it saves, is refused: if it is a bridge, bond, VLAN or \
                    tunnel, guard the interface below it\n";
    assert_eq!(said(&answer), (Some(3), expected.to_owned()));
}

#[test]
fn an_interface_that_receives_through_another() {
    let testbed = Testbed::create(Config::default()).unwrap();
    let host = testbed.test();
    host.ip("link add br0 type bridge").unwrap();
    let device = host.device();
    host.ip(&format!("link set {device} master br0")).unwrap();
    let (code, said) = said(&run(host, &[PROGRAM, "guard", "br0"]));
    assert_eq!(code, Some(3));
    let (warning, refusal) = said.split_once('\n').unwrap();
    assert_eq!(
        warning,
        format!(
            "plimsoll: interface=br0 warning: br0 receives through {device}. The guard cannot govern \
             interrupts from here: guard the interface where packets come in ({device}) instead of br0"
        )
    );
    assert!(refusal.starts_with("plimsoll: the driver of `br0` has no native XDP"));
}

#[test]
fn without_root() {
    let testbed = Testbed::create(Config::default()).unwrap();
    let host = testbed.test();
    // The build's directory may be closed to others.
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(&directory, Permissions::from_mode(0o755)).unwrap();
    let program = directory.path().join("plimsoll");
    // Not by this process: while a child that another test forks has the file open to write,
    // too, it cannot be started.
    shell::run(&format!("cp {PROGRAM} {}", program.display()));
    let nobody = [
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
    ];
    let program = program.to_str().unwrap();
    let as_nobody = |words: &[&str]| run(host, &[&nobody[..], &[program, "guard"], words].concat());
    let answer = as_nobody(&[host.device()]);
    let expected = "plimsoll: CAP_NET_ADMIN is missing: run as root, e.g. with sudo\n";
    assert_eq!(said(&answer), (Some(3), expected.to_owned()));
    let answer = as_nobody(&["check", host.device()]);
    assert_eq!(answer.status.code(), Some(3));
    let table = String::from_utf8(answer.stdout).unwrap();
    assert!(table.contains("MISSING  privileges   CAP_NET_ADMIN is missing: run as root"));

    let (_guard, _output) = start(host);
    let answer = as_nobody(&["status", host.device()]);
    let expected = "plimsoll: only root can see whether a guard runs here, and ask it: run this as \
                    root, e.g. with sudo\n";
    assert_eq!(said(&answer), (Some(3), expected.to_owned()));
    let answer = as_nobody(&["status"]);
    assert_eq!(said(&answer), (Some(3), expected.to_owned()));
    // What it cannot see it does not deny.
    let answer = as_nobody(&["check", host.device()]);
    assert_eq!(answer.status.code(), Some(3));
    let table = String::from_utf8(answer.stdout).unwrap();
    for line in [
        "unknown  owner        only root can see whether a guard is running here\n",
        "unknown  settings     only root can see whether a killed guard left something turned\n",
        "unknown  filters      ",
        "unknown  syn_cookies  without privileges the kernel does not tell",
        "MISSING  attached     XDP program id ",
        "the guard refuses to replace it (run this as root to see whose it is)\n",
    ] {
        assert!(table.contains(line), "{line} in\n{table}");
    }
}

#[test]
fn an_old_kernel() {
    let testbed = Testbed::create(Config::default()).unwrap();
    let host = testbed.test();
    // The kernel calls itself 2.6 to this process.
    let answer = run(
        host,
        &["setarch", "--uname-2.6", PROGRAM, "guard", host.device()],
    );
    let (code, text) = said(&answer);
    assert_eq!(code, Some(3));
    assert!(text.starts_with("plimsoll: Linux 2.6."), "{text}");
    assert!(
        text.ends_with(
            " is too old: the guard reads socket queues through bpf_rdonly_cast, which needs 6.2 or newer\n"
        ),
        "{text}"
    );
}

/// Attaches a pass-all program of this name, as another product would.
fn attach_other(host: &Host, name: &str) -> u32 {
    let directory = tempfile::tempdir().unwrap();
    let path = |file: &str| directory.path().join(file).to_str().unwrap().to_owned();
    let program = format!(
        "__attribute__((section(\"xdp\"), used)) int {name}(void *c) {{ return 2; }}\n\
         char terms[] __attribute__((section(\"license\"), used)) = \"GPL\";\n"
    );
    fs::write(path("x.c"), program).unwrap();
    let object = path("x.o");
    let clang = [
        "clang",
        "-O2",
        "-target",
        "bpf",
        "-c",
        &path("x.c"),
        "-o",
        &object,
    ];
    assert!(run(host, &clang).status.success());
    let mut ip = host.command("ip");
    ip.args([
        "link",
        "set",
        host.device(),
        "xdp",
        "obj",
        &object,
        "sec",
        "xdp",
    ]);
    ip.output(LIMIT).unwrap();
    let links = run(host, &["ip", "-j", "link", "show", host.device()]).stdout;
    let links: serde_json::Value = serde_json::from_slice(&links).unwrap();
    u32::try_from(links[0]["xdp"]["prog"]["id"].as_u64().unwrap()).unwrap()
}

#[test]
fn another_xdp_program() {
    let testbed = Testbed::create(Config::default()).unwrap();
    let host = testbed.test();
    let id = attach_other(host, "firewall");
    let remedy = format!(
        "`bpftool link show` finds its owner, `ip link set {} xdp off` detaches it if it has none",
        host.device()
    );
    let answer = run(host, &[PROGRAM, "guard", host.device()]);
    let expected = format!(
        "plimsoll: `{}` already runs an XDP program, `firewall`, id {id}, in native mode, and \
         the guard replaces nobody's: {remedy}\n",
        host.device()
    );
    assert_eq!(said(&answer), (Some(1), expected));
    let check = run(host, &[PROGRAM, "guard", "check", host.device()]);
    assert_eq!(check.status.code(), Some(3));
    let table = String::from_utf8(check.stdout).unwrap();
    let expected = format!(
        "MISSING  attached     XDP program `firewall`, id {id}, in native mode\n{:<22}the guard refuses to replace it ({remedy})\n",
        ""
    );
    assert!(table.contains(&expected), "{table}");
    // Observing takes nobody's place either, and what was there is there.
    refused(host, &[host.device(), "--observe"]);
    let links = run(host, &["ip", "link", "show", host.device()]).stdout;
    let links = String::from_utf8(links).unwrap();
    assert!(links.contains(&format!("id {id} ")), "{links}");
}

#[test]
fn a_container_s_own_namespace() {
    let testbed = Testbed::create(Config::default()).unwrap();
    let host = testbed.test();
    let table = output(host, &["check", host.device()]);
    let expected = "\
limited  namespace    this is another network namespace than process 1's (a container's, perhaps)
                      the guard sees the sockets of this namespace only, and admits what is for others
";
    assert!(table.contains(expected), "{table}");
    assert!(table.ends_with("\nThe guard can run here, within the limits above.\n"));
}

#[test]
fn a_container_s_root() {
    let testbed = Testbed::create(Config::default()).unwrap();
    let host = testbed.test();
    let device = host.device();
    // Each capability that an engine may keep back.
    for missing in ["net_admin", "bpf", "perfmon", "sys_nice", "ipc_lock"] {
        let bounding = format!("-sys_admin,-{missing}");
        let setpriv = ["setpriv", "--inh-caps=-all", "--bounding-set", &bounding];
        let answer = run(host, &[&setpriv[..], &[PROGRAM, "guard", device]].concat());
        let expected = format!(
            "plimsoll: root has no CAP_{} here, as in a container: run the guard on the host, or \
             allow the container what the systemd unit's CapabilityBoundingSet names\n",
            missing.to_uppercase()
        );
        assert_eq!(said(&answer), (Some(3), expected));
    }
    // A rootless container's has all capabilities, over its own namespaces.
    let unshare = ["unshare", "--user", "--map-root-user"];
    let answer = run(host, &[&unshare[..], &[PROGRAM, "guard", device]].concat());
    let expected = "root of a user namespace, as in a rootless container, may not load BPF \
                    programs: run the guard on the host";
    assert_eq!(said(&answer), (Some(3), format!("plimsoll: {expected}\n")));
    let check = [&unshare[..], &[PROGRAM, "guard", "check", device]].concat();
    let check = run(host, &check);
    assert_eq!(check.status.code(), Some(3));
    let table = String::from_utf8(check.stdout).unwrap();
    assert!(
        table.contains(&format!("MISSING  privileges   {expected}\n")),
        "{table}"
    );
}

#[test]
fn a_namespace_entered_without_its_sysfs() {
    let testbed = Testbed::create(Config::default()).unwrap();
    let namespace = format!("--net=/run/netns/{}", testbed.test().name());
    // Where the guard may mount its own, it needs no other.
    let sandboxed = ["setpriv", "--inh-caps=-all", "--bounding-set", "-sys_admin"];
    let entered = ["nsenter", &namespace];
    let guard = [PROGRAM, "guard", testbed.test().device()];
    let answer = Command::new(entered[0])
        .args(&entered[1..])
        .args(sandboxed)
        .args(guard)
        .output()
        .unwrap();
    let expected = "plimsoll: /sys/class/net does not show the `test0` of this network namespace: \
                    enter it with `ip netns exec`, or with nsenter's --net and --mount\n";
    assert_eq!(said(&answer), (Some(1), expected.to_owned()));
}

#[test]
fn no_interface_and_a_wrong_one() {
    let testbed = Testbed::create(Config::default()).unwrap();
    let host = testbed.test();
    // It may come yet, so this host lacks nothing. Some commands had other words and codes for it.
    let directory = tempfile::tempdir().unwrap();
    let rules = directory.path().join("rules.toml");
    fs::write(&rules, "default = \"discard\"\n").unwrap();
    for command in [
        "guard nosuch0",
        "guard check nosuch0",
        "capture nosuch0 -w /dev/null",
        "forward nosuch0 nosuch1",
        &format!("screen nosuch0 nosuch1 --rules {}", rules.display()),
        "serve sink --port 9 --on af_xdp:nosuch0",
        "serve sink --port 9 --on packet:nosuch0 --address 198.18.0.2/24",
        "blast --interface nosuch0 --destination-mac 02:00:00:00:00:01 --source 198.18.0.1 \
         --destination 198.18.0.2",
    ] {
        let words: Vec<&str> = [PROGRAM].into_iter().chain(command.split(' ')).collect();
        let answer = run(host, &words);
        let expected = "plimsoll: no interface `nosuch0` in this network namespace: `ip link` \
                        lists them\n";
        assert_eq!(said(&answer), (Some(1), expected.to_owned()), "{command}");
    }
    let answer = run(host, &[PROGRAM, "guard"]);
    let expected = "error: the following required arguments were not provided:\n  <IFACE>\n\n\
                    Usage: plimsoll guard <IFACE>\n\nFor more information, try '--help'.\n";
    assert_eq!(said(&answer), (Some(2), expected.to_owned()));
}
