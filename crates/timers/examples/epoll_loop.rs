//! A loop around epoll: the timer's descriptor wakes it, input carries events.

use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use plimsoll_timers::{IdleAction, IdleRule, SoftTimerConfig, TimerFd, Timers, Until};

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut timers = Timers::new(SoftTimerConfig::default())?;
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    let backup = TimerFd::new()?;
    epoll.add(backup.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
    let mut idle = IdleRule::new(backup, Until::NextEvent, std::time::Duration::ZERO);
    timers.schedule_soft_event(40, "packet")?;
    let mut sent = 0;
    while sent < 100 {
        let timeout = match idle.enter(&mut timers)? {
            IdleAction::Halt => EpollTimeout::NONE,
            IdleAction::Check => EpollTimeout::ZERO,
        };
        let mut ready = [EpollEvent::empty(); 16];
        let found = match epoll.wait(&mut ready, timeout) {
            // A signal, or SIGCONT after a stop.
            Err(Errno::EINTR) => 0,
            found => found?,
        };
        let by_backup = ready[..found].iter().any(|event| event.data() == 0);
        idle.leave(&mut timers, by_backup)?;
        if let Some(now) = timers.check() {
            while let Some(event) = timers.poll_event(now) {
                sent += 1; // send event.payload
                timers.schedule_soft_event(40, event.payload)?;
            }
        }
    }
    println!("sent {sent} packets");
    Ok(())
}
