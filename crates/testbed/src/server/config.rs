//! A server's settings, which are also the arguments of `plimsoll serve`.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use ipnet::IpNet;
use plimsoll_stack::device::xdp::Threaded;
use plimsoll_stack::{ReceivePath, TcpConfig};

use super::network::On;
use super::pace::Pace;
use crate::Error;

/// Datagrams at a time where that pays.
pub const BATCH: u16 = 64;

/// What a server does with a packet, after working on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Nothing.
    Sink,
    /// Sends it back.
    Echo,
    /// Does the work that each call asks for, and answers it.
    Rpc,
    /// Files over HTTP/1.1.
    Http,
    /// A zone over DNS, as its authoritative server.
    Dns,
}

/// A server's settings, also the arguments of `plimsoll serve`.
#[derive(Clone, Debug, PartialEq, clap::Args)]
pub struct Config {
    /// What to do with a packet
    #[arg(value_enum)]
    pub kind: Kind,
    /// Port to listen on, on every address of the kernel's (but with --address), or of
    /// Plimsoll's own stack
    #[arg(long)]
    pub port: u16,
    /// Whose sockets: the `kernel`'s, or Plimsoll's own stack on `af_xdp:IFACE`,
    /// `packet:IFACE`, `tap:NAME` or `tun:NAME`
    #[arg(long, value_name = "DEVICE", default_value = "kernel")]
    pub on: On,
    /// Address of Plimsoll's own stack, as 198.18.0.2/24; may be repeated. The
    /// kernel must not have it. Without one, `af_xdp` shares the addresses that the
    /// interface has at the start: it takes this port there, of IPv4 and IPv6, and the
    /// kernel keeps everything else. With `kernel` it is the one address to listen on.
    #[arg(long, value_name = "NET")]
    pub address: Vec<IpNet>,
    /// VLAN that Plimsoll's own stack is in (1 to 4094): it takes frames with that tag alone
    #[arg(long, value_name = "ID", value_parser = clap::value_parser!(u16).range(1..=4094))]
    pub vlan: Option<u16>,
    /// With `af_xdp`: frames are not copied between the kernel's memory and the server's. It does
    /// not start where the driver cannot do that. Try it before you rely on it: some drivers
    /// have faults then.
    #[arg(long)]
    pub zero_copy: bool,
    /// Under load the kernel waits so long for more frames before it polls the interface of
    /// `af_xdp` again, in microseconds: fewer interrupts, more latency. Put back at the end, also
    /// if this is killed.
    #[arg(long = "holdoff-us", value_name = "US", value_parser = parse_micros)]
    pub holdoff: Option<Duration>,
    /// With `af_xdp`: the kernel polls in a thread so many nice levels (0 to 19) beneath the
    /// server instead of in softirq context, before every process. A flooded server keeps its
    /// goodput (at 10), but while it is busy other traffic of the queue is lost. `auto`: beneath
    /// while the flood of one UDP port is alone, and above every process as soon as anything else
    /// comes, where processes get less with other paths than `ni-lrp`. `off`: as the interface has
    /// it. Put back at the end, also if this is killed. Default: `auto` for UDP with `--path ni-lrp`
    /// and without `--busy-poll-us`, else `off`.
    #[arg(long, value_name = "off|auto|LEVELS")]
    pub threaded: Option<Threaded>,
    /// The directory of a control group, such as a slice with the server: its share of the CPU pays
    /// for the kernel's polling. With `--threaded` and levels: at 0, polling and the server share alike.
    /// Put back at the end, also if this is killed.
    #[arg(long, value_name = "DIRECTORY")]
    pub poll_control_group: Option<PathBuf>,
    /// `--threaded` also with a driver that this was not tried with: some hang then.
    #[arg(long)]
    pub any_driver: bool,
    /// Router of Plimsoll's own stack for other networks
    #[arg(long, value_name = "IP")]
    pub gateway: Vec<IpAddr>,
    /// Tells neighbours at the start where each `--address` of Plimsoll's own stack is: who knew it at
    /// another host sends here at once. A host that still has it loses its traffic
    #[arg(long)]
    pub announce: bool,
    /// Receive path of Plimsoll's own stack: eager, early-demux, soft-lrp, ni-lrp,
    /// polled or soft-timer-polling, which may have a quota: soft-timer-polling:10.
    /// Default: soft-lrp
    #[arg(long, value_name = "PATH")]
    pub path: Option<ReceivePath>,
    /// A thread of idle priority does IP and UDP for up to 64 waiting datagrams of each socket while a CPU
    /// idles and the server is busy. Gives nothing on one CPU, and costs a waking and two system
    /// calls for 16 packets elsewhere. Own stack with `--path soft-lrp` or `soft-timer-polling`.
    #[arg(long)]
    pub work_ahead: bool,
    /// Datagrams to receive, and to send, at a time (1 to 1024): the first answer waits for the
    /// work on all. Default: 64; 1 with `rpc` or `--work-us`, and for `sink` and `echo` on the
    /// kernel's sockets, as most servers take them there
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub batch: Option<u16>,
    /// Directory of the files that `http` serves. Default: the current one
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,
    /// Send on each TCP connection at this rate, in Mbit/s, by the clock: without slow
    /// start on Plimsoll's own stack, as an upper bound on the kernel's
    /// (`SO_MAX_PACING_RATE`). `last`: at half of what the connection's last busy period
    /// showed (own stack only). `acks`: slow start stays, but what a burst of
    /// acknowledgements releases leaves at their average rate (own stack only).
    #[arg(long, value_name = "MBIT")]
    pub pace: Option<Pace>,
    /// Send and receive buffer of a TCP connection of Plimsoll's own stack: the path's rate
    /// times its round trip, or more. Default: 65536
    #[arg(long, value_name = "BYTES")]
    pub tcp_buffer_bytes: Option<usize>,
    /// Connections at a time, of `http` and of `dns` over TCP (1 to 65535); more wait to be accepted
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u16).range(1..))]
    pub connections: u16,
    /// CPU time spent on each packet or HTTP request, in microseconds
    #[arg(long = "work-us", value_name = "US", value_parser = parse_micros, default_value = "0")]
    pub work: Duration,
    /// Receive buffer in bytes, beyond `net.core.rmem_max` if root (the kernel
    /// doubles it for its own overhead). Default: `net.core.rmem_default`.
    ///
    /// A frame that an XDP program redirected is accounted at the size of a
    /// page: the usual default of 208 KiB holds about 50 of them.
    #[arg(long, value_name = "BYTES")]
    pub rcvbuf_bytes: Option<usize>,
    /// Zone file that `dns` answers from (RFC 1035; with $ORIGIN)
    #[arg(long, value_name = "FILE", required_if_eq("kind", "dns"))]
    pub zone: Option<PathBuf>,
    /// Also echo UDP on this port, or serve `rpc` if that is what is served, on a thread of
    /// its own: whom a flood of the first port must not disturb. It is not counted.
    #[arg(long, value_name = "PORT")]
    pub bystander: Option<u16>,
    /// Look for datagrams for so long before sleeping, in microseconds (`SO_BUSY_POLL` on the
    /// kernel's sockets)
    #[arg(long = "busy-poll-us", value_name = "US", value_parser = parse_micros, default_value = "0")]
    pub busy_poll: Duration,
    /// File to keep the counters in, for a parent process to map
    #[arg(long, value_name = "FILE", hide = true)]
    pub counters: Option<PathBuf>,
}

