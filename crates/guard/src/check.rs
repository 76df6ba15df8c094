//! What this host, this interface and its driver can do for the guard, before
//! the guard touches anything.
//!
//! Each [`Finding`] says what is, and what the guard does about it. The BPF
//! program is loaded for it (and not attached): that alone proves that the
//! kernel has every function it calls.

#![allow(unsafe_code, reason = "libbpf-rs does not probe for helpers")]

mod adapter;
mod filters;
mod prerequisites;
pub(crate) mod stacking;

use std::fs;
use std::path::Path;
use std::time::Instant;

use plimsoll_kernel::error::os;
use plimsoll_kernel::ethtool;
use plimsoll_kernel::host;
use plimsoll_kernel::knobs::{self, Attribute, Device, Napi, Netdev, OpenError};
use plimsoll_kernel::link::{self, Link};
use plimsoll_kernel::packet_filter;
use plimsoll_kernel::threaded::TRIED;
use plimsoll_kernel::xdp_link::{lacks_native_xdp, refused_by_above};
use serde::Serialize;

use crate::error::Error;
use crate::filter::{Filter, FilterWatch};
use crate::guard::{Config, Guard, Storage};
use crate::hidden;

/// How far something is as the guard needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// The guard runs, and does or sees less.
    Limited,
    /// Only root can see it.
    Unknown,
    /// The guard cannot run.
    Missing,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Short name, the same in every run.
    pub id: &'static str,
    /// How far it is as it should be.
    pub verdict: Verdict,
    /// What was found.
    pub found: String,
    /// What the guard does about it.
    pub guard: String,
}

/// All that was found on one interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// As given.
    pub interface: String,
    /// In the order of a start.
    pub findings: Vec<Finding>,
    /// NAPI instances with their settings.
    pub napi: Vec<Napi>,
}

impl Check {
    /// False if the guard would refuse to start.
    #[must_use]
    pub fn can_run(&self) -> bool {
        let missing = |finding: &Finding| finding.verdict == Verdict::Missing;
        !self.findings.iter().any(missing)
    }
}

/// Looks at `interface` of the current network namespace and changes nothing.
///
/// # Errors
///
/// No such interface, or the kernel does not answer.
pub fn check(interface: &str) -> Result<Check, Error> {
    let ifindex = link::index(interface)?;
    let link = link::link(ifindex).map_err(os("ask for the interface's state"))?;
    let napi = Netdev::new().instances(ifindex);
    let napi = napi.map_err(os("ask for the interface's NAPI instances"))?;
    let device = Device::open(interface, ifindex);
    let name = device.as_ref().ok().map(|device| device.driver(&link));
    let name = name
        .flatten()
        .unwrap_or_else(|| "a virtual device".to_owned());
    let below = device.as_ref().ok().map(Device::lower).transpose();
    let below = below.map_err(os("list the interfaces below"))?;
    let below = below.unwrap_or_default();
    let mut findings = vec![owner(interface)?];
    findings.extend(prerequisites::findings());
    findings.extend(program());
    findings.extend([
        driver(&link, name.clone()),
        native_xdp(interface, ifindex, &link)?,
        attached(interface, ifindex, &link),
        adapter::attachment(interface, ifindex, &name)
            .map_err(os("ask for the adapter's channels"))?,
        mtu(&link),
        stacking::stacking(interface, &link, &below)
            .map_err(os("ask how the interface stands to others"))?,
        queues(&link, device.as_ref().ok(), &napi),
        holdoff(device.as_ref().ok(), &napi, &below),
        threads(device.as_ref().ok(), &name, &napi),
        adapter::interrupts(ifindex).map_err(os("ask how interrupts are coalesced"))?,
        ring(ifindex)?,
        adapter::offloads(interface, ifindex, &name)
            .map_err(os("ask for the adapter's offloads"))?,
        // Only root is told.
        filters::filters(
            Path::new("/proc"),
            &packet_filter::has_rules(),
            &hidden::ports(ifindex).map(|ports| ports.every),
            host::tracking_unasked().filter(|_| host::translates()),
        ),
        filters::traffic_control(&hidden::tc_takers(ifindex)),
        filters::above(&link::above(ifindex)),
        filters::packet_readers(host::has_packet_readers()),
        namespace(&link),
        syn_cookies(link.kind.as_deref() == Some("veth")),
        left_turned(interface),
    ]);
    Ok(Check {
        interface: interface.to_owned(),
        findings,
        napi,
    })
}

