//! How exact and how dear soft timers are on this machine: paced UDP beside a
//! sleeping and a spinning sender, thousands of flows on one core, and an event
//! in each kind of program.
//!
//! `cargo bench --bench intervals -- OUTPUT_JSON` prints the tables and writes one
//! document (`schema`, `machine`, results, `goals`). Under `cargo test` it runs
//! small, so that it cannot rot. Packets stay on loopback.

mod flows;
mod integrations;
mod udp;

use std::path::PathBuf;
use std::{env, error, fs};

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use plimsoll_report::{Goal, Machine, SCHEMA, goals_table};
use serde_json::json;

type Outcome<T> = Result<T, Box<dyn error::Error>>;

fn main() -> Outcome<()> {
    let full = env::args().any(|arg| arg == "--bench");
    let (rounds, packets, millis, events) = if full {
        (5, 4000, 2000, 2000)
    } else {
        (1, 50, 20, 20)
    };
    let (udp, mut goals) = udp::measure(rounds, packets)?;
    print!("{}", udp::table(&udp));
    let (flows, flow_goals) = flows::measure(millis)?;
    goals.extend(flow_goals);
    print!("{}", flows::table(&flows));
    let integrations = integrations::measure(events)?;
    print!("{}", integrations::table(&integrations));
    print!("{}", goals_table(&goals));
    let output = env::args().skip(1).find(|arg| !arg.starts_with("--"));
    if let Some(output) = output.filter(|_| full).map(PathBuf::from) {
        let document = json!({
            "schema": SCHEMA,
            "machine": Machine::read(Some("loopback")),
            "udp": udp,
            "flows": flows,
            "integrations": integrations,
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

/// A goal that this machine lacks the means for.
fn unmeasured(id: &str, what: &str, why: &str) -> Goal {
    Goal::new(
        id,
        what,
        plimsoll_report::Side::AtMost,
        0.5,
        "x",
        Vec::new(),
    )
    .because(why)
}
