//! How many receive buffers the device may have.
//!
//! Intuition: packets dropped inside the host mean that the device brought more
//! than the rest of the host can take, and by equation 4 of the model the number
//! of buffers bounds what it can bring. So take buffers away at once when
//! packets are dropped, and give them back slowly while none are (Macpherson &
//! Heiser, section 6.3 and figure 3).
//!
//! Their caveat: an application that no longer reads its socket makes packets
//! drop without any overload, and would throttle the whole host. Two answers:
//! * a tolerated fraction of loss over all consumers together, which they
//!   proposed and did not build. It is kept as an account: every packet adds the
//!   tolerated fraction, every drop takes one; overload is when it is overdrawn.
//!   It holds at most what [`CreditConfig::tolerance_window`] packets add, so
//!   that a loss-free day does not excuse a lossy second;
//! * an idle CPU. A host with time to spare is not overloaded, whatever drops.
//!   Not in the paper; with it a hung application is harmless however much
//!   traffic it attracts. Where idleness is unknown, or some process always
//!   computes, the tolerated fraction remains.
//!
//! Departures: the paper does not publish step, limits and BACKOFF. Here a
//! decrease takes a fraction (at least one buffer) and an increase adds a fixed
//! number: additive increase and multiplicative decrease settle at a fair and
//! stable point (Chiu & Jain 1989), and large rings are brought down as fast as
//! small ones.
//!
//! Limits: the signal is a loss that has already happened, and rates between
//! drop and no drop are probed for ever: the credit saws.

use crate::config::{ConfigError, Field, Fraction, PPM};

/// Millionths of a packet that one packet is.
const PACKET: u64 = 1_000_000;

/// How the credit follows the drops. Lengths are in buffers (packets).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreditConfig {
    /// Never fewer, at least 1. What is left to all consumers together when one
    /// of them is taken for overload.
    pub min: u32,
    /// Never more: the ring of the device. Also the start.
    pub max: u32,
    /// Part of the credit that one overloaded turn takes away (at least one
    /// buffer), more than none.
    pub decrease: Fraction,
    /// Buffers given back at a time, at least 1.
    pub increase: u32,
    /// Turns without overload that must pass before buffers are given back (the
    /// paper's BACKOFF). Larger means less probing and slower recovery.
    pub backoff: u32,
    /// Part of all packets that may be dropped without being taken for overload.
    /// None is the paper's rule: any drop is overload.
    pub tolerated_loss: Fraction,
    /// Packets over which the tolerated loss is averaged, at least 1. Only
    /// matters if some loss is tolerated.
    pub tolerance_window: u32,
}

impl Default for CreditConfig {
    /// A ring of 256, an eighth less per overloaded turn, one more per 16 clean
    /// ones, 2 % of loss tolerated over 10,000 packets.
    fn default() -> Self {
        Self {
            min: 4,
            max: 256,
            decrease: Fraction::from_ppm(125_000),
            increase: 1,
            backoff: 15,
            tolerated_loss: Fraction::from_percent(2),
            tolerance_window: 10_000,
        }
    }
}

impl CreditConfig {
    /// Whether a credit can follow these rules.
    ///
    /// # Errors
    /// Names the first field that is out of its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        Field("min", self.min).must_be_in(1.., "at least 1")?;
        Field("max", self.max).must_be_in(self.min.., "at least min")?;
        Field("decrease", self.decrease).must_be_in(PPM.., "more than none")?;
        Field("increase", self.increase).must_be_in(1.., "at least 1")?;
        Field("tolerance_window", self.tolerance_window).must_be_in(1.., "at least 1")
    }
}

/// What became of packets inside the host since the last turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TurnDrops {
    /// Packets that the device brought in, whatever became of them.
    pub packets: u64,
    /// Packets dropped at any queue between the device and the consumers.
    pub dropped: u64,
    /// The CPU was idle for some of the time; false where that is not known.
    pub cpu_was_idle: bool,
}

