//! TCP between two stacks on a simulated cable.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use plimsoll_core::config::Fraction;
use plimsoll_stack::device::faulty::{Faults, Faulty};
use plimsoll_stack::device::simulated::{SimulatedConfig, SimulatedDevice};
use plimsoll_stack::{
    Outcome, Owner, Stack, StackConfig, TcpConfig, TcpListener, TcpStream, UdpSocket,
};

/// No test waits longer for what must come.
const SOON: Duration = Duration::from_secs(20);

fn config(last: u8) -> StackConfig {
    let addresses = [format!("10.0.0.{last}/24"), format!("fd00::{last}/64")];
    StackConfig {
        addresses: addresses.map(|net| net.parse().unwrap()).to_vec(),
        ..StackConfig::default()
    }
}

fn pair_with(server: &StackConfig, faults: Faults) -> (Stack, Stack) {
    let (one, other) = SimulatedDevice::pair(&SimulatedConfig::default()).unwrap();
    (
        Stack::start(one, &config(1)).unwrap(),
        Stack::start(Faulty::new(other, faults, 11), server).unwrap(),
    )
}

fn pair() -> (Stack, Stack) {
    pair_with(&config(2), Faults::NONE)
}

/// A client's and the server's end of a connection.
fn connected(client: &Stack, listener: &TcpListener) -> (TcpStream, TcpStream) {
    let at = listener.local_addr().unwrap();
    thread::scope(|scope| {
        let accepting = scope.spawn(|| listener.accept().unwrap().0);
        let stream = TcpStream::connect(client, at).unwrap();
        let accepted = accepting.join().unwrap();
        for stream in [&stream, &accepted] {
            stream.set_read_timeout(Some(SOON)).unwrap();
            stream.set_write_timeout(Some(SOON)).unwrap();
        }
        (stream, accepted)
    })
}

/// Bytes that tell where they belong.
fn content(length: usize) -> Vec<u8> {
    (0..length as u32)
        .map(|k| (k.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect()
}

/// Sends `length` bytes from one to the other and compares.
fn transfer(from: &TcpStream, to: &TcpStream, length: usize) {
    let sent = content(length);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut from = from;
            from.write_all(&sent).unwrap();
        });
        let mut received = vec![0; length];
        let mut to = to;
        to.read_exact(&mut received).unwrap();
        assert!(received == sent, "damaged on the way");
    });
}

