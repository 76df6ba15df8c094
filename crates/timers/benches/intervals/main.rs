//! How exact and how dear soft timers are on this machine: thousands of flows on one
//! core, and an event in each kind of program, idle and busy. (One paced stream beside
//! other senders: `plimsoll bench timers --only spacing`, which needs root.)
//!
//! `cargo bench --bench intervals -- OUTPUT_JSON` prints the tables and writes one
//! document (`schema`, `machine`, results, `goals`). Under `cargo test` it runs
//! small, so that it cannot rot. Packets stay on loopback.

mod busy;
mod flows;
mod integrations;

use std::path::PathBuf;
use std::{env, error, fs};

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use plimsoll_report::{Machine, SCHEMA, goals_table};
use serde_json::json;

type Outcome<T> = Result<T, Box<dyn error::Error>>;

fn main() -> Outcome<()> {
    let full = env::args().any(|arg| arg == "--bench");
    let (rounds, millis, events) = if full { (5, 2000, 2000) } else { (1, 20, 20) };
    let (flows, goals) = flows::measure(millis)?;
    print!("{}", flows::table(&flows));
    let integrations = integrations::measure(events)?;
    print!("{}", integrations::table(&integrations));
    let busy = busy::measure(rounds, events)?;
    print!("{}", busy::table(&busy));
    print!("{}", goals_table(&goals));
    let output = env::args().skip(1).find(|arg| !arg.starts_with("--"));
    if let Some(output) = output.filter(|_| full).map(PathBuf::from) {
        let document = json!({
            "schema": SCHEMA,
            "machine": Machine::read(Some("loopback")),
            "flows": flows,
            "integrations": integrations,
            "busy": busy,
            "goals": goals,
        });
        fs::write(&output, serde_json::to_string_pretty(&document)? + "\n")?;
        println!("\nwritten to {}", output.display());
    }
    Ok(())
}

/// Binds the calling thread to a CPU; the last one if there are fewer.
fn bind_to(cpu: usize) -> Outcome<()> {
    let cpus = std::thread::available_parallelism()?.get();
    let mut set = CpuSet::new();
    set.set(cpu.min(cpus - 1))?;
    Ok(sched_setaffinity(Pid::from_raw(0), &set)?)
}
