//! `plimsoll capture` as a user meets it, its files read by tshark and capinfos. Needs
//! root, tshark and wireshark-common.

use std::fs::{self, File};
use std::io::Read;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use pcap_file::pcapng::blocks::interface_statistics::InterfaceStatisticsOption;
use serde_json::Value;

use crate::capturing::{
    blast, end, fields, files_told, read_by, start, start_on_small_disk, start_told, stated,
    statements, sum, testbed,
};
use crate::common::{LIMIT, PROGRAM};

#[test]
fn a_copy_has_what_the_filter_accepts_and_both_directions() {
    let testbed = testbed();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("copy.pcapng");
    let name = file.to_str().unwrap();
    let filter = ["udp", "dst", "port", "9"];
    let rest = ["-w", name, "--json", "-"];
    let (process, output) = start(&testbed, &[&filter[..], &rest].concat());
    let (others, other_output) = start(&testbed, &["icmp", "-w", "/dev/null", "--json", "-"]);
    blast(&testbed, 20_000, 4000);
    let results = end(process, output);
    // The host answers some with "port unreachable".
    let answers = end(others, other_output);
    assert_eq!(results["counts"]["recorded"], 4000, "{results}");
    assert!(
        answers["counts"]["recorded"].as_u64().unwrap() > 0,
        "{answers}"
    );
    let refused = results["counts"]["filtered"].as_u64().unwrap();
    assert!(refused > 0, "answers were refused: {results}");
    assert_eq!(fields(&file, &["udp.dstport"]), vec!["9"; 4000]);
    let about = read_by("capinfos", &[], &file);
    assert!(about.contains("Name = "), "{about}");
    assert!(
        about.contains("Capture filter: udp dst port 9")
            || about.contains("Filter string = udp dst port 9"),
        "{about}"
    );
    assert!(about.contains("Strict time order:   True"), "{about}");
    assert_eq!(stated(&file, "recorded"), 4000);
}

/// The kernel knows which way a packet goes.
#[test]
fn a_copy_may_be_of_one_direction() {
    let testbed = testbed();
    let device_json = ["-w", "/dev/null", "--json", "-"];
    let filtered = |filter| start(&testbed, &[&[filter][..], &device_json].concat());
    let captures = ["udp port 9 and inbound", "udp port 9 and outbound"].map(filtered);
    blast(&testbed, 20_000, 2000);
    let recorded =
        captures.map(|(process, output)| end(process, output)["counts"]["recorded"].clone());
    assert_eq!(recorded, [2000, 0].map(Value::from));
}

#[test]
fn places_add_up_to_the_interfaces_own_counters() {
    for mode in ["copy", "take"] {
        let testbed = testbed();
        let arguments = ["--mode", mode, "-w", "/dev/null", "--json", "-"];
        let (process, output) = start(&testbed, &arguments);
        let report = blast(&testbed, 20_000, 3000);
        let results = end(process, output);
        let interface = &results["interface_counts"];
        let number = |value: &Value| value.as_u64().unwrap();
        let mut passed = number(&interface["received"]);
        if mode == "copy" {
            passed += number(&interface["sent"]);
        }
        assert_eq!(number(&results["received"]), passed, "{mode}: {results}");
        assert_eq!(sum(&results["counts"]), passed, "{mode}: {results}");
        assert!(passed >= report.sent, "{mode}: {results}");
    }
}

#[test]
fn taken_packets_have_their_own_times_and_nobody_else_gets_them() {
    let testbed = testbed();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("take.pcapng");
    let name = file.to_str().unwrap();
    let arguments = ["udp", "--mode", "take", "-w", name, "--json", "-"];
    let (process, output) = start(&testbed, &arguments);
    let seen = || {
        let read = testbed.test().run(plimsoll_kernel::counters::stack::read);
        read.unwrap()["Ip.InReceives"]
    };
    let before = seen();
    blast(&testbed, 2000, 1000);
    let after = seen();
    let results = end(process, output);
    assert_eq!(results["counts"]["recorded"], 1000, "{results}");
    assert_eq!(before, after, "the stack saw packets");
    let times = fields(&file, &["frame.time_epoch"]);
    let times: Vec<f64> = times.iter().map(|time| time.parse().unwrap()).collect();
    let span = times[999] - times[0];
    assert!(
        (0.4..1.0).contains(&span),
        "1000 packets at 2000/s took {span} s"
    );
    let distinct = times.windows(2).filter(|pair| pair[0] < pair[1]).count();
    assert!(distinct > 990, "only {distinct} packets came after another");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    assert!((now.unwrap().as_secs_f64() - times[999]).abs() < 20.0);
}