/// The controller of the credit.
#[derive(Debug)]
pub struct BufferCredit {
    config: CreditConfig,
    credit: u32,
    /// Clean turns still to come before the next increase.
    backoff: u32,
    /// Tolerated drops not used up, in millionths of a packet.
    account: u64,
    account_max: u64,
}

impl BufferCredit {
    /// Starts with all buffers.
    ///
    /// # Errors
    /// If the config does not [validate](CreditConfig::validate).
    pub fn new(config: &CreditConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        let tolerated: u64 = config.tolerated_loss.as_ppm().into();
        Ok(Self {
            config: *config,
            credit: config.max,
            backoff: 0,
            account: 0,
            account_max: tolerated * u64::from(config.tolerance_window),
        })
    }

    /// Buffers that the device may have.
    #[must_use]
    pub fn credit(&self) -> u32 {
        self.credit
    }

    /// A turn ends: the credit from now on.
    pub fn on_turn(&mut self, drops: TurnDrops) -> u32 {
        if self.is_overload(drops) {
            let less = self.config.decrease.of(self.credit.into());
            // A part of a u32 is one.
            let less = u32::try_from(less).unwrap_or(u32::MAX).max(1);
            self.credit = self.credit.saturating_sub(less).max(self.config.min);
            self.backoff = self.config.backoff;
        } else if self.backoff > 0 {
            self.backoff -= 1;
        } else {
            let more = self.credit.saturating_add(self.config.increase);
            self.credit = more.min(self.config.max);
            self.backoff = self.config.backoff;
        }
        self.credit
    }

