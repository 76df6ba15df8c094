use plimsoll_sim::{Profile, Scenario, run};
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let profile = Profile::named(&a[1])
        .or_else(|e| {
            std::fs::read_to_string(&a[1])
                .map_err(|_| e)
                .and_then(|t| Profile::from_toml(&a[1], &t))
        })
        .unwrap();
    let text = std::fs::read_to_string(&a[2]).unwrap();
    let names: Vec<&str> = a[4].split(',').collect();
    println!("{:>10} {}", "rate", names.join("  "));
    for rate in a[3].split(',') {
        let s: Scenario = toml::from_str(&text.replace("RATE", rate)).unwrap();
        let t = std::time::Instant::now();
        let o = run(&profile, &s, 1).unwrap();
        let el = t.elapsed().as_secs_f64();
        print!("{rate:>10} ");
        for n in &names {
            if *n == "all" {
                println!();
                for (k, v) in o.measures() {
                    if v != 0.0 {
                        println!("   {k} = {v:.3}");
                    }
                }
            } else {
                print!(
                    "{:>w$.2}  ",
                    o.measure(n).unwrap_or(f64::NAN),
                    w = n.len().max(8)
                );
            }
        }
        println!("  [{:.2} Mpkt/s]", o.simulated_packets as f64 / el / 1e6);
    }
}
