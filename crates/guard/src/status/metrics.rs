//! What a guard tells Prometheus.
//!
//! Totals by kind and outcome are always exported. Channels are many on a
//! resolver, so only so many are: those with most packets when there was room,
//! and then as long as they get packets, so that no series jumps. The place of one that
//! had none for a minute is for others: its socket may be gone. The rest is counted
//! in the totals. No metric has the address of a sender.

mod sources;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use plimsoll_core::demux::Kind;
use plimsoll_metrics::{Collector, DescriptorEncoder, Format, Labels, MetricType, Unit};
use plimsoll_metrics::{MetricsError, MetricsServer, counter, gauge};

use super::document::Condition;
use super::reader::Latest;
use super::server::Answers;
use crate::by_channel::ByChannel;
use crate::counters::{Channel, Counters, Outcome};
use crate::ledger::Stage;

/// Serves metrics of `interface` until the process ends, with series for at most
/// `channels_max` channels.
///
/// # Errors
///
/// The server does not start.
pub fn serve_metrics(
    server: MetricsServer,
    interface: &str,
    channels_max: usize,
    started: Instant,
    answers: Answers,
) -> Result<(), MetricsError> {
    let exporter = Mutex::new(Exporter {
        interface: interface.to_owned(),
        started,
        channels_max,
        known: ByChannel::default(),
        last: None,
    });
    server.start(move |format| {
        answers.with_latest(|_, latest| {
            // A panic of another thread leaves nothing half done here.
            let mut exporter = exporter.lock().unwrap_or_else(PoisonError::into_inner);
            exporter.text(latest, format)
        })
    })
}

/// A channel that had no packet for so long gives its place to one that has.
const QUIET: Duration = Duration::from_secs(60);

/// What is known of a channel, from one scrape to the next.
#[derive(Clone, Copy, Debug)]
struct Known {
    offered: u64,
    /// When packets were last seen to have come.
    busy_at: Instant,
    is_exported: bool,
}

impl Known {
    /// What was known `before` becomes this.
    fn of(channel: &Channel, before: Option<Self>, now: Instant) -> Self {
        let offered = channel.packets.offered();
        let busy_at = before.filter(|before| before.offered == offered);
        Self {
            offered,
            busy_at: busy_at.map_or(now, |before| before.busy_at),
            is_exported: before.is_some_and(|before| before.is_exported),
        }
    }

    fn is_busy(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.busy_at) < QUIET
    }
}

/// What is exported, from one scrape to the next.
#[derive(Debug)]
struct Exporter {
    interface: String,
    started: Instant,
    channels_max: usize,
    known: ByChannel<Known>,
    /// The last answer and what it is of: who asks often costs little.
    last: Option<(Instant, Format, String)>,
}

impl Exporter {
    fn text(&mut self, latest: &Arc<Latest>, format: Format) -> String {
        match &self.last {
            Some((at, form, text)) if *at == latest.at && *form == format => text.clone(),
            _ => {
                let text = format.encode("plimsoll_guard", Box::new(self.sample(latest)));
                self.last = Some((latest.at, format, text.clone()));
                text
            }
        }
    }

    fn sample(&mut self, latest: &Arc<Latest>) -> Sample {
        let snapshot = &latest.snapshot;
        Sample {
            interface: snapshot.name(&self.interface),
            uptime_s: latest.at.duration_since(self.started).as_secs_f64(),
            channels: self.choose(&snapshot.counters.channels, latest.at),
            latest: Arc::clone(latest),
        }
    }

    /// Those exported before, and the ones with most packets of the others where there is room.
    /// Whoever had a packet lately comes before whoever had none.
    fn choose(&mut self, channels: &[Channel], now: Instant) -> Vec<Exported> {
        self.known
            .carry(channels, |channel, before| Known::of(channel, before, now));
        let known = self.known.with(channels);
        let mut chosen: Vec<(&Channel, Known)> = known
            .filter_map(|(channel, known)| Some((channel, known?)))
            .collect();
        let rank = |(_, known): &(&Channel, Known)| {
            let is_busy = known.is_busy(now);
            (
                Reverse(is_busy),
                Reverse(known.is_exported),
                Reverse(known.offered),
            )
        };
        if self.channels_max < chosen.len() {
            chosen.select_nth_unstable_by_key(self.channels_max, rank);
            chosen.truncate(self.channels_max);
        }
        chosen.sort_unstable_by_key(|(channel, _)| channel.key());
        let mut exported = chosen.iter().map(|(channel, _)| channel.key()).peekable();
        self.known.carry(channels, |channel, known| {
            let is_exported = exported.next_if_eq(&channel.key()).is_some();
            let known = known.unwrap_or_else(|| Known::of(channel, None, now));
            Known {
                is_exported,
                ..known
            }
        });
        let exported = chosen.into_iter().map(|(channel, known)| Exported {
            channel: channel.clone(),
            is_busy: known.is_busy(now),
        });
        exported.collect()
    }
}

