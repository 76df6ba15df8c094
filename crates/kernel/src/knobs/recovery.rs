//! Back after a guard that was killed: what its record says, what shows a guard's mark
//! without a record, and the files it left.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use nix::net::if_::if_nameindex;

use super::closed;
use super::device::{Attribute, Device, Identity, boot_id, netns_cookie, netns_inode};
use super::lock::Lock;
use super::napi::Netdev;
use super::record::{Record, RecordFile};
use super::restoring::is_marked;
use super::{DEFER_MARK, DIRECTORY, Knobs, OpenError, file_name, sweep};
use crate::error::{CallError, os};
use crate::link;
use crate::process::Process;

/// Restores what killed guards left turned on interfaces of the current
/// network namespace: on `interface`, or on all that nobody guards; opens those that a killed
/// screen left closed; removes their locks and status sockets, too. Returns the interfaces that
/// were restored, also beside an error.
///
/// # Errors
///
/// As [`Knobs::open`], the first one, when all else is done: in particular, the guard of
/// `interface` lives ([`OpenError::InUse`]).
pub fn restore(interface: Option<&str>) -> (Vec<String>, Result<(), OpenError>) {
    restore_in(Path::new(DIRECTORY), interface)
}

/// As [`restore`], with records in another directory.
///
/// # Errors
///
/// As [`restore`].
pub fn restore_in(
    directory: &Path,
    interface: Option<&str>,
) -> (Vec<String>, Result<(), OpenError>) {
    let mut restored = Vec::new();
    // By another name of it (altname), nothing would be found.
    let name = interface.and_then(|interface| link::name(link::index(interface).ok()?));
    let done = restore_all(directory, name.as_deref().or(interface), &mut restored);
    (restored, done)
}

fn restore_all(
    directory: &Path,
    interface: Option<&str>,
    restored: &mut Vec<String>,
) -> Result<(), OpenError> {
    let cookie = netns_cookie().map_err(os("ask for the namespace's cookie"))?;
    let boot_id = boot_id()?;
    let is_wanted = |name: &str| interface.is_none_or(|wanted| wanted == name);
    let is_guarded =
        |name: &str| Lock::may_be_owned(&directory.join(format!("{name}.{cookie}.lock")));
    let mut first = Ok(());
    let mut note = |done: Result<Option<String>, OpenError>| match done {
        Ok(Some(name)) if !restored.contains(&name) => restored.push(name),
        Ok(_) => {}
        Err(error) if first.is_ok() => first = Err(error),
        Err(_) => {}
    };
    follow_names(directory);
    for path in files(directory, cookie, "json")? {
        let name = name_of(&path, cookie);
        if is_wanted(name) && (interface.is_some() || !is_guarded(name)) {
            let file = RecordFile::at(path.clone());
            note(restore_recorded(directory, name, &file, &boot_id));
        }
    }
    let guarded = guarded(directory, cookie, &boot_id)?;
    let marked = marked(interface).unwrap_or_else(|error| {
        note(Err(error.into()));
        Vec::new()
    });
    for name in marked {
        if !is_guarded(&name) && !link::index(&name).is_ok_and(|index| guarded.contains(&index)) {
            let restored = Knobs::open_in(directory, &name).and_then(|mut it| Ok(it.restore()?));
            note(restored.map(|()| Some(name)));
        }
    }
    for path in files(directory, cookie, closed::EXTENSION)? {
        let opened = closed::left(&path, name_of(&path, cookie)).and_then(|left| match left {
            Some((name, held)) if is_wanted(&name) => {
                Ok(closed::open(&path, held)?.then_some(name))
            }
            _ => Ok(None),
        });
        note(opened);
    }
    remove_remains(directory, interface, cookie)?;
    sweep::sweep(directory);
    first
}

/// Interfaces whose guards live, by number: they may have been renamed since.
fn guarded(directory: &Path, cookie: u64, boot_id: &str) -> Result<Vec<u32>, CallError> {
    let mut paths = files(directory, cookie, "json")?;
    paths.retain(|path| Lock::may_be_owned(&path.with_extension("lock")));
    let records = paths.into_iter().map(|path| RecordFile::at(path).read());
    let identities = records.filter_map(|record| Some(record.ok()??.identity));
    let here = identities.filter(|identity| identity.boot_id == boot_id);
    Ok(here.map(|identity| identity.ifindex).collect())
}

/// The name of the interface if this is its record, and it was put back.
fn restore_recorded(
    directory: &Path,
    name: &str,
    file: &RecordFile,
    boot_id: &str,
) -> Result<Option<String>, OpenError> {
    let Some(record) = file.read()? else {
        return Ok(None);
    };
    if Identity::of(name).is_ok_and(|identity| identity == record.identity) {
        Knobs::open_in(directory, name)?.restore()?;
        return Ok(Some(name.to_owned()));
    }
    if name_now(&record, boot_id).is_none()
        && (record.identity.boot_id != boot_id || !record.owner.is_alive())
    {
        // Its interface is gone, and the settings with it; or it was moved, and there a
        // holdoff is known by its mark.
        file.remove()?;
    }
    Ok(None)
}

