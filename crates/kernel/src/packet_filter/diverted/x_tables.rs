//! What matches of iptables ask of the destination's port, and which targets divert: the kernel has the same structures of
//! them in legacy tables and, from `iptables-nft`, in `nf_tables` (`linux/netfilter/xt_tcpudp.h`,
//! `xt_multiport.h`).

use std::ops::RangeInclusive;

/// Of `struct xt_ct_target_info`: flags, the zone, and the flag by which a mark names the zone.
const CT_FLAGS: usize = 0;
const CT_ZONE: usize = 2;
const CT_ZONE_MARK: u16 = 1 << 4;

/// `struct xt_tcp` and `struct xt_udp` have two ports of the source first.
const DESTINATION_PORTS: usize = 4;
/// Where they say what is to be the other way round, and how for the destination's ports.
const TCP_INVERTED: usize = 11;
const UDP_INVERTED: usize = 8;
const INVERTED_DESTINATION: u8 = 2;
/// `struct xt_multiport_v1`: whose ports, how many, which, whether the next one is a range's end,
/// and whether others are meant.
const MULTIPORT_DESTINATION: u8 = 1;
const MULTIPORT_MAX: usize = 15;
const MULTIPORT_PORTS: usize = 2;
const MULTIPORT_RANGES: usize = MULTIPORT_PORTS + 2 * MULTIPORT_MAX;
const MULTIPORT_INVERTED: usize = MULTIPORT_RANGES + MULTIPORT_MAX;

/// Whether a target diverts. The one that gives connections a zone (`linux/netfilter/xt_CT.h`) is taken
/// for one.
pub(super) fn diverts(name: &[u8], info: &[u8]) -> bool {
    match name {
        b"TPROXY" => true,
        b"CT" => {
            let has_mark = number(info, CT_FLAGS).is_some_and(|flags| flags & CT_ZONE_MARK != 0);
            has_mark || number(info, CT_ZONE).is_some_and(|zone| zone != 0)
        }
        _ => false,
    }
}

/// The ports that a match wants; `None` if it wants none in particular, or is not understood.
pub(super) fn ports(name: &[u8], info: &[u8]) -> Option<Vec<RangeInclusive<u16>>> {
    match name {
        b"tcp" => range(info, TCP_INVERTED),
        b"udp" => range(info, UDP_INVERTED),
        b"multiport" => multiport(info),
        _ => None,
    }
}

fn number(info: &[u8], at: usize) -> Option<u16> {
    info.get(at..)?
        .first_chunk()
        .map(|bytes| u16::from_ne_bytes(*bytes))
}

fn range(info: &[u8], inverted: usize) -> Option<Vec<RangeInclusive<u16>>> {
    let (first, last) = (
        number(info, DESTINATION_PORTS)?,
        number(info, DESTINATION_PORTS + 2)?,
    );
    (info.get(inverted)? & INVERTED_DESTINATION == 0).then(|| vec![first..=last])
}

fn multiport(info: &[u8]) -> Option<Vec<RangeInclusive<u16>>> {
    let (whose, count) = (*info.first()?, usize::from(*info.get(1)?));
    if whose != MULTIPORT_DESTINATION || *info.get(MULTIPORT_INVERTED)? != 0 {
        return None;
    }
    let mut ranges: Vec<RangeInclusive<u16>> = Vec::new();
    let mut begun = None;
    for index in 0..count.min(MULTIPORT_MAX) {
        let port = number(info, MULTIPORT_PORTS + 2 * index)?;
        let begins = *info.get(MULTIPORT_RANGES + index)? != 0;
        match begun.take() {
            Some(first) => ranges.push(first..=port),
            None if begins => begun = Some(port),
            None => ranges.push(port..=port),
        }
    }
    Some(ranges)
}
