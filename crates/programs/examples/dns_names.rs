//! A screen of one's own: logs the names that DNS is asked for, and refuses one.
//! `sudo cargo run --example dns_names -- INSIDE OUTSIDE REFUSED-NAME`

use std::sync::atomic::AtomicBool;

use etherparse::{PacketHeaders, TransportHeader};
use plimsoll_programs::screen::{Firewall, ScreenConfig, Side, Verdict};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let mut word = || {
        words
            .next()
            .ok_or("usage: dns_names INSIDE OUTSIDE REFUSED-NAME")
    };
    let (config, refused) = (ScreenConfig::between(word()?, word()?), word()?);
    let screen = move |frame: &[u8], _: Side| match name_asked(frame) {
        Some(name) if name == refused => Verdict::Discard,
        Some(name) => {
            println!("{name}");
            Verdict::Accept
        }
        None => Verdict::Accept,
    };
    Firewall::open(&config, &mut [])?.run(Box::new(screen), &AtomicBool::new(false))?;
    Ok(())
}

/// The name in the question of a query (RFC 1035, section 4.1.2).
fn name_asked(frame: &[u8]) -> Option<String> {
    let packet = PacketHeaders::from_ethernet_slice(frame).ok()?;
    let Some(TransportHeader::Udp(udp)) = &packet.transport else {
        return None;
    };
    let mut rest = packet
        .payload
        .slice()
        .get(12..)
        .filter(|_| udp.destination_port == 53)?;
    let mut labels = Vec::new();
    while let [length @ 1..=63, tail @ ..] = rest {
        let (label, tail) = tail.split_at_checked(usize::from(*length))?;
        labels.push(String::from_utf8_lossy(label).to_lowercase());
        rest = tail;
    }
    Some(labels.join("."))
}
