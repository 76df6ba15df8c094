//! `plimsoll serve` on Plimsoll's own stack, with ordinary clients, in network
//! namespaces. Needs root, curl, wrk and dig.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::serving::{SOON, Server, client_of_an_echo, eventually, with_link};
use crate::shell::run;

fn site(directory: &Path) {
    fs::write(directory.join("index.html"), "<p>hello\n").unwrap();
    let large: String = (0..100_000).map(|k| format!("{k}\n")).collect();
    fs::write(directory.join("large.txt"), large).unwrap();
}

#[test]
fn curl_and_wrk_are_served_over_af_xdp() {
    with_link(|| {
        let directory = tempfile::tempdir().unwrap();
        site(directory.path());
        let server = Server::start(&format!(
            "http --port 80 --on af_xdp:stack0 --address 10.0.0.2/24 --address fd00::2/64 --root {}",
            directory.path().display()
        ));
        eventually("a connection", || TcpStream::connect("10.0.0.2:80").ok());
        let curl = "curl -sS --max-time 20";
        assert_eq!(run(&format!("{curl} http://10.0.0.2/")), "<p>hello\n");
        assert_eq!(run(&format!("{curl} http://[fd00::2]/")), "<p>hello\n");
        let large = fs::read_to_string(directory.path().join("large.txt")).unwrap();
        assert!(run(&format!("{curl} http://10.0.0.2/large.txt")) == large);
        // Two requests, one connection.
        let status = "-o /dev/null -w %{http_code},%{num_connects};";
        let two = format!("{curl} {status} http://10.0.0.2/ {status} http://10.0.0.2/none");
        assert_eq!(run(&two), "200,1;404,0;");
        let head = run(&format!("{curl} -I http://10.0.0.2/large.txt"));
        assert!(head.contains("Content-Length: 588890"), "{head}");
        let refused = run(&format!("{curl} {status} -X DELETE http://10.0.0.2/"));
        assert_eq!(refused, "405,1;");
        let mut bad = TcpStream::connect("10.0.0.2:80").unwrap();
        bad.write_all(b"NONSENSE\r\n\r\n").unwrap();
        let mut answer = String::new();
        bad.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
        let wrk = run("wrk -t 1 -c 16 -d 2s http://10.0.0.2/");
        assert!(
            wrk.contains("Requests/sec") && !wrk.contains("Socket errors"),
            "{wrk}"
        );
        let counts = server.stop();
        assert!(counts["sent"].as_u64().unwrap() > 100, "{counts}");
        assert_eq!(counts["send_errors"], 0, "{counts}");
    });
}

/// A timer of a connection (here the delayed acknowledgement, while the server works) made
/// the stack ask for its client's link address. On a link without address resolution nobody
/// answers, and every answer came with the first retransmission, a second later.
#[test]
fn a_client_that_answers_no_arp_does_not_wait_for_a_retransmission() {
    with_link(|| {
        let directory = tempfile::tempdir().unwrap();
        site(directory.path());
        let mac = "02:00:00:00:00:02";
        run(&format!("ip link set stack0 address {mac}"));
        run("ip link set kernel0 arp off");
        run(&format!(
            "ip neigh replace 10.0.0.2 lladdr {mac} dev kernel0 nud permanent"
        ));
        let root = directory.path().display();
        let _server = Server::start(&format!(
            "http --port 80 --on af_xdp:stack0 --address 10.0.0.2/24 --work-us 100000 --root {root}"
        ));
        eventually("an answer at once", || {
            let mut curl = Command::new("curl");
            curl.args(["-sS", "--max-time", "20", "-o", "/dev/null"]);
            let told = curl
                .args(["-w", "%{time_total}", "http://10.0.0.2/"])
                .output();
            let seconds: f64 = String::from_utf8(told.unwrap().stdout)
                .unwrap()
                .parse()
                .ok()?;
            (0.1..0.9).contains(&seconds).then_some(())
        });
    });
}

