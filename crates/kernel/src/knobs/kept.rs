//! The host's own settings of NAPI instances, kept while an XDP program comes or goes.
//!
//! Some drivers disable and enable their instances then, or make them anew. vmxnet3 does
//! (Linux 7.3, in QEMU; `make vm-test`, step `threads`): an instance that a thread polled is
//! polled in softirqs from then on. So whoever attaches or detaches looks before, and after.
//! Only what an instance lost is put back: it has another number, and the value that new ones
//! begin with. The same driver switches large receive offload off for a program, and not on again
//! when that has gone.
//!
//! Limits: of a guard that is killed its keeper looked before the start. What somebody set
//! meanwhile to the value of new instances is then taken for lost.

use std::fmt;
use std::io;
use std::sync::Arc;

use super::device::{Attribute, Device};
use super::instances::Instances;
use super::napi::{Change, Family, Napi, Netdev};
use crate::{ethtool, link};

/// Drivers that do not switch it on again.
const LOSING_LRO: [&str; 1] = ["vmxnet3"];
/// As the kernel calls it.
const LRO: &str = "rx-lro";

/// Where instances are asked of and set, made anew each time: the kernel's has a socket, which stays
/// in the namespace that it was first used in.
#[derive(Clone)]
pub(crate) struct Families(Arc<dyn Fn() -> Box<dyn Family> + Send + Sync>);

impl Families {
    /// Of the kernel.
    pub(crate) fn of_kernel() -> Self {
        Self(Arc::new(|| Box::new(Netdev::new())))
    }

    /// Of a driver that is made up.
    #[cfg(test)]
    pub(crate) fn of(family: impl Fn() -> Box<dyn Family> + Send + Sync + 'static) -> Self {
        Self(Arc::new(family))
    }

    /// Does what may have a driver make its instances anew; they keep their settings, as far as the
    /// kernel lets.
    pub(crate) fn keeping<T>(&self, ifindex: u32, change: impl FnOnce() -> T) -> T {
        let kept = Kept::of(ifindex, self);
        let changed = change();
        let _ = kept.put_back();
        changed
    }
}

impl fmt::Debug for Families {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Families").finish_non_exhaustive()
    }
}

/// Instances as they were.
#[derive(Debug)]
pub(crate) struct Kept {
    ifindex: u32,
    instances: Vec<Napi>,
    families: Families,
}

/// What new instances begin with.
#[derive(Clone, Copy, Debug, Default)]
struct Fresh {
    defer_hard_irqs: u32,
    gro_flush_timeout: u32,
    threaded: u32,
}

impl Kept {
    /// Of an interface as it is now; of none if the kernel does not tell.
    pub(crate) fn of(ifindex: u32, families: &Families) -> Self {
        let instances = (families.0)().instances(ifindex).unwrap_or_default();
        Self {
            ifindex,
            instances,
            families: families.clone(),
        }
    }

    /// Puts back what was lost since. How many settings were; none of an interface that is gone.
    ///
    /// # Errors
    ///
    /// The kernel does not answer, or refuses.
    pub(crate) fn put_back(&self) -> io::Result<usize> {
        match self.put_back_at_device() {
            Err(_) if link::name(self.ifindex).is_none() => Ok(0),
            done => done,
        }
    }

    fn put_back_at_device(&self) -> io::Result<usize> {
        if self.instances.is_empty() {
            return Ok(0);
        }
        let count = self.put_back_by(&mut *(self.families.0)(), Fresh::of(self.ifindex))?;
        Ok(count + usize::from(renew_offload(self.ifindex)?))
    }

    fn put_back_by(&self, family: &mut dyn Family, fresh: Fresh) -> io::Result<usize> {
        let mut known = Instances::default();
        known.follow(&self.instances);
        let now = family.instances(self.ifindex)?;
        let renumbered = known.follow(&now);
        let mut count = 0;
        for before in &self.instances {
            let id = renumbered.get(&before.id);
            let Some(after) = now.iter().find(|napi| id == Some(&napi.id)) else {
                continue;
            };
            if let Some(change) = lost(before, after, fresh) {
                count += usize::from(family.set(after.id, change)?.is_some());
            }
        }
        Ok(count)
    }
}

/// Where the program has gone.
fn renew_offload(ifindex: u32) -> io::Result<bool> {
    let link = link::link(ifindex)?;
    let driver = device(ifindex).and_then(|device| device.driver(&link));
    let is_lost = link.xdp.is_none() && driver.is_some_and(|it| LOSING_LRO.contains(&it.as_str()));
    match is_lost {
        true => ethtool::renew_feature(ifindex, LRO),
        false => Ok(false),
    }
}

/// It may have been renamed.
fn device(ifindex: u32) -> Option<Device> {
    Device::open(&link::name(ifindex)?, ifindex).ok()
}

