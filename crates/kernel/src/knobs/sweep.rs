//! Removes what killed guards left in [`DIRECTORY`](super::DIRECTORY) for
//! network namespaces that are gone: no later start would look at their files again.
//! Virtual interfaces went with them. Others are in the first namespace again, with their
//! settings, of which a holdoff is known there by its mark.
//!
//! Files go only if their namespace is dead for certain: of another boot, or the
//! kernel says that its cookie and inode are nobody's. It is asked by a
//! namespace's file handle (Linux 6.18); on older kernels the files stay until
//! the next boot. A status socket without lock and record goes wherever it is, if nobody listens:
//! the inode of its namespace is not known any more.

#![allow(
    unsafe_code,
    reason = "neither nix nor rustix opens a namespace by its handle"
)]

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use caps::{CapSet, Capability};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::closed;
use super::device::{boot_id, netns_cookie, netns_inode};
use super::lock::Lock;
use super::record::RecordFile;
use crate::host::is_first_user_namespace;

/// What a guard of one interface may leave.
const EXTENSIONS: [&str; 5] = ["json", "json.new", "sock", "lock", closed::EXTENSION];
/// Those of them that tell of a guard.
const TELLING: [&str; 3] = ["json", "lock", closed::EXTENSION];

/// Removes what is certainly nobody's. What cannot be judged or removed stays.
pub(super) fn sweep(directory: &Path) {
    let (Ok(cookie), Ok(inode), Ok(boot)) = (netns_cookie(), netns_inode(), boot_id()) else {
        return;
    };
    // Where not even this namespace is found, the answer about others means
    // nothing.
    let kernel_tells = may_open_all() && open_namespace(cookie, inode).is_ok();
    for (stem, other) in all(directory) {
        remove_deaf(&directory.join(format!("{stem}.sock")));
        if other == cookie {
            continue;
        }
        let lock = directory.join(format!("{stem}.lock"));
        if Lock::may_be_owned(&lock) {
            continue;
        }
        // The second is one that a killed guard had not yet put in the place of the first.
        let identity = ["json", "json.new"].iter().find_map(|extension| {
            let record = RecordFile::at(directory.join(format!("{stem}.{extension}")));
            Some(record.read().ok()??.identity)
        });
        let of_other_boot = identity.as_ref().is_some_and(|id| id.boot_id != boot);
        let inode = identity.map(|identity| identity.netns_inode);
        let inode = inode.or_else(|| Lock::netns_inode(&lock));
        let closed = lock.with_extension(closed::EXTENSION);
        let inode = inode.or_else(|| Lock::netns_inode(&closed));
        if of_other_boot || kernel_tells && inode.is_some_and(|inode| is_gone(other, inode)) {
            for extension in EXTENSIONS {
                let _ = fs::remove_file(directory.join(format!("{stem}.{extension}")));
            }
        }
    }
}

/// Removes a status socket that no other file tells of, if nobody listens. Who guards there has
/// the lock as long as the socket is its own, and who starts meanwhile waits for it.
fn remove_deaf(socket: &Path) {
    let is_told = || {
        let mut others = TELLING.iter().map(|it| socket.with_extension(it));
        others.any(|other| other.exists())
    };
    if !is_told()
        && is_deaf(socket)
        && let Some(_held) = Lock::take_briefly(socket.with_extension("lock"))
        && is_deaf(socket)
    {
        let _ = fs::remove_file(socket);
    }
}

/// Whether it is a socket at which nobody listens. Who listens and takes nobody is not waited for.
fn is_deaf(path: &Path) -> bool {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|it| it.file_type().is_socket());
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let asked = || {
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        connect(&socket, &SocketAddrUnix::new(path)?)
    };
    is_socket && asked() == Err(Errno::CONNREFUSED)
}

/// Names of files without their extension, as `eth0.4711`, with the cookies of
/// their namespaces.
fn all(directory: &Path) -> BTreeSet<(String, u64)> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let stems = entries.filter_map(|entry| {
        let name = entry.file_name();
        let name = name.to_str()?;
        let extension = EXTENSIONS.iter().find(|extension| {
            let stem = name.strip_suffix(**extension);
            stem.is_some_and(|stem| stem.ends_with('.'))
        })?;
        let stem = name.strip_suffix(extension)?.strip_suffix('.')?;
        let cookie = Path::new(stem).extension().and_then(OsStr::to_str)?;
        Some((stem.to_owned(), cookie.parse().ok()?))
    });
    stems.collect()
}

/// Whether the kernel answers about every namespace. It calls one stale that this
/// process may not open: without `CAP_SYS_ADMIN` in the first user namespace that is
/// each but its own, and a living guard's record would go.
fn may_open_all() -> bool {
    is_first_user_namespace()
        && caps::has_cap(None, CapSet::Effective, Capability::CAP_SYS_ADMIN).unwrap_or(false)
}

