//! `ni-lrp` and TCP: the XDP program demultiplexes listeners and connections, and discards for
//! those that are full. Needs root.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream as KernelStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use plimsoll_core::channel::ChannelConfig;
use plimsoll_core::demux::Protocol;
use plimsoll_packets::frame::{self, Packet, TcpFlags};
use plimsoll_stack::device::packet::PacketDevice;
use plimsoll_stack::device::xdp::{XdpConfig, XdpInterface};
use plimsoll_stack::device::{Batch, Channel, Device, Endpoint, Takes};
use plimsoll_stack::{Outcome, Stack, TcpListener};
use smoltcp::wire::{EthernetFrame, EthernetProtocol, TcpPacket};

use crate::lan::{self, Lan, SOON, config, content, owned, run, transfer, xdp};

const BACKLOG: usize = 2;
/// Nobody answers a SYN that was discarded.
const UNANSWERED: Duration = Duration::from_millis(300);

/// Waits until as many connections as the backlog takes are there, and lets one more try.
fn fill_backlog(at: &str) -> Vec<KernelStream> {
    let at = at.parse().unwrap();
    let connect = |_| KernelStream::connect_timeout(&at, SOON).unwrap();
    let waiting = (0..BACKLOG).map(connect).collect();
    let beyond = KernelStream::connect_timeout(&at, UNANSWERED).unwrap_err();
    assert_eq!(beyond.kind(), ErrorKind::TimedOut);
    waiting
}

/// LRP-39. (With cookies a client may be answered before those who came first are established.)
#[test]
fn syns_beyond_the_backlog_end_in_the_program() {
    Lan::create(|| {
        let mut config = config("ni-lrp");
        config.tcp.syn_cookies_per_s = 0;
        let stack = Stack::start(xdp(&owned()), &config).unwrap();
        for at in ["10.0.0.2:80", "[fd00::2]:81", "0.0.0.0:82"] {
            let to = at.replace("0.0.0.0", "10.0.0.2");
            let before = stack.device_drops().early;
            let listener = TcpListener::bind_with_backlog(&stack, at, BACKLOG).unwrap();
            let beside = TcpListener::bind(&stack, "10.0.0.2:443").unwrap();
            let mut waiting = fill_backlog(&to);
            assert!(stack.device_drops().early > before, "{at}");
            // Others are not disabled, nor are the listener's own connections.
            KernelStream::connect_timeout(&"10.0.0.2:443".parse().unwrap(), SOON).unwrap();
            beside.accept_timeout(SOON).unwrap();
            let (mut accepted, from) = listener.accept_timeout(SOON).unwrap();
            accepted.set_read_timeout(Some(SOON)).unwrap();
            let mut others = waiting.iter_mut();
            let client = others.find(|one| one.local_addr().unwrap() == from);
            client.unwrap().write_all(b"let in").unwrap();
            accepted.read_exact(&mut [0; 6]).unwrap();
            // There is room again.
            KernelStream::connect_timeout(&to.parse().unwrap(), SOON).unwrap();
        }
        assert_eq!(stack.counts()[Outcome::Backlog], 0, "none came so far");
        lan::assert_sums(&stack);
    });
}

/// Segments for nobody that the program lets through in four ticks, and those of no connection in
/// one, as it has them.
const STRAYS_MAX: usize = 128;
const STRAYS_TO_LISTENERS_PER_TICK: usize = 256;
const SYNS_OF_KNOWN_PER_TICK: usize = 256;

/// Ticks since then, as many as they may have been.
fn stray_ticks(began: Instant) -> usize {
    (began.elapsed().as_nanos() >> 24) as usize + 2
}

/// Segments of a channel without room: one of so many is tried (`TRY_EVERY` of the program).
const TRY_EVERY: usize = 32;
/// Longer than 16 ticks of any kernel (`TRY_AFTER_TICKS`).
const SELDOM: Duration = Duration::from_millis(180);
/// Connections that the program has channels for (`CONNECTIONS_MAX`).
const CONNECTIONS_MAX: usize = 1 << 15;

pub(crate) fn at(address: &str) -> SocketAddr {
    address.parse().unwrap()
}

/// Sends `count` segments from 10.0.0.1 or `fd00::1`, some at a time.
fn send(from: &PacketDevice, ends: (&str, &str), flags: TcpFlags, count: usize) {
    send_frames(from, &frame::tcp(at(ends.1), at(ends.0), flags, b""), count);
}