/// What a program dropped seemed to have been refused by the filter.
#[test]
fn a_program_that_hides_packets_from_a_copy_is_told() {
    let testbed = testbed();
    let copy = ["-w", "/dev/null", "--duration", "0.1"];
    let told = || {
        let (mut process, _output, mut says) = start_told(&testbed, &copy);
        let mut told = String::new();
        says.read_to_string(&mut told).unwrap();
        assert!(process.wait(LIMIT).unwrap().success());
        told
    };
    assert!(!told().contains("XDP program"));
    let take = ["--mode", "take", "-w", "/dev/null", "--json", "-"];
    let (taking, output) = start(&testbed, &take);
    let said = told();
    let expected = format!("{} has an XDP program (`take`", testbed.test().device());
    assert!(said.contains(&expected), "{said}");
    end(taking, output);
}

#[test]
fn ring_files_are_bounded_in_size_and_number_and_each_is_whole() {
    let testbed = testbed();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("ring.pcapng");
    let arguments = [
        "-w",
        file.to_str().unwrap(),
        "--ring-size",
        "64K",
        "--files",
        "3",
    ];
    let (process, output) = start(&testbed, &[&arguments[..], &["--json", "-"]].concat());
    blast(&testbed, 20_000, 6000);
    let results = end(process, output);
    let files = files_told(directory.path(), &results);
    assert_eq!(files.len(), 3);
    for file in &files {
        assert!(fs::metadata(file).unwrap().len() <= 64 << 10, "{file:?}");
        read_by("capinfos", &[], file);
        // It says how much had been recorded before it, so its own rate can be computed.
        let first = &statements(file)[0].options;
        let before = first.iter().find_map(|option| match option {
            InterfaceStatisticsOption::IsbUsrDeliv(count) => Some(*count),
            _ => None,
        });
        let packets = fields(file, &["frame.number"]).len() as u64;
        assert_eq!(
            before.unwrap() + packets,
            stated(file, "recorded"),
            "{file:?}"
        );
    }
    assert_eq!(results["counts"]["recorded"], stated(&files[2], "recorded"));
}

/// Found while this was written: what fits a full disk must stay readable.
#[test]
fn a_full_disk_leaves_a_whole_file_that_says_what_is_missing() {
    let testbed = testbed();
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().to_str().unwrap();
    let words = format!("--duration 2 -w {place}/disk/full.pcapng --json {place}/json");
    let (mut process, mut says) = start_on_small_disk(testbed.test(), place, &words);
    blast(&testbed, 20_000, 20_000);
    let mut rest = String::new();
    says.read_to_string(&mut rest).unwrap();
    assert_eq!(process.wait(LIMIT).unwrap().code(), Some(1));
    assert!(rest.contains("No space left on device"), "{rest}");

    let text = fs::read_to_string(directory.path().join("json")).unwrap();
    let document: Value = serde_json::from_str(&text).unwrap();
    let counts = &document["results"]["counts"];
    assert!(counts["disk"].as_u64().unwrap() > 10_000, "{counts}");
    let file = directory.path().join("full.pcapng");
    let packets = fields(&file, &["frame.number"]).len() as u64;
    assert_eq!(packets, counts["recorded"], "{counts}");
    assert_eq!(stated(&file, "recorded"), packets);
    assert_eq!(stated(&file, "disk"), counts["disk"].as_u64().unwrap());
    assert_eq!(stated(&file, "received"), document["results"]["received"]);
}

/// MR-99: the monitor. A reader that takes nothing for a while stands for a slow disk.
#[test]
fn a_slow_disk_costs_bytes_then_flows_and_the_file_says_so() {
    let testbed = testbed();
    let directory = tempfile::tempdir().unwrap();
    let json = directory.path().join("json");
    let (process, mut output) = start(
        &testbed,
        &["-w", "-", "--queue", "1M", "--json", json.to_str().unwrap()],
    );
    let report = blast(&testbed, 100_000, 60_000);
    process.signal(Signal::SIGINT).unwrap();
    let file = directory.path().join("slow.pcapng");
    std::io::copy(&mut output, &mut File::create(&file).unwrap()).unwrap();
    let mut process = process;
    assert!(process.wait(LIMIT).unwrap().success());

    let document: Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    let (results, counts) = (&document["results"], &document["results"]["counts"]);
    let steps = results["steps"].as_array().unwrap();
    let keeps: Vec<&str> = steps
        .iter()
        .map(|step| step["keeps"].as_str().unwrap())
        .collect();
    let first = ["short packets", "headers only", "headers of 1 flow in 2"];
    assert!(keeps.starts_with(&first), "{keeps:?}");
    assert!(counts["sampled"].as_u64().unwrap() > 0, "{counts}");
    assert_eq!(sum(counts), results["received"], "{counts}");
    assert!(results["received"].as_u64().unwrap() >= report.sent);
    // Beside the packets, where Wireshark shows it; and in the counts.
    let packets = fields(&file, &["frame.comment"]);
    assert_eq!(packets.len() as u64, counts["recorded"]);
    let remarks = packets
        .iter()
        .filter(|line| line.contains("plimsoll: from here on"));
    assert!(remarks.count() > 0);
    assert_eq!(stated(&file, "received"), results["received"]);
    assert_eq!(stated(&file, "sampled"), counts["sampled"]);
}

