//! The segments with which XDP answers SYNs, and that the stack takes the handshake's end.
//! Needs root.

#![allow(unsafe_code, reason = "nix does not know these socket options")]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener};
use std::os::fd::AsRawFd;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use etherparse::{NetHeaders, PacketHeaders, TcpOptionElement};
use plimsoll_guard::{Config, Guard, Kind, Outcome, Storage};
use plimsoll_packets::frame::{Extension, Packet, TcpFlags};

use crate::common::peer::{NOBODY_V4, OtherEnd, run, with_peer};
use crate::common::syn_queue::{
    BACKLOG, PORT, fill_syn_queue, from_nobody, listener, multipath_listener, of_nobody, request,
    syn_ack,
};
use crate::common::{HOST_MAC, HOST_V4, HOST_V6, PEER_MAC, Wire, in_namespace, ip};

/// The program takes its loader for gone after 2.1 s.
const SILENCE: Duration = Duration::from_millis(2300);

/// A host past its SYN queue.
fn past_syn_queue<T: Send>(
    config: Config,
    set_up: impl FnOnce(&TcpListener) + Send,
    look: impl FnOnce(&mut Guard<'_>) -> T + Send,
) -> T {
    with_requests(BACKLOG + 1, config, set_up, look)
}

/// A host with so many requests that nobody will complete.
fn with_requests<T: Send>(
    requests: u16,
    config: Config,
    set_up: impl FnOnce(&TcpListener) + Send,
    look: impl FnOnce(&mut Guard<'_>) -> T + Send,
) -> T {
    in_namespace(move || {
        let mut seen = None;
        with_peer(OtherEnd::Takes, |peer| {
            let server = listener(Ipv6Addr::UNSPECIFIED.into());
            set_up(&server);
            let mut storage = Storage::default();
            let mut guard = Guard::attach(&mut storage, &config, "v0").unwrap();
            request(peer, HOST_V4.into(), requests);
            guard.regulate().unwrap();
            seen = Some(look(&mut guard));
        });
        seen.expect("it has been looked at")
    })
}

/// The answer to one more SYN.
fn answer_to(frame: &[u8], set_up: impl FnOnce(&TcpListener) + Send) -> Option<Vec<u8>> {
    past_syn_queue(Config::default(), set_up, |guard| {
        guard.answer_to(frame).unwrap()
    })
}

/// Whether one more SYN would be answered, as a guard counts it that only observes.
fn is_counted_as_answered(frame: &[u8], set_up: impl FnOnce(&TcpListener) + Send) -> bool {
    let config = Config {
        observe: true,
        ..Config::default()
    };
    past_syn_queue(config, set_up, |guard| {
        let before = *guard.counters().unwrap().of(Kind::TcpListener);
        // The same memory again: a SYN that was turned into its answer is none any more.
        assert!(guard.test_run(frame, 2).unwrap().0, "it only observes");
        let after = *guard.counters().unwrap().of(Kind::TcpListener);
        let new = |outcome| after.count(outcome) - before.count(outcome);
        let answered = new(Outcome::SynCookie);
        assert_eq!(new(Outcome::Admitted) + answered, 2, "{after:?}");
        answered == 2
    })
}

/// The MSS option and what answers it, of a segment that etherparse takes for valid.
fn mss_of(answer: &[u8]) -> u16 {
    let tcp = syn_ack(answer);
    let mut options = tcp.options_iterator();
    match options.next() {
        Some(Ok(TcpOptionElement::MaximumSegmentSize(mss))) => mss,
        other => panic!("{other:?}"),
    }
}

/// Between the IP header and the segment stand options or extension headers, in the SYN and
/// in the handshake's end: the answer has none, and the stack takes the cookie.
fn handshake_with_headers_between(packet: Packet, host: IpAddr) {
    in_namespace(move || {
        with_peer(OtherEnd::Takes, |peer| {
            let mut storage = Storage::default();
            let mut guard = Guard::attach(&mut storage, &Config::default(), "v0").unwrap();
            let server = listener(host);
            fill_syn_queue(peer, host);
            guard.regulate().unwrap();
            let segment = |sequence, ack, flags| {
                let packet = packet.clone().numbers(sequence, ack);
                packet.tcp(20_000, PORT, flags, &[])
            };
            let answer = guard.answer_to(&segment(7, 0, TcpFlags::SYN)).unwrap();
            let answer = syn_ack(&answer.expect("a cookie"));
            assert_eq!(
                (answer.source_port, answer.destination_port),
                (PORT, 20_000)
            );
            assert_eq!(answer.acknowledgment_number, 8);
            let taken = answer.sequence_number.wrapping_add(1);
            // A cookie's lowest bits say the MSS: with others it would be valid.
            let (forged, end) = (
                segment(8, taken ^ 1 << 20, TcpFlags::ACK),
                segment(8, taken, TcpFlags::ACK),
            );
            let again = segment(7, 0, TcpFlags::SYN);
            // Each CPU learns by itself that the queue is full.
            run(peer, move || Wire::open().send(&again));
            let before = *guard.counters().unwrap().of(Kind::TcpListener);
            run(peer, move || {
                let wire = Wire::open();
                wire.send(&forged);
                wire.send(&end);
            });
            server.set_nonblocking(true).unwrap();
            let patience = Instant::now() + Duration::from_secs(20);
            let from = loop {
                match server.accept() {
                    Ok((_, from)) => break from,
                    Err(error) => assert!(Instant::now() < patience, "{error}"),
                }
            };
            assert_eq!(from.port(), 20_000);
            let after = *guard.counters().unwrap().of(Kind::TcpListener);
            let new = |outcome| after.count(outcome) - before.count(outcome);
            assert_eq!(
                (new(Outcome::Admitted), new(Outcome::NoCookie)),
                (1, 1),
                "{after:?}"
            );
        });
    });
}

#[test]
fn a_syn_with_ipv4_options_is_answered_and_its_cookie_is_taken() {
    let host = IpAddr::V4(HOST_V4);
    for words in [1, 10] {
        handshake_with_headers_between(of_nobody(host).ipv4_options(words), host);
    }
}

#[test]
fn a_syn_behind_ipv6_extension_headers_is_answered_and_its_cookie_is_taken() {
    let host = IpAddr::V6(HOST_V6);
    // More than seven bytes of padding the stack would not take.
    let options = |number, units| Extension::Options { number, units };
    let destination = of_nobody(host).extension(options(60, 0));
    let two = of_nobody(host)
        .extension(options(0, 0))
        .extension(options(60, 0));
    for packet in [destination, two] {
        handshake_with_headers_between(packet, host);
    }
}

fn syn_with_mss(host: IpAddr) -> Vec<u8> {
    from_nobody(host, 20_000, TcpFlags::SYN)
}

#[test]
fn the_answer_offers_the_mss_of_the_link_or_of_the_server() {
    let mtu = |bytes: u32| move |_: &TcpListener| ip(&format!("link set v0 mtu {bytes}"));
    let answer = answer_to(&syn_with_mss(HOST_V4.into()), |_| {});
    assert_eq!(mss_of(&answer.unwrap()), 1460);
    let answer = answer_to(&syn_with_mss(HOST_V6.into()), |_| {});
    assert_eq!(mss_of(&answer.unwrap()), 1440);
    let answer = answer_to(&syn_with_mss(HOST_V4.into()), mtu(1300));
    assert_eq!(mss_of(&answer.unwrap()), 1260);
    let answer = answer_to(&syn_with_mss(HOST_V4.into()), |server| {
        use nix::sys::socket::{setsockopt, sockopt};
        setsockopt(server, sockopt::TcpMaxSeg, &1000).unwrap();
    });
    assert_eq!(mss_of(&answer.unwrap()), 1000);
}

/// Segments of the link's MSS may be lost on a path that is known to take smaller ones only.
#[test]
fn the_answer_offers_the_mss_of_the_smallest_route() {
    let route = |words: &'static str| move |_: &TcpListener| ip(words);
    let (host_v4, host_v6) = (syn_with_mss(HOST_V4.into()), syn_with_mss(HOST_V6.into()));
    for (words, v4, v6) in [
        ("route add 198.18.0.77/32 dev v0 advmss 1300", 1300, 1440),
        ("route add default via 198.18.0.1 mtu 1400", 1360, 1440),
        ("route add default via 198.18.0.1 mtu 9000", 1460, 1440),
        (
            "-6 route add default via 2001:2:0:1::1 mtu 1400",
            1460,
            1340,
        ),
    ] {
        let look = |guard: &mut Guard<'_>| {
            [&host_v4, &host_v6].map(|syn| mss_of(&guard.answer_to(syn).unwrap().unwrap()))
        };
        let offered = past_syn_queue(Config::default(), route(words), look);
        assert_eq!(offered, [v4, v6], "{words}");
    }
}

/// How many routers the answer may pass.
fn hops_of(answer: &[u8]) -> u8 {
    match PacketHeaders::from_ethernet_slice(answer).unwrap().net {
        Some(NetHeaders::Ipv4(ip, _)) => ip.time_to_live,
        Some(NetHeaders::Ipv6(ip, _)) => ip.hop_limit,
        other => panic!("{other:?}"),
    }
}

/// A router with TTL security (RFC 5082) takes what began at 255 and nothing else. BIRD's listener
/// sends so: while its SYN queue was full, no such neighbour came back.
#[test]
fn the_answer_may_pass_as_many_routers_as_the_server_or_the_host_says() {
    use nix::sys::socket::{setsockopt, sockopt};
    let syns = [syn_with_mss(HOST_V4.into()), syn_with_mss(HOST_V6.into())];
    let default_ttl = |_: &TcpListener| {
        std::fs::write("/proc/sys/net/ipv4/ip_default_ttl", "200").unwrap();
    };
    let own = |server: &TcpListener| {
        default_ttl(server);
        setsockopt(server, sockopt::Ipv4Ttl, &255).unwrap();
        setsockopt(server, sockopt::Ipv6Ttl, &254).unwrap();
    };
    let hops = |set_up: &(dyn Fn(&TcpListener) + Sync)| {
        past_syn_queue(Config::default(), set_up, |guard| {
            [0, 1].map(|family: usize| hops_of(&guard.answer_to(&syns[family]).unwrap().unwrap()))
        })
    };
    assert_eq!(hops(&|_| {}), [64, 64]);
    assert_eq!(hops(&default_ttl), [200, 64]);
    assert_eq!(hops(&own), [255, 254]);
}

/// Has the listener take packets alone that no router has passed on.
fn takes_neighbours_alone(server: &TcpListener, level: i32, option: i32) {
    let least: i32 = 255;
    // SAFETY: the kernel reads the four bytes of a number that lives until then.
    let answer = unsafe {
        let least = std::ptr::from_ref(&least).cast();
        libc::setsockopt(server.as_raw_fd(), level, option, least, 4)
    };
    assert_eq!(answer, 0, "{}", std::io::Error::last_os_error());
}

/// The stack throws away what has passed more routers than a listener with TTL security allows.
#[test]
fn a_syn_that_has_passed_too_many_routers_is_left_to_the_stack() {
    let near = |host: IpAddr| {
        let mut frame = syn_with_mss(host);
        // Where the TTL is, and the hop limit.
        frame[14 + if host.is_ipv4() { 8 } else { 7 }] = 255;
        frame
    };
    for host in [HOST_V4.into(), HOST_V6.into()] {
        let (far, near) = (syn_with_mss(host), near(host));
        let server = OnceLock::new();
        let look = |guard: &mut Guard<'_>| {
            let mut is_answered = |frame: &[u8]| guard.answer_to(frame).unwrap().is_some();
            assert!(is_answered(&far));
            // Not before its SYN queue is full: the stack takes none of those requests then.
            let server = server.get().unwrap();
            takes_neighbours_alone(server, libc::IPPROTO_IP, libc::IP_MINTTL);
            takes_neighbours_alone(server, libc::IPPROTO_IPV6, libc::IPV6_MINHOPCOUNT);
            assert!(!is_answered(&far), "{host}");
            assert!(is_answered(&near), "{host}");
        };
        let keep = |made: &TcpListener| server.set(made.try_clone().unwrap()).unwrap();
        past_syn_queue(Config::default(), keep, look);
    }
}

