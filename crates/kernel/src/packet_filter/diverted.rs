//! From which ports rules divert packets: to a transparent proxy (`tproxy`, or TPROXY of iptables),
//! to another interface (`fwd`), or to another address or port, which they write into the packet.
//! Whoever is there gets the packets, whoever has the port that they were sent to. Rules that choose
//! a zone of connection tracking count as well: packets there may be translated, and the guard's
//! program asks the first zone alone.
//!
//! A rule is taken for more than it diverts, and never for less: what it asks of ports, protocol
//! and interface is read, and all else that it asks is ignored. So a rule of addresses or marks
//! alone diverts every port.
//!
//! **Limits.** What earlier rules take out (`accept`, `return`), or the one that goes to a rule's
//! chain, is not read, nor to which device or hook a chain belongs: more ports are taken for diverted
//! than are.

mod legacy;
mod sets;
mod x_tables;

use std::collections::{HashMap, HashSet};
use std::io;
use std::ops::RangeInclusive;

use netlink_bindings::nftables::{
    CmpOps, CtKeys, ExprOps, IterableExprAttrs, IterableExprCmpAttrs, IterableExprLookupAttrs,
    IterableExprPayloadAttrs, IterableRangeAttrs, IterableRuleAttrs, LookupFlags, MetaKeys,
    Nfgenmsg, PayloadBase, RangeOps, Request,
};

use super::{EVERY, Ports, generation};
use crate::netlink;
use sets::Table;

/// Where UDP and TCP have the destination's port.
const PORT: std::ops::Range<usize> = 2..4;

/// The ports from which packets that come in by one of these interfaces are diverted, in this
/// network namespace. Interfaces are given by index and name.
///
/// # Errors
///
/// The kernel refuses to tell, or the answer is damaged.
pub fn ports(interfaces: &[(u32, String)]) -> io::Result<HashSet<Ports>> {
    let mut ports = legacy::ports(interfaces)?;
    if generation()?.is_none() {
        return Ok(ports);
    }
    let mut socket = netlink::Socket::new();
    let request = Request::new().op_getrule_dump(&Nfgenmsg::default());
    let mut replies = socket.request(&request)?;
    while let Some(reply) = replies.recv() {
        let (header, attributes) = reply?;
        let rule = Rule::new(interfaces, Table::of(&header, &attributes));
        if let Some(diverted) = rule.read(&attributes) {
            ports.extend(diverted.into_ports());
        }
    }
    Ok(ports)
}

/// What a register holds.
#[derive(Clone, Copy)]
enum Field {
    InterfaceIndex,
    InterfaceName,
    Protocol,
    /// Of the transport header, from this byte on.
    Transport(usize),
}

impl Field {
    /// The destination's port, if the field is that and no more.
    fn port(self, value: &[u8]) -> Option<u16> {
        match (self, value) {
            (Self::Transport(offset), [high, low]) if offset == PORT.start => {
                Some(u16::from_be_bytes([*high, *low]))
            }
            _ => None,
        }
    }
}

/// What a rule asks of the packets that it is for, as far as it was read.
struct Wanted {
    protocol: Option<u8>,
    ports: Vec<RangeInclusive<u16>>,
}

impl Default for Wanted {
    fn default() -> Self {
        Self {
            protocol: None,
            ports: vec![EVERY],
        }
    }
}

impl Wanted {
    /// Only these of the ports are meant.
    fn keep(&mut self, wanted: &[RangeInclusive<u16>]) {
        let both = |a: &RangeInclusive<u16>, b: &RangeInclusive<u16>| {
            *a.start().max(b.start())..=*a.end().min(b.end())
        };
        let kept = self.ports.iter();
        let kept = kept.flat_map(|had| wanted.iter().map(move |wanted| both(had, wanted)));
        self.ports = kept.filter(|range| !range.is_empty()).collect();
    }

    fn into_ports(self) -> impl Iterator<Item = Ports> {
        self.ports
            .into_iter()
            .map(move |range| (self.protocol, range))
    }
}

