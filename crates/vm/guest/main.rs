//! The init process of a machine: takes the guard through the steps of
//! [`plimsoll_vm`], and switches the machine off.

mod bond;
mod guard;
mod manager;
mod offload;
mod overload;
mod settings;
mod site;
mod stack;
mod steps;
mod threads;
mod traffic;

use std::error::Error;
use std::ffi::{CStr, OsStr};
use std::fs::{self, File};
use std::io::Write;
use std::time::Instant;

use plimsoll_vm::{Finding, Orders, Step};
use rustix::mount::{MountFlags, mount};
use rustix::system::{RebootCommand, init_module, reboot};

use guard::Guard;
use settings::Settings;
use site::Site;

/// What was found, or why something failed.
type Outcome<T = String> = Result<T, Box<dyn Error + Send + Sync>>;

fn main() {
    if std::env::args().nth(1).as_deref() == Some(manager::PASS_LINK) {
        let error = manager::pass_link();
        eprintln!("guest: {error}");
        std::process::exit(1);
    }
    if std::env::args().nth(1).as_deref() == Some(manager::AS_UNIT) {
        let error = manager::as_unit();
        eprintln!("guest: {error}");
        std::process::exit(1);
    }
    if let Err(error) = prepare().and_then(|orders| Report::new()?.run(&orders)) {
        eprintln!("guest: {error}");
    }
    // Whether it is on the wire is the other side's to see.
    let _ = reboot(RebootCommand::PowerOff);
}

/// Mounts what programs expect, loads the modules, and reads the orders.
fn prepare() -> Outcome<Orders> {
    for (kind, place) in [
        ("devtmpfs", "/dev"),
        ("proc", "/proc"),
        ("sysfs", "/sys"),
        ("tmpfs", "/run"),
        ("tmpfs", "/tmp"),
        ("bpf", "/sys/fs/bpf"),
        ("tracefs", "/sys/kernel/tracing"),
        ("cgroup2", "/sys/fs/cgroup"),
    ] {
        mount(kind, place, kind, MountFlags::empty(), None)
            .map_err(|error| format!("mount {place}: {error}"))?;
    }
    load_modules()?;
    let line = fs::read_to_string("/proc/cmdline")?;
    Ok(Orders::of(&line).ok_or("no orders on the command line")?)
}

/// Loads all there are, in rounds: one that needs another fails until that is there.
/// What the kernel has built in, or cannot use, is left.
fn load_modules() -> Outcome<()> {
    let mut left: Vec<_> = fs::read_dir("/modules")?.flatten().collect();
    loop {
        let before = left.len();
        left.retain(|module| {
            let image = fs::read(module.path()).unwrap_or_default();
            init_module(&image, options(&module.file_name())).is_err()
        });
        if left.len() == before {
            for module in left {
                eprintln!("guest: {:?} was not loaded", module.file_name());
            }
            return Ok(());
        }
    }
}

/// Bonds are made where they are wanted.
fn options(module: &OsStr) -> &'static CStr {
    if module == "bonding.ko" {
        c"max_bonds=0"
    } else {
        c""
    }
}

/// Where findings go.
struct Report {
    port: File,
}

impl Report {
    fn new() -> Outcome<Self> {
        Ok(Self {
            port: File::options().write(true).open("/dev/ttyS1")?,
        })
    }

    /// All steps; `End` is told whatever became of the others.
    fn run(&mut self, orders: &Orders) -> Outcome<()> {
        let mut site = None;
        self.step(Step::Boot, || {
            let made = Site::make(&orders.driver)?;
            Settings::give_own(&made)?;
            let found = format!("{} queues", made.queues());
            site = Some(made);
            Ok(found)
        })?;
        let Some(site) = site else { return Ok(()) };
        let before = Settings::of(&site)?;
        match &orders.refusal {
            Some(word) => self.refused(&site, word)?,
            None => self.guarded(&site, orders)?,
        }
        self.step(Step::End, || steps::end(&site, &before))
    }

    fn refused(&mut self, site: &Site, word: &str) -> Outcome<()> {
        self.step(Step::Check, || steps::check_refuses(site, word))?;
        self.step(Step::Start, || steps::start_refuses(site, word))
    }

    fn guarded(&mut self, site: &Site, orders: &Orders) -> Outcome<()> {
        let mut stock = None;
        self.step(Step::Check, || {
            stock = Some(steps::stock(site)?);
            steps::check(site)
        })?;
        let Some(stock) = stock else { return Ok(()) };
        let mut guard = None;
        self.step(Step::Start, || {
            let (started, found) = steps::start(site)?;
            guard = Some(started);
            Ok(found)
        })?;
        if let Some(guard) = &mut guard {
            self.step(Step::Drain, || steps::drain(site, guard))?;
            self.step(Step::SynFlood, || steps::syn_flood(site, guard, &stock))?;
        }
        guard.map(Guard::stop).transpose()?;
        self.step(Step::Masquerade, || steps::masquerade(site))?;
        self.step(Step::Vlan, || steps::vlan(site))?;
        self.step(Step::Kill, || overload::kill(site, orders))?;
        self.step(Step::HandOver, || manager::hand_over(site))?;
        self.step(Step::Link, || steps::link(site))?;
        self.step(Step::Threads, || threads::threads(site))?;
        if Step::Stack.is_for(&orders.driver) {
            self.step(Step::Stack, || stack::stack(site, &orders.driver))?;
        }
        if Step::Bond.is_for(&orders.driver) {
            self.step(Step::Bond, || bond::bond(site))?;
        }
        if Step::Offload.is_for(&orders.driver) {
            self.step(Step::Offload, || offload::offload(site))?;
        }
        Ok(())
    }

    /// Takes one step, and tells how it went.
    fn step(&mut self, step: Step, take: impl FnOnce() -> Outcome) -> Outcome<()> {
        let began = Instant::now();
        let outcome = take();
        let finding = Finding {
            step,
            ok: outcome.is_ok(),
            found: outcome.unwrap_or_else(|why| why.to_string()),
            seconds: began.elapsed().as_secs_f64(),
        };
        let line = serde_json::to_string(&finding)?;
        // The line before may be cut short by what a driver printed.
        self.port.write_all(format!("\n{line}\n").as_bytes())?;
        // A machine that is off sends nothing more.
        Ok(nix::sys::termios::tcdrain(&self.port)?)
    }
}
