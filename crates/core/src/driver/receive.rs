//! Shortcuts of the receive path: a bet on who is next, and routines without
//! rare checks.
//!
//! Intuition of the bet: nobody knows whom the next packet is for, but a client
//! that awaits the reply to its request is a good guess. The guess pays if what
//! a right one saves, times how often it is right, exceeds what a wrong one costs
//! (Tracey & Banerji, section 3.4; they did not try it). [`ReceivePrediction`]
//! keeps that balance and does not bet while it is negative. It goes on keeping
//! score, so it resumes when guesses become good again.
//!
//! Intuition of the routines: checks for promiscuous clients and multicast are
//! made for every packet and hardly ever true. Instead of checking, the routine
//! that checks is installed only while such clients exist (TB-39).
//!
//! Limits: only the latest request is remembered, so of two clients that await
//! replies at once one is always mispredicted; the balance then decides.

use core::time::Duration;

use crate::config::{ConfigError, Field, Fraction, NANOSECOND};

/// Weight of the newest guess in the hit rate, 1/16.
const WEIGHT: i64 = 16;
const WHOLE: i64 = Fraction::WHOLE.as_ppm() as i64;

/// What guesses are worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PredictionConfig {
    /// Time that a right guess saves, at least 1 ns.
    pub gain: Duration,
    /// Time that a wrong one costs.
    pub loss: Duration,
}

/// Bets on the client that awaits a reply; see the module's documentation.
#[derive(Debug)]
pub struct ReceivePrediction<C> {
    awaiting: Option<C>,
    /// Hit rate from which betting pays, ppm.
    break_even: i64,
    hit_rate: i64,
}

impl<C: Copy + PartialEq> ReceivePrediction<C> {
    /// Nobody awaits anything; the first guess is a bet.
    ///
    /// # Errors
    /// If a right guess would save nothing.
    pub fn new(config: &PredictionConfig) -> Result<Self, ConfigError> {
        Field("gain", config.gain).must_be_in(NANOSECOND.., "at least 1 ns")?;
        // It pays if rate · gain > (1 − rate) · loss.
        let (gain, loss) = (config.gain.as_nanos(), config.loss.as_nanos());
        let break_even = loss.saturating_mul(WHOLE.unsigned_abs().into()) / (gain + loss);
        Ok(Self {
            awaiting: None,
            break_even: i64::try_from(break_even).unwrap_or(WHOLE),
            hit_rate: WHOLE,
        })
    }

    /// `client` has sent a request and awaits the reply.
    pub fn on_request(&mut self, client: C) {
        self.awaiting = Some(client);
    }

    /// The client to try first for the next packet, if a bet pays.
    #[must_use]
    pub fn prediction(&self) -> Option<C> {
        self.awaiting.filter(|_| self.hit_rate > self.break_even)
    }

    /// A packet was for `client`.
    pub fn on_packet(&mut self, client: C) {
        let Some(awaiting) = self.awaiting else {
            return;
        };
        let hit = awaiting == client;
        if hit {
            self.awaiting = None;
        }
        let result = if hit { WHOLE } else { 0 };
        self.hit_rate += (result - self.hit_rate) / WEIGHT;
    }

    /// How often guesses were right of late, made or not.
    #[must_use]
    pub fn hit_rate(&self) -> Fraction {
        Fraction::from_ppm(u32::try_from(self.hit_rate).unwrap_or(0))
    }
}

/// The receive routine to be installed, from least to most work per packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Routine {
    /// Only packets to this host's own address, each for one client.
    Common,
    /// Also looks for multicast groups.
    Multicast,
    /// Also copies every packet to the promiscuous clients.
    Promiscuous,
}

/// Counts who needs a special receive routine.
#[derive(Debug, Default)]
pub struct ReceiveModes {
    promiscuous_clients: u32,
    multicast_groups: u32,
}

impl ReceiveModes {
    /// Nobody needs anything special.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            promiscuous_clients: 0,
            multicast_groups: 0,
        }
    }

    /// A client wants every packet: the routine to install.
    pub fn add_promiscuous(&mut self) -> Routine {
        self.promiscuous_clients += 1;
        self.routine()
    }

    /// One such client is gone: the routine to install.
    pub fn remove_promiscuous(&mut self) -> Routine {
        self.promiscuous_clients = self.promiscuous_clients.saturating_sub(1);
        self.routine()
    }

    /// A multicast group was joined: the routine to install.
    pub fn add_multicast(&mut self) -> Routine {
        self.multicast_groups += 1;
        self.routine()
    }

    /// A group was left: the routine to install.
    pub fn remove_multicast(&mut self) -> Routine {
        self.multicast_groups = self.multicast_groups.saturating_sub(1);
        self.routine()
    }

    /// The routine that suffices now.
    #[must_use]
    pub const fn routine(&self) -> Routine {
        if self.promiscuous_clients > 0 {
            Routine::Promiscuous
        } else if self.multicast_groups > 0 {
            Routine::Multicast
        } else {
            Routine::Common
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Break-even at three hits of four.
    const CONFIG: PredictionConfig = PredictionConfig {
        gain: Duration::from_nanos(100),
        loss: Duration::from_nanos(300),
    };

    #[test]
    fn a_client_that_awaits_a_reply_is_predicted_until_it_came() {
        let mut prediction = ReceivePrediction::new(&CONFIG).unwrap();
        assert_eq!(prediction.prediction(), None);
        prediction.on_request('a');
        assert_eq!(prediction.prediction(), Some('a'));
        prediction.on_packet('a');
        assert_eq!(prediction.prediction(), None);
        prediction.on_packet('b');
        assert_eq!(prediction.hit_rate(), Fraction::WHOLE, "no guess, no score");
    }

    #[test]
    fn bets_stop_when_they_lose_and_resume_when_they_win() {
        let mut prediction = ReceivePrediction::new(&CONFIG).unwrap();
        prediction.on_request('a');
        let mut lost = 0;
        while prediction.prediction().is_some() {
            prediction.on_packet('b');
            lost += 1;
        }
        // (15/16)^5 < 3/4
        assert_eq!(lost, 5);
        let mut won = 0;
        while prediction.prediction().is_none() {
            prediction.on_request('a');
            prediction.on_packet('a');
            prediction.on_request('a');
            won += 1;
            assert!(won < 100, "never resumes");
        }
    }

    #[test]
    fn a_free_mistake_is_always_risked() {
        let free = PredictionConfig {
            loss: Duration::ZERO,
            ..CONFIG
        };
        let mut prediction = ReceivePrediction::new(&free).unwrap();
        prediction.on_request(1);
        for _ in 0..100 {
            prediction.on_packet(2);
        }
        assert_eq!(prediction.prediction(), Some(1));
        let gain = Duration::ZERO;
        let error = ReceivePrediction::<u8>::new(&PredictionConfig { gain, ..CONFIG });
        assert_eq!(error.unwrap_err().field, "gain");
    }

    #[test]
    fn special_routines_last_as_long_as_they_are_needed() {
        let mut modes = ReceiveModes::new();
        assert_eq!(modes.routine(), Routine::Common);
        assert_eq!(modes.add_multicast(), Routine::Multicast);
        assert_eq!(modes.add_promiscuous(), Routine::Promiscuous);
        assert_eq!(modes.add_promiscuous(), Routine::Promiscuous);
        assert_eq!(modes.remove_promiscuous(), Routine::Promiscuous);
        assert_eq!(modes.remove_promiscuous(), Routine::Multicast);
        assert_eq!(modes.remove_multicast(), Routine::Common);
        assert_eq!(modes.remove_multicast(), Routine::Common, "already gone");
    }
}