/// A rule of `nf_tables`, as it is read from its beginning to where it diverts.
struct Rule<'a> {
    interfaces: &'a [(u32, String)],
    table: Table<'a>,
    registers: HashMap<u32, Field>,
    wanted: Wanted,
}

impl<'a> Rule<'a> {
    fn new(interfaces: &'a [(u32, String)], table: Table<'a>) -> Self {
        Self {
            interfaces,
            table,
            registers: HashMap::new(),
            wanted: Wanted::default(),
        }
    }

    /// What it diverts, if it diverts packets of these interfaces. Of other rules no set is asked
    /// for: a host may have thousands of them.
    fn read(mut self, rule: &IterableRuleAttrs<'_>) -> Option<Wanted> {
        let expressions = rule.get_expressions().ok()?;
        if !expressions
            .get_elem()
            .any(|expression| diverts(&expression))
        {
            return None;
        }
        for expression in expressions.get_elem() {
            if diverts(&expression) {
                return Some(self.wanted);
            }
            self.take(&expression)?;
        }
        None
    }

    /// `None`: it is for other interfaces.
    fn take(&mut self, expression: &IterableExprAttrs<'_>) -> Option<()> {
        match expression.get_data() {
            Ok(ExprOps::Meta(meta)) => {
                self.load(meta.get_dreg().ok(), meta_field(meta.get_key().ok()));
            }
            Ok(ExprOps::Payload(payload)) => {
                let is_transport =
                    payload.get_base().ok() == Some(PayloadBase::TransportHeader as u32);
                let offset = payload.get_offset().ok().filter(|_| is_transport);
                let offset = offset.and_then(|offset| usize::try_from(offset).ok());
                self.load(payload.get_dreg().ok(), offset.map(Field::Transport));
            }
            Ok(ExprOps::Cmp(compared)) => return self.compare(&compared),
            Ok(ExprOps::Range(range)) => {
                if let Some(range) = self.range(&range) {
                    self.wanted.keep(&[range]);
                }
            }
            Ok(ExprOps::Lookup(lookup)) => {
                if let Some(ports) = self.look_up(&lookup) {
                    self.wanted.keep(&ports);
                }
            }
            Ok(ExprOps::Match(one)) => {
                let name = one.get_name().unwrap_or_default().to_bytes();
                if let Some(ports) = x_tables::ports(name, one.get_info().unwrap_or_default()) {
                    self.wanted.keep(&ports);
                }
            }
            Ok(ExprOps::Counter(_) | ExprOps::Log(_)) => {}
            // It may have computed something else from what a register held.
            _ => self.registers.clear(),
        }
        Some(())
    }

    fn load(&mut self, register: Option<u32>, field: Option<Field>) {
        match (register, field) {
            (Some(register), Some(field)) => drop(self.registers.insert(register, field)),
            (Some(register), None) => drop(self.registers.remove(&register)),
            _ => {}
        }
    }

    fn compare(&mut self, compared: &IterableExprCmpAttrs<'_>) -> Option<()> {
        let data = compared.get_data().and_then(|data| data.get_value());
        let register = compared.get_sreg().ok();
        let field = register.and_then(|register| self.registers.get(&register).copied());
        let (Some(field), Ok(value), Ok(operation)) = (field, data, compared.get_op()) else {
            return Some(());
        };
        if operation != CmpOps::Eq as u32 {
            if let Some(ports) = field.port(value).and_then(|port| others(operation, port)) {
                self.wanted.keep(&ports);
            }
            return Some(());
        }
        match field {
            Field::Protocol => self.wanted.protocol = value.first().copied(),
            Field::Transport(offset) => {
                if let Some(port) = port_in(value, offset) {
                    self.wanted.keep(&[port..=port]);
                }
            }
            Field::InterfaceIndex => {
                let index = value.first_chunk().copied().map(u32::from_ne_bytes);
                self.interfaces.iter().find(|own| Some(own.0) == index)?;
            }
            Field::InterfaceName => {
                self.interfaces.iter().find(|own| is_name(&own.1, value))?;
            }
        }
        Some(())
    }

