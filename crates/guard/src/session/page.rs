//! Serving metrics: from the start, or as soon as the address can be had. That it cannot is no
//! reason not to guard: another guard may have it, or it may not be this host's yet.

use std::io::ErrorKind::{AddrInUse, AddrNotAvailable};
use std::time::{Duration, Instant};

use plimsoll_kernel::error::with_causes;
use plimsoll_kernel::privileges::start_thread;
use plimsoll_metrics::{MetricsError, MetricsServer};

use super::settings::Metrics;
use crate::status::{Answers, serve_metrics};

/// Between two attempts to take the address.
const PAUSE: Duration = Duration::from_secs(5);

/// The page of metrics, whether its address is taken or not.
#[derive(Debug)]
pub(super) struct Page {
    settings: Metrics,
    server: Option<MetricsServer>,
}

impl Page {
    /// Takes the address, before the right to it is given up. Tells if somebody else has it.
    pub(super) fn take(settings: Metrics, tell: impl FnOnce(String)) -> Result<Self, MetricsError> {
        let server = match MetricsServer::bind(settings.address) {
            Ok(server) => Some(server),
            Err(error) if may_be_had_later(&error) => {
                let problem = with_causes(&error);
                tell(format!(
                    "{problem}; it guards without metrics, and tries again every {} s",
                    PAUSE.as_secs()
                ));
                None
            }
            Err(error) => return Err(error),
        };
        Ok(Self { settings, server })
    }

    /// Serves it until the process ends.
    pub(super) fn serve(
        self,
        interface: &str,
        started: Instant,
        answers: Answers,
    ) -> Result<(), MetricsError> {
        let Self { settings, server } = self;
        if let Some(server) = server {
            return serve_metrics(server, interface, settings.channels_max, started, answers);
        }
        let interface = interface.to_owned();
        start_thread(move || {
            let server = loop {
                std::thread::sleep(PAUSE);
                if let Ok(server) = MetricsServer::bind(settings.address) {
                    break server;
                }
            };
            // Without threads for it there is none.
            let _ = serve_metrics(server, &interface, settings.channels_max, started, answers);
        })?;
        Ok(())
    }
}

fn may_be_had_later(error: &MetricsError) -> bool {
    match error {
        MetricsError::Listen { source, .. } => {
            matches!(source.kind(), AddrInUse | AddrNotAvailable)
        }
        _ => false,
    }
}
