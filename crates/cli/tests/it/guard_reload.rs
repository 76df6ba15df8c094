//! Settings read again in the middle of a flood: the governor goes with them,
//! what the old ones had turned is put back, and no packet is lost or counted
//! twice by it. Needs root.

use std::fs;
use std::io::BufRead;
use std::path::Path;

use nix::sys::signal::Signal;
use plimsoll_testbed::{Config, Host, Process, Testbed};
use serde_json::Value;

use crate::common::overload::{
    Settings, await_mode, await_report, busy_server, flood, flooded, receive_on_test_cpu, settings,
};
use crate::common::{LIMIT, start_with};

const PORT: u16 = 7000;
const RATE_PPS: u64 = 400_000;
/// How a polling thread is told from softirq (netdev family).
const THREADED: Option<u32> = Some(1);

/// A running guard whose settings are in a file.
struct Session<'a, R> {
    host: &'a Host,
    guard: &'a Process,
    reports: R,
    file: &'a Path,
    /// The mode's changes so far, which never go back.
    switches: u64,
}

impl<R: BufRead> Session<'_, R> {
    fn reload(&mut self, settings: &str, mode: &str) {
        fs::write(self.file, settings).unwrap();
        self.guard.signal(Signal::SIGHUP).unwrap();
        let observes = settings.contains("observe");
        await_report(&mut self.reports, settings, |report| {
            report["observe"] == observes && report["governor"]["mode"] == mode
        });
    }

    /// Waits until the settings are as wanted: a report may be older than they.
    fn await_settings(&mut self, what: &str, is_wanted: impl Fn(&Settings) -> bool) {
        let (host, mut last) = (self.host, self.switches);
        await_report(&mut self.reports, what, |report| {
            let switches = report["governor"]["switches"].as_u64().unwrap();
            assert!(switches >= last, "{switches} after {last}");
            last = switches;
            is_wanted(&settings(host).0)
        });
        self.switches = last;
    }
}

/// Packets for the flooded server, whatever became of them.
fn offered(report: &Value) -> u64 {
    let channels = report["channels"].as_array().unwrap();
    let channel = channels.iter().find(|channel| channel["port"] == PORT);
    let outcomes = channel.unwrap()["packets"].as_object().unwrap();
    outcomes.values().map(|count| count.as_u64().unwrap()).sum()
}

#[test]
fn in_a_flood_the_governor_goes_with_the_settings_and_every_packet_is_counted() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("guard.toml");
    let threads = "strategy = \"thread\"\ninterval-ms = 100\n";
    fs::write(&file, threads).unwrap();
    let testbed = Testbed::create(Config::default()).unwrap();
    let host = testbed.test();
    receive_on_test_cpu(&testbed);
    let arguments = ["--config", file.to_str().unwrap()];
    let (guard, reports) = start_with(host, &arguments);
    receive_on_test_cpu(&testbed);
    let before = settings(host).0;
    let _server = busy_server(host, PORT);
    let _computing = host.computing().spawn().unwrap();
    let mut session = Session {
        host,
        guard: &guard,
        reports,
        file: &file,
        switches: 0,
    };
    let threaded = |now: &Settings| now.instances[0].threaded == THREADED;

    let (_, flood) = flooded(&testbed, &flood(&testbed, PORT..=PORT, RATE_PPS), || {
        await_mode(&mut session.reports, "overload");
        session.await_settings("threads", threaded);
        session.reload("strategy = \"holdoff\"\ninterval-ms = 100\n", "overload");
        session.await_settings("a holdoff only", |now| {
            !threaded(now) && now.instances != before.instances
        });
        // What is only observed is not governed.
        session.reload("observe = true\ninterval-ms = 100\n", "interrupts");
        session.await_settings("its own settings again", |now| *now == before);
        // A mistake changes nothing.
        session.reload("observe = true\ninterval-ms = 99\n", "interrupts");
        session.await_settings("its own settings still", |now| *now == before);
        session.reload(threads, "overload");
        session.await_settings("threads again", threaded);
    });
    assert!(session.switches >= 2, "overload began twice");

    let last = await_mode(&mut session.reports, "interrupts");
    assert_eq!(offered(&last), flood.sent, "{last}");
    assert_eq!(settings(host).0, before);
    let Session { reports, .. } = session;
    assert!(guard.stop(LIMIT).unwrap().success());
    drop(reports);
}
