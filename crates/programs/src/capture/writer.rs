//! The writing thread: segments to files, a new file when one is full, and what is to be
//! done when the disk takes no more.
//!
//! A file is whole at every time but while a segment is being written. A segment that the
//! disk takes only in part is cut off again, its packets are lost and counted, and the
//! counts are written where they still fit, if need be in the place of the segment before.
//! Then the disk is tried again now and then: somebody may make room. A ring whose number of
//! files is bounded makes room itself, by removing its oldest files. Those of earlier captures
//! under the same name are among them. Nothing can be cut off a
//! pipe or standard output again: there the first failure ends the capture.

mod names;

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use plimsoll_kernel::error::is_disk_full;

use super::config::RING_FILE_BYTES_MIN;
use super::pcapng::{Encoder, Standing};
use super::queue::{Content, Drainer, SEGMENT_BYTES, Segment};
use super::{CaptureConfig, Error, Output, RingFiles, failed_to};

/// Room for a file's last statement.
const CLOSING_BYTES: u64 = 2048;
/// A disk that took nothing is tried again after this time.
const RETRY: Duration = Duration::from_millis(200);
const IDLE: Duration = Duration::from_millis(500);

/// What was written.
#[derive(Debug)]
pub(super) struct Written {
    /// Those that are there still.
    pub(super) files: Vec<PathBuf>,
    pub(super) bytes: u64,
    pub(super) failure: Option<io::Error>,
    /// The last standing, with what the disk did not take.
    pub(super) standing: Option<Standing>,
}

/// Writes until the capture ends.
pub(super) struct Writer {
    drainer: Drainer,
    encoder: Encoder,
    preamble: Vec<u8>,
    output: Output,
    ring: RingFiles,
    began: Duration,
    /// The oldest first.
    files: VecDeque<PathBuf>,
    /// So many of them are of earlier captures.
    earlier: usize,
    /// That of the newest ring file.
    number: usize,
    open: OpenFile,
    written: Written,
    failed_at: Option<Instant>,
}

struct OpenFile {
    sink: Sink,
    since: Instant,
    /// Whole blocks.
    bytes: u64,
    /// Where the last segment begins, and what is in it.
    last: (u64, Content),
    /// Nothing but the counts stands from here on, since the disk took no more.
    closing_at: Option<u64>,
}

enum Sink {
    File(File),
    /// A pipe, or standard output, whose file may have a beginning by somebody else: nothing is
    /// cut off again.
    Stream(File),
}

impl Sink {
    fn standard() -> Result<Self, Error> {
        let output = io::stdout().as_fd().try_clone_to_owned();
        let output = output.map_err(failed_to("open standard output"))?;
        Ok(Self::Stream(output.into()))
    }

    fn create(path: &Path) -> io::Result<Self> {
        let file = File::create(path)?;
        Ok(match file.metadata()?.is_file() {
            true => Self::File(file),
            false => Self::Stream(file),
        })
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::File(file) => file.write_all(bytes),
            Self::Stream(output) => write_waiting(output, bytes),
        }
    }

    /// Forgets what stands behind `bytes`.
    fn cut(&mut self, bytes: u64) {
        if let Self::File(file) = self {
            // If it fails the file ends in half a block, which readers tell.
            let _ = file.set_len(bytes);
            let _ = file.seek(SeekFrom::Start(bytes));
        }
    }
}

