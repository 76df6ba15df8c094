//! The stack against the kernel's own and ordinary clients, over a link that loses, damages,
//! duplicates and reorders a hundredth of the frames each, in both directions. Needs root, curl
//! and wrk.
//!
//! A failure names its seed. The faults of a seed are the same for the same frames; timers decide
//! which frames there are.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket as KernelSocket};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use plimsoll_core::config::Fraction;
use plimsoll_stack::device::Device;
use plimsoll_stack::device::faulty::{Faults, Faulty};
use plimsoll_stack::device::tap::TapDevice;
use plimsoll_stack::{Stack, TcpListener as StackListener, TcpStream as StackStream, UdpSocket};

use crate::closing::{Between, Link, Side};
use crate::lan::{self, Lan, assert_sums, config, content, in_namespace, owned, xdp};

/// A loss that nothing behind it shows costs a sender a second and more, several times.
const SOON: Duration = Duration::from_secs(60);
const SEEDS: [u64; 2] = [1, 14];
const BULK_BYTES: usize = 300_000;

/// Runs `test` with a stack behind faults; they did happen.
fn behind_faults<D: Device + 'static>(device: D, path: &str, seed: u64, test: impl FnOnce(&Stack)) {
    let faults = Faults::each(Fraction::from_percent(1));
    let faulty = Arc::new(Faulty::new(device, faults, seed));
    let stack = Stack::start(Arc::clone(&faulty), &config(path)).unwrap();
    println!("seed {seed}, path {path}");
    test(&stack);
    assert_sums(&stack);
    let (inwards, outwards) = faulty.counts();
    for counts in [inwards, outwards] {
        let of_all = counts.lost + counts.corrupted + counts.duplicated + counts.reordered;
        assert!(of_all > 0, "seed {seed}: {counts:?}");
    }
}

/// Calls `attempt` until it works: datagrams may get lost.
fn eventually<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + SOON;
    loop {
        if let Some(result) = attempt() {
            return result;
        }
        assert!(Instant::now() < end, "{what}");
    }
}

/// Whether UDP's checksum could tell that `came` is not `sent`. A fault is one bit of a fragment: two
/// of them may leave the sum as it was (RFC 1071), about once in 30 times.
fn is_seen_by_udp(came: &[u8], sent: &[u8]) -> bool {
    let sum = |payload: &[u8]| {
        let words = payload.chunks(2).map(|word| match *word {
            [high, low] => u32::from(high) << 8 | u32::from(low),
            _ => u32::from(word[0]) << 8,
        });
        words.sum::<u32>() % 0xffff
    };
    let bits: u32 = came
        .iter()
        .zip(sent)
        .map(|(a, b)| (a ^ b).count_ones())
        .sum();
    // On the way there and back.
    came.len() != sent.len() || bits > 4 || bits > 0 && sum(came) != sum(sent)
}

/// Datagrams of several sizes come back whole or not at all, as far as UDP can tell.
fn datagrams(stack: &Stack) {
    let server = UdpSocket::bind(stack, "10.0.0.2:7").unwrap();
    server
        .set_read_timeout(Some(Duration::from_millis(20)))
        .unwrap();
    let client = KernelSocket::bind("10.0.0.1:0").unwrap();
    client
        .set_read_timeout(Some(Duration::from_millis(20)))
        .unwrap();
    client.connect("10.0.0.2:7").unwrap();
    let (mut echoed, mut buffer) = (vec![0; 65_536], vec![0; 65_536]);
    for number in 0..150_usize {
        let length = [4, 1472, 1473, 9000][number % 4];
        let mut sent = content(length);
        sent[..4].copy_from_slice(&(number as u32).to_be_bytes());
        eventually("a datagram that is not lost", || {
            client.send(&sent).unwrap();
            if let Ok((length, from)) = server.recv_from(&mut echoed) {
                server.send_to(&echoed[..length], from).unwrap();
            }
            // What came twice or late is of an earlier one.
            while let Ok(length) = client.recv(&mut buffer) {
                let theirs = u32::from_be_bytes(buffer[..4].try_into().unwrap()) as usize;
                assert!(theirs <= number, "nobody sent this");
                let damaged = is_seen_by_udp(&buffer[4..length], &content(length)[4..]);
                assert!(!damaged, "{length} bytes are damaged");
                if theirs == number {
                    return Some(());
                }
            }
            None
        });
    }
}

