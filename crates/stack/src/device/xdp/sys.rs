//! The system calls of AF_XDP (`linux/if_xdp.h`), each with one caller's view of
//! what its failure means.

#![allow(unsafe_code, reason = "socket options that no crate wraps")]

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A new AF_XDP socket.
pub(super) fn socket() -> io::Result<OwnedFd> {
    // SAFETY: takes numbers only.
    let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    check(fd)?;
    // SAFETY: the descriptor is new, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Lets frames of so many bytes be on their way at a time, if this process may (`CAP_NET_ADMIN`),
/// or as many as the kernel allows anybody.
pub(super) fn allow_sending(socket: &OwnedFd, bytes: usize) {
    let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    let forced = set(socket, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &bytes);
    // Without it more is left in the ring, and sent later.
    let _ = forced.or_else(|_| set(socket, libc::SOL_SOCKET, libc::SO_SNDBUF, &bytes));
}

/// Makes `memory` the socket's UMEM, in chunks of `chunk_bytes`.
///
/// The memory has to stay mapped as long as the socket or one that shares it.
pub(super) fn register_umem(
    socket: &OwnedFd,
    memory: (*mut u8, usize),
    chunk_bytes: usize,
) -> io::Result<()> {
    // SAFETY: an `xdp_umem_reg` of zeros is valid: it consists of integers.
    let mut request: libc::xdp_umem_reg = unsafe { mem::zeroed() };
    request.addr = memory.0 as u64;
    request.len = memory.1 as u64;
    request.chunk_size = chunk_bytes as u32;
    set(socket, libc::SOL_XDP, libc::XDP_UMEM_REG, &request)
}

/// Gives the socket a ring of `length` entries, a power of two.
pub(super) fn make_ring(socket: &OwnedFd, which: libc::c_int, length: u32) -> io::Result<()> {
    set(socket, libc::SOL_XDP, which, &length)
}

/// Where in their mappings the rings have their parts.
pub(super) fn offsets(socket: &OwnedFd) -> io::Result<libc::xdp_mmap_offsets> {
    get(socket, libc::XDP_MMAP_OFFSETS)
}

/// The socket's counters.
pub(super) fn statistics(socket: &OwnedFd) -> io::Result<libc::xdp_statistics> {
    get(socket, libc::XDP_STATISTICS)
}

/// Whether the kernel knows which NAPI instance to poll from this socket's calls.
pub(super) fn is_pollable(socket: &OwnedFd) -> bool {
    let instance = get_of::<u32>(socket, libc::SOL_SOCKET, libc::SO_INCOMING_NAPI_ID);
    instance.is_ok_and(|instance| instance != 0)
}

/// Whether the socket works without copies.
pub(super) fn is_zero_copy(socket: &OwnedFd) -> io::Result<bool> {
    let options: libc::xdp_options = get(socket, libc::XDP_OPTIONS)?;
    Ok(options.flags & libc::XDP_OPTIONS_ZEROCOPY != 0)
}

/// Polls the device from system calls of this socket, instead of by interrupts.
pub(super) fn busy_poll(socket: &OwnedFd, micros: u32, budget: u32) -> io::Result<()> {
    set(socket, libc::SOL_SOCKET, libc::SO_PREFER_BUSY_POLL, &1_i32)?;
    set(socket, libc::SOL_SOCKET, libc::SO_BUSY_POLL, &micros)?;
    set(socket, libc::SOL_SOCKET, libc::SO_BUSY_POLL_BUDGET, &budget)
}

/// Binds to a queue; `umem_of` is the socket whose UMEM is shared.
pub(super) fn bind(
    socket: &OwnedFd,
    ifindex: u32,
    queue: u32,
    flags: u16,
    umem_of: Option<&OwnedFd>,
) -> io::Result<()> {
    let shared = umem_of.map_or(0, |_| libc::XDP_SHARED_UMEM);
    let address = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: if shared == 0 { flags } else { shared },
        sxdp_ifindex: ifindex,
        sxdp_queue_id: queue,
        sxdp_shared_umem_fd: umem_of.map_or(0, |fd| fd.as_raw_fd().cast_unsigned()),
    };
    // SAFETY: the kernel reads one `sockaddr_xdp`, which lives.
    check(unsafe {
        libc::bind(
            socket.as_raw_fd(),
            (&raw const address).cast(),
            size_of::<libc::sockaddr_xdp>() as libc::socklen_t,
        )
    })
}

/// Whether both are of one network namespace, as far as the kernel tells (Linux 5.14).
pub(super) fn are_of_one_namespace(one: &OwnedFd, other: &OwnedFd) -> bool {
    let [one, other] =
        [one, other].map(|fd| get_of::<u64>(fd, libc::SOL_SOCKET, libc::SO_NETNS_COOKIE).ok());
    one == other
}

/// Has the kernel look at the transmit ring.
pub(super) fn kick_transmit(socket: &OwnedFd) -> io::Result<()> {
    let flags = libc::MSG_DONTWAIT;
    // SAFETY: no buffer and no address are passed.
    let result = unsafe {
        libc::sendto(
            socket.as_raw_fd(),
            std::ptr::null(),
            0,
            flags,
            std::ptr::null(),
            0,
        )
    };
    check(result as libc::c_int)
}

/// Has the kernel look at the fill ring, or poll the device. False: there is no interface to the
/// socket any more.
pub(super) fn kick_receive(socket: &OwnedFd) -> bool {
    let (flags, none) = (libc::MSG_DONTWAIT, std::ptr::null_mut());
    // SAFETY: no buffer and no address are passed. There is no data to be had by this call.
    let result =
        unsafe { libc::recvfrom(socket.as_raw_fd(), none, 0, flags, none.cast(), none.cast()) };
    // A socket whose interface was deleted is bound no more, and nothing else tells of it. Other
    // failures pass: the link is down, the device is busy.
    let refused = check(result as libc::c_int).err();
    refused.and_then(|error| error.raw_os_error()) != Some(libc::ENXIO)
}

/// Waits until no CPU is in the midst of delivering to a socket that has been
/// taken out of the XDP program's map.
pub fn wait_for_deliveries() {
    const MEMBARRIER_CMD_GLOBAL: libc::c_int = 1;
    // SAFETY: takes numbers only. The command ends after an RCU grace period,
    // which deliveries hold up; where a kernel lacks it, nothing is waited for.
    unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) };
}

fn set<T>(socket: &OwnedFd, level: libc::c_int, option: libc::c_int, value: &T) -> io::Result<()> {
    // SAFETY: the kernel reads `size_of::<T>()` bytes of `value`, which lives.
    check(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    })
}

/// `T` consists of integers only.
fn get<T: Copy>(socket: &OwnedFd, option: libc::c_int) -> io::Result<T> {
    get_of(socket, libc::SOL_XDP, option)
}

fn get_of<T: Copy>(socket: &OwnedFd, level: libc::c_int, option: libc::c_int) -> io::Result<T> {
    // SAFETY: all callers ask for structures of integers, for which zeros are valid.
    let mut value: T = unsafe { mem::zeroed() };
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes there.
    check(unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw mut value).cast(),
            &raw mut length,
        )
    })?;
    Ok(value)
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