#[test]
fn http_is_the_same_on_the_kernels_sockets() {
    with_link(|| {
        let directory = tempfile::tempdir().unwrap();
        site(directory.path());
        let root = directory.path().display();
        let _server = Server::start(&format!("http --port 80 --root {root}"));
        eventually("a connection", || TcpStream::connect("10.0.0.1:80").ok());
        let page = run("curl -sS --max-time 20 http://10.0.0.1/");
        assert_eq!(page, "<p>hello\n");
    });
}

#[test]
fn echo_answers_on_every_device_and_in_batches() {
    let devices = [
        "--on af_xdp:stack0 --address 10.0.0.2/24 --path ni-lrp --batch 64",
        "--on packet:stack0 --address 10.0.0.2/24 --path polled",
        "--on tap:tap0 --address 10.0.1.2/24",
        "--on kernel --batch 32",
    ];
    for (device, at) in
        devices
            .into_iter()
            .zip(["10.0.0.2:7", "10.0.0.2:7", "10.0.1.2:7", "10.0.0.1:7"])
    {
        with_link(|| {
            let server = Server::start(&format!("echo --port 7 {device}"));
            if device.contains("tap0") {
                eventually("the interface", || fs::metadata("/proc/self/net").ok());
                eventually("the TAP interface", || {
                    let link = Command::new("ip")
                        .args(["link", "set", "tap0", "up"])
                        .output();
                    link.unwrap().status.success().then_some(())
                });
                run("ip addr add 10.0.1.1/24 dev tap0");
            }
            let client = UdpSocket::bind("0.0.0.0:0").unwrap();
            client
                .set_read_timeout(Some(Duration::from_millis(200)))
                .unwrap();
            let mut buffer = [0; 100];
            eventually(device, || {
                client.send_to(b"hello", at).ok()?;
                client.recv_from(&mut buffer).ok()
            });
            assert_eq!(&buffer[..5], b"hello", "{device}");
            let counts = server.stop();
            assert_eq!(counts["received"], counts["sent"], "{device}: {counts}");
        });
    }
}

#[test]
fn calls_get_the_work_that_they_ask_for_on_both_ports() {
    for (device, at) in [
        (
            "--on af_xdp:stack0 --address 10.0.0.2/24 --path ni-lrp --batch 8",
            "10.0.0.2",
        ),
        ("--on kernel", "10.0.0.1"),
    ] {
        with_link(|| {
            let server = Server::start(&format!("rpc --port 7 --bystander 8 {device}"));
            let client = UdpSocket::bind("0.0.0.0:0").unwrap();
            client
                .set_read_timeout(Some(Duration::from_millis(500)))
                .unwrap();
            let call = |micros: u32| {
                let mut call = [1; 12];
                call[8..].copy_from_slice(&micros.to_be_bytes());
                call
            };
            for port in [7, 8] {
                let mut answer = [0; 100];
                eventually(device, || {
                    client.send_to(&call(0), (at, port)).ok()?;
                    client.recv_from(&mut answer).ok()
                });
                assert_eq!(&answer[..12], call(0), "{device}");
            }
            // Later answers of the first calls, if it was asked several times.
            while client.recv_from(&mut [0; 100]).is_ok() {}
            // Work takes as long as it gets no CPU, but no call is lost.
            client.set_read_timeout(Some(SOON)).unwrap();
            let begun = Instant::now();
            client.send_to(&call(100_000), (at, 7)).unwrap();
            client.recv_from(&mut [0; 100]).unwrap();
            let took = begun.elapsed();
            assert!(took > Duration::from_millis(30), "{device}: {took:?}");
            client.send_to(b"no call", (at, 7)).unwrap();
            eventually("an unanswered message", || {
                client.send_to(&call(0), (at, 7)).ok()?;
                client.recv_from(&mut [0; 100]).ok()
            });
            let counts = server.stop();
            let of = |name: &str| counts[name].as_u64().unwrap();
            assert_eq!(of("received"), of("sent") + 1, "{device}: {counts}");
        });
    }
}

const ZONE: &str = "\
$ORIGIN example.test.
$TTL 60
@ IN SOA ns admin 1 3600 900 604800 300
@ IN NS ns
ns IN A 192.0.2.1
alias IN CNAME ns
*.wild IN A 192.0.2.2
";

