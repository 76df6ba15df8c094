//! Options of the commands that serve Prometheus metrics: `guard`, `forward`, `serve`.

use std::net::SocketAddr;

use plimsoll_metrics::{MetricsServer, is_public};

use crate::failure::Usage;

/// Where metrics are served, and to whom.
#[derive(clap::Args, Clone, Debug, PartialEq, Eq)]
pub(crate) struct MetricsArgs {
    /// Serve Prometheus metrics at this address, as in 127.0.0.1:9464
    ///
    /// Cost: each scrape reads all counters; whoever reaches the address may read them. A
    /// change takes a new start.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) metrics: Option<SocketAddr>,
    /// Serve metrics also where other hosts reach them: at an address that is not loopback
    ///
    /// Cost: whoever asks learns what this program counts, such as the ports in use and how full
    /// queues are. A change takes a new start.
    #[arg(long, requires = "metrics")]
    pub(crate) metrics_public: bool,
}

impl MetricsArgs {
    /// Takes the address. One that others reach needs `--metrics-public`.
    pub(crate) fn server(&self) -> crate::Result<Option<MetricsServer>> {
        let Some(address) = self.metrics else {
            return Ok(None);
        };
        if is_public(address) && !self.metrics_public {
            return Err(Usage("other hosts may reach the address of --metrics: take 127.0.0.1, or say --metrics-public as well").into());
        }
        Ok(Some(MetricsServer::bind(address)?))
    }
}
