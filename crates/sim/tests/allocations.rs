//! Memory does not grow with the number of packets: twice the time, as many
//! allocations.

mod common;

use common::scenario;
use plimsoll_sim::Profile;

fn allocations(path: &str, duration_ms: u32) -> (u64, u64) {
    let profile = Profile::named("sparcstation-20").unwrap();
    let text = format!(
        "duration_ms = {duration_ms}\npath = {{ {path} }}\n\
         [[source]]\nname = \"flood\"\nto = \"sink\"\n\
         traffic = {{ kind = \"constant\", rate_pps = 12000 }}\n\
         [[consumer]]\nname = \"sink\"\nrole = {{ kind = \"sink\" }}\n"
    );
    // Parsing is not simulating.
    let parsed = scenario(&text);
    let mut packets = 0;
    let counted = allocation_counter::measure(|| {
        let outcome = plimsoll_sim::run(&profile, &parsed, 1).unwrap();
        packets = outcome.simulated_packets;
    });
    (counted.count_total, packets)
}

#[test]
fn a_longer_run_allocates_no_more() {
    for path in [
        r#"kind = "batched-interrupts""#,
        r#"kind = "soft-lrp""#,
        r#"kind = "polling-thread", quota = 5"#,
        r#"kind = "adaptive-holdoff""#,
    ] {
        let (short, few) = allocations(path, 500);
        let (long, many) = allocations(path, 2000);
        assert!(many > 3 * few);
        assert_eq!(short, long, "{path}");
    }
}
