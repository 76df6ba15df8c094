//! The hosts of a machine: the guarded one, one that loads it, and one behind it.

use std::fs::{self, File};
use std::net::{Ipv4Addr, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use plimsoll_kernel::{link, namespace};
use plimsoll_vm::{HOST_MAC, LOAD_MAC};

use super::Outcome;

pub(crate) const LOAD: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
pub(crate) const HOST: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);
/// The guarded host's address in a VLAN.
pub(crate) const TAGGED_HOST: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 2);
const TAGGED_LOAD: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);
/// The namespaces of the loading host and of the one behind.
const LOAD_NAME: &str = "load";
const BEHIND_NAME: &str = "behind";
/// A bond, and its members with the other ends of their links; the first is used.
pub(crate) const BOND: &str = "bond9";
pub(crate) const BOND_LINKS: [(&str, &str); 2] = [("member0", "peer0"), ("member1", "peer1")];
pub(crate) const BOND_MAC: &str = "52:54:00:00:00:03";
pub(crate) const BOND_HOST: Ipv4Addr = Ipv4Addr::new(10, 79, 0, 2);
const BOND_LOAD: Ipv4Addr = Ipv4Addr::new(10, 79, 0, 1);
const LINK_LIMIT: Duration = Duration::from_secs(20);

pub(crate) struct Site {
    /// The guarded interface.
    pub(crate) device: String,
    pub(crate) ifindex: u32,
    pub(crate) load_device: String,
    load: File,
    behind: File,
}

impl Site {
    /// Finds or makes the interfaces, gives them addresses, and waits until packets pass.
    pub(crate) fn make(driver: &str) -> Outcome<Self> {
        let load = namespace::create(LOAD_NAME)?;
        let behind = namespace::create(BEHIND_NAME)?;
        if driver == "veth" {
            ip("link add host0 type veth peer name load0")?;
            ip(&format!("link set host0 address {HOST_MAC}"))?;
            ip(&format!("link set load0 address {LOAD_MAC}"))?;
        }
        let device = with_mac(HOST_MAC)?;
        let load_device = with_mac(LOAD_MAC)?;
        let path = format!("/sys/class/net/{device}/device/driver");
        let has = fs::read_link(path).ok();
        let has = has.as_deref().and_then(Path::file_name);
        if driver != "veth" && has.is_none_or(|name| name != driver) {
            return Err(format!("`{device}` has driver {has:?}, not {driver}").into());
        }
        ip(&format!("link set {load_device} netns {LOAD_NAME}"))?;
        let site = Self {
            ifindex: link::index(&device)?,
            device,
            load_device,
            load,
            behind,
        };
        site.give_addresses()?;
        site.wait_for_packets()?;
        Ok(site)
    }

    fn give_addresses(&self) -> Outcome<()> {
        let (device, load_device) = (&self.device, &self.load_device);
        ip("link set lo up")?;
        ip(&format!("link set {device} up"))?;
        ip(&format!("address add {HOST}/24 dev {device}"))?;
        ip(&format!(
            "neighbour replace {LOAD} lladdr {LOAD_MAC} dev {device}"
        ))?;
        // Where the floods' sources are.
        ip(&format!("route add 198.19.0.0/16 via {LOAD}"))?;
        self.in_load(|| {
            ip("link set lo up")?;
            ip(&format!("link set {load_device} up"))?;
            ip(&format!("address add {LOAD}/24 dev {load_device}"))?;
            ip(&format!(
                "neighbour replace {HOST} lladdr {HOST_MAC} dev {load_device}"
            ))
        })?;
        tagged(device, TAGGED_HOST)?;
        self.in_load(|| tagged(load_device, TAGGED_LOAD))?;
        self.masquerade()
    }

    /// Takes the guarded host's VLAN device away.
    pub(crate) fn end_vlan(&self) -> Outcome<()> {
        ip("link delete vlan7")
    }

    /// The guarded host is a gateway that masquerades for the one behind.
    fn masquerade(&self) -> Outcome<()> {
        ip("link add inner0 type veth peer name behind0")?;
        ip(&format!("link set behind0 netns {BEHIND_NAME}"))?;
        ip("address add 10.77.0.1/24 dev inner0")?;
        ip("link set inner0 up")?;
        self.in_behind(|| {
            ip("link set lo up")?;
            ip("address add 10.77.0.2/24 dev behind0")?;
            ip("link set behind0 up")?;
            ip("route add default via 10.77.0.1")
        })?;
        fs::write("/proc/sys/net/ipv4/ip_forward", "1")?;
        command("nft", "add table t")?;
        command(
            "nft",
            "add chain t post { type nat hook postrouting priority 100 ; }",
        )?;
        let device = &self.device;
        command(
            "nft",
            &format!("add rule t post oifname {device} masquerade"),
        )
    }

