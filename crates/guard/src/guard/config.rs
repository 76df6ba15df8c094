//! The settings of a guard, their defaults, and which of them fit together.

use std::time::Duration;

use plimsoll_core::charge::shedding::SheddingConfig;
use plimsoll_core::config::{ConfigError, Fraction};
use plimsoll_core::feedback::SocketWatermarks;

/// Settings of the guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// A UDP socket that has overflowed a moment ago gets no more packets while its queue
    /// holds this part of its receive buffer. Others take all that fits. Higher wastes less
    /// buffer; what is left above it must take the batch of packets that is on its way (up
    /// to 64) or these are dropped late, at the socket. Default: 70 %.
    pub high_watermark: Fraction,
    /// … until less than this part is left, or 64 KiB less than at the high
    /// watermark. Lower means fewer, longer pauses; too low lets the consumer
    /// run dry before the next poll. Above zero. Default: 50 %.
    pub low_watermark: Fraction,
    /// Answer SYNs past a listener's SYN queue with SYN cookies from the driver, where
    /// these are seen to arrive. Without, they are left to the stack, which makes
    /// cookies of its own at a higher cost. Where `net.ipv4.tcp_syncookies` is 0 they
    /// are discarded, as the stack would. Default: where the packet filter's rules are known
    /// to take the end of such a handshake; with yes, where they cannot be read as well.
    pub syn_cookies: Option<bool>,
    /// Count what would be discarded or answered, and let everything pass.
    /// Default: no.
    pub observe: bool,
    /// The part of each CPU's time that receiving may take before input is shed
    /// by shares. Default: 85 %.
    pub cpu_limit: Fraction,
    /// The part of what is admitted then that protected traffic gets first.
    /// Default: 30 %.
    pub protected_share: Fraction,
    /// A UDP socket gets no more packets while its last one would wait longer
    /// than this for its consumer. Default: none, only the watermarks.
    pub delay_target: Option<Duration>,
    /// Discard by source while a channel is overloaded: whoever sends it less than the
    /// fair share loses nothing. Costs some nanoseconds for each packet of such a
    /// channel, and up to 6 MiB per CPU. Default: yes.
    pub fairness: bool,
    /// Programs and actions of tc, XDP programs above and Open vSwitch take no packets from sockets of
    /// this host, whatever they are.
    /// Without, no UDP queue and no listener is guarded while there are any that could.
    /// Default: no.
    pub trust_tc: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl Config {
    /// The defaults.
    pub const DEFAULT: Self = Self {
        high_watermark: SocketWatermarks::DEFAULT.high,
        low_watermark: SocketWatermarks::DEFAULT.low,
        syn_cookies: None,
        observe: false,
        cpu_limit: SheddingConfig::DEFAULT.limit,
        protected_share: SheddingConfig::DEFAULT.guarantee,
        delay_target: None,
        fairness: true,
        trust_tc: false,
    };

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
        if self.low_watermark == Fraction::NONE {
            return Err(ConfigError {
                field: "low_watermark",
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
        if self.cpu_limit == Fraction::NONE {
            return Err(ConfigError {
                field: "cpu_limit",
                given: 0,
                allowed: "more than nothing",
            });
        }
        if self.delay_target.is_some_and(|target| target.is_zero()) {
            return Err(ConfigError {
                field: "delay_target",
                given: 0,
                allowed: "more than nothing",
            });
        }
        Ok(())
    }
}
