//! This crate's integration tests in one program, since each would take its time to link. `make test`
//! runs each module in a process of its own.

mod capture;
mod closing;
mod lan;
mod line;
mod steered;
mod watched;

mod addresses;
mod ahead;
mod bottleneck;
mod credit;
mod descriptors;
mod ends;
mod faulty_kernel;
mod forged;
mod forward;
mod groups;
mod input;
mod kernel;
mod messages;
mod paced_udp;
mod pacing;
mod packet_socket;
mod placement;
mod priority;
mod probes;
mod proxies;
mod queues;
mod raw_peer;
mod readiness;
mod room;
mod send_buffers;
mod settings;
mod shared_socket;
mod snooping;
mod steering;
mod taken;
mod tcp;
mod tcp_channels;
mod tended;
mod transmit;
mod trouble;
mod udp;
mod vlan;
mod waiting;
