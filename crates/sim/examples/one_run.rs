//! One run of a modelled host: a sink that is offered 8,000 packets/s.

use plimsoll_sim::{Profile, Scenario, run};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let text = r#"
        duration_ms = 1000
        path = { kind = "batched-interrupts" }
        [[source]]
        name = "flood"
        to = "sink"
        traffic = { kind = "constant", rate_pps = 8000, jitter_pct = 20 }
        [[consumer]]
        name = "sink"
        role = { kind = "sink" }
    "#;
    let seed = 1;
    // Or Profile::from_toml(name, text).
    let profile = Profile::named("sparcstation-20")?;
    // Or by serde, from JSON as well.
    let scenario = Scenario::from_toml(text)?;
    // Many may run in parallel.
    let outcome = run(&profile, &scenario, seed)?;
    // Outcome::measures() lists all names.
    let delivered: Option<f64> = outcome.measure("delivered_pps");
    println!("delivered {delivered:?} packets/s");
    Ok(())
}
