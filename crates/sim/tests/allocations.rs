//! Memory does not grow with the number of packets: four times the time, as many
//! allocations, with every receive path. A program of its own, since all of it has an allocator that
//! counts.

#[path = "it/common/mod.rs"]
#[allow(dead_code, reason = "it uses a part")]
mod common;

use common::{PATHS, machine, scenario};

fn allocations(path: &str, duration_ms: u32) -> (u64, u64) {
    let costs = [
        ("driver_receive", 5_000),
        ("protocol_input", 20_000),
        ("receive_call", 30_000),
        ("poll_pass", 2_000),
    ];
    let profile = machine(&costs, 50);
    let text = format!(
        "duration_ms = {duration_ms}\npath = {{ {path} }}\n\
         [[source]]\nname = \"flood\"\nto = \"sink\"\n\
         traffic = {{ kind = \"constant\", rate_pps = 25000 }}\n\
         [[source]]\nname = \"ping\"\nto = \"echo\"\ntraffic = {{ kind = \"ping-pong\" }}\n\
         [[consumer]]\nname = \"sink\"\nrole = {{ kind = \"sink\" }}\n\
         [[consumer]]\nname = \"echo\"\nrole = {{ kind = \"echo\" }}\n"
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
    for path in PATHS {
        let (short, few) = allocations(path, 500);
        let (long, many) = allocations(path, 2000);
        assert!(many > 3 * few);
        // Histograms grow with the logarithm of the longest time that they have seen.
        assert!(long <= short + 20, "{path}: {short}, then {long}");
    }
}