pub(crate) fn send_frames(from: &PacketDevice, bytes: &[u8], count: usize) {
    let mut batch = Batch::new();
    for _ in 0..count {
        let mut frame = from.pool().take().unwrap();
        assert!(frame.copy_from(bytes));
        batch.push_back(frame);
        from.transmit(&mut batch).unwrap();
        assert!(batch.is_empty());
    }
}

/// Receives until as many frames came or were dropped; how many came.
fn receive(device: &XdpInterface, sent: usize, dropped_before: u64) -> usize {
    let (end, mut batch, mut received) = (Instant::now() + SOON, Batch::new(), 0);
    let dropped = || (device.drops().sum() - dropped_before) as usize;
    while received + dropped() < sent {
        received += device.receive(&mut batch, 64).unwrap();
        batch.clear();
        assert!(
            Instant::now() < end,
            "{received} came, {:?}",
            device.drops()
        );
    }
    received
}

/// LRP-38.
#[test]
fn a_full_channel_of_a_connection_loses_its_own_segments_and_nobody_elses() {
    Lan::create(|| {
        let (device, sender) = (xdp(&owned()), PacketDevice::open("kernel0").unwrap());
        for (here, there, other) in [
            ("10.0.0.2:80", "10.0.0.1:5000", "10.0.0.1:5001"),
            ("[fd00::2]:80", "[fd00::1]:5000", "[fd00::1]:5001"),
        ] {
            let open = |there| device.open_connection((at(here), at(there)), 4).unwrap();
            let (full, beside) = (open(there), open(other));
            let before = device.drops();
            let sent = 4 + 2 * TRY_EVERY;
            send(&sender, (here, there), TcpFlags::ACK, sent);
            let received = receive(&device, sent, before.sum());
            let drops = device.drops();
            assert_eq!(drops.early - before.early, (sent - received) as u64);
            // Tried are two of so many, the first, and whichever came after a pause.
            assert!((4 + 3..4 + 10).contains(&received), "{here}: {received}");
            send(&sender, (here, other), TcpFlags::ACK, 4);
            assert_eq!(receive(&device, 4, drops.sum()), 4);
            // Room again.
            full.set_room(3);
            send(&sender, (here, there), TcpFlags::ACK, 3);
            assert_eq!(receive(&device, 3, drops.sum()), 3);
            assert_eq!(device.drops(), drops);
            // The next to have the number begins anew.
            drop((full, beside));
            let next = device.open_connection((at(here), at(other)), 4).unwrap();
            send(&sender, (here, other), TcpFlags::ACK, 4);
            assert_eq!(receive(&device, 4, drops.sum()), 4);
            drop(next);
        }
    });
}

/// What the kernel threw away behind the program counts as given, so a channel may seem full that
/// is empty. Its peer sends again more and more seldom: of that all comes through.
#[test]
fn who_sends_seldom_finds_a_channel_open_though_all_was_lost_that_was_given() {
    Lan::create(|| {
        let (device, sender) = (xdp(&owned()), PacketDevice::open("kernel0").unwrap());
        let (here, there) = ("10.0.0.2:80", "10.0.0.1:5000");
        let _channel = device.open_connection((at(here), at(there)), 4).unwrap();
        let before = device.drops().sum();
        // Taken, and not told of.
        send(&sender, (here, there), TcpFlags::ACK, 4);
        assert_eq!(receive(&device, 4, before), 4);
        for _ in 0..5 {
            thread::sleep(SELDOM);
            send(&sender, (here, there), TcpFlags::ACK, 1);
            assert_eq!(receive(&device, 1, before), 1, "{:?}", device.drops());
        }
    });
}

