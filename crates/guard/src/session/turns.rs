//! The loop of a session: who is due when, what is told, and which requests come in
//! between.

use plimsoll_kernel::error::with_causes;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::task::Poll;
use std::time::{Duration, Instant};

use super::retry::Retry;
use super::settings::Settings;
use super::standby::decided;
use super::work::Work;
use super::{Console, Report, Request};
use crate::error::Error;
use crate::events::Events;
use crate::status::Snapshot;

/// How often the program learns the time and the host's addresses, at least.
const REFRESH: Duration = Duration::from_secs(1);
/// How soon it is looked again at what is under way on another thread.
const UNDER_WAY: Duration = Duration::from_millis(50);

/// Why the loop is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// It was asked to end, or its time was up.
    AsAsked,
    /// There is nothing left to guard.
    InterfaceGone,
}

/// One kind of work: when it is due, and how it went.
struct Turn {
    due: Instant,
    retry: Retry,
}

impl Turn {
    fn new(action: &'static str) -> Self {
        Self {
            due: Instant::now(),
            retry: Retry::new(action),
        }
    }

    /// Takes what became of work that may still be under way: it may have gone well or not only
    /// once it is done. Returns its result, and what to tell.
    fn on_poll<T>(
        &mut self,
        poll: Poll<Result<T, Error>>,
        usual: Duration,
    ) -> (Option<Result<T, Error>>, Option<String>) {
        match poll {
            Poll::Ready(result) => {
                let told = self.on_attempt(&result, usual);
                (Some(result), told)
            }
            Poll::Pending => {
                self.due = Instant::now() + UNDER_WAY;
                (None, None)
            }
        }
    }

    /// Takes how the work went. Returns what to tell.
    fn on_attempt<T>(&mut self, result: &Result<T, Error>, usual: Duration) -> Option<String> {
        let failure = result.as_ref().err().map(|error| with_causes(error));
        let failure = failure
            .as_ref()
            .map(|failure| failure as &dyn std::fmt::Display);
        let (wait, told) = self.retry.on_attempt(failure, usual);
        self.due = Instant::now() + wait;
        told
    }
}

pub(super) struct Turns<'a, W> {
    settings: Settings,
    /// Of the interface now.
    name: String,
    work: W,
    console: &'a mut dyn Console,
    started: Instant,
    /// When it is looked next whether there still is an interface.
    look: Instant,
    is_gone: bool,
    regulate: Turn,
    /// Not before it is due, and only with what was just seen.
    govern: Turn,
    refresh: Turn,
    presence: Turn,
    standby: Turn,
    threads: Turn,
    owners: Turn,
    report: Turn,
    events: Events,
    last: Option<Snapshot>,
}

impl<'a, W: Work> Turns<'a, W> {
    pub(super) fn new(
        settings: Settings,
        work: W,
        console: &'a mut dyn Console,
        started: Instant,
    ) -> Self {
        Self {
            name: settings.interface.clone(),
            settings,
            work,
            console,
            started,
            look: started,
            is_gone: false,
            regulate: Turn::new("see how busy the CPUs are"),
            govern: Turn::new("govern"),
            refresh: Turn::new("take over the host's addresses"),
            presence: Turn::new("attach the program anew"),
            standby: Turn {
                retry: Retry::new("attach or detach the program that stands by")
                    .while_it("all stays as it is"),
                ..Turn::new("")
            },
            threads: Turn::new("have threads poll"),
            owners: Turn::new("tell the owners of sockets apart"),
            report: Turn::new("read the counters"),
            events: Events::default(),
            last: None,
        }
    }

    /// The work, and the last report of it, if one could be read.
    pub(super) fn into_parts(self) -> (W, Option<Snapshot>) {
        (self.work, self.last)
    }

    /// Takes turns until asked to stop, until the interface has gone, or until the console fails.
    pub(super) fn run(&mut self, requests: &Receiver<Request>) -> io::Result<Ended> {
        let end = self.settings.duration.map(|time| self.started + time);
        loop {
            let over = end.is_some_and(|end| end <= Instant::now());
            self.take_turns(over)?;
            if over {
                return Ok(Ended::AsAsked);
            }
            if self.is_gone {
                self.report(true)?;
                // A service manager that saw it first asks the guard to stop.
                let mut asked = requests.try_iter();
                return Ok(
                    match asked.any(|request| matches!(request, Request::Stop)) {
                        true => Ended::AsAsked,
                        false => Ended::InterfaceGone,
                    },
                );
            }
            let next = [
                &self.regulate,
                &self.refresh,
                &self.presence,
                &self.standby,
                &self.threads,
                &self.owners,
                &self.report,
            ];
            let next = next.into_iter().map(|turn| turn.due);
            let next = next.chain([self.look]).chain(end).min();
            let wait = next.map_or(REFRESH, |next| {
                next.saturating_duration_since(Instant::now())
            });
            match requests.recv_timeout(wait) {
                Ok(Request::Read(reply)) => {
                    // Whoever asks hears nothing if the counters cannot be read, and
                    // may have given up.
                    if let Ok(snapshot) = self.work.snapshot() {
                        let _ = reply.send(snapshot);
                    }
                }
                Ok(Request::Reload) => self.reload(),
                Err(RecvTimeoutError::Timeout) => {}
                Ok(Request::Stop) | Err(RecvTimeoutError::Disconnected) => {
                    self.take_turns(true)?;
                    return Ok(Ended::AsAsked);
                }
            }
        }
    }

