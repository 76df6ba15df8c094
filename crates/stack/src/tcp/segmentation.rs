//! Segments that are too long for their path are cut.
//!
//! smoltcp's socket takes the length of its segments from the device and the peer once, when
//! the connection begins. A path that turns out to take less (`link::paths`) makes no
//! difference to it, also not when it sends something again. So each segment is cut on its way
//! to the device, as an adapter would do (segmentation offload).

use std::sync::Arc;

use smoltcp::wire::{IpAddress, IpVersion, Ipv4Packet, Ipv6Packet, TcpPacket};

use crate::device::{Batch, Frame, HEADROOM_BYTES, Pool};
use crate::wire::ETHERNET_BYTES;

/// Cuts the segments of a batch into packets of at most `mtu` bytes. What finds no buffer is
/// dropped, for TCP to send again.
pub(super) fn cut_all(batch: &mut Batch, mtu: usize, pool: &Arc<Pool>) {
    for _ in 0..batch.len() {
        let Some(frame) = batch.pop_front() else {
            return;
        };
        if frame.len() <= ETHERNET_BYTES + mtu {
            batch.push_back(frame);
        } else {
            cut(frame, mtu, pool, batch);
        }
    }
}

/// Appends the pieces of a frame with a segment.
fn cut(mut frame: Frame, mtu: usize, pool: &Arc<Pool>, batch: &mut Batch) -> Option<()> {
    let headers = headers_bytes(&frame)?;
    let step = (ETHERNET_BYTES + mtu)
        .checked_sub(headers)
        .filter(|&step| step > 0)?;
    let whole = frame.len() - headers;
    let mut others = Vec::with_capacity(whole.div_ceil(step));
    for offset in (step..whole).step_by(step) {
        let bytes = step.min(whole - offset);
        let mut piece = pool.take()?;
        piece.set_range(HEADROOM_BYTES..HEADROOM_BYTES + headers + bytes);
        piece[..headers].copy_from_slice(&frame[..headers]);
        let from = headers + offset;
        piece[headers..].copy_from_slice(&frame[from..from + bytes]);
        finish(&mut piece, offset, offset + bytes == whole)?;
        others.push(piece);
    }
    let start = frame.range().start;
    frame.set_range(start..start + headers + step.min(whole));
    finish(&mut frame, 0, whole <= step)?;
    batch.push_back(frame);
    batch.extend(others);
    Some(())
}

/// Bytes in front of a segment's payload.
fn headers_bytes(frame: &[u8]) -> Option<usize> {
    let packet = frame.get(ETHERNET_BYTES..)?;
    let network = match IpVersion::of_packet(packet).ok()? {
        IpVersion::Ipv4 => usize::from(Ipv4Packet::new_checked(packet).ok()?.header_len()),
        IpVersion::Ipv6 => smoltcp::wire::IPV6_HEADER_LEN,
    };
    let segment = TcpPacket::new_checked(packet.get(network..)?).ok()?;
    Some(ETHERNET_BYTES + network + usize::from(segment.header_len()))
}

/// Makes the headers those of a piece at `offset` of the payload.
fn finish(frame: &mut [u8], offset: usize, last: bool) -> Option<()> {
    let packet = frame.get_mut(ETHERNET_BYTES..)?;
    let length = u16::try_from(packet.len()).ok()?;
    let (from, to): (IpAddress, IpAddress);
    let segment = match IpVersion::of_packet(packet).ok()? {
        IpVersion::Ipv4 => {
            let mut ip = Ipv4Packet::new_unchecked(&mut *packet);
            ip.set_total_len(length);
            ip.fill_checksum();
            (from, to) = (ip.src_addr().into(), ip.dst_addr().into());
            let header = usize::from(ip.header_len());
            packet.get_mut(header..)?
        }
        IpVersion::Ipv6 => {
            let mut ip = Ipv6Packet::new_unchecked(&mut *packet);
            ip.set_payload_len(length - smoltcp::wire::IPV6_HEADER_LEN as u16);
            (from, to) = (ip.src_addr().into(), ip.dst_addr().into());
            packet.get_mut(smoltcp::wire::IPV6_HEADER_LEN..)?
        }
    };
    let mut segment = TcpPacket::new_unchecked(segment);
    segment.set_seq_number(segment.seq_number() + offset);
    segment.set_psh(segment.psh() && last);
    segment.set_fin(segment.fin() && last);
    segment.fill_checksum(&from, &to);
    Some(())
}
