//! What is captured, and where to.

use std::path::PathBuf;
use std::time::Duration;

use plimsoll_core::fidelity::FidelityConfig;
use plimsoll_stack::device::xdp::BusyPoll;

use super::Error;

/// Who else gets the packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The kernel's stack as well.
    #[default]
    Copy,
    /// Nobody: the interface receives from a span port or tap.
    Take,
}

/// Where the file goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// A file, or the first part of the names of ring files.
    File(PathBuf),
    /// Standard output, for a program that reads along.
    Standard,
}

/// When one file ends and the next begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingFiles {
    /// A file has at most this many bytes, unless a packet alone is longer; at least 64 KiB.
    /// Default: no bound.
    pub bytes: Option<u64>,
    /// A file covers at most about this time; above zero. Default: no bound.
    pub time: Option<Duration>,
    /// This many files are kept, the oldest are removed; at least 1. Those that earlier captures
    /// left under the same name count as well. Default: all.
    pub files: Option<usize>,
}

impl RingFiles {
    /// Whether there may be more than one file.
    #[must_use]
    pub const fn is_ring(&self) -> bool {
        self.bytes.is_some() || self.time.is_some()
    }
}

/// Settings of a capture.
#[derive(Clone, Debug)]
pub struct CaptureConfig {
    /// The interface, of this network namespace.
    pub interface: String,
    /// A filter expression of at most 65,534 bytes; empty accepts all. Default empty.
    pub filter: String,
    /// See [`Mode`]. Default [`Mode::Copy`].
    pub mode: Mode,
    /// Bytes that are kept of a packet at most; at least 14. Default 262,144.
    pub snaplen: u32,
    /// See [`Output`].
    pub output: Output,
    /// See [`RingFiles`].
    pub ring: RingFiles,
    /// End after so many recorded packets. Default: go on.
    pub packets_max: Option<u64>,
    /// End after so long. Default: go on.
    pub time_max: Option<Duration>,
    /// Memory between capture and disk in bytes, at least 1 MiB. More bridges longer
    /// pauses of the disk. Default 64 MiB.
    pub queue_bytes: usize,
    /// Memory between kernel and capture in bytes, at least 1 MiB. In mode `take` it is
    /// for each receive queue, and a frame takes 2 or 4 KiB of it. Default 32 MiB.
    pub ring_bytes: usize,
    /// When packets are cut and flows sampled.
    pub fidelity: FidelityConfig,
    /// What is kept of a packet in the first step; at least 14. Default 128.
    pub short_bytes: u32,
    /// Mode `copy`: also record what this host sends. Default true.
    pub outgoing: bool,
    /// Have the adapter receive frames for others. Default true.
    pub promiscuous: bool,
    /// Mode `take`: poll the adapter from the capturing thread. Default none.
    pub busy_poll: Option<BusyPoll>,
}

impl CaptureConfig {
    /// The default of [`CaptureConfig::snaplen`].
    pub const SNAPLEN: u32 = 1 << 18;
    /// The default of [`CaptureConfig::queue_bytes`].
    pub const QUEUE_BYTES: usize = 64 << 20;
    /// The default of [`CaptureConfig::ring_bytes`].
    pub const RING_BYTES: usize = 32 << 20;

    /// The defaults.
    #[must_use]
    pub fn new(interface: impl Into<String>, output: Output) -> Self {
        Self {
            interface: interface.into(),
            filter: String::new(),
            mode: Mode::Copy,
            snaplen: Self::SNAPLEN,
            output,
            ring: RingFiles::default(),
            packets_max: None,
            time_max: None,
            queue_bytes: Self::QUEUE_BYTES,
            ring_bytes: Self::RING_BYTES,
            fidelity: FidelityConfig::default(),
            short_bytes: 128,
            outgoing: true,
            promiscuous: true,
            busy_poll: None,
        }
    }

    pub(super) fn validate(&self) -> Result<(), Error> {
        let check = |holds, field, allowed| match holds {
            true => Ok(()),
            false => Err(Error::Config { field, allowed }),
        };
        self.fidelity.validate()?;
        let sizes = MEMORY_BYTES_MIN..=MEMORY_BYTES_MAX;
        let (ring, output) = (&self.ring, &self.output);
        let fits = self.filter.len() <= FILTER_BYTES_MAX;
        check(fits, "the filter", "at most 65534 bytes long")?;
        check(self.snaplen >= 14, "snaplen", "at least 14")?;
        check(self.snaplen <= 1 << 18, "snaplen", "at most 262144")?;
        check(self.short_bytes >= 14, "short_bytes", "at least 14")?;
        check(sizes.contains(&self.queue_bytes), "queue_bytes", SIZES)?;
        check(sizes.contains(&self.ring_bytes), "ring_bytes", SIZES)?;
        let bytes = ring.bytes.is_none_or(|bytes| bytes >= RING_FILE_BYTES_MIN);
        check(bytes, "ring.bytes", "at least 65536")?;
        let time = ring.time.is_none_or(|time| !time.is_zero());
        check(time, "ring.time", "above zero")?;
        let files = ring.files.is_none_or(|files| files > 0 && ring.is_ring());
        check(
            files,
            "ring.files",
            "at least 1, with a size or time that ends a file",
        )?;
        let fits = !ring.is_ring() || *output != Output::Standard;
        check(fits, "ring", "none on standard output")
    }
}

const MEMORY_BYTES_MIN: usize = 1 << 20;
const MEMORY_BYTES_MAX: usize = 1 << 34;
const SIZES: &str = "from 1 MiB to 16 GiB";
/// An option of a file's beginning has it, behind a byte for its kind.
const FILTER_BYTES_MAX: usize = u16::MAX as usize - 1;
pub(super) const RING_FILE_BYTES_MIN: u64 = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_checked() {
        let good = CaptureConfig::new("eth0", Output::Standard);
        good.validate().unwrap();
        let field = |edit: fn(&mut CaptureConfig)| {
            let mut config = good.clone();
            edit(&mut config);
            match config.validate() {
                Err(Error::Config { field, .. }) => field,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(field(|config| config.snaplen = 13), "snaplen");
        let long = |config: &mut CaptureConfig| config.filter = " ".repeat(65_535);
        assert_eq!(field(long), "the filter");
        assert_eq!(field(|config| config.queue_bytes = 5), "queue_bytes");
        assert_eq!(field(|config| config.ring.files = Some(3)), "ring.files");
        assert_eq!(field(|config| config.ring.bytes = Some(9)), "ring.bytes");
        assert_eq!(field(|config| config.ring.bytes = Some(1 << 20)), "ring");
        let high = |config: &mut CaptureConfig| config.fidelity.low = config.fidelity.high;
        assert_eq!(field(high), "low");
    }
}
