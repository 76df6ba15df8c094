//! A host on which nothing can be written down.

use nix::mount::{MsFlags, mount};
use plimsoll_guard::check::{Verdict, check};

use crate::common::notes::Notes;
use crate::{run, settings, stop_after};

pub(crate) const TESTS: [(&str, fn()); 1] = [(
    "what_the_start_says_of_a_run_that_is_read_only_check_says_before",
    what_the_start_says_of_a_run_that_is_read_only_check_says_before,
)];

/// `check` said that the guard could run.
fn what_the_start_says_of_a_run_that_is_read_only_check_says_before() {
    let tmpfs = Some("tmpfs");
    mount(tmpfs, "/run", tmpfs, MsFlags::MS_RDONLY, None::<&str>).unwrap();
    let mut notes = Notes::new(stop_after(1));
    let refused = run(settings(), &mut notes).unwrap_err().to_string();
    assert!(refused.contains("/run must be writable"), "{refused}");
    let check = check("v0").unwrap();
    assert!(!check.can_run());
    let findings = check.findings.iter();
    let missing = findings.filter(|finding| finding.verdict == Verdict::Missing);
    let said: Vec<_> = missing
        .map(|finding| (finding.id, &finding.found))
        .collect();
    assert_eq!(said, [("settings", &refused)]);
}