fn assert_sums(stack: &Stack) {
    let end = Instant::now() + SOON;
    loop {
        let counts = stack.counts();
        if counts.received == counts.ended() + counts.queued + counts.incomplete {
            return;
        }
        assert!(Instant::now() < end, "{counts:?}");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn bulk_goes_both_ways_over_both_families() {
    let (client, server) = pair();
    for at in ["10.0.0.2:80", "[fd00::2]:80"] {
        let listener = TcpListener::bind(&server, at).unwrap();
        let (here, there) = connected(&client, &listener);
        assert_eq!(here.peer_addr().unwrap(), there.local_addr().unwrap());
        assert_eq!(there.peer_addr().unwrap(), here.local_addr().unwrap());
        transfer(&here, &there, 3_000_000);
        transfer(&there, &here, 3_000_000);
        thread::scope(|scope| {
            scope.spawn(|| transfer(&here, &there, 500_000));
            transfer(&there, &here, 500_000);
        });
    }
    assert_sums(&client);
    assert_sums(&server);
}

/// Where a loss is not noticed by what follows it, smoltcp waits a second at
/// least (RFC 6298): a few such waits are to be expected.
#[test]
fn bulk_arrives_whole_through_a_percent_of_every_fault() {
    let faults = Faults::each(Fraction::from_percent(1));
    let (client, server) = pair_with(&config(2), faults);
    let listener = TcpListener::bind(&server, "10.0.0.2:80").unwrap();
    let (here, there) = connected(&client, &listener);
    for stream in [&here, &there] {
        stream.set_read_timeout(Some(3 * SOON)).unwrap();
        stream.set_write_timeout(Some(3 * SOON)).unwrap();
    }
    transfer(&here, &there, 200_000);
    transfer(&there, &here, 200_000);
    let counts = server.counts();
    assert!(counts[Outcome::Delivered] > 100, "{counts:?}");
    assert_sums(&server);
}

/// The second was counted as one beyond the backlog, if it came before the thread had looked at the
/// first: a client sends it again where the stack's threads do not run for a second.
#[test]
fn a_syn_that_comes_twice_is_one_connections() {
    let faults = Faults {
        duplication: Fraction::from_percent(100),
        ..Faults::NONE
    };
    let (client, server) = pair_with(&config(2), faults);
    let listener = TcpListener::bind_with_backlog(&server, "10.0.0.2:80", 2).unwrap();
    for _ in 0..3 {
        let (here, there) = connected(&client, &listener);
        transfer(&here, &there, 20_000);
        transfer(&there, &here, 20_000);
    }
    assert_sums(&server);
    assert_eq!(server.counts()[Outcome::Backlog], 0);
}

#[test]
fn half_close_and_end() {
    let (client, server) = pair();
    let listener = TcpListener::bind(&server, "10.0.0.2:80").unwrap();
    let (mut here, mut there) = connected(&client, &listener);
    here.write_all(b"question").unwrap();
    here.shutdown(Shutdown::Write).unwrap();
    let mut question = String::new();
    there.read_to_string(&mut question).unwrap();
    assert_eq!(question, "question");
    let refused = here.write(b"more").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::BrokenPipe);
    // The other direction is still open.
    there.write_all(b"answer").unwrap();
    drop(there);
    let mut answer = String::new();
    here.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "answer");
    assert_eq!(here.read(&mut [0; 1]).unwrap(), 0, "the end stays the end");
}

/// What was in the buffer when the last handle of the stack went was lost, and the peer waited for
/// the end for ever.
#[test]
fn a_stack_that_goes_has_sent_what_its_streams_wrote() {
    let (client, server) = pair();
    let listener = TcpListener::bind(&server, "10.0.0.2:80").unwrap();
    let (mut here, mut there) = connected(&client, &listener);
    // More than the reader's buffer holds, and less than both.
    let sent = content(100_000);
    there.write_all(&sent).unwrap();
    thread::scope(|scope| {
        scope.spawn(move || {
            drop(there);
            drop(listener);
            drop(server);
        });
        let mut received = Vec::new();
        here.read_to_end(&mut received).unwrap();
        assert!(received == sent, "{} bytes", received.len());
    });
}

/// A thread that read went on waiting.
#[test]
fn shutting_reading_down_releases_who_reads() {
    let (client, server) = pair();
    let listener = TcpListener::bind(&server, "10.0.0.2:80").unwrap();
    for how in [Shutdown::Read, Shutdown::Both] {
        let (here, _there) = connected(&client, &listener);
        thread::scope(|scope| {
            let reading = scope.spawn(|| (&here).read(&mut [0; 9]));
            // It waits by then; if not, it finds reading shut.
            thread::sleep(NOT_LONG);
            let asked = Instant::now();
            here.shutdown(how).unwrap();
            assert_eq!(reading.join().unwrap().unwrap(), 0);
            assert!(asked.elapsed() < SOON / 2, "only its own timeout ended it");
        });
    }
}

