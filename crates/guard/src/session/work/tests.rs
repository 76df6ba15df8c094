//! New settings, and what is put back when.

use std::io;
use std::process::Command;

use ipnet::IpNet;
use plimsoll_kernel::error::os;
use plimsoll_kernel::knobs::Queues;
use plimsoll_kernel::namespace;
use plimsoll_kernel::scheduling::Priority;

use super::*;
use crate::governor::Strategy;
use crate::{Config, Protection, Storage};

fn refuse(action: &'static str) -> Error {
    os(action)(io::Error::from_raw_os_error(libc::ENOBUFS)).into()
}

/// Parts that take settings one after the other, and may refuse.
fn changed(refusals: &[(char, usize)]) -> ([char; 3], Result<(), ConfigureError>) {
    let mut parts = ['o'; 3];
    let result = change(&'o', &'n', |settings| {
        for (index, part) in parts.iter_mut().enumerate() {
            if refusals.contains(&(*settings, index)) {
                return Err(refuse(if *settings == 'n' { "go on" } else { "go back" }));
            }
            *part = *settings;
        }
        Ok(())
    });
    (parts, result)
}

#[test]
fn new_settings_hold_as_a_whole_or_those_before_or_both_errors_are_told() {
    let (parts, result) = changed(&[]);
    assert_eq!(parts, ['n'; 3]);
    result.unwrap();
    for refusing in 0..3 {
        let (parts, result) = changed(&[('n', refusing)]);
        assert_eq!(parts, ['o'; 3], "{refusing}");
        let told = with_causes(&result.unwrap_err());
        assert!(told.starts_with("the settings stay as they were: cannot go on: "));
    }
    let (parts, result) = changed(&[('n', 2), ('o', 1)]);
    assert_eq!(parts, ['o', 'n', 'o']);
    let told = with_causes(&result.unwrap_err());
    let said = "the settings are partly new and partly as they were (";
    assert!(told.starts_with(said), "{told}");
    assert!(told.contains("or restart): cannot go on: "), "{told}");
    assert!(told.contains("; and then: cannot go back: "), "{told}");
}