/// As `write_all`, also where whoever made the pipe asked that it does not block.
fn write_waiting(output: &mut File, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match output.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let mut writable = [PollFd::new(output.as_fd(), PollFlags::POLLOUT)];
                match poll(&mut writable, PollTimeout::NONE) {
                    Ok(_) | Err(Errno::EINTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// How long segments may be, so that ring files come near their size.
pub(super) fn segment_bytes(ring: &RingFiles) -> usize {
    let part = ring.bytes.map_or(u64::MAX, |bytes| bytes / 4);
    SEGMENT_BYTES.min(usize::try_from(part).unwrap_or(usize::MAX))
}
const _: () = assert!(RING_FILE_BYTES_MIN / 4 > CLOSING_BYTES);

impl Writer {
    /// Makes the first file.
    pub(super) fn open(
        config: &CaptureConfig,
        drainer: Drainer,
        (encoder, preamble): (Encoder, Vec<u8>),
        began: Duration,
    ) -> Result<Self, Error> {
        let mut writer = Self {
            drainer,
            encoder,
            preamble,
            output: config.output.clone(),
            ring: config.ring,
            began,
            files: VecDeque::new(),
            earlier: 0,
            number: 0,
            open: OpenFile::new(Sink::standard()?),
            written: Written {
                files: Vec::new(),
                bytes: 0,
                failure: None,
                standing: None,
            },
            failed_at: None,
        };
        let (path, open) = writer.begin_file()?;
        writer.take_over();
        writer.go_on_in(path, open);
        writer.keep_newest(writer.ring.files.unwrap_or(usize::MAX));
        Ok(writer)
    }

    /// The files of earlier captures count as well, where their number is bounded.
    fn take_over(&mut self) {
        if let (Output::File(path), true) = (&self.output, self.ring.files.is_some()) {
            self.files = names::earlier(path);
            self.earlier = self.files.len();
        }
    }

    /// Makes the next file, with what every file begins with. If the disk does not take
    /// that, a ring has no such file.
    fn begin_file(&mut self) -> Result<(Option<PathBuf>, OpenFile), Error> {
        let number = self.number;
        let (path, sink) = self.next_sink()?;
        let mut open = OpenFile::new(sink);
        if let Err(source) = open.append(&self.preamble, Content::default()) {
            if self.ring.is_ring() {
                // If it stays it is empty, which readers tell.
                let _ = path.as_ref().map(fs::remove_file);
                self.number = number;
            }
            return Err(Error::Write {
                what: name(path.as_deref()),
                source,
                packets: 0,
            });
        }
        Ok((path, open))
    }

    /// The path is `None` for standard output.
    fn next_sink(&mut self) -> Result<(Option<PathBuf>, Sink), Error> {
        let path = match &self.output {
            Output::Standard => return Ok((None, Sink::standard()?)),
            Output::File(path) => path,
        };
        let created = match self.ring.is_ring() {
            true => names::create(path, self.began.as_secs(), &mut self.number)
                .map(|(path, file)| (path, Sink::File(file))),
            false => Sink::create(path).map(|sink| (path.clone(), sink)),
        };
        let (path, sink) = created.map_err(|source| Error::Create {
            path: path.clone(),
            source,
        })?;
        Ok((Some(path), sink))
    }

    /// The file at hand is this one from now on.
    fn go_on_in(&mut self, path: Option<PathBuf>, open: OpenFile) {
        self.files.extend(path);
        self.written.bytes += open.bytes;
        self.open = open;
    }

    /// Removes the oldest files, as far as that is possible.
    fn keep_newest(&mut self, files: usize) {
        while self.files.len() > files && self.remove_oldest().is_some() {}
    }

    /// Removes the oldest file that can be removed, but not the one at hand, and tells its
    /// bytes. Those that cannot be removed still count.
    fn remove_oldest(&mut self) -> Option<u64> {
        let older = self.files.len().saturating_sub(1);
        let may_go = |at: &usize| *at >= self.earlier || !names::is_in_use(&self.files[*at]);
        let remove = |at| Some((at, removed(&self.files[at])?));
        let (at, bytes) = (0..older).filter(may_go).find_map(remove)?;
        self.files.remove(at);
        self.earlier -= usize::from(at < self.earlier);
        Some(bytes)
    }

    /// While the disk is full, a ring's oldest files make room, until it is enough. If they
    /// had twice as much as is needed and the disk is still full, more would not help.
    fn with_room<T>(
        &mut self,
        needed: u64,
        mut work: impl FnMut(&mut Self) -> io::Result<T>,
    ) -> io::Result<T> {
        let mut freed = 0;
        loop {
            let error = match work(self) {
                Err(error) if is_disk_full(&error) && self.ring.files.is_some() => error,
                result => return result,
            };
            if freed > 2 * needed {
                return Err(error);
            }
            match self.remove_oldest() {
                Some(bytes) => freed += bytes,
                None => return Err(error),
            }
        }
    }

    /// To the file at hand.
    fn append(&mut self, bytes: &[u8], content: Content) -> io::Result<()> {
        self.with_room(bytes.len() as u64, |writer| {
            writer.open.append(bytes, content)
        })
    }

    /// The name of the file at hand.
    pub(super) fn name(&self) -> String {
        name(self.files.back().map(PathBuf::as_path))
    }

    /// Writes until the capture ends. Where a stream takes no more it has the capture end, and
    /// counts what is on its way as lost.
    pub(super) fn run(mut self) -> Written {
        loop {
            match self.drainer.next(IDLE) {
                Ok(segment) => self.take(segment),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        if let Some(standing) = self.written.standing {
            let whole = self.whole(standing);
            self.written.standing = Some(whole);
            if !self.drainer.is_over() {
                self.state(&whole, "end");
            }
            // Counts that took the last packets' place have changed themselves.
            self.written.standing = Some(self.whole(whole));
        }
        self.written.files = self.files.split_off(self.earlier).into();
        self.written
    }

    /// The standing with what the disk has not taken until now.
    fn whole(&self, standing: Standing) -> Standing {
        Standing {
            counts: standing.counts.with_disk(self.drainer.disk()),
            ..standing
        }
    }

    fn take(&mut self, segment: Segment) {
        let waiting = self.failed_at.is_some_and(|at| at.elapsed() < RETRY);
        let result = match waiting || self.drainer.is_over() {
            true => None,
            false => Some(self.write(&segment)),
        };
        self.written.standing = Some(segment.standing);
        match result {
            Some(Ok(())) => {
                self.written.bytes += segment.bytes.len() as u64;
                self.failed_at = None;
            }
            Some(Err(error)) if self.open.is_stream() => {
                self.drainer.lose(segment.content);
                self.end_by(error);
            }
            Some(Err(error)) => {
                self.drainer.lose(segment.content);
                self.failed_at = Some(Instant::now());
                let why = format!("the disk took no more ({error})");
                self.written.failure.get_or_insert(error);
                self.state(&self.whole(segment.standing), &why);
            }
            None => self.drainer.lose(segment.content),
        }
        self.drainer.give_back(segment.bytes);
    }

    /// A stream took part of something and no more: whatever followed would be damaged.
    fn end_by(&mut self, error: io::Error) {
        if error.kind() != io::ErrorKind::BrokenPipe {
            self.written.failure.get_or_insert(error);
        }
        self.drainer.end();
    }

    fn is_full(&self, more: u64) -> bool {
        let long = |max| self.open.bytes + more + CLOSING_BYTES > max;
        let old = |max| self.open.since.elapsed() >= max;
        self.ring.bytes.is_some_and(long) || self.ring.time.is_some_and(old)
    }

    /// To the file at hand, or to the next one if that is full.
    fn write(&mut self, segment: &Segment) -> io::Result<()> {
        if self.is_full(segment.bytes.len() as u64) {
            self.next_file()?;
        }
        self.append(&segment.bytes, segment.content)
    }

    /// Until there is a next file, the one at hand stays.
    fn next_file(&mut self) -> io::Result<()> {
        let needed = self.preamble.len() as u64;
        let (path, open) = self.with_room(needed, |writer| {
            writer.begin_file().map_err(|error| match error {
                Error::Create { source, .. } | Error::Write { source, .. } => source,
                other => io::Error::other(other),
            })
        })?;
        let most = self.ring.files.unwrap_or(usize::MAX);
        // Before the file at hand ends, which may need the room.
        self.keep_newest((most - 1).max(1));
        self.failed_at = None;
        if let Some(standing) = self.written.standing {
            // If it does not fit, no packets go for it: the next file begins with it.
            let _ = self.state_behind(&self.whole(standing), "the next file goes on");
        }
        self.go_on_in(path, open);
        self.keep_newest(most);
        if let Some(standing) = self.written.standing {
            self.state(&self.whole(standing), "as the file before ends");
        }
        Ok(())
    }

    /// Writes the counts, if need be in the place of the last packets.
    fn state(&mut self, standing: &Standing, why: &str) {
        let Err(error) = self.state_behind(standing, why) else {
            return;
        };
        if self.open.is_stream() {
            return self.end_by(error);
        }
        let (last, content) = self.open.last;
        if content.packets == 0 {
            return;
        }
        self.open.cut(last);
        self.drainer.lose(content);
        self.encoder.statistics(&self.whole(*standing), why);
        let statement = self.encoder.swap(Vec::new());
        if self.open.append(&statement, Content::default()).is_ok() {
            self.open.closing_at = Some(last);
        }
    }

    /// Writes the counts behind the last packets. Fails where they do not fit.
    fn state_behind(&mut self, standing: &Standing, why: &str) -> io::Result<()> {
        self.encoder.statistics(standing, why);
        let statement = self.encoder.swap(Vec::new());
        if let Some(at) = self.open.closing_at.take() {
            self.open.cut(at);
        }
        let at = self.open.bytes;
        self.append(&statement, Content::default())?;
        self.written.bytes += statement.len() as u64;
        self.open.closing_at = self.failed_at.map(|_| at);
        Ok(())
    }
}

impl OpenFile {
    fn new(sink: Sink) -> Self {
        Self {
            sink,
            since: Instant::now(),
            bytes: 0,
            last: (0, Content::default()),
            closing_at: None,
        }
    }

    fn is_stream(&self) -> bool {
        matches!(self.sink, Sink::Stream(_))
    }

    /// Writes whole blocks, or nothing, unless it is a stream.
    fn append(&mut self, bytes: &[u8], content: Content) -> io::Result<()> {
        let at = self.bytes;
        if let Err(error) = self.sink.write(bytes) {
            self.sink.cut(at);
            return Err(error);
        }
        self.bytes += bytes.len() as u64;
        if content.packets > 0 {
            self.last = (at, content);
        }
        self.closing_at = None;
        Ok(())
    }

    fn cut(&mut self, at: u64) {
        self.sink.cut(at);
        self.bytes = at;
        if self.last.0 >= at {
            self.last = (at, Content::default());
        }
    }
}

/// Removes a file and tells its bytes.
fn removed(path: &Path) -> Option<u64> {
    let bytes = fs::metadata(path).map_or(0, |file| file.len());
    match fs::remove_file(path) {
        // The operator may have removed it already.
        Err(error) if error.kind() != io::ErrorKind::NotFound => None,
        _ => Some(bytes),
    }
}

fn name(path: Option<&Path>) -> String {
    path.map_or_else(
        || "standard output".to_owned(),
        |path| path.display().to_string(),
    )
}

#[cfg(test)]
mod tests;
