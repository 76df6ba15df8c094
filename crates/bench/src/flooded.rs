//! One flood at a time, for those who bring their own list of cases.

use std::path::PathBuf;
use std::time::Duration;

use plimsoll_testbed::blast::Schedule;
use plimsoll_testbed::{Config as TestbedConfig, Testbed};

use crate::Error;
use crate::figures::{Bystander, HostCpu, Losses};
use crate::protection::{Protection, Stage};
use crate::udp::Servers;

/// A test host with a sink that works [`Flooded::SINK_WORK`] per packet and an
/// echo that is probed 2000 times a second.
pub struct Flooded {
    // Servers end before the host they run in.
    servers: Servers,
    testbed: Testbed,
    program: PathBuf,
    holdoff: Duration,
}

/// What one flood did.
#[derive(Clone, Copy, Debug)]
pub struct FloodFigures {
    /// Flood, packets/s.
    pub offered_pps: f64,
    /// Delivered to the sink, packets/s.
    pub goodput_pps: f64,
    /// Parts of the host's CPU.
    pub host_cpu: HostCpu,
    /// What the echo's client saw.
    pub bystander: Bystander,
    /// Where the packets went.
    pub losses: Losses,
}

impl Flooded {
    /// What the sink does with each packet.
    pub const SINK_WORK: Duration = crate::udp::SINK_WORK;

    /// Makes the testbed and starts both servers. `program` is the `plimsoll`
    /// command itself, `holdoff` the interrupt holdoff of the flooded interface.
    ///
    /// # Errors
    ///
    /// This host lacks something ([`Error::is_missing`]), or a server failed.
    pub fn start(program: PathBuf, holdoff: Duration) -> Result<Self, Error> {
        let testbed = Testbed::create(TestbedConfig::default())?;
        let stage = Stage {
            testbed: &testbed,
            program: &program,
            holdoff,
            guard_arguments: &[],
        };
        let servers = Servers::start(&stage)?;
        Ok(Self {
            servers,
            testbed,
            program,
            holdoff,
        })
    }

    /// Floods the sink at `rate_pps` for `window` behind `protection`.
    ///
    /// # Errors
    ///
    /// The protection cannot be put in place, or load or measurement failed.
    pub fn flood(
        &self,
        protection: Protection,
        rate_pps: u64,
        window: Duration,
    ) -> Result<FloodFigures, Error> {
        let stage = Stage {
            testbed: &self.testbed,
            program: &self.program,
            holdoff: self.holdoff,
            guard_arguments: &[],
        };
        let protector = stage.protect(protection, None)?;
        let schedule = (rate_pps > 0).then_some(Schedule::Fixed { rate_pps });
        let run = self.servers.flood(&stage, protector, schedule, window)?;
        Ok(FloodFigures {
            offered_pps: run.offered_pps,
            goodput_pps: run.goodput_pps,
            host_cpu: run.host_cpu,
            bystander: run.bystander,
            losses: run.losses,
        })
    }
}

impl std::fmt::Debug for Flooded {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Flooded")
            .field("holdoff", &self.holdoff)
            .finish_non_exhaustive()
    }
}
