//! A session whose interface gets another name.

use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::wait::WaitStatus;
use plimsoll_guard::check::{Verdict, check};
use plimsoll_guard::session::{SessionError, Settings};
use plimsoll_guard::status::{Client, Request, Sort, guarded_interfaces};

use crate::common::ip;
use crate::common::notes::{Notes, Seen};
use crate::common::service_manager::Manager;
use crate::{run, settings, stop_after};

pub(crate) const TESTS: [(&str, fn()); 1] = [(
    "a_guard_is_found_by_the_new_name_of_its_interface",
    a_guard_is_found_by_the_new_name_of_its_interface,
)];

/// Nobody found it: by the new name no guard ran.
fn a_guard_is_found_by_the_new_name_of_its_interface() {
    let mut manager = Manager::new();
    let guard = manager.start(|| {
        let mut notes = Notes::new(|seen: Seen<'_>| {
            if std::fs::exists("/sys/class/net/done0").unwrap() {
                seen.requests.stop();
            }
            Ok(())
        });
        notes.notes_steps = false;
        run(settings(), &mut notes).unwrap();
        assert_eq!(notes.lines, ["interface=v0 event=renamed name=new0"]);
    });
    let request = Request {
        sort: Sort::Offered,
        limit: 0,
    };
    let named = |asked: &str| {
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            let status = Client::new(asked).status(&request);
            if status
                .as_ref()
                .is_ok_and(|status| status.interface == asked)
            {
                return;
            }
            assert!(Instant::now() < end, "{asked}: {status:?}");
            sleep(Duration::from_millis(50));
        }
    };
    named("v0");
    for words in ["v0 down", "v0 name new0", "new0 up"] {
        ip(&format!("link set {words}"));
    }
    named("new0");
    assert_eq!(guarded_interfaces().unwrap(), ["new0"]);
    let check = check("new0").unwrap();
    let owner = check.findings.iter().find(|one| one.id == "owner").unwrap();
    assert_eq!(owner.verdict, Verdict::Missing);
    let said =
        format!("process {guard} guards this interface, as `v0`, its name when that started");
    assert_eq!(owner.found, said);
    let second = manager.start(|| {
        let settings = Settings {
            interface: "new0".to_owned(),
            ..settings()
        };
        let error: SessionError = run(settings, &mut Notes::new(stop_after(1))).unwrap_err();
        assert!(error.to_string().contains("already, as `v0`"), "{error}");
    });
    assert_eq!(manager.wait(second), WaitStatus::Exited(second, 0));
    // It is to end, and has told of the name once.
    ip("link add done0 type veth peer name done1");
    assert_eq!(manager.wait(guard), WaitStatus::Exited(guard, 0));
}
