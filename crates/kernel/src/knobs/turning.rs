//! Turning settings: the old value is on disk before its setting changes.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use super::device::Attribute;
use super::napi::{Change, Napi};
use super::record::{DEVICE, RecordError, Setting};
use super::{DEFER_MARK, Knobs, Queues};
use crate::error::{CallError, FAILED, LACKS, os};
use crate::link;
use crate::threaded::TRIED;

/// Why a setting is not turned.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TurnError {
    /// The interface cannot be switched to threaded polling.
    #[error(
        "`{interface}` has no threaded polling ({path} is missing): Linux 5.12 or newer and a NAPI driver are needed"
    )]
    NoThreadedPolling {
        /// As given.
        interface: String,
        /// The kernel's switch.
        path: PathBuf,
    },
    /// Nobody has tried threaded polling with this driver.
    #[error(
        "`{interface}`: threaded polling was not tried with the driver `{driver}`, and some drivers hang when it is switched on: `any-driver` allows it, for a host that may hang"
    )]
    UntriedDriver {
        /// As given.
        interface: String,
        /// By the kernel's name.
        driver: String,
    },
    /// No thread can run there.
    #[error("CPU {cpu} is not online: `lscpu -e` shows those that are")]
    NoSuchCpu {
        /// Its number.
        cpu: usize,
    },
    /// The interface has no such receive queue, or none that can be set alone.
    #[error(
        "`{interface}` shows no receive queue {queue} whose settings can be changed alone: that takes Linux 6.13 or newer and a driver that names its queues (`plimsoll guard check {interface}` lists them)"
    )]
    NoSuchQueue {
        /// As given.
        interface: String,
        /// The first queue that is missing.
        queue: u32,
    },
    /// Polling threads in the control group would be paid for as before.
    #[error(
        "{directory} is no control group with a share of the CPU (it has no cpu.weight or cpu.shares): the topmost has none, and one below has if its parent's cgroup.subtree_control names cpu"
    )]
    NoShare {
        /// As given.
        directory: PathBuf,
    },
    /// Polling would stop with the control group.
    #[error(
        "{group} may use the CPU for a part of the time only (cpu.max or cpu.cfs_quota_us): polling there would stop with it, and all packets of the interface would wait; take a group without a quota"
    )]
    Quota {
        /// The group that has it.
        group: PathBuf,
    },
    /// A polling thread cannot be in the control group.
    #[error(
        "cannot have polling threads in {directory}: it must be a control group that this process may write to (a service takes `ProtectControlGroups=no`)"
    )]
    ControlGroup {
        /// As given.
        directory: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Its old value cannot be written down.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The kernel refuses.
    #[error(transparent)]
    Call(#[from] CallError),
}

impl TurnError {
    /// The exit code of a command that ends by it.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::NoThreadedPolling { .. }
            | Self::UntriedDriver { .. }
            | Self::NoSuchCpu { .. }
            | Self::NoShare { .. } => LACKS,
            Self::NoSuchQueue { .. }
            | Self::Quota { .. }
            | Self::ControlGroup { .. }
            | Self::Record(_)
            | Self::Call(_) => FAILED,
        }
    }
}

/// Leaves out instances that receive nothing, as far as the driver tells, those whose
/// interrupts an application suspends, and those that a thread polls all the time.
fn leave_what_is_not_ours(instances: &mut Vec<Napi>) {
    let is_told = instances.iter().any(|napi| napi.queue.is_some());
    instances.retain(|napi| {
        let receives = napi.queue.is_some() || !is_told;
        receives && !napi.is_suspended_by_application() && !napi.is_polled_busily()
    });
}

impl Knobs {
    /// Sets the holdoff of `queues`: the timer polls again `timeout` after a
    /// poll, up to `defer` times in a row without a packet, until interrupts
    /// come back on (`Documentation/networking/napi.rst`). Zeros: interrupts
    /// only. Kernels before 6.13 know no holdoff per queue: there, and where
    /// the driver shows no instances, [`Queues::All`] sets the device's. Instances whose
    /// interrupts an application suspends, and those that only transmit, are left alone.
    ///
    /// # Errors
    ///
    /// `timeout` is above 4.29 s or `defer` above 2³¹-1; single queues where
    /// the kernel or driver has none; the kernel refuses; the record cannot be
    /// written.
    pub fn set_holdoff(
        &mut self,
        queues: Queues<'_>,
        defer: u32,
        timeout: Duration,
    ) -> Result<(), TurnError> {
        self.turn_holdoffs(queues, defer, timeout, |_| Some(timeout))?;
        Ok(())
    }

