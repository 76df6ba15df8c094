//! The user data path: devices, and what will stand on them.

pub mod device;

mod error;
mod interface;

pub use error::Error;
