//! The package's life under dpkg, on a machine without systemd: what it installs,
//! what an upgrade keeps, and that it leaves nothing.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use plimsoll_testbed::{Config, Testbed};

use super::{INSTALL, LATER_PACKAGE, PACKAGE, packages, run};
use crate::common::PROGRAM;
use crate::common::machine::{Change, Machine};

const CONFIG: &str = "/etc/plimsoll/guard.toml";
/// What dpkg writes for itself.
const BOOKS: [&str; 2] = ["/var/lib/dpkg/", "/var/log/"];

/// Changes to the machine that are not dpkg's own.
fn changes(machine: &Machine<'_>) -> Vec<(PathBuf, Change)> {
    let is_book = |path: &Path| BOOKS.iter().any(|book| path.starts_with(book));
    let changes = machine.changes().into_iter();
    changes.filter(|(path, _)| !is_book(path)).collect()
}

/// The commands that have a manual page, as the program lists them.
fn pages() -> BTreeSet<String> {
    let generated = tempfile::tempdir().unwrap();
    run(Command::new(PROGRAM).arg("generate").arg(generated.path()));
    let pages = fs::read_dir(generated.path().join("man")).unwrap();
    let names = pages.map(|page| page.unwrap().file_name().into_string().unwrap());
    names
        .map(|name| format!("/usr/share/man/man1/{name}.gz"))
        .collect()
}

/// The documents, which name each other.
fn documents() -> impl Iterator<Item = String> {
    let place = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs");
    let documents = fs::read_dir(place).unwrap();
    documents.map(|document| {
        let name = document.unwrap().file_name();
        format!("/usr/share/doc/plimsoll/{}", name.to_str().unwrap())
    })
}

/// Every file of the package.
fn expected_files() -> BTreeSet<String> {
    let mut files = pages();
    assert!(files.len() > 10, "{files:?}");
    files.extend(
        [
            "/usr/bin/plimsoll",
            CONFIG,
            "/usr/lib/systemd/system/plimsoll-guard@.service",
            "/usr/share/bash-completion/completions/plimsoll",
            "/usr/share/zsh/vendor-completions/_plimsoll",
            "/usr/share/fish/vendor_completions.d/plimsoll.fish",
            "/usr/share/plimsoll/guard.json",
            "/usr/share/doc/plimsoll/CHANGELOG.md",
            "/usr/share/doc/plimsoll/LICENSE-MIT",
            "/usr/share/doc/plimsoll/copyright",
        ]
        .map(str::to_owned),
    );
    files.extend(documents());
    files
}

/// The package's files and no others, with the permissions that Debian's policy
/// asks for (10.9): root's, writable by nobody else, the program executable.
fn assert_installed(machine: &Machine<'_>) {
    let mut files = BTreeSet::new();
    for (path, change) in changes(machine) {
        let Change::Added {
            directory,
            mode,
            owner,
        } = change
        else {
            panic!("{} is not the package's: {change:?}", path.display());
        };
        assert_eq!(owner, (0, 0), "{}", path.display());
        let executable = directory || path.starts_with("/usr/bin");
        let wanted = if executable { 0o755 } else { 0o644 };
        assert_eq!(mode, wanted, "{}", path.display());
        if !directory {
            files.insert(path.to_str().unwrap().to_owned());
        }
    }
    assert_eq!(files, expected_files());
}

/// What policy asks of scripts (6.1, 10.4): executable, ended by their first error.
fn assert_scripts_are_careful(machine: &Machine<'_>) {
    for script in ["postinst", "prerm", "postrm"] {
        let path = format!("/var/lib/dpkg/info/plimsoll.{script}");
        let text = machine.run(&format!("test -x {path} && sh -n {path} && cat {path}"));
        assert!(text.starts_with("#!/bin/sh\n"), "{text}");
        assert!(text.contains("\nset -e\n"), "{text}");
    }
}

#[test]
fn it_installs_its_files_keeps_edited_settings_and_leaves_nothing() {
    let testbed = Testbed::create(Config::default()).unwrap();
    let machine = Machine::start(testbed.test(), packages());
    assert_eq!(machine.changes().into_iter().collect::<Vec<_>>(), []);

    machine.run(&format!("{INSTALL} {PACKAGE}"));
    assert_installed(&machine);
    assert_scripts_are_careful(&machine);
    machine.run("dpkg --verify plimsoll && plimsoll guard check --help");
    let conffiles = machine.run("dpkg-query -W -f '${Conffiles}' plimsoll");
    assert!(conffiles.trim().starts_with(CONFIG), "{conffiles}");
    assert_eq!(conffiles.trim().lines().count(), 1, "{conffiles}");

    // The same settings in both versions: an edited file is nobody's business.
    machine.run(&format!("echo 'observe = true' >>{CONFIG}"));
    let edited = machine.run(&format!("cat {CONFIG}"));
    machine.run(&format!("{INSTALL} {PACKAGE}"));
    assert_eq!(machine.run(&format!("cat {CONFIG}")), edited);
    // The later version's differ: as apt does when nobody can be asked.
    machine.run(&format!(
        "{INSTALL} --force-confdef --force-confold {LATER_PACKAGE}"
    ));
    assert_eq!(machine.run(&format!("cat {CONFIG}")), edited);
    let shipped = machine.run(&format!("cat {CONFIG}.dpkg-dist"));
    assert!(shipped.ends_with("# A later version's\n"), "{shipped}");

    machine.run("dpkg --no-triggers -r plimsoll");
    let left = [CONFIG, &format!("{CONFIG}.dpkg-dist")].map(PathBuf::from);
    let changed: Vec<_> = changes(&machine)
        .into_iter()
        .map(|(path, _)| path)
        .collect();
    assert_eq!(
        changed,
        [&[PathBuf::from("/etc/plimsoll")], &left[..]].concat()
    );
    machine.run("dpkg --no-triggers -P plimsoll");
    assert_eq!(changes(&machine), []);
    machine.run("test ! -e /run/plimsoll");
    assert!(!machine.output("dpkg -s plimsoll").status.success());
}
