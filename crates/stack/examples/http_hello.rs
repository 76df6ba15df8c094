//! The least that a browser takes for a web server, on a TAP interface (see
//! `udp_echo` for setting it up): `curl http://10.0.0.2/`. A real one is
//! `plimsoll serve http`.

use std::io::{Read, Write};

use plimsoll_stack::device::tap::TapDevice;
use plimsoll_stack::{Stack, StackConfig, TcpListener};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = TapDevice::open("tap0")?;
    let stack = Stack::start(device, &StackConfig::at("10.0.0.2/24".parse()?))?;
    let listener = TcpListener::bind(&stack, "10.0.0.2:80")?;
    loop {
        let (mut client, from) = listener.accept()?;
        // A request that comes in pieces is answered at the first.
        let length = client.read(&mut [0; 4096])?;
        println!("{length} bytes from {from}");
        client.write_all(
            b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\nhello\n",
        )?;
    }
}
