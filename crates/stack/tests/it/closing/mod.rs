//! Connections between the stack and the kernel, begun and ended by either side, and closed windows
//! of either: over a link as it is (`ends`) and over one with faults (`faulty_kernel`).

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use nix::sys::socket::{setsockopt, sockopt::SndBuf};
use plimsoll_stack::{Stack, TcpListener as StackListener, TcpStream as StackStream};

use crate::lan::{self, content, transfer};

/// What goes the other way when one is closed.
const HALF_BYTES: usize = 100_000;
/// How long a writer is blocked before it is looked whether the window is closed.
const BLOCKED: Duration = Duration::from_millis(100);
/// Bytes that the kernel keeps beyond the window, so that little fills it.
const KEPT_BYTES: usize = 32 << 10;

/// Who does something first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Kernel,
    Stack,
}

pub(crate) const SIDES: [Side; 2] = [Side::Kernel, Side::Stack];

/// A listener on each side of one link.
pub(crate) struct Between<'a> {
    stack: &'a Stack,
    ours: StackListener,
    kernels: TcpListener,
    link: Link,
}

/// What becomes of frames, and so how long a test waits for what must come.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Link {
    Whole,
    /// Some get lost. A loss that nothing behind it shows costs a sender a second and more,
    /// several times.
    Faulty,
}

impl Link {
    const fn soon(self) -> Duration {
        match self {
            Self::Whole => lan::SOON,
            Self::Faulty => Duration::from_secs(60),
        }
    }
}

impl<'a> Between<'a> {
    pub(crate) fn new(stack: &'a Stack, link: Link) -> Self {
        Self {
            stack,
            ours: StackListener::bind(stack, "10.0.0.2:80").unwrap(),
            kernels: TcpListener::bind("10.0.0.1:81").unwrap(),
            link,
        }
    }

    /// The kernel's end and the stack's of a new connection.
    fn begin(&self, by: Side) -> (TcpStream, StackStream) {
        let soon = Some(self.link.soon());
        let (kernels, ours) = match by {
            Side::Kernel => {
                let kernels = TcpStream::connect(self.ours.local_addr().unwrap()).unwrap();
                let accepted = self.ours.accept_timeout(self.link.soon());
                (kernels, accepted.unwrap().0)
            }
            Side::Stack => {
                let to = self.kernels.local_addr().unwrap();
                let ours = StackStream::connect(self.stack, to).unwrap();
                (self.kernels.accept().unwrap().0, ours)
            }
        };
        kernels.set_read_timeout(soon).unwrap();
        kernels.set_write_timeout(soon).unwrap();
        ours.set_read_timeout(soon).unwrap();
        ours.set_write_timeout(soon).unwrap();
        (kernels, ours)
    }

    /// Whoever has ended writing still reads.
    pub(crate) fn half_closes(&self) {
        let sent = content(HALF_BYTES);
        for by in SIDES {
            let (mut kernels, mut ours) = self.begin(by);
            kernels.shutdown(Shutdown::Write).unwrap();
            assert_eq!(ours.read(&mut [0; 9]).unwrap(), 0, "begun by {by:?}");
            transfer(&mut ours, &mut kernels, &sent);
            let (mut kernels, mut ours) = self.begin(by);
            ours.shutdown(Shutdown::Write).unwrap();
            assert_eq!(kernels.read(&mut [0; 9]).unwrap(), 0, "begun by {by:?}");
            transfer(&mut kernels, &mut ours, &sent);
        }
    }

    /// Nobody reads until the window is closed; nothing is lost.
    pub(crate) fn closed_windows(&self) {
        let (mut kernels, mut ours) = self.begin(Side::Kernel);
        kernels.set_write_timeout(Some(BLOCKED)).unwrap();
        setsockopt(&kernels, SndBuf, &KEPT_BYTES).unwrap();
        let before = of_kernels_tcp("TCPWinProbe");
        let probes = || of_kernels_tcp("TCPWinProbe") > before;
        fill_and_read(&mut kernels, &mut ours, self.link, probes);

        let (mut kernels, mut ours) = self.begin(Side::Stack);
        ours.set_write_timeout(Some(BLOCKED)).unwrap();
        let before = of_kernels_tcp("TCPToZeroWindowAdv");
        let closes = || of_kernels_tcp("TCPToZeroWindowAdv") > before;
        fill_and_read(&mut ours, &mut kernels, self.link, closes);
    }

