//! What left a device and when, and whether it left by the clock.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use pcap_file::PcapError;
use pcap_file::pcap::PcapReader;
use smoltcp::wire::{EthernetFrame, IpProtocol, Ipv4Packet, TcpPacket, UdpPacket};

use crate::lan::SOON;

/// What a device wrote down, while the stack has the device.
#[derive(Clone, Default)]
pub(crate) struct Capture(Arc<Mutex<Vec<u8>>>);

impl Write for Capture {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Capture {
    /// When segments or datagrams with payload left for this port, in nanoseconds, once there are
    /// so many: a device writes down what it has sent, and the peer may have it sooner.
    pub(crate) fn departures_to(&self, port: u16, least: usize) -> Vec<u64> {
        let to_port = || {
            let all = self.written().into_iter();
            all.filter_map(|(to, at)| (to == port).then_some(at))
                .collect()
        };
        once(least, to_port)
    }

    /// Of all segments and datagrams with payload: the port they left for, and when.
    pub(crate) fn departures(&self, least: usize) -> Vec<(u16, u64)> {
        once(least, || self.written())
    }

    fn written(&self) -> Vec<(u16, u64)> {
        let bytes = self.0.lock().unwrap().clone();
        let mut reader = PcapReader::new(&bytes[..]).unwrap();
        let mut departures = Vec::new();
        while let Some(packet) = reader.next_packet() {
            let packet = match packet {
                // The device has written a part of it so far.
                Err(PcapError::IoError(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    break;
                }
                packet => packet.unwrap(),
            };
            let frame = EthernetFrame::new_checked(&packet.data[..]).unwrap();
            let Ok(ip) = Ipv4Packet::new_checked(frame.payload()) else {
                continue;
            };
            let to = match ip.next_header() {
                IpProtocol::Tcp => TcpPacket::new_checked(ip.payload())
                    .ok()
                    .and_then(|tcp| (!tcp.payload().is_empty()).then(|| tcp.dst_port())),
                IpProtocol::Udp => UdpPacket::new_checked(ip.payload())
                    .ok()
                    .map(|udp| udp.dst_port()),
                _ => None,
            };
            let at = packet.timestamp.as_nanos() as u64;
            departures.extend(to.map(|to| (to, at)));
        }
        departures
    }
}

fn once<T>(least: usize, look: impl Fn() -> Vec<T>) -> Vec<T> {
    let end = Instant::now() + SOON;
    loop {
        let found = look();
        if found.len() >= least {
            return found;
        }
        assert!(Instant::now() < end, "{} of {least} left", found.len());
        thread::sleep(Duration::from_millis(1));
    }
}

/// Never faster than one per `interval`. A departure may be stamped late, which shortens the
/// gap behind it: so of some gaps in a row one does not count. The clocks of stamps and
/// departures may differ by a hundredth.
pub(crate) fn assert_spaced(departures: &[u64], interval: Duration) {
    for gaps in [2, 5, 20] {
        let least = (gaps - 1) * interval.as_nanos() as u64 * 99 / 100;
        let places = departures.windows(gaps as usize + 1);
        let shortest = places.map(|place| place[gaps as usize] - place[0]).min();
        assert!(shortest >= Some(least), "{gaps} gaps in {shortest:?} ns");
    }
}
