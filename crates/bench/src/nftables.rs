//! What an operator would use without the guard: a rate limit at the ingress
//! hook of the interface (nftables, family netdev), tuned by hand.
//!
//! The hook is the earliest place of the packet filter, but behind the
//! allocation of a socket buffer, and it knows no queue: the limit has to be
//! guessed, here by trying some ([`tune`]), and holds for one load. Or each source gets
//! a limit of its own, which is a constant as well.

use std::time::Duration;

use plimsoll_testbed::{Error as TestbedError, Host};

use crate::Error;

const TABLE: &str = "netdev plimsoll_bench";
const PATIENCE: Duration = Duration::from_secs(10);
/// What may come at once; less than the receive ring delivers in one poll
/// would punish bursts that fit.
const BURST_PACKETS: u32 = 256;

/// What one source may send at once, or a tenth of its rate.
const SOURCE_BURST_PACKETS: u64 = 5;
/// The set of sources, as large as nft makes one that packets fill unless told otherwise.
const SOURCES: &str = "add set netdev plimsoll_bench sources \
    { type ipv4_addr; size 65535; flags dynamic,timeout; timeout 10s; }; ";

/// What the filter lets pass, and of which traffic.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Limit {
    /// The traffic that is limited, in nft's words.
    pub(crate) traffic: String,
    /// Packets per second that pass.
    pub(crate) rate_pps: u64,
    /// Whether this holds for each IPv4 source of its own, not for all of them.
    pub(crate) per_source: bool,
}

impl Limit {
    /// One limit for all of `traffic`.
    pub(crate) fn of_all(traffic: &str, rate_pps: u64) -> Self {
        Self {
            traffic: traffic.to_owned(),
            rate_pps,
            per_source: false,
        }
    }

    /// A limit for each source of `traffic`.
    pub(crate) fn of_each_source(traffic: &str, rate_pps: u64) -> Self {
        Self {
            per_source: true,
            ..Self::of_all(traffic, rate_pps)
        }
    }
}

/// A filter that is in place. Dropping it removes it.
#[derive(Debug)]
pub(crate) struct PacketFilter<'a> {
    host: &'a Host,
}

impl<'a> PacketFilter<'a> {
    pub(crate) fn start(host: &'a Host, limit: &Limit) -> Result<Self, Error> {
        nft(host, &ruleset(host.device(), limit))?;
        Ok(Self { host })
    }

    /// Removes it and returns how many packets it dropped.
    pub(crate) fn stop(self) -> Result<u64, Error> {
        let listed = nft(self.host, &format!("list counter {TABLE} dropped"))?;
        packets(&listed)
    }
}

impl Drop for PacketFilter<'_> {
    fn drop(&mut self) {
        // The namespace may be gone, and the table with it.
        let _ = nft(self.host, &format!("delete table {TABLE}"));
    }
}

fn ruleset(device: &str, limit: &Limit) -> String {
    let Limit {
        traffic,
        rate_pps,
        per_source,
    } = limit;
    let (set, rate) = if *per_source {
        // As nft(8) shows it: a set that packets fill, with a limit per element. What no
        // longer fits the set is not limited.
        let burst = (rate_pps / 10).max(SOURCE_BURST_PACKETS);
        let rate = format!(
            "update @sources {{ ip saddr limit rate over {rate_pps}/second burst {burst} packets }}"
        );
        (SOURCES, rate)
    } else {
        let rate = format!("limit rate over {rate_pps}/second burst {BURST_PACKETS} packets");
        ("", rate)
    };
    format!(
        "add table {TABLE}; add counter {TABLE} dropped; {set}\
         add chain {TABLE} ingress {{ type filter hook ingress device {device} priority 0; }}; \
         add rule {TABLE} ingress {traffic} {rate} counter name dropped drop"
    )
}

fn nft(host: &Host, command: &str) -> Result<String, Error> {
    let output = host
        .command("nft")
        .args(["-j", command])
        .cpu(None)
        .package("nftables")
        .output(PATIENCE)?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The count in what `nft -j list counter` says.
fn packets(listed: &str) -> Result<u64, Error> {
    let json: Option<serde_json::Value> = serde_json::from_str(listed).ok();
    let counter = json.as_ref().and_then(|json| {
        let objects = json["nftables"].as_array()?;
        objects
            .iter()
            .find_map(|object| object["counter"]["packets"].as_u64())
    });
    counter.ok_or_else(|| {
        Error::Testbed(TestbedError::Parse {
            what: "the counter of nft",
            detail: listed.to_owned(),
        })
    })
}

/// Tries limits and returns the one with the highest score.
pub(crate) fn tune(
    candidates: impl IntoIterator<Item = Limit>,
    mut score: impl FnMut(&Limit) -> Result<f64, Error>,
) -> Result<Limit, Error> {
    let mut best: Option<(f64, Limit)> = None;
    for limit in candidates {
        let value = score(&limit)?;
        if best.as_ref().is_none_or(|(most, _)| value > *most) {
            best = Some((value, limit));
        }
    }
    let (_, limit) = best.expect("there is a candidate");
    Ok(limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_found_in_what_nft_says() {
        let listed = r#"{"nftables": [{"metainfo": {"version": "1.0.6"}},
            {"counter": {"family": "netdev", "name": "dropped", "packets": 17, "bytes": 1}}]}"#;
        assert_eq!(packets(listed).unwrap(), 17);
        assert!(packets("{}").is_err() && packets("").is_err());
    }

    #[test]
    fn tuning_keeps_the_best() {
        let candidates = [1, 5, 9].map(|rate_pps| Limit::of_all("udp dport 9", rate_pps));
        let best = tune(candidates, |limit| Ok(-(limit.rate_pps as f64 - 6.0).abs()));
        assert_eq!(best.unwrap().rate_pps, 5);
    }
}
