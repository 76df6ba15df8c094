//! A bond of two links. Its members have the rings and the interrupts, so a guard there
//! governs, and one on the bond only judges packets.

use std::net::{TcpListener, UdpSocket};
use std::time::Duration;

use nix::sys::socket::sockopt::BindToDevice;
use nix::sys::socket::{Backlog, listen, setsockopt};

use super::Outcome;
use super::guard::Guard;
use super::overload::{Busy, FLOOD_PPS};
use super::settings::Settings;
use super::site::{BOND, BOND_HOST, BOND_LINKS, Site};
use super::steps::{limited_by, sees_flood, until};
use super::traffic::{BACKLOG, Flood, datagrams_to, syns_to};

/// Of `site::BOND_MAC`.
const MAC: [u8; 6] = [0x52, 0x54, 0, 0, 0, 3];
/// So many SYNs fill a small queue several times.
const SYN_PPS: u64 = 500;
const SYNS: u64 = 200;
const DATAGRAMS: u64 = 50;
/// Reports are waited for often here.
const WORDS: [&str; 1] = ["--interval-ms=200"];

pub(crate) fn bond(site: &Site) -> Outcome {
    site.make_bond()?;
    let (member, peer) = BOND_LINKS[0];
    let (bond, member) = (site.at(BOND, peer)?, site.at(member, peer)?);
    let (of_bond, of_member) = (Settings::of(&bond)?, Settings::of(&member)?);
    let from_bond = on_bond(&bond, &member);
    let from_bond = from_bond.map_err(|why| format!("a guard on the bond: {why}"))?;
    of_bond.wait_until_back(&bond)?;
    let from_member = on_member(&member);
    let from_member = from_member.map_err(|why| format!("a guard on a member: {why}"))?;
    of_member.wait_until_back(&member)?;
    site.remove_bond()?;
    Ok(format!("bond: {from_bond}; member: {from_member}"))
}

/// It says that members are to be guarded, discards what is for full sockets, and turns
/// nothing of its members. (Settings of a veth with a program are those of instances that
/// it had not before, so these cannot be compared.)
fn on_bond(bond: &Site, member: &Site) -> Outcome {
    const ADVICE: &str = "guard each member";
    let told = limited_by(bond, "stacking")?;
    if !told.contains(ADVICE) {
        return Err(format!("`check` says: {told}").into());
    }
    let guard = Guard::start_with(bond, &WORDS)?;
    until("the start says so", || Ok(guard.said().contains(ADVICE)))?;
    let socket = UdpSocket::bind((BOND_HOST, 0))?;
    let port = socket.local_addr()?.port();
    let _busy = Busy::start();
    let _flood = Flood::start(bond, datagrams_to(MAC, BOND_HOST, port), FLOOD_PPS)?;
    sees_flood(&guard)?;
    until("overload", || Ok(guard.mode()? == "overload"))?;
    let now = Settings::of(member)?;
    if now.are_turned() {
        return Err(format!("it has turned a member's settings: {now:?}").into());
    }
    guard.stop()?;
    Ok(told)
}

/// It governs the member. The bond has the addresses, so the stack makes the SYN cookies,
/// and what is bound to the bond gets everything.
fn on_member(member: &Site) -> Outcome {
    let told = limited_by(member, "stacking")?;
    if !told.contains("guard each other member") {
        return Err(format!("`check` says: {told}").into());
    }
    let guard = Guard::start_with(member, &WORDS)?;
    let bound = bound_gets_everything(member, &guard)?;
    let syns = stack_makes_cookies(member, &guard)?;
    let socket = UdpSocket::bind((BOND_HOST, 0))?;
    let port = socket.local_addr()?.port();
    let busy = Busy::start();
    let flood = Flood::start(member, datagrams_to(MAC, BOND_HOST, port), FLOOD_PPS)?;
    sees_flood(&guard)?;
    until("its settings are turned", || {
        Ok(Settings::of(member)?.are_turned())
    })?;
    drop((flood, busy));
    guard.stop()?;
    Ok(format!("governed; {syns}; {bound}; {told}"))
}

fn bound_gets_everything(member: &Site, guard: &Guard) -> Outcome {
    let socket = UdpSocket::bind((BOND_HOST, 0))?;
    setsockopt(&socket, BindToDevice, &BOND.into())?;
    socket.set_read_timeout(Some(Duration::from_millis(500)))?;
    let to = socket.local_addr()?;
    let before = guard.packets("closed_port", "admitted")?;
    let sender = member.in_load(|| Ok(UdpSocket::bind(("0.0.0.0", 0))?))?;
    let mut received = 0;
    for _ in 0..DATAGRAMS {
        sender.send_to(b"bound", to)?;
        received += u64::from(socket.recv(&mut [0; 16]).is_ok());
    }
    let counted = guard.packets("closed_port", "admitted")? - before;
    let found =
        format!("a bound socket got {received} of {DATAGRAMS}, {counted} as for a closed port");
    if received != DATAGRAMS || counted < DATAGRAMS {
        return Err(found.into());
    }
    Ok(found)
}

fn stack_makes_cookies(member: &Site, guard: &Guard) -> Outcome {
    let listener = TcpListener::bind((BOND_HOST, 0))?;
    // The queue overflows soon.
    listen(&listener, Backlog::new(BACKLOG)?)?;
    let port = listener.local_addr()?.port();
    let admitted = || guard.packets("tcp_listener", "admitted");
    let before = admitted()?;
    let flood = Flood::start(member, syns_to(MAC, BOND_HOST, port), SYN_PPS)?;
    until("SYNs are admitted", || Ok(admitted()? - before > SYNS))?;
    drop(flood);
    let cookies = guard.packets("tcp_listener", "syn_cookie")?;
    let found = format!("{} SYNs left to the stack", admitted()? - before);
    if cookies > 0 {
        return Err(format!("{found}, {cookies} cookies of the driver").into());
    }
    Ok(found)
}