    /// The same hosts as seen from another interface, whose wire ends at `load_device`.
    pub(crate) fn at(&self, device: &str, load_device: &str) -> Outcome<Self> {
        Ok(Self {
            device: device.to_owned(),
            ifindex: link::index(device)?,
            load_device: load_device.to_owned(),
            load: self.load.try_clone()?,
            behind: self.behind.try_clone()?,
        })
    }

    /// Makes a bond of two links to the loading host, which has this address; the other end
    /// of the link in use has the other one.
    pub(crate) fn make_bond(&self) -> Outcome<()> {
        ip(&format!("link add {BOND} type bond mode active-backup"))?;
        for (member, peer) in BOND_LINKS {
            ip(&format!(
                "link add {member} type veth peer name {peer} netns {LOAD_NAME}"
            ))?;
            if member == BOND_LINKS[0].0 {
                // The bond takes its first member's address.
                ip(&format!("link set {member} address {BOND_MAC}"))?;
            }
            ip(&format!("link set {member} master {BOND}"))?;
            self.in_load(|| ip(&format!("link set {peer} up")))?;
        }
        ip(&format!("address add {BOND_HOST}/24 dev {BOND}"))?;
        ip(&format!("link set {BOND} up"))?;
        let used = BOND_LINKS[0].1;
        self.in_load(|| ip(&format!("address add {BOND_LOAD}/24 dev {used}")))
    }

    pub(crate) fn remove_bond(&self) -> Outcome<()> {
        ip(&format!("link del {BOND}"))?;
        let mut members = BOND_LINKS.iter();
        members.try_for_each(|(member, _)| ip(&format!("link del {member}")))
    }

    /// Takes the guarded interface down and up again.
    pub(crate) fn renew_link(&self) -> Outcome<()> {
        ip(&format!("link set {} down", self.device))?;
        ip(&format!("link set {} up", self.device))
    }

    /// Gives the guarded interface another MTU, in bytes.
    pub(crate) fn set_mtu(&self, mtu: u32) -> Outcome<()> {
        ip(&format!("link set {} mtu {mtu}", self.device))
    }

    /// Adapters negotiate, drivers reset: until a datagram has come through.
    pub(crate) fn wait_for_packets(&self) -> Outcome<()> {
        let receiver = UdpSocket::bind((HOST, 0))?;
        receiver.set_read_timeout(Some(Duration::from_millis(50)))?;
        let to = receiver.local_addr()?;
        let sender = self.in_load(|| Ok(UdpSocket::bind((LOAD, 0))?))?;
        let end = Instant::now() + LINK_LIMIT;
        while Instant::now() < end {
            // Without a link it is refused.
            let _ = sender.send_to(b"there?", to);
            if receiver.recv(&mut [0; 16]).is_ok() {
                return Ok(());
            }
        }
        Err("no datagram came through".into())
    }

    /// Runs `work` on a thread in the loading host. Sockets stay there.
    pub(crate) fn in_load<T: Send>(&self, work: impl FnOnce() -> Outcome<T> + Send) -> Outcome<T> {
        within(&self.load, work)
    }

    /// As [`Site::in_load`], on the host behind.
    pub(crate) fn in_behind<T: Send>(
        &self,
        work: impl FnOnce() -> Outcome<T> + Send,
    ) -> Outcome<T> {
        within(&self.behind, work)
    }

    /// Frames that the guarded interface has received, by its driver's count.
    pub(crate) fn received_frames(&self) -> Outcome<u64> {
        let path = format!("/sys/class/net/{}/statistics/rx_packets", self.device);
        Ok(fs::read_to_string(path)?.trim().parse()?)
    }

    pub(crate) fn queues(&self) -> usize {
        let path = format!("/sys/class/net/{}/queues", self.device);
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name());
        names
            .filter(|name| name.to_string_lossy().starts_with("rx-"))
            .count()
    }
}

fn within<T: Send>(space: &File, work: impl FnOnce() -> Outcome<T> + Send) -> Outcome<T> {
    let run = || {
        namespace::enter(space)?;
        work()
    };
    thread::scope(|scope| scope.spawn(run).join()).map_err(|_| "panicked")?
}

/// The interface of this Ethernet address.
fn with_mac(mac: &str) -> Outcome<String> {
    for entry in fs::read_dir("/sys/class/net")?.flatten() {
        if fs::read_to_string(entry.path().join("address")).is_ok_and(|text| text.trim() == mac) {
            return Ok(entry.file_name().to_string_lossy().into_owned());
        }
    }
    Err(format!("no interface has the address {mac}").into())
}

/// A VLAN device with this address.
fn tagged(device: &str, address: Ipv4Addr) -> Outcome<()> {
    ip(&format!("link add link {device} name vlan7 type vlan id 7"))?;
    ip(&format!("address add {address}/24 dev vlan7"))?;
    ip("link set vlan7 up")
}

fn ip(words: &str) -> Outcome<()> {
    command("ip", words)
}

fn command(program: &str, words: &str) -> Outcome<()> {
    let output = Command::new(format!("/bin/{program}"))
        .args(words.split_whitespace())
        .output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("`{program} {words}`: {}", said.trim()).into())
}