/// What dig understands of the answers of one server.
fn digs_answers(at: &str, records: usize) {
    let dig = |question: &str| run(&format!("dig @{at} +tries=1 +timeout=10 {question}"));
    let is = |question: &str, flags: &str, words: &str| {
        let said = dig(question);
        let header = format!("flags: {flags};");
        assert!(said.contains(&header) && said.contains(words), "{said}");
        // It tells what it finds malformed, and what is no answer to what it asked.
        assert!(
            !said.contains("Warning") && !said.contains(";; Got bad"),
            "{said}"
        );
    };
    assert_eq!(dig("+short ns.example.test"), "192.0.2.1\n");
    assert_eq!(dig("+short +tcp ns.example.test"), "192.0.2.1\n");
    assert_eq!(dig("+short any.wild.example.test"), "192.0.2.2\n");
    is("+norec alias.example.test", "qr aa", "ANSWER: 2");
    is("+norec nobody.example.test", "qr aa", "NXDOMAIN");
    is("+norec elsewhere.test", "qr", "REFUSED");
    is("+norec +edns=1 +noednsneg ns.example.test", "qr", "BADVERS");
    is(
        "+norec +noedns +ignore large.example.test TXT",
        "qr aa tc",
        "ANSWER: 0",
    );
    // It asks again over TCP by itself.
    let all = dig("+short large.example.test TXT");
    assert_eq!(all.lines().count(), records, "{all}");
}

#[test]
fn dig_is_answered_on_our_stack_and_on_the_kernels() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("zone");
    let records = 100;
    let large = (0..records).map(|number| format!("large IN TXT \"{number:060}\"\n"));
    fs::write(&file, ZONE.to_owned() + &large.collect::<String>()).unwrap();
    for (device, at) in [
        (
            "--on af_xdp:stack0 --address 10.0.0.2/24 --path ni-lrp --batch 64",
            "10.0.0.2",
        ),
        (
            "--on af_xdp:stack0 --address 10.0.0.2/24 --path soft-lrp",
            "10.0.0.2",
        ),
        ("--on kernel --batch 64", "10.0.0.1"),
    ] {
        with_link(|| {
            let file = file.display();
            let server = Server::start(&format!("dns --port 53 --zone {file} {device}"));
            eventually("a connection", || TcpStream::connect((at, 53)).ok());
            let client = UdpSocket::bind("0.0.0.0:0").unwrap();
            client
                .set_read_timeout(Some(Duration::from_millis(200)))
                .unwrap();
            eventually("an error", || {
                client.send_to(&[0; 12], (at, 53)).ok()?;
                client.recv_from(&mut [0; 512]).ok()
            });
            digs_answers(at, records);
            let counts = server.stop();
            assert_eq!(counts["send_errors"], 0, "{device}: {counts}");
        });
    }
}

#[test]
fn a_bystander_echoes_beside_a_sink() {
    with_link(|| {
        let server = Server::start(
            "sink --port 9 --bystander 7 --on af_xdp:stack0 --address 10.0.0.2/24 --path ni-lrp",
        );
        let client = client_of_an_echo();
        client.send_to(b"hello", "10.0.0.2:9").unwrap();
        let counts = server.stop();
        assert!(counts["received"].as_u64().unwrap() <= 1, "{counts}");
        assert_eq!(counts["sent"], 0, "{counts}");
    });
}

#[test]
fn idle_cpus_work_ahead_if_asked_to() {
    with_link(|| {
        for asked in [false, true] {
            let option = if asked { "--work-ahead" } else { "" };
            let server = Server::start(&format!(
                "echo --port 7 --on af_xdp:stack0 --address 10.0.0.2/24 {option}"
            ));
            client_of_an_echo();
            let tasks = format!("/proc/{}/task", server.0.id());
            let names = fs::read_dir(tasks).unwrap().map(|task| {
                let comm = task.unwrap().path().join("comm");
                fs::read_to_string(comm).unwrap_or_default()
            });
            let ahead = names.filter(|name| name.trim() == "plimsoll-ahead");
            assert_eq!(ahead.count(), usize::from(asked));
            server.stop();
        }
    });
}

