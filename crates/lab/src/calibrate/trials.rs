//! The trials of a machine, by name.

/// What has to be measured: the trial's name, its unit, and what it is.
pub const TRIALS: &[(&str, &str, &str)] = &[
    (
        "timer",
        "ns",
        "network time per run of a polling timer that finds no packet, beside a process that computes",
    ),
    (
        "queue",
        "ns",
        "network time per UDP packet that is appended to the queue of a socket nobody waits at, less the timer's",
    ),
    (
        "full",
        "ns",
        "network time per UDP packet that finds its socket's queue full, less the timer's",
    ),
    (
        "drop",
        "ns",
        "network time per packet that an XDP program drops at once, less the timer's",
    ),
    (
        "pass",
        "ns",
        "what an XDP program that passes everything adds to a packet that finds its socket's queue full",
    ),
    (
        "guard",
        "ns",
        "network time per packet that the guard discards early, without fairness, less the timer's",
    ),
    (
        "syn",
        "ns",
        "network time per SYN from random addresses to a listener, with its answer, less the timer's",
    ),
    (
        "wake",
        "ns",
        "network time per UDP packet whose server sleeps, less the timer's and that of `queue`",
    ),
    (
        "read",
        "ns",
        "process time per UDP packet that is read one by one from a long queue",
    ),
    (
        "send",
        "ns",
        "process and network time per UDP packet sent across the link back to back, less the timer's",
    ),
    (
        "switch",
        "ns",
        "half of what a round trip between two processes of one CPU takes beyond two packets that a process sends to itself",
    ),
    (
        "thread",
        "ns",
        "network time per packet that a polling thread is woken for, beside a process that computes, less that of `drop`",
    ),
    (
        "tick",
        "ns",
        "the median gap that the clock's interrupt makes in a real-time thread that reads the time",
    ),
    (
        "ring",
        "packets",
        "packets of one burst that the receive ring takes while one packet is being handled",
    ),
    (
        "room",
        "packets",
        "packets of the bench's flood that the receive buffer of the bench's sink holds",
    ),
    (
        "max_backlog",
        "packets",
        "the setting net.core.netdev_max_backlog",
    ),
    (
        "tx_queue",
        "packets",
        "the setting txqueuelen of the interface",
    ),
];
