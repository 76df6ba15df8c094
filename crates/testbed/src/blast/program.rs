//! Loads the BPF program for a spec, resets it before a run and reads it after.

use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use ipnet::{IpNet, Ipv4Net};
use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use libbpf_rs::{ErrorKind, Link, MapCore, MapFlags};

use super::departures::Departures;
use super::frame::Template;
use super::lengths::{self, Length};
use super::sources::{Hosts, Sources};
use super::spec::{Schedule, Spec, Transport};
use crate::Error;

include!(concat!(env!("OUT_DIR"), "/blast.rs")); // mod skeleton

use skeleton::types;
pub(super) use skeleton::types::blast_progress as Progress;
use skeleton::types::{blast_constants as Constants, blast_schedule_kind as Kind};

const TICK_BITS: u32 = Constants::TICK_BITS.0;
/// A generator that did not run for so long was away.
pub(super) const ABSENCE_NS: u64 = Constants::ABSENCE_NS.0 as u64;

/// The loaded program, and the tracing program that watches its frames leave.
pub(super) struct Program {
    skeleton: skeleton::BlastSkel<'static>,
    _watcher: Link,
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program").finish_non_exhaustive()
    }
}

impl Program {
    /// `spec` must be valid.
    pub(super) fn load(spec: &Spec, template: &Template, ifindex: u32) -> Result<Self, Error> {
        if !Path::new("/sys/kernel/btf/vmlinux").exists() {
            return Err(Error::MissingKernelFeature {
                feature: "BTF (CONFIG_DEBUG_INFO_BTF)",
                detail: "/sys/kernel/btf/vmlinux does not exist".to_owned(),
            });
        }
        // The skeleton borrows the object's place. Eight bytes per load are
        // the price of a generator that owns its skeleton without unsafe code.
        let place = Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = skeleton::BlastSkelBuilder::default()
            .open(place)
            .map_err(refused("open the generator"))?;
        let rodata = open
            .maps
            .rodata_data
            .as_deref_mut()
            .expect("the program has read-only data");
        rodata.flow = flow(spec, template, ifindex);
        rodata.schedule = schedule(spec);
        rodata.log_table = log_table();
        let recorded = spec.recorded().map_or(&[][..], Departures::times_ns);
        let room = u32::try_from(recorded.len()).unwrap_or(u32::MAX).max(1);
        let sized = open.maps.departures.set_max_entries(room);
        sized.map_err(refused("make room for departures"))?;
        let skeleton = open.load().map_err(refused("load the generator"))?;
        write_departures(&skeleton.maps.departures, recorded)?;
        let watcher = skeleton
            .progs
            .on_transmit
            .attach_trace()
            .map_err(refused("watch frames leave"))?;
        let mut program = Self {
            skeleton,
            _watcher: watcher,
        };
        program.disarm();
        Ok(program)
    }

    /// The program, for the call that runs it.
    pub(super) fn descriptor(&self) -> Result<OwnedFd, Error> {
        self.skeleton
            .progs
            .blast
            .as_fd()
            .try_clone_to_owned()
            .map_err(Error::io("duplicate the program's descriptor"))
    }

    /// Prepares a run from the start of the seed's sequence.
    pub(super) fn arm(&mut self, seed: u64) {
        let bss = self.bss();
        bss.progress = Progress {
            frame_random: seed,
            // Any other start: the two sequences are the same orbit, 2^63 apart.
            gap_random: seed ^ (1 << 63),
            ..Progress::default()
        };
        bss.group = types::blast_group::default();
        bss.departure_errors.fill(0);
    }

    /// From now on a run of the program sends nothing.
    pub(super) fn disarm(&mut self) {
        self.bss().progress.finished = 1;
    }

    fn bss(&mut self) -> &mut types::bss {
        self.skeleton
            .maps
            .bss_data
            .as_deref_mut()
            .expect("the program has zeroed data")
    }

    /// Whether the run that is under way has come to its end. Asks the kernel:
    /// the mapped memory is the running program's.
    pub(super) fn is_finished(&self) -> Result<bool, Error> {
        let value = self
            .skeleton
            .maps
            .bss
            .lookup(&0u32.to_ne_bytes(), MapFlags::ANY)
            .map_err(refused("read the generator's progress"))?
            .expect("an array has all its elements");
        let at =
            std::mem::offset_of!(types::bss, progress) + std::mem::offset_of!(Progress, finished);
        Ok(value[at..at + 4] != [0; 4])
    }

    /// What the run has done and the histogram of its departure errors, once
    /// no call is under way.
    pub(super) fn outcome(&mut self) -> (Progress, &[u64]) {
        let bss = self.bss();
        // What is still in a group was redirected to no link.
        bss.progress.failed += u64::from(std::mem::take(&mut bss.group.frames));
        (bss.progress, &bss.departure_errors)
    }
}