/// A channel with series of its own.
#[derive(Debug)]
struct Exported {
    channel: Channel,
    /// It had a packet lately, so its socket is there.
    is_busy: bool,
}

/// The values of one scrape.
#[derive(Debug)]
struct Sample {
    interface: String,
    uptime_s: f64,
    channels: Vec<Exported>,
    latest: Arc<Latest>,
}

impl Sample {
    fn counters(&self) -> &Counters {
        &self.latest.snapshot.counters
    }

    fn condition(&self) -> &Condition {
        &self.latest.snapshot.condition
    }

    fn labels<'a>(&self, more: &[(&'a str, &str)]) -> Labels<'a> {
        let mut labels = vec![("interface", self.interface.clone())];
        labels.extend(
            more.iter()
                .map(|(name, value)| (*name, (*value).to_owned())),
        );
        labels
    }

    fn channel_labels<'a>(&self, channel: &Channel) -> Labels<'a> {
        let mut labels = self.labels(&[("kind", channel.kind.name())]);
        labels.push(("address", channel.address.to_string()));
        labels.push(("port", channel.port.to_string()));
        labels
    }

    fn encode_totals(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Packets seen, each in exactly one kind and one outcome";
        let mut family = encoder.encode_descriptor("packets", help, None, MetricType::Counter)?;
        for (kind, packets) in Kind::ALL.iter().zip(&self.counters().totals) {
            for outcome in Outcome::ALL {
                let labels = self.labels(&[("kind", kind.name()), ("outcome", outcome.name())]);
                counter(&mut family, &labels, &packets.count(outcome))?;
            }
        }
        let help = "CPU time of receiving, charged to the kind whose packets caused it";
        let (unit, counts) = (Some(&Unit::Seconds), MetricType::Counter);
        let mut family = encoder.encode_descriptor("charged_cpu", help, unit, counts)?;
        for (kind, ns) in Kind::ALL.iter().zip(&self.counters().charged_ns) {
            let seconds = *ns as f64 / 1e9;
            let labels = self.labels(&[("kind", kind.name())]);
            counter(&mut family, &labels, &seconds)?;
        }
        Ok(())
    }

    fn encode_channels(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Packets for the socket of a channel, by outcome";
        let kind = MetricType::Counter;
        let mut family = encoder.encode_descriptor("channel_packets", help, None, kind)?;
        for Exported { channel, .. } in &self.channels {
            for outcome in Outcome::ALL {
                let mut labels = self.channel_labels(channel);
                labels.push(("outcome", outcome.name().to_owned()));
                counter(&mut family, &labels, &channel.packets.count(outcome))?;
            }
        }
        let help = "Part of a channel's queue that was occupied when last looked at, if it had a packet in the last minute";
        let kind = MetricType::Gauge;
        let mut family = encoder.encode_descriptor("channel_occupancy_ratio", help, None, kind)?;
        let busy = self.channels.iter().filter(|exported| exported.is_busy);
        for Exported { channel, .. } in busy {
            let ratio = f64::from(channel.occupancy) / f64::from(channel.capacity.max(1));
            gauge(&mut family, &self.channel_labels(channel), ratio)?;
        }
        Ok(())
    }

    /// Gauges, not counters: what waits or is in motion falls, too, and what a
    /// difference is put down to may change.
    fn encode_ledger(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Packets since the start by the place where they ended";
        let kind = MetricType::Gauge;
        let mut family = encoder.encode_descriptor("ledger_packets", help, None, kind)?;
        for stage in &self.latest.ledger.stages {
            for place in &stage.places {
                let labels = self.labels(&[
                    ("stage", &stage.name),
                    ("place", &place.name),
                    ("fate", place.fate.name()),
                ]);
                gauge(&mut family, &labels, place.packets as f64)?;
            }
        }
        let help = "Packets since the start that came to a stage of their way";
        self.encode_stages(encoder, "ledger_entered_packets", help, |stage| {
            stage.entered as f64 + stage.joined as f64
        })?;
        let help = "Packets since the start that no counter explains; below 0: counted twice";
        self.encode_stages(encoder, "ledger_unaccounted_packets", help, |stage| {
            stage.unaccounted as f64
        })?;
        let help = "Packets that moved while the ledger was read; below 0: seen twice";
        self.encode_stages(encoder, "ledger_in_motion_packets", help, |stage| {
            stage.in_motion as f64
        })
    }

    fn encode_stages(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        name: &str,
        help: &str,
        value: impl Fn(&Stage) -> f64,
    ) -> fmt::Result {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for stage in &self.latest.ledger.stages {
            gauge(
                &mut family,
                &self.labels(&[("stage", &stage.name)]),
                value(stage),
            )?;
        }
        Ok(())
    }

    fn encode_governor(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let flag = |condition| f64::from(u8::from(condition));
        let help = "1 while the governor holds the host in overload, else 0";
        let Condition {
            governor,
            syn_cookies,
            ..
        } = self.condition();
        let overload = flag(governor.mode != "interrupts");
        self.encode_one(encoder, "overload", help, None, overload)?;
        let help = "1 while input is shed by shares, else 0";
        self.encode_one(
            encoder,
            "shedding",
            help,
            None,
            flag(self.condition().shedding),
        )?;
        let help = "1 while the driver answers SYNs past a full SYN queue, 0 while it must not";
        let by_driver = flag(syn_cookies.as_ref().is_some_and(|told| told.by == "driver"));
        self.encode_one(encoder, "syn_cookies_by_driver", help, None, by_driver)?;
        let help = "Part of the busiest CPU's time that receiving took";
        let share = governor.network_share;
        self.encode_one(encoder, "network_share_ratio", help, None, share)?;
        let help = "Interrupt holdoff in overload of the busiest queue, 0 for the host's own";
        let holdoff_s = governor.holdoff_us / 1e6;
        self.encode_one(encoder, "holdoff", help, Some(&Unit::Seconds), holdoff_s)?;
        let help = "Changes of the governor's mode";
        let counts = MetricType::Counter;
        let mut family = encoder.encode_descriptor("mode_changes", help, None, counts)?;
        counter(&mut family, &self.labels(&[]), &governor.switches)
    }

    fn encode_unguarded(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "1 while no socket of a protocol is guarded, since others may take its packets";
        let kind = MetricType::Gauge;
        let mut family = encoder.encode_descriptor("unguarded", help, None, kind)?;
        for protocol in ["udp", "tcp"] {
            let mut unguarded = self.condition().unguarded.iter();
            let is_unguarded = unguarded.any(|one| one.protocol() == protocol);
            let labels = self.labels(&[("protocol", protocol)]);
            gauge(&mut family, &labels, f64::from(u8::from(is_unguarded)))?;
        }
        Ok(())
    }

    fn encode_one(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
        value: f64,
    ) -> fmt::Result {
        let mut family = encoder.encode_descriptor(name, help, unit, MetricType::Gauge)?;
        gauge(&mut family, &self.labels(&[]), value)
    }
}

