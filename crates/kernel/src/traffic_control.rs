//! What tc(8) may do with packets that come in by an interface, before their sockets are looked
//! up: which of its programs and actions could give them to another socket, host or device.
//!
//! What a BPF program does is not known, so each may. Of filters only their actions are looked at,
//! and not which packets they are for. Redirection to an `ifb` is none: such a device shapes what
//! comes in, and hands it back.
//!
//! **Limits.** What an `ifb` drops or redirects is not looked at.

#![allow(unsafe_code, reason = "libbpf-rs does not ask for programs of tcx")]

use std::collections::BTreeSet;
use std::io;

use libbpf_sys::{BPF_TCX_INGRESS, bpf_prog_query_opts};
use netlink_bindings::tc::{
    ActOptionsMsg, IterableActAttrs, IterableAttrs, OptionsMsg, Request, Tcmsg,
};

use crate::{link, netlink};

/// Where the queueing discipline `clsact` has its filters of what comes in, and where `ingress`
/// has all of them (`TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_INGRESS)` of `linux/pkt_sched.h`).
const INGRESS: u32 = 0xffff_fff2;
/// In `struct tc_mirred` of `linux/tc_act/tc_mirred.h`: what is done, and with which interface.
const MIRRED_ACTION: usize = 20;
const MIRRED_INTERFACE: usize = 24;
/// `TCA_EGRESS_REDIR`, and the two by which only a copy goes elsewhere.
const EGRESS_REDIRECTION: u32 = 1;
const COPIES: [u32; 2] = [2, 4];

/// The kinds of programs, filters and actions that may take packets which come in by `ifindex`.
///
/// # Errors
///
/// The kernel refuses to tell.
pub fn takers(ifindex: u32) -> io::Result<BTreeSet<String>> {
    let mut takers = BTreeSet::new();
    if has_programs(ifindex)? {
        takers.insert("tcx".to_owned());
    }
    let header = Tcmsg {
        ifindex: ifindex.cast_signed(),
        parent: INGRESS,
        ..Tcmsg::default()
    };
    let request = Request::new().op_gettfilter_dump(&header);
    let mut socket = netlink::Socket::new();
    let mut replies = socket.request(&request)?;
    while let Some(reply) = replies.recv() {
        match reply {
            Ok((_, filter)) => takers.extend(takers_of(&filter)),
            Err(refusal) => return no_filters(refusal.into()).map(|()| takers),
        }
    }
    Ok(takers)
}

/// A kernel without classifiers (`CONFIG_NET_CLS`) has no filters to tell of.
fn no_filters(refusal: io::Error) -> io::Result<()> {
    match refusal.raw_os_error() {
        Some(libc::EOPNOTSUPP) => Ok(()),
        _ => Err(refusal),
    }
}

