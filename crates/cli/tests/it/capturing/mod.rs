//! Captures on one of two hosts, what is sent to it, and what other programs read in the file.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{ChildStderr, Command, Stdio};
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use pcap_file::pcapng::blocks::interface_statistics::{
    InterfaceStatisticsBlock, InterfaceStatisticsOption,
};
use pcap_file::pcapng::{Block, PcapNgReader};
use plimsoll_testbed::blast::{Blast, Bound, Flow, Report, Schedule, Spec, Stop, Transport};
use plimsoll_testbed::placement::Placement;
use plimsoll_testbed::{Command as HostCommand, Config, Host, Process, Testbed};
use serde_json::Value;

use crate::common::{LIMIT, PROGRAM};

pub(crate) fn testbed() -> Testbed {
    let testbed = Testbed::create(Config::default()).unwrap();
    // Else the hosts announce themselves during a test.
    for host in [testbed.load(), testbed.test()] {
        let name = format!("net.ipv6.conf.{}.disable_ipv6", host.device());
        host.sysctl(&name, "1").unwrap();
    }
    let holdoff = Duration::from_micros(100);
    Placement::Softirq { holdoff }.apply(&testbed).unwrap();
    testbed
}

/// Starts a capture on the test host and waits until it runs.
pub(crate) fn start(testbed: &Testbed, arguments: &[&str]) -> (Process, impl Read + use<>) {
    let (process, output, mut says) = start_told(testbed, arguments);
    // What it says at its end is not to stop it.
    thread::spawn(move || std::io::copy(&mut says, &mut std::io::sink()));
    (process, output)
}

/// The same, with its standard output and what it says then.
pub(crate) fn start_told(
    testbed: &Testbed,
    arguments: &[&str],
) -> (Process, impl Read + use<>, impl Read + use<>) {
    let host = testbed.test();
    let mut command = host.command(PROGRAM);
    command
        .args(["capture", host.device()])
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let (mut process, says) = running(command);
    let output = process.take_stdout().unwrap();
    (process, output, says)
}

/// Starts a capture with these words of the shell, which can write into `{place}/disk`: a disk that
/// is full soon, and that nobody else sees. Its file `full.pcapng` is copied to `place` at the end.
pub(crate) fn start_on_small_disk(
    host: &Host,
    place: &str,
    words: &str,
) -> (Process, impl Read + use<>) {
    let script = format!(
        "mkdir {place}/disk && mount -t tmpfs -o size=512k none {place}/disk || exit 99
         {PROGRAM} capture {} {words}
         code=$?
         cp {place}/disk/full.pcapng {place}/full.pcapng
         exit $code",
        host.device()
    );
    let mut command = host.command("unshare");
    command
        .args(["--mount", "sh", "-c", &script])
        .stderr(Stdio::piped());
    running(command)
}

/// Waits until it captures.
pub(crate) fn running(mut command: HostCommand<'_>) -> (Process, BufReader<ChildStderr>) {
    let mut process = command.spawn().unwrap();
    let mut says = BufReader::new(process.take_stderr().unwrap());
    let mut line = String::new();
    says.read_line(&mut line).unwrap();
    assert!(line.starts_with("capturing on "), "{line}");
    (process, says)
}

/// The files in a directory, which are those that the results name.
pub(crate) fn files_told(directory: &Path, results: &Value) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    let told: Vec<PathBuf> = serde_json::from_value(results["files"].clone()).unwrap();
    assert_eq!(files, told);
    files
}

/// Ends it as Ctrl-C does; returns its JSON document's results.
pub(crate) fn end(process: Process, output: impl Read) -> Value {
    process.signal(Signal::SIGINT).unwrap();
    ended(process, output)
}

pub(crate) fn ended(mut process: Process, mut output: impl Read) -> Value {
    let mut text = String::new();
    output.read_to_string(&mut text).unwrap();
    assert!(process.wait(LIMIT).unwrap().success());
    let document: Value = serde_json::from_str(&text).unwrap();
    document["results"].clone()
}