/// The stack's cookies keep Multipath TCP. A client that had the program's answer instead went on
/// with one path, and one that joined a second path gave that up.
#[test]
fn a_syn_of_multipath_tcp_is_left_to_the_stack() {
    const MULTIPATH: [u8; 4] = [30, 4, 1, 1];
    const OTHERS: [u8; 8] = [1, 1, 4, 2, 3, 3, 7, 1];
    let with_options = |options: &[u8]| {
        let mut frame = syn_with_mss(HOST_V4.into());
        frame.extend(options);
        let words = u8::try_from(options.len() / 4).unwrap();
        frame[14 + 3] += 4 * words;
        frame[14 + 20 + 12] += words << 4;
        frame
    };
    let wants_paths = with_options(&[&OTHERS, MULTIPATH.as_slice(), &[1; 4]].concat());
    let wants_none = with_options(&OTHERS);
    // What looks like the option within another one is none.
    let hides_it = with_options(&[[8, 10].as_slice(), &[30; 8], &[0, 30]].concat());
    in_namespace(|| {
        with_peer(OtherEnd::Takes, |peer| {
            let _server = multipath_listener(HOST_V4);
            let mut storage = Storage::default();
            let mut guard = Guard::attach(&mut storage, &Config::default(), "v0").unwrap();
            fill_syn_queue(peer, HOST_V4.into());
            guard.regulate().unwrap();
            let mut is_answered = |frame: &[u8]| guard.answer_to(frame).unwrap().is_some();
            assert!(is_answered(&wants_none));
            assert!(is_answered(&hides_it));
            assert!(!is_answered(&wants_paths));
        });
    });
    // A listener that takes one path alone ignores the option.
    assert!(answer_to(&wants_paths, |_| {}).is_some());
}