    /// As [`Knobs::set_holdoff`], for NAPI instances by the kernel's numbers, each with its
    /// `own` timeout. The others stay as they are. Where the kernel has no holdoff of each
    /// instance, the device's is set to `common`, and the answer is false.
    ///
    /// # Errors
    ///
    /// As [`Knobs::set_holdoff`].
    pub fn set_holdoffs(
        &mut self,
        own: &[(u32, Duration)],
        defer: u32,
        common: Duration,
    ) -> Result<bool, TurnError> {
        let timeout = |napi: &Napi| {
            let found = own.iter().find(|(id, _)| *id == napi.id);
            found.map(|(_, timeout)| *timeout)
        };
        self.turn_holdoffs(Queues::All, defer, common, timeout)
    }

    fn turn_holdoffs(
        &mut self,
        queues: Queues<'_>,
        defer: u32,
        common: Duration,
        own: impl Fn(&Napi) -> Option<Duration>,
    ) -> Result<bool, TurnError> {
        let gro_flush_timeout = nanos(common)?;
        if i32::try_from(defer).is_err() {
            return Err(invalid("defer interrupts for more than 2^31-1 polls").into());
        }
        let mut instances =
            self.instances_of(queues, |napi| old_holdoff(napi, (0, 0)).is_some())?;
        if instances.is_empty() {
            self.turn_device(&[
                (Attribute::NapiDeferHardIrqs, u64::from(defer)),
                (Attribute::GroFlushTimeout, u64::from(gro_flush_timeout)),
            ])?;
            return Ok(false);
        }
        leave_what_is_not_ours(&mut instances);
        let turned = instances.iter().filter_map(|napi| Some((napi, own(napi)?)));
        let turned = turned.map(|(napi, timeout)| Ok((napi, nanos(timeout)?)));
        let turned = turned.collect::<Result<Vec<_>, CallError>>()?;
        let device = self.device_holdoff();
        let old = turned
            .iter()
            .filter_map(|(napi, _)| old_holdoff(napi, device));
        let old = old.collect();
        let marks = turned
            .iter()
            .map(|(napi, _)| (napi.id, defer == DEFER_MARK));
        let marks = marks.collect::<Vec<_>>();
        self.give_up_others(&instances);
        self.write_down_with(old, &marks)?;
        for (napi, timeout) in turned {
            let change = Change {
                defer_hard_irqs: Some(defer),
                gro_flush_timeout: Some(timeout),
                ..Change::default()
            };
            self.netdev
                .set(napi.id, change)
                .map_err(os("set a queue's holdoff"))?;
        }
        Ok(true)
    }

    /// The instances that `queues` means, if the kernel tells of all of them the setting
    /// that is to be turned. None for all queues where it does not.
    fn instances_of(
        &mut self,
        queues: Queues<'_>,
        is_told: impl Fn(&Napi) -> bool,
    ) -> Result<Vec<Napi>, TurnError> {
        let mut instances = self.follow()?;
        if !instances.iter().all(is_told) {
            instances.clear();
        }
        let Queues::Only(wanted) = queues else {
            return Ok(instances);
        };
        let found = |queue: &u32| instances.iter().any(|napi| napi.queue == Some(*queue));
        if let Some(missing) = wanted.iter().find(|queue| !found(queue)) {
            return Err(TurnError::NoSuchQueue {
                interface: self.interface.clone(),
                queue: *missing,
            });
        }
        instances.retain(|napi| napi.queue.is_some_and(|queue| wanted.contains(&queue)));
        Ok(instances)
    }

    /// Moves the polling of `queues` into threads, or back into softirq: one
    /// instance after the other, where the kernel lets (6.17) and the driver shows
    /// any; else [`Queues::All`] by the device's switch. As [`Knobs::set_holdoff`], it leaves
    /// some instances alone where the kernel lets.
    ///
    /// # Errors
    ///
    /// The device has no such switch ([`TurnError::NoThreadedPolling`]); it is to be switched
    /// on and [`Knobs::check_driver`] refuses; single queues where the kernel or driver has
    /// none; the kernel refuses; the record cannot be written.
    pub fn set_threaded(&mut self, queues: Queues<'_>, threaded: bool) -> Result<(), TurnError> {
        if threaded {
            self.check_driver()?;
        }
        let mut instances = self.instances_of(queues, |napi| old_threaded(napi).is_some())?;
        if instances.is_empty() {
            return self.turn_device(&[(Attribute::Threaded, u64::from(threaded))]);
        }
        leave_what_is_not_ours(&mut instances);
        self.write_down(instances.iter().filter_map(old_threaded).collect())?;
        for napi in instances {
            let change = Change {
                threaded: Some(threaded.into()),
                ..Change::default()
            };
            self.netdev
                .set(napi.id, change)
                .map_err(os("switch a queue's polling thread"))?;
        }
        Ok(())
    }

