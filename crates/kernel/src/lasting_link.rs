//! An attachment that is made anew where the driver is known to lose programs.
//!
//! vmxnet3 runs no XDP program any more once it has made its rings anew: because its link
//! went down and up, or its MTU was changed. The kernel goes on to say that the program is
//! attached (Linux 6.12, 6.18 and 7.3, in QEMU; `make vm-test`, step `link`). Attached once
//! more, it is run again. Each time the carrier goes down before, so that is what tells.
//!
//! Attaching takes the carrier of vmxnet3 down as well, and of some other adapters for
//! seconds. So other drivers are left alone, and pauses grow if one attachment
//! follows the other.
//!
//! Limits: vmxnet3 is the only driver that was seen to lose programs. Another one that
//! does is not noticed here. Until a program is attached anew, a second or two, it sees
//! nothing; with pauses it is up to an hour.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use crate::error::os;
use crate::knobs::{Device, Families, Statistic};
use crate::link;
use crate::watcher::Watcher;
use crate::xdp_link::{AttachError, XdpLink};

/// Drivers that were seen to lose a program.
const LOSING: [&str; 1] = ["vmxnet3"];
const SECOND: Duration = Duration::from_secs(1);
/// The longest pause between two attachments, in seconds.
const PAUSE_MAX: u32 = 3600;
/// After so many pauses without need the next one is the shortest again.
const CALM_PAUSES: u32 = 16;

/// An attached program; dropping it detaches.
pub struct LastingLink {
    /// `None` while nobody wants it, and after the driver refused to take it anew.
    link: Option<XdpLink>,
    /// Whether the program is to be attached.
    is_wanted: bool,
    program: OwnedFd,
    interface: String,
    ifindex: u32,
    /// Of a driver that loses programs.
    losses: Option<Losses>,
    /// By which the driver's instances keep their settings as the program comes and goes.
    families: Families,
}

impl fmt::Debug for LastingLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LastingLink")
            .field("link", &self.link)
            .field("interface", &self.interface)
            .finish_non_exhaustive()
    }
}

impl LastingLink {
    /// As [`XdpLink::attach`].
    ///
    /// # Errors
    ///
    /// As [`XdpLink::attach`].
    pub fn attach(
        program: BorrowedFd<'_>,
        interface: &str,
        ifindex: u32,
    ) -> Result<Self, AttachError> {
        let mut lasting = Self::unattached(program, interface, ifindex)?;
        lasting.attach_now()?;
        Ok(lasting)
    }

    /// Of an attachment of this program that there is already.
    ///
    /// # Errors
    ///
    /// The process has too many descriptors.
    pub fn of(
        link: XdpLink,
        program: BorrowedFd<'_>,
        interface: &str,
        ifindex: u32,
    ) -> Result<Self, AttachError> {
        let mut lasting = Self::unattached(program, interface, ifindex)?;
        lasting.link = Some(link);
        lasting.is_wanted = true;
        Ok(lasting)
    }

    /// Of a program that is not attached yet. All that takes privileges beyond `CAP_NET_ADMIN`
    /// is done now.
    ///
    /// # Errors
    ///
    /// The process has too many descriptors.
    pub fn unattached(
        program: BorrowedFd<'_>,
        interface: &str,
        ifindex: u32,
    ) -> Result<Self, AttachError> {
        let program = program.try_clone_to_owned();
        Ok(Self {
            link: None,
            is_wanted: false,
            program: program.map_err(os("keep the XDP program"))?,
            interface: interface.to_owned(),
            ifindex,
            losses: Losses::of(interface, ifindex),
            families: Families::of_kernel(),
        })
    }

    /// Attaches the program now, unless it is. It takes `CAP_NET_ADMIN`.
    ///
    /// # Errors
    ///
    /// As [`XdpLink::attach`].
    pub fn attach_now(&mut self) -> Result<(), AttachError> {
        if self.link.is_none() {
            self.begin()?;
        }
        self.is_wanted = true;
        Ok(())
    }

