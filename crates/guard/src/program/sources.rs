//! What the program knows of sources: how large its tables are, and that it decides as
//! core does.

use plimsoll_core::fairness::{self, FairnessConfig, Keys};

use super::skeleton::OpenGuardSkel;
use super::types::{fair_key, fair_limit};
use crate::error::Error;
use plimsoll_kernel::error::bpf;

// The program judges sources by the same numbers as the decision in core.
const _: () = {
    use fair_limit as P;

    assert!(fairness::TICK_SHIFT == super::types::limit::SHARE_TICK_SHIFT.0);
    assert!(fairness::PACKET == P::FAIR_PACKET.0);
    assert!(fairness::BURST_TICKS == P::FAIR_BURST_TICKS.0);
    assert!(fairness::BURST_PACKETS == P::FAIR_BURST_PACKETS.0);
    assert!(fairness::EPOCH_TICKS == P::FAIR_EPOCH_TICKS.0);
    assert!(fairness::EPOCH_TICKS_MAX == P::FAIR_EPOCH_TICKS_MAX.0);
    assert!(fairness::STALE_TICKS == P::FAIR_STALE_TICKS.0);
    assert!(fairness::CHANNEL_EPOCH_PACKETS == P::FAIR_CHANNEL_EPOCH_PACKETS.0);
    assert!(fairness::NODE_EPOCH_PACKETS == P::FAIR_NODE_EPOCH_PACKETS.0);
    assert!(fairness::CALM_TICKS == P::FAIR_CALM_TICKS.0);
    assert!(fairness::WAIT_TICKS_MAX == P::FAIR_WAIT_TICKS_MAX.0);
    assert!(fairness::STRANGERS_MIN == P::FAIR_STRANGERS_MIN.0);
    assert!(fairness::STRANGERS_MAX == P::FAIR_STRANGERS_MAX.0);
    assert!(fairness::STRANGERS_LOOK == P::FAIR_STRANGERS_LOOK.0);
    assert!(fairness::STRANGERS_TICKS == P::FAIR_STRANGERS_TICKS.0);
    assert!(fairness::LEVEL_MIN == P::FAIR_LEVEL_MIN.0);
    assert!(fairness::LEVEL_MAX == P::FAIR_LEVEL_MAX.0);
    assert!(fairness::WAYS == P::FAIR_WAYS.0 as usize);
    assert!(FairnessConfig::DEFAULT.network_sets == P::FAIR_NETWORK_SETS.0 as usize);
    assert!(FairnessConfig::DEFAULT.subnet_sets == P::FAIR_SUBNET_SETS.0 as usize);
    assert!(FairnessConfig::DEFAULT.host_sets == P::FAIR_HOST_SETS.0 as usize);
    assert!(Keys::COUNT == fair_key::FAIR_KEYS.0 as usize);
};

/// Sizes the tables for so many CPUs, each of which has its part.
pub(super) fn size(open: &mut OpenGuardSkel<'_>, cpus: u32) -> Result<(), Error> {
    let sizes = FairnessConfig::for_cpus(cpus as usize);
    let mask = |sets: usize| u32::try_from(sets - 1).unwrap_or(u32::MAX);
    if let Some(bss) = open.maps.bss_data.as_deref_mut() {
        bss.settings.fair_network_mask = mask(sizes.network_sets);
        bss.settings.fair_subnet_mask = mask(sizes.subnet_sets);
        bss.settings.fair_host_mask = mask(sizes.host_sets);
    }
    let entries = |sets: usize| mask(sets).saturating_add(1).saturating_mul(cpus);
    let maps = &mut open.maps;
    let sized = maps
        .fair_networks
        .set_max_entries(entries(sizes.network_sets));
    sized.map_err(bpf("size the table of networks"))?;
    let sized = maps
        .fair_subnets
        .set_max_entries(entries(sizes.subnet_sets));
    sized.map_err(bpf("size the table of subnets"))?;
    let sized = maps.fair_hosts.set_max_entries(entries(sizes.host_sets));
    sized.map_err(bpf("size the table of hosts"))?;
    Ok(())
}
