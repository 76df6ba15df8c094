//! `plimsoll serve`: a UDP sink and echo, calls, HTTP and DNS, on any of the devices.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use plimsoll_metrics::MetricsServer;
use plimsoll_testbed::server::{self, Config, Status, Watch};

use crate::metrics::MetricsArgs;
use crate::output::{self, Target};

/// Serve UDP, HTTP or DNS, on the kernel's sockets or Plimsoll's own stack.
///
/// Runs until Ctrl-C or SIGTERM, then prints what it counted as one line of
/// JSON.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    config: Config,
    /// Write all that was counted as one JSON document to FILE at the end (`-`: standard output
    /// instead of the line): also frames by outcome and CPU time of each channel of Plimsoll's
    /// own stack
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    metrics: MetricsArgs,
}

/// The running server, while there is one.
type Running = Arc<Mutex<Option<Watch>>>;

pub(crate) fn run(args: &Args) -> crate::Result<()> {
    let json = Target::open_given(args.json.as_ref())?;
    // Dropped when the stack is gone, which then has put its settings back.
    let _keeper = server::keeper(&args.config)?;
    let running = Running::default();
    if let Some(metrics) = args.metrics.server()? {
        serve_metrics(metrics, Arc::clone(&running))?;
    }
    let set = |watch| {
        let mut running = running.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *running, watch);
        drop(running);
        // The stack may take seconds to end, for which nobody who asks for metrics is to wait.
        drop(before);
    };
    let served = server::serve_watched(&args.config, |watch| set(Some(watch.clone())));
    let (status, ended) = match served {
        Ok(status) => (Some(status), Ok(())),
        Err(error) => (status_of(&running), Err(error)),
    };
    // The stack ends with the last who knows it.
    set(None);
    let reported = status.map_or(Ok(()), |status| report(json, &status));
    // Why it ended comes before that nobody could be told what it came to.
    ended?;
    reported
}

/// What a server that failed has done, if it got as far as to listen.
fn status_of(running: &Running) -> Option<Status> {
    let running = running.lock().unwrap_or_else(PoisonError::into_inner);
    let listened = running.as_ref().filter(|watch| watch.is_listening());
    listened.map(Watch::status)
}

fn report(json: Option<Target>, status: &Status) -> crate::Result<()> {
    let line = serde_json::to_string(&status.served)? + "\n";
    output::deliver(json, status, || line)
}

fn serve_metrics(metrics: MetricsServer, running: Running) -> crate::Result<()> {
    Ok(metrics.start(move |format| {
        let running = running.lock().unwrap_or_else(PoisonError::into_inner);
        Some(running.as_ref()?.status().metrics(format))
    })?)
}