impl Fresh {
    fn of(ifindex: u32) -> Self {
        let device = device(ifindex);
        let value = |attribute| {
            let value = device.as_ref()?.attribute(attribute).ok()??;
            u32::try_from(value).ok()
        };
        Self {
            defer_hard_irqs: value(Attribute::NapiDeferHardIrqs).unwrap_or(0),
            gro_flush_timeout: value(Attribute::GroFlushTimeout).unwrap_or(0),
            threaded: value(Attribute::Threaded).unwrap_or(0),
        }
    }
}

/// What an instance had and has no more.
fn lost(before: &Napi, after: &Napi, fresh: Fresh) -> Option<Change> {
    let of = |before: Option<u32>, after: Option<u32>, fresh| {
        before.filter(|before| after == Some(fresh) && *before != fresh)
    };
    let change = Change {
        defer_hard_irqs: of(
            before.defer_hard_irqs,
            after.defer_hard_irqs,
            fresh.defer_hard_irqs,
        ),
        gro_flush_timeout: of(
            before.gro_flush_timeout,
            after.gro_flush_timeout,
            fresh.gro_flush_timeout,
        ),
        irq_suspend_timeout: of(before.irq_suspend_timeout, after.irq_suspend_timeout, 0),
        threaded: of(before.threaded, after.threaded, fresh.threaded),
    };
    (change != Change::default()).then_some(change)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::super::fake_driver::{Driver, Fake, Losing};
    use super::*;
    use crate::iproute::ip;
    use crate::namespace;

    const FRESH: Fresh = Fresh {
        defer_hard_irqs: 2,
        gro_flush_timeout: 123_000,
        threaded: 0,
    };
    const NEW: Napi = Napi {
        id: 0,
        queue: None,
        irq: None,
        thread: None,
        defer_hard_irqs: Some(2),
        gro_flush_timeout: Some(123_000),
        irq_suspend_timeout: Some(0),
        threaded: Some(0),
    };

    /// Two instances of an operator's, and what becomes of them.
    fn kept(change: impl FnOnce(&mut Driver)) -> (usize, Vec<Napi>) {
        let mut driver = Driver::new(&[(2, 123_000), (7, 55_000)], false, false);
        for napi in &mut driver.instances {
            napi.irq_suspend_timeout = Some(99_000);
            napi.threaded = Some(2);
        }
        let instances = driver.instances.clone();
        let kept = Kept {
            ifindex: 1,
            instances,
            families: Families::of_kernel(),
        };
        change(&mut driver);
        let driver = Arc::new(Mutex::new(driver));
        let count = kept.put_back_by(&mut Fake::of(&driver), FRESH).unwrap();
        let mut now = driver.lock().unwrap().instances.clone();
        now.iter_mut().for_each(|napi| napi.id = 0);
        (count, now)
    }

    fn own(defer: u32, timeout: u32) -> Napi {
        Napi {
            defer_hard_irqs: Some(defer),
            gro_flush_timeout: Some(timeout),
            irq_suspend_timeout: Some(99_000),
            threaded: Some(2),
            ..NEW
        }
    }

    fn forget(driver: &mut Driver) {
        for napi in &mut driver.instances {
            *napi = Napi { id: napi.id, ..NEW };
        }
    }

    /// As on vmxnet3, where how threads poll was lost, and as of a driver that loses all.
    #[test]
    fn instances_that_were_made_anew_get_back_what_they_lost() {
        let untouched = vec![own(2, 123_000), own(7, 55_000)];
        let softirqs = kept(|driver| {
            driver.renew(u32::MAX);
            driver.instances[0].threaded = Some(0);
            driver.instances[1].threaded = Some(0);
        });
        assert_eq!(softirqs, (2, untouched.clone()));
        let all = kept(|driver| {
            driver.renew(u32::MAX);
            forget(driver);
        });
        assert_eq!(all, (2, untouched));
    }

    /// Somebody else has set them since.
    #[test]
    fn what_was_not_lost_stays() {
        let same_instances = kept(forget);
        assert_eq!(same_instances, (0, vec![NEW, NEW]));
        let (count, set) = kept(|driver| {
            driver.renew(u32::MAX);
            driver.instances[1].threaded = Some(1);
            driver.instances[1].defer_hard_irqs = Some(9);
        });
        assert_eq!(count, 0);
        assert_eq!(
            (set[1].threaded, set[1].defer_hard_irqs),
            (Some(1), Some(9))
        );
        assert_eq!(kept(|driver| driver.instances.clear()), (0, Vec::new()));
    }

    /// Whoever was killed with its interface was said to have lost settings of it.
    #[test]
    fn an_interface_that_is_gone_has_lost_nothing() {
        namespace::in_new(|| {
            ip("link add v0 type veth peer name v1");
            let ifindex = link::index("v0").unwrap();
            let families = Losing::of(ifindex).families();
            let kept = Kept::of(ifindex, &families);
            ip("link del v0");
            assert_eq!(kept.put_back().unwrap(), 0);
        })
        .unwrap();
    }
}