/// Whether programs are attached by `tcx`, which Linux has since 6.6.
fn has_programs(ifindex: u32) -> io::Result<bool> {
    let mut options = bpf_prog_query_opts {
        sz: size_of::<bpf_prog_query_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    // SAFETY: `options` states its own size and outlives the call; without room for their
    // numbers, programs are only counted.
    let answer =
        unsafe { bpf_prog_query_opts(ifindex.cast_signed(), BPF_TCX_INGRESS, &raw mut options) };
    match -answer {
        // SAFETY: both members are the same number.
        0 => Ok(unsafe { options.__bindgen_anon_1.count } > 0),
        libc::EINVAL => Ok(false),
        refusal => Err(io::Error::from_raw_os_error(refusal)),
    }
}

/// What of a filter may take packets. The first message of a filter's kind has no options.
fn takers_of(filter: &IterableAttrs<'_>) -> Vec<String> {
    let kind = filter.get_kind().unwrap_or_default().to_string_lossy();
    let actions = match filter.get_options() {
        Ok(OptionsMsg::Bpf(bpf)) if bpf.get_id().is_ok() => return vec![kind.into_owned()],
        Ok(OptionsMsg::Bpf(classic)) => classic.get_act(),
        Ok(OptionsMsg::Basic(basic)) => basic.get_act(),
        Ok(OptionsMsg::Cgroup(cgroup)) => cgroup.get_act(),
        Ok(OptionsMsg::Flower(flower)) => flower.get_act(),
        Ok(OptionsMsg::Fw(fw)) => fw.get_act(),
        Ok(OptionsMsg::Matchall(matchall)) => matchall.get_act(),
        Ok(OptionsMsg::Route(route)) => route.get_act(),
        Ok(OptionsMsg::U32(u32)) => u32.get_act(),
        Err(_) if KNOWN.contains(&&*kind) => return Vec::new(),
        _ => return vec![kind.into_owned()],
    };
    let actions = actions.into_iter().flatten();
    actions.filter_map(|action| taker(&action)).collect()
}

/// Kinds of filters whose actions are looked at.
const KNOWN: [&str; 8] = [
    "basic", "bpf", "cgroup", "flower", "fw", "matchall", "route", "u32",
];

/// The kind of an action, if it may take packets.
fn taker(action: &IterableActAttrs<'_>) -> Option<String> {
    let kind = action.get_kind().unwrap_or_default().to_string_lossy();
    let takes = match &*kind {
        // They count, mark, limit or drop.
        "connmark" | "csum" | "ctinfo" | "gact" | "gate" | "police" | "sample" | "simple"
        | "skbedit" => false,
        "mirred" => match action.get_options() {
            Ok(ActOptionsMsg::Mirred(mirred)) => redirects(mirred.get_parms().unwrap_or_default()),
            _ => true,
        },
        _ => true,
    };
    takes.then(|| kind.into_owned())
}

/// Whether this `struct tc_mirred` has packets go on elsewhere.
fn redirects(parameters: &[u8]) -> bool {
    let number = |at: usize| {
        let bytes = parameters.get(at..)?.first_chunk()?;
        Some(u32::from_ne_bytes(*bytes))
    };
    let (Some(action), Some(to)) = (number(MIRRED_ACTION), number(MIRRED_INTERFACE)) else {
        return true;
    };
    let comes_back = || {
        let kind = link::link(to).ok().and_then(|link| link.kind);
        action == EGRESS_REDIRECTION && kind.as_deref() == Some("ifb")
    };
    !COPIES.contains(&action) && !comes_back()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::process::Command;

    use caps::{CapSet, Capability};

    use super::*;
    use crate::namespace;

    fn run(line: &str) {
        let (program, words) = line.split_once(' ').unwrap();
        let status = Command::new(program).args(words.split(' ')).status();
        assert!(status.expect("iproute2 is installed").success(), "{line}");
    }

    /// It kept the guard from hearing of sockets that are bound above, too.
    #[test]
    fn a_kernel_without_classifiers_has_no_filters() {
        let from = io::Error::from_raw_os_error;
        assert!(no_filters(from(libc::EOPNOTSUPP)).is_ok());
        assert!(no_filters(from(libc::EPERM)).is_err());
    }

    /// Of `v0`, beside `v1` and `ifb0`.
    fn of(lines: &[&str]) -> Vec<String> {
        let takers = namespace::in_new(|| {
            run("ip link add v0 type veth peer name v1");
            run("ip link add ifb0 type ifb");
            lines.iter().for_each(|line| run(line));
            takers(link::index("v0").unwrap()).unwrap()
        });
        takers.unwrap().into_iter().collect()
    }

    /// Needs root.
    #[test]
    fn what_may_take_packets_is_told_and_nothing_else() {
        const ALL: &str = "protocol all u32 match u32 0 0";
        let redirect = format!("tc filter add dev v0 ingress {ALL} action mirred egress redirect");
        let mirror = format!("tc filter add dev v0 ingress {ALL} action mirred egress mirror");
        let sent = format!("tc filter add dev v0 egress {ALL} action mirred egress redirect");
        for qdisc in ["clsact", "ingress"] {
            let qdisc = format!("tc qdisc add dev v0 {qdisc}");
            let seen = |filter: &str| of(&[&qdisc, filter]);
            assert_eq!(seen(&format!("{redirect} dev v1")), ["mirred"], "{qdisc}");
            assert_eq!(seen(&format!("{redirect} dev ifb0")), [""; 0], "{qdisc}");
            assert_eq!(seen(&format!("{mirror} dev v1")), [""; 0], "{qdisc}");
        }
        let clsact = "tc qdisc add dev v0 clsact";
        assert_eq!(of(&[clsact, &format!("{sent} dev v1")]), [""; 0]);
        assert_eq!(of(&[]), [""; 0]);
        assert_eq!(of(&[clsact]), [""; 0]);
    }

    /// A guard that runs has given up all rights but few.
    #[test]
    fn who_may_turn_settings_is_told() {
        let told = namespace::in_new(|| {
            let rights = HashSet::from([Capability::CAP_NET_ADMIN]);
            caps::set(None, CapSet::Effective, &rights).unwrap();
            let of_admin = takers(1);
            caps::set(None, CapSet::Effective, &HashSet::new()).unwrap();
            (of_admin.unwrap(), takers(1).is_err())
        });
        assert_eq!(told.unwrap(), (BTreeSet::new(), true));
    }

    #[test]
    fn whatever_of_a_redirection_is_not_understood_may_take_packets() {
        for length in 0..28 {
            assert!(redirects(&vec![0; length]), "{length}");
        }
        let mut parameters = [0; 28];
        for (action, takes) in [(0, true), (1, true), (2, false), (3, true), (4, false)] {
            parameters[MIRRED_ACTION] = action;
            assert_eq!(redirects(&parameters), takes, "{action}");
        }
    }
}
