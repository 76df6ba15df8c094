//! Whether the driver still runs the attached program.
//!
//! vmxnet3 does not after its link went down and up, although the kernel goes on to say that
//! the program is attached (`make vm-test`, step `link`). A guard that sees nothing protects
//! nobody, and is not noticed. To attach it anew makes the driver's rings anew, too.
//!
//! The driver's count of received frames tells: what it counts, the program has judged.
//! Not with every adapter: one that forwards by itself may count frames that no program ever
//! sees, and to attach anew takes some adapters' links down. So that is done only if the link
//! changed since the program was last run, and not again before it has run.

use std::fmt;
use std::io;

use plimsoll_kernel::knobs::{Device, Statistic};

/// So many frames of a second show that something was received: a driver may count a few
/// that it tells nobody of.
const FRAMES_MIN: u64 = 64;
/// So many such seconds in a row show that the program was not run: a driver may count
/// later than it runs the program.
const SECONDS: u32 = 2;

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Absence {
    /// The program is attached anew now.
    Repaired,
    /// That has not helped, or the link is the one that the program was run on.
    Lasting,
}

impl fmt::Display for Absence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Repaired => "event=attached_anew",
            Self::Lasting => "event=program_not_run",
        })
    }
}

/// The counts of one interface, beside the program's.
#[derive(Debug)]
pub(crate) struct Presence {
    frames: Statistic,
    link_changes: Statistic,
    silence: Silence,
}

impl Presence {
    /// Of this interface, just after the program was attached; `None` if its counts are not
    /// to be had.
    pub(crate) fn watch(interface: &str, ifindex: u32) -> Option<Self> {
        let device = Device::open(interface, ifindex).ok()?;
        let link_changes = device.link_changes().ok()?;
        Some(Self {
            frames: device.statistic("rx_packets").ok()?,
            silence: Silence::on(link_changes.read().ok()?),
            link_changes,
        })
    }

    /// Call once a second; `judged` reads how many packets the program has judged.
    pub(crate) fn on_second<E>(
        &mut self,
        judged: impl FnOnce() -> Result<u64, E>,
    ) -> Result<Option<Absence>, E> {
        // First the frames, so that each of them may have been judged.
        let read = || -> io::Result<_> { Ok((self.link_changes.read()?, self.frames.read()?)) };
        match read() {
            Ok((link_changes, frames)) => Ok(self.silence.on_second(Second {
                link_changes,
                frames,
                judged: judged()?,
            })),
            // It is gone, and so will the guard be.
            Err(_) => Ok(None),
        }
    }
}

/// What was counted by the end of a second.
#[derive(Clone, Copy, Debug, Default)]
struct Second {
    link_changes: u64,
    frames: u64,
    judged: u64,
}

#[derive(Debug)]
struct Silence {
    before: Option<Second>,
    seconds: u32,
    /// The link's changes when the program was last seen to run.
    ran_on: u64,
    /// It ran since it was last attached anew.
    has_run: bool,
    /// The link's changes when it was last told that the program is not run.
    told_on: Option<u64>,
}

impl Silence {
    /// After so many changes of the link.
    fn on(link_changes: u64) -> Self {
        Self {
            before: None,
            seconds: 0,
            ran_on: link_changes,
            has_run: true,
            told_on: None,
        }
    }

