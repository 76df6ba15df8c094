//! Which ports rules divert to a transparent proxy (`tproxy`, or TPROXY of iptables-nft). The
//! proxy's socket gets the packets, whoever has the port that they were sent to.
//!
//! **Limits.** Read are rules that compare the destination's port with one number. Ports of sets,
//! ranges and legacy iptables are not known, nor rules that divert whatever comes.

use std::collections::{BTreeSet, HashMap};
use std::io;

use netlink_bindings::nftables::{
    CmpOps, ExprOps, IterableExprAttrs, IterableRuleAttrs, MetaKeys, Nfgenmsg, PayloadBase, Request,
};

use super::generation;
use crate::netlink;

/// More rules are not read: it would take tens of milliseconds.
const RULES_MAX: usize = 20_000;
/// Where UDP and TCP have the destination's port.
const PORT: std::ops::Range<usize> = 2..4;

/// A port, and its IP protocol unless it is that of every one.
pub type Port = (Option<u8>, u16);

/// The ports from which packets that come in by one of these interfaces are diverted, in this
/// network namespace. Interfaces are given by index and name.
///
/// # Errors
///
/// The kernel refuses to tell, or the answer is damaged.
pub fn ports(interfaces: &[(u32, String)]) -> io::Result<BTreeSet<Port>> {
    let mut ports = BTreeSet::new();
    if generation()?.is_none() {
        return Ok(ports);
    }
    let mut socket = netlink::Socket::new();
    let request = Request::new().op_getrule_dump(&Nfgenmsg::default());
    let mut replies = socket.request(&request)?;
    for _ in 0..RULES_MAX {
        let Some(reply) = replies.recv() else {
            break;
        };
        let (_, attributes) = reply?;
        ports.extend(diverted(&attributes, interfaces));
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

/// The port that a rule diverts, if it is one of these interfaces'.
fn diverted(rule: &IterableRuleAttrs<'_>, interfaces: &[(u32, String)]) -> Option<Port> {
    let mut registers: HashMap<u32, Field> = HashMap::new();
    let (mut protocol, mut port) = (None, None);
    for expression in rule.get_expressions().ok()?.get_elem() {
        if diverts(&expression) {
            return Some((protocol, port?));
        }
        match expression.get_data() {
            Ok(ExprOps::Meta(meta)) => {
                load(
                    &mut registers,
                    meta.get_dreg().ok(),
                    meta_field(meta.get_key().ok()),
                );
            }
            Ok(ExprOps::Payload(payload)) => {
                let is_transport =
                    payload.get_base().ok() == Some(PayloadBase::TransportHeader as u32);
                let offset = payload.get_offset().ok().filter(|_| is_transport);
                let offset = offset.and_then(|offset| usize::try_from(offset).ok());
                load(
                    &mut registers,
                    payload.get_dreg().ok(),
                    offset.map(Field::Transport),
                );
            }
            Ok(ExprOps::Cmp(compared)) if compared.get_op().ok() == Some(CmpOps::Eq as u32) => {
                let value = compared.get_data().and_then(|data| data.get_value()).ok()?;
                match registers.get(&compared.get_sreg().ok()?) {
                    Some(Field::Protocol) => protocol = value.first().copied(),
                    Some(Field::Transport(offset)) => port = port_in(value, *offset).or(port),
                    Some(Field::InterfaceIndex) => {
                        let index = value.first_chunk().copied().map(u32::from_ne_bytes);
                        interfaces.iter().find(|own| Some(own.0) == index)?;
                    }
                    Some(Field::InterfaceName) => {
                        interfaces.iter().find(|own| is_name(&own.1, value))?;
                    }
                    None => {}
                }
            }
            _ => {}
        }
    }
    None
}

fn load(registers: &mut HashMap<u32, Field>, register: Option<u32>, field: Option<Field>) {
    match (register, field) {
        (Some(register), Some(field)) => drop(registers.insert(register, field)),
        (Some(register), None) => drop(registers.remove(&register)),
        _ => {}
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
        Ok(ExprOps::Target(target)) => target
            .get_name()
            .is_ok_and(|name| name.to_bytes() == b"TPROXY"),
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

    fn run(program: &str, line: &str) {
        let status = Command::new(program).args(line.split(' ')).status();
        assert!(
            status
                .expect("nftables and iptables are installed")
                .success(),
            "{line}"
        );
    }

    /// Needs root, nftables and iptables.
    #[test]
    fn ports_that_rules_name_are_known_and_no_others() {
        let cases = [
            ("udp dport 53 tproxy ip to :6000", Some((UDP, 53))),
            (
                "meta mark 7 tcp sport 9 tcp dport 80 tproxy ip to :6000",
                Some((TCP, 80)),
            ),
            (
                "meta l4proto { tcp, udp } th dport 53 tproxy ip to :6000",
                Some((None, 53)),
            ),
            (
                "iifname lo udp dport 53 tproxy ip to :6000",
                Some((UDP, 53)),
            ),
            (
                "iifname l* udp dport 53 tproxy ip to :6000",
                Some((UDP, 53)),
            ),
            ("iif lo udp dport 53 tproxy ip to :6000", Some((UDP, 53))),
            ("iifname lo0 udp dport 53 tproxy ip to :6000", None),
            ("iifname lan* udp dport 53 tproxy ip to :6000", None),
            ("udp dport 53 accept", None),
            ("udp sport 53 tproxy ip to :6000", None),
            ("udp dport != 53 tproxy ip to :6000", None),
            ("udp dport { 53, 54 } tproxy ip to :6000", None),
            ("meta l4proto udp tproxy ip to :6000", None),
        ];
        let of = |rule: &str| {
            run("nft", "flush ruleset");
            run("nft", "add table ip t");
            run(
                "nft",
                "add chain ip t c { type filter hook prerouting priority -150; }",
            );
            run("nft", &format!("add rule ip t c {rule}"));
            ports(&[(1, "lo".to_owned())]).unwrap()
        };
        let seen = namespace::in_new(|| cases.map(|(rule, _)| of(rule))).unwrap();
        for ((rule, expected), seen) in cases.iter().zip(seen) {
            assert_eq!(seen, expected.iter().copied().collect(), "{rule}");
        }
        let of_iptables = namespace::in_new(|| {
            let rule = "-t mangle -A PREROUTING -i lo -p udp --dport 53 -j TPROXY --on-port 6000";
            run("iptables-nft", rule);
            ports(&[(1, "lo".to_owned())]).unwrap()
        });
        assert_eq!(of_iptables.unwrap(), BTreeSet::from([(UDP, 53)]));
    }
}
