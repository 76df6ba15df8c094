//! The capturing thread's state: from packets to segments, and what is given up.

use std::io;
use std::time::Duration;

use plimsoll_core::demux::Seed;
use plimsoll_core::fidelity::{
    Fidelity, FidelityChange, FidelityControl, FlowSampler, headers_bytes,
};
use plimsoll_core::time::Instant;

use super::pcapng::{Encoder, Remark, Standing};
use super::queue::{Filler, Segment};
use super::source::Packet;
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
    in_segment: u64,
    segment_since: Instant,
    began: Duration,
    told_at: Instant,
    /// Places that the kernel knows, and those of this thread. `recorded` also counts
    /// what the disk did not take.
    pub(super) counts: Counts,
    lost_told: u64,
    /// Packets that were lost before, and that came through, at the last look at losses.
    looked: (u64, u64),
    remark: Remark,
    /// To be told as soon as there is room.
    statement: Option<String>,
    steps: Vec<Step>,
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
            in_segment: 0,
            segment_since: now,
            began: Duration::from_nanos(utc_ns()),
            told_at: now,
            counts: Counts::default(),
            lost_told: 0,
            looked: (0, 0),
            remark: Remark::default(),
            statement: Some("begin".to_owned()),
            steps: Vec::new(),
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
        self.encoder
            .packet(packet.at_ns, kept, packet.whole, &mut self.remark);
        self.in_segment += 1;
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
            packets: std::mem::take(&mut self.in_segment),
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
            self.tell(now);
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
        if let Some(change) = self.control.on_losses(since.0, since.1, now) {
            self.note(change, now);
        }
    }

    /// Whether the places that the kernel counts should be read, and told.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        now.saturating_since(self.told_at) >= TELL
    }

    /// The kernel's counts are new.
    pub(super) fn on_counts(&mut self, now: Instant) {
        let lost = self.standing().counts.lost();
        self.remark.lost = lost - self.lost_told.min(lost);
        self.lost_told = lost;
        self.statement
            .get_or_insert_with(|| self.control.fidelity().to_string());
        self.tell(now);
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

    fn tell(&mut self, now: Instant) {
        if !self.make_room(STATEMENT_BYTES) {
            return;
        }
        if let Some(why) = self.statement.take() {
            let standing = self.standing();
            self.encoder.statistics(&standing, &why);
        }
        self.told_at = now;
    }

    fn standing(&self) -> Standing {
        Standing {
            now: Duration::from_nanos(utc_ns()),
            began: self.began,
            counts: self.counts.with_disk(self.filler.disk()),
        }
    }

    /// Nobody takes segments any more.
    pub(super) fn writer_is_gone(&self) -> bool {
        self.writer_is_gone
    }

    /// Changes of what is kept.
    pub(super) fn take_steps(&mut self) -> Vec<Step> {
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
