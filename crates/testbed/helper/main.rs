//! Processes that the tests start, to be signalled and killed.

use std::fs;
use std::io::{BufWriter, Write, stdout};
use std::path::Path;
use std::time::Duration;

use clap::Parser;
use plimsoll_testbed::http::Nginx;
use plimsoll_testbed::{Config, ControlGroup, Error, Testbed, interrupt, server};

#[derive(Parser)]
enum Helper {
    /// Makes a testbed with nginx and a process in a control group, says so, and waits for a
    /// signal.
    Hold,
    /// Computes for so many milliseconds, and then prints when it ran: a start
    /// and an end in each line, in nanoseconds of the monotonic clock.
    Compute {
        #[arg(value_parser = clap::value_parser!(u64).range(1..60_000))]
        millis: u64,
    },
    /// As `plimsoll serve`.
    Serve(Box<server::Config>),
}

fn main() -> Result<(), Error> {
    match Helper::parse() {
        Helper::Hold => hold(),
        Helper::Compute { millis } => {
            compute(Duration::from_millis(millis));
            Ok(())
        }
        Helper::Serve(config) => server::serve(&config).map(drop),
    }
}

fn hold() -> Result<(), Error> {
    let testbed = Testbed::create(Config::default())?;
    let sleeper = testbed.test().command("sleep").arg("1000").spawn()?;
    let _nginx = Nginx::start(testbed.test(), 80)?;
    let hierarchies = ["/sys/fs/cgroup", "/sys/fs/cgroup/cpu"].map(Path::new);
    let mut hierarchies = hierarchies.iter();
    let hierarchy = hierarchies.find(|one| one.join("cgroup.procs").exists());
    let hierarchy = hierarchy.expect("a hierarchy of control groups is mounted");
    let group = ControlGroup::make(testbed.test(), hierarchy, "held")?;
    // As a guard makes one for polling threads.
    let within = group.path().join("within");
    fs::create_dir(&within).expect("a control group within one that was just made");
    let put = fs::write(within.join("cgroup.procs"), sleeper.pid().to_string());
    put.expect("the group takes a process");
    println!(
        "{} {} {} {}",
        testbed.load().name(),
        testbed.test().name(),
        sleeper.pid(),
        group.path().display()
    );
    stdout().flush().expect("the test reads it");
    interrupt::sleep(Duration::from_secs(600))
}

/// Two readings of the clock farther apart than this: something else ran.
const GAP_NS: u64 = 1_000;
/// More than two a millisecond of any time that may be asked for.
const STRETCHES_MAX: usize = 1 << 20;

/// Reads the clock without end, and so knows when it ran and when it did not.
fn compute(span: Duration) {
    // Touched before, so that no page fault falls into the time.
    let mut stretches = vec![(1u64, 1u64); STRETCHES_MAX];
    let begin_ns = now_ns();
    let end_ns = begin_ns + u64::try_from(span.as_nanos()).expect("a minute");
    let (mut used, mut since_ns, mut last_ns) = (0, begin_ns, begin_ns);
    while last_ns < end_ns && used < STRETCHES_MAX {
        let read_ns = now_ns();
        if read_ns - last_ns > GAP_NS {
            stretches[used] = (since_ns, last_ns);
            used += 1;
            since_ns = read_ns;
        }
        last_ns = read_ns;
    }
    stretches.truncate(used);
    stretches.push((since_ns, last_ns));
    let mut output = BufWriter::new(stdout());
    for (since_ns, until_ns) in stretches {
        writeln!(output, "{since_ns} {until_ns}").expect("the test reads it");
    }
}

fn now_ns() -> u64 {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC);
    let now = Duration::from(now.expect("every Linux has this clock"));
    u64::try_from(now.as_nanos()).expect("584 years")
}