#[test]
fn a_listener_gets_syns_and_only_as_many_other_segments_as_may_be_answered() {
    Lan::create(|| {
        // The address is the kernel's, too: what is not for the listener stays the kernel's.
        run("ip addr add 10.0.0.2/24 dev stack0");
        let shared = XdpConfig::default();
        let (device, sender) = (xdp(&shared), PacketDevice::open("kernel0").unwrap());
        device.add_address(at("10.0.0.2:0").ip()).unwrap();
        device.open_all_connections().unwrap();
        for here in ["10.0.0.2:80", "0.0.0.0:81"] {
            let local = at(here);
            let protocol = Protocol::Tcp;
            let listener = device.open_listener(Endpoint { protocol, local }).unwrap();
            let to = here.replace("0.0.0.0", "10.0.0.2");
            let ends = (&to[..], "10.0.0.1:5000");
            let before = device.drops();
            send(&sender, ends, TcpFlags::SYN, 20);
            assert_eq!(receive(&device, 20, before.sum()), 20, "{here}");
            listener.set_takes(Takes::None);
            send(&sender, ends, TcpFlags::SYN, 20);
            assert_eq!(receive(&device, 20, before.sum()), 0, "{here}");
            assert_eq!(device.drops().early - before.early, 20);
            listener.set_takes(Takes::All);
            send(&sender, ends, TcpFlags::SYN, 20);
            assert_eq!(receive(&device, 20, before.sum() + 20), 20, "{here}");
            // A thousand in a moment are more than it lets through; those of the listener before were
            // in another tick.
            thread::sleep(Duration::from_millis(20));
            let (before, began) = (device.drops(), Instant::now());
            send(&sender, ends, TcpFlags::ACK, 1000);
            let received = receive(&device, 1000, before.sum());
            let most = STRAYS_TO_LISTENERS_PER_TICK * stray_ticks(began);
            assert!((1..=most).contains(&received), "{received} of {most}");
            // Those of a second tick may find the ring full.
            let drops = device.drops();
            let stray = (drops.stray - before.stray) as usize;
            assert!(stray >= 1000_usize.saturating_sub(most), "{drops:?}");
            let dropped = (drops.sum() - before.sum()) as usize;
            assert_eq!(received + dropped, 1000, "{drops:?}");
        }
    });
}

/// Beyond the backlog a client's SYNs had the chance of any other among those of a flood.
#[test]
fn syns_of_known_sources_get_through_where_a_listener_takes_them_and_not_without_a_bound() {
    Lan::create(|| {
        let (device, sender) = (xdp(&owned()), PacketDevice::open("kernel0").unwrap());
        let (known, stranger) = ("10.0.0.1:5000", "10.0.0.9:5000");
        device.open_all_connections().unwrap();
        device.know_source(at(known).ip());
        for here in ["10.0.0.2:80", "0.0.0.0:81"] {
            let (protocol, local) = (Protocol::Tcp, at(here));
            let listener = device.open_listener(Endpoint { protocol, local }).unwrap();
            let to = here.replace("0.0.0.0", "10.0.0.2");
            for (takes, from, come) in [
                (Takes::Known, stranger, 0),
                (Takes::Known, known, 20),
                (Takes::None, known, 0),
                (Takes::All, stranger, 20),
            ] {
                listener.set_takes(takes);
                let before = device.drops().sum();
                send(&sender, (&to, from), TcpFlags::SYN, 20);
                let received = receive(&device, 20, before);
                let drops = device.drops();
                assert_eq!(received, come, "{takes:?} {from}: {drops:?}");
            }
            listener.set_takes(Takes::Known);
            let (before, began) = (device.drops().sum(), Instant::now());
            send(&sender, (&to, known), TcpFlags::SYN, 1000);
            let received = receive(&device, 1000, before);
            let most = SYNS_OF_KNOWN_PER_TICK * stray_ticks(began);
            assert!((1..=most).contains(&received), "{received} of {most}");
            // The next one's are in another tick.
            thread::sleep(Duration::from_millis(20));
        }
    });
}

/// The ends of a busy server's connections shared the limit of what belongs to none.
#[test]
fn the_last_segments_of_a_connection_are_no_strays() {
    Lan::create(|| {
        let (device, sender) = (xdp(&owned()), PacketDevice::open("kernel0").unwrap());
        device.open_all_connections().unwrap();
        let (protocol, local) = (Protocol::Tcp, at("10.0.0.2:80"));
        let _listener = device.open_listener(Endpoint { protocol, local }).unwrap();
        for (here, there) in [
            ("10.0.0.2:80", "10.0.0.1:5000"),
            // One that was made from here.
            ("[fd00::2]:4000", "[fd00::1]:80"),
        ] {
            let channel = device.open_connection((at(here), at(there)), 4).unwrap();
            channel.await_last();
            drop(channel);
            // More than pass of others in a tick.
            for _ in 0..5 {
                let before = device.drops().sum();
                send(&sender, (here, there), TcpFlags::FIN_ACK, 100);
                assert_eq!(receive(&device, 100, before), 100, "{here}");
            }
        }
    });
}