    fn range(&self, range: &IterableRangeAttrs<'_>) -> Option<RangeInclusive<u16>> {
        let field = self.registers.get(&range.get_sreg().ok()?)?;
        let from = range.get_from_data().and_then(|data| data.get_value());
        let to = range.get_to_data().and_then(|data| data.get_value());
        let (from, to) = (field.port(from.ok()?)?, field.port(to.ok()?)?);
        (range.get_op().ok()? == RangeOps::Eq as u32).then_some(from..=to)
    }

    /// The ports of a set that the rule looks up.
    fn look_up(&self, lookup: &IterableExprLookupAttrs<'_>) -> Option<Vec<RangeInclusive<u16>>> {
        // netlink-bindings 0.3.5 has the kernel's attributes (NFTA_LOOKUP_SREG) in another order.
        let register = lookup.get_set_id().ok()?;
        let field = self.registers.get(&register)?;
        let flags = lookup.get_flags().unwrap_or_default();
        let is_port = matches!(field, Field::Transport(offset) if *offset == PORT.start);
        if !is_port || flags & LookupFlags::Invert as u32 != 0 {
            return None;
        }
        // What cannot be read may be any port.
        self.table.ports(lookup.get_set().ok()?).ok().flatten()
    }
}

fn meta_field(key: Option<u32>) -> Option<Field> {
    let fields = [
        (MetaKeys::Iif, Field::InterfaceIndex),
        (MetaKeys::Iifname, Field::InterfaceName),
        (MetaKeys::L4Proto, Field::Protocol),
    ];
    let field = fields.into_iter().find(|field| key == Some(field.0 as u32));
    field.map(|field| field.1)
}

/// The ports of which a comparison with `port` holds, but for that they are the same.
fn others(operation: u32, port: u16) -> Option<Vec<RangeInclusive<u16>>> {
    let below = port.checked_sub(1).map(|last| 0..=last);
    let above = port.checked_add(1).map(|first| first..=u16::MAX);
    let is = |one: CmpOps| operation == one as u32;
    let ranges = match () {
        () if is(CmpOps::Neq) => [below, above],
        () if is(CmpOps::Lt) => [below, None],
        () if is(CmpOps::Lte) => [Some(0..=port), None],
        () if is(CmpOps::Gt) => [above, None],
        () if is(CmpOps::Gte) => [Some(port..=u16::MAX), None],
        () => return None,
    };
    Some(ranges.into_iter().flatten().collect())
}

fn port_in(value: &[u8], offset: usize) -> Option<u16> {
    let begin = PORT.start.checked_sub(offset)?;
    let port = value.get(begin..begin + PORT.len())?;
    Some(u16::from_be_bytes([port[0], port[1]]))
}

/// The rule has a name that is filled up with zeros, or the beginning of one.
fn is_name(own: &str, value: &[u8]) -> bool {
    let mut padded = own.as_bytes().to_vec();
    padded.resize(value.len().max(own.len()), 0);
    padded.starts_with(value)
}

fn diverts(expression: &IterableExprAttrs<'_>) -> bool {
    match expression.get_data() {
        Ok(ExprOps::Tproxy(_)) => true,
        Ok(ExprOps::Payload(payload)) => writes_destination(&payload),
        Ok(ExprOps::Ct(ct)) => {
            ct.get_sreg().is_ok() && ct.get_key().ok() == Some(CtKeys::Zone as u32)
        }
        Ok(ExprOps::Target(target)) => target.get_name().is_ok_and(|name| {
            x_tables::diverts(name.to_bytes(), target.get_info().unwrap_or_default())
        }),
        _ => expression
            .get_name()
            .is_ok_and(|name| name.to_bytes() == b"fwd"),
    }
}