#[test]
fn a_closed_port_refuses_at_once() {
    let (client, _server) = pair();
    let began = Instant::now();
    let error = TcpStream::connect(&client, "10.0.0.2:81").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    assert!(began.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_listener_that_goes_resets_what_it_never_accepted() {
    let (client, server) = pair();
    let listener = TcpListener::bind(&server, "10.0.0.2:80").unwrap();
    let mut waiting = TcpStream::connect(&client, "10.0.0.2:80").unwrap();
    drop(listener);
    waiting.set_read_timeout(Some(SOON)).unwrap();
    let error = waiting.read(&mut [0; 1]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    let error = TcpStream::connect(&client, "10.0.0.2:80").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
}

/// LRP-35, LRP-40: a thread of the stack acknowledges until the buffer is
/// full, although nobody receives.
#[test]
fn nobody_reads_and_the_writer_waits_not_loses() {
    let (client, server) = pair();
    let listener = TcpListener::bind(&server, "10.0.0.2:80").unwrap();
    let (here, mut there) = connected(&client, &listener);
    here.set_nonblocking(true).unwrap();
    let sent = content(1 << 20);
    let mut written = 0;
    let mut since = Instant::now();
    // Fills both buffers, until the window has been closed for a while.
    while since.elapsed() < Duration::from_millis(500) && written < sent.len() {
        match (&here).write(&sent[written..]) {
            Ok(length) => {
                written += length;
                since = Instant::now();
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                thread::sleep(Duration::from_millis(5));
            }
        }
    }
    assert!((100_000..200_000).contains(&written), "{written}");
    here.set_nonblocking(false).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| (&here).write_all(&sent[written..]).unwrap());
        let mut received = vec![0; sent.len()];
        there.read_exact(&mut received).unwrap();
        assert!(received == sent);
    });
}

#[test]
fn beyond_the_backlog_syns_end_at_the_demultiplexer_until_somebody_accepts() {
    let mut config = config(2);
    config.tcp.syn_cookies_per_s = 0;
    let (client, server) = pair_with(&config, Faults::NONE);
    let listener = TcpListener::bind_with_backlog(&server, "10.0.0.2:80", 2).unwrap();
    let _first = TcpStream::connect(&client, "10.0.0.2:80").unwrap();
    let _second = TcpStream::connect(&client, "10.0.0.2:80").unwrap();
    thread::scope(|scope| {
        // Its SYNs are discarded, and sent again.
        let third = scope.spawn(|| TcpStream::connect(&client, "10.0.0.2:80").unwrap());
        let end = Instant::now() + SOON;
        while server.counts()[Outcome::Backlog] == 0 {
            assert!(Instant::now() < end, "no SYN was discarded");
            thread::sleep(Duration::from_millis(5));
        }
        listener.accept().unwrap();
        third.join().unwrap();
    });
}

#[test]
fn time_wait_gives_the_channel_back() {
    let server = StackConfig {
        tcp: TcpConfig {
            connections_max: 3,
            ..TcpConfig::default()
        },
        ..config(2)
    };
    let (client, server) = pair_with(&server, Faults::NONE);
    let listener = TcpListener::bind(&server, "10.0.0.2:80").unwrap();
    for _ in 0..30 {
        let (mut here, there) = connected(&client, &listener);
        // The server closes first, and is the one that waits.
        drop(there);
        assert_eq!(here.read(&mut [0; 1]).unwrap(), 0);
    }
}

/// The acknowledgement of the peer's end waited for more, and went with the connection. The peer
/// sent its end again a second later.
#[test]
fn the_peers_end_is_acknowledged_at_once() {
    let (client, server) = pair();
    let listener = TcpListener::bind(&server, "10.0.0.2:80").unwrap();
    for bytes in [0, 1, 3000] {
        let (mut here, mut there) = connected(&client, &listener);
        here.shutdown(Shutdown::Write).unwrap();
        assert_eq!(there.read(&mut [0]).unwrap(), 0);
        there.write_all(&content(bytes)).unwrap();
        drop(there);
        here.read_to_end(&mut Vec::new()).unwrap();
    }
    // Longer than the shortest retransmission timeout.
    thread::sleep(Duration::from_millis(1200));
    let late = client.charged()[&Owner::TcpOther].counts[Outcome::Control];
    assert_eq!(late, 0, "ends sent again");
}

/// Long enough that a busy machine does not take it for nothing.
const NOT_LONG: Duration = Duration::from_millis(200);

