//! The guard of one interface, from attachment to detachment.

use std::time::{Duration, Instant};

use nix::net::if_::if_nametoindex;
use plimsoll_core::config::{ConfigError, Fraction};

use crate::address::local_addresses;
use crate::counters::Counters;
use crate::error::Error;
use crate::host;
use crate::program::Program;
pub use crate::program::Storage;
use crate::xdp_link::XdpLink;

/// Watermarks in the program are in 1/1024.
const WATERMARK_WHOLE: u64 = 1024;
/// Channels above which idle ones are forgotten: half of the map's limit.
const CHANNELS_CROWDED: usize = 8192;
/// A channel without a packet for this many seconds is idle.
const CHANNEL_IDLE_EPOCHS: u32 = 60;

/// Settings of the guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// A UDP socket whose queue holds this part of its receive buffer gets no
    /// more packets. Higher wastes less buffer; what is left above it must
    /// take the batch of packets that is on its way (up to 64) or these are
    /// dropped late, at the socket. Default: 70 %.
    pub high_watermark: Fraction,
    /// … until less than this part is left, or 64 KiB less than at the high
    /// watermark. Lower means fewer, longer pauses; too low lets the consumer
    /// run dry before the next poll. Default: 50 %.
    pub low_watermark: Fraction,
    /// Answer SYNs past a listener's SYN queue with SYN cookies, so that real
    /// clients still connect. Without, or where `net.ipv4.tcp_syncookies` is 0,
    /// such SYNs are discarded. Default: yes.
    pub syn_cookies: bool,
    /// Count what would be discarded or answered, and let everything pass.
    /// Default: no.
    pub observe: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            high_watermark: Fraction::from_percent(70),
            low_watermark: Fraction::from_percent(50),
            syn_cookies: true,
            observe: false,
        }
    }
}

impl Config {
    /// Checks that the settings fit together.
    ///
    /// # Errors
    ///
    /// Names the field, its value in parts per million and what is allowed.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if self.high_watermark == Fraction::NONE {
            return Err(ConfigError {
                field: "high_watermark",
                given: 0,
                allowed: "more than nothing",
            });
        }
        if self.low_watermark >= self.high_watermark {
            return Err(ConfigError {
                field: "low_watermark",
                given: u64::from(self.low_watermark.as_ppm()),
                allowed: "below high_watermark",
            });
        }
        Ok(())
    }
}

/// A loaded program; attached or, for tests and dry runs, not.
#[derive(Debug)]
pub struct Guard<'obj> {
    // Detached first, before the program's maps go.
    link: Option<XdpLink>,
    program: Program<'obj>,
    started: Instant,
    wants_cookies: bool,
}

impl<'obj> Guard<'obj> {
    /// Loads the program without attaching it.
    ///
    /// # Errors
    ///
    /// Names what this host lacks, the bad setting, or libbpf's answer.
    pub fn load(storage: &'obj mut Storage, config: &Config) -> Result<Self, Error> {
        config.validate()?;
        host::check()?;
        // libbpf would print to standard error; its answer is in our errors.
        libbpf_rs::set_print(None);
        let program = Program::load(storage, host::numa_nodes())?;
        let mut guard = Self {
            link: None,
            program,
            started: Instant::now(),
            wants_cookies: false,
        };
        guard.configure(config)?;
        guard.refresh()?;
        Ok(guard)
    }

    /// Loads the program and attaches it to `interface` of the current network
    /// namespace, in native mode only.
    ///
    /// # Errors
    ///
    /// As [`Guard::load`]; no such interface; no native XDP; another program
    /// is attached.
    pub fn attach(
        storage: &'obj mut Storage,
        config: &Config,
        interface: &str,
    ) -> Result<Self, Error> {
        let ifindex = if_nametoindex(interface).map_err(|_| Error::NoSuchInterface {
            interface: interface.to_owned(),
        })?;
        let mut guard = Self::load(storage, config)?;
        guard.link = Some(XdpLink::attach(guard.program.fd(), interface, ifindex)?);
        Ok(guard)
    }

    /// Changes the settings of the running program.
    ///
    /// # Errors
    ///
    /// A setting is out of range; the old ones stay.
    pub fn configure(&mut self, config: &Config) -> Result<(), Error> {
        config.validate()?;
        let watermark =
            |fraction: Fraction| u32::try_from(fraction.of(WATERMARK_WHOLE)).unwrap_or(u32::MAX);
        self.program.set_watermarks(
            watermark(config.high_watermark).max(1),
            watermark(config.low_watermark),
        );
        self.wants_cookies = config.syn_cookies;
        self.program.set_observing(config.observe);
        self.refresh_cookies();
        Ok(())
    }

    fn refresh_cookies(&mut self) {
        let cookies = self.wants_cookies && host::takes_syn_cookies();
        self.program.set_cookies(cookies);
    }

    /// Call once a second: lets the program's clock tick and takes over
    /// changes of the host's addresses and of its SYN cookie setting.
    ///
    /// # Errors
    ///
    /// The addresses cannot be read or stored.
    pub fn refresh(&mut self) -> Result<(), Error> {
        self.program.set_epoch(self.epoch());
        self.refresh_cookies();
        self.program.set_local_addresses(&local_addresses()?)
    }

    /// Reads all counters. Forgets idle channels when there are too many.
    ///
    /// # Errors
    ///
    /// The maps cannot be read.
    pub fn counters(&mut self) -> Result<Counters, Error> {
        let idle_before = self.epoch().saturating_sub(CHANNEL_IDLE_EPOCHS);
        let (channels, idle) = self.program.channels(idle_before);
        if channels.len() > CHANNELS_CROWDED {
            self.program.forget(&idle)?;
        }
        // After the channels, so that no channel holds more than its total.
        let totals = self.program.totals()?;
        Ok(Counters { totals, channels })
    }

    /// Runs the program on one frame `repeat` times (the kernel's test-run
    /// facility): whether it admits the frame, and the mean time of a run. The
    /// sockets are those of the current network namespace. Counts like real
    /// traffic.
    ///
    /// # Errors
    ///
    /// The kernel refuses the frame, for instance one shorter than an Ethernet
    /// header.
    pub fn test_run(&mut self, frame: &[u8], repeat: u32) -> Result<(bool, Duration), Error> {
        self.program.test_run(frame, repeat)
    }

    /// Seconds since the start, counted from 1 so that 0 means never.
    fn epoch(&self) -> u32 {
        u32::try_from(self.started.elapsed().as_secs()).map_or(u32::MAX, |s| s.saturating_add(1))
    }
}