/// Gives records of interfaces that were renamed meanwhile the names that those have now. What
/// does not succeed stays, as do the records of guards that live.
pub(super) fn follow_names(directory: &Path) {
    let (Ok(cookie), Ok(boot_id), Ok(inode)) = (netns_cookie(), boot_id(), netns_inode()) else {
        return;
    };
    let place_of = |path: &Path| {
        let record = RecordFile::at(path.to_owned()).read().ok()??;
        let name = name_now(&record, &boot_id)?;
        Some((
            directory.join(file_name(&name, &record.identity, "json")),
            name,
        ))
    };
    let move_one = |path: &PathBuf| {
        let Some((place, name)) = place_of(path).filter(|(place, _)| place != path) else {
            return false;
        };
        let is_in_place = place_of(&place).is_some_and(|(of_other, _)| of_other == place);
        !is_in_place && exchange(path, &place, &name, inode).is_ok()
    };
    // Each time there is one more in its place.
    while (files(directory, cookie, "json").unwrap_or_default().iter()).any(move_one) {}
}

/// What the interface of a record is called now; `None` if it is not here any more.
fn name_now(record: &Record, boot_id: &str) -> Option<String> {
    let name = link::name(record.identity.ifindex);
    let identity = &record.identity;
    let is_here = identity.boot_id == boot_id && netns_cookie().ok()? == identity.netns_cookie;
    name.filter(|_| is_here)
}

/// Moves a record to its place, and one that is there to where it was, if no guard lives.
fn exchange(path: &Path, place: &Path, name: &str, inode: u64) -> Result<(), OpenError> {
    let own = Process::current()?;
    let locks = [path, place].map(|path| path.with_extension("lock"));
    if locks.iter().any(|lock| Lock::is_held(lock).unwrap_or(true)) {
        return Err(os("move a record")(io::Error::from(io::ErrorKind::ResourceBusy)).into());
    }
    // Their files go when they are dropped.
    let locks = locks.map(|lock| Lock::take(lock, name, own, 0, inode));
    locks
        .into_iter()
        .collect::<Result<Vec<_>, _>>()
        .and_then(|_locks| {
            let moved = match place.exists() {
                true => renameat2(
                    AT_FDCWD,
                    path,
                    AT_FDCWD,
                    place,
                    RenameFlags::RENAME_EXCHANGE,
                )
                .map_err(io::Error::from),
                false => fs::rename(path, place),
            };
            Ok(moved.map_err(os("move a record"))?)
        })
}

/// The interface that a file is for. Its name may have dots and the cookie in it.
pub(super) fn name_of(path: &Path, cookie: u64) -> &str {
    let stem = path.file_stem().and_then(OsStr::to_str).unwrap_or_default();
    let name = stem.strip_suffix(&format!(".{cookie}"));
    name.unwrap_or_default()
}

/// Those interfaces that show a guard's mark ([`DEFER_MARK`]), of this one or all.
fn marked(interface: Option<&str>) -> Result<Vec<String>, CallError> {
    let names = match interface {
        Some(name) => vec![name.to_owned()],
        None => if_nameindex()
            .map_err(os("list interfaces"))?
            .iter()
            .map(|interface| interface.name().to_string_lossy().into_owned())
            .collect(),
    };
    let shows = |name: &String| marks(name).is_ok_and(|marks| marks > 0);
    Ok(names.into_iter().filter(shows).collect())
}

/// How many settings of `interface` show a guard's mark.
fn marks(interface: &str) -> Result<usize, OpenError> {
    let ifindex = link::index(interface)?;
    let instances = Netdev::new().instances(ifindex);
    let instances = instances.map_err(os("ask for the interface's NAPI instances"))?;
    let device = Device::open(interface, ifindex)?;
    let defer = device.attribute(Attribute::NapiDeferHardIrqs);
    let of_device = defer.is_ok_and(|defer| defer == Some(u64::from(DEFER_MARK)));
    let of_instances = instances.iter().filter(|napi| is_marked(napi)).count();
    Ok(of_instances + usize::from(of_device))
}

/// Removes the locks and status sockets of dead guards, where nobody answers.
fn remove_remains(directory: &Path, interface: Option<&str>, cookie: u64) -> Result<(), CallError> {
    let inode = netns_inode()?;
    let mut remains = files(directory, cookie, "sock")?;
    remains.extend(files(directory, cookie, "lock")?);
    for path in remains {
        let name = name_of(&path, cookie);
        let lock = path.with_extension("lock");
        if interface.is_some_and(|wanted| wanted != name) || Lock::may_be_owned(&lock) {
            continue;
        }
        // Who starts meanwhile waits for the lock. The socket goes when it is taken, the lock
        // when it is dropped.
        drop(Lock::take(lock, name, Process::current()?, 0, inode));
    }
    Ok(())
}

/// The settings that a killed guard left turned on `interface`, as many as
/// there are.
///
/// # Errors
///
/// No such interface, or what is left on disk cannot be read.
pub fn left_turned(interface: &str) -> Result<usize, OpenError> {
    let identity = Identity::of(interface)?;
    let file = RecordFile::new(Path::new(DIRECTORY), interface, &identity);
    let left = file.read()?.filter(|record| record.identity == identity);
    match left {
        Some(record) if !record.is_empty() => Ok(record.to_restore().len()),
        _ => marks(interface),
    }
}

