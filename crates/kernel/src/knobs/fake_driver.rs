//! Drivers for tests: one that numbers its instances anew, refuses, or hides them whenever it likes, and
//! stands for loopback's; and one that loses settings with its program.

use std::sync::{Arc, Mutex};

use libbpf_rs::query::LinkInfoIter;

use super::napi::Change;
use super::*;
use crate::iproute::ip;
use crate::namespace;
use crate::scheduling::Scheduling;

/// An interface's instances, in the driver's order.
#[derive(Clone, Debug)]
pub(super) struct Driver {
    pub(super) instances: Vec<Napi>,
    pub(super) next_id: u32,
    /// Instances are numbered anew before so many settings from now.
    pub(super) renews_after: Option<u32>,
    /// Settings that were refused, from when the driver refuses all.
    pub(super) refused: Option<u32>,
    /// For so many looks no instance is there, since the driver sets up its rings anew.
    pub(super) away: u32,
    /// The kernel does not tell of instances.
    pub(super) is_silent: bool,
    /// How each thread ran when it was switched off.
    pub(super) switched_off: Vec<Scheduling>,
}

impl Driver {
    /// With these holdoffs, the host's own.
    pub(super) fn new(own: &[(u32, u32)], tells_queues: bool, tells_irqs: bool) -> Self {
        let instance = |(index, (defer, timeout)): (u32, &(u32, u32))| Napi {
            id: 0,
            queue: tells_queues.then_some(index),
            irq: tells_irqs.then_some(40 + index),
            thread: None,
            defer_hard_irqs: Some(*defer),
            gro_flush_timeout: Some(*timeout),
            irq_suspend_timeout: None,
            threaded: None,
        };
        let mut driver = Self {
            instances: (0..).zip(own).map(instance).collect(),
            next_id: 8193,
            renews_after: None,
            refused: None,
            away: 0,
            is_silent: false,
            switched_off: Vec::new(),
        };
        driver.renew(u32::MAX);
        driver
    }

    /// Disables and enables those of a set, by its bits.
    pub(super) fn renew(&mut self, set: u32) {
        for (index, napi) in self.instances.iter_mut().enumerate() {
            if set & (1 << index) != 0 {
                napi.id = self.next_id;
                self.next_id += 1;
            }
        }
    }

    pub(super) fn holdoffs(&self) -> Vec<(u32, u32)> {
        let holdoff = |napi: &Napi| {
            let defer = napi.defer_hard_irqs.unwrap();
            (defer, napi.gro_flush_timeout.unwrap())
        };
        self.instances.iter().map(holdoff).collect()
    }
}

#[derive(Debug)]
pub(super) struct Fake(Arc<Mutex<Driver>>);

impl Fake {
    pub(super) fn of(driver: &Arc<Mutex<Driver>>) -> Self {
        Self(Arc::clone(driver))
    }
}

impl Family for Fake {
    fn instances(&mut self, _ifindex: u32) -> io::Result<Vec<Napi>> {
        let mut driver = self.0.lock().unwrap();
        if driver.is_silent {
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        if driver.away == 0 {
            return Ok(driver.instances.clone());
        }
        driver.away -= 1;
        driver.renew(u32::MAX);
        Ok(Vec::new())
    }

    fn set(&mut self, id: u32, change: Change) -> io::Result<Option<()>> {
        let mut driver = self.0.lock().unwrap();
        if let Some(refused) = &mut driver.refused {
            *refused += 1;
            return Err(io::Error::from_raw_os_error(libc::EPERM));
        }
        match driver.renews_after.as_mut() {
            Some(0) => {
                driver.renews_after = None;
                driver.renew(u32::MAX);
            }
            Some(settings) => *settings -= 1,
            None => {}
        }
        let is_there = driver.away == 0;
        let of_id = driver.instances.iter_mut().find(|napi| napi.id == id);
        let Some(napi) = of_id.filter(|_| is_there) else {
            return Ok(None);
        };
        napi.defer_hard_irqs = change.defer_hard_irqs.or(napi.defer_hard_irqs);
        napi.gro_flush_timeout = change.gro_flush_timeout.or(napi.gro_flush_timeout);
        napi.irq_suspend_timeout = change.irq_suspend_timeout.or(napi.irq_suspend_timeout);
        napi.threaded = change.threaded.or(napi.threaded);
        let thread = napi.thread.filter(|_| change.threaded == Some(0));
        let ran = thread.and_then(|thread| Scheduling::of(thread).ok());
        driver.switched_off.extend(ran);
        Ok(Some(()))
    }
}

/// A driver that makes its instances anew whenever an interface's program comes or goes, and then no
/// thread polls them any more, as vmxnet3.
#[derive(Clone, Debug)]
pub(crate) struct Losing {
    ifindex: u32,
    driver: Arc<Mutex<Driver>>,
    /// Which program it had, and how often it had another.
    program: Arc<Mutex<(Option<u32>, u32)>>,
}

impl Losing {
    /// Two instances, which threads poll.
    pub(crate) fn of(ifindex: u32) -> Self {
        let mut driver = Driver::new(&[(0, 0), (0, 0)], true, true);
        for napi in &mut driver.instances {
            napi.threaded = Some(1);
        }
        let program = Arc::new(Mutex::new((program_of(ifindex), 0)));
        Self {
            ifindex,
            driver: Arc::new(Mutex::new(driver)),
            program,
        }
    }

    pub(crate) fn families(&self) -> Families {
        let driver = self.clone();
        Families::of(move || Box::new(driver.clone()))
    }

    /// How often its program came or went.
    pub(crate) fn changes(&self) -> u32 {
        self.follow();
        self.program.lock().unwrap().1
    }

    /// Whether threads poll, as from the beginning.
    pub(crate) fn has_its_settings(&self) -> bool {
        self.follow();
        let driver = self.driver.lock().unwrap();
        driver.instances.iter().all(|napi| napi.threaded == Some(1))
    }

    fn follow(&self) {
        let now = program_of(self.ifindex);
        let mut program = self.program.lock().unwrap();
        if program.0 != now {
            *program = (now, program.1 + 1);
            let mut driver = self.driver.lock().unwrap();
            driver.renew(u32::MAX);
            for napi in &mut driver.instances {
                napi.threaded = Some(0);
            }
        }
    }
}

/// By the number of its attachment: one program may be attached anew.
fn program_of(ifindex: u32) -> Option<u32> {
    let program = link::link(ifindex).ok()?.xdp?.id;
    let mut links = LinkInfoIter::default();
    links
        .find(|link| link.prog_id == program)
        .map(|link| link.id)
}

impl Family for Losing {
    fn instances(&mut self, ifindex: u32) -> io::Result<Vec<Napi>> {
        self.follow();
        Fake::of(&self.driver).instances(ifindex)
    }

    fn set(&mut self, id: u32, change: Change) -> io::Result<Option<()>> {
        Fake::of(&self.driver).set(id, change)
    }
}

/// Runs `test` in a namespace whose loopback stands for the interface.
pub(super) fn with_interface(test: impl FnOnce() + Send) {
    let inside = || {
        ip("link set lo up");
        test();
    };
    namespace::in_new(inside).expect("this test makes a namespace: run `sudo make test`");
}

pub(super) fn open(directory: &Path, driver: &Arc<Mutex<Driver>>) -> Knobs {
    let identity = Identity::of("lo").unwrap();
    let device = Device::open("lo", identity.ifindex).unwrap();
    let owner = Process::current().unwrap();
    let netdev = Box::new(Fake::of(driver));
    Knobs::take(directory, "lo", identity, device, netdev, owner).unwrap()
}