    /// Whether [`Knobs::set_threaded`] may switch threads on: with a driver that was
    /// [tried](TRIED), where somebody else has switched them on already, and where any driver
    /// was allowed.
    ///
    /// # Errors
    ///
    /// [`TurnError::UntriedDriver`]; the kernel does not answer.
    pub fn check_driver(&self) -> Result<(), TurnError> {
        let is_on = self.device.attribute(Attribute::Threaded);
        let is_on = is_on.map_err(os("read the switch of threaded polling"))?;
        if self.any_driver || is_on.is_some_and(|value| value > 0) {
            return Ok(());
        }
        let link = link::link(self.record.identity.ifindex);
        let link = link.map_err(os("ask for the interface's kind"))?;
        let driver = self.device.driver(&link);
        let driver = driver.unwrap_or_else(|| "unknown".to_owned());
        match TRIED.contains(&driver.as_str()) {
            true => Ok(()),
            false => Err(TurnError::UntriedDriver {
                interface: self.interface.clone(),
                driver,
            }),
        }
    }

    /// Whether threads may be switched on with a driver that was not tried. Default: no.
    pub const fn allow_any_driver(&mut self, any_driver: bool) {
        self.any_driver = any_driver;
    }

    /// Whether one of `queues` is not switched to threads, although it is ours to switch: a
    /// queue that was added begins in softirq. False where there is no switch of each.
    pub(crate) fn has_softirq_polled(&mut self, queues: Queues<'_>) -> Result<bool, CallError> {
        let mut instances = self.instances()?;
        leave_what_is_not_ours(&mut instances);
        if let Queues::Only(wanted) = queues {
            instances.retain(|napi| napi.queue.is_some_and(|queue| wanted.contains(&queue)));
        }
        Ok(instances.iter().any(|napi| napi.threaded == Some(0)))
    }

    /// Sets the device's own values, which overwrite those of every instance.
    pub(super) fn turn_device(&mut self, turns: &[(Attribute, u64)]) -> Result<(), TurnError> {
        let mut old = Vec::new();
        // Left by a guard that was killed: not the host's own.
        let is_marked = self.is_device_marked();
        for (attribute, _) in turns {
            let value = self.device.attribute(*attribute);
            let value = value.map_err(os(action(*attribute)))?;
            let value = value.ok_or_else(|| self.no_attribute(*attribute))?;
            let is_left = is_marked && *attribute != Attribute::Threaded;
            old.push(Setting::Device {
                attribute: *attribute,
                value: if is_left { 0 } else { value },
            });
        }
        let defer = turns
            .iter()
            .find(|(attribute, _)| *attribute == Attribute::NapiDeferHardIrqs);
        let mark = defer.map(|(_, defer)| (DEVICE, *defer == u64::from(DEFER_MARK)));
        self.give_up_others(&[]);
        self.write_down_with(old, mark.as_slice())?;
        for (attribute, value) in turns {
            match self.device.set_attribute(*attribute, *value) {
                Ok(Some(())) => {}
                Ok(None) => return Err(self.no_attribute(*attribute)),
                Err(source) => return Err(os(action(*attribute))(source).into()),
            }
        }
        Ok(())
    }

    /// Whoever has set a holdoff since a guard marked it wants it so: what it had before is not put
    /// back.
    pub(super) fn give_up_others(&mut self, present: &[Napi]) {
        let defer = self.device.attribute(Attribute::NapiDeferHardIrqs);
        let of_device = defer.ok().flatten().map(|defer| (DEVICE, defer));
        let of_instance = |napi: &Napi| Some((napi.id, napi.defer_hard_irqs?.into()));
        for (id, defer) in of_device
            .into_iter()
            .chain(present.iter().filter_map(of_instance))
        {
            if defer != u64::from(DEFER_MARK) {
                self.record.give_up(id);
            }
        }
    }

    /// Whether the device's own holdoff is a guard's.
    pub(super) fn is_device_marked(&self) -> bool {
        let defer = self.device.attribute(Attribute::NapiDeferHardIrqs);
        defer.is_ok_and(|defer| defer == Some(u64::from(DEFER_MARK)))
    }

    /// The device's own holdoff, which new instances begin with: empty polls and time in
    /// ns. None if it is a guard's.
    pub(super) fn device_holdoff(&self) -> (u32, u32) {
        if self.is_device_marked() {
            return (0, 0);
        }
        let value = |attribute| {
            let value = self.device.attribute(attribute).ok().flatten();
            value
                .and_then(|value| u32::try_from(value).ok())
                .unwrap_or(0)
        };
        (
            value(Attribute::NapiDeferHardIrqs),
            value(Attribute::GroFlushTimeout),
        )
    }

