//! Which number of a profile follows from which trials.
//!
//! The model charges several costs where a trial measures one time. So costs are chosen
//! such that, in each repeat, the model's steps add up to what was measured as a whole. The
//! profile has the median of each cost, and medians need not add up: the more the repeats
//! differ, the less.

use plimsoll_sim::Profile;

use super::Round;

/// How a number of the profile follows from the trials.
pub(super) struct Derived {
    pub(super) name: &'static str,
    /// In words: the trials and what is done with them.
    pub(super) from: &'static str,
    /// Of one repeat, with what is assumed.
    pub(super) of: fn(&Values<'_>) -> f64,
}

/// One repeat, and the costs of the profile that gives what is not measured.
pub(super) struct Values<'a> {
    pub(super) round: &'a Round,
    pub(super) base: &'a Profile,
}

impl Values<'_> {
    fn trial(&self, id: &str) -> f64 {
        self.round.get(id).copied().unwrap_or(f64::NAN)
    }

    fn assumed(&self, cost: &str) -> f64 {
        self.base.costs.get(cost).map_or(0.0, |cost| cost.ns as f64)
    }

    /// What is charged beyond the rest where a packet is discarded.
    fn discard(&self) -> f64 {
        (self.trial("full") - self.trial("queue")).max(0.0)
    }

    /// A timer's interrupt with its softirq, but for the look at the interface.
    fn poll(&self) -> f64 {
        self.trial("timer") - self.assumed("poll_pass")
    }

    /// An interrupt that makes a thread poll, without the change to the thread. The timer's
    /// is no shorter.
    fn interrupt(&self) -> f64 {
        let rest = self.trial("thread") - self.switch().max(0.0) - self.assumed("poll_pass");
        rest.max(0.0).min(self.poll())
    }

    fn switch(&self) -> f64 {
        self.trial("switch") - self.trial("wake")
    }

    /// What the model charges for each packet that a host sends, beside the call.
    fn transmit(&self) -> f64 {
        self.assumed("driver_transmit") + self.assumed("transmit_complete")
    }
}

/// Costs. Sums of the model's steps equal what one repeat measured as a whole.
pub(super) const COSTS: &[Derived] = &[
    Derived {
        name: "interrupt_enter",
        from: "trial thread less thread_switch and the assumed poll_pass, at most trial timer",
        of: |values| values.interrupt(),
    },
    Derived {
        name: "soft_dispatch",
        from: "trial timer less interrupt_enter and the assumed poll_pass",
        of: |values| values.poll() - values.interrupt(),
    },
    Derived {
        name: "driver_receive",
        from: "trial drop",
        of: |values| values.trial("drop"),
    },
    Derived {
        name: "protocol_input",
        from: "trial queue less trial drop",
        of: |values| values.trial("queue") - values.trial("drop"),
    },
    Derived {
        name: "discard",
        from: "trial full less trial queue",
        of: |values| values.trial("full") - values.trial("queue"),
    },
    Derived {
        name: "demux",
        from: "trial guard less trial drop and discard",
        of: |values| values.trial("guard") - values.trial("drop") - values.discard(),
    },
    Derived {
        name: "wakeup",
        from: "trial wake",
        of: |values| values.trial("wake"),
    },
    Derived {
        name: "context_switch",
        from: "trial switch less trial wake",
        of: |values| values.switch(),
    },
    Derived {
        name: "thread_switch",
        from: "as context_switch, trial switch less trial wake",
        of: |values| values.switch(),
    },
    Derived {
        name: "receive_call",
        from: "trial read",
        of: |values| values.trial("read"),
    },
    Derived {
        name: "send_call",
        from: "trial send, less the assumed driver_transmit and transmit_complete",
        of: |values| values.trial("send") - values.transmit(),
    },
    Derived {
        name: "tcp_syn",
        from: "trial syn less trial drop and the assumed driver_transmit and transmit_complete",
        of: |values| values.trial("syn") - values.trial("drop") - values.transmit(),
    },
    Derived {
        name: "clock_tick",
        from: "trial tick",
        of: |values| values.trial("tick"),
    },
];

/// Costs that a trial has inside another one.
pub(super) const PARTS: &[(&str, &str)] = &[
    ("interrupt_exit", "trial thread has it in interrupt_enter"),
    (
        "eager_penalty",
        "trial read has it in receive_call: its packets had left the caches",
    ),
    ("poll_start", "trial thread has it in interrupt_enter"),
];

pub(super) const QUEUES: &[Derived] = &[
    Derived {
        name: "receive_ring",
        from: "trial ring",
        of: |values| values.trial("ring"),
    },
    Derived {
        name: "transmit_ring",
        from: "as receive_ring, trial ring",
        of: |values| values.trial("ring"),
    },
    Derived {
        name: "ip_queue",
        from: "trial max_backlog",
        of: |values| values.trial("max_backlog"),
    },
    Derived {
        name: "output_queue",
        from: "trial tx_queue",
        of: |values| values.trial("tx_queue"),
    },
    Derived {
        name: "socket_queue",
        from: "trial room",
        of: |values| values.trial("room"),
    },
];
