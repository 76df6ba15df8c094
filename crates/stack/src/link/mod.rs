//! The link: who answers to which address on it, how frames get out, and how long they may be.

pub(crate) mod egress;
mod identification;
pub(crate) mod membership;
pub(crate) mod neighbours;
pub(crate) mod paths;
pub(crate) mod peers;
pub(crate) mod resolution;
mod source;
