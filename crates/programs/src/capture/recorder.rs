//! The capturing thread's state: from packets to segments, and what is given up.

use std::io;
use std::time::Duration;

use plimsoll_core::demux::Seed;
use plimsoll_core::fidelity::{
    Fidelity, FidelityChange, FidelityControl, FlowSampler, headers_bytes,
};
use plimsoll_core::time::Instant;

use super::pcapng::{Encoder, Remark, Standing};
use super::queue::{Content, Filler, Segment};
use super::source::Packet;
use super::steps::Steps;
use super::{CaptureConfig, Counts, Error, Step};
use crate::clock::utc_ns;
use crate::filter::Filter;

/// A segment that is not full goes to the disk after this time.
const FLUSH: Duration = Duration::from_millis(100);
/// The counts are told this often.
const TELL: Duration = Duration::from_secs(1);
/// What a statement of the counts takes at most.
const STATEMENT_BYTES: usize = 1024;

#[derive(Debug)]
pub(super) struct Recorder {
    encoder: Encoder,
    filler: Filler,
    /// Of the packets that come unfiltered.
    filter: Option<Filter>,
    snaplen: usize,
    short: usize,
    control: FidelityControl,
    sampler: FlowSampler,
    /// There is a segment to write to.
    has_segment: bool,
    in_segment: Content,
    segment_since: Instant,
    began: Duration,
    /// When the kernel's counts were last new.
    counted_at: Instant,
    /// Places that the kernel knows, and those of this thread. `recorded` also counts
    /// what the disk did not take.
    pub(super) counts: Counts,
    lost_told: u64,
    /// Packets that were lost before, and that came through, at the last look at losses.
    looked: (u64, u64),
    remark: Remark,
    /// To be told as soon as there is room.
    statement: Option<String>,
    steps: Steps,
    /// Its thread failed by a fault of ours.
    writer_is_gone: bool,
}

impl Recorder {
    pub(super) fn new(
        config: &CaptureConfig,
        filter: Option<Filter>,
        encoder: Encoder,
        filler: Filler,
        now: Instant,
    ) -> Result<Self, Error> {
        let mut secret = [0_u8; 16];
        getrandom::fill(&mut secret).map_err(|error| Error::Io {
            action: "draw a secret",
            source: io::Error::other(error),
        })?;
        let secret = u128::from_ne_bytes(secret);
        Ok(Self {
            encoder,
            filler,
            filter,
            snaplen: config.snaplen as usize,
            short: config.short_bytes as usize,
            control: FidelityControl::new(config.fidelity)?,
            sampler: FlowSampler::new(Seed([secret as u64, (secret >> 64) as u64])),
            has_segment: false,
            in_segment: Content::default(),
            segment_since: now,
            began: Duration::from_nanos(utc_ns()),
            counted_at: now,
            counts: Counts::default(),
            lost_told: 0,
            looked: (0, 0),
            remark: Remark::default(),
            statement: Some("begin".to_owned()),
            steps: Steps::default(),
            writer_is_gone: false,
        })
    }

    #[inline]
    pub(super) fn on_packet(&mut self, packet: Packet<'_>) {
        if let Some(filter) = &self.filter
            && !filter.accepts(packet.bytes)
        {
            self.counts.filtered += 1;
            return;
        }
        let kept = match self.control.fidelity() {
            Fidelity::Full => self.snaplen,
            Fidelity::Short => self.snaplen.min(self.short),
            Fidelity::Headers => self.snaplen.min(headers_bytes(packet.bytes)),
            Fidelity::Sampled { one_in_log2 } => {
                if !self.sampler.keeps(packet.bytes, one_in_log2) {
                    self.counts.sampled += 1;
                    return;
                }
                self.snaplen.min(headers_bytes(packet.bytes))
            }
        };
        let kept = &packet.bytes[..kept.min(packet.bytes.len())];
        if !self.make_room(Encoder::room_for(kept.len(), &self.remark)) {
            self.counts.queue += 1;
            return;
        }
        self.in_segment.told += self.remark.lost;
        self.encoder
            .packet(packet.at_ns, kept, packet.whole, &mut self.remark);
        self.in_segment.packets += 1;
        self.counts.recorded += 1;
    }

    /// Room for a block of `bytes`; false without a free segment.
    #[inline]
    fn make_room(&mut self, bytes: usize) -> bool {
        let used = self.encoder.bytes().len();
        if self.has_segment && used > 0 && used + bytes > self.filler.segment_bytes() {
            self.ship();
        }
        if !self.has_segment
            && let Some(memory) = self.filler.take()
        {
            self.encoder.swap(memory);
            self.has_segment = true;
        }
        self.has_segment
    }