    fn no_attribute(&self, attribute: Attribute) -> TurnError {
        TurnError::NoThreadedPolling {
            interface: self.interface.clone(),
            path: PathBuf::from(format!(
                "/sys/class/net/{}/{}",
                self.interface,
                attribute.name()
            )),
        }
    }

    /// Old values are on disk when this returns, and the keeper knows.
    pub(super) fn write_down(&mut self, settings: Vec<Setting>) -> Result<(), RecordError> {
        self.write_down_with(settings, &[])
    }

    /// The same, and whose holdoff is about to get a guard's mark, or another value.
    fn write_down_with(
        &mut self,
        settings: Vec<Setting>,
        marks: &[(u32, bool)],
    ) -> Result<(), RecordError> {
        let before = self.record.clone();
        let mut new = false;
        for setting in settings {
            new |= self.record.add(setting);
        }
        for (id, is_marked) in marks {
            new |= self.record.mark(*id, *is_marked);
        }
        if new && let Err(error) = self.file.write(&self.record) {
            self.record = before;
            return Err(error);
        }
        self.tell_keeper();
        Ok(())
    }

    /// Whether anything is turned.
    pub(super) fn tell_keeper(&mut self) {
        if let Some(heartbeat) = &mut self.heartbeat {
            heartbeat.tell(!self.record.is_empty());
        }
    }
}

const fn action(attribute: Attribute) -> &'static str {
    match attribute {
        Attribute::Threaded => "switch threaded polling",
        Attribute::NapiDeferHardIrqs | Attribute::GroFlushTimeout => "set the device's holdoff",
    }
}

/// The instance's holdoff; the device's `own` where it is a guard's that was killed.
fn old_holdoff(napi: &Napi, own: (u32, u32)) -> Option<Setting> {
    let present = (napi.defer_hard_irqs?, napi.gro_flush_timeout?);
    let (defer_hard_irqs, gro_flush_timeout) = if present.0 == DEFER_MARK {
        own
    } else {
        present
    };
    Some(Setting::Holdoff {
        napi: napi.id,
        defer_hard_irqs,
        gro_flush_timeout,
    })
}

fn old_threaded(napi: &Napi) -> Option<Setting> {
    Some(Setting::Threaded {
        napi: napi.id,
        value: napi.threaded?,
    })
}

/// As the kernel takes it.
fn nanos(timeout: Duration) -> Result<u32, CallError> {
    u32::try_from(timeout.as_nanos()).map_err(|_| invalid("set a holdoff above 4.29 s"))
}

fn invalid(action: &'static str) -> CallError {
    os(action)(io::Error::from(io::ErrorKind::InvalidInput))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance(id: u32) -> Napi {
        Napi {
            id,
            queue: None,
            irq: None,
            thread: None,
            defer_hard_irqs: Some(0),
            gro_flush_timeout: Some(0),
            irq_suspend_timeout: None,
            threaded: None,
        }
    }

    fn left(instances: &[(u32, Option<u32>, Option<u32>)]) -> Vec<u32> {
        let napi = |(id, queue, irq_suspend_timeout): &(u32, Option<u32>, Option<u32>)| Napi {
            queue: *queue,
            irq_suspend_timeout: *irq_suspend_timeout,
            ..instance(*id)
        };
        let mut instances = instances.iter().map(napi).collect();
        leave_what_is_not_ours(&mut instances);
        instances.into_iter().map(|napi| napi.id).collect()
    }

    #[test]
    fn what_only_transmits_or_is_an_application_s_is_left_alone() {
        let told = [
            (1, Some(0), Some(0)),
            (2, Some(1), Some(20_000)),
            (3, None, Some(0)),
            (4, Some(2), None),
        ];
        assert_eq!(left(&told), [1, 4]);
        let untold = [(1, None, None), (2, None, Some(1)), (3, None, Some(0))];
        assert_eq!(left(&untold), [1, 3], "a driver that tells no queue");
    }

    /// They were switched to threads that sleep.
    #[test]
    fn what_a_thread_polls_all_the_time_is_left_alone() {
        let threaded = [(1, Some(0)), (2, Some(1)), (3, Some(2)), (4, None)];
        let napi = |(id, threaded)| Napi {
            threaded,
            ..instance(id)
        };
        let mut instances: Vec<_> = threaded.map(napi).into();
        leave_what_is_not_ours(&mut instances);
        let left: Vec<_> = instances.into_iter().map(|napi| napi.id).collect();
        assert_eq!(left, [1, 2, 4]);
    }
}
