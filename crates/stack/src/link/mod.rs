//! The link: who answers to which address on it, and how frames get out.

pub(crate) mod egress;
pub(crate) mod membership;
pub(crate) mod neighbours;
pub(crate) mod resolution;