fn finding(
    id: &'static str,
    verdict: Verdict,
    found: impl Into<String>,
    guard: impl Into<String>,
) -> Finding {
    Finding {
        id,
        verdict,
        found: found.into(),
        guard: guard.into(),
    }
}

fn owner(interface: &str) -> Result<Finding, Error> {
    Ok(match knobs::owner(interface) {
        Ok(None) => finding("owner", Verdict::Ok, "no guard is running here", "starts"),
        Ok(Some(guarding)) => finding(
            "owner",
            Verdict::Missing,
            format!(
                "process {} guards this interface{}",
                guarding.pid,
                guarding.otherwise(interface)
            ),
            "refuses to be the second",
        ),
        Err(error) if error.wants_root() => finding(
            "owner",
            Verdict::Unknown,
            "only root can see whether a guard is running here",
            "refuses to be the second",
        ),
        Err(error) => return Err(error.into()),
    })
}

/// What the verifier says, and what the program's maps take.
fn program() -> Vec<Finding> {
    let mut storage = Storage::default();
    match Guard::load(&mut storage, &Config::default()) {
        Ok(guard) => vec![
            finding(
                "program",
                Verdict::Ok,
                "the verifier accepts the BPF program",
                "judges every packet before the stack allocates for it",
            ),
            memory(&guard),
        ],
        Err(error) => {
            let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}"));
            let found = format!("{error}{}", cause.unwrap_or_default());
            let verdict = Verdict::Missing;
            vec![finding("program", verdict, found, "does not start")]
        }
    }
}

fn memory(guard: &Guard<'_>) -> Finding {
    let takes = "takes it at the start, and gives it back when it ends";
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    match guard.program.memory() {
        Ok(memory) => {
            let found = format!(
                "the program's maps take {:.1} MiB, {:.1} MiB of it for each of {} possible CPUs",
                mib(memory.total),
                mib(memory.per_cpu),
                memory.cpus,
            );
            finding("memory", Verdict::Ok, found, takes)
        }
        Err(error) => finding("memory", Verdict::Limited, error.to_string(), takes),
    }
}

fn driver(link: &Link, name: String) -> Finding {
    if link.up {
        finding("driver", Verdict::Ok, name, "attaches to it")
    } else {
        let found = format!("{name}, and the interface is down");
        let guard = "attaches; polling threads are found once it is up";
        finding("driver", Verdict::Limited, found, guard)
    }
}

fn native_xdp(interface: &str, ifindex: u32, link: &Link) -> Result<Finding, Error> {
    let native = link::native_xdp(ifindex).map_err(os("ask for the driver's XDP features"))?;
    // A driver whose XDP runs now has it, whatever it declares.
    let runs = link.xdp.as_ref().is_some_and(|xdp| xdp.mode == "native");
    Ok(match native {
        Some(true) => finding("xdp", Verdict::Ok, "native XDP", "runs in the driver"),
        _ if runs => finding("xdp", Verdict::Ok, "native XDP runs", "runs in the driver"),
        Some(false) => {
            let error = lacks_native_xdp(interface, ifindex);
            finding("xdp", Verdict::Missing, error.to_string(), "does not start")
        }
        None => finding(
            "xdp",
            Verdict::Limited,
            "the kernel does not tell whether the driver has native XDP (Linux 6.3 does)",
            "tries, and refuses if it has not",
        ),
    })
}

fn attached(interface: &str, ifindex: u32, link: &Link) -> Finding {
    let Some(xdp) = &link.xdp else {
        if let Some(refusal) = refused_by_above(interface, ifindex) {
            let found = refusal.to_string();
            return finding("attached", Verdict::Missing, found, "does not start");
        }
        let found = "no XDP program is attached";
        return finding("attached", Verdict::Ok, found, "attaches its own");
    };
    finding(
        "attached",
        Verdict::Missing,
        format!("XDP program {xdp}"),
        format!("refuses to replace it ({})", xdp.remedy(interface)),
    )
}

/// Without multi-buffer support a frame must fit a page beside the driver's
/// own needs; drivers differ in these.
fn mtu(link: &Link) -> Finding {
    const SAFE: u32 = 3000;
    match link.mtu {
        Some(mtu) if mtu > SAFE => finding(
            "mtu",
            Verdict::Limited,
            format!("{mtu} bytes, more than most drivers take for XDP"),
            "tries, and says if the driver refuses",
        ),
        Some(mtu) => finding("mtu", Verdict::Ok, format!("{mtu} bytes"), "needs no more"),
        None => finding("mtu", Verdict::Ok, "unknown", "tries"),
    }
}

