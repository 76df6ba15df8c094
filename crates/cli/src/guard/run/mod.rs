//! `plimsoll guard IFACE`: early discard beside unmodified servers. The session is
//! the library's; this is its console.

mod args;
mod report;
#[cfg(test)]
mod settings_tests;

use std::io;

use crate::failure::Context;
use plimsoll_guard::session::{self, Console, Requests, ServiceManager, Settings};
use plimsoll_kernel::privileges::start_thread;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::output::{self, Target};
pub(crate) use args::Args;
use report::{Form, Reporter};

/// Guards until asked to stop. `reload` reads the settings again.
pub(crate) fn run(
    args: &Args,
    manager: ServiceManager,
    reload: impl Fn() -> crate::Result<Args>,
) -> crate::Result<()> {
    let settings = args.settings();
    settings.validate()?;
    let form = match &args.json {
        Some(target) => Form::Json(Target::open(target)?),
        None if args.quiet => Form::Nothing,
        None => Form::Table,
    };
    // Caught from here on; the thread that waits for them comes later, without the
    // capabilities that are dropped before.
    let signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot handle signals")?;
    let mut terminal = Terminal {
        at_start: Some((form, signals)),
        reporter: None,
        reload,
    };
    Ok(session::run(settings, manager, &mut terminal)?)
}

/// The session's console: standard output or a file, standard error and signals.
struct Terminal<R> {
    at_start: Option<(Form, Signals)>,
    reporter: Option<Reporter>,
    reload: R,
}

impl<R: Fn() -> crate::Result<Args>> Console for Terminal<R> {
    fn start(&mut self, requests: Requests) -> io::Result<()> {
        if let Some((form, signals)) = self.at_start.take() {
            forward(signals, requests)?;
            self.reporter = Some(Reporter::start(form)?);
        }
        Ok(())
    }

    fn show(&mut self, report: &session::Report<'_>) -> io::Result<()> {
        match &self.reporter {
            Some(reporter) => reporter.show(report.into()),
            None => Ok(()),
        }
    }

    fn log(&mut self, line: String) {
        match &self.reporter {
            Some(reporter) => reporter.log(line),
            // At the start nobody has to wait for this thread.
            None => output::say(format_args!("plimsoll: {line}")),
        }
    }

    fn settings(&mut self) -> Result<Settings, Box<dyn std::error::Error>> {
        let args = (self.reload)().map_err(|failure| failure.to_string())?;
        Ok(args.settings())
    }

    fn finish(&mut self, report: &session::Report<'_>) -> io::Result<()> {
        match self.reporter.take() {
            Some(reporter) => reporter.finish(report.into()),
            None => Ok(()),
        }
    }
}

/// Turns signals into requests from now on.
fn forward(mut signals: Signals, requests: Requests) -> io::Result<()> {
    start_thread(move || {
        for signal in &mut signals {
            if signal == SIGHUP {
                requests.reload();
            } else {
                requests.stop();
            }
        }
    })
    .map_err(io::Error::other)
}
