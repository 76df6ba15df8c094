//! Numbers that nobody can guess, from the kernel.

use std::io;

use crate::error::Error;

/// A number for what a peer must not foresee. What `fastrand` gives follows from the time.
///
/// # Errors
///
/// The kernel gives none.
pub(crate) fn unguessable() -> io::Result<u64> {
    getrandom::u64().map_err(io::Error::other)
}

/// A number by which places are spread so that nobody can aim at one.
///
/// # Errors
///
/// The kernel gives none.
pub(crate) fn secret() -> Result<u64, Error> {
    unguessable().map_err(Error::io("draw a secret"))
}
