//! Large receive offload: vmxnet3 switches it off for a program, and does not switch it on again.

use plimsoll_kernel::ethtool::{active_features, switch_feature};

use super::Outcome;
use super::guard::Guard;
use super::site::Site;
use super::steps::until;

/// As the kernel calls it.
const LRO: &str = "rx-lro";

/// It is on again after a guard that stops, and after one that is killed.
pub(crate) fn offload(site: &Site) -> Outcome {
    // The kernel has none below a VLAN device.
    site.end_vlan()?;
    switch_feature(site.ifindex, LRO, true)?;
    if !is_on(site)? {
        return Err("the driver does not switch it on".into());
    }
    for is_killed in [false, true] {
        let guard = Guard::start(site)?;
        if is_on(site)? {
            return Err("it is on beside a program".into());
        }
        match is_killed {
            true => drop(guard.kill()?),
            false => guard.stop()?,
        }
        until("it is on again", || is_on(site))?;
    }
    switch_feature(site.ifindex, LRO, false)?;
    // What the killed one has left goes with the next.
    Guard::start(site)?.stop()?;
    Ok("on again after a stop and after a kill".to_owned())
}

fn is_on(site: &Site) -> Outcome<bool> {
    Ok(active_features(site.ifindex)?.is_some_and(|features| features.contains(LRO)))
}