/// Losses of a second in which no packet was accepted were never told.
#[test]
fn packets_tell_how_many_were_lost_before_them() {
    let testbed = testbed();
    let directory = tempfile::tempdir().unwrap();
    let json = directory.path().join("json");
    let arguments = ["-w", "-", "--queue", "1M", "--no-sampling", "--json"];
    let arguments = [&arguments[..], &[json.to_str().unwrap()]].concat();
    let (mut process, mut output) = start(&testbed, &arguments);
    // More headers than the queue holds.
    blast(&testbed, 30_000, 100_000);
    let file = directory.path().join("lost.pcapng");
    let mut copy = File::create(&file).unwrap();
    let reading = thread::spawn(move || std::io::copy(&mut output, &mut copy).unwrap());
    blast(&testbed, 100, 500);
    process.signal(Signal::SIGINT).unwrap();
    reading.join().unwrap();
    assert!(process.wait(LIMIT).unwrap().success());

    let document: Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    let counts = &document["results"]["counts"];
    let lost = ["ring", "no_buffer", "invalid", "queue", "disk"];
    let lost = lost.iter().map(|place| counts[place].as_u64().unwrap());
    let lost: u64 = lost.sum();
    assert!(lost > 10_000, "{counts}");
    let told = fields(&file, &["frame.drop_count"]);
    let told = told.iter().filter_map(|number| number.parse::<u64>().ok());
    assert_eq!(told.sum::<u64>(), lost, "{counts}");
}

/// What `capture --replay` does with these arguments.
fn replayed(arguments: &[&str]) -> (i32, String, String) {
    let output = Command::new(PROGRAM)
        .args(["capture", "--replay"])
        .args(arguments)
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let code = output.status.code().unwrap();
    (code, text(output.stdout), text(output.stderr))
}

#[test]
fn a_capture_is_sent_again_at_its_own_times() {
    let testbed = testbed();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("first.pcapng");
    let name = file.to_str().unwrap();
    let arguments = ["udp", "--mode", "take", "-w", name, "--json", "-"];
    let (process, output) = start(&testbed, &arguments);
    blast(&testbed, 2000, 500);
    assert_eq!(end(process, output)["counts"]["recorded"], 500);

    // tshark wrote the times that it reads.
    let (code, times, said) = replayed(&[name, "udp", "dst", "port", "9"]);
    assert_eq!(code, 0, "{said}");
    let relative = fields(&file, &["frame.time_relative"]);
    assert_eq!(times.lines().collect::<Vec<_>>(), relative);
    // The old format, in microseconds, by somebody else.
    let old = directory.path().join("old.pcap");
    let converted = read_by("editcap", &["-F", "pcap", name], &old);
    let (_, coarse, _) = replayed(&[old.to_str().unwrap(), "--count", "10"]);
    assert_eq!(coarse.lines().count(), 10, "{converted}");
    assert_eq!(coarse.lines().next(), Some("0.000000000"));

    let given = directory.path().join("times");
    fs::write(&given, &times).unwrap();
    let sent = Command::new(PROGRAM)
        .args(["blast", "--json", "-", "--arrivals"])
        .arg(&given)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&sent.stderr);
    let document: Value = serde_json::from_slice(&sent.stdout).expect(&said);
    let results = &document["results"];
    assert_eq!(
        (&results["offered"], &results["end"]),
        (&500.into(), &"frames".into())
    );
    let took: f64 = times.lines().last().unwrap().parse().unwrap();
    let elapsed = results["elapsed_s"].as_f64().unwrap();
    assert!(
        (elapsed - took).abs() < 0.1,
        "{elapsed} s instead of {took}"
    );
}

