//! What a router tells Prometheus.

use std::fmt;

use plimsoll_metrics::{
    Collector, DescriptorEncoder, Format, Labels, MetricEncoder, MetricType, Unit, counter, gauge,
};

use super::outcome::{Counts, Fate, Outcome};
use super::status::{InterfaceStatus, Status};

impl Status {
    /// The status in a format of Prometheus.
    #[must_use]
    pub fn metrics(self, format: Format) -> String {
        format.encode("plimsoll_forward", Box::new(self))
    }

    /// A counter of each interface.
    fn encode_each(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        (name, help): (&str, &str),
        value: impl Fn(&InterfaceStatus) -> u64,
    ) -> fmt::Result {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for interface in &self.interfaces {
            counter(&mut family, &labels(interface), &value(interface))?;
        }
        Ok(())
    }

    fn encode_packets(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Packets that arrived, each in exactly one outcome; those that went to user space in another one there";
        let mut family = encoder.encode_descriptor("packets", help, None, MetricType::Counter)?;
        for interface in &self.interfaces {
            let user = interface.user.map(|user| ("user", user.outcomes));
            for (place, counts) in [("xdp", interface.outcomes)].into_iter().chain(user) {
                encode_outcomes(&mut family, interface, place, &counts)?;
            }
        }
        Ok(())
    }

    fn encode_mirror(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mirror = &self.mirror;
        for (name, help, value) in [
            (
                "mirror_overruns",
                "Losses of the kernel's notifications about routes and neighbours, after which all was read anew",
                mirror.overruns,
            ),
            (
                "mirror_divergences",
                "Routes, neighbours and addresses that differed from the kernel's when they were compared",
                mirror.divergences,
            ),
        ] {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            counter(&mut family, &Labels::new(), &value)?;
        }
        Ok(())
    }
}

fn labels(interface: &InterfaceStatus) -> Labels<'static> {
    vec![("interface", interface.name.clone())]
}

fn encode_outcomes(
    family: &mut MetricEncoder<'_>,
    interface: &InterfaceStatus,
    place: &str,
    counts: &Counts,
) -> fmt::Result {
    for outcome in Outcome::ALL {
        // Nothing goes from user space to user space.
        if place == "user" && outcome.fate() == Fate::ToUser {
            continue;
        }
        let mut labels = labels(interface);
        labels.push(("place", place.to_owned()));
        labels.push(("outcome", outcome.name().to_owned()));
        counter(family, &labels, &counts.of(outcome))?;
    }
    Ok(())
}

impl Collector for Status {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let encoder = &mut encoder;
        self.encode_packets(encoder)?;
        let help = "Packets for which the ring to user space had no room";
        self.encode_each(encoder, ("lost_packets", help), |interface| {
            interface.user.unwrap_or_default().lost
        })?;
        let help = "Packets that passed by the ring of protected ones, whatever became of them";
        self.encode_each(encoder, ("protected_packets", help), |interface| {
            interface.user.unwrap_or_default().protected
        })?;
        let help = "Packets of other interfaces that the next link took";
        self.encode_each(encoder, ("sent_packets", help), |interface| {
            interface.transmitted.sent
        })?;
        let help = "Packets of other interfaces that the next link did not take";
        self.encode_each(encoder, ("refused_packets", help), |interface| {
            interface.transmitted.dropped
        })?;
        let help = "Packets that came in here and could not be sent on";
        self.encode_each(encoder, ("failed_packets", help), |interface| {
            interface.transmitted.failed
        })?;
        self.encode_mirror(encoder)?;
        let help = "1 after forwarding in user space has ended by itself: the kernel forwards";
        let mut family = encoder.encode_descriptor("ended", help, None, MetricType::Gauge)?;
        let ended = f64::from(u8::from(self.failure.is_some()));
        gauge(&mut family, &Labels::new(), ended)?;
        let (help, unit) = ("Time since the router began", Some(&Unit::Seconds));
        let mut family = encoder.encode_descriptor("uptime", help, unit, MetricType::Gauge)?;
        gauge(&mut family, &Labels::new(), self.uptime_s)
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_kernel::routing::Counters;

    use super::super::{DataPath, Transmitted, UserStatus};
    use super::*;

    #[test]
    fn names_and_labels_follow_the_conventions() {
        let counts = |outcome, number| {
            let mut counts = Counts::default();
            (0..number).for_each(|_| counts.count(outcome));
            counts
        };
        let status = Status {
            schema: 1,
            path: DataPath::User,
            uptime_s: 2.5,
            interfaces: vec![InterfaceStatus {
                name: "eth0".to_owned(),
                received: 7,
                outcomes: counts(Outcome::ToUser, 7),
                transmitted: Transmitted {
                    sent: 3,
                    dropped: 2,
                    failed: 1,
                },
                user: Some(UserStatus {
                    outcomes: counts(Outcome::Forwarded, 4),
                    lost: 3,
                    protected: 2,
                }),
            }],
            mirror: Counters {
                overruns: 5,
                ..Counters::default()
            },
            failure: None,
        };
        let text = status.metrics(Format::OpenMetrics);
        for line in [
            "# TYPE plimsoll_forward_packets counter",
            "plimsoll_forward_packets_total{interface=\"eth0\",place=\"xdp\",outcome=\"to_user\"} 7",
            "plimsoll_forward_packets_total{interface=\"eth0\",place=\"user\",outcome=\"forwarded\"} 4",
            "plimsoll_forward_lost_packets_total{interface=\"eth0\"} 3",
            "plimsoll_forward_protected_packets_total{interface=\"eth0\"} 2",
            "plimsoll_forward_sent_packets_total{interface=\"eth0\"} 3",
            "plimsoll_forward_refused_packets_total{interface=\"eth0\"} 2",
            "plimsoll_forward_failed_packets_total{interface=\"eth0\"} 1",
            "plimsoll_forward_mirror_overruns_total{} 5",
            "plimsoll_forward_ended{} 0.0",
            "plimsoll_forward_uptime_seconds{} 2.5",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in:\n{text}");
        }
        assert!(!text.contains("place=\"user\",outcome=\"to_user\""));
    }
}