    fn begin(&mut self) -> Result<(), AttachError> {
        let (program, ifindex) = (self.program.as_fd(), self.ifindex);
        let attach = || XdpLink::attach(program, &self.interface, ifindex);
        self.link = Some(self.families.keeping(ifindex, attach)?);
        if let Some(losses) = &mut self.losses {
            losses.attached();
        }
        Ok(())
    }

    /// Detaches the program, to be attached again or not.
    pub fn detach(&mut self) {
        self.is_wanted = false;
        self.end();
    }

    fn end(&mut self) {
        if let Some(link) = self.link.take() {
            self.families.keeping(self.ifindex, || drop(link));
        }
    }

    /// Whether the program is to be attached, and is unless the driver refuses.
    #[must_use]
    pub const fn is_wanted(&self) -> bool {
        self.is_wanted
    }

    /// As [`XdpLink::hand_on`]; `None` unless attached.
    #[must_use]
    pub fn hand_on(&mut self) -> Option<BorrowedFd<'_>> {
        self.link.as_mut().map(XdpLink::hand_on)
    }

    /// Call once a second: attaches the program anew where the driver may have lost it.
    /// Whether it did.
    ///
    /// # Errors
    ///
    /// The driver refuses the program, which is tried again at the next call.
    pub fn on_second(&mut self) -> Result<bool, AttachError> {
        let Some(losses) = self.losses.as_mut().filter(|_| self.is_wanted) else {
            return Ok(false);
        };
        // An interface that is gone is told by whoever asks next.
        let is_due = losses.on_second().unwrap_or(false);
        if !is_due && self.link.is_some() {
            return Ok(false);
        }
        // Two at once there cannot be.
        self.end();
        self.begin()?;
        Ok(true)
    }
}

impl Drop for LastingLink {
    fn drop(&mut self) {
        self.end();
    }
}

/// A [`LastingLink`] that needs no calls; dropping it detaches.
#[derive(Debug)]
pub enum KeptLink {
    /// Of a driver that is not known to lose programs.
    Plain {
        /// Held.
        _link: LastingLink,
    },
    /// A thread holds it.
    Watched {
        /// Held.
        _watcher: Watcher,
    },
}

impl KeptLink {
    /// As [`XdpLink::attach`]. Where there is need, a thread calls
    /// [`LastingLink::on_second`].
    ///
    /// # Errors
    ///
    /// As [`XdpLink::attach`]; the thread cannot be started.
    pub fn attach(
        program: BorrowedFd<'_>,
        interface: &str,
        ifindex: u32,
    ) -> Result<Self, AttachError> {
        Self::keep(LastingLink::attach(program, interface, ifindex)?)
    }

    /// As [`LastingLink::of`], in the same way.
    ///
    /// # Errors
    ///
    /// As [`LastingLink::of`]; the thread cannot be started.
    pub fn of(
        link: XdpLink,
        program: BorrowedFd<'_>,
        interface: &str,
        ifindex: u32,
    ) -> Result<Self, AttachError> {
        Self::keep(LastingLink::of(link, program, interface, ifindex)?)
    }

    fn keep(mut link: LastingLink) -> Result<Self, AttachError> {
        if link.losses.is_none() {
            return Ok(Self::Plain { _link: link });
        }
        let watcher = Watcher::start("keep-link", move |pauses| {
            while pauses.wait(SECOND) {
                // What the driver refuses is tried again.
                let _ = link.on_second();
            }
        });
        let _watcher = watcher.map_err(os("start a thread"))?;
        Ok(Self::Watched { _watcher })
    }
}

/// What tells that a driver has lost its program.
struct Losses {
    downs: Statistic,
    decision: Decision,
}

impl Losses {
    /// Of an interface that has just got its program; `None` if its driver loses none.
    fn of(interface: &str, ifindex: u32) -> Option<Self> {
        let device = Device::open(interface, ifindex).ok()?;
        let driver = device.driver(&link::link(ifindex).ok()?)?;
        LOSING
            .contains(&driver.as_str())
            .then(|| Self::on(&device))?
    }