#[test]
fn a_tun_interface_is_served() {
    with_link(|| {
        let _server = Server::start("echo --port 7 --on tun:tun0 --address 10.0.9.2/24");
        eventually("the interface", || {
            run("ip link").contains("tun0").then_some(())
        });
        run("ip addr add 10.0.9.1/24 dev tun0");
        run("ip link set tun0 up");
        let client = UdpSocket::bind("10.0.9.1:0").unwrap();
        client
            .set_read_timeout(Some(Duration::from_millis(100)))
            .unwrap();
        eventually("an answer", || {
            client.send_to(b"anybody?", "10.0.9.2:7").ok()?;
            client.recv_from(&mut [0; 100]).ok()
        });
    });
}

/// It ends with this code and says that.
fn fails(arguments: &str, code: i32, words: &str) {
    let mut command = Command::new("timeout");
    command.args(["20", env!("CARGO_BIN_EXE_plimsoll"), "serve"]);
    let output = command.args(arguments.split_whitespace()).output();
    let output = output.unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains(words), "{arguments}: {said}");
    assert_eq!(output.status.code(), Some(code), "{arguments}: {said}");
}

#[test]
fn what_cannot_be_served_is_told_with_its_remedy() {
    fails("echo --port 7 --on tap:tap9", 2, "--address");
    fails("echo --port 7 --on nothing", 2, "af_xdp:IFACE");
    fails("echo --port 7 --vlan 5", 2, "--vlan");
    fails("echo --port 7 --on tap:tap9 --vlan 4095", 2, "4094");
    fails("echo --port 7 --holdoff-us 50", 2, "--holdoff-us");
    fails("echo --port 7 --zero-copy", 2, "--zero-copy");
    fails("echo --port 7 --work-ahead", 2, "--work-ahead: ");
    fails(
        "echo --port 7 --on tap:tap8 --address 10.0.9.2/24 --path polled --work-ahead",
        2,
        "soft-timer-polling",
    );
    fails(
        "echo --port 7 --on af_xdp:nowhere0 --address 10.0.0.2/24",
        1,
        "ip link",
    );
    // Also where it is to share its addresses: it had been said to have none.
    fails("echo --port 7 --on af_xdp:nowhere0", 1, "ip link");
    let two = "--address 10.0.0.2/24 --address 10.0.0.3/24";
    fails(&format!("echo --port 7 {two}"), 2, "af_xdp");
    // The kernel has no such address: who forgot the device is told.
    fails("echo --port 7 --address 10.0.9.9/24", 2, "--on");
    fails("echo --port 7 --threaded auto", 2, "--threaded");
    fails("echo --port 7 --threaded 20", 2, "from 0 to 19");
    fails("dns --port 5300", 2, "--zone");
    fails("dns --port 5300 --zone /nowhere/zone", 1, "/nowhere/zone");
    // The bystander's port is taken by the server itself: it ends, and hangs nowhere.
    fails("sink --port 5301 --bystander 5301", 1, "in use");
    with_link(|| {
        let server = Server::start("echo --port 7 --on af_xdp:stack0 --address 10.0.0.2/24");
        thread::sleep(Duration::from_secs(1));
        fails(
            "echo --port 8 --on af_xdp:stack0 --address 10.0.0.3/24",
            1,
            "in use",
        );
        server.stop();
    });
}

/// It was accepted, and all that was for it went to the server: who came by ssh was cut off.
#[test]
fn an_address_of_the_kernels_is_shared_or_not_served() {
    with_link(|| {
        run("ip addr add 10.0.0.4/24 dev stack0");
        let own = "--address 10.0.0.4/24";
        let shared = "10.0.0.4 on stack0";
        for (on, remedy) in [
            ("af_xdp:stack0", "--address"),
            ("packet:stack0", "ip addr del"),
        ] {
            let serve = format!("echo --port 7 --on {on} {own}");
            fails(&serve, 2, shared);
            fails(&serve, 2, remedy);
        }
        for device in ["tap:tap7", "tun:tun7"] {
            fails(&format!("echo --port 7 --on {device} {own}"), 2, shared);
        }
    });
}
