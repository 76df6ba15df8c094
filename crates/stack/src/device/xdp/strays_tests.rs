//! What of strays passes in a tick. Needs root.

use libbpf_rs::{MapCore, MapFlags};

use super::program::possession;
use super::trial::{HOST, to, verdict, with_program};

/// `XDP_PASS`.
const PASS: u32 = 2;
/// Places in `struct strays`: its tick, and what only grows.
const TICK: usize = 0;
const TOTALS: [usize; 2] = [3, 4];
const FIELDS: usize = 9;

/// A count that lived on would let nothing of its kind pass, for ever.
#[test]
fn a_new_tick_begins_with_nothing_passed_of_any_kind() {
    with_program(false, |program| {
        let maps = &program.maps;
        let owned = [possession::OWNED.0 as u8];
        let host = HOST.to_ipv6_mapped().octets();
        maps.addresses.update(&host, &owned, MapFlags::ANY).unwrap();
        // A tick of long ago, in which as much has passed as may.
        let mut counted = [1_u64 << 40; FIELDS];
        counted[TICK] = 1;
        let bytes: Vec<u8> = counted.iter().flat_map(|n| n.to_ne_bytes()).collect();
        maps.strays.update(&[0; 4], &bytes, MapFlags::ANY).unwrap();
        // For a port that nobody bound.
        assert_eq!(verdict(program, &to(4711)), PASS);
        let bytes = maps.strays.lookup(&[0; 4], MapFlags::ANY).unwrap().unwrap();
        let fields = bytes.chunks_exact(8);
        let fields = fields.map(|bytes| u64::from_ne_bytes(bytes.try_into().unwrap()));
        for (field, count) in fields.enumerate() {
            let is_kept = TOTALS.contains(&field);
            assert_eq!(is_kept, count == 1 << 40, "{field}: {count}");
            assert!(is_kept || field == TICK || count < 100, "{field}: {count}");
        }
    });
}