#[test]
fn only_what_is_for_this_interface_and_can_have_been_sent_is_answered() {
    let syn = |source: Ipv4Addr, host: Ipv4Addr, mac| {
        Packet::new(source.into(), host.into())
            .macs(PEER_MAC, mac)
            .tcp(20_000, PORT, TcpFlags::SYN, &[])
    };
    let elsewhere = Ipv4Addr::new(198, 19, 0, 1);
    let other = |_: &TcpListener| {
        ip("address add 198.19.0.1/32 dev lo");
    };
    assert!(answer_to(&syn(NOBODY_V4, HOST_V4, HOST_MAC), other).is_some());
    assert_eq!(answer_to(&syn(NOBODY_V4, elsewhere, HOST_MAC), other), None);
    assert_eq!(answer_to(&syn(NOBODY_V4, HOST_V4, PEER_MAC), |_| {}), None);
    for martian in [
        [127, 0, 0, 1],
        [0, 0, 0, 5],
        [224, 0, 0, 1],
        [255; 4],
        HOST_V4.octets(),
    ] {
        let frame = syn(martian.into(), HOST_V4, HOST_MAC);
        assert_eq!(answer_to(&frame, |_| {}), None, "{martian:?}");
    }
}

/// `struct tcp_md5sig` of `linux/tcp.h`.
#[repr(C)]
struct Md5Key {
    peer: libc::sockaddr_in6,
    rest_of_address: [u8; 128 - size_of::<libc::sockaddr_in6>()],
    flags: u8,
    prefix_bits: u8,
    key_bytes: u16,
    interface: i32,
    key: [u8; 80],
}

