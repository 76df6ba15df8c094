//! The loop with work that fails as told: no error of a moment ends it.

use std::collections::BTreeMap;
use std::sync::mpsc::channel;

use super::*;
use crate::guard::Regulated;
use crate::presence::Absence;
use crate::session::SettingsError;
use crate::session::standby::Change;
use crate::session::work::ConfigureError;

/// Work that fails for a number of attempts, by its name.
#[derive(Default)]
struct Failing {
    failures: BTreeMap<&'static str, u32>,
    done: BTreeMap<&'static str, u32>,
    configured: Option<Settings>,
    /// Nothing is turned while governing fails.
    stood_back: u32,
    /// So often the owners of sockets are being found out.
    pending: u32,
    /// The interface has gone: all that asks for it fails.
    is_gone: bool,
}

impl Failing {
    fn work(&mut self, name: &'static str) -> Result<(), Error> {
        if let Some(left) = self.failures.get_mut(name).filter(|left| **left > 0) {
            *left -= 1;
            let refused = io::Error::from_raw_os_error(libc::ENOBUFS);
            return Err(plimsoll_kernel::error::os("do what a test forbids")(refused).into());
        }
        *self.done.entry(name).or_default() += 1;
        Ok(())
    }
}

impl Work for Failing {
    fn regulate(&mut self) -> Result<Regulated, Error> {
        self.work("regulate").map(|()| Regulated::nothing())
    }
    fn interval(&self) -> Duration {
        Duration::from_millis(5)
    }
    fn govern(&mut self, _: &Regulated) -> Result<(), Error> {
        self.work("govern")
    }
    fn stand_back(&mut self) -> Result<(), Error> {
        self.stood_back += 1;
        self.work("stand_back")
    }
    fn is_gone(&self) -> bool {
        self.is_gone
    }
    fn renamed(&mut self) -> Option<String> {
        None
    }
    fn refresh(&mut self) -> Result<(), Error> {
        self.work("refresh")
    }
    fn see_presence(&mut self) -> Result<Option<Absence>, Error> {
        self.work("presence").map(|()| None)
    }
    fn stand_by(&mut self) -> Result<Option<Change>, Error> {
        self.work("standby").map(|()| None)
    }
    fn watching(&self) -> Duration {
        Duration::from_millis(5)
    }
    fn renew_threads(&mut self) -> Poll<Result<Option<usize>, Error>> {
        Poll::Ready(self.work("threads").map(|()| None))
    }
    fn tell_owners_apart(&mut self) -> Poll<Result<(), Error>> {
        if self.pending > 0 {
            self.pending -= 1;
            return Poll::Pending;
        }
        Poll::Ready(self.work("owners"))
    }
    fn snapshot(&mut self) -> Result<Snapshot, Error> {
        self.work("snapshot").map(|()| Snapshot::sample(Vec::new()))
    }
    fn configure(&mut self, settings: &Settings) -> Result<(), ConfigureError> {
        self.work("configure").map_err(ConfigureError::Refused)?;
        self.configured = Some(settings.clone());
        Ok(())
    }
}

/// A console that remembers, and whose reader may go away.
#[derive(Default)]
struct Notes {
    lines: Vec<String>,
    shown: u32,
    reader_goes_after: Option<u32>,
    settings: Option<Settings>,
}