/// Tells the program when frames depart.
fn write_departures(map: &impl MapCore, times_ns: &[u64]) -> Result<(), Error> {
    let count = u32::try_from(times_ns.len()).unwrap_or(u32::MAX);
    if count == 0 {
        return Ok(());
    }
    let keys: Vec<u8> = (0..count).flat_map(u32::to_ne_bytes).collect();
    let values: Vec<u8> = times_ns
        .iter()
        .flat_map(|time| time.to_ne_bytes())
        .collect();
    map.update_batch(&keys, &values, count, MapFlags::ANY, MapFlags::ANY)
        .map_err(refused("write departures"))
}

fn flow(spec: &Spec, template: &Template, ifindex: u32) -> types::blast_flow {
    let flow = &spec.flow;
    let mut header = [0; 12];
    for (word, bytes) in header.iter_mut().zip(template.bytes.chunks(8)) {
        let mut padded = [0; 8];
        padded[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_ne_bytes(padded);
    }
    let span = |ports: &std::ops::RangeInclusive<u16>| u32::from(ports.end() - ports.start()) + 1;
    types::blast_flow {
        header,
        ip_sum: template.ip_sum.into(),
        transport_sum: template.transport_sum.into(),
        source: source(&flow.source),
        source_port_base: (*flow.source_ports.start()).into(),
        source_port_span: span(&flow.source_ports),
        destination_port_base: (*flow.destination_ports.start()).into(),
        destination_port_span: span(&flow.destination_ports),
        bytes: template.bytes.len() as u32,
        ifindex,
        lengths: lengths_of(spec, template),
        order: lengths::ORDER,
        is_mixed: spec.imix.into(),
        is_ipv6: flow.destination.is_ipv6().into(),
        is_tcp: matches!(flow.transport, Transport::TcpSyn).into(),
        ..types::blast_flow::default()
    }
}

/// Nothing where all frames have one length.
fn lengths_of(spec: &Spec, template: &Template) -> [types::blast_length; 4] {
    let mut all = [types::blast_length::default(); 4];
    if spec.imix {
        for (to, length) in all.iter_mut().zip(lengths::lengths(spec, template)) {
            let Length {
                cut,
                ip_sum,
                transport_sum,
                ip_bytes,
                udp_bytes,
            } = length;
            *to = types::blast_length {
                cut,
                ip_sum: ip_sum.into(),
                transport_sum: transport_sum.into(),
                ip_bytes: ip_bytes.to_be(),
                udp_bytes: udp_bytes.to_be(),
            };
        }
    }
    all
}

/// How the program draws source addresses.
fn source(sources: &Sources) -> types::blast_source {
    match sources {
        Sources::Prefix(IpNet::V4(net)) => {
            let (v4_base, hosts) = hosts_v4(*net);
            types::blast_source {
                v4_base,
                hosts,
                networks: 1,
                ..Default::default()
            }
        }
        Sources::Prefix(IpNet::V6(net)) => {
            let (base, drawn) = (net.network().to_bits(), !net.netmask().to_bits());
            types::blast_source {
                v6_upper: (base >> 64) as u64,
                v6_lower: base as u64,
                v6_upper_mask: (drawn >> 64) as u64,
                v6_lower_mask: drawn as u64,
                ..Default::default()
            }
        }
        Sources::Hosts(hosts) => several(hosts),
    }
}

/// First address and number of addresses.
fn hosts_v4(net: Ipv4Net) -> (u32, u32) {
    match net.prefix_len() {
        32 => (net.addr().into(), 1),
        31 => (net.network().into(), 2),
        _ => {
            let (first, last) = (u32::from(net.network()), u32::from(net.broadcast()));
            (first + 1, last - first - 1)
        }
    }
}

/// Hosts in several networks; the spec is valid.
fn several(hosts: &Hosts) -> types::blast_source {
    let common = types::blast_source {
        hosts: hosts.hosts,
        networks: hosts.networks,
        ..Default::default()
    };
    match hosts.first {
        IpNet::V4(first) => types::blast_source {
            v4_base: u32::from(first.network()) + 1,
            v4_distance: hosts.distance_v4(),
            ..common
        },
        IpNet::V6(first) => types::blast_source {
            v6_upper: (first.network().to_bits() >> 64) as u64,
            v6_lower: 1,
            v6_distance: hosts.distance_v6(),
            ..common
        },
    }
}

fn schedule(spec: &Spec) -> types::blast_schedule {
    let catch_up = spec.catch_up;
    let catch_up_gap = catch_up.rate_for(spec.schedule).map_or(0, gap_ticks);
    let mut schedule = types::blast_schedule {
        catch_up_gap_ticks: catch_up_gap,
        catch_up_burst_ticks: catch_up_gap * u64::from(catch_up.burst_for(spec.schedule) - 1),
        lag_max_ticks: nanos(catch_up.lag_max) << TICK_BITS,
        duration_ns: nanos(spec.bound.time),
        count_frames: spec.frames_max(),
        batch_runs: batch_runs(spec),
        ..Default::default()
    };
    schedule.kind = match spec.schedule {
        Schedule::Fixed { rate_pps } => {
            schedule.gap_ticks = gap_ticks(rate_pps);
            Kind::SCHEDULE_FIXED
        }
        Schedule::Poisson { rate_pps } => {
            schedule.gap_ticks = gap_ticks(rate_pps);
            Kind::SCHEDULE_POISSON
        }
        Schedule::Bursts {
            rate_pps,
            burst_frames,
        } => {
            schedule.burst_frames = burst_frames.into();
            schedule.gap_ticks = gap_ticks(rate_pps) * u64::from(burst_frames);
            Kind::SCHEDULE_BURSTS
        }
        Schedule::Ramp { from_pps, to_pps } => {
            schedule.ramp_from_pps = from_pps;
            schedule.ramp_to_pps = to_pps;
            schedule.ramp_us = nanos(spec.bound.time) / 1000;
            Kind::SCHEDULE_RAMP
        }
        Schedule::Recorded { .. } => Kind::SCHEDULE_RECORDED,
        Schedule::Unlimited => Kind::SCHEDULE_UNLIMITED,
    };
    schedule
}

pub(super) fn batch_runs(spec: &Spec) -> u32 {
    spec.batch_runs
        .unwrap_or_else(|| spec.schedule.batch_runs())
}

/// The time between two departures, rounded to the nearest tick.
fn gap_ticks(rate_pps: u64) -> u64 {
    ((1_000_000_000 << TICK_BITS) + rate_pps / 2) / rate_pps
}

pub(super) fn ticks_to_nanos(ticks: u64) -> u64 {
    ticks >> TICK_BITS
}

/// The shortest error that the program counts in `bucket`.
pub(super) fn bucket_nanos(bucket: usize) -> u64 {
    let sub_buckets = 1 << Constants::ERROR_SUB_BUCKETS_LOG2.0;
    match (bucket / sub_buckets, (bucket % sub_buckets) as u64) {
        (0, exact) => exact,
        (octave, sub_bucket) => (sub_buckets as u64 + sub_bucket) << (octave - 1),
    }
}

/// A valid spec's durations fit.
fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// ln(1 + i / n) in 2^-16.
fn log_table() -> [u32; 257] {
    std::array::from_fn(|i| ((i as f64 / 256.0).ln_1p() * 65_536.0).round() as u32)
}

/// Tells a kernel or a user that cannot load BPF from a fault of ours.
fn refused(action: &'static str) -> impl FnOnce(libbpf_rs::Error) -> Error {
    move |error| match error.kind() {
        ErrorKind::PermissionDenied => Error::NotRoot,
        _ => Error::io(action)(std::io::Error::other(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drawn_ipv4_sources_leave_out_network_and_broadcast() {
        let range = |text: &str| hosts_v4(text.parse().unwrap());
        assert_eq!(range("10.0.0.7/32"), (0x0a00_0007, 1));
        assert_eq!(range("10.0.0.7/31"), (0x0a00_0006, 2));
        assert_eq!(range("10.0.0.7/24"), (0x0a00_0001, 254));
        assert_eq!(range("0.0.0.0/0"), (1, u32::MAX - 1));
    }

    #[test]
    fn drawn_ipv6_sources_keep_their_prefix() {
        let drawn = |text: &str| {
            let source = source(&text.parse().unwrap());
            assert_eq!((source.v6_upper, source.hosts), (0x2001_0002_0000_0000, 0));
            (source.v6_lower, source.v6_upper_mask, source.v6_lower_mask)
        };
        assert_eq!(drawn("2001:2::7/128"), (7, 0, 0));
        assert_eq!(drawn("2001:2::ff07/120"), (0xff00, 0, 0xff));
        assert_eq!(drawn("2001:2::/64"), (0, 0, u64::MAX));
        assert_eq!(drawn("2001:2::/48"), (0, 0xffff, u64::MAX));
    }

    #[test]
    fn gaps_add_up() {
        for rate in [1, 3, 7_000, 999_983, 20_000_000] {
            let second = ticks_to_nanos(gap_ticks(rate) * rate);
            assert!(second.abs_diff(1_000_000_000) <= 200, "{rate}: {second}");
        }
    }
}
