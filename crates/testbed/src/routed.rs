//! Three hosts for a router: a load host, the router under test, and a sink host.
//!
//! As in Mogul & Ramakrishnan, section 6.1: the sink answers nothing, packets are for an
//! address that is a neighbour entry of the router alone, and they are counted before
//! and after at the router's output interface.
//!
//! The sink drops every frame in its driver, polled by a thread on the load host's CPU:
//! what arrives there must not cost the router's CPU. While the thread has work it is
//! woken by nobody, so the router pays for handing a frame over and for nothing behind.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use plimsoll_kernel::pass_all::PassAll;
use plimsoll_kernel::scheduling::{Priority, Scheduling};

use crate::burner::Burner;
use crate::placement::{polling_thread, set_polling};
use crate::{Config, Error, Host, INNER_DEVICE, Placement, Testbed, interrupt};

/// Where packets go: nobody has these addresses.
pub const SINK_IPV4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 9);
/// The same for IPv6.
pub const SINK_IPV6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x77, 0, 0, 0, 0, 0, 9);
/// A second link-local address of the router.
const ASKS: &str = "fe80::77:1/64";
/// The router's own addresses on the sink's link.
const ROUTER: [&str; 2] = ["10.77.0.1/24", "fd00:77::1/64"];
/// Time that the sink spends on a frame: the least that makes it drop.
const SINK_SPAN: Duration = Duration::from_nanos(1);
/// A counter that moved no more for so long has ended. A process that forwards has waited
/// for its CPU for more than 50 ms, beside other work.
const STILL: Duration = Duration::from_millis(250);

/// What the sink host does with frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sink {
    /// Drops each in its driver: for counting.
    Drops,
    /// Is an ordinary host with the addresses `10.77.0.2` and `fd00:77::2`: for tests
    /// of what passes a router.
    Answers,
}

/// The three hosts. Dropping them removes them.
#[derive(Debug)]
pub struct Routed {
    // Detached before the hosts go.
    _programs: (Option<Burner>, Vec<PassAll>),
    sink: Host,
    testbed: Testbed,
}

impl Routed {
    /// Makes the hosts, joins them, and makes the one in the middle a router: the
    /// kernel's, until something else forwards.
    ///
    /// # Errors
    ///
    /// As [`Testbed::create`] and [`Testbed::add_host_behind`].
    pub fn create(config: Config, sink: Sink) -> Result<Self, Error> {
        let testbed = Testbed::create(config)?;
        let behind = testbed.add_host_behind()?;
        make_router(testbed.test(), &behind, sink)?;
        let programs = match sink {
            Sink::Drops => (Some(drop_all(&behind, config.load_cpu)?), Vec::new()),
            Sink::Answers => {
                make_answer(testbed.load(), &behind)?;
                // A veth end takes redirected frames if its peer runs a program.
                (None, vec![testbed.load().pass_all()?, behind.pass_all()?])
            }
        };
        Ok(Self {
            _programs: programs,
            sink: behind,
            testbed,
        })
    }

    /// The host that packets come from.
    #[must_use]
    pub fn load(&self) -> &Host {
        self.testbed.load()
    }

    /// The host under test. Its interfaces are [`Host::device`] and [`INNER_DEVICE`].
    #[must_use]
    pub fn router(&self) -> &Host {
        self.testbed.test()
    }

    /// The host that packets go to.
    #[must_use]
    pub fn sink(&self) -> &Host {
        &self.sink
    }

    /// Puts the router's receive work on its CPU.
    ///
    /// # Errors
    ///
    /// As [`Placement::apply`].
    pub fn place(&self, placement: Placement) -> Result<(), Error> {
        placement.apply(&self.testbed)
    }

    /// Packets that left by the router's output interface so far, by that interface's
    /// own counter.
    ///
    /// # Errors
    ///
    /// It cannot be read.
    pub fn sent(&self) -> Result<u64, Error> {
        self.counter(self.router(), INNER_DEVICE, "tx_packets")
    }

    /// An interface's counter, by its name in `/sys/class/net/*/statistics`.
    ///
    /// # Errors
    ///
    /// It cannot be read.
    pub fn counter(&self, host: &Host, device: &str, name: &str) -> Result<u64, Error> {
        let path = format!("/sys/class/net/{device}/statistics/{name}");
        let read = host.run(|| std::fs::read_to_string(&path))?;
        let text = read.map_err(Error::io(format!("read {path}")))?;
        text.trim().parse().map_err(|_| Error::Parse {
            what: "an interface's counter",
            detail: format!("{path} holds {text:?}"),
        })
    }

