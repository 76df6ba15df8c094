//! How an interface is opened.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::settings::Threaded;
use crate::device::HEADROOM_BYTES;
use crate::device::simulated::ETHERNET_BYTES_MAX;
use crate::error::Error;

/// Whether frames are copied between the kernel's memory and ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyMode {
    /// Without copies if the driver can.
    KernelChooses,
    /// With copies: works with every driver that has native XDP.
    Copy,
    /// Without, or not at all.
    ZeroCopy,
}

/// Polling the device from our system calls instead of by interrupts, whenever its
/// interrupts are deferred.
///
/// It goes with [`CopyMode::Copy`] alone, and from Linux 6.13 on it does nothing there, since the
/// kernel knows what to poll only for sockets without copies; once frames have arrived
/// no call is spent on it. Without copies answers were late by more than a second, or lost (igb,
/// `virtio_net`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusyPoll {
    /// `SO_BUSY_POLL`, in microseconds.
    pub micros: u32,
    /// `SO_BUSY_POLL_BUDGET`, in frames.
    pub budget: u32,
}

/// How an interface is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XdpConfig {
    /// The receive queue, and the one that frames are sent by. Default 0.
    pub queue: u32,
    /// All receive queues of the interface are served, at most 16, whichever its frames come by. They
    /// share the memory. Without it frames of other queues are the kernel's. Default true; it
    /// says nothing where queues are opened singly ([`BareQueue`](super::BareQueue)) or with memory each ([`open_whole`](super::open_whole)).
    pub all_queues: bool,
    /// Addresses that are the stack's alone: the kernel must not have them.
    /// Default none: the kernel's addresses that the stack is told of are shared, by bound ports. Others of
    /// the stack's are refused as it starts.
    pub owned: Vec<IpAddr>,
    /// Frames in memory, for receiving, in channels, and to be sent; at least
    /// 64. Default 8192, of 2 KiB each.
    pub chunks: usize,
    /// Frames that are kept from receiving, so that something can be sent.
    /// Default 1024.
    pub send_frames: usize,
    /// Length of each socket's receive and transmit ring, a power of two. With
    /// `ni-lrp` it is the bound of each socket's queue. Default 256; veth's ring
    /// has as many.
    pub ring_frames: u32,
    /// Frames lent to the kernel to receive into, at most: a power of two. Default
    /// none: all but those for sending. Needed where queues share their memory, since
    /// the first would take all.
    pub fill_frames: Option<u32>,
    /// Default [`CopyMode::Copy`]: what a driver does without copies has faults of its own. One
    /// of the two that were tried sends nothing in some starts (docs/stack.md).
    pub copy: CopyMode,
    /// Default none. Refused unless frames are copied.
    pub busy_poll: Option<BusyPoll>,
    /// After a poll that found frames the kernel waits so long for more before it polls again,
    /// instead of being interrupted: fewer interrupts under load. A frame that comes within three times as long
    /// after another waits for up to so long; one that comes later does not. At most 4.29 s. Default none: what the
    /// interface has.
    /// It is put back as [`XdpConfig::threaded`] is.
    pub holdoff: Option<Duration>,
    /// Whether the kernel polls in a thread, on the CPUs of the one that opens the interface,
    /// instead of in softirq context before every process. Default [`Threaded::Off`].
    /// Where the kernel refuses, the interface is opened nevertheless, and
    /// [`XdpInterface::unthreaded`](super::XdpInterface::unthreaded) says why; also where several queues are served with
    /// [`Threaded::Auto`], which needs one.
    ///
    /// The old setting is put back when the device is dropped. After a killed program the next
    /// one that turns it does so, or `plimsoll guard restore`; a [`Keeper`](super::Keeper) does at once.
    pub threaded: Threaded,
    /// The directory of a control group, such as a slice with the program: its share of the CPU pays
    /// for the kernel's polling, as it pays for the program's part of receiving. With
    /// [`Threaded::Beneath`]; at level 0 the program and what polls for it share alike. Default none: the topmost group,
    /// beside all others.
    ///
    /// What is no group with a share, or has a quota, is refused as the interface is opened.
    pub poll_control_group: Option<PathBuf>,
    /// Threads may poll with any driver, not only with those that were
    /// [tried](plimsoll_kernel::threaded::TRIED): with others it is refused, since some hang.
    /// Default false.
    pub any_driver: bool,
    /// Do not check transport checksums of received frames. Default false.
    pub trust_checksums: bool,
}

impl Default for XdpConfig {
    fn default() -> Self {
        Self {
            queue: 0,
            all_queues: true,
            owned: Vec::new(),
            chunks: 8192,
            send_frames: 1024,
            ring_frames: 256,
            fill_frames: None,
            copy: CopyMode::Copy,
            busy_poll: None,
            holdoff: None,
            threaded: Threaded::Off,
            poll_control_group: None,
            any_driver: false,
            trust_checksums: false,
        }
    }
}

const CHUNKS_MIN: usize = 64;
const CHUNKS_MAX: usize = 1 << 24;
const RING_FRAMES_MAX: u32 = 1 << 20;
/// From a program's usual nice level to the last one.
pub(super) const LEVELS_MAX: u8 = 19;
/// What the kernel accepts: chunks of up to a page.
pub(super) const CHUNK_BYTES: [usize; 2] = [2048, 4096];

