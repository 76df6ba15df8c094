//! What brings a CPU into a trigger state.

use serde::Serialize;

/// A source of trigger states (section 3 and table V of the paper), by the
/// kernel's tracepoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The end of a system call (`sys_exit`).
    SystemCall,
    /// A packet is handed to a device (`net_dev_start_xmit`).
    IpOutput,
    /// The end of a network softirq (`softirq_exit`, receive and transmit).
    NetworkSoftirq,
    /// The end of another softirq: timers, scheduler, RCU, block devices.
    OtherSoftirq,
    /// The end of a device's interrupt handler (`irq_handler_exit`).
    DeviceInterrupt,
    /// The end of the local timer's interrupt (`local_timer_exit`): the tick,
    /// and high-resolution timers.
    TimerInterrupt,
    /// The end of an interrupt from another CPU.
    OtherInterrupt,
    /// The end of a page fault's handling (the perf events of minor and major faults).
    /// Where perf events are refused its begin (`page_fault_user`, `page_fault_kernel`).
    PageFault,
    /// The CPU becomes idle (`cpu_idle`). From here on it could check all the
    /// time, so the time until its exit is no interval between states.
    IdleEntry,
    /// The CPU leaves idle.
    IdleExit,
}

impl Source {
    /// Every source, in the recorder's order.
    pub const ALL: [Self; 10] = [
        Self::SystemCall,
        Self::IpOutput,
        Self::NetworkSoftirq,
        Self::OtherSoftirq,
        Self::DeviceInterrupt,
        Self::TimerInterrupt,
        Self::OtherInterrupt,
        Self::PageFault,
        Self::IdleEntry,
        Self::IdleExit,
    ];

    /// In words, for tables and curves.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::SystemCall => "system calls",
            Self::IpOutput => "IP output",
            Self::NetworkSoftirq => "network softirqs",
            Self::OtherSoftirq => "other softirqs",
            Self::DeviceInterrupt => "device interrupts",
            Self::TimerInterrupt => "timer interrupts",
            Self::OtherInterrupt => "interrupts of other CPUs",
            Self::PageFault => "page faults",
            Self::IdleEntry => "idle entries",
            Self::IdleExit => "idle exits",
        }
    }

    /// Whether it belongs to the idle loop.
    #[must_use]
    pub fn is_idle(self) -> bool {
        matches!(self, Self::IdleEntry | Self::IdleExit)
    }
}