impl Console for Notes {
    fn start(&mut self, _: crate::session::Requests) -> io::Result<()> {
        Ok(())
    }
    fn show(&mut self, _: &Report<'_>) -> io::Result<()> {
        if self
            .reader_goes_after
            .is_some_and(|last| last <= self.shown)
        {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        self.shown += 1;
        Ok(())
    }
    fn log(&mut self, line: String) {
        self.lines.push(line);
    }
    fn settings(&mut self) -> Result<Settings, Box<dyn std::error::Error>> {
        self.settings.clone().ok_or_else(|| "a mistake".into())
    }
    fn finish(&mut self, _: &Report<'_>) -> io::Result<()> {
        Ok(())
    }
}

fn settings() -> Settings {
    Settings {
        interval: Duration::from_millis(20),
        duration: Some(Duration::from_millis(700)),
        ..Settings::new("v0")
    }
}

/// A whole loop with `requests`; how it ended, the work and what was told.
fn run(
    work: Failing,
    mut notes: Notes,
    requests: Vec<Request>,
) -> (io::Result<Ended>, Failing, Notes) {
    let (sender, receiver) = channel();
    for request in requests {
        sender.send(request).unwrap();
    }
    let mut turns = Turns::new(settings(), work, &mut notes, Instant::now());
    let ended = turns.run(&receiver);
    let (work, _) = turns.into_parts();
    (ended, work, notes)
}

#[test]
fn no_failure_of_a_moment_ends_the_loop_and_each_is_told_and_tried_again() {
    for (name, said) in [
        ("regulate", "cannot see how busy the CPUs are"),
        ("govern", "cannot govern"),
        ("refresh", "cannot take over the host's addresses"),
        ("threads", "cannot have threads poll"),
        ("presence", "cannot attach the program anew"),
        ("owners", "cannot tell the owners of sockets apart"),
        (
            "standby",
            "cannot attach or detach the program that stands by",
        ),
        ("snapshot", "cannot read the counters"),
    ] {
        // Once a second is too rare for this test to see a second attempt.
        let is_rare = matches!(name, "refresh" | "threads" | "presence" | "owners");
        let work = Failing {
            failures: [(name, if is_rare { 1 } else { 2 })].into(),
            ..Failing::default()
        };
        let (ended, work, notes) = run(work, Notes::default(), Vec::new());
        ended.unwrap();
        let told = |text: &str| {
            let start = format!("interface=v0 {text}");
            notes.lines.iter().any(|line| line.starts_with(&start))
        };
        assert!(
            told(&format!("{said}: cannot do what a test forbids")),
            "{name}: {:?}",
            notes.lines
        );
        assert!(
            told(&format!("can{}", &said[6..]))
                || matches!(name, "threads" | "presence" | "owners"),
            "{name}: {:?}",
            notes.lines
        );
        assert_eq!(work.failures[name], 0, "{name}");
        for other in [
            "regulate", "govern", "refresh", "threads", "presence", "owners", "standby", "snapshot",
        ] {
            assert!(
                work.done.contains_key(other) || other == name,
                "{other} beside {name}"
            );
        }
    }
}

/// Asked for once a second only, it would be pending for longer than this loop lasts.
#[test]
fn work_that_another_thread_does_is_asked_for_again_soon() {
    let work = Failing {
        failures: [("owners", 1)].into(),
        pending: 2,
        ..Failing::default()
    };
    let (ended, work, notes) = run(work, Notes::default(), Vec::new());
    ended.unwrap();
    assert_eq!((work.pending, work.failures["owners"]), (0, 0));
    let told = |line: &&String| line.contains("owners of sockets");
    assert_eq!(
        notes.lines.iter().filter(told).count(),
        1,
        "{:?}",
        notes.lines
    );
}

#[test]
fn shedding_goes_on_at_its_pace_while_governing_fails() {
    let work = Failing {
        failures: [("govern", u32::MAX)].into(),
        ..Failing::default()
    };
    let (ended, work, _) = run(work, Notes::default(), Vec::new());
    ended.unwrap();
    assert!(
        (2..=4).contains(&work.stood_back),
        "waits grow: {}",
        work.stood_back
    );
    // Two attempts a failure apart would be 5 in this time, were they coupled.
    assert!(work.done["regulate"] > 10, "{:?}", work.done);
}

/// What had been turned stayed so, by what was seen last, until the keeper took the guard for one that
/// hangs, and said so.
#[test]
fn nothing_is_turned_while_nobody_sees_how_busy_the_cpus_are() {
    let work = Failing {
        failures: [("regulate", 2)].into(),
        ..Failing::default()
    };
    let (ended, work, _) = run(work, Notes::default(), Vec::new());
    ended.unwrap();
    assert_eq!(work.stood_back, 2);
    assert!(work.done.contains_key("govern"), "and then it governs");
}

#[test]
fn a_mistake_in_new_settings_keeps_the_old_ones() {
    let wrong = Settings {
        poll_cpu: Some(0),
        ..settings()
    };
    let refused = SettingsError::NoPollingThread { cpu: 0 };
    for (new, said) in [
        (None, "a mistake".to_owned()),
        (Some(wrong), refused.to_string()),
    ] {
        let notes = Notes {
            settings: new,
            ..Notes::default()
        };
        let (ended, work, notes) = run(
            Failing::default(),
            notes,
            vec![Request::Reload, Request::Stop],
        );
        ended.unwrap();
        assert_eq!(work.configured, None);
        assert_eq!(
            notes.lines,
            [format!(
                "interface=v0 the settings stay as they were: {said}"
            )]
        );
    }
}

#[test]
fn new_settings_that_are_refused_are_told() {
    let work = Failing {
        failures: [("configure", 1)].into(),
        ..Failing::default()
    };
    let notes = Notes {
        settings: Some(settings()),
        ..Notes::default()
    };
    let requests = vec![Request::Reload, Request::Reload, Request::Stop];
    let (ended, work, notes) = run(work, notes, requests);
    ended.unwrap();
    assert_eq!(work.done["configure"], 1);
    let [refused, taken] = &notes.lines[..] else {
        panic!("{:?}", notes.lines);
    };
    let said = "interface=v0 the settings stay as they were: cannot do what a test forbids: ";
    assert!(refused.starts_with(said), "{refused}");
    assert_eq!(taken, "interface=v0 settings read again");
}

#[test]
fn new_settings_are_taken_over_and_what_waits_is_told() {
    let new = Settings {
        shares: crate::session::Shares::ControlGroup,
        duration: None,
        callers: [("json", "other.json".to_owned())].into(),
        ..settings()
    };
    let notes = Notes {
        settings: Some(new),
        ..Notes::default()
    };
    let (ended, work, notes) = run(
        Failing::default(),
        notes,
        vec![Request::Reload, Request::Stop],
    );
    ended.unwrap();
    let configured = work.configured.unwrap();
    assert_eq!(configured.shares, crate::session::Shares::ControlGroup);
    assert_eq!(configured.duration, settings().duration);
    assert_eq!(
        notes.lines,
        [
            "interface=v0 settings read again",
            "interface=v0 duration, json: a change takes a new start"
        ]
    );
}

#[test]
fn who_asks_while_counters_cannot_be_read_hears_nothing_and_the_next_does() {
    let work = Failing {
        // The first report fails, too.
        failures: [("snapshot", 2)].into(),
        ..Failing::default()
    };
    let asked = [channel(), channel()];
    let mut requests: Vec<_> = asked
        .iter()
        .map(|(reply, _)| Request::Read(reply.clone()))
        .collect();
    requests.push(Request::Stop);
    let (ended, _, _) = run(work, Notes::default(), requests);
    ended.unwrap();
    let answers = asked.map(|(_, answer)| answer.try_recv().is_ok());
    assert_eq!(answers, [false, true]);
}

#[test]
fn a_reader_who_goes_away_ends_it() {
    let notes = Notes {
        reader_goes_after: Some(2),
        ..Notes::default()
    };
    let (ended, _, notes) = run(Failing::default(), notes, Vec::new());
    assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    assert_eq!(notes.shown, 2);
}

/// It had gone on for good, and said that early discard did, too.
#[test]
fn a_guard_whose_interface_has_gone_ends_and_tells_of_no_failure_of_a_moment() {
    let gone = || Failing {
        failures: ["regulate", "refresh", "presence", "standby"]
            .map(|name| (name, u32::MAX))
            .into(),
        is_gone: true,
        ..Failing::default()
    };
    let (ended, work, notes) = run(gone(), Notes::default(), Vec::new());
    assert_eq!(ended.unwrap(), Ended::InterfaceGone);
    assert_eq!(notes.lines, [""; 0]);
    assert!(
        work.done["snapshot"] > 0,
        "the last words have their counts"
    );
    // Who is asked to stop stops as asked.
    let (ended, _, notes) = run(gone(), Notes::default(), vec![Request::Stop]);
    assert_eq!(ended.unwrap(), Ended::AsAsked);
    assert_eq!(notes.lines, [""; 0]);
}
