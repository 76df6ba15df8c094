//! A datagram every 100 µs or so from a thread that works besides, on a TAP interface (see
//! `udp_echo` for setting it up): `nc -u -l 9` receives.

use std::hint::black_box;

use plimsoll_stack::device::tap::TapDevice;
use plimsoll_stack::pacing::{FlowId, FlowRates, Rate};
use plimsoll_stack::{Filled, PacedSender, PacedSenderConfig, Stack, StackConfig, UdpSocket};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = TapDevice::open("tap0")?;
    let stack = Stack::start(device, &StackConfig::at("10.0.0.2/24".parse()?))?;
    let socket = UdpSocket::bind(&stack, "10.0.0.2:7")?;
    let target = Rate::from_bits_per_second(100_000_000)?;
    let burst = Rate::from_bits_per_second(200_000_000)?;
    let mut sender = PacedSender::new(socket, PacedSenderConfig::default())?;
    let flow = sender.add_flow("10.0.0.1:9".parse()?, FlowRates { target, burst })?;
    // It has something to send.
    sender.start(flow)?;
    loop {
        work();
        // A trigger state.
        let Some(now) = sender.check() else { continue };
        // Asks each flow whose time has come.
        sender.send_due(now, |flow, place| {
            let bytes = write_next(flow, place);
            Some(Filled { bytes, more: true })
        })?;
    }
}

/// The program's own work.
fn work() {
    black_box((0..100_u64).fold(1, |work, turn| black_box(work ^ turn)));
}

/// Writes a flow's next datagram; its length.
fn write_next(_flow: FlowId, place: &mut [u8]) -> usize {
    let bytes = place.len().min(1200);
    place[..bytes].fill(b'x');
    bytes
}
