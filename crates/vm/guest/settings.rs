//! Everything that the guard may turn, as it is.

use std::collections::BTreeSet;
use std::fmt;
use std::thread::sleep;
use std::time::{Duration, Instant};

use plimsoll_kernel::ethtool;
use plimsoll_kernel::knobs::{Attribute, DEFER_MARK, Device, Netdev};
use plimsoll_kernel::link;

use super::Outcome;
use super::site::Site;

const ATTRIBUTES: [Attribute; 3] = [
    Attribute::NapiDeferHardIrqs,
    Attribute::GroFlushTimeout,
    Attribute::Threaded,
];
/// A keeper waits for the program to be detached, and drivers take their time for it.
const BACK_LIMIT: Duration = Duration::from_secs(20);

/// Of the device, and of each instance in the driver's order: a new id is no change. Drivers
/// switch offloads off for a program.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Settings {
    device: [Option<u64>; 3],
    instances: Vec<[Option<u32>; 3]>,
    offloads: BTreeSet<String>,
}

impl Settings {
    pub(crate) fn of(site: &Site) -> Outcome<Self> {
        let device = Device::open(&site.device, site.ifindex)?;
        let mut values = [None; 3];
        for (value, attribute) in values.iter_mut().zip(ATTRIBUTES) {
            *value = device.attribute(attribute)?;
        }
        let instances = Netdev::new().instances(site.ifindex)?;
        let of = |napi: plimsoll_kernel::knobs::Napi| {
            [napi.defer_hard_irqs, napi.gro_flush_timeout, napi.threaded]
        };
        Ok(Self {
            device: values,
            instances: instances.into_iter().map(of).collect(),
            offloads: ethtool::active_features(site.ifindex)?.unwrap_or_default(),
        })
    }

    /// Values of the host's own, other than the kernel's: zeros would hide a mistake.
    pub(crate) fn give_own(site: &Site) -> Outcome<()> {
        let directory = format!("/sys/class/net/{}", site.device);
        std::fs::write(format!("{directory}/napi_defer_hard_irqs"), "2")?;
        Ok(std::fs::write(
            format!("{directory}/gro_flush_timeout"),
            "123000",
        )?)
    }

    /// Some setting is as only a guard sets it.
    pub(crate) fn are_turned(&self) -> bool {
        let of_device = self.device[0] == Some(u64::from(DEFER_MARK));
        let mut instances = self.instances.iter();
        of_device || instances.any(|instance| instance[0] == Some(DEFER_MARK))
    }

    /// Some instance is to be polled in threads.
    pub(crate) fn are_threaded(&self) -> bool {
        let mut instances = self.instances.iter();
        self.device[2] == Some(1) || instances.any(|instance| instance[2] == Some(1))
    }

    /// Whether instances are set as `other` has them.
    pub(crate) fn has_instances_of(&self, other: &Self) -> bool {
        self.instances == other.instances
    }

    /// Waits until all is as it was, and no program is attached.
    pub(crate) fn wait_until_back(&self, site: &Site) -> Outcome<()> {
        let end = Instant::now() + BACK_LIMIT;
        loop {
            let now = Self::of(site)?;
            let is_attached = link::link(site.ifindex)?.xdp.is_some();
            if now == *self && !is_attached {
                return Ok(());
            }
            if Instant::now() > end {
                let attached = if is_attached { ", still attached" } else { "" };
                return Err(format!("settings were {self:?} and are {now:?}{attached}").into());
            }
            sleep(Duration::from_millis(20));
        }
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |f: &mut fmt::Formatter<'_>, values: &[Option<u64>]| {
            for value in values {
                match value {
                    Some(value) => write!(f, " {value}")?,
                    None => f.write_str(" -")?,
                }
            }
            Ok(())
        };
        f.write_str("device")?;
        list(f, &self.device)?;
        for instance in &self.instances {
            f.write_str(", queue")?;
            list(f, &instance.map(|value| value.map(u64::from)))?;
        }
        let offloads: Vec<&str> = self.offloads.iter().map(String::as_str).collect();
        write!(f, ", offloads {}", offloads.join(" "))
    }
}