/// Sends `sent` and compares what arrives.
fn transfer(from: &mut (impl Write + Send), to: &mut impl Read, sent: &[u8]) {
    lan::transfer(from, to, sent);
}

/// Bulk in both directions, connections begun by either side.
fn bulk(stack: &Stack) {
    let sent = content(BULK_BYTES);
    let ours = StackListener::bind(stack, "10.0.0.2:80").unwrap();
    let mut kernels = TcpStream::connect("10.0.0.2:80").unwrap();
    let mut accepted = ours.accept_timeout(SOON).unwrap().0;
    limit(&kernels, &accepted);
    transfer(&mut kernels, &mut accepted, &sent);
    transfer(&mut accepted, &mut kernels, &sent);
    let theirs = TcpListener::bind("10.0.0.1:81").unwrap();
    let mut connected = StackStream::connect(stack, "10.0.0.1:81").unwrap();
    let mut kernels = theirs.accept().unwrap().0;
    limit(&kernels, &connected);
    transfer(&mut connected, &mut kernels, &sent);
    transfer(&mut kernels, &mut connected, &sent);
    drop(connected);
    assert_eq!(kernels.read(&mut [0; 1]).unwrap(), 0, "the stack closed");
}

fn limit(kernels: &TcpStream, ours: &StackStream) {
    kernels.set_read_timeout(Some(SOON)).unwrap();
    kernels.set_write_timeout(Some(SOON)).unwrap();
    ours.set_read_timeout(Some(SOON)).unwrap();
    ours.set_write_timeout(Some(SOON)).unwrap();
}

/// Connections that come and go, one after the other, each with a question.
fn storm(stack: &Stack) {
    let listener = StackListener::bind(stack, "10.0.0.2:82").unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..60 {
                let (mut stream, _) = listener.accept_timeout(SOON).unwrap();
                stream.set_read_timeout(Some(SOON)).unwrap();
                let mut question = [0; 8];
                stream.read_exact(&mut question).unwrap();
                stream.write_all(&question).unwrap();
            }
        });
        for number in 0..60_u64 {
            let mut stream = TcpStream::connect("10.0.0.2:82").unwrap();
            stream.set_read_timeout(Some(SOON)).unwrap();
            stream.write_all(&number.to_be_bytes()).unwrap();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).unwrap();
            assert_eq!(answer, number.to_be_bytes());
        }
    });
}

/// The same, begun by the stack.
fn storm_of_ours(stack: &Stack) {
    Between::new(stack, Link::Faulty).storm(Side::Stack, 30);
}

/// How connections end, and closed windows.
fn ends(stack: &Stack) {
    let between = Between::new(stack, Link::Faulty);
    between.half_closes();
    between.closed_windows();
    between.resets();
}

/// All seeds at once, each in a namespace of its own: a run mostly waits for timers.
fn each_seed(test: impl Fn(u64) + Sync) {
    let test = &test;
    thread::scope(|scope| {
        for seed in SEEDS {
            scope.spawn(move || test(seed));
        }
    });
}

/// What a test does on a link of its own.
type Part = fn(&Stack);

/// All parts at once, as seeds are.
fn each_seed_and_part(parts: &[Part], test: impl Fn(u64, Part) + Sync) {
    let test = &test;
    each_seed(|seed| {
        thread::scope(|scope| {
            for part in parts {
                scope.spawn(move || test(seed, *part));
            }
        });
    });
}

/// Pings alone are too few to have faults.
fn pings_and_datagrams(stack: &Stack) {
    lan::run("ping -c 50 -i 0.02 -W 2 10.0.0.2");
    datagrams(stack);
}

