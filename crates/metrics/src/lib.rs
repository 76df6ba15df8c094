//! Prometheus metrics of a running program over HTTP (`GET /metrics`): in the
//! `OpenMetrics` text format for who asks for it, as Prometheus does, else in the older
//! text format, which other tools read (`promtool check metrics`, for one).
//!
//! Nothing is read or encoded until somebody asks. A program says what it measures by a
//! [`Collector`]; [`counter`] and [`gauge`] write one series.

mod format;
mod http;

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};

use plimsoll_kernel::error::os;
use prometheus_client::encoding::{EncodeCounterValue, NoLabelSet};

pub use format::Format;
pub use prometheus_client::collector::Collector;
pub use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder};
pub use prometheus_client::metrics::MetricType;
pub use prometheus_client::registry::Unit;

/// The address metrics are served at, not yet served.
#[derive(Debug)]
pub struct MetricsServer {
    listener: TcpListener,
}

impl MetricsServer {
    /// Takes the address. Where that needs privileges (a port below 1024), call
    /// it before they are dropped.
    ///
    /// # Errors
    ///
    /// The address is taken, or not this host's.
    pub fn bind(address: SocketAddr) -> Result<Self, MetricsError> {
        let listener = TcpListener::bind(address);
        let listener = listener.map_err(|source| MetricsError::Listen { address, source })?;
        Ok(Self { listener })
    }

    /// The address it has, with the port that a port of 0 became.
    ///
    /// # Errors
    ///
    /// The kernel does not tell.
    pub fn address(&self) -> Result<SocketAddr, MetricsError> {
        let address = self.listener.local_addr();
        Ok(address.map_err(os("read the address metrics are served at"))?)
    }

    /// Serves at `/metrics`, until the process ends, what `text` says in a format. If it
    /// says nothing, the answer is 404.
    ///
    /// # Errors
    ///
    /// The server does not start.
    pub fn start(
        self,
        text: impl Fn(Format) -> Option<String> + Send + Sync + 'static,
    ) -> Result<(), MetricsError> {
        http::serve(self.listener, move |question| {
            if question.path != "/metrics" {
                return None;
            }
            let format = Format::accepted(&question.accept);
            text(format).map(|text| (format.content_type(), text))
        })?;
        Ok(())
    }
}

/// Whether other hosts may reach an address: then somebody must have said that they may.
#[must_use]
pub fn is_public(address: SocketAddr) -> bool {
    !address.ip().to_canonical().is_loopback()
}

/// Why metrics cannot be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MetricsError {
    /// The address asked for cannot be had.
    #[error("cannot listen at {address}: choose an address of this host and a port that is free")]
    Listen {
        /// As given.
        address: SocketAddr,
        /// The kernel's answer.
        source: io::Error,
    },
    /// No thread can be started to serve them.
    #[error(transparent)]
    Kernel(#[from] plimsoll_kernel::Error),
}

plimsoll_kernel::from_operations!(MetricsError::Kernel);

/// Names and values that tell a series of a family from the others.
pub type Labels<'a> = Vec<(&'a str, String)>;

/// Writes a counter, of whole things or of seconds.
///
/// # Errors
///
/// The text takes no more.
pub fn counter(
    family: &mut MetricEncoder<'_>,
    labels: &Labels<'_>,
    value: &impl EncodeCounterValue,
) -> fmt::Result {
    family
        .encode_family(labels)?
        .encode_counter::<NoLabelSet, _, u64>(value, None)
}

/// Writes a gauge.
///
/// # Errors
///
/// The text takes no more.
pub fn gauge(family: &mut MetricEncoder<'_>, labels: &Labels<'_>, value: f64) -> fmt::Result {
    family.encode_family(labels)?.encode_gauge(&value)
}
