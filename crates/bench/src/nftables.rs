//! What an operator would use without the guard: a rate limit at the ingress
//! hook of the interface (nftables, family netdev), tuned by hand.
//!
//! The hook is the earliest place of the packet filter, but behind the
//! allocation of a socket buffer, and it knows no queue: the limit has to be
//! guessed, here by trying some ([`tune`]), and holds for one load.

use std::time::Duration;

use plimsoll_testbed::{Error as TestbedError, Host};

use crate::Error;

const TABLE: &str = "netdev plimsoll_bench";
const PATIENCE: Duration = Duration::from_secs(10);
/// What may come at once; less than the receive ring delivers in one poll
/// would punish bursts that fit.
const BURST_PACKETS: u32 = 256;

/// What the filter lets pass, and of which traffic.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Limit {
    /// The traffic that is limited, in nft's words.
    pub(crate) traffic: String,
    /// Packets per second that pass.
    pub(crate) rate_pps: u64,
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
    let Limit { traffic, rate_pps } = limit;
    format!(
        "add table {TABLE}; add counter {TABLE} dropped; \
         add chain {TABLE} ingress {{ type filter hook ingress device {device} priority 0; }}; \
         add rule {TABLE} ingress {traffic} limit rate over {rate_pps}/second \
         burst {BURST_PACKETS} packets counter name dropped drop"
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
    traffic: &str,
    candidates_pps: &[u64],
    mut score: impl FnMut(&Limit) -> Result<f64, Error>,
) -> Result<Limit, Error> {
    let mut best: Option<(f64, Limit)> = None;
    for &rate_pps in candidates_pps {
        let limit = Limit {
            traffic: traffic.to_owned(),
            rate_pps,
        };
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
        let best = tune("udp dport 9", &[1, 5, 9], |limit| {
            Ok(-(limit.rate_pps as f64 - 6.0).abs())
        });
        assert_eq!(best.unwrap().rate_pps, 5);
    }
}