    fn ship(&mut self) {
        let standing = self.standing();
        let bytes = self.encoder.swap(Vec::new());
        self.has_segment = false;
        let segment = Segment {
            bytes,
            content: std::mem::take(&mut self.in_segment),
            standing,
        };
        self.writer_is_gone |= !self.filler.ship(segment);
    }

    /// After each turn: the time has come for some things.
    pub(super) fn on_turn(&mut self, now: Instant) {
        let (taken, segments) = self.filler.occupancy();
        let waiting = taken - usize::from(self.has_segment);
        if let Some(change) = self
            .control
            .on_occupancy(waiting as u64, segments as u64, now)
        {
            self.note(change, now);
        }
        if self.statement.is_some() {
            self.tell();
        }
        let is_old = now.saturating_since(self.segment_since) >= FLUSH;
        if is_old {
            if self.has_segment && !self.encoder.bytes().is_empty() {
                self.ship();
            }
            self.segment_since = now;
        }
    }

    /// Packets that came through so far; what the kernel lost is new in the counts.
    pub(super) fn on_losses(&mut self, seen: u64, now: Instant) {
        let lost = self.counts.ring + self.counts.no_buffer;
        let (lost_before, seen_before) = std::mem::replace(&mut self.looked, (lost, seen));
        let since = (lost - lost_before.min(lost), seen - seen_before);
        self.tell_losses();
        if let Some(change) = self.control.on_losses(since.0, since.1, now) {
            self.note(change, now);
        }
    }

