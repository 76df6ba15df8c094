//! That what is protected changes as a whole. Needs root.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use ipnet::{IpNet, Ipv4Net};
use libbpf_rs::{MapCore, MapFlags};

use super::Program;
use super::test_host::with_guard;
use super::types::{limit, port_property};
use crate::protection::{ProtectedPort, Protection};

/// So many networks.
fn networks(count: u32) -> Vec<IpNet> {
    let network = |number: u32| {
        let address = Ipv4Addr::from_bits(0x0a00_0000 + (number << 8));
        Ipv4Net::new(address, 24).unwrap().into()
    };
    (0..count).map(network).collect()
}

/// Prefixes in the program's two maps, and what is protected at these ports.
fn stored(program: &Program<'_>, ports: &[u16]) -> ([BTreeSet<Vec<u8>>; 2], Vec<u8>) {
    let maps = &program.skeleton.maps;
    let protocols = |port: &u16| {
        let key = u32::from(*port).to_ne_bytes();
        let value = maps.ports.lookup(&key, MapFlags::ANY).unwrap();
        value.unwrap()[0]
    };
    let prefixes = [
        maps.protected_prefixes.keys().collect(),
        maps.known_prefixes.keys().collect(),
    ];
    (prefixes, ports.iter().map(protocols).collect())
}

#[test]
fn what_does_not_fit_changes_nothing() {
    const PORTS: [u16; 3] = [22, 53, 9];
    let too_many = networks(limit::PROTECTED_PREFIXES_MAX.0 + 2);
    with_guard(|guard| {
        let program = &mut guard.program;
        let before = Protection {
            ports: vec![ProtectedPort::tcp(22), ProtectedPort::udp(53)],
            sources: networks(2),
            known: networks(3),
            connections: false,
        };
        program.set_protection(&before).unwrap();
        let old = stored(program, &PORTS);
        let (tcp, udp) = (
            port_property::PROTECTED_TCP.0 as u8,
            port_property::PROTECTED_UDP.0 as u8,
        );
        assert_eq!(old.1, [tcp, udp, 0]);
        assert_eq!(old.0.each_ref().map(BTreeSet::len), [2, 3]);
        let ports = vec![ProtectedPort::tcp(53), ProtectedPort::udp(9)];
        for (sources, known) in [(networks(5), too_many.clone()), (too_many, Vec::new())] {
            let new = Protection {
                ports: ports.clone(),
                sources,
                known,
                connections: true,
            };
            program.set_protection(&new).unwrap_err();
            assert!(stored(program, &PORTS) == old, "all is as it was");
            assert_eq!(program.protection, before);
            assert_eq!(program.settings().protect_connections, 0);
        }
        let new = Protection {
            ports,
            sources: networks(limit::PROTECTED_PREFIXES_MAX.0),
            known: Vec::new(),
            connections: true,
        };
        program.set_protection(&new).unwrap();
        let stored = stored(program, &PORTS);
        assert_eq!(stored.1, [0, tcp, udp]);
        assert_eq!(stored.0.each_ref().map(BTreeSet::len), [1024, 0]);
        assert_eq!(program.protection, new);
    });
}
