//! The guard, and in one step the stack, on other kernels and drivers: Debian's kernels in QEMU, with
//! virtio_net, vmxnet3, igb, e1000e and veth.
//!
//! `plimsoll-vm` boots one machine for each kernel and driver. A machine has two
//! interfaces on one wire: the guarded one, and one in a network namespace that loads
//! it, so nothing leaves the machine. `plimsoll-vm-guest` is its init process: it takes
//! the guard through the [`Step`]s, and writes a [`Finding`] a line to the second serial port. Steps
//! are the same everywhere, but some are for some drivers alone ([`Step::is_for`]), and where the
//! guard has to refuse few are left ([`Step::is_for_refusal`]).
//!
//! Limits: without hardware virtualisation a machine is ten to thirty times slower than
//! this one. Whether something works is shown, not how fast.

pub mod archive;
pub mod document;
pub mod files;
pub mod machine;

use serde::{Deserialize, Serialize};

/// Ethernet addresses of the two interfaces.
pub const LOAD_MAC: &str = "52:54:00:00:00:01";
/// See [`LOAD_MAC`].
pub const HOST_MAC: &str = "52:54:00:00:00:02";

/// What the guard is taken through, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    /// The machine has booted and has its interfaces.
    Boot,
    /// `plimsoll guard check`.
    Check,
    /// The guard starts and attaches in native mode; or it refuses in one sentence.
    Start,
    /// A full socket's packets are discarded; when it has drained, all arrive.
    Drain,
    /// A SYN flood: as many real connections as without the guard.
    SynFlood,
    /// A gateway that masquerades: the guard keeps none of a download's packets, and no more
    /// of them are lost than without it.
    Masquerade,
    /// The same for the packets of a VLAN device on the guarded interface.
    Vlan,
    /// The guard is killed in overload, many times: settings are as before.
    Kill,
    /// A restart under a service manager: no datagram is lost, the program never gone.
    HandOver,
    /// The link went down and up in a flood: the guard sees it again.
    Link,
    /// Threads poll while a flood lasts, also after the link went down and up; they end with
    /// the flood, and with a killed guard.
    Threads,
    /// The user-space stack on AF_XDP answers, with igb also without copies.
    /// Flooded, stopped and killed, it leaves the kernel's sockets of the interface theirs.
    Stack,
    /// A bond of two veths: a guard on it says that its members are to be guarded and turns
    /// nothing of them; one on a member governs it.
    Bond,
    /// Large receive offload, which vmxnet3 switches off for a program, is on again after it.
    Offload,
    /// The guard has ended: settings are as before, nothing is attached or left on disk.
    End,
}

impl Step {
    /// All of them.
    pub const ALL: [Self; 15] = [
        Self::Boot,
        Self::Check,
        Self::Start,
        Self::Drain,
        Self::SynFlood,
        Self::Masquerade,
        Self::Vlan,
        Self::Kill,
        Self::HandOver,
        Self::Link,
        Self::Threads,
        Self::Stack,
        Self::Bond,
        Self::Offload,
        Self::End,
    ];

    /// Of a host that lacks something, these alone are shown.
    #[must_use]
    pub fn is_for_refusal(self) -> bool {
        matches!(self, Self::Boot | Self::Check | Self::Start | Self::End)
    }

    /// Whether it is taken on machines with this driver. A bond's members are veths, whatever
    /// the machine's own interface is: it is made once for each kernel. The stack's
    /// other tests have veths.
    #[must_use]
    pub fn is_for(self, driver: &str) -> bool {
        match self {
            Self::Bond => driver == "veth",
            Self::Stack => driver != "veth",
            Self::Offload => driver == "vmxnet3",
            _ => true,
        }
    }

    /// As in the table and on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Boot => "boot",
            Self::Check => "check",
            Self::Start => "start",
            Self::Drain => "drain",
            Self::SynFlood => "syn-flood",
            Self::Masquerade => "masquerade",
            Self::Vlan => "vlan",
            Self::Kill => "kill",
            Self::HandOver => "hand-over",
            Self::Link => "link",
            Self::Threads => "threads",
            Self::Stack => "stack",
            Self::Bond => "bond",
            Self::Offload => "offload",
            Self::End => "end",
        }
    }
}

/// How a step went.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// Which.
    pub step: Step,
    /// The guard did what it should.
    pub ok: bool,
    /// What was seen.
    pub found: String,
    /// How long it took in the machine.
    pub seconds: f64,
}

/// What a machine is told, on its kernel's command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Orders {
    /// The driver of the guarded interface.
    pub driver: String,
    /// The guard must refuse to start: by this word in its sentence.
    pub refusal: Option<String>,
    /// How often the guard is killed.
    pub kills: u32,
    /// What the random moments come from.
    pub seed: u64,
}

impl Orders {
    /// As words of a command line.
    #[must_use]
    pub fn words(&self) -> String {
        let refusal = self.refusal.as_deref().unwrap_or("no");
        format!(
            "plimsoll.driver={} plimsoll.refusal={refusal} plimsoll.kills={} plimsoll.seed={}",
            self.driver, self.kills, self.seed
        )
    }

    /// From a command line with such words; `None` if one is missing.
    #[must_use]
    pub fn of(line: &str) -> Option<Self> {
        let value = |name: &str| {
            let prefix = format!("plimsoll.{name}=");
            line.split_whitespace()
                .find_map(|word| word.strip_prefix(&prefix))
        };
        Some(Self {
            driver: value("driver")?.to_owned(),
            refusal: value("refusal")
                .filter(|word| *word != "no")
                .map(str::to_owned),
            kills: value("kills")?.parse().ok()?,
            seed: value("seed")?.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_arrive_as_they_were_given() {
        for refusal in [None, Some("native".to_owned())] {
            let orders = Orders {
                driver: "vmxnet3".to_owned(),
                refusal,
                kills: 7,
                seed: 11,
            };
            let line = format!("console=ttyS0 {} quiet", orders.words());
            assert_eq!(Orders::of(&line), Some(orders));
        }
        assert_eq!(Orders::of("console=ttyS0"), None);
    }

    #[test]
    fn a_finding_has_the_steps_name_on_the_wire() {
        for step in Step::ALL {
            let json = serde_json::to_value(step).unwrap();
            assert_eq!(json, step.name());
        }
    }
}
