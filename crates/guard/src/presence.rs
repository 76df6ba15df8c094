//! Whether the driver still runs the attached program.
//!
//! A guard that sees nothing protects nobody, and is not noticed. The driver's count of
//! received frames tells: what it counts, the program has judged. Not with every adapter: one
//! that forwards by itself may count frames that no program ever sees. So nothing is done
//! about it here but told. Drivers that are known to lose a program are
//! [`plimsoll_kernel::lasting_link`]'s.

use std::fmt;

use plimsoll_kernel::knobs::{Device, Statistic};

/// So many frames of a second show that something was received: a driver may count a few
/// that it tells nobody of.
const FRAMES_MIN: u64 = 64;
/// So many such seconds in a row show that the program was not run: a driver may count
/// later than it runs the program, and a new link is soon attached to anew.
const SECONDS: u32 = 3;
/// It is told once in so many seconds at most: an hour.
const TOLD_SECONDS: u32 = 3600;

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Absence {
    /// The driver may have lost the program, which is attached anew now.
    Repaired,
    /// The driver receives frames, and does not run it.
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

    /// The driver's count now; 0 once the interface is gone.
    pub(crate) fn frames(&self) -> u64 {
        self.frames.read().unwrap_or(0)
    }

    /// The program has just been attached: what came before says nothing.
    pub(crate) fn begin_anew(&mut self) {
        self.silence.begin_anew();
    }

    /// Call once a second; `judged` reads how many packets the program has judged.
    pub(crate) fn on_second<E>(
        &mut self,
        judged: impl FnOnce() -> Result<u64, E>,
    ) -> Result<Option<Absence>, E> {
        // First the frames, so that each of them may have been judged.
        match self.frames.read() {
            Ok(frames) => {
                let is_told = self.silence.on_second(frames, judged()?);
                Ok(is_told.then_some(Absence::Lasting))
            }
            // The interface has gone, and the session ends.
            Err(_) => Ok(None),
        }
    }
}

#[derive(Debug, Default)]
struct Silence {
    /// Frames, and how many packets were judged.
    before: Option<(u64, u64)>,
    seconds: u32,
    /// Seconds until it may be told again.
    told: u32,
}

impl Silence {
    /// What was told is not told again sooner.
    fn begin_anew(&mut self) {
        (self.before, self.seconds) = (None, 0);
    }

    /// Whether it is to be told that frames come and none is judged.
    fn on_second(&mut self, frames: u64, judged: u64) -> bool {
        self.told = self.told.saturating_sub(1);
        let Some((frames_before, judged_before)) = self.before.replace((frames, judged)) else {
            return false;
        };
        // A driver may begin to count anew.
        let received = frames.saturating_sub(frames_before);
        if judged > judged_before || received < FRAMES_MIN {
            self.seconds = 0;
            return false;
        }
        self.seconds = self.seconds.saturating_add(1);
        let is_told = self.seconds >= SECONDS && self.told == 0;
        if is_told {
            self.told = TOLD_SECONDS;
        }
        is_told
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use plimsoll_kernel::{link, namespace};

    use super::*;
    use crate::program::test_host::ip;

    /// Loopback receives frames, and no program of ours is run. Needs root.
    #[test]
    fn frames_that_nobody_judges_are_told() {
        let inside = || {
            ip("link set lo up");
            let mut presence = Presence::watch("lo", link::index("lo").unwrap()).unwrap();
            let mut seen = || {
                let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
                for _ in 0..FRAMES_MIN {
                    let _ = socket.send_to(b"?", socket.local_addr().unwrap());
                }
                presence.on_second(|| Ok::<u64, ()>(7)).unwrap()
            };
            let told = Some(Absence::Lasting);
            assert_eq!([(); 5].map(|()| seen()), [None, None, None, told, None]);
        };
        namespace::in_new(inside).expect("this test makes a namespace: run `sudo make test`");
    }

    /// When it is told, in seconds with so many frames, and so many judged.
    fn told(seconds: impl IntoIterator<Item = (u64, u64)>) -> Vec<usize> {
        let mut silence = Silence::default();
        let (mut frames, mut judged) = (0, 0);
        let mut one = |(more, more_judged): (u64, u64)| {
            frames += more;
            judged += more_judged;
            silence.on_second(frames, judged)
        };
        assert!(!one((0, 0)));
        let all = seconds.into_iter().map(one).enumerate();
        all.filter(|one| one.1).map(|one| one.0 + 1).collect()
    }

    #[test]
    fn a_program_that_is_not_run_is_told_once_an_hour() {
        let deaf = (30_000, 0);
        assert_eq!(told([(10, 10), deaf, deaf, deaf, deaf]), [4]);
        assert_eq!(told([deaf; 8_000]), [3, 3_603, 7_203]);
        // An adapter that forwards by itself gives the program few.
        let few = [deaf, deaf, deaf, (30_000, 1)].repeat(1_000);
        assert_eq!(told(few), [3, 3_603]);
    }

    #[test]
    fn a_calm_or_busy_interface_is_not_told() {
        assert!(told([(FRAMES_MIN - 1, 0); 99]).is_empty());
        // One frame that was judged is enough.
        assert!(told([(30_000, 1); 99]).is_empty());
        // A driver may count late.
        let late = [(0, 100), (100, 0), (100, 0), (0, 0), (100, 0), (5, 100)];
        assert!(told(late.repeat(9)).is_empty());
    }

    /// A guard that stood by was told of all frames that came meanwhile.
    #[test]
    fn frames_that_came_before_the_program_are_not_told() {
        let mut silence = Silence::default();
        for round in 1..9 {
            let frames = round * 100_000;
            assert!(!silence.on_second(frames, 7), "{round}");
            assert!(!silence.on_second(frames + 50_000, 7), "{round}");
            silence.begin_anew();
        }
    }

    #[test]
    fn a_driver_may_begin_to_count_anew() {
        let mut silence = Silence::default();
        for frames in [1_000_000, 100, 200, 5, 100_000, 0, 90_000] {
            assert!(!silence.on_second(frames, 7), "{frames}");
        }
    }
}