fn queues(link: &Link, device: Option<&Device>, napi: &[Napi]) -> Finding {
    let count = device.and_then(|device| device.receive_queues().ok());
    let count = count.or_else(|| link.rx_queues.and_then(|n| usize::try_from(n).ok()));
    let named = napi.iter().filter(|napi| napi.queue.is_some()).count();
    finding(
        "queues",
        Verdict::Ok,
        format!(
            "receive queues: {}; NAPI instances: {}, known by queue: {named}",
            count.map_or_else(|| "unknown".to_owned(), |count| count.to_string()),
            napi.len()
        ),
        "guards all of them",
    )
}

fn holdoff(device: Option<&Device>, napi: &[Napi], below: &[String]) -> Finding {
    if !below.is_empty() {
        return finding(
            "holdoff",
            Verdict::Limited,
            "interrupts are those of the interfaces below",
            "turns this interface's settings under overload, which changes nothing there",
        );
    }
    let mut settings: Vec<_> = napi
        .iter()
        .filter_map(|napi| Some((napi.defer_hard_irqs?, napi.gro_flush_timeout?)))
        .collect();
    let per_queue = !settings.is_empty();
    settings.sort_unstable();
    settings.dedup();
    let texts: Vec<_> = settings
        .iter()
        .map(|(defer, timeout)| format!("defer {defer}, timeout {timeout} ns"))
        .collect();
    if per_queue {
        let found = format!("set per queue; now {}", texts.join("; "));
        return finding(
            "holdoff",
            Verdict::Ok,
            found,
            "sets it queue by queue under overload",
        );
    }
    let attribute = |attribute| device.and_then(|d| d.attribute(attribute).ok().flatten());
    let defer = attribute(Attribute::NapiDeferHardIrqs);
    match defer.zip(attribute(Attribute::GroFlushTimeout)) {
        Some((defer, timeout)) => finding(
            "holdoff",
            Verdict::Ok,
            format!("set for the whole device; now defer {defer}, timeout {timeout} ns"),
            "sets the device's under overload",
        ),
        None => finding(
            "holdoff",
            Verdict::Limited,
            "the kernel has no holdoff settings for this device",
            "leaves interrupts as they are",
        ),
    }
}

fn threads(device: Option<&Device>, driver: &str, napi: &[Napi]) -> Finding {
    let switch = device.and_then(|d| d.attribute(Attribute::Threaded).ok().flatten());
    let threads = napi.iter().filter(|napi| napi.thread.is_some()).count();
    match switch {
        Some(0) if !TRIED.contains(&driver) => finding(
            "threads",
            Verdict::Limited,
            format!("threaded polling was not tried with `{driver}`: some drivers hang by it"),
            "switches it on with `any-driver` alone",
        ),
        Some(0) => finding(
            "threads",
            Verdict::Ok,
            "threaded polling is possible and off",
            "switches it on where asked, and back",
        ),
        Some(_) => finding(
            "threads",
            Verdict::Ok,
            format!("threaded polling is on already: {threads} threads"),
            "gives the threads their old scheduling back at exit",
        ),
        None => finding(
            "threads",
            Verdict::Limited,
            "no switch for threaded polling",
            "cannot bound the CPU share of receive work by a thread",
        ),
    }
}

fn ring(ifindex: u32) -> Result<Finding, Error> {
    let ring = ethtool::receive_ring(ifindex).map_err(os("ask for the receive ring's size"))?;
    Ok(match ring {
        Some((size, max)) => finding(
            "ring",
            Verdict::Ok,
            format!("{size} receive descriptors of at most {max}"),
            "leaves it",
        ),
        None => finding(
            "ring",
            Verdict::Limited,
            "the driver does not tell its ring's size",
            "leaves it",
        ),
    })
}

