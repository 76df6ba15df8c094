//! Decisions of a network driver beyond when to interrupt and poll.
//!
//! Intuition: on the path of every packet a driver does small things that are
//! needed only rarely: it restarts a watchdog, searches for the client, raises
//! the interrupt level, checks for modes nobody uses. Each can be made nearly
//! free in the common case, if the rare case is still handled right (Tracey &
//! Banerji, "Device Driver Issues in High-Performance Networking").
//!
//! | part | decides | ids |
//! | --- | --- | --- |
//! | [`DescriptorRing`] | which buffer is the driver's and which the device's; what the device may claim | TB-01 to TB-03 |
//! | [`IncomingRing`], [`OutgoingRing`] | which entries of a ring in shared memory are there, and whose places are free | TB-01 |
//! | [`LazyWatchdog`] | when a timer really has to be started or stopped | TB-07 to TB-11 |
//! | [`NetidTable`] | which client a packet is for, with a prediction | TB-13 to TB-18 |
//! | [`ProtectedSection`] | who may touch shared data, and what waits until later | TB-19 to TB-31 |
//! | [`TransmitSlots`] | whether a frame may have a transmit slot now | TB-34 to TB-37 |
//! | [`ReceivePrediction`] | whether to bet on a client that awaits a reply | TB-38 |
//! | [`ReceiveModes`] | which receive routine is to be installed | TB-32, TB-39 |
//!
//! When they lose: each is worth its check only if the operation it avoids is
//! dearer. The paper measured the lazy watchdog to be about 1 % *slower* on its
//! machine (TB-12), and expected nothing of better netid prediction where almost
//! all traffic is IP. Each part counts what it saved, so that it can be judged.

mod netid;
mod protection;
mod receive;
mod ring;
mod shared_ring;
mod transmit;
mod watchdog;

pub use netid::{BindError, NetidStatistics, NetidTable};
pub use protection::{Interrupt, Leave, ProtectedSection, Section};
pub use receive::{PredictionConfig, ReceiveModes, ReceivePrediction, Routine};
pub use ring::{
    Completion, DescriptorError, DescriptorRing, DeviceDescriptor, HostDescriptor, RingConfig,
};
pub use shared_ring::{IncomingRing, OutgoingRing, RingMemory};
pub use transmit::{TransmitConfig, TransmitSlots};
pub use watchdog::{Expiry, LazyWatchdog, TimerCommand, WatchdogConfig, WatchdogStatistics};
