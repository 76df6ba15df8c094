//! The monitors that are compared, each started as its users start it.

use std::path::Path;

use plimsoll_testbed::Host;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::spoken::Spoken;

/// Memory between kernel and monitor, the same for all, in MiB.
const BUFFER_MIB: u32 = 32;

/// A monitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tool {
    /// `plimsoll capture --mode take`.
    Take,
    /// `plimsoll capture --mode copy`.
    Copy,
    /// tcpdump.
    Tcpdump,
    /// dumpcap, which Wireshark captures with.
    Dumpcap,
    /// netsniff-ng.
    NetsniffNg,
    /// xdpdump, which takes packets in the driver. Its ring's size is its own.
    Xdpdump,
}

impl Tool {
    /// All, in the order of the table.
    pub const ALL: [Self; 6] = [
        Self::Take,
        Self::Copy,
        Self::Tcpdump,
        Self::Dumpcap,
        Self::NetsniffNg,
        Self::Xdpdump,
    ];

    /// As it stands in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Take => "plimsoll take",
            Self::Copy => "plimsoll copy",
            Self::Tcpdump => "tcpdump",
            Self::Dumpcap => "dumpcap",
            Self::NetsniffNg => "netsniff-ng",
            Self::Xdpdump => "xdpdump",
        }
    }

    /// Whether it is one of ours.
    #[must_use]
    pub const fn is_ours(self) -> bool {
        matches!(self, Self::Take | Self::Copy)
    }

    fn package(self) -> &'static str {
        match self {
            Self::Take | Self::Copy => "plimsoll",
            Self::Tcpdump => "tcpdump",
            Self::Dumpcap => "wireshark-common",
            Self::NetsniffNg => "netsniff-ng",
            Self::Xdpdump => "xdp-tools",
        }
    }

    /// Whether the others are measured without it as well, where it is not installed.
    pub(super) const fn may_be_missing(self) -> bool {
        matches!(self, Self::Xdpdump)
    }

    fn arguments(self, interface: &str, file: &str) -> Vec<String> {
        let mib = BUFFER_MIB;
        let line = match self {
            Self::Take | Self::Copy => {
                let mode = if self == Self::Take { "take" } else { "copy" };
                format!("capture {interface} --mode {mode} -w {file} --ring {mib}M")
            }
            Self::Tcpdump => format!("-i {interface} -n -Z root -B {} -w {file}", mib << 10),
            Self::Dumpcap => format!("-i {interface} -q -B {mib} -w {file}"),
            Self::NetsniffNg => {
                format!("--in {interface} --out {file} --silent --ring-size {mib}MiB")
            }
            Self::Xdpdump => format!("-i {interface} --load-xdp-program -w {file}"),
        };
        line.split(' ').map(str::to_owned).collect()
    }

    /// What it says when it has begun.
    fn greeting(self) -> &'static str {
        match self {
            Self::Take | Self::Copy => "capturing on",
            Self::Tcpdump | Self::Xdpdump => "listening on",
            Self::Dumpcap => "File: ",
            Self::NetsniffNg => "Running!",
        }
    }

    /// The number of recorded packets in what it says at its end.
    fn recorded(self, said: &str) -> Option<u64> {
        let line = |words: &str| said.lines().rev().find(|line| line.contains(words));
        let before = |words: &str| line(words)?.split_whitespace().next()?.parse().ok();
        match self {
            Self::Take | Self::Copy => before(" recorded"),
            Self::Tcpdump | Self::Xdpdump => before("packets captured"),
            Self::Dumpcap => line("Packets captured:")?.rsplit(' ').next()?.parse().ok(),
            Self::NetsniffNg => before("packets passed filter"),
        }
    }
}

/// A monitor at work.
pub(super) struct Running {
    tool: Tool,
    spoken: Spoken,
}

impl Running {
    /// Starts a monitor on the host's interface and CPU, and waits until it has begun.
    pub(super) fn start(
        tool: Tool,
        program: &Path,
        host: &Host,
        file: &Path,
        log: &Path,
    ) -> Result<Self, Error> {
        let mut command = match tool {
            Tool::Take | Tool::Copy => host.command(program),
            other => host.command(other.name()),
        };
        command
            .package(tool.package())
            .args(tool.arguments(host.device(), &file.to_string_lossy()));
        let spoken = Spoken::start(tool.name(), &mut command, log, tool.greeting())?;
        Ok(Self { tool, spoken })
    }

    /// Ends it as Ctrl-C does; returns how many packets it has recorded, and all it said.
    pub(super) fn stop(mut self) -> Result<(u64, String), Error> {
        let (_, said) = self.spoken.stop()?;
        let recorded = self.tool.recorded(&said);
        recorded
            .map(|count| (count, said))
            .ok_or_else(|| self.spoken.failed("did not tell its counts"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_found_in_what_tools_say() {
        let said = "1200 packets captured\n1300 packets received by filter\n0 packets dropped";
        assert_eq!(Tool::Tcpdump.recorded(said), Some(1200));
        let said = "Packets captured: 77\nPackets received/dropped on interface 'x': 77/3";
        assert_eq!(Tool::Dumpcap.recorded(said), Some(77));
        let said = "\r          55  packets incoming\n\r          44  packets passed filter\n";
        assert_eq!(Tool::NetsniffNg.recorded(said), Some(44));
        let said = "listening on test0\n\n9 packets captured\n0 packets dropped by perf ring\n";
        assert_eq!(Tool::Xdpdump.recorded(said), Some(9));
        let said = "          10 received\n           9 recorded\n";
        assert_eq!(Tool::Take.recorded(said), Some(9));
        assert_eq!(Tool::Copy.recorded("nothing"), None);
    }
}