/// Files of one network namespace, by what they are (`json`: records).
pub(super) fn files(
    directory: &Path,
    netns_cookie: u64,
    extension: &str,
) -> Result<Vec<PathBuf>, CallError> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(os("list the records")(source)),
    };
    let ending = format!(".{netns_cookie}.{extension}");
    let is_wanted = |path: &PathBuf| {
        let name = path.file_name().and_then(OsStr::to_str);
        name.is_some_and(|name| name.ends_with(&ending))
    };
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.retain(is_wanted);
    paths.sort();
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::super::record::Setting;
    use super::*;
    use crate::iproute::ip;
    use crate::namespace;

    /// There was nothing to restore by it. Needs root.
    #[test]
    fn an_interface_is_restored_by_any_of_its_names() {
        let inside = || {
            ip("link add v0 type veth peer name v1");
            ip("link property add dev v0 altname enp3s0");
            let directory = tempfile::tempdir().unwrap();
            let device = Device::open("v0", link::index("v0").unwrap()).unwrap();
            let attribute = Attribute::NapiDeferHardIrqs;
            for name in ["v0", "enp3s0"] {
                device.set_attribute(attribute, DEFER_MARK.into()).unwrap();
                let (restored, done) = restore_in(directory.path(), Some(name));
                done.unwrap();
                assert_eq!(restored, ["v0"], "{name}");
                assert_eq!(device.attribute(attribute).unwrap(), Some(0));
            }
        };
        namespace::in_new(inside).expect("this test makes a namespace: run `sudo make test`");
    }

    /// Locks and closed interfaces of `wan.1` were taken for those of `wan` where the
    /// namespace's cookie is 1.
    #[test]
    fn a_file_is_told_by_its_end() {
        for (file, name) in [
            ("eth0.1.lock", "eth0"),
            ("wan.1.1.lock", "wan.1"),
            ("wan.1.x.1.closed", "wan.1.x"),
            ("wan.1.11.sock", ""),
        ] {
            let path = Path::new(DIRECTORY).join(file);
            assert_eq!(name_of(&path, 1), name, "{file}");
        }
    }

    /// Its settings went with it. The one of that name now was never turned.
    #[test]
    fn of_a_former_interface_nothing_is_restored() {
        let inside = || {
            let directory = tempfile::tempdir().unwrap();
            let identity = Identity {
                ifindex: 4711,
                ..Identity::of("lo").unwrap()
            };
            let owner = Process::parse("1 1").unwrap();
            let mut record = Record::new("lo", identity.clone(), owner);
            record.add(Setting::Device {
                attribute: Attribute::Threaded,
                value: 0,
            });
            let file = RecordFile::new(directory.path(), "lo", &identity);
            file.write(&record).unwrap();
            let (restored, done) = restore_in(directory.path(), None);
            done.unwrap();
            assert_eq!(restored, [""; 0]);
            assert_eq!(file.read().unwrap(), None);
        };
        namespace::in_new(inside).expect("this test makes a namespace: run `sudo make test`");
    }

    /// It may have moved its interface to another namespace, and has to put it back.
    #[test]
    fn the_record_of_a_living_owner_stays_without_its_interface() {
        let inside = || {
            let directory = tempfile::tempdir().unwrap();
            let identity = Identity {
                ifindex: 4711,
                ..Identity::of("lo").unwrap()
            };
            for (owner, stays) in [
                (Process::current().unwrap(), true),
                (Process::parse("1 1").unwrap(), false),
            ] {
                let mut record = Record::new("gone0", identity.clone(), owner);
                record.add(Setting::Device {
                    attribute: Attribute::Threaded,
                    value: 0,
                });
                let file = RecordFile::new(directory.path(), "gone0", &identity);
                file.write(&record).unwrap();
                restore_in(directory.path(), Some("gone0")).1.unwrap();
                assert_eq!(file.read().unwrap().is_some(), stays);
            }
        };
        namespace::in_new(inside).expect("this test makes a namespace: run `sudo make test`");
    }

    /// Nobody starts there any more, whose start would remove them.
    #[test]
    fn what_guards_left_of_namespaces_that_are_gone_is_removed() {
        let inside = || {
            let directory = tempfile::tempdir().unwrap();
            let dead = namespace::in_new(|| (netns_cookie().unwrap(), netns_inode().unwrap()));
            let (cookie, inode) = dead.unwrap();
            let lock = directory.path().join(format!("eth1.{cookie}.lock"));
            fs::write(&lock, format!("1 1 {inode}")).unwrap();
            // A namespace ends a moment after its last thread.
            let end = Instant::now() + Duration::from_secs(10);
            while lock.exists() && Instant::now() < end {
                restore_in(directory.path(), None).1.unwrap();
            }
            assert!(!lock.exists());
        };
        namespace::in_new(inside).expect("this test makes a namespace: run `sudo make test`");
    }
}
