//! Options of the kernel's sockets that no crate here sets.
#![allow(unsafe_code)] // setsockopt takes a pointer.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use nix::libc;

/// Sets an option of socket(7) that is a number.
pub(super) fn set_option<T: Number>(socket: &impl AsFd, name: i32, value: &T) -> io::Result<()> {
    // SAFETY: the kernel reads `size_of::<T>()` bytes of a value that lives.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            name,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// What the kernel may read as it lies in memory.
pub(super) trait Number: Copy {}
impl Number for u32 {}
impl Number for u64 {}