    /// What is to be done or told.
    fn on_second(&mut self, now: Second) -> Option<Absence> {
        let before = self.before.replace(now)?;
        if now.judged > before.judged {
            self.seconds = 0;
            self.ran_on = now.link_changes;
            self.has_run = true;
            return None;
        }
        // A driver may begin to count anew.
        if now.frames.saturating_sub(before.frames) < FRAMES_MIN {
            self.seconds = 0;
            return None;
        }
        self.seconds += 1;
        if self.seconds < SECONDS {
            return None;
        }
        self.seconds = 0;
        if self.has_run && now.link_changes != self.ran_on {
            self.has_run = false;
            return Some(Absence::Repaired);
        }
        let told_on = self.told_on.replace(now.link_changes);
        (told_on != self.told_on).then_some(Absence::Lasting)
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::process::Command;

    use plimsoll_kernel::{link, namespace};

    use super::*;
    use crate::{Config, Guard, Storage};

    /// Loopback stands for a driver that receives frames and runs no program: the guard is
    /// on an interface that gets none. Needs root.
    #[test]
    fn a_guard_that_is_not_run_is_attached_still_and_says_so() {
        let ip = |words: &str| {
            let status = Command::new("ip").args(words.split(' ')).status();
            assert!(status.expect("iproute2 is installed").success(), "{words}");
        };
        let inside = || {
            let quiet = "/proc/sys/net/ipv6/conf/default/disable_ipv6";
            std::fs::write(quiet, "1").unwrap();
            ip("link set lo up");
            ip("link add v0 up type veth peer name v1");
            let watch = || {
                let lo = Presence::watch("lo", link::index("lo").unwrap()).unwrap();
                let v0 = Presence::watch("v0", link::index("v0").unwrap()).unwrap();
                let frames = lo.frames;
                Some(Presence { frames, ..v0 })
            };
            let mut storage = Storage::default();
            let mut guard = Guard::attach(&mut storage, &Config::default(), "v0").unwrap();
            guard.presence = watch();
            let mut seen = || {
                let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
                for _ in 0..FRAMES_MIN {
                    let _ = socket.send_to(b"?", socket.local_addr().unwrap());
                }
                guard.see_presence().unwrap()
            };
            let program = || link::link(link::index("v0").unwrap()).unwrap().xdp.unwrap();
            let first = program();
            assert_eq!(
                [seen(), seen(), seen(), seen()],
                [None, None, LASTING, None]
            );
            ip("link set v1 up");
            assert_eq!([seen(), seen()], [ANEW, None]);
            assert_eq!(program(), first);
            assert_eq!([seen(), seen(), seen()], [LASTING, None, None]);
            // Nothing to attach to is an error, and so it is at the next try.
            guard.presence = watch();
            ip("link del v0");
            guard.link = None;
            assert!(guard.see_presence().is_err());
            assert!(guard.see_presence().is_err());
        };
        namespace::in_new(inside).expect("this test makes a namespace: run `sudo make test`");
    }

    const ANEW: Option<Absence> = Some(Absence::Repaired);
    const LASTING: Option<Absence> = Some(Absence::Lasting);

    /// What happened in a second: changes of the link, frames, and how many were judged.
    type More = (u64, u64, u64);
    const DEAF: More = (0, 30_000, 0);
    const RUN: More = (0, 100, 100);
    /// The link went down and up in a second in which nothing came.
    const NEW_LINK: More = (2, 0, 0);

    /// What is said in such seconds, the first of which follows a quiet one.
    fn said(seconds: &[More]) -> Vec<Option<Absence>> {
        let mut silence = Silence::on(0);
        let mut now = Second::default();
        assert_eq!(silence.on_second(now), None);
        let one = |(link_changes, frames, judged): &More| {
            now.link_changes += link_changes;
            now.frames += frames;
            now.judged += judged;
            silence.on_second(now)
        };
        seconds.iter().map(one).collect()
    }

    #[test]
    fn a_program_that_is_not_run_on_a_new_link_is_attached_anew_once() {
        assert_eq!(said(&[RUN, NEW_LINK, DEAF, DEAF]), [None, None, None, ANEW]);
        // That helped; and then the link went down and up once more.
        let helped = [NEW_LINK, DEAF, DEAF, RUN, NEW_LINK, DEAF, DEAF];
        assert_eq!(said(&helped), [None, None, ANEW, None, None, None, ANEW]);
        // It did not help: that is told once for each link, and nothing is tried again.
        let lasting = [
            NEW_LINK, DEAF, DEAF, DEAF, DEAF, DEAF, DEAF, NEW_LINK, DEAF, DEAF,
        ];
        let mut expected = [None; 10];
        (expected[2], expected[4], expected[9]) = (ANEW, LASTING, LASTING);
        assert_eq!(said(&lasting), expected);
    }

    #[test]
    fn an_adapter_that_forwards_by_itself_is_never_attached_anew() {
        // On one link the program runs now and then, which is told once.
        let mut seconds = [DEAF, DEAF, DEAF, DEAF, RUN].repeat(20);
        let mut expected = [None; 100];
        expected[1] = LASTING;
        assert_eq!(said(&seconds), expected);
        // It does so once more for a new one, even if attaching anew made that.
        seconds[50] = (1, 100, 100);
        expected[52] = LASTING;
        assert_eq!(said(&seconds), expected);
        let new_by_itself = [NEW_LINK, DEAF, DEAF, NEW_LINK, RUN, DEAF, DEAF, DEAF, DEAF];
        let mut expected = [None; 9];
        (expected[2], expected[6]) = (ANEW, LASTING);
        assert_eq!(said(&new_by_itself), expected);
    }

    #[test]
    fn a_calm_or_busy_interface_is_left_alone() {
        let calm = (1, FRAMES_MIN - 1, 0);
        assert_eq!(said(&[calm; 9]), [None; 9]);
        // One frame that was judged is enough.
        assert_eq!(said(&[(1, 30_000, 1); 9]), [None; 9]);
        // One second alone may be a driver that counts late.
        let late = [
            (0, 0, 100),
            (1, 100, 0),
            (0, 0, 0),
            (0, 100, 0),
            (0, 5, 100),
        ];
        assert_eq!(said(&late), [None; 5]);
    }

    #[test]
    fn a_driver_may_begin_to_count_anew() {
        let mut silence = Silence::on(0);
        for frames in [1_000_000, 100, 200, 5, 100_000, 0, 90_000] {
            let second = Second {
                link_changes: 1,
                frames,
                judged: 7,
            };
            assert_eq!(silence.on_second(second), None, "{frames}");
        }
    }
}
