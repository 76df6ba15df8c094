//! What the kernel's side of a TAP or TUN interface does not take. Needs root.

use plimsoll_stack::device::tap::{TapDevice, TunDevice};
use plimsoll_stack::device::{Batch, Device};

use crate::lan::{self, in_namespace};

/// The kernel refuses a packet that is none, or of no version that there is. That was the end of the device.
#[test]
fn frames_that_the_kernel_does_not_take_are_counted_and_the_next_ones_leave() {
    in_namespace(|| {
        let tap = TapDevice::open("tap0").unwrap();
        lan::run("ip link set tap0 up");
        assert_eq!(sent(&tap, [&[0xff; 13], &[0xff; 60]]), (2, 1));
        let tun = TunDevice::open("tun0").unwrap();
        lan::run("ip link set tun0 up");
        let mut packet = [0; 60];
        packet[14] = 0x45;
        assert_eq!(sent(&tun, [&[0xff; 60], &packet]), (2, 1));
    });
}

/// How many frames of these bytes a device says it has sent, and how many not.
fn sent(device: &impl Device, frames: [&[u8]; 2]) -> (usize, u64) {
    let mut batch = Batch::new();
    for bytes in frames {
        let mut frame = device.pool().take().unwrap();
        assert!(frame.copy_from(bytes));
        batch.push_back(frame);
    }
    let sent = device.transmit(&mut batch).unwrap();
    (sent, device.unsent())
}
