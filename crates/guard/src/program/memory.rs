//! What the program's maps take of the kernel's memory, by the kernel's own figures
//! (`memlock` in `/proc/self/fdinfo`, `bpf_map_show_fdinfo`).

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

use libbpf_rs::{MapCore, MapType, skel::Skel};

use super::Program;

/// Memory of the maps, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MapMemory {
    /// All of them.
    pub(crate) total: u64,
    /// What each CPU that the host could have adds to it.
    pub(crate) per_cpu: u64,
    /// So many CPUs.
    pub(crate) cpus: u32,
}

/// Arrays that the loader sizes by the number of CPUs.
const SIZED_BY_CPUS: [&str; 6] = [
    "channels",
    "changes",
    "fair_networks",
    "fair_subnets",
    "fair_hosts",
    "fair_samples",
];

impl Program<'_> {
    pub(crate) fn memory(&self) -> io::Result<MapMemory> {
        let mut memory = MapMemory {
            total: 0,
            per_cpu: 0,
            cpus: self.cpus,
        };
        let cpus = u64::from(self.cpus);
        let kernel_s = libbpf_rs::num_possible_cpus().map_err(io::Error::other)? as u64;
        for map in self.skeleton.object().maps() {
            let bytes = locked(map.as_fd().as_raw_fd())?;
            let is_sized = |name: &str| SIZED_BY_CPUS.contains(&name);
            let per_cpu = if map.map_type() == MapType::PercpuArray {
                bytes / kernel_s
            } else if map.name().to_str().is_some_and(is_sized) {
                bytes / cpus
            } else {
                memory.total += bytes;
                continue;
            };
            memory.per_cpu += per_cpu;
            memory.total += per_cpu * cpus;
        }
        Ok(memory)
    }
}

fn locked(map: i32) -> io::Result<u64> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{map}"))?;
    let bytes = info
        .lines()
        .find_map(|line| line.strip_prefix("memlock:"))
        .and_then(|bytes| bytes.trim().parse().ok());
    bytes.ok_or_else(|| io::Error::other("the kernel does not tell what a map takes"))
}

#[cfg(test)]
mod tests {
    use crate::program::test_host::with_guard_for;

    use super::*;

    /// What docs/guard.md says of hosts that could have so many CPUs.
    #[test]
    fn the_guide_says_what_maps_take() {
        let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guard.md");
        let guide = fs::read_to_string(guide).unwrap();
        for cpus in [2, 8, 64, 256] {
            with_guard_for(cpus, |guard| {
                let memory = guard.program.memory().unwrap();
                let said: Vec<f64> = guide
                    .lines()
                    .filter_map(|line| line.strip_prefix(&format!("| {cpus} | ")))
                    .filter(|rest| rest.ends_with(" MiB |"))
                    .flat_map(|rest| rest.split(" MiB |"))
                    .filter_map(|figure| figure.trim().parse().ok())
                    .collect();
                let kernel_s = [memory.per_cpu, memory.total];
                let kernel_s = kernel_s.map(|bytes| bytes as f64 / f64::from(1 << 20));
                assert_eq!(said.len(), 2, "{cpus} CPUs: {kernel_s:?}");
                for (said, is) in said.iter().zip(kernel_s) {
                    assert!((said - is).abs() < is / 20.0, "{cpus}: {said}, {is}");
                }
            });
        }
    }

    /// A map that grows with CPUs and is not in the list would be counted once.
    #[test]
    fn all_that_grows_with_cpus_is_counted_per_cpu() {
        let of = |cpus| {
            let mut memory = None;
            with_guard_for(cpus, |guard| memory = Some(guard.program.memory().unwrap()));
            memory.unwrap()
        };
        let shared = |cpus| {
            let memory = of(cpus);
            memory.total - memory.per_cpu * u64::from(cpus)
        };
        let few = shared(2);
        for cpus in [8, 256] {
            let many = shared(cpus);
            assert!(many.abs_diff(few) < few / 100, "{cpus}: {many}, {few}");
        }
    }
}