    fn on(device: &Device) -> Option<Self> {
        let downs = device.carrier_downs().ok()?;
        let decision = Decision::after(downs.read().ok()?);
        Some(Self { downs, decision })
    }

    fn on_second(&mut self) -> io::Result<bool> {
        let downs = self.downs.read()?;
        Ok(self.decision.on_second(downs))
    }

    fn attached(&mut self) {
        if let Ok(downs) = self.downs.read() {
            self.decision.downs = downs;
        }
    }
}

/// When to attach.
#[derive(Debug)]
struct Decision {
    /// How often the carrier had gone down when the program was attached last.
    downs: u64,
    /// Seconds since then.
    since: u32,
    /// Seconds that there are to be between two attachments.
    pause: u32,
}

impl Decision {
    fn after(downs: u64) -> Self {
        Self {
            downs,
            since: 0,
            pause: 1,
        }
    }

    /// Whether to attach now.
    fn on_second(&mut self, downs: u64) -> bool {
        self.since = self.since.saturating_add(1);
        if downs == self.downs || self.since < self.pause {
            return false;
        }
        self.pause = if self.since < CALM_PAUSES * self.pause {
            PAUSE_MAX.min(2 * self.pause)
        } else {
            1
        };
        self.since = 0;
        self.downs = downs;
        true
    }
}

#[cfg(test)]
mod tests {
    use std::mem::MaybeUninit;
    use std::thread::sleep;

    use libbpf_rs::query::LinkInfoIter;

    use super::*;
    use crate::iproute::ip;
    use crate::knobs::fake_driver::Losing;
    use crate::{namespace, pass_all};

    /// The number of the interface's attachment.
    fn number(ifindex: u32) -> Option<u32> {
        let program = link::link(ifindex).unwrap().xdp?.id;
        let links = LinkInfoIter::default().find(|link| link.prog_id == program);
        links.map(|link| link.id)
    }

    /// In a network namespace with a pair of interfaces, and a program on one of them.
    fn with_link(test: impl FnOnce(LastingLink, u32) + Send) {
        let inside = || {
            ip("link add v0 up type veth peer name v1");
            ip("link set v1 up");
            let ifindex = link::index("v0").unwrap();
            let mut place = MaybeUninit::uninit();
            let program = pass_all::load(&mut place).unwrap();
            let program = program.progs.pass_all.as_fd();
            test(
                LastingLink::attach(program, "v0", ifindex).unwrap(),
                ifindex,
            );
        };
        namespace::in_new(inside).expect("this test makes a namespace: run `sudo make test`");
    }

    fn losing(mut link: LastingLink) -> LastingLink {
        let device = Device::open(&link.interface, link.ifindex).unwrap();
        link.losses = Losses::on(&device);
        assert!(link.losses.is_some());
        link
    }

    fn renew() {
        ip("link set v0 down");
        ip("link set v0 up");
    }

    /// Needs root.
    #[test]
    fn a_driver_that_loses_nothing_is_left_alone() {
        with_link(|mut link, ifindex| {
            let first = number(ifindex);
            renew();
            assert!(!link.on_second().unwrap());
            let kept = KeptLink::keep(link).unwrap();
            assert!(matches!(kept, KeptLink::Plain { .. }));
            assert_eq!(number(ifindex), first);
            drop(kept);
            assert_eq!(number(ifindex), None);
        });
    }

    /// Needs root.
    #[test]
    fn a_program_is_attached_anew_after_the_carrier_was_down() {
        with_link(|link, ifindex| {
            let mut link = losing(link);
            let first = number(ifindex);
            assert!(first.is_some());
            assert!(!link.on_second().unwrap());
            assert_eq!(number(ifindex), first);
            renew();
            assert!(link.on_second().unwrap());
            assert_ne!(number(ifindex), first);
            assert!(number(ifindex).is_some());
            assert!(!link.on_second().unwrap());
            // What is refused is tried again: the interface is taken meanwhile.
            link.link = None;
            ip("link del v0");
            assert!(link.on_second().is_err());
            assert!(link.on_second().is_err());
        });
    }

