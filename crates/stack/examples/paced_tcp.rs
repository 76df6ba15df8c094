//! A TCP connection whose segments leave at the path's rate, from the first one on. On a TAP
//! interface (see `udp_echo` for setting it up): `nc -l 9` receives.

use std::io::Write;

use plimsoll_stack::device::tap::TapDevice;
use plimsoll_stack::{Stack, StackConfig, TcpStream};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = TapDevice::open("tap0")?;
    let stack = Stack::start(device, &StackConfig::at("10.0.0.2/24".parse()?))?;
    let mut stream = TcpStream::connect(&stack, "10.0.0.1:9")?;
    pace(&stream)?;
    stream.write_all(&[b'x'; 1 << 20])?;
    Ok(())
}

fn pace(stream: &TcpStream) -> Result<(), Box<dyn std::error::Error>> {
    use plimsoll_stack::Pacing;
    use plimsoll_stack::pacing::Rate;

    stream.set_pacing(Pacing::at(Rate::from_bits_per_second(100_000_000)?))?;
    Ok(())
}