    fn is_overload(&mut self, drops: TurnDrops) -> bool {
        let tolerated: u64 = self.config.tolerated_loss.as_ppm().into();
        let added = drops.packets.saturating_mul(tolerated);
        let balance = self.account.saturating_add(added);
        let taken = drops.dropped.saturating_mul(PACKET);
        let overdrawn = taken > balance;
        self.account = balance.saturating_sub(taken).min(self.account_max);
        overdrawn && !drops.cpu_was_idle
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The paper's rule: any drop is overload.
    const STRICT: CreditConfig = CreditConfig {
        tolerated_loss: Fraction::NONE,
        ..CREDIT
    };
    const CREDIT: CreditConfig = CreditConfig {
        min: 4,
        max: 64,
        decrease: Fraction::from_ppm(125_000),
        increase: 1,
        backoff: 3,
        tolerated_loss: Fraction::from_percent(10),
        tolerance_window: 1000,
    };
    const CLEAN: TurnDrops = TurnDrops {
        packets: 100,
        dropped: 0,
        cpu_was_idle: false,
    };
    const LOSSY: TurnDrops = TurnDrops {
        dropped: 1,
        ..CLEAN
    };

    #[test]
    fn down_at_once_and_up_slowly() {
        let mut credit = BufferCredit::new(&STRICT).unwrap();
        assert_eq!(credit.credit(), 64);
        assert_eq!(credit.on_turn(LOSSY), 56);
        assert_eq!(credit.on_turn(LOSSY), 49);
        // BACKOFF + 1 clean turns per buffer given back.
        let ups: [u32; 8] = core::array::from_fn(|_| credit.on_turn(CLEAN));
        assert_eq!(ups, [49, 49, 49, 50, 50, 50, 50, 51]);
        // A drop starts the wait anew.
        credit.on_turn(CLEAN);
        let low = credit.on_turn(LOSSY);
        let ups: [u32; 4] = core::array::from_fn(|_| credit.on_turn(CLEAN));
        assert_eq!(ups, [low, low, low, low + 1]);
    }

    #[test]
    fn the_limits_hold() {
        let mut credit = BufferCredit::new(&STRICT).unwrap();
        for _ in 0..1000 {
            credit.on_turn(LOSSY);
        }
        assert_eq!(credit.credit(), 4);
        for _ in 0..1000 {
            credit.on_turn(CLEAN);
        }
        assert_eq!(credit.credit(), 64);
    }

    #[test]
    fn one_hung_application_does_not_throttle_the_host() {
        // Every 20th packet is for a socket that nobody reads.
        let hung = TurnDrops {
            dropped: 5,
            ..CLEAN
        };
        let (mut strict, mut tolerant) = (
            BufferCredit::new(&STRICT).unwrap(),
            BufferCredit::new(&CREDIT).unwrap(),
        );
        for _ in 0..1000 {
            strict.on_turn(hung);
            assert_eq!(tolerant.on_turn(hung), 64);
        }
        assert_eq!(strict.credit(), 4, "the failure the paper describes");
        // Nine of ten packets for it: only the idle CPU tells.
        let idle = TurnDrops {
            dropped: 90,
            cpu_was_idle: true,
            ..CLEAN
        };
        for _ in 0..1000 {
            assert_eq!(tolerant.on_turn(idle), 64);
        }
        let busy = TurnDrops {
            cpu_was_idle: false,
            ..idle
        };
        assert_eq!(tolerant.on_turn(busy), 56);
    }

    #[test]
    fn past_virtue_excuses_only_so_much() {
        let mut credit = BufferCredit::new(&CREDIT).unwrap();
        for _ in 0..1000 {
            credit.on_turn(CLEAN);
        }
        // 10 % of the last 1000 packets: 100 drops, and 10 for this turn.
        let all = TurnDrops {
            dropped: 110,
            ..CLEAN
        };
        assert_eq!(credit.on_turn(all), 64);
        assert_eq!(
            credit.on_turn(TurnDrops {
                dropped: 11,
                ..CLEAN
            }),
            56
        );
    }

    #[test]
    fn configs_say_what_is_wrong() {
        let field = |config: CreditConfig| BufferCredit::new(&config).unwrap_err().field;
        assert_eq!(field(CreditConfig { min: 0, ..CREDIT }), "min");
        assert_eq!(field(CreditConfig { max: 3, ..CREDIT }), "max");
        assert_eq!(
            field(CreditConfig {
                increase: 0,
                ..CREDIT
            }),
            "increase"
        );
        let decrease = Fraction::NONE;
        assert_eq!(field(CreditConfig { decrease, ..CREDIT }), "decrease");
        let tolerance_window = 0;
        assert_eq!(
            field(CreditConfig {
                tolerance_window,
                ..CREDIT
            }),
            "tolerance_window"
        );
    }

    proptest! {
        /// Steps of the paper's figure 3 with BACKOFF as there, for any drops.
        #[test]
        fn follows_the_pseudo_code(drops in prop::collection::vec(0_u64..2, 1..300), backoff_turns in 0_u32..9) {
            let config = CreditConfig { backoff: backoff_turns, ..STRICT };
            let mut credit = BufferCredit::new(&config).unwrap();
            let (mut buffers, mut backoff) = (64_u32, 0_i64);
            for dropped in drops {
                if dropped > 0 {
                    buffers = (buffers - (buffers / 8).max(1)).max(4);
                    backoff = backoff_turns.into();
                } else {
                    backoff -= 1;
                    if backoff < 0 {
                        buffers = (buffers + 1).min(64);
                        backoff = backoff_turns.into();
                    }
                }
                prop_assert_eq!(credit.on_turn(TurnDrops { dropped, ..CLEAN }), buffers);
            }
        }

        /// Loss within the tolerance never costs a buffer, however it is spread
        /// over full windows.
        #[test]
        fn tolerated_loss_is_tolerated(packets in prop::collection::vec(10_u64..500, 1..200)) {
            let mut credit = BufferCredit::new(&CREDIT).unwrap();
            for packets in packets {
                let dropped = packets / 10;
                prop_assert_eq!(credit.on_turn(TurnDrops { packets, dropped, cpu_was_idle: false }), 64);
            }
        }
    }
}