    /// Needs root.
    #[test]
    fn a_thread_looks_until_the_link_is_dropped() {
        with_link(|link, ifindex| {
            let first = number(ifindex);
            let kept = KeptLink::keep(losing(link)).unwrap();
            renew();
            let mut looks = 0..100;
            let is_new = || number(ifindex).is_some_and(|number| Some(number) != first);
            while !is_new() {
                looks.next().expect("attached anew within ten seconds");
                sleep(SECOND / 10);
            }
            drop(kept);
            assert_eq!(number(ifindex), None);
        });
    }

    /// Needs root.
    #[test]
    fn a_program_that_nobody_wants_is_not_attached_anew() {
        with_link(|link, ifindex| {
            let mut link = losing(link);
            link.detach();
            assert_eq!(number(ifindex), None);
            renew();
            assert!(!link.on_second().unwrap() && !link.is_wanted());
            assert_eq!((number(ifindex), link.hand_on().is_none()), (None, true));
            link.attach_now().unwrap();
            let attached = number(ifindex);
            assert!(attached.is_some() && link.is_wanted());
            // Not for what happened before.
            assert!(!link.on_second().unwrap());
            link.attach_now().unwrap();
            assert_eq!(number(ifindex), attached);
        });
    }

    /// vmxnet3 makes its instances anew as a program comes or goes, and they lose that threads poll
    /// them. A build that put nothing back passed all tests but those on virtual machines. Needs root.
    #[test]
    fn instances_that_the_driver_makes_anew_keep_their_settings() {
        with_link(|mut link, ifindex| {
            let driver = Losing::of(ifindex);
            link.families = driver.families();
            let mut changes = driver.changes();
            let mut is_kept = |what: &str| {
                let before = std::mem::replace(&mut changes, driver.changes());
                assert_ne!(driver.changes(), before, "{what}: it has lost settings");
                assert!(driver.has_its_settings(), "{what}");
            };
            link.detach();
            is_kept("detached");
            link.attach_now().unwrap();
            is_kept("attached");
            let mut link = losing(link);
            renew();
            assert!(link.on_second().unwrap());
            is_kept("attached anew");
            drop(link);
            is_kept("dropped");
        });
    }

    /// Seconds at which it is attached; `downs` tells the count, at first 0, by the second
    /// and by whether it was attached in the one before.
    fn attached_at(seconds: u32, mut downs: impl FnMut(u32, bool) -> u64) -> Vec<u32> {
        let mut decision = Decision::after(0);
        let mut was_attached = false;
        let mut all = Vec::new();
        for second in 1..=seconds {
            was_attached = decision.on_second(downs(second, was_attached));
            all.extend(was_attached.then_some(second));
        }
        all
    }

    #[test]
    fn each_time_the_carrier_was_down_it_is_attached_once() {
        assert!(attached_at(9_999, |_, _| 0).is_empty());
        let downs = |second, _| u64::from(second >= 10) + 2 * u64::from(second >= 400);
        assert_eq!(attached_at(9_999, downs), [10, 400]);
        // One that follows at once is not forgotten.
        let downs = |second, _| u64::from(second >= 10) + u64::from(second >= 11);
        assert_eq!(attached_at(9_999, downs), [10, 12]);
        // A driver may begin to count anew.
        let downs = |second, _| [0, 7, 7, 0, 0][second as usize - 1];
        assert_eq!(attached_at(5, downs), [2, 4]);
    }

    #[test]
    fn what_goes_down_for_being_attached_is_soon_left_alone() {
        // Late enough to be taken for another time.
        for late in [1, 9] {
            let (mut downs, mut since) = (1, 0);
            let own = |_, was_attached: bool| {
                since = if was_attached { 1 } else { since + 1 };
                downs += u64::from(since == late);
                downs
            };
            let all = attached_at(24 * 3600, own);
            assert_eq!(all[0], 1);
            assert!(all.len() < 40, "{all:?}");
        }
    }
}