impl Config {
    /// A server without work, with the kernel's default receive buffer.
    #[must_use]
    pub fn new(kind: Kind, port: u16) -> Self {
        Self {
            kind,
            port,
            on: On::Kernel,
            address: Vec::new(),
            vlan: None,
            zero_copy: false,
            holdoff: None,
            threaded: None,
            poll_control_group: None,
            any_driver: false,
            gateway: Vec::new(),
            announce: false,
            path: None,
            work_ahead: false,
            batch: None,
            root: None,
            pace: None,
            tcp_buffer_bytes: None,
            connections: 512,
            work: Duration::ZERO,
            rcvbuf_bytes: None,
            zone: None,
            bystander: None,
            busy_poll: Duration::ZERO,
            counters: None,
        }
    }

    /// Of Plimsoll's own stack.
    pub(super) fn receive_path(&self) -> ReceivePath {
        self.path.clone().unwrap_or(ReceivePath::SoftLrp)
    }

    /// Of each TCP connection of Plimsoll's own stack.
    pub(super) fn buffer_bytes(&self) -> usize {
        let given = self.tcp_buffer_bytes;
        given.unwrap_or_else(|| TcpConfig::default().buffer_bytes)
    }

    /// Datagrams at a time: as was said, or as many as pay where each is worked on for so short that
    /// nobody waits for an answer. `sink` and `echo` on the kernel's sockets stand for other servers.
    pub(super) fn batch(&self) -> u16 {
        let is_short = self.kind != Kind::Rpc && self.work.is_zero();
        let is_other = self.on == On::Kernel && self.kind != Kind::Dns;
        let pays = is_short && !is_other;
        self.batch.unwrap_or(if pays { BATCH } else { 1 })
    }