    /// Does what is due; the last time, reads once more what happened.
    fn take_turns(&mut self, is_last: bool) -> io::Result<()> {
        let now = Instant::now();
        if is_last || self.look <= now {
            self.look = now + REFRESH;
            self.is_gone |= self.work.is_gone();
            if let Some(name) = self.work.renamed() {
                self.log(&format_args!("event=renamed name={name}"));
                self.name = name;
            }
        }
        if !self.is_gone {
            self.guard(now, is_last);
        }
        if is_last || self.report.due <= now {
            self.report(is_last)?;
        }
        Ok(())
    }

    /// All but reports.
    fn guard(&mut self, now: Instant, is_last: bool) {
        if self.regulate.due <= now {
            self.regulate(now);
        }
        if is_last || self.refresh.due <= now {
            let result = self.work.refresh();
            let told = self.refresh.on_attempt(&result, REFRESH);
            self.tell(told);
        }
        if self.presence.due <= now {
            let result = self.work.see_presence();
            let told = self.presence.on_attempt(&result, REFRESH);
            self.tell(told);
            if let Ok(Some(absence)) = result {
                self.log(&absence);
            }
        }
        if self.standby.due <= now {
            self.stand_by();
        }
        if self.threads.due <= now {
            let poll = self.work.renew_threads();
            let (result, told) = self.threads.on_poll(poll, REFRESH);
            self.tell(told);
            if let Some(Ok(Some(threads))) = result {
                self.log(&format_args!("event=threads_set_anew threads={threads}"));
            }
        }
        if self.owners.due <= now {
            let poll = self.work.tell_owners_apart();
            let (_, told) = self.owners.on_poll(poll, REFRESH);
            self.tell(told);
        }
    }

    fn stand_by(&mut self) {
        let result = self.work.stand_by();
        let usual = self.work.watching().min(REFRESH);
        let told = self.standby.on_attempt(&result, usual);
        self.tell(told);
        if let Ok(Some(change)) = result {
            self.log(&change);
        }
    }

    fn regulate(&mut self, now: Instant) {
        let regulated = self.work.regulate();
        let usual = self.work.interval();
        let told = self.regulate.on_attempt(&regulated, usual);
        let is_told = told.is_some();
        self.tell(told);
        let Ok(regulated) = regulated else {
            // What nobody sees, nobody can govern.
            return self.stand_back(is_told);
        };
        if now < self.govern.due {
            return;
        }
        let result = self.work.govern(&regulated);
        let told = self.govern.on_attempt(&result, Duration::ZERO);
        let is_told = told.is_some();
        self.tell(told);
        if result.is_err() {
            self.stand_back(is_told);
        }
    }

    fn stand_back(&mut self, is_told: bool) {
        if let Err(error) = self.work.stand_back()
            && is_told
        {
            self.log(&with_causes(&error));
        }
    }

    fn report(&mut self, is_last: bool) -> io::Result<()> {
        let result = self.work.snapshot();
        let told = self.report.on_attempt(&result, self.settings.interval);
        self.tell(told);
        let Ok(snapshot) = result else {
            return Ok(());
        };
        for event in self.events.on_reading(&snapshot, Instant::now()) {
            self.log(&event);
        }
        if !is_last {
            self.console.show(&Report {
                interface: &self.settings.interface,
                uptime: self.started.elapsed(),
                snapshot: &snapshot,
            })?;
        }
        self.last = Some(snapshot);
        Ok(())
    }

    fn log(&mut self, event: &dyn std::fmt::Display) {
        let interface = &self.settings.interface;
        self.console.log(format!("interface={interface} {event}"));
    }

    /// What fails because the interface has gone is no failure of a moment.
    fn tell(&mut self, line: Option<String>) {
        if let Some(line) = line {
            self.is_gone |= self.work.is_gone();
            if !self.is_gone {
                self.log(&line);
            }
        }
    }

    /// Takes over the settings that can change while the guard runs. A mistake
    /// leaves all as they are.
    fn reload(&mut self) {
        let read = self.console.settings().and_then(|new| {
            new.validate()?;
            Ok(decided(new, &self.name))
        });
        let new = match read {
            Ok(new) => new,
            Err(error) => {
                let error = with_causes(error.as_ref());
                return self.log(&format_args!("the settings stay as they were: {error}"));
            }
        };
        let adopted = self.settings.with_changes_of(&new);
        match self.work.configure(&adopted) {
            Ok(()) => {
                self.log(&"settings read again");
                let waiting = adopted.differences(&new);
                if !waiting.is_empty() {
                    let names = waiting.join(", ");
                    self.log(&format!("{names}: a change takes a new start"));
                }
                self.report.due = self.report.due.min(Instant::now() + adopted.interval);
                self.settings = adopted;
            }
            Err(error) => self.log(&with_causes(&error)),
        }
    }
}

#[cfg(test)]
mod tests;