fn namespace(link: &Link) -> Finding {
    // Process 1 may be hidden from us; the first kernel thread rarely is.
    let first = ["/proc/1/ns/net", "/proc/2/ns/net"];
    let first = first.iter().find_map(|path| fs::read_link(path).ok());
    let ours = fs::read_link("/proc/thread-self/ns/net").ok();
    if ours.is_some() && first.is_some() && first != ours {
        return finding(
            "namespace",
            Verdict::Limited,
            "this is another network namespace than process 1's (a container's, perhaps)",
            "sees the sockets of this namespace only, and admits what is for others",
        );
    }
    if link.peer_elsewhere {
        return finding(
            "namespace",
            Verdict::Limited,
            "its other end is in another network namespace: a container's, or the host's if this is a container",
            "protects the sockets on this side only; run it over there for those",
        );
    }
    finding(
        "namespace",
        Verdict::Ok,
        "the interface and its sockets are in this network namespace",
        "sees every socket",
    )
}

fn syn_cookies(is_veth: bool) -> Finding {
    if host::check_capabilities().is_err() {
        return finding(
            "syn_cookies",
            Verdict::Unknown,
            "without privileges the kernel does not tell whether it makes SYN cookies for XDP programs, nor the packet filter's rules",
            "answers with SYN cookies where it may",
        );
    }
    answering(is_veth)
}

/// Where the kernel may be asked.
fn answering(is_veth: bool) -> Finding {
    let setting = fs::read_to_string("/proc/sys/net/ipv4/tcp_syncookies");
    let setting = setting
        .ok()
        .and_then(|text| text.trim().parse::<u32>().ok());
    let helpers = has_helper(libbpf_sys::BPF_FUNC_tcp_gen_syncookie)
        && has_helper(libbpf_sys::BPF_FUNC_tcp_check_syncookie);
    let discards = "discards SYNs early when a listener's backlog is full";
    let is_possible = helpers && matches!(setting, Some(1 | 2));
    match FilterWatch::begin().on_interval(Instant::now()) {
        Filter::MayWantSyn(why) if is_possible => {
            return finding(
                "syn_cookies",
                Verdict::Limited,
                why,
                "leaves SYNs past a listener's queue to the stack, which makes its own cookies",
            );
        }
        Filter::NotKnown(why) if is_possible => {
            return finding(
                "syn_cookies",
                Verdict::Limited,
                why,
                "leaves SYNs past a listener's queue to the stack, unless `--syn-cookies true` says that the filter takes connections whose SYN it never saw",
            );
        }
        _ => {}
    }
    match (helpers, setting) {
        (true, Some(1 | 2)) if is_veth => finding(
            "syn_cookies",
            Verdict::Limited,
            "a veth drops what XDP sends back, unless GRO is on or a program runs at its other end",
            "answers with SYN cookies, and leaves them to the stack as soon as the link refuses one",
        ),
        (true, Some(1 | 2)) => finding(
            "syn_cookies",
            Verdict::Ok,
            "the kernel makes SYN cookies for XDP programs, and net.ipv4.tcp_syncookies is on",
            "answers with SYN cookies for this interface's addresses, while they are seen to arrive",
        ),
        (true, _) => finding(
            "syn_cookies",
            Verdict::Limited,
            "net.ipv4.tcp_syncookies is off",
            discards,
        ),
        (false, _) => finding(
            "syn_cookies",
            Verdict::Limited,
            "the kernel makes no SYN cookies for XDP programs (Linux with CONFIG_SYN_COOKIES does)",
            discards,
        ),
    }
}

fn has_helper(helper: libbpf_sys::bpf_func_id) -> bool {
    libbpf_rs::set_print(None);
    // SAFETY: takes two numbers; the options may be null.
    let answer = unsafe {
        libbpf_sys::libbpf_probe_bpf_helper(libbpf_sys::BPF_PROG_TYPE_XDP, helper, std::ptr::null())
    };
    answer == 1
}

fn left_turned(interface: &str) -> Finding {
    let told = knobs::check_directory().map_err(OpenError::from);
    match told.and_then(|()| knobs::left_turned(interface)) {
        Ok(0) => finding(
            "settings",
            Verdict::Ok,
            "nothing is left turned",
            "needs no restoring",
        ),
        Ok(count) => finding(
            "settings",
            Verdict::Ok,
            format!("{count} settings are recorded as turned"),
            "restores them at exit, at the next start, or by `plimsoll guard restore`",
        ),
        Err(error) if error.wants_root() => finding(
            "settings",
            Verdict::Unknown,
            "only root can see whether a killed guard left something turned",
            "restores that at its start",
        ),
        Err(error) => finding(
            "settings",
            Verdict::Missing,
            error.to_string(),
            "does not start",
        ),
    }
}