/// True if the kernel knows no such namespace.
fn is_gone(cookie: u64, inode: u64) -> bool {
    let error = open_namespace(cookie, inode).err();
    error.and_then(|error| error.raw_os_error()) == Some(libc::ESTALE)
}

/// Opens a network namespace by its file handle: since the kernel has such,
/// the cookie is a namespace's id.
fn open_namespace(cookie: u64, inode: u64) -> io::Result<OwnedFd> {
    /// Stands for the root of all namespaces (`linux/fcntl.h`).
    const FD_NSFS_ROOT: i32 = -10003;
    /// `struct file_handle` with `struct nsfs_file_handle` in it
    /// (`linux/nsfs.h`).
    #[repr(C)]
    struct Handle {
        bytes: u32,
        kind: i32,
        id: [u32; 2],
        namespace_kind: u32,
        inode: u32,
    }
    let id = cookie.to_ne_bytes();
    let half =
        |from: usize| u32::from_ne_bytes([id[from], id[from + 1], id[from + 2], id[from + 3]]);
    let handle = Handle {
        bytes: 16,
        // FILEID_NSFS of linux/exportfs.h.
        kind: 0xf1,
        id: [half(0), half(4)],
        namespace_kind: libc::CLONE_NEWNET.cast_unsigned(),
        inode: u32::try_from(inode).map_err(io::Error::other)?,
    };
    // SAFETY: the handle is read only, and is as long as it says.
    let descriptor = unsafe {
        libc::syscall(
            libc::SYS_open_by_handle_at,
            FD_NSFS_ROOT,
            &raw const handle,
            libc::O_RDONLY | libc::O_CLOEXEC,
        )
    };
    match i32::try_from(descriptor) {
        // SAFETY: the kernel has just opened it for nobody else.
        Ok(descriptor @ 0..) => Ok(unsafe { OwnedFd::from_raw_fd(descriptor) }),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::knobs::device::Identity;
    use crate::knobs::record::Record;
    use crate::namespace;
    use crate::process::Process;
    use std::fs::File;
    use std::os::unix::net::UnixListener;
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

    /// Runs `f` in a network namespace of its own, which ends with it.
    fn in_namespace<T: Send>(f: impl FnOnce((u64, u64)) -> T + Send) -> T {
        namespace::in_new(|| f((netns_cookie().unwrap(), netns_inode().unwrap())))
            .expect("run as root")
    }

    fn names(directory: &Path) -> Vec<String> {
        let names = fs::read_dir(directory).unwrap();
        let mut names: Vec<_> = names
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    /// A namespace may live a moment longer than who was in it.
    fn is_swept(directory: &Path, kept: &[String]) -> bool {
        (0..250).any(|_| {
            sweep(directory);
            thread::sleep(Duration::from_millis(20));
            names(directory) == kept
        })
    }

    fn write_record(directory: &Path, boot_id: &str, (netns_cookie, netns_inode): (u64, u64)) {
        let identity = Identity {
            boot_id: boot_id.to_owned(),
            netns_cookie,
            netns_inode,
            ifindex: 2,
        };
        let file = RecordFile::new(directory, "eth0", &identity);
        let record = Record::new("eth0", identity, Process::current().unwrap());
        file.write(&record).unwrap();
    }

    /// A keeper, or a guard under the unit's sandbox, once removed the records of
    /// living guards of other namespaces.
    #[test]
    fn who_may_not_open_all_namespaces_removes_none() {
        let directory = tempfile::tempdir().unwrap();
        let (done, is_done) = channel::<()>();
        let (sender, here) = channel();
        thread::scope(|scope| {
            scope.spawn(move || {
                in_namespace(move |namespace| {
                    sender.send(namespace).unwrap();
                    let _ = is_done.recv();
                });
            });
            let living = here.recv().unwrap();
            write_record(directory.path(), &boot_id().unwrap(), living);
            let kept = names(directory.path());
            in_namespace(|_| {
                caps::drop(None, CapSet::Effective, Capability::CAP_SYS_ADMIN).unwrap();
                sweep(directory.path());
            });
            assert_eq!(names(directory.path()), kept);
            drop(done);
        });
    }

    #[test]
    fn files_of_dead_namespaces_go_and_all_others_stay() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        let write = |name: &str, text: &str| fs::write(directory.join(name), text).unwrap();
        let boot = boot_id().unwrap();
        let dead = in_namespace(|namespace| namespace);
        write_record(directory, &boot, dead);
        for extension in ["json.new", "sock", "closed"] {
            write(&format!("eth0.{}.{extension}", dead.0), "");
        }
        // Killed before it turned anything.
        let (cookie, inode) = in_namespace(|namespace| namespace);
        write(&format!("eth1.{cookie}.lock"), &format!("1 1 {inode}"));
        write(&format!("eth1.{cookie}.sock"), "");
        // Killed as it wrote down what it was to turn, and cleaned up for but for that.
        let (writing, inode_then) = in_namespace(|namespace| namespace);
        write_record(directory, &boot, (writing, inode_then));
        let of_writing = |extension: &str| directory.join(format!("eth0.{writing}.{extension}"));
        fs::rename(of_writing("json"), of_writing("json.new")).unwrap();
        // Its process was killed, and the keeper after it.
        write(&format!("eth3.{cookie}.closed"), &format!("1 1 7 {inode}"));
        let here = (netns_cookie().unwrap(), netns_inode().unwrap());
        write_record(directory, &boot, here);
        // Of a namespace that nothing is known of but its cookie; no files of ours.
        let unknown = format!("eth2.{cookie}.sock");
        let mut kept = vec![unknown, "README".to_owned(), "eth0.x.json".to_owned()];
        kept.iter().for_each(|name| write(name, ""));
        kept.push(format!("eth0.{}.json", here.0));
        // One that a thread is in, without a guard.
        let (entered, namespaces) = channel();
        let (done, wait) = channel::<()>();
        let other = thread::spawn(move || {
            in_namespace(move |namespace| {
                entered.send(namespace).unwrap();
                let _ = wait.recv();
            });
        });
        let living = namespaces.recv().unwrap();
        write_record(directory, &boot, living);
        let of_living = format!("eth0.{}.json", living.0);
        kept.push(of_living.clone());

        kept.sort();
        assert!(is_swept(directory, &kept), "{:?}", names(directory));
        drop(done);
        other.join().unwrap();
        kept.retain(|name| *name != of_living);
        assert!(is_swept(directory, &kept), "{:?}", names(directory));
    }

    /// A socket that outlived its lock stayed until the next boot, since nothing tells of its
    /// namespace.
    #[test]
    fn a_socket_that_nothing_tells_of_goes_if_nobody_listens() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        let listen = |name: &str| UnixListener::bind(directory.join(name)).unwrap();
        let here = netns_cookie().unwrap();
        for cookie in [here, 1] {
            drop(listen(&format!("eth0.{cookie}.sock")));
            let telling = format!("eth1.{cookie}");
            drop(listen(&format!("{telling}.sock")));
            fs::write(directory.join(format!("{telling}.closed")), "").unwrap();
        }
        // One that takes nobody any more.
        let socket = directory.join("eth2.1.sock");
        let _listening = listen("eth2.1.sock");
        let address = SocketAddrUnix::new(&socket).unwrap();
        let flags = SocketFlags::NONBLOCK;
        let asking: Vec<_> = (0..10_000)
            .map(|_| socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap())
            .take_while(|socket| connect(socket, &address).is_ok())
            .collect();
        assert!(asking.len() < 10_000);
        // One that is about to listen.
        drop(listen("eth3.1.sock"));
        let starting = Lock::take_briefly(directory.join("eth3.1.lock")).unwrap();
        sweep(directory);
        let mut kept = vec!["eth2.1.sock", "eth3.1.lock", "eth3.1.sock"];
        let of_closed = [here, 1]
            .map(|cookie| ["closed", "sock"].map(|extension| format!("eth1.{cookie}.{extension}")));
        kept.extend(of_closed.iter().flatten().map(String::as_str));
        kept.sort_unstable();
        assert_eq!(names(directory), kept);
        drop(starting);
        sweep(directory);
        kept.retain(|name| !name.starts_with("eth3"));
        assert_eq!(names(directory), kept);
    }

    #[test]
    fn another_boot_s_files_go_also_where_the_kernel_does_not_tell() {
        let directory = tempfile::tempdir().unwrap();
        write_record(directory.path(), "another boot", (1, 1));
        sweep(directory.path());
        assert_eq!(names(directory.path()), [""; 0]);
    }

    #[test]
    fn a_namespace_lives_by_a_descriptor_alone() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        let (descriptor, namespace) =
            in_namespace(|namespace| (File::open("/proc/thread-self/ns/net").unwrap(), namespace));
        write_record(directory, &boot_id().unwrap(), namespace);
        sweep(directory);
        assert_eq!(names(directory).len(), 1);
        drop(descriptor);
        assert!(is_swept(directory, &[]));
    }

    #[test]
    fn what_a_living_guard_has_stays() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        let dead = in_namespace(|namespace| namespace);
        let lock = directory.join(format!("eth0.{}.lock", dead.0));
        let owner = Process::current().unwrap();
        let held = Lock::take(lock, "eth0", owner, 2, dead.1).unwrap();
        write_record(directory, &boot_id().unwrap(), dead);
        sweep(directory);
        assert_eq!(names(directory).len(), 2);
        drop(held);
        assert!(is_swept(directory, &[]));
    }
}