#[test]
fn a_connection_that_nobody_answers_is_given_up_in_time() {
    let every = Faults {
        loss: Fraction::WHOLE,
        ..Faults::NONE
    };
    let (client, _server) = pair_with(&config(2), every);
    let began = Instant::now();
    let at = "10.0.0.2:80".parse().unwrap();
    let error = TcpStream::connect_timeout(&client, at, NOT_LONG).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(began.elapsed() >= NOT_LONG);
    // The same that connect() asks.
    let (client, server) = pair();
    let listener = TcpListener::bind(&server, "10.0.0.2:80").unwrap();
    let stream = TcpStream::connect_timeout(&client, at, SOON).unwrap();
    assert_eq!(listener.accept().unwrap().1, stream.local_addr().unwrap());
    let refused = "10.0.0.2:81".parse().unwrap();
    let error = TcpStream::connect_timeout(&client, refused, SOON).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn a_listener_waits_no_longer_than_asked() {
    let (client, server) = pair();
    let listener = TcpListener::bind(&server, "10.0.0.2:80").unwrap();
    let began = Instant::now();
    let error = listener.accept_timeout(NOT_LONG).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(began.elapsed() >= NOT_LONG);
    let stream = TcpStream::connect(&client, "10.0.0.2:80").unwrap();
    let (_, from) = listener.accept_timeout(SOON).unwrap();
    assert_eq!(from, stream.local_addr().unwrap());
}

#[test]
fn storms_of_connections_leave_nothing_behind() {
    let (client, server) = pair();
    let listener = TcpListener::bind(&server, "10.0.0.2:80").unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..200 {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = [0; 4];
                stream.read_exact(&mut request).unwrap();
                stream.write_all(&request).unwrap();
            }
        });
        for worker in 0..4 {
            let client = &client;
            scope.spawn(move || {
                for k in 0..50_u8 {
                    let mut stream = TcpStream::connect(client, "10.0.0.2:80").unwrap();
                    stream.set_read_timeout(Some(SOON)).unwrap();
                    stream.write_all(&[worker, k, 0, 1]).unwrap();
                    let mut answer = Vec::new();
                    stream.read_to_end(&mut answer).unwrap();
                    assert_eq!(answer, [worker, k, 0, 1]);
                }
            });
        }
    });
    assert_sums(&client);
    assert_sums(&server);
}

/// What the calls of a stream's owner do: reading, writing, and sending segments.
#[test]
fn a_streams_calls_allocate_nothing_per_segment() {
    let (client, server) = pair();
    let listener = TcpListener::bind(&server, "10.0.0.2:80").unwrap();
    let (one, other) = connected(&client, &listener);
    one.set_nodelay(true).unwrap();
    let mut buffer = [7; 4000];
    let mut round = || {
        (&one).write_all(&buffer).unwrap();
        (&other).read_exact(&mut buffer).unwrap();
    };
    // Queues get their capacity. On a busy machine more waits in them than before, and they
    // grow once more (two allocations in 200 rounds were seen): what is allocated per segment
    // is so each time.
    let mut allocated = || allocation_counter::measure(|| (0..200).for_each(|_| round()));
    let least = (0..10).map(|_| allocated().count_total).min();
    assert_eq!(least, Some(0));
}

/// Waits for the descriptor, as an event loop does, until the stream knows how it went.
fn finish(stream: &TcpStream) -> std::io::Result<()> {
    let end = Instant::now() + SOON;
    loop {
        match stream.finish_connect() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            result => return result,
        }
        assert!(Instant::now() < end, "neither connected nor refused");
        let mut wanted = [PollFd::new(stream.as_fd(), PollFlags::POLLIN)];
        poll(&mut wanted, PollTimeout::from(20_000_u16)).unwrap();
    }
}

/// It was a megabyte, with the keys that others must not know in it.
#[test]
fn what_a_log_shows_of_sockets_is_short_and_tells_no_secret() {
    let (client, server) = pair();
    let listener = TcpListener::bind(&server, "10.0.0.2:80").unwrap();
    let (stream, _accepted) = connected(&client, &listener);
    let socket = UdpSocket::bind(&server, "10.0.0.2:7").unwrap();
    let shown = [
        ("10.0.0.2", format!("{server:?}")),
        ("10.0.0.2:80", format!("{listener:?}")),
        ("10.0.0.2:80", format!("{stream:?}")),
        ("10.0.0.2:7", format!("{socket:?}")),
    ];
    for (address, shown) in shown {
        let start = &shown[..shown.len().min(300)];
        assert!(shown.contains(address), "{start}");
        assert!(shown.len() < 1000, "{} bytes: {start}", shown.len());
        assert!(!shown.contains("secret"), "{start}");
    }
}