/// Segments of no connection for a port that nobody bound. On other paths the device does not
/// know connections, so these might be one's.
#[test]
fn segments_of_no_connection_get_through_as_far_as_they_may_be_answered() {
    for (path, limited) in [("ni-lrp", true), ("soft-lrp", false)] {
        Lan::create(|| {
            let device = xdp(&owned());
            let mac = device.mac();
            let stack = Stack::start(device, &config(path)).unwrap();
            let sender = PacketDevice::open("kernel0").unwrap();
            let packet = Packet::new(at("10.0.0.1:0").ip(), at("10.0.0.2:0").ip());
            let packet = packet.macs(sender.capabilities().mac, mac);
            let segment = packet.tcp(5000, 9, TcpFlags::ACK, b"");
            let (began, sent) = (Instant::now(), 1000);
            // The link holds 256. Six ticks or more.
            for _ in 0..sent / 40 {
                send_frames(&sender, &segment, 40);
                thread::sleep(Duration::from_millis(4));
            }
            let ended = || stack.counts().received as usize + stack.device_drops().sum() as usize;
            while ended() < sent {
                assert!(began.elapsed() < SOON, "{:?}", stack.device_drops());
            }
            let most = STRAYS_MAX * (stray_ticks(began) / 4 + 2);
            let stray = stack.device_drops().stray as usize;
            let expected = if limited {
                sent.saturating_sub(most)
            } else {
                0
            };
            assert!(
                stray >= expected && (limited || stray == 0),
                "{path}: {stray}"
            );
            assert!(
                !limited || stray > 0,
                "{path}: too slow to tell, {most} may pass"
            );
        });
    }
}

/// Takes all channels of the program but so many.
fn leave(device: &XdpInterface, channels: usize) -> Vec<Arc<dyn Channel>> {
    let open = |number: usize| {
        let there = SocketAddr::new(
            [10, 9, 0, (number >> 12) as u8].into(),
            number as u16 & 0xfff,
        );
        device
            .open_connection((at("10.0.0.2:1"), there), 1)
            .unwrap()
    };
    (channels..CONNECTIONS_MAX).map(open).collect()
}

/// LRP-42, where the program has a channel for one connection only.
#[test]
fn time_wait_gives_the_programs_channel_back_for_the_next_connection() {
    Lan::create(|| {
        let device = xdp(&owned());
        let taken = leave(&device, 1);
        let stack = Stack::start(device, &config("ni-lrp")).unwrap();
        let listener = TcpListener::bind(&stack, "10.0.0.2:80").unwrap();
        let mut closed = Vec::new();
        for _ in 0..3 {
            let mut client = KernelStream::connect_timeout(&at("10.0.0.2:80"), SOON).unwrap();
            let (accepted, _) = listener.accept_timeout(SOON).unwrap();
            // The only channel is its own.
            let refused = KernelStream::connect_timeout(&at("10.0.0.2:80"), UNANSWERED);
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::TimedOut);
            // The stack closes first, so TIME_WAIT is its. Whoever has the stream keeps no channel.
            accepted.shutdown(Shutdown::Write).unwrap();
            closed.push(accepted);
            assert_eq!(client.read(&mut [0; 1]).unwrap(), 0);
            client.shutdown(Shutdown::Both).unwrap();
        }
        drop(taken);
    });
}

#[test]
fn connections_go_on_when_their_channels_are_short_and_when_their_listener_is_gone() {
    Lan::create_apart(|far| {
        let mut config = config("ni-lrp");
        config.tcp.channel_segments = 2;
        let stack = Stack::start(xdp(&XdpConfig::default()), &config).unwrap();
        let listener = TcpListener::bind(&stack, "10.0.0.2:80").unwrap();
        let mut client = far.run(|| KernelStream::connect("10.0.0.2:80").unwrap());
        let mut accepted = listener.accept_timeout(SOON).unwrap().0;
        client.set_read_timeout(Some(SOON)).unwrap();
        accepted.set_read_timeout(Some(SOON)).unwrap();
        // The port is the kernel's again, and the kernel knows no such connection.
        drop(listener);
        let sent = content(200_000);
        transfer(&mut client, &mut accepted, &sent);
        transfer(&mut accepted, &mut client, &sent);
        lan::assert_sums(&stack);
    });
}

