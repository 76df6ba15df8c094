//! A device that writes down every frame it passes on, in libpcap's format
//! with time stamps in nanoseconds.
//!
//! Both directions go into one file, in the order in which this device saw
//! them. So do those of sockets that the device opens for single endpoints (`ni-lrp`). Writing costs: it is for tests and for looking closely, not for load.
//! A failed write ends the recording and not the device; [`Recording::finish`]
//! tells.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use pcap_file::{DataLink, Endianness, PcapError, TsResolution};

use super::wrapper::Wrapper;
use super::{Batch, Capabilities, Device};

/// A device, and the capture of what passes it. Who gives it to a stack keeps an [`Arc`], and ends the
/// capture once the stack and its sockets are gone:
///
/// ```
/// # use std::sync::Arc;
/// # use plimsoll_stack::device::recording::Recording;
/// # use plimsoll_stack::device::simulated::{SimulatedConfig, SimulatedDevice};
/// # use plimsoll_stack::{Stack, StackConfig};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (_cable, device) = SimulatedDevice::pair(&SimulatedConfig::default())?;
/// let recording = Arc::new(Recording::new(device, Vec::new())?);
/// let stack = Stack::start(Arc::clone(&recording), &StackConfig::at("10.0.0.2/24".parse()?))?;
/// // …
/// drop(stack);
/// let recording = Arc::into_inner(recording).expect("nobody else has it");
/// let (_device, file) = recording.finish()?;
/// assert!(file.len() >= 24, "a header, and frames");
/// # Ok(())
/// # }
/// ```
pub struct Recording<D, W: Write> {
    inner: D,
    capture: Arc<Mutex<Capture<W>>>,
}

impl<D: fmt::Debug, W: Write> fmt::Debug for Recording<D, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Recording").field(&self.inner).finish()
    }
}

struct Capture<W: Write> {
    writer: PcapWriter<W>,
    failed: Option<PcapError>,
}

impl<W: Write> Capture<W> {
    fn write(&mut self, frame: &[u8]) {
        if self.failed.is_some() {
            return;
        }
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let packet = PcapPacket {
            timestamp: now.unwrap_or_default(),
            orig_len: frame.len() as u32,
            data: Cow::Borrowed(frame),
        };
        self.failed = self.writer.write_packet(&packet).err();
    }
}

impl<D: Device, W: Write + Send> Recording<D, W> {
    /// Records what passes `inner`; `to` had better be buffered.
    ///
    /// # Errors
    ///
    /// The file's header cannot be written.
    pub fn new(inner: D, to: W) -> io::Result<Self> {
        let header = PcapHeader {
            datalink: DataLink::ETHERNET,
            ts_resolution: TsResolution::NanoSecond,
            endianness: Endianness::native(),
            ..PcapHeader::default()
        };
        let writer = PcapWriter::with_header(to, header).map_err(io::Error::other)?;
        Ok(Self {
            inner,
            capture: Arc::new(Mutex::new(Capture {
                writer,
                failed: None,
            })),
        })
    }

    /// Ends the recording; gives the device and the writer back.
    ///
    /// # Errors
    ///
    /// Writing failed, then or now. `ResourceBusy`: a socket that this device opened is still
    /// there and records.
    pub fn finish(self) -> io::Result<(D, W)> {
        let capture = Arc::into_inner(self.capture).ok_or(io::ErrorKind::ResourceBusy)?;
        let capture = capture.into_inner();
        match capture.failed {
            Some(error) => Err(io::Error::other(error)),
            None => {
                let mut writer = capture.writer.into_writer();
                writer.flush()?;
                Ok((self.inner, writer))
            }
        }
    }
}

impl<D: Device, W: Write + Send + 'static> Wrapper for Recording<D, W> {
    type Inner = D;

    fn inner(&self) -> &D {
        &self.inner
    }

    fn narrow(&self, inner: Capabilities) -> Capabilities {
        inner
    }

    fn around(&self, opened: Arc<dyn Device>) -> io::Result<Arc<dyn Device>> {
        Ok(Arc::new(Recording {
            inner: opened,
            capture: Arc::clone(&self.capture),
        }))
    }

    fn receive_through(&self, batch: &mut Batch, max: usize) -> io::Result<usize> {
        let before = batch.len();
        let received = self.inner.receive(batch, max)?;
        let mut capture = self.capture.lock();
        batch.range(before..).for_each(|frame| capture.write(frame));
        Ok(received)
    }

    fn transmit_through(&self, batch: &mut Batch) -> io::Result<usize> {
        if batch.is_empty() {
            // What the device was given before is to go on.
            return self.inner.transmit(batch);
        }
        // Frames leave our hands in sending, so they are copied before, and
        // only those that then go are written.
        let mut capture = self.capture.lock();
        let mut sent = 0;
        let mut one = Batch::with_capacity(1);
        while let Some(frame) = batch.pop_front() {
            let copy = frame.to_vec();
            one.push_back(frame);
            if self.inner.transmit(&mut one)? == 0 {
                batch.extend(one.drain(..));
                batch.rotate_right(1);
                break;
            }
            capture.write(&copy);
            sent += 1;
        }
        Ok(sent)
    }
}

#[cfg(test)]
mod tests {
    use pcap_file::pcap::PcapReader;

    use super::super::simulated::{SimulatedConfig, SimulatedDevice};
    use super::*;

    #[test]
    fn both_directions_are_in_the_capture_in_order() {
        let (one, other) = SimulatedDevice::pair(&SimulatedConfig::default()).unwrap();
        let recorded = Recording::new(other, Vec::new()).unwrap();
        one.send(&[1; 60]);
        one.send(&[2; 61]);
        let mut batch = Batch::new();
        assert_eq!(recorded.receive(&mut batch, 8).unwrap(), 2);
        let answer = batch.pop_back().unwrap();
        let mut answers = Batch::from([answer]);
        assert_eq!(recorded.transmit(&mut answers).unwrap(), 1);
        assert_eq!(one.receive(&mut batch, 8).unwrap(), 1);
        let (_, file) = recorded.finish().unwrap();
        let mut reader = PcapReader::new(&file[..]).unwrap();
        let mut seen = Vec::new();
        while let Some(packet) = reader.next_packet() {
            seen.push(packet.unwrap().data.into_owned());
        }
        assert_eq!(seen, [vec![1; 60], vec![2; 61], vec![2; 61]]);
    }

    /// So the device is told to go on with what it was given.
    #[test]
    fn what_waits_in_the_device_goes_on() {
        let (one, other) = SimulatedDevice::pair(&SimulatedConfig::default()).unwrap();
        let mut waiting = Batch::from([other.pool().take().unwrap()]);
        assert!(waiting[0].copy_from(&[3; 60]));
        other.enqueue(&mut waiting).unwrap();
        let recorded = Recording::new(other, Vec::new()).unwrap();
        let mut batch = Batch::new();
        assert_eq!(one.receive(&mut batch, 8).unwrap(), 0, "it waits");
        recorded.transmit(&mut Batch::new()).unwrap();
        assert_eq!(one.receive(&mut batch, 8).unwrap(), 1);
    }
}