impl Collector for Sample {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let encoder = &mut encoder;
        self.encode_totals(encoder)?;
        self.encode_channels(encoder)?;
        self.encode_sources(encoder)?;
        let help = "Channels that had packets and were not forgotten, exported one by one or not";
        self.encode_one(
            encoder,
            "channels",
            help,
            None,
            self.counters().channels.len() as f64,
        )?;
        let help = "Channels with series of their own";
        let exported = self.channels.len() as f64;
        self.encode_one(encoder, "channels_exported", help, None, exported)?;
        self.encode_ledger(encoder)?;
        self.encode_governor(encoder)?;
        self.encode_unguarded(encoder)?;
        let help = "1 while no program is attached and the guard waits for overload, else 0";
        let standing_by = f64::from(u8::from(self.condition().standing_by));
        self.encode_one(encoder, "standing_by", help, None, standing_by)?;
        let help = "How often the program was attached";
        let counts = MetricType::Counter;
        let mut family = encoder.encode_descriptor("attachments", help, None, counts)?;
        counter(
            &mut family,
            &self.labels(&[]),
            &self.condition().attachments,
        )?;
        let help = "1 if outcomes are counted only and everything passes, else 0";
        let observing = f64::from(u8::from(self.condition().observe));
        self.encode_one(encoder, "observing", help, None, observing)?;
        let help = "Time since the guard started";
        self.encode_one(encoder, "uptime", help, Some(&Unit::Seconds), self.uptime_s)
    }
}
