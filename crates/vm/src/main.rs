//! `plimsoll-vm`: boots a machine for each kernel and driver, one after the other,
//! prints the table, and exits with 1 if any step failed.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use plimsoll_kernel::error::LACKS;
use plimsoll_vm::document::{Cell, Document};
use plimsoll_vm::files::{Kernel, Qemu, initial_file_system};
use plimsoll_vm::machine::{DRIVERS, run};
use plimsoll_vm::{Finding, Orders};

/// The first kernel that the guard runs on.
const FIRST_KERNEL: (u32, u32) = (6, 2);

/// Run the guard on other kernels and drivers, in QEMU
#[derive(Parser, Debug)]
struct Args {
    /// Series of kernels, as `scripts/vm-files` fetched them
    #[arg(long, num_args = 1.., required = true)]
    kernels: Vec<String>,
    /// Drivers of the guarded interface
    #[arg(long, num_args = 1.., default_values = DRIVERS, value_parser = DRIVERS)]
    drivers: Vec<String>,
    /// How often the guard is killed in each machine
    #[arg(long, default_value_t = 5)]
    kills: u32,
    /// Where the random moments of the kills come from
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Seconds that a machine may take
    #[arg(long, default_value_t = 360)]
    limit: u64,
    /// What `scripts/vm-files` fetched
    #[arg(long, default_value = "target/vm")]
    files: PathBuf,
    /// The `plimsoll` command to test; without this, the one beside this program
    #[arg(long)]
    plimsoll: Option<PathBuf>,
    /// Write one JSON document to FILE as well
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn main() -> ExitCode {
    match matrix(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("plimsoll-vm: {error}");
            ExitCode::from(LACKS)
        }
    }
}

fn matrix(args: &Args) -> Result<bool, Box<dyn Error>> {
    let beside = std::env::current_exe()?;
    let beside = beside.parent().unwrap_or(Path::new("."));
    let guest = beside.join("plimsoll-vm-guest");
    let plimsoll = args.plimsoll.clone();
    let plimsoll = plimsoll.unwrap_or_else(|| beside.join("plimsoll"));
    let qemu = Qemu::find(&args.files);
    let (mut cells, mut absent) = (Vec::new(), Vec::new());
    for series in &args.kernels {
        let Some(kernel) = Kernel::find(&args.files, series) else {
            absent.push(series.clone());
            continue;
        };
        let file_system = args.files.join("initrd");
        fs::write(
            &file_system,
            initial_file_system(&kernel, &plimsoll, &guest)?,
        )?;
        for driver in &args.drivers {
            cells.push(cell(args, &qemu, &kernel, driver, &file_system)?);
        }
    }
    let document = Document::new(cells, absent);
    print!("{}", document.table());
    let counts = document.counts().into_iter();
    let counts: Vec<_> = counts
        .map(|(word, count)| format!("{count} {word}"))
        .collect();
    println!("\nsteps: {}", counts.join(", "));
    if let Some(path) = &args.json {
        fs::write(path, serde_json::to_vec_pretty(&document)?)?;
    }
    Ok(document.is_good())
}

fn cell(
    args: &Args,
    qemu: &Qemu,
    kernel: &Kernel,
    driver: &str,
    file_system: &Path,
) -> Result<Cell, Box<dyn Error>> {
    let refusal = if kernel.version() < FIRST_KERNEL {
        Some("old")
    } else {
        (driver == "e1000e").then_some("native")
    };
    let orders = Orders {
        driver: driver.to_owned(),
        refusal: refusal.map(str::to_owned),
        kills: args.kills,
        seed: args.seed,
    };
    let mut findings = Vec::new();
    let limit = Duration::from_secs(args.limit);
    let ending = run(qemu, kernel, file_system, &orders, limit, |finding| {
        tell(kernel, driver, &finding);
        findings.push(finding);
    })?;
    Ok(Cell::new(
        &kernel.series,
        &kernel.release,
        &orders,
        findings,
        ending,
    ))
}

fn tell(kernel: &Kernel, driver: &str, finding: &Finding) {
    let word = if finding.ok { "ok" } else { "FAILED" };
    eprintln!(
        "{} {driver} {} ({:.1} s) {word}: {}",
        kernel.series,
        finding.step.name(),
        finding.seconds,
        finding.found
    );
}