/// Has the listener take segments of `peer` only if they are signed (RFC 2385).
fn wants_signatures(server: &TcpListener, peer: Ipv6Addr) {
    // SAFETY: all bits zero are a value of each field.
    let mut key: Md5Key = unsafe { std::mem::zeroed() };
    key.peer.sin6_family = libc::AF_INET6 as libc::sa_family_t;
    key.peer.sin6_addr.s6_addr = peer.octets();
    key.key[..6].copy_from_slice(b"secret");
    key.key_bytes = 6;
    let length = size_of::<Md5Key>() as libc::socklen_t;
    // SAFETY: the kernel reads `length` bytes of a structure that lives until then.
    let answer = unsafe {
        let key = std::ptr::from_ref(&key).cast();
        let socket = server.as_raw_fd();
        libc::setsockopt(socket, libc::IPPROTO_TCP, libc::TCP_MD5SIG, key, length)
    };
    assert_eq!(answer, 0, "{}", std::io::Error::last_os_error());
}

/// A router's peer drops answers that are not signed, and the stack alone can sign. So
/// whoever fills the queue of a BGP daemon would have kept its peers out.
#[test]
fn a_listener_whose_peers_sign_their_segments_is_left_to_the_stack() {
    let bgp_peer = Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 0x55);
    let syn = syn_with_mss(HOST_V6.into());
    let signs = move |server: &TcpListener| wants_signatures(server, bgp_peer);
    assert!(answer_to(&syn, |_| {}).is_some());
    assert_eq!(answer_to(&syn, signs), None);
    assert!(is_counted_as_answered(&syn, |_| {}));
    assert!(!is_counted_as_answered(&syn, signs));
}

/// What it knew of the interface and of the packet filter may not be so any more.
#[test]
fn the_stack_answers_while_the_loader_is_silent() {
    let syn = syn_with_mss(HOST_V4.into());
    let look = |guard: &mut Guard<'_>| {
        for _ in 0..2 {
            guard.regulate().unwrap();
            assert!(guard.answer_to(&syn).unwrap().is_some());
            thread::sleep(SILENCE);
            assert_eq!(guard.answer_to(&syn).unwrap(), None);
            assert!(guard.test_run(&syn, 1).unwrap().0);
        }
    };
    past_syn_queue(Config::default(), |_| {}, look);
}

/// The kernel makes no cookie while the SYN queue has room. So whoever has had its share takes
/// the last places like anybody, and a guard that only observes had counted cookies there.
#[test]
fn the_last_places_of_a_syn_queue_are_taken_as_an_observing_guard_counts_them() {
    const SYNS: u32 = 100;
    for observe in [true, false] {
        let config = Config {
            observe,
            ..Config::default()
        };
        let look = |guard: &mut Guard<'_>| {
            let before = *guard.counters().unwrap().of(Kind::TcpListener);
            let syn = syn_with_mss(HOST_V4.into());
            assert!(guard.test_run(&syn, SYNS).unwrap().0);
            let after = *guard.counters().unwrap().of(Kind::TcpListener);
            after.count(Outcome::Admitted) - before.count(Outcome::Admitted)
        };
        let admitted = with_requests(BACKLOG - 1, config, |_| {}, look);
        assert_eq!(admitted, u64::from(SYNS), "observing: {observe}");
    }
}