#[test]
fn what_cannot_be_replayed_is_said() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let name = path.to_str().unwrap();
    assert_eq!(replayed(&["/no/such/file"]).0, 1);
    fs::write(&path, "no capture at all").unwrap();
    let (code, _, said) = replayed(&[name]);
    assert!(code == 1 && said.contains("pcapng"), "{said}");
    // Three packets of four bytes, the last cut off.
    let header = [0xa1b2_c3d4_u32, 0x0002_0004, 0, 0, 65_535, 1];
    let packet = |second: u32| [second, 7, 4, 4, 0];
    let words = header
        .into_iter()
        .chain([5, 6, 9].into_iter().flat_map(packet));
    let bytes: Vec<u8> = words.flat_map(u32::to_be_bytes).collect();
    fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    let (code, times, said) = replayed(&[name]);
    assert_eq!((code, times.as_str()), (1, ""));
    assert!(said.contains("damaged after 2 packets"), "{said}");
    let (code, times, _) = replayed(&[name, "--count", "2"]);
    assert_eq!((code, times.as_str()), (0, "0.000000000\n1.000000000\n"));
    let (code, _, said) = replayed(&[name, "--count", "2", "udp and"]);
    assert!(code == 2 && said.contains("`udp and`"), "{said}");
    for of_no_frame in ["inbound", "ether[0xfffff004:2] = 4"] {
        let (code, _, said) = replayed(&[name, "--count", "2", of_no_frame]);
        assert!(code == 2 && said.contains(of_no_frame), "{said}");
    }
    fs::write(&path, &bytes).unwrap();
    let (code, _, said) = replayed(&[name, "udp"]);
    assert!(code == 1 && said.contains("filter"), "{said}");
}

#[test]
fn a_killed_capture_leaves_the_interface_as_it_was() {
    let testbed = testbed();
    let host = testbed.test();
    // With promiscuity and the XDP program.
    let state = || {
        let mut command = host.command("ip");
        let shown = command
            .args(["-d", "link", "show", host.device()])
            .output(LIMIT);
        String::from_utf8(shown.unwrap().stdout).unwrap()
    };
    let before = state();
    for mode in ["copy", "take"] {
        let (mut process, _output) = start(&testbed, &["--mode", mode, "-w", "/dev/null"]);
        assert_eq!(state().contains("prog/xdp"), mode == "take");
        // A span port's frames are for others.
        assert!(state().contains("promiscuity 1"), "{mode}: {}", state());
        process.signal(Signal::SIGKILL).unwrap();
        process.wait(LIMIT).unwrap();
        // The kernel detaches a moment after the process's end.
        let end = Instant::now() + LIMIT;
        while state() != before {
            assert!(Instant::now() < end, "{mode}: {}", state());
            thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn what_cannot_be_done_is_said_with_its_exit_code() {
    let testbed = testbed();
    let host = testbed.test();
    let code = |arguments: &[&str]| {
        let mut process = host
            .command(PROGRAM)
            .arg("capture")
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        let mut stderr = process.take_stderr().unwrap();
        stderr.read_to_string(&mut said).unwrap();
        (process.wait(LIMIT).unwrap().code().unwrap(), said)
    };
    let device = host.device();
    let (wrong, said) = code(&[device, "udp and", "-w", "/dev/null"]);
    assert_eq!(wrong, 2);
    assert!(said.contains("the filter `udp and` is none"), "{said}");
    assert_eq!(code(&["none0", "-w", "/dev/null"]).0, 1);
    let (failed, said) = code(&[device, "-w", "/no/such/place"]);
    assert_eq!((failed, said.matches("os error").count()), (1, 1), "{said}");
    let both = code(&[device, "-w", "-", "--json", "-"]);
    assert_eq!(both.0, 2, "{}", both.1);
    // The document had taken the packets' place.
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("packets");
    let file = file.to_str().unwrap();
    let both = [device, "-w", file, "--json", file, "--duration", "0.1"];
    let both = code(&both);
    assert_eq!(both.0, 2, "{}", both.1);
    // They had the library's names, as `ring` for what is not --ring.
    for (option, value) in [
        ("--ring", "20G"),
        ("--queue", "1K"),
        ("--snaplen", "9"),
        ("--ring-size", "1K"),
        ("--ring-time", "0"),
        ("--files", "2"),
    ] {
        let refused = code(&[device, "-w", "/dev/null", option, value]);
        let named = format!("plimsoll: {option} must be ");
        assert!(
            refused.0 == 2 && refused.1.starts_with(&named),
            "{}",
            refused.1
        );
    }
    let ring = code(&[device, "-w", "-", "--ring-size", "1G"]);
    let said = "plimsoll: --ring-size or --ring-time must be none on standard output\n";
    assert_eq!(ring, (2, said.to_owned()));
    for filter in [&["inbound", "--mode", "take"][..], &["vlan and inbound"]] {
        let none = code(&[&[device, "-w", "/dev/null"], filter].concat());
        assert!(
            none.0 == 2 && none.1.contains("stands in no frame"),
            "{}",
            none.1
        );
    }
    let files = code(&[device, "-w", "/dev/null", "--files", "2"]);
    assert_eq!(files.0, 2, "{}", files.1);
}