    /// Waits until the output interface's counter stands still, and returns it.
    ///
    /// # Errors
    ///
    /// It cannot be read, or the run was interrupted.
    pub fn settled(&self) -> Result<u64, Error> {
        let mut before = self.sent()?;
        let mut still_since = Instant::now();
        while still_since.elapsed() < STILL {
            interrupt::sleep(Duration::from_millis(10))?;
            let now = self.sent()?;
            if now != before {
                (before, still_since) = (now, Instant::now());
            }
        }
        Ok(before)
    }
}

/// Addresses, a neighbour that nobody is, and forwarding.
fn make_router(router: &Host, sink: &Host, kind: Sink) -> Result<(), Error> {
    match kind {
        Sink::Drops => silence(router, sink)?,
        // Whoever forwards asks for neighbours from its link-local address, and the kernel's
        // own is not to be used in the first seconds (RFC 4862, section 5.4).
        Sink::Answers => router.ip(&format!("address add {ASKS} dev {INNER_DEVICE} nodad"))?,
    }
    for address in ROUTER {
        let nodad = if address.contains(':') { " nodad" } else { "" };
        router.ip(&format!("address add {address} dev {INNER_DEVICE}{nodad}"))?;
    }
    let mac = sink.mac().map(|byte| format!("{byte:02x}")).join(":");
    for neighbour in [IpAddr::from(SINK_IPV4), IpAddr::from(SINK_IPV6)] {
        router.ip(&format!(
            "neighbour add {neighbour} lladdr {mac} dev {INNER_DEVICE} nud permanent"
        ))?;
    }
    for (setting, value) in [
        ("net/ipv4/ip_forward", "1"),
        ("net/ipv6/conf/all/forwarding", "1"),
    ] {
        router.sysctl(setting, value)?;
    }
    for interface in ["all", INNER_DEVICE] {
        router.sysctl(&format!("net/ipv4/conf/{interface}/rp_filter"), "0")?;
    }
    Ok(())
}

/// Nothing is sent to the sink that nobody offered: no address resolution, no link-local
/// addresses, and group reports at once instead of within some seconds.
fn silence(router: &Host, sink: &Host) -> Result<(), Error> {
    let set = |switch: &str, value| {
        router.sysctl(&format!("net/ipv6/conf/{INNER_DEVICE}/{switch}"), value)
    };
    set("disable_ipv6", "1")?;
    router.ip(&format!("link set {INNER_DEVICE} arp off"))?;
    set("addr_gen_mode", "1")?;
    // Milliseconds.
    set("mldv1_unsolicited_report_interval", "10")?;
    set("mldv2_unsolicited_report_interval", "10")?;
    set("disable_ipv6", "0")?;
    let of_sink = format!("net/ipv6/conf/{}/disable_ipv6", sink.device());
    sink.sysctl(&of_sink, "1")
}

/// Addresses, and ways there and back.
fn make_answer(load: &Host, sink: &Host) -> Result<(), Error> {
    let device = sink.device();
    for words in [
        format!("address add 10.77.0.2/24 dev {device}"),
        format!("address add fd00:77::2/64 dev {device} nodad"),
        "route add default via 10.77.0.1".to_owned(),
        "-6 route add default via fd00:77::1".to_owned(),
    ] {
        sink.ip(&words)?;
    }
    load.ip("route add 10.77.0.0/24 via 198.18.0.2")?;
    load.ip("-6 route add fd00:77::/64 via 2001:2::2")?;
    // Frames of ordinary sockets leave their checksums to an adapter that is none.
    for host in [load, sink] {
        let device = host.device();
        host.configure("ethtool", ["-K", device, "tx", "off"])?;
    }
    Ok(())
}

/// Drops every frame that reaches this host, in its driver, polled by a thread on `cpu`.
pub(crate) fn drop_all(sink: &Host, cpu: usize) -> Result<Burner, Error> {
    let mut burner = Burner::attach(sink)?;
    burner.burn(SINK_SPAN);
    set_polling(sink, Duration::ZERO, 0, true)?;
    let thread = interrupt::wait_for(
        "a polling thread of the sink",
        Duration::from_secs(2),
        || polling_thread(sink),
    )?;
    Scheduling::of(thread)
        .and_then(|found| {
            // At a nice level the generator would finish its slice first: 2.8 ms, in which
            // the sink's ring overflows from 100,000 frames per second on.
            let wanted = found.with_priority(Priority::RealTime);
            wanted.with_cpus(&[cpu]).give_to(thread)
        })
        .map_err(Error::io("place the sink's polling thread"))?;
    Ok(burner)
}