    /// Where the kernel polls: as was said, or as is best for such a server. A server that polls
    /// by itself would wait for the thread, and TCP has no ring of its own by which a flood is
    /// seen.
    pub(super) fn polled(&self) -> Threaded {
        let flooded_alone = matches!(self.on, On::AfXdp(_))
            && self.receive_path() == ReceivePath::NiLrp
            && self.kind != Kind::Http
            && self.busy_poll.is_zero();
        let default = match flooded_alone {
            true => Threaded::Auto,
            false => Threaded::Off,
        };
        self.threaded.unwrap_or(default)
    }

    pub(super) fn validate(&self) -> Result<(), Error> {
        self.check_given()?;
        let refuse = |field, given: &On, allowed| {
            Err(Error::Config {
                field,
                given: given.to_string(),
                allowed,
            })
        };
        match &self.on {
            On::Kernel if self.address.len() > 1 => refuse(
                "on",
                &self.on,
                "af_xdp:IFACE, packet:IFACE, tap:NAME or tun:NAME with more than one --address",
            ),
            On::Kernel if self.work_ahead => refuse(
                "on",
                &self.on,
                "Plimsoll's own stack with --work-ahead: the kernel's does not",
            ),
            On::Kernel | On::Tun(_) if self.vlan.is_some() => refuse(
                "on",
                &self.on,
                "af_xdp:IFACE, packet:IFACE or tap:NAME with --vlan",
            ),
            On::Kernel | On::Packet(_) | On::Tap(_) | On::Tun(_) if self.holdoff.is_some() => {
                refuse("on", &self.on, "af_xdp:IFACE with --holdoff-us")
            }
            On::Kernel | On::Packet(_) | On::Tap(_) | On::Tun(_) if self.zero_copy => {
                refuse("on", &self.on, "af_xdp:IFACE with --zero-copy")
            }
            On::Kernel | On::Packet(_) | On::Tap(_) | On::Tun(_)
                if self.polled() != Threaded::Off || self.any_driver =>
            {
                refuse("on", &self.on, "af_xdp:IFACE with --threaded")
            }
            On::Packet(_) | On::Tap(_) | On::Tun(_) if self.address.is_empty() => refuse(
                "on",
                &self.on,
                "used with --address: the stack needs one of its own",
            ),
            On::Kernel if matches!(self.pace, Some(Pace::Last | Pace::Acks)) => refuse(
                "on",
                &self.on,
                "Plimsoll's own stack with --pace last or acks: the kernel's sockets have neither",
            ),
            On::Kernel | On::AfXdp(_) | On::Packet(_) | On::Tap(_) | On::Tun(_) => Ok(()),
        }
    }

    /// What was given is of what is served, and of whose sockets.
    fn check_given(&self) -> Result<(), Error> {
        let all = self.given_to_kind().into_iter();
        for (field, given, is_of_use, allowed) in all.chain(self.given_to_network()) {
            if let Some(given) = given.filter(|_| !is_of_use) {
                return Err(Error::Config {
                    field,
                    given,
                    allowed,
                });
            }
        }
        Ok(())
    }

    /// Of settings that not every kind of server has.
    fn given_to_kind(&self) -> [Given; 4] {
        let serves_tcp = matches!(self.kind, Kind::Http | Kind::Dns);
        let root = self.root.as_ref().map(|root| root.display().to_string());
        let zone = self.zone.as_ref().map(|zone| zone.display().to_string());
        [
            (
                "pace",
                self.pace.map(|pace| pace.to_string()),
                serves_tcp,
                "left out: of http and dns over TCP alone",
            ),
            (
                "tcp-buffer-bytes",
                self.tcp_buffer_bytes.map(|bytes| bytes.to_string()),
                serves_tcp,
                "left out: of http and dns over TCP alone",
            ),
            (
                "root",
                root,
                self.kind == Kind::Http,
                "left out: http alone serves files",
            ),
            (
                "zone",
                zone,
                self.kind == Kind::Dns,
                "left out: dns alone answers from one",
            ),
        ]
    }