/// After a failure to govern a holdoff would stay as it was left, and one that could not be put
/// back then until the end. Needs root.
#[test]
fn what_is_turned_is_put_back_when_governing_fails_and_else_at_the_next_look() {
    type Step = fn(&mut Guarded<'_>) -> Result<(), Error>;
    const STEPS: [Step; 2] = [
        |guarded| guarded.stand_back(),
        |guarded| {
            guarded.must_restore = true;
            guarded.govern(&Regulated::nothing())
        },
    ];
    namespace::in_new(|| {
        let directory = tempfile::tempdir().unwrap();
        let settings = Settings::new("lo");
        let knobs = Knobs::open_in(directory.path(), "lo").unwrap();
        let mut storage = Storage::default();
        let guard = Guard::load(&mut storage, &settings.guard).unwrap();
        let governor = Governor::new("lo", settings.governor()).unwrap();
        let mut guarded = Guarded::new(settings, knobs, guard, governor);
        for step in STEPS {
            let holdoff = Duration::from_micros(50);
            let turned = guarded.knobs.set_holdoff(Queues::All, 7, holdoff);
            turned.unwrap();
            step(&mut guarded).unwrap();
            assert!(guarded.knobs.is_untouched());
        }
    })
    .unwrap();
}

/// Needs root.
#[test]
fn a_guard_whose_protection_is_refused_keeps_all_its_settings() {
    namespace::in_new(|| {
        let directory = tempfile::tempdir().unwrap();
        let old = Settings::new("lo");
        let knobs = Knobs::open_in(directory.path(), "lo").unwrap();
        let mut storage = Storage::default();
        let guard = Guard::load(&mut storage, &old.guard).unwrap();
        let governor = Governor::new("lo", old.governor()).unwrap();
        let mut guarded = Guarded::new(old.clone(), knobs, guard, governor);
        let everywhere: IpNet = "192.0.2.0/24".parse().unwrap();
        let new = Settings {
            guard: Config {
                observe: true,
                ..old.guard
            },
            any_driver: true,
            protection: Protection {
                sources: vec![everywhere; 1025],
                ..old.protection.clone()
            },
            ..old.clone()
        };
        let told = with_causes(&guarded.configure(&new).unwrap_err());
        assert!(
            told.starts_with("the settings stay as they were: "),
            "{told}"
        );
        assert_eq!(guarded.guard.config, old.guard);
        assert_eq!(guarded.governor.config(), &old.governor());
        let protection = old.protection.clone();
        guarded
            .configure(&Settings {
                protection,
                ..new.clone()
            })
            .unwrap();
        assert_eq!(guarded.guard.config, new.guard);
        assert_eq!(guarded.governor.config(), &new.governor());
    })
    .unwrap();
}

fn run(words: &str) {
    let mut words = words.split(' ');
    let mut command = Command::new(words.next().unwrap());
    assert!(command.args(words).status().unwrap().success());
}

/// Guards an interface that `made` makes, in a namespace of its own, with nothing attached.
fn guarding(made: &[&str], settings: &Settings, test: impl FnOnce(&mut Guarded<'_>) + Send) {
    namespace::in_new(|| {
        made.iter().for_each(|words| run(words));
        let directory = tempfile::tempdir().unwrap();
        let interface = &settings.interface;
        let mut knobs = Knobs::open_in(directory.path(), interface).unwrap();
        knobs.allow_any_driver(settings.any_driver);
        let mut storage = Storage::default();
        let mut guard = Guard::load(&mut storage, &settings.guard).unwrap();
        guard.stand_by(None, interface).unwrap();
        let governor = Governor::new(interface, settings.governor()).unwrap();
        test(&mut Guarded::new(settings.clone(), knobs, guard, governor));
    })
    .unwrap();
}

const VETH: [&str; 2] = ["ip link add v0 type veth peer name v1", "ip link set v0 up"];

fn turn(guarded: &mut Guarded<'_>) {
    let holdoff = Duration::from_micros(50);
    let turned = guarded.knobs.set_holdoff(Queues::All, 7, holdoff);
    turned.unwrap();
    assert!(!guarded.knobs.is_untouched());
}

/// Without its program a veth has no instances, and what was turned would be for good: standing by, the
/// guard turns and puts back nothing. Needs root.
#[test]
fn settings_are_put_back_before_the_program_is_detached() {
    guarding(&VETH, &Settings::new("v0"), |guarded| {
        guarded.attach().unwrap();
        turn(guarded);
        guarded.detach().unwrap();
        assert!(guarded.knobs.is_untouched());
        assert!(!guarded.guard.is_attached());
    });
}

/// Needs root.
#[test]
fn threads_that_were_asked_for_stay_when_governing_fails() {
    let settings = Settings {
        threaded: Some(Priority::Nice(0)),
        ..Settings::new("v0")
    };
    guarding(&VETH, &settings, |guarded| {
        turn(guarded);
        guarded.stand_back().unwrap();
        assert!(!guarded.knobs.is_untouched());
    });
}

/// What was allowed before stays allowed, also for the governor that goes on. Needs root.
#[test]
fn new_settings_that_the_driver_is_refused_for_change_nothing() {
    let old = Settings {
        any_driver: true,
        ..Settings::new("t0")
    };
    guarding(&["ip tuntap add t0 mode tap"], &old, |guarded| {
        let new = Settings {
            any_driver: false,
            strategy: Strategy::Thread,
            ..old.clone()
        };
        let refused = guarded.configure(&new).unwrap_err();
        assert!(matches!(refused, ConfigureError::Refused(_)), "{refused}");
        guarded.knobs.check_driver().unwrap();
    });
}
