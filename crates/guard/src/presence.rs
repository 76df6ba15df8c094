//! Whether the driver still runs the attached program.
//!
//! vmxnet3 does not after its link went down and up, although the kernel goes on to say that
//! the program is attached (`make vm-test`, step `link`). A guard that sees nothing protects
//! nobody, and is not noticed. To attach it anew makes the driver's rings anew, too.
//!
//! The driver's count of received frames tells: what it counts, the program has judged.

use std::fmt;

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
    /// That has not helped.
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

/// The count of one interface's driver, beside the program's.
#[derive(Debug)]
pub(crate) struct Presence {
    frames: Statistic,
    silence: Silence,
}

impl Presence {
    /// Of this interface; `None` if its driver's count is not to be had.
    pub(crate) fn watch(interface: &str, ifindex: u32) -> Option<Self> {
        let device = Device::open(interface, ifindex).ok()?;
        let frames = device.statistic("rx_packets").ok()?;
        Some(Self {
            frames,
            silence: Silence::default(),
        })
    }

    /// Call once a second; `judged` reads how many packets the program has judged.
    pub(crate) fn on_second<E>(
        &mut self,
        judged: impl FnOnce() -> Result<u64, E>,
    ) -> Result<Option<Absence>, E> {
        // First the frames, so that each of them may have been judged.
        match self.frames.read() {
            Ok(frames) => Ok(self.silence.on_second(frames, judged()?)),
            // It is gone, and so will the guard be.
            Err(_) => Ok(None),
        }
    }
}

#[derive(Debug)]
struct Silence {
    before: Option<(u64, u64)>,
    seconds: u32,
    /// The program has judged something since it was last attached anew.
    may_repair: bool,
    is_told: bool,
}

impl Default for Silence {
    fn default() -> Self {
        Self {
            before: None,
            seconds: 0,
            may_repair: true,
            is_told: false,
        }
    }
}

impl Silence {
    /// What is to be done or told, with what driver and program have counted.
    fn on_second(&mut self, frames: u64, judged: u64) -> Option<Absence> {
        let (frames_before, judged_before) = self.before.replace((frames, judged))?;
        if judged > judged_before {
            *self = Self {
                before: self.before,
                ..Self::default()
            };
            return None;
        }
        // A driver may begin to count anew.
        if frames.saturating_sub(frames_before) < FRAMES_MIN {
            self.seconds = 0;
            return None;
        }
        self.seconds += 1;
        if self.seconds < SECONDS || self.is_told {
            return None;
        }
        self.seconds = 0;
        if self.may_repair {
            self.may_repair = false;
            return Some(Absence::Repaired);
        }
        self.is_told = true;
        Some(Absence::Lasting)
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
    /// on an interface without any. Needs root.
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
            ip("link add v0 type veth peer name v1");
            let (lo, v0) = (link::index("lo").unwrap(), link::index("v0").unwrap());
            let mut storage = Storage::default();
            let mut guard = Guard::attach(&mut storage, &Config::default(), "v0").unwrap();
            guard.presence = Presence::watch("lo", lo);
            let mut seen = || {
                let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
                for _ in 0..FRAMES_MIN {
                    let _ = socket.send_to(b"?", socket.local_addr().unwrap());
                }
                guard.see_presence().unwrap()
            };
            assert_eq!([seen(), seen(), seen()], [None, None, ANEW]);
            let program = link::link(v0).unwrap().xdp.unwrap();
            assert_eq!(program.mode, "native");
            assert_eq!([seen(), seen(), seen()], [None, LASTING, None]);
            // Nothing to attach to is an error, and so it is at the next try.
            ip("link del v0");
            guard.presence = Presence::watch("lo", lo);
            guard.link = None;
            assert!(guard.see_presence().is_err());
            assert!(guard.see_presence().is_err());
        };
        namespace::in_new(inside).expect("this test makes a namespace: run `sudo make test`");
    }

    /// What is said in seconds with so many frames, and so many judged.
    fn said(seconds: &[(u64, u64)]) -> Vec<Option<Absence>> {
        let mut silence = Silence::default();
        let (mut frames, mut judged) = (0, 0);
        let one = |(more, more_judged): &(u64, u64)| {
            frames += more;
            judged += more_judged;
            silence.on_second(frames, judged)
        };
        seconds.iter().map(one).collect()
    }

    const ANEW: Option<Absence> = Some(Absence::Repaired);
    const LASTING: Option<Absence> = Some(Absence::Lasting);

    #[test]
    fn a_program_that_is_not_run_is_attached_anew_once() {
        let deaf = (30_000, 0);
        assert_eq!(
            said(&[(0, 0), (10, 10), deaf, deaf]),
            [None, None, None, ANEW]
        );
        // That helped; and then the link went down and up once more.
        let helped = [(0, 0), deaf, deaf, (100, 100), deaf, deaf];
        assert_eq!(said(&helped), [None, None, ANEW, None, None, ANEW]);
        // It did not help: that is told once, and nothing is tried again.
        let lasting = [(0, 0), deaf, deaf, deaf, deaf, deaf, deaf, deaf, deaf];
        let mut expected = [None; 9];
        (expected[2], expected[4]) = (ANEW, LASTING);
        assert_eq!(said(&lasting), expected);
    }

    #[test]
    fn a_calm_or_busy_interface_is_left_alone() {
        let calm = (FRAMES_MIN - 1, 0);
        assert_eq!(said(&[calm; 9]), [None; 9]);
        // One frame that was judged is enough.
        assert_eq!(said(&[(30_000, 1); 9]), [None; 9]);
        // One second alone may be a driver that counts late.
        let late = [(0, 0), (0, 100), (100, 0), (0, 0), (100, 0), (5, 100)];
        assert_eq!(said(&late), [None; 6]);
    }

    #[test]
    fn a_driver_may_begin_to_count_anew() {
        let mut silence = Silence::default();
        for frames in [1_000_000, 100, 200, 5, 100_000, 0, 90_000] {
            assert_eq!(silence.on_second(frames, 7), None, "{frames}");
        }
    }
}