    /// Of those that not every network has.
    fn given_to_network(&self) -> [Given; 5] {
        let has_own_stack = self.on != On::Kernel;
        let has_neighbours = has_own_stack && !matches!(self.on, On::Tun(_));
        let group = self.poll_control_group.as_ref();
        [
            (
                "gateway",
                self.gateway.first().map(ToString::to_string),
                has_own_stack,
                "left out with --on kernel: its sockets use the kernel's routes",
            ),
            (
                "announce",
                self.announce.then(|| "yes".to_owned()),
                has_neighbours && !self.address.is_empty(),
                "left out but for af_xdp:IFACE, packet:IFACE or tap:NAME with --address",
            ),
            (
                "poll-control-group",
                group.map(|group| group.display().to_string()),
                matches!(self.on, On::AfXdp(_)),
                "left out but for af_xdp:IFACE",
            ),
            (
                "path",
                self.path.as_ref().map(ToString::to_string),
                has_own_stack,
                "left out with --on kernel: the kernel has its own",
            ),
            (
                "tcp-buffer-bytes",
                self.tcp_buffer_bytes.map(|bytes| bytes.to_string()),
                has_own_stack,
                "left out with --on kernel: see `sysctl net.ipv4.tcp_wmem` there",
            ),
        ]
    }

    /// The arguments that make `plimsoll serve` run this configuration.
    pub(super) fn to_args(&self) -> Vec<String> {
        let kind = self.kind.to_possible_value();
        let kind = kind.expect("no kind is skipped").get_name().to_owned();
        let micros = |span: Duration| span.as_nanos() as f64 / 1e3;
        let mut args = vec![kind, format!("--port={}", self.port)];
        args.push(format!("--work-us={}", micros(self.work)));
        args.push(format!("--busy-poll-us={}", micros(self.busy_poll)));
        args.push(format!("--on={}", self.on));
        args.extend(self.address.iter().map(|net| format!("--address={net}")));
        args.extend(self.vlan.map(|id| format!("--vlan={id}")));
        args.extend(self.zero_copy.then(|| "--zero-copy".to_owned()));
        let holdoff = self.holdoff.map(micros);
        args.extend(holdoff.map(|time| format!("--holdoff-us={time}")));
        args.extend(self.threaded.map(|place| format!("--threaded={place}")));
        let group = self.poll_control_group.as_ref();
        args.extend(group.map(|group| format!("--poll-control-group={}", group.display())));
        args.extend(self.any_driver.then(|| "--any-driver".to_owned()));
        args.extend(self.gateway.iter().map(|ip| format!("--gateway={ip}")));
        args.extend(self.announce.then(|| "--announce".to_owned()));
        let path = self.path.as_ref();
        args.extend(path.map(|path| format!("--path={path}")));
        args.extend(self.work_ahead.then(|| "--work-ahead".to_owned()));
        args.extend(self.batch.map(|count| format!("--batch={count}")));
        let root = self.root.as_ref();
        args.extend(root.map(|directory| format!("--root={}", directory.display())));
        args.extend(self.pace.map(|pace| format!("--pace={pace}")));
        let buffer = self.tcp_buffer_bytes;
        args.extend(buffer.map(|bytes| format!("--tcp-buffer-bytes={bytes}")));
        args.push(format!("--connections={}", self.connections));
        args.extend(
            self.rcvbuf_bytes
                .map(|bytes| format!("--rcvbuf-bytes={bytes}")),
        );
        let zone = self.zone.as_ref();
        args.extend(zone.map(|file| format!("--zone={}", file.display())));
        let bystander = self.bystander;
        args.extend(bystander.map(|port| format!("--bystander={port}")));
        let counters = self.counters.as_ref();
        args.extend(counters.map(|file| format!("--counters={}", file.display())));
        args
    }
}

/// A setting's name, what was given, whether it is of use, and what is said where it is not.
type Given = (&'static str, Option<String>, bool, &'static str);

/// Parses microseconds, with a fraction if need be.
fn parse_micros(text: &str) -> Result<Duration, String> {
    let micros: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (0.0..=1e6).contains(&micros) {
        Ok(Duration::from_nanos((micros * 1e3).round() as u64))
    } else {
        Err("must be 0 to 1000000".to_owned())
    }
}

#[cfg(test)]
mod tests;
