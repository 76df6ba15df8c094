//! A UDP sender on soft timers: 1200 bytes every 120 µs, to a port of its own.

use std::net::UdpSocket;

use plimsoll_timers::pacing::{FlowRates, Pacer, PacerConfig, Rate};

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.connect(socket.local_addr()?)?;
    let mut pacer = Pacer::new(PacerConfig::default())?;
    let target = Rate::clamped(80_000_000);
    let burst = Rate::clamped(1_000_000_000);
    let flow = pacer.add_flow(FlowRates { target, burst })?;
    pacer.on_backlog(flow)?;
    let mut left = 100;
    while left > 0 {
        // ... the program's own work ...
        let Some(now) = pacer.check() else { continue };
        while let Some(flow) = pacer.poll_departure(now) {
            left -= 1;
            socket.send(&[0; 1200])?;
            pacer.on_sent(now, flow, 1200, left > 0)?;
        }
    }
    let rate = pacer.train(flow)?.average_rate(pacer.now());
    println!("sent at {rate:?}");
    Ok(())
}
