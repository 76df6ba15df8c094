//! Segments that are too long for their path are cut.
//!
//! smoltcp's socket takes the length of its segments from the device and the peer once, when
//! the connection begins. A path that turns out to take less (`link::paths`) makes no
//! difference to it, also not when it sends something again. So each segment is cut on its way
//! to the device, as an adapter would do (segmentation offload).

use std::sync::Arc;

use smoltcp::wire::TcpSeqNumber;

use super::wire::Payload;
use crate::device::{Batch, Frame, HEADROOM_BYTES, Pool};
use crate::wire::ETHERNET_BYTES;
use crate::wire::segment::Long;

/// Cuts the segments of a batch into packets of at most `mtu` bytes, but for the one that begins at `whole`.
/// What finds no buffer is dropped, for TCP to send again.
pub(super) fn cut_all(
    batch: &mut Batch,
    mtu: usize,
    whole: Option<TcpSeqNumber>,
    pool: &Arc<Pool>,
) {
    let is_whole =
        |frame: &Frame| whole.is_some() && Payload::of(frame).map(Payload::begin) == whole;
    for _ in 0..batch.len() {
        let Some(frame) = batch.pop_front() else {
            return;
        };
        if frame.len() <= ETHERNET_BYTES + mtu || is_whole(&frame) {
            batch.push_back(frame);
        } else {
            cut(frame, mtu, pool, batch);
        }
    }
}

/// Appends the pieces of a frame with a segment.
fn cut(mut frame: Frame, mtu: usize, pool: &Arc<Pool>, batch: &mut Batch) -> Option<()> {
    let long = Long::of(&frame, mtu)?;
    let mut others = Vec::with_capacity(long.pieces());
    for piece in 1..long.pieces() {
        let mut other = pool.take()?;
        other.set_range(HEADROOM_BYTES..HEADROOM_BYTES + long.bytes_of(piece));
        long.write(&frame, piece, &mut other)?;
        others.push(other);
    }
    let start = frame.range().start;
    frame.set_range(start..start + long.bytes_of(0));
    long.finish(0, &mut frame)?;
    batch.push_back(frame);
    batch.extend(others);
    Some(())
}
