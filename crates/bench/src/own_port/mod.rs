//! A server that is flooded on its own port, and its honest client.

pub(crate) mod floods;
pub(crate) mod servers;

pub use floods::SourcesFlood;
pub use servers::SourcesServer;
