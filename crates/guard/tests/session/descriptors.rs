//! A guard that may open no more files.

use std::io;
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::sleep;
use std::time::Duration;

use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage, setrlimit};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use nix::sys::time::TimeValLike;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

use plimsoll_guard::session::{Console, Report, Requests, Settings};
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

/// It said that this process had other threads, that there was no such interface, that the kernel's
/// verifier refuses the program, or that the interface does, for its MTU or queues. Whoever starts
/// gives up capabilities, so each limit has a process of its own.
fn a_start_for_which_there_are_too_few_files_says_so() {
    let enough = (3..1024).find(|few| in_a_child(|| starts_with(*few)));
    let enough = enough.expect("a guard starts");
    // As many as the program's maps alone take, and more.
    assert!(enough > 30, "{enough}");
}

/// Whether a guard starts that may have so many files.
fn starts_with(few: u64) -> bool {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, few, most).unwrap();
    let refused = run(settings(), &mut StopsAtOnce::default());
    limit_descriptors(false);
    let Err(refused) = refused else {
        return true;
    };
    let said = with_causes(&refused);
    assert!(
        said.contains("raise the limit of open files"),
        "{few}: {said}"
    );
    false
}

/// Opens nothing, and asks the session to stop once it guards.
#[derive(Default)]
struct StopsAtOnce(Option<Requests>);

impl Console for StopsAtOnce {
    fn start(&mut self, requests: Requests) -> io::Result<()> {
        self.0 = Some(requests);
        Ok(())
    }
    fn show(&mut self, _: &Report<'_>) -> io::Result<()> {
        self.0.as_ref().expect("it has started").stop();
        Ok(())
    }
    fn log(&mut self, _: String) {}
    fn settings(&mut self) -> Result<Settings, Box<dyn std::error::Error>> {
        unreachable!("nobody asks for a reload")
    }
    fn finish(&mut self, _: &Report<'_>) -> io::Result<()> {
        Ok(())
    }
}

/// What a child of this process says. It says nothing of why it failed but on standard error.
fn in_a_child(says: impl FnOnce() -> bool) -> bool {
    // SAFETY: a test's process has one thread, and the child leaves without a destructor.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            let said = catch_unwind(AssertUnwindSafe(says));
            // SAFETY: ends the process at once.
            unsafe { libc::_exit(said.map_or(2, i32::from)) }
        }
        ForkResult::Parent { child } => match waitpid(child, None).unwrap() {
            WaitStatus::Exited(_, 0) => false,
            WaitStatus::Exited(_, 1) => true,
            ended => panic!("{ended:?}"),
        },
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