/// UDP packets to port 9 of the test host.
pub(crate) fn blast(testbed: &Testbed, rate_pps: u64, frames: u64) -> Report {
    blast_from(testbed, testbed.load().cpu(), rate_pps, frames)
}

/// The same from this CPU.
pub(crate) fn blast_from(testbed: &Testbed, cpu: usize, rate_pps: u64, frames: u64) -> Report {
    let mut spec = to_test(testbed, rate_pps);
    spec.cpu = Some(cpu);
    spec.bound = Bound {
        time: Duration::from_secs(20),
        frames,
    };
    let run = || Blast::load(&spec)?.run(&Stop::new());
    let report = testbed.load().run(run).unwrap().unwrap();
    // What is on its way.
    thread::sleep(Duration::from_millis(100));
    report
}

/// The same while `work` is done.
pub(crate) fn beside_blast(testbed: &Testbed, rate_pps: u64, work: impl FnOnce()) -> Report {
    let mut spec = to_test(testbed, rate_pps);
    spec.bound = Bound {
        time: LIMIT,
        frames: 4_000_000_000,
    };
    let (spec, stop) = (&spec, &Stop::new());
    thread::scope(|scope| {
        let run = || Blast::load(spec)?.run(stop);
        let flooding = scope.spawn(move || testbed.load().run_on_cpu(run).unwrap().unwrap());
        work();
        stop.stop();
        flooding.join().unwrap()
    })
}

fn to_test(testbed: &Testbed, rate_pps: u64) -> Spec {
    let (load, test) = (testbed.load(), testbed.test());
    let flow = Flow {
        source: "198.18.7.0/24".parse().unwrap(),
        source_ports: 2000..=2003,
        destination: test.ipv4().into(),
        destination_ports: 9..=9,
        transport: Transport::Udp {
            payload: vec![0; 18],
        },
    };
    let schedule = Schedule::Fixed { rate_pps };
    Spec::new(load.device(), test.mac(), flow, schedule)
}

pub(crate) fn read_by(program: &str, arguments: &[&str], file: &Path) -> String {
    let output = Command::new(program).args(arguments).arg(file).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error} (scripts/setup)"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program}: {said}");
    assert!(!said.contains("cut short"), "{program}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

/// The packets that tshark finds, one line of these fields each.
pub(crate) fn fields(file: &Path, fields: &[&str]) -> Vec<String> {
    let mut arguments = vec!["-n", "-T", "fields"];
    arguments.extend(fields.iter().flat_map(|field| ["-e", field]));
    arguments.push("-r");
    let lines = read_by("tshark", &arguments, file);
    lines.lines().map(str::to_owned).collect()
}

/// All statements of counts in a file.
pub(crate) fn statements(file: &Path) -> Vec<InterfaceStatisticsBlock<'static>> {
    let mut reader = PcapNgReader::new(File::open(file).unwrap()).unwrap();
    let mut found = Vec::new();
    while let Some(block) = reader.next_block() {
        if let Block::InterfaceStatistics(statement) = block.unwrap().into_owned() {
            found.push(statement);
        }
    }
    found
}

/// A number of the last statement's comment, as `recorded`.
pub(crate) fn stated(file: &Path, key: &str) -> u64 {
    let last = statements(file).pop().expect("a file ends in its counts");
    let comment = last.options.iter().find_map(|option| match option {
        InterfaceStatisticsOption::Comment(text) => Some(text.to_string()),
        _ => None,
    });
    let comment = comment.unwrap();
    let prefix = format!("{key}=");
    let mut words = comment.split(' ');
    let number = words.find_map(|word| word.strip_prefix(&prefix));
    number
        .unwrap_or_else(|| panic!("{key}: {comment}"))
        .parse()
        .unwrap()
}

pub(crate) fn sum(counts: &Value) -> u64 {
    let places = counts.as_object().unwrap().values();
    places.map(|count| count.as_u64().unwrap()).sum()
}
