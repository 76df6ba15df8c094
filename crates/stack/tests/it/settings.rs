//! How the kernel polls an interface is set with its device and put back with it. Needs root.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use caps::{CapSet, Capability};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use plimsoll_kernel::control_group;
use plimsoll_kernel::error::with_causes;
use plimsoll_kernel::knobs::{Attribute, Device, Netdev};
use plimsoll_kernel::link;
use plimsoll_kernel::scheduling::Scheduling;
use plimsoll_stack::device::xdp::{BareQueue, Threaded, XdpConfig, XdpInterface};
use plimsoll_stack::{Error, Stack};

use crate::lan::{Lan, SOON, config, owned, threads, xdp};

/// Of the interface's NAPI instances and of the device: time in ns, and empty polls.
fn settings() -> Vec<(u32, u32)> {
    let index = link::index("stack0").unwrap();
    let instances = Netdev::new().instances(index).unwrap();
    let device = Device::open("stack0", index).unwrap();
    let of = |attribute| device.attribute(attribute).unwrap().unwrap() as u32;
    let instances = instances
        .iter()
        .filter_map(|napi| napi.gro_flush_timeout.zip(napi.defer_hard_irqs));
    let device = (
        of(Attribute::GroFlushTimeout),
        of(Attribute::NapiDeferHardIrqs),
    );
    instances.chain([device]).collect()
}

/// The threads that poll the interface.
fn polling_thread_ids() -> Vec<i32> {
    let index = link::index("stack0").unwrap();
    let instances = Netdev::new().instances(index).unwrap();
    instances.iter().filter_map(|napi| napi.thread).collect()
}

/// How they are scheduled.
fn polling_threads() -> Vec<Scheduling> {
    let threads = polling_thread_ids().into_iter();
    threads.map(|tid| Scheduling::of(tid).unwrap()).collect()
}

/// How the receiving threads of this test's stack are scheduled.
fn receiving_threads() -> Vec<Scheduling> {
    let threads = threads("plimsoll-rx").into_iter();
    // One may have just ended.
    threads.filter_map(|id| Scheduling::of(id).ok()).collect()
}

/// With `eager` all work at arrival comes before every process, as in 4.4BSD.
#[test]
fn only_the_eager_path_outranks_processes() {
    Lan::create(|| {
        let own = Scheduling::of(0).unwrap().nice();
        for (path, nice) in [("eager", -20), ("soft-lrp", own), ("early-demux", own)] {
            let stack = Stack::start(xdp(&owned()), &config(path)).unwrap();
            let end = Instant::now() + SOON;
            let is_set = |threads: &[Scheduling]| threads.len() == 1 && threads[0].nice() == nice;
            while !is_set(&receiving_threads()) {
                assert!(Instant::now() < end, "{path}: {:?}", receiving_threads());
            }
            drop(stack);
        }
    });
}

#[test]
fn a_polling_thread_comes_and_goes_with_its_device() {
    Lan::create(|| {
        let plain = XdpInterface::open("stack0", &owned()).unwrap();
        assert_eq!(polling_threads(), [], "nobody asked for one");
        drop(plain);
        let config = XdpConfig {
            threaded: Threaded::Beneath(XdpConfig::BENEATH),
            ..owned()
        };
        let device = XdpInterface::open("stack0", &config).unwrap();
        assert_eq!(device.unthreaded(), None);
        let own = Scheduling::of(0).unwrap();
        let threads = polling_threads();
        assert_eq!(threads.len(), 1);
        assert_eq!(
            threads[0].nice(),
            (own.nice() + i32::from(XdpConfig::BENEATH)).min(19),
            "there is no level further down"
        );
        assert_eq!(threads[0].cpus(), own.cpus());
        drop(device);
        let plain = XdpInterface::open("stack0", &owned()).unwrap();
        assert_eq!(polling_threads(), [], "put back");
        drop(plain);
        // Somebody else has the settings: it is opened nevertheless, and says so.
        let other = plimsoll_kernel::knobs::Knobs::open("stack0").unwrap();
        let device = XdpInterface::open("stack0", &config).unwrap();
        let why = device.unthreaded().unwrap();
        assert!(why.contains("guarded by process"), "{why}");
        assert_eq!(polling_threads(), []);
        drop((device, other));
        let too_deep = XdpConfig {
            threaded: Threaded::Beneath(20),
            ..owned()
        };
        let refused = XdpInterface::open("stack0", &too_deep).unwrap_err();
        assert!(refused.is_usage(), "{refused}");
        assert!(refused.to_string().contains("from 0 to 19"), "{refused}");
    });
}

/// A group that has a share of the CPU. Dropping it removes it: then nobody may be in it, or in one
/// below.
struct Group(PathBuf);

impl Group {
    fn make() -> Self {
        let name = format!("plimsoll-stack-{}", std::process::id());
        let roots = ["", "cpu", "cpu,cpuacct"].map(|root| Path::new("/sys/fs/cgroup").join(root));
        let mut made = roots.into_iter().filter_map(|root| {
            let path = root.join(&name);
            fs::create_dir(&path).ok()?;
            // Dropped, and so removed, if it has no share.
            Some(Self(path)).filter(|group| control_group::shares_cpu(&group.0))
        });
        made.next()
            .expect("a control group with a share of the CPU can be made in /sys/fs/cgroup")
    }

