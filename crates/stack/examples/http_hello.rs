//! The least that a browser takes for a web server, on a TAP interface (see
//! `udp_echo` for setting it up): `curl http://10.0.0.2/`. A real one is
//! `plimsoll serve http`.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::time::Duration;

use plimsoll_stack::device::tap::TapDevice;
use plimsoll_stack::{Stack, StackConfig, TcpListener, TcpStream};

/// How long others wait for a client that says or takes nothing.
const PATIENCE: Duration = Duration::from_secs(1);
/// Of a request, pieces that are waited for behind the first.
const PIECES_MAX: usize = 16;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = TapDevice::open("tap0")?;
    let stack = Stack::start(device, &StackConfig::at("10.0.0.2/24".parse()?))?;
    let listener = TcpListener::bind(&stack, "10.0.0.2:80")?;
    loop {
        let (client, from) = listener.accept()?;
        // A client that goes away does not end the server.
        match greet(client) {
            Ok(length) => println!("{length} bytes from {from}"),
            Err(error) => println!("{from}: {error}"),
        }
    }
}

/// A request that comes in pieces is answered at the first.
pub(crate) fn greet(mut client: TcpStream) -> io::Result<usize> {
    client.set_read_timeout(Some(PATIENCE))?;
    client.set_write_timeout(Some(PATIENCE))?;
    let length = client.read(&mut [0; 4096])?;
    client
        .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\nhello\n")?;
    // With more of the request unread the drop would be a reset, and the answer lost by it.
    client.shutdown(Shutdown::Write)?;
    for _ in 0..PIECES_MAX {
        if client.read(&mut [0; 4096])? == 0 {
            break;
        }
    }
    Ok(length)
}
