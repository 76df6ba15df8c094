//! The host's addresses in the program's map: what is written, and which of too many.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use libbpf_rs::{MapCore, MapFlags};

use super::test_host::with_guard;
use crate::Guard;
use crate::address::{Class, LocalAddress};
use crate::counters::to_mapped;

/// Nobody writes such a value.
const STRANGE: u8 = 0x7f;

fn local(of_interface: bool, place: u32) -> LocalAddress {
    LocalAddress {
        class: Class::Local,
        of_interface,
        place,
    }
}

/// Many of one interface.
fn services(range: std::ops::Range<u32>) -> BTreeMap<IpAddr, LocalAddress> {
    let service = |place| {
        let address = Ipv4Addr::from_bits(0x0a00_0000 + place);
        (address.into(), local(false, place))
    };
    range.map(service).collect()
}

fn stored(guard: &Guard<'_>, address: IpAddr) -> Option<u8> {
    let map = &guard.program.skeleton.maps.local_addresses;
    let value = map.lookup(&to_mapped(address), MapFlags::ANY).unwrap();
    value.map(|value| value[0])
}

#[test]
fn what_is_in_the_map_is_not_written_again() {
    with_guard(|guard| {
        let mut addresses = services(0..3);
        guard.program.set_local_addresses(&addresses).unwrap();
        let map = &guard.program.skeleton.maps.local_addresses;
        for address in addresses.keys() {
            let key = to_mapped(*address);
            map.update(&key, &[STRANGE], MapFlags::EXIST).unwrap();
        }
        guard.program.set_local_addresses(&addresses).unwrap();
        let values = |guard: &Guard<'_>| {
            [0, 1, 2, 3].map(|n| stored(guard, Ipv4Addr::new(10, 0, 0, n).into()))
        };
        let strange = Some(STRANGE);
        assert_eq!(values(guard), [strange, strange, strange, None]);

        // Others than before: one is gone, one is changed, one is new.
        addresses.remove(&Ipv4Addr::new(10, 0, 0, 0).into());
        let changed = local(true, 0);
        for number in [2, 3] {
            addresses.insert(Ipv4Addr::new(10, 0, 0, number).into(), changed);
        }
        guard.program.set_local_addresses(&addresses).unwrap();
        let changed = Some(changed.value());
        assert_eq!(values(guard), [None, strange, changed, changed]);
    });
}

#[test]
fn what_the_kernel_refused_is_written_the_next_time() {
    with_guard(|guard| {
        let addresses = services(0..3);
        let map = &guard.program.skeleton.maps.local_addresses;
        let foreign = |number: u32| (u128::from(number) << 32 | 1).to_be_bytes();
        let fits = |number: &u32| {
            let key = foreign(*number);
            map.update(&key, &[STRANGE], MapFlags::ANY).is_ok()
        };
        // All that the host's own addresses leave room for, which make room now.
        let room = (1..=map.max_entries()).take_while(fits).count();
        assert!(room + addresses.len() > map.max_entries() as usize);
        guard.program.set_local_addresses(&addresses).unwrap_err();
        let map = &guard.program.skeleton.maps.local_addresses;
        for number in 1..3 {
            map.delete(&foreign(number)).unwrap();
        }
        guard.program.set_local_addresses(&addresses).unwrap();
        let all = addresses.keys().map(|address| stored(guard, *address));
        let value = Some(local(false, 0).value());
        assert_eq!(all.collect::<Vec<_>>(), [value; 3]);
    });
}

/// Thousands of a service's addresses are on one interface (kube-ipvs0), and the host's own
/// are elsewhere, with higher numbers.
#[test]
fn thousands_of_one_interface_do_not_displace_others() {
    with_guard(|guard| {
        let mut addresses = services(0..5000);
        let own = [(192, false, 0), (193, true, 4999), (194, false, 1)];
        let own = own.map(|(first, of_interface, place)| {
            let address = IpAddr::from(Ipv4Addr::new(first, 168, 1, 1));
            (address, local(of_interface, place))
        });
        addresses.extend(own);
        guard.program.set_local_addresses(&addresses).unwrap();
        for (address, local) in own {
            assert_eq!(stored(guard, address), Some(local.value()), "{address}");
        }
        let last = Ipv4Addr::from_bits(0x0a00_0000 + 4999).into();
        assert_eq!(stored(guard, last), None);
    });
}