    /// In which of its groups a thread is.
    fn place_of(&self, thread: i32) -> Option<String> {
        let groups = fs::read_to_string(format!("/proc/{thread}/cgroup")).unwrap();
        let name = self.0.file_name().unwrap().to_str().unwrap();
        let own = groups.lines().find(|line| line.contains(name));
        own.map(|line| line.split(name).nth(1).unwrap().to_owned())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let removed = fs::remove_dir(&self.0);
        assert!(removed.is_ok() || thread::panicking(), "{removed:?}");
    }
}

/// What polling takes is part of the group's share while the device is open (LRP-17).
#[test]
fn a_control_group_pays_for_polling_while_its_device_is_open() {
    Lan::create(|| {
        let group = Group::make();
        let paid_by = |directory: &Path| XdpConfig {
            threaded: Threaded::Beneath(0),
            poll_control_group: Some(directory.to_owned()),
            ..owned()
        };
        let device = XdpInterface::open("stack0", &paid_by(&group.0)).unwrap();
        assert_eq!(device.unthreaded(), None);
        let [thread] = polling_thread_ids()[..] else {
            panic!("one queue has one thread");
        };
        let place = group.place_of(thread).unwrap();
        assert!(place.starts_with("/plimsoll-stack0-"), "{place}");
        drop(device);
        // Nothing is turned where nobody could pay.
        for nobody in [
            Path::new("/sys/fs/cgroup"),
            Path::new("/tmp"),
            Path::new("/nowhere"),
        ] {
            let refused = XdpInterface::open("stack0", &paid_by(nobody)).unwrap_err();
            let said = with_causes(&refused);
            assert!(
                said.contains("no control group with a share of the CPU"),
                "{said}"
            );
            assert_eq!(polling_threads(), []);
        }
    });
}

#[test]
fn a_holdoff_comes_and_goes_with_its_device() {
    Lan::create(|| {
        let plain = XdpInterface::open("stack0", &owned()).unwrap();
        let before = settings();
        drop(plain);
        let config = XdpConfig {
            holdoff: Some(Duration::from_micros(40)),
            ..owned()
        };
        let device = XdpInterface::open("stack0", &config).unwrap();
        let (time, empty_polls) = settings()[0];
        assert_eq!(time, 40_000);
        assert!(empty_polls > 0, "the timer would never run");
        // A second owner is refused, and turns nothing.
        assert!(XdpInterface::open("stack0", &config).is_err());
        assert_eq!(settings()[0].0, 40_000);
        drop(device);
        let plain = XdpInterface::open("stack0", &owned()).unwrap();
        assert_eq!(settings(), before, "put back");
        drop(plain);
        let too_long = XdpConfig {
            holdoff: Some(Duration::from_secs(5)),
            ..owned()
        };
        let refused = XdpInterface::open("stack0", &too_long).unwrap_err();
        let said = with_causes(&refused);
        assert!(said.contains("holdoff"), "{said}");
    });
}

/// What is locked counts for who has no `CAP_IPC_LOCK`. The limit is this process's, and no other
/// test lacks that capability.
#[test]
fn too_little_locked_memory_is_told_with_its_remedy() {
    Lan::create(|| {
        let (_, most) = getrlimit(Resource::RLIMIT_MEMLOCK).unwrap();
        setrlimit(Resource::RLIMIT_MEMLOCK, 64 << 10, most).unwrap();
        caps::drop(None, CapSet::Effective, Capability::CAP_IPC_LOCK).unwrap();
        let refused = XdpInterface::open("stack0", &owned()).unwrap_err();
        assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
        let told = refused.to_string();
        for words in ["locked memory", "ulimit -l", "fewer chunks"] {
            assert!(told.contains(words), "{told}");
        }
        caps::raise(None, CapSet::Effective, Capability::CAP_IPC_LOCK).unwrap();
        xdp(&owned());
    });
}

#[test]
fn a_queue_of_another_socket_is_told_with_its_remedy() {
    Lan::create(|| {
        let other = BareQueue::open("stack0", &XdpConfig::default(), None).unwrap();
        let busy = XdpInterface::open("stack0", &owned()).unwrap_err();
        assert!(matches!(busy, Error::Busy { .. }), "{busy}");
        let told = busy.to_string();
        for words in [
            "queue 0 of stack0",
            "another AF_XDP socket",
            "end that program",
        ] {
            assert!(told.contains(words), "{told}");
        }
        drop(other);
        xdp(&owned());
    });
}

/// Those that the crate's README names. The verifier takes the program's reckoning with addresses of
/// packets for a leak without `CAP_PERFMON`, which the error had not named.
#[test]
fn few_capabilities_are_enough_for_af_xdp() {
    Lan::create(|| {
        let few = [
            Capability::CAP_BPF,
            Capability::CAP_IPC_LOCK,
            Capability::CAP_NET_ADMIN,
            Capability::CAP_NET_RAW,
            Capability::CAP_PERFMON,
        ];
        caps::set(None, CapSet::Effective, &few.into_iter().collect()).unwrap();
        for path in ["soft-lrp", "ni-lrp"] {
            Stack::start(xdp(&owned()), &config(path)).unwrap();
        }
    });
}