/// The first sequence number of the stack's answer to a SYN from this port.
pub(crate) fn answer(to: &PacketDevice, port: u16) -> u32 {
    let (end, mut batch) = (Instant::now() + SOON, Batch::new());
    loop {
        to.receive(&mut batch, 64).unwrap();
        let mut numbers = batch.iter().filter_map(|frame| {
            let tag_bytes = if frame[12..14] == [0x81, 0] { 4 } else { 0 };
            let ethernet = EthernetFrame::new_checked(&frame[tag_bytes..]).unwrap();
            let segment = match ethernet.ethertype() {
                EthernetProtocol::Ipv4 => ethernet.payload().get(20..)?,
                EthernetProtocol::Ipv6 => ethernet.payload().get(40..)?,
                _ => return None,
            };
            let segment = TcpPacket::new_checked(segment).ok()?;
            let answers = segment.syn() && segment.ack() && segment.dst_port() == port;
            answers.then(|| segment.seq_number().0.cast_unsigned())
        });
        if let Some(number) = numbers.next() {
            return number;
        }
        batch.clear();
        assert!(Instant::now() < end, "port {port} gets no answer");
    }
}

/// Only so many segments of no connection got through, whoever sent them. So a dozen clients that
/// came at once beside a flood of SYNs, or whoever made acknowledgements up, kept all others out.
#[test]
fn handshakes_that_a_cookie_began_end_beside_acknowledgements_that_were_made_up() {
    const CLIENTS: usize = 8;
    Lan::create(|| {
        let device = xdp(&owned());
        let mac = device.mac();
        let mut config = config("ni-lrp");
        // Longer than all that may get through in some ticks.
        config.channel = ChannelConfig::drop_tail(2048);
        let stack = Stack::start(device, &config).unwrap();
        let sender = PacketDevice::open("kernel0").unwrap();
        for (here, there) in [
            ("10.0.0.2:80", "10.0.0.9:0"),
            ("[fd00::2]:81", "[fd00::9]:0"),
        ] {
            let listener = TcpListener::bind_with_backlog(&stack, here, BACKLOG).unwrap();
            let packet = Packet::new(at(there).ip(), at(here).ip());
            let packet = packet.macs(sender.capabilities().mac, mac);
            let segment = |port: usize, cookie: Option<u32>| {
                let (flags, numbers) = match cookie {
                    Some(cookie) => (TcpFlags::ACK, (2, cookie.wrapping_add(1))),
                    None => (TcpFlags::SYN, (1, 0)),
                };
                let packet = packet.clone().numbers(numbers.0, numbers.1);
                packet.tcp(port as u16, at(here).port(), flags, b"")
            };
            // Nobody ends the handshakes of the first.
            let answers = (5000..5000 + BACKLOG + CLIENTS).map(|port| {
                send_frames(&sender, &segment(port, None), 1);
                (port, answer(&sender, port as u16))
            });
            let answers: Vec<_> = answers.collect();
            let (before, began) = (stack.device_drops().stray as usize, Instant::now());
            for (port, cookie) in answers.into_iter().skip(BACKLOG) {
                // Their hashes are wrong.
                let made_up = segment(port, Some(cookie ^ 4));
                for _ in 0..STRAYS_TO_LISTENERS_PER_TICK / 40 + 1 {
                    send_frames(&sender, &made_up, 40);
                    thread::sleep(Duration::from_micros(100));
                }
                send_frames(&sender, &segment(port, Some(cookie)), 1);
                let accepted = listener.accept_timeout(SOON);
                accepted.unwrap_or_else(|error| panic!("{here}, port {port}: {error}"));
            }
            let sent = CLIENTS * (STRAYS_TO_LISTENERS_PER_TICK / 40 + 1) * 40;
            let most = STRAYS_TO_LISTENERS_PER_TICK * stray_ticks(began);
            let stray = stack.device_drops().stray as usize - before;
            assert!(stray >= sent.saturating_sub(most), "{stray} of {sent}");
        }
        lan::assert_sums(&stack);
    });
}