/// Such an address could be listened at, and not be connected to.
#[test]
fn an_ipv4_address_that_is_written_as_ipv6_can_be_connected_to() {
    let (client, server) = pair();
    let listener = TcpListener::bind(&server, "[::ffff:10.0.0.2]:80").unwrap();
    assert_eq!(
        listener.local_addr().unwrap(),
        "10.0.0.2:80".parse().unwrap()
    );
    let stream = TcpStream::connect(&client, "[::ffff:10.0.0.2]:80").unwrap();
    let (_, from) = listener.accept_timeout(SOON).unwrap();
    assert_eq!(from, stream.local_addr().unwrap());
    assert_eq!(stream.peer_addr().unwrap(), listener.local_addr().unwrap());
}

/// What had come about by the time that the call returned was told to nobody, so an event loop waited for
/// ever.
#[test]
fn connecting_without_waiting_tells_of_what_came_about_at_once() {
    const CONNECTIONS: usize = 1000;
    let (client, server) = pair();
    let listener = TcpListener::bind(&server, "10.0.0.2:80").unwrap();
    let at = listener.local_addr().unwrap();
    for number in 0..CONNECTIONS {
        let stream = TcpStream::connect_nonblocking(&client, at).unwrap();
        let accepted = listener.accept_timeout(SOON).unwrap();
        let mut wanted = [PollFd::new(stream.as_fd(), PollFlags::POLLIN)];
        let told = poll(&mut wanted, PollTimeout::from(10_000_u16)).unwrap();
        assert_eq!(told, 1, "connection {number}");
        stream.finish_connect().unwrap();
        drop((stream, accepted));
    }
}

#[test]
fn connecting_without_waiting_tells_how_it_went() {
    let (client, server) = pair();
    let listener = TcpListener::bind(&server, "10.0.0.2:80").unwrap();
    let mut stream =
        TcpStream::connect_nonblocking(&client, listener.local_addr().unwrap()).unwrap();
    finish(&stream).unwrap();
    let (mut accepted, _) = listener.accept().unwrap();
    assert_eq!(
        stream.read(&mut [0; 4]).unwrap_err().kind(),
        ErrorKind::WouldBlock
    );
    accepted.write_all(b"hello").unwrap();
    stream.set_nonblocking(false).unwrap();
    stream.read_exact(&mut [0; 5]).unwrap();
    stream.write_all(b"hello").unwrap();
    drop(accepted);
    assert!(stream.finish_connect().is_ok(), "it was connected");

    let refused = TcpStream::connect_nonblocking(&client, "10.0.0.2:81".parse().unwrap());
    let refused = refused.and_then(|stream| finish(&stream)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn who_is_not_connected_yet_neither_reads_nor_writes() {
    let (client, _server) = pair();
    // Nobody has this address.
    let mut stream =
        TcpStream::connect_nonblocking(&client, "10.0.0.9:80".parse().unwrap()).unwrap();
    let not_yet = [
        stream.finish_connect().unwrap_err(),
        stream.read(&mut [0; 4]).unwrap_err(),
        stream.write(b"early").unwrap_err(),
    ];
    assert!(
        not_yet
            .iter()
            .all(|error| error.kind() == ErrorKind::WouldBlock),
        "{not_yet:?}"
    );
    stream.set_nonblocking(false).unwrap();
    stream
        .set_write_timeout(Some(Duration::from_millis(10)))
        .unwrap();
    let late = stream.write(b"early").unwrap_err();
    assert_eq!(
        late.kind(),
        ErrorKind::WouldBlock,
        "as in the standard library"
    );
}
