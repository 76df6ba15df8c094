//! A UDP server on the AF_XDP sockets of `eth1`: it sends each datagram back, its bytes in
//! reverse order.

use plimsoll_stack::device::xdp::{XdpConfig, XdpInterface};
use plimsoll_stack::{Stack, StackConfig, UdpSocket};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let config = XdpConfig {
        owned: vec!["192.0.2.7".parse()?],
        ..XdpConfig::default()
    };
    let device = XdpInterface::open("eth1", &config)?;
    let stack = Stack::start(device, &StackConfig::at("192.0.2.7/24".parse()?))?;
    let socket = UdpSocket::bind(&stack, "192.0.2.7:7")?;
    let mut batch = Vec::new();
    loop {
        socket.recv_batch(&mut batch, 64)?;
        for datagram in &mut batch {
            datagram.payload_mut().reverse();
        }
        // An answer that cannot be sent ends nothing. Where the device has failed the next call says so.
        let _ = socket.reply_batch(&mut batch);
    }
}