    /// Connections that end by force, whoever began them, are over for the other side as well.
    pub(crate) fn resets(self) {
        for by in SIDES {
            // The kernel closes with data unread.
            let (kernels, mut ours) = self.begin(by);
            ours.write_all(b"unread").unwrap();
            kernels.peek(&mut [0; 6]).unwrap();
            drop(kernels);
            ours.set_read_timeout(Some(self.patience())).unwrap();
            await_reset(&mut ours, self.link);
            // Nobody at the stack will read what the kernel still sends.
            let (mut kernels, ours) = self.begin(by);
            drop(ours);
            let end = Instant::now() + self.link.soon();
            let refused = loop {
                match kernels.write(b"more") {
                    Ok(_) => std::thread::sleep(Duration::from_millis(1)),
                    Err(error) => break error,
                }
                assert!(Instant::now() < end, "begun by {by:?}: nothing refuses it");
            };
            // What comes before the stack's end does is refused as well.
            let is_refused = match self.link {
                Link::Faulty => &[ErrorKind::BrokenPipe, ErrorKind::ConnectionReset][..],
                Link::Whole => &[ErrorKind::BrokenPipe],
            };
            assert!(
                is_refused.contains(&refused.kind()),
                "begun by {by:?}: {refused}"
            );
        }
        // Nobody at the stack has accepted it, or will.
        let mut kernels = TcpStream::connect(self.ours.local_addr().unwrap()).unwrap();
        kernels.set_read_timeout(Some(self.patience())).unwrap();
        drop(self.ours);
        await_reset(&mut kernels, self.link);
    }

    /// How long a reset is waited for before it is asked for again.
    fn patience(&self) -> Duration {
        match self.link {
            Link::Whole => self.link.soon(),
            Link::Faulty => Duration::from_millis(100),
        }
    }

    /// Connections that one side begins come and go, each with a byte for the other one. By turns
    /// either side ends first.
    pub(crate) fn storm(&self, by: Side, connections: u8) {
        for number in 0..connections {
            let (mut kernels, mut ours) = self.begin(by);
            let mut byte = [0];
            match by {
                Side::Kernel => {
                    kernels.write_all(&[number]).unwrap();
                    ours.read_exact(&mut byte).unwrap();
                }
                Side::Stack => {
                    ours.write_all(&[number]).unwrap();
                    kernels.read_exact(&mut byte).unwrap();
                }
            }
            assert_eq!(byte, [number], "begun by {by:?}");
            match number % 2 {
                0 => (drop(kernels), drop(ours)),
                _ => (drop(ours), drop(kernels)),
            };
        }
    }
}

/// Writes until the window `is_closed`, then reads all that.
fn fill_and_read(
    from: &mut impl Write,
    to: &mut impl Read,
    link: Link,
    is_closed: impl Fn() -> bool,
) {
    let (sent, end) = (content(2 << 20), Instant::now() + link.soon());
    let mut written = 0;
    loop {
        let some = &sent[written..sent.len().min(written + 4096)];
        assert!(!some.is_empty(), "nobody reads, and the window stays open");
        match from.write(some) {
            Ok(length) => written += length,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                if is_closed() {
                    break;
                }
                assert!(Instant::now() < end, "{written} bytes close no window");
            }
        }
    }
    let mut received = vec![0; written];
    to.read_exact(&mut received).unwrap();
    assert!(received == sent[..written], "damaged behind a window");
}

/// Reads until a reset has come. Where it may get lost, a byte asks for another one.
fn await_reset(at: &mut (impl Read + Write), link: Link) {
    let end = Instant::now() + link.soon();
    loop {
        let error = at.read(&mut [0; 9]).expect_err("nothing is sent any more");
        if error.kind() == ErrorKind::ConnectionReset {
            return;
        }
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        let may_ask = matches!(link, Link::Faulty) && Instant::now() < end;
        assert!(may_ask, "no reset has come");
        // It may have come meanwhile.
        if let Err(error) = at.write(b"?")
            && error.kind() == ErrorKind::ConnectionReset
        {
            return;
        }
    }
}

/// What the kernel counts in this thread's network namespace.
fn of_kernels_tcp(name: &str) -> u64 {
    let counters = fs::read_to_string("/proc/thread-self/net/netstat").unwrap();
    let mut lines = counters.lines().filter(|line| line.starts_with("TcpExt:"));
    let [names, values] = [(); 2].map(|()| lines.next().unwrap().split_whitespace());
    let (_, value) = names.zip(values).find(|(one, _)| *one == name).unwrap();
    value.parse().unwrap()
}
