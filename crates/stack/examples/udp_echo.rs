//! A UDP echo on a TAP interface, for a look with ordinary tools:
//!
//! ```text
//! cargo run --example udp_echo &
//! ip addr add 10.0.0.1/24 dev tap0; ip link set tap0 up
//! ping 10.0.0.2
//! ```

use plimsoll_stack::device::tap::TapDevice;
use plimsoll_stack::{Stack, StackConfig, UdpSocket};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = TapDevice::open("tap0")?;
    let stack = Stack::start(device, &StackConfig::at("10.0.0.2/24".parse()?))?;
    let socket = UdpSocket::bind(&stack, "10.0.0.2:7")?;
    let mut batch = Vec::new();
    loop {
        socket.recv_batch(&mut batch, 64)?;
        // An answer that cannot be sent ends nothing. Where the device has failed the next call says so.
        let _ = socket.reply_batch(&mut batch);
    }
}