impl XdpConfig {
    /// For [`Threaded::Beneath`]: a tenth of the share of the thread above. At 5, a quarter,
    /// a server with 2 µs of work lost a third of its goodput to polling; at 19 a busy process
    /// of another program would starve all of the queue's traffic.
    pub const BENEATH: u8 = 10;

    pub(super) fn validate(&self) -> Result<(), Error> {
        let check = |holds, field, given: usize, allowed| match holds {
            true => Ok(()),
            false => Err(Error::Config {
                field,
                given: given.to_string(),
                allowed,
            }),
        };
        let ring = self.ring_frames;
        let range = CHUNKS_MIN..=CHUNKS_MAX;
        check(
            range.contains(&self.chunks),
            "chunks",
            self.chunks,
            "from 64 to 16,777,216",
        )?;
        let sending = self.send_frames < self.chunks;
        check(
            sending,
            "send_frames",
            self.send_frames,
            "fewer than chunks",
        )?;
        let fits = |ring: u32| ring.is_power_of_two() && ring <= RING_FRAMES_MAX;
        let allowed = "a power of two, at most 1,048,576";
        check(fits(ring), "ring_frames", ring as usize, allowed)?;
        let fill = self.fill_frames.unwrap_or(1);
        check(fits(fill), "fill_frames", fill as usize, allowed)?;
        if self.busy_poll.is_some() && self.copy != CopyMode::Copy {
            return Err(Error::Config {
                field: "busy_poll",
                given: format!("{:?}", self.copy),
                allowed: "CopyMode::Copy with it: without copies answers were lost",
            });
        }
        let (levels, has_share) = match self.threaded {
            Threaded::Beneath(levels) => (levels, true),
            Threaded::Auto | Threaded::Off => (0, false),
        };
        let group = self.poll_control_group.as_ref();
        if let Some(group) = group.filter(|group| !has_share || !group.is_absolute()) {
            return Err(Error::Config {
                field: "poll_control_group",
                given: group.display().to_string(),
                allowed: "a whole path, such as /sys/fs/cgroup/servers.slice, with threaded at a nice level",
            });
        }
        let allowed = "from 0 to 19: there are no more nice levels beneath a program's";
        check(levels <= LEVELS_MAX, "threaded", levels.into(), allowed)
    }
}

/// The chunk that an MTU takes; nothing if the frame would need several.
pub(super) fn chunk_bytes_for(mtu: usize) -> Option<usize> {
    let needed = HEADROOM_BYTES + ETHERNET_BYTES_MAX + mtu;
    CHUNK_BYTES.into_iter().find(|&bytes| bytes >= needed)
}

/// The chunk that an interface's frames take.
pub(super) fn chunk_bytes(interface: &str, mtu: usize) -> Result<usize, Error> {
    chunk_bytes_for(mtu).ok_or_else(|| Error::MtuTooLarge {
        interface: interface.to_owned(),
        mtu,
        max: CHUNK_BYTES[1] - HEADROOM_BYTES - ETHERNET_BYTES_MAX,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_fits_one_chunk_or_is_refused() {
        assert_eq!(chunk_bytes_for(1500), Some(2048));
        assert_eq!(chunk_bytes_for(1770), Some(2048));
        assert_eq!(chunk_bytes_for(1771), Some(4096));
        assert_eq!(chunk_bytes_for(3818), Some(4096));
        assert_eq!(chunk_bytes_for(3819), None);
    }

    #[test]
    fn settings_are_checked() {
        let field = |config: XdpConfig| match config.validate() {
            Err(Error::Config { field, .. }) => field,
            other => panic!("{other:?}"),
        };
        let good = XdpConfig::default();
        good.validate().unwrap();
        assert_eq!(
            field(XdpConfig {
                chunks: 1,
                ..good.clone()
            }),
            "chunks"
        );
        assert_eq!(
            field(XdpConfig {
                send_frames: 8192,
                ..good.clone()
            }),
            "send_frames"
        );
        assert_eq!(
            field(XdpConfig {
                ring_frames: 511,
                ..good.clone()
            }),
            "ring_frames"
        );
        assert_eq!(
            field(XdpConfig {
                fill_frames: Some(0),
                ..good.clone()
            }),
            "fill_frames"
        );
        assert_eq!(
            field(XdpConfig {
                threaded: Threaded::Beneath(20),
                ..good.clone()
            }),
            "threaded"
        );
        let busy_poll = Some(BusyPoll {
            micros: 50,
            budget: 64,
        });
        let copied = XdpConfig { busy_poll, ..good };
        assert!(copied.validate().is_ok());
        for copy in [CopyMode::ZeroCopy, CopyMode::KernelChooses] {
            let refused = XdpConfig {
                copy,
                ..copied.clone()
            };
            assert_eq!(field(refused), "busy_poll");
        }
    }

    #[test]
    fn a_control_group_pays_for_a_thread_that_has_a_share() {
        let is_refused = |directory: &str, threaded| {
            let config = XdpConfig {
                poll_control_group: Some(directory.into()),
                threaded,
                ..XdpConfig::default()
            };
            let refused = config.validate();
            assert!(
                matches!(
                    refused,
                    Ok(())
                        | Err(Error::Config {
                            field: "poll_control_group",
                            ..
                        })
                ),
                "{refused:?}"
            );
            refused.is_err()
        };
        assert!(is_refused("/a", Threaded::Off));
        assert!(is_refused("/a", Threaded::Auto));
        assert!(is_refused("a", Threaded::Beneath(0)));
        assert!(!is_refused("/a", Threaded::Beneath(0)));
    }
}