/// Whether it writes to where a packet has the destination's port or address, of IPv4 or IPv6.
fn writes_destination(payload: &IterableExprPayloadAttrs<'_>) -> bool {
    const IPV4: std::ops::Range<u32> = 16..20;
    const IPV6: std::ops::Range<u32> = 24..40;
    if payload.get_sreg().is_err() {
        return false;
    }
    let (Ok(base), Ok(from), Ok(length)) =
        (payload.get_base(), payload.get_offset(), payload.get_len())
    else {
        return true;
    };
    let reaches =
        |to: &std::ops::Range<u32>| from < to.end && from.saturating_add(length) > to.start;
    match base {
        base if base == PayloadBase::TransportHeader as u32 => {
            reaches(&(PORT.start as u32..PORT.end as u32))
        }
        base if base == PayloadBase::NetworkHeader as u32 => [IPV4, IPV6].iter().any(reaches),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::namespace;

    const UDP: Option<u8> = Some(17);
    const TCP: Option<u8> = Some(6);

    /// Of the table `raw`, and whether what they are for may be translated unasked.
    pub(super) const TARGETS_OF_RAW: [(&str, bool); 3] = [
        ("CT --zone 7", true),
        ("CT --zone mark", true),
        ("CT --notrack", false),
    ];

    pub(super) fn run(program: &str, line: &str) {
        let status = Command::new(program).args(line.split(' ')).status();
        let expected = "nftables and iptables are installed";
        assert!(status.expect(expected).success(), "{program} {line}");
    }

    /// Of nftables, in a table that also has a set.
    fn of(rule: &str) -> HashSet<Ports> {
        let lines = [
            "add table ip t",
            "add set ip t named { type inet_service; flags interval; }",
            "add element ip t named { 4000, 60000-65535 }",
            "add chain ip t c { type filter hook prerouting priority -150; }",
        ];
        let seen = namespace::in_new(|| {
            for line in lines {
                run("nft", line);
            }
            run("nft", &format!("add rule ip t c {rule}"));
            ports(&[(1, "lo".to_owned())]).unwrap()
        });
        seen.unwrap()
    }

    /// Needs root, nftables and iptables.
    #[test]
    fn ports_that_rules_name_are_known_and_no_others() {
        let cases = [
            ("udp dport 53", vec![(UDP, 53..=53)]),
            ("meta mark 7 tcp sport 9 tcp dport 80", vec![(TCP, 80..=80)]),
            (
                "meta l4proto { tcp, udp } th dport 53",
                vec![(None, 53..=53)],
            ),
            ("iifname lo udp dport 53", vec![(UDP, 53..=53)]),
            ("iifname l* udp dport 53", vec![(UDP, 53..=53)]),
            ("iif lo udp dport 53", vec![(UDP, 53..=53)]),
            ("iifname lo0 udp dport 53", vec![]),
            ("iifname lan* udp dport 53", vec![]),
            ("udp dport != 53", vec![(UDP, 0..=52), (UDP, 54..=u16::MAX)]),
            (
                "tcp dport { 80, 443 }",
                vec![(TCP, 80..=80), (TCP, 443..=443)],
            ),
            (
                "udp dport { 53, 1000-2000 }",
                vec![(UDP, 53..=53), (UDP, 1000..=2000)],
            ),
            (
                "tcp dport @named",
                vec![(TCP, 4000..=4000), (TCP, 60000..=u16::MAX)],
            ),
            (
                "tcp dport @named tcp dport < 5000",
                vec![(TCP, 4000..=4000)],
            ),
            ("udp dport 1000-2000", vec![(UDP, 1000..=2000)]),
            (
                "tcp dport > 1023 tcp dport <= 2000",
                vec![(TCP, 1024..=2000)],
            ),
            ("udp dport >= 60000", vec![(UDP, 60000..=u16::MAX)]),
        ];
        for (rule, expected) in cases {
            let seen = of(&format!("{rule} tproxy to :6000"));
            assert_eq!(seen, expected.into_iter().collect(), "{rule}");
        }
        for rule in [
            "accept",
            "ip dscp set cs1",
            "udp sport set 9",
            "ip saddr set 198.18.0.9",
        ] {
            assert_eq!(
                of(&format!("udp dport 53 {rule}")),
                HashSet::new(),
                "{rule}"
            );
        }
    }

    #[test]
    fn so_are_those_from_which_a_rule_sends_elsewhere() {
        for action in ["udp dport set 5353", "ip daddr set 198.18.0.9"] {
            let seen = of(&format!("udp dport 53 {action}"));
            assert_eq!(seen, HashSet::from([(UDP, 53..=53)]), "{action}");
        }
        let seen = namespace::in_new(|| {
            run("nft", "add table netdev t");
            run(
                "nft",
                "add chain netdev t c { type filter hook ingress device lo priority 0; }",
            );
            run("nft", "add rule netdev t c udp dport 53 fwd to lo");
            ports(&[(1, "lo".to_owned())]).unwrap()
        });
        assert_eq!(seen.unwrap(), HashSet::from([(UDP, 53..=53)]));
    }

    /// What is translated in a zone of its own was judged by this host's sockets.
    #[test]
    fn so_are_those_of_which_connections_have_a_zone() {
        for (rule, expected) in [
            ("udp dport 53 ct zone set 7", vec![(UDP, 53..=53)]),
            (
                "iifname lo ct zone set mark map { 1 : 7 }",
                vec![(None, EVERY)],
            ),
            ("iifname lo0 ct zone set 7", vec![]),
            ("udp dport 53 ct zone 7 accept", vec![]),
            ("udp dport 53 ct mark set 7", vec![]),
        ] {
            assert_eq!(of(rule), expected.into_iter().collect(), "{rule}");
        }
    }

    /// An operator lets some through before a rule that diverts. More is taken for diverted than is,
    /// and never less.
    #[test]
    fn what_an_earlier_rule_takes_out_is_not_read() {
        let seen = namespace::in_new(|| {
            for line in [
                "add table ip t",
                "add chain ip t c { type filter hook prerouting priority -150; }",
                "add rule ip t c udp dport 53 ip saddr 198.18.0.0/16 return",
                "add rule ip t c udp dport 0-1023 tproxy to :6000",
            ] {
                run("nft", line);
            }
            ports(&[(1, "lo".to_owned())]).unwrap()
        });
        assert_eq!(seen.unwrap(), HashSet::from([(UDP, 0..=1023)]));
    }

    #[test]
    fn whatever_else_a_rule_asks_it_may_divert_every_port() {
        for (rule, protocol) in [
            ("meta l4proto udp", UDP),
            ("udp sport 53", UDP),
            ("ip daddr 198.18.0.1 meta l4proto tcp", TCP),
            ("tcp dport & 1 == 1", TCP),
            ("tcp dport != { 80, 443 }", TCP),
            (
                "meta l4proto udp ip daddr . udp dport { 198.18.0.1 . 53 }",
                UDP,
            ),
        ] {
            let seen = of(&format!("{rule} tproxy to :6000"));
            assert_eq!(seen, HashSet::from([(protocol, EVERY)]), "{rule}");
        }
    }

    #[test]
    fn rules_of_iptables_nft_are_read() {
        let multiport = vec![(TCP, 80..=80), (TCP, 443..=443), (TCP, 8000..=8080)];
        for (rule, expected) in [
            ("-i lo -p udp --dport 53", vec![(UDP, 53..=53)]),
            ("-p tcp --dport 1000:2000", vec![(TCP, 1000..=2000)]),
            ("-p tcp -m multiport --dports 80,443,8000:8080", multiport),
            ("-p udp", vec![(UDP, EVERY)]),
        ] {
            let seen = namespace::in_new(|| {
                let rule = format!("-t mangle -A PREROUTING {rule} -j TPROXY --on-port 6000");
                run("iptables-nft", &rule);
                ports(&[(1, "lo".to_owned())]).unwrap()
            });
            assert_eq!(seen.unwrap(), expected.into_iter().collect(), "{rule}");
        }
        for (target, expected) in TARGETS_OF_RAW {
            let seen = namespace::in_new(|| {
                let rule = format!("-t raw -A PREROUTING -p udp --dport 53 -j {target}");
                run("iptables-nft", &rule);
                ports(&[(1, "lo".to_owned())]).unwrap()
            });
            let expected = expected.then_some((UDP, 53..=53)).into_iter().collect();
            assert_eq!(seen.unwrap(), expected, "{target}");
        }
    }
}
