//! What is exported of a channel's sources: by class and level. No address is, so that
//! series stay bounded, and whoever keeps metrics keeps nobody's address.

use std::fmt;

use plimsoll_core::demux::Kind;
use plimsoll_metrics::{DescriptorEncoder, Labels, MetricType, counter, gauge};

use super::Sample;
use crate::counters::Channel;
use crate::sources::{Class, Level, Sources};

fn classes(sources: &Sources) -> [(&'static str, Class); 2] {
    [("known", sources.known), ("unknown", sources.unknown)]
}

impl Sample {
    pub(super) fn encode_sources(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let none = Sources::default();
        let channels = self.channels.iter().map(|exported| &exported.channel);
        // A listener's are in `status` and `top` alone.
        let channels = channels.filter(|channel| channel.kind == Kind::UdpSocket);
        let channels: Vec<(&Channel, &Sources)> = channels
            .map(|channel| (channel, channel.sources.as_ref().unwrap_or(&none)))
            .collect();
        self.encode_classes(encoder, &channels)?;
        self.encode_heaviest(encoder, &channels)?;
        let help = "Sources that are known because they were served before, at whatever port";
        let known = self.counters().known_sources.into();
        self.encode_one(encoder, "known_sources", help, None, known)
    }

    fn encode_classes(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        channels: &[(&Channel, &Sources)],
    ) -> fmt::Result {
        let help = "Packets of an overloaded channel, by whether their source was served before";
        let (name, kind) = ("channel_source_packets", MetricType::Counter);
        let mut family = encoder.encode_descriptor(name, help, None, kind)?;
        for (channel, sources) in channels {
            for (class, Class { judged, .. }) in classes(sources) {
                let mut encode = |fate, packets: &u64| {
                    let labels = self.labelled(channel, &[("class", class), ("fate", fate)]);
                    counter(&mut family, &labels, packets)
                };
                encode("admitted", &judged.admitted)?;
                encode("discarded", &judged.discarded)?;
            }
        }
        let help = "Hosts that sent to an overloaded channel in the last four seconds";
        let (name, kind) = ("channel_sources", MetricType::Gauge);
        let mut family = encoder.encode_descriptor(name, help, None, kind)?;
        for (channel, sources) in channels {
            for (class, Class { seen, .. }) in classes(sources) {
                let labels = self.labelled(channel, &[("class", class)]);
                gauge(&mut family, &labels, seen.into())?;
            }
        }
        Ok(())
    }

    fn encode_heaviest(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        channels: &[(&Channel, &Sources)],
    ) -> fmt::Result {
        let help = "Part of an overloaded channel's packets that its heaviest prefix sends, \
                    0 if none stands out";
        let (name, kind) = ("channel_heaviest_source_ratio", MetricType::Gauge);
        let mut family = encoder.encode_descriptor(name, help, None, kind)?;
        for (channel, sources) in channels {
            for level in Level::ALL {
                let heaviest = sources.heaviest.iter().find(|prefix| prefix.level == level);
                let part = heaviest.map_or(0.0, |prefix| prefix.part);
                let labels = self.labelled(channel, &[("level", level.name())]);
                gauge(&mut family, &labels, part)?;
            }
        }
        Ok(())
    }

    fn labelled<'a>(&self, channel: &Channel, more: &[(&'a str, &str)]) -> Labels<'a> {
        let mut labels = self.channel_labels(channel);
        let more = more
            .iter()
            .map(|(name, value)| (*name, (*value).to_owned()));
        labels.extend(more);
        labels
    }
}