#[test]
fn the_kernel_s_stack_over_af_xdp() {
    let parts: [Part; 5] = [pings_and_datagrams, bulk, storm, storm_of_ours, ends];
    each_seed_and_part(&parts, |seed, part| {
        let path = if seed == SEEDS[0] {
            "soft-lrp"
        } else {
            "ni-lrp"
        };
        Lan::create(|| behind_faults(xdp(&owned()), path, seed, part));
    });
}

#[test]
fn the_kernel_s_stack_over_tap() {
    each_seed_and_part(&[datagrams, bulk], |seed, part| {
        let path = if seed == SEEDS[0] {
            "polled"
        } else {
            "early-demux"
        };
        in_namespace(|| {
            let device = TapDevice::open("tap0").unwrap();
            lan::set_up_kernel_side("tap0");
            behind_faults(device, path, seed, part);
        });
    });
}

/// Answers GET with `page`, and PUT with whether the body was `page`, until the peer ends.
fn serve_http(mut stream: StackStream, page: &[u8]) -> io::Result<()> {
    stream.set_read_timeout(Some(SOON))?;
    stream.set_write_timeout(Some(SOON))?;
    let mut read = Vec::new();
    let mut buffer = [0; 16_384];
    loop {
        let end = loop {
            if let Some(end) = read.windows(4).position(|four| four == b"\r\n\r\n") {
                break end + 4;
            }
            match stream.read(&mut buffer)? {
                0 => return Ok(()),
                length => read.extend_from_slice(&buffer[..length]),
            }
        };
        let head = String::from_utf8_lossy(&read[..end]).to_ascii_lowercase();
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.map_or(0, |length| length.parse().unwrap());
        while read.len() < end + length {
            match stream.read(&mut buffer)? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                length => read.extend_from_slice(&buffer[..length]),
            }
        }
        let body = &read[end..end + length];
        let (status, answer) = match body {
            [] => ("200 OK", page),
            body if body == page => ("200 OK", &b"the same"[..]),
            _ => ("400 Bad Request", &b"damaged"[..]),
        };
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n",
            answer.len()
        );
        stream.write_all(head.as_bytes())?;
        stream.write_all(answer)?;
        read.drain(..end + length);
    }
}

/// A server for as long as `test` takes.
fn with_http(stack: &Stack, page: &[u8], test: impl FnOnce()) {
    let listener = StackListener::bind(stack, "10.0.0.2:80").unwrap();
    let over = std::sync::atomic::AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(std::sync::atomic::Ordering::Relaxed) {
                let accepted = listener.accept_timeout(Duration::from_millis(50));
                if let Ok((stream, _)) = accepted {
                    // A client may break off.
                    scope.spawn(|| serve_http(stream, page));
                }
            }
        });
        test();
        over.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

fn output_of(command: &str) -> Vec<u8> {
    let mut words = command.split_whitespace();
    let output = Command::new(words.next().unwrap()).args(words).output();
    let output = output.unwrap_or_else(|error| panic!("{command}: {error}"));
    assert!(output.status.success(), "{command}: {output:?}");
    output.stdout
}

#[test]
fn curl_and_wrk() {
    let page = content(BULK_BYTES);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("page");
    fs::write(&file, &page).unwrap();
    each_seed(|seed| {
        Lan::create(|| {
            behind_faults(xdp(&owned()), "soft-lrp", seed, |stack| {
                with_http(stack, &page, || {
                    let curl = "curl -sS --max-time 60 -H Expect: http://10.0.0.2/";
                    assert!(output_of(curl) == page, "seed {seed}: damaged");
                    let sent = output_of(&format!("{curl} -T {}", file.display()));
                    assert_eq!(sent, b"the same", "seed {seed}");
                });
                with_http(stack, &page[..500], || {
                    let wrk = output_of("wrk -t 1 -c 8 -d 3s --timeout 20s http://10.0.0.2/");
                    let wrk = String::from_utf8(wrk).unwrap();
                    let whole = wrk.contains("requests in") && !wrk.contains("Socket errors");
                    assert!(whole && !wrk.contains("Non-2xx"), "seed {seed}: {wrk}");
                    assert!(!wrk.contains(" 0 requests in"), "seed {seed}: {wrk}");
                });
            });
        });
    });
}