    /// Whether the places that the kernel counts should be read, and told.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        now.saturating_since(self.counted_at) >= TELL
    }

    /// The next packet tells what is lost by now.
    pub(super) fn tell_losses(&mut self) {
        // On top of what no packet has told yet, or none that was written.
        self.remark.lost += self.filler.take_untold();
        let lost = self.counts.with_disk(self.filler.disk()).lost();
        self.remark.lost += lost - self.lost_told.min(lost);
        self.lost_told = lost;
    }

    /// The kernel's counts are new.
    pub(super) fn on_counts(&mut self, now: Instant) {
        self.tell_losses();
        self.statement
            .get_or_insert_with(|| self.control.fidelity().to_string());
        self.counted_at = now;
        self.tell();
    }

    fn note(&mut self, FidelityChange { from, to, why }: FidelityChange, now: Instant) {
        let text = format!("from {from} to {to}: {why}");
        self.remark.comment = Some(format!("plimsoll: from here on {to} ({why})"));
        self.statement = Some(text);
        self.steps.push(Step {
            seconds: now.saturating_since(Instant::ZERO).as_secs_f64(),
            keeps: to.to_string(),
            why: why.to_string(),
            one_in: to.one_in(),
            received: self.counts.received(),
        });
    }

    /// Without room it is told later: see [`Self::on_turn`].
    fn tell(&mut self) {
        if !self.make_room(STATEMENT_BYTES) {
            return;
        }
        if let Some(why) = self.statement.take() {
            let standing = self.standing();
            self.encoder.statistics(&standing, &why);
        }
    }

    fn standing(&self) -> Standing {
        Standing {
            now: Duration::from_nanos(utc_ns()),
            began: self.began,
            counts: self.counts.with_disk(self.filler.disk()),
        }
    }

    /// No more is written.
    pub(super) fn writing_is_over(&self) -> bool {
        self.writer_is_gone || self.filler.is_over()
    }

    /// Changes of what is kept.
    pub(super) fn take_steps(&mut self) -> Steps {
        std::mem::take(&mut self.steps)
    }

    /// The last segment goes to the disk.
    pub(super) fn finish(&mut self) {
        while !self.make_room(0) {
            if self.writer_is_gone {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.ship();
    }
}

#[cfg(test)]
mod tests {
    use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
    use pcap_file::pcapng::blocks::interface_statistics::InterfaceStatisticsOption;
    use pcap_file::pcapng::{Block, PcapNgReader};

    use super::super::Output;
    use super::super::pcapng::About;
    use super::super::queue::{Drainer, queue};
    use super::*;

    /// With the beginning of its file, and the queue's other end.
    fn recorder() -> (Recorder, Vec<u8>, Drainer) {
        let config = CaptureConfig::new("eth0", Output::Standard);
        let (filler, drainer) = queue(1 << 16, 1 << 14);
        let (encoder, preamble) = Encoder::new(&About::of(&config)).unwrap();
        let recorder = Recorder::new(&config, None, encoder, filler, Instant::ZERO).unwrap();
        (recorder, preamble, drainer)
    }

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    fn packet() -> Packet<'static> {
        Packet {
            at_ns: 1,
            bytes: &[0; 60],
            whole: 60,
        }
    }

    /// The numbers of lost packets that packets tell.
    fn told(file: &[u8]) -> Vec<u64> {
        let mut reader = PcapNgReader::new(file).unwrap();
        let mut told = Vec::new();
        while let Some(block) = reader.next_block() {
            if let Block::EnhancedPacket(packet) = block.unwrap() {
                told.extend(packet.options.iter().filter_map(|option| match option {
                    EnhancedPacketOption::DropCount(lost) => Some(*lost),
                    _ => None,
                }));
            }
        }
        told
    }

    /// A second without an accepted packet forgot what had been lost before it.
    #[test]
    fn the_next_packet_tells_all_that_was_lost_before_it() {
        let (mut recorder, mut file, drainer) = recorder();
        recorder.counts.ring = 3;
        recorder.on_counts(at(1));
        recorder.counts.queue = 4;
        recorder.on_counts(at(2));
        recorder.on_counts(at(3));
        recorder.on_packet(packet());
        recorder.on_packet(packet());
        recorder.finish();
        file.extend(drainer.next(Duration::ZERO).unwrap().bytes);
        assert_eq!(told(&file), [7]);
    }

    /// They were told once a second: packets of the meantime told nothing.
    #[test]
    fn losses_are_told_as_soon_as_they_are_known() {
        let (mut recorder, mut file, drainer) = recorder();
        for lost in [3, 5] {
            recorder.counts.ring = lost;
            recorder.on_losses(0, at(0));
            recorder.on_packet(packet());
            recorder.on_packet(packet());
        }
        recorder.finish();
        file.extend(drainer.next(Duration::ZERO).unwrap().bytes);
        assert_eq!(told(&file), [3, 2]);
    }

    /// Of what a full disk did not take, only the last second was told.
    #[test]
    fn losses_that_a_full_disk_did_not_take_are_told_again() {
        let (mut recorder, mut file, drainer) = recorder();
        recorder.counts.ring = 3;
        recorder.on_counts(at(1));
        for second in 2..4 {
            recorder.on_packet(packet());
            recorder.ship();
            let refused = drainer.next(Duration::ZERO).unwrap();
            drainer.lose(refused.content);
            drainer.give_back(refused.bytes);
            recorder.on_counts(at(second));
        }
        recorder.on_packet(packet());
        recorder.finish();
        file.extend(drainer.next(Duration::ZERO).unwrap().bytes);
        assert_eq!(told(&file), [3 + 2]);
    }

    /// While it went back a step each second, nobody read what the filter had refused in the kernel.
    #[test]
    fn a_step_does_not_put_off_the_counts() {
        let (mut recorder, mut file, drainer) = recorder();
        recorder.statement = Some("a step".to_owned());
        recorder.on_turn(at(1));
        assert!(recorder.statement.is_none(), "it is told");
        assert!(recorder.is_due(at(1)));
        recorder.on_counts(at(1));
        recorder.finish();
        let segments = std::iter::from_fn(|| drainer.next(Duration::ZERO).ok());
        segments.for_each(|segment| file.extend(segment.bytes));
        assert_eq!(statements(&file), ["a step", "full packets"]);
    }

    /// Why the counts stand in a file, each time.
    fn statements(file: &[u8]) -> Vec<String> {
        let mut reader = PcapNgReader::new(file).unwrap();
        let mut whys = Vec::new();
        while let Some(block) = reader.next_block() {
            let Block::InterfaceStatistics(statement) = block.unwrap() else {
                continue;
            };
            for option in &statement.options {
                if let InterfaceStatisticsOption::Comment(text) = option {
                    let (why, _) = text.split_once(": ").unwrap();
                    whys.push(why.to_owned());
                }
            }
        }
        whys
    }

    /// Each turn read the kernel's counts anew.
    #[test]
    fn counts_that_find_no_room_are_not_due_again_at_once() {
        let (mut recorder, _, _drainer) = recorder();
        while recorder.filler.take().is_some() {}
        assert!(recorder.is_due(at(1)));
        recorder.on_counts(at(1));
        assert!(!recorder.is_due(at(1)) && recorder.is_due(at(2)));
        assert!(
            recorder.statement.is_some(),
            "it is told when there is room"
        );
    }
}
