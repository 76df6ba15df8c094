//! A guard that may open no more files.

use std::os::fd::AsRawFd;
use std::thread::sleep;
use std::time::Duration;

use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage, setrlimit};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use nix::sys::time::TimeValLike;

use plimsoll_kernel::error::with_causes;

use crate::common::notes::{Notes, Seen, status_socket};
use crate::{run, settings};

pub(crate) const TESTS: [(&str, fn()); 2] = [
    (
        "who_asks_while_no_file_can_be_opened_costs_no_cpu",
        who_asks_while_no_file_can_be_opened_costs_no_cpu,
    ),
    (
        "a_start_for_which_there_are_too_few_files_says_so",
        a_start_for_which_there_are_too_few_files_says_so,
    ),
];

/// It said that this process had other threads, or that there was no such interface.
fn a_start_for_which_there_are_too_few_files_says_so() {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    for few in 3..12 {
        setrlimit(Resource::RLIMIT_NOFILE, few, most).unwrap();
        let refused = run(settings(), &mut Notes::new(|_: Seen<'_>| Ok(())));
        limit_descriptors(false);
        let said = with_causes(&refused.unwrap_err());
        assert!(
            said.contains("raise the limit of open files"),
            "{few}: {said}"
        );
    }
}

/// A question that could not be taken was tried for without a rest, before all ordinary processes:
/// on a host without a file left, one `guard status` took a CPU until there was one again.
fn who_asks_while_no_file_can_be_opened_costs_no_cpu() {
    let mut took = None;
    let mut notes = Notes::new(|seen: Seen<'_>| {
        let path = status_socket().expect("it answers");
        let (unix, stream) = (AddressFamily::Unix, SockType::Stream);
        let client = socket(unix, stream, SockFlag::empty(), None).unwrap();
        limit_descriptors(true);
        let before = cpu_time();
        connect(client.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
        sleep(Duration::from_millis(400));
        took = Some(cpu_time() - before);
        limit_descriptors(false);
        seen.requests.stop();
        Ok(())
    });
    run(settings(), &mut notes).unwrap();
    let took = took.expect("it was asked");
    assert!(took < Duration::from_millis(100), "{took:?} of 400 ms");
}

/// Lets this process open no more files, or as many as before.
pub(crate) fn limit_descriptors(none: bool) {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    let limit = if none { 0 } else { most };
    setrlimit(Resource::RLIMIT_NOFILE, limit, most).unwrap();
}

/// What this process has taken of the CPUs.
pub(crate) fn cpu_time() -> Duration {
    let all = getrusage(UsageWho::RUSAGE_SELF).unwrap();
    let all = all.user_time() + all.system_time();
    Duration::from_micros(u64::try_from(all.num_microseconds()).unwrap())
}
