//! What a process tells its keeper while settings are turned: that it still gets on.
//!
//! A process that hangs (it was stopped, or waits for a disk) turns nothing back: a holdoff that
//! overload wanted would hold up the packets of a calm host for as long. So the keeper puts back
//! the settings of one that was not heard of for [`LIMIT`], and says so. The record stays: it is
//! its owner's, who may go on at any time. Then it hears of it with its next
//! [beat](super::Knobs::beat), and turns anew what it wants turned. Whatever it did in between,
//! it is the last to write.

use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, recv, send};

/// Whoever is not heard of for so long, hangs.
pub(super) const LIMIT: Duration = Duration::from_secs(2);
/// How often it is heard of.
const INTERVAL: Duration = Duration::from_millis(250);
/// Longer than the keeper takes to put settings back.
const PATIENCE: Duration = Duration::from_secs(2);

/// What is told: something is turned, and its owner gets on …
pub(super) const BEAT: u8 = 2;
/// … or nothing is turned, and nothing more is told.
pub(super) const REST: u8 = 3;
/// What the keeper says before it puts settings back, and after.
pub(super) const RELIEVING: u8 = 2;
pub(super) const RELIEVED: u8 = 3;

/// Tells the keeper that this process gets on.
#[derive(Debug)]
pub struct Heartbeat {
    /// The keeper's own descriptor: a second one would end before the lock does, and the keeper
    /// take that for the guard's end.
    line: Arc<UnixStream>,
    last: u8,
    told: Instant,
    was_relieved: bool,
}

impl Heartbeat {
    pub(super) fn new(line: Arc<UnixStream>) -> Self {
        Self {
            line,
            last: REST,
            told: Instant::now(),
            was_relieved: false,
        }
    }

    /// Tells whether something is turned. True if the keeper has put it back since this was last
    /// called.
    pub(super) fn beat(&mut self, are_turned: bool) -> bool {
        self.listen();
        self.tell(are_turned);
        std::mem::take(&mut self.was_relieved)
    }

    /// Tells the keeper, if it does not know or is to hear that this process gets on.
    pub(super) fn tell(&mut self, are_turned: bool) {
        let word = match are_turned {
            true => BEAT,
            false => REST,
        };
        let is_due = word == BEAT && self.told.elapsed() >= INTERVAL;
        // Where the keeper is gone, or does not read, nobody is told.
        if (word != self.last || is_due) && say(&self.line, word).is_ok() {
            (self.last, self.told) = (word, Instant::now());
        }
    }

    fn listen(&mut self) {
        let mut said = [0];
        while let Ok(1) = recv(self.line.as_raw_fd(), &mut said, quietly()) {
            self.was_relieved = true;
            if said == [RELIEVING] {
                self.wait();
            }
        }
    }

    /// Until the keeper has said more, or is gone.
    fn wait(&self) {
        let mut wanted = [PollFd::new(self.line.as_fd(), PollFlags::POLLIN)];
        let patience = PollTimeout::try_from(PATIENCE).unwrap_or(PollTimeout::MAX);
        let _ = poll(&mut wanted, patience);
    }
}

/// What the keeper knows of a guard that lives.
#[derive(Default)]
pub(super) struct Owner {
    /// When it was last heard of, if it has turned anything.
    heard: Option<Instant>,
    is_relieved: bool,
    /// The kernel refused to put something back.
    pub(super) is_refused: bool,
}

impl Owner {
    /// How long it may be silent yet, if that matters.
    pub(super) fn patience(&self) -> Option<Duration> {
        let heard = self.heard.filter(|_| !self.is_relieved)?;
        // Rounded up: whoever waits for so long then finds that it hangs.
        Some(LIMIT.saturating_sub(heard.elapsed()) + Duration::from_millis(1))
    }

    pub(super) fn hangs(&self) -> bool {
        let silence = self.heard.map(|heard| heard.elapsed());
        !self.is_relieved && silence.is_some_and(|silence| silence >= LIMIT)
    }

    /// What did not succeed is tried again after as long a silence.
    pub(super) fn on_relief(&mut self, relieved: bool) {
        self.is_relieved = relieved;
        self.is_refused = !relieved;
        self.heard = Some(Instant::now());
    }

    /// Whether it goes on now, after it hung.
    pub(super) fn on_word(&mut self, word: u8) -> bool {
        self.heard = (word == BEAT).then(Instant::now);
        self.is_refused = false;
        std::mem::take(&mut self.is_relieved)
    }
}

/// Says a word on the line to the keeper, whether or not anybody reads it.
pub(super) fn say(line: &UnixStream, word: u8) -> nix::Result<usize> {
    send(line.as_raw_fd(), &[word], quietly())
}

/// The same from the keeper. Who hangs may have no room for more words, and has heard enough.
///
/// # Errors
///
/// It is gone.
pub(super) fn say_to_guard(line: &UnixStream, word: u8) -> nix::Result<()> {
    match say(line, word) {
        Ok(_) | Err(Errno::EAGAIN) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Without waiting, and without a signal where nobody listens.
fn quietly() -> MsgFlags {
    MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// What the keeper heard.
    fn heard(keeper: &UnixStream) -> Vec<u8> {
        let mut words = vec![0; 16];
        let length = recv(keeper.as_raw_fd(), &mut words, quietly()).unwrap_or(0);
        words.truncate(length);
        words
    }

    #[test]
    fn the_keeper_hears_of_what_is_turned_now_and_then_and_once_of_what_is_back() {
        let (mut keeper, line) = UnixStream::pair().unwrap();
        let mut heartbeat = Heartbeat::new(Arc::new(line));
        assert!(!heartbeat.beat(false));
        assert!(heard(&keeper).is_empty(), "nothing was turned yet");
        for _ in 0..3 {
            assert!(!heartbeat.beat(true));
        }
        assert_eq!(heard(&keeper), [BEAT]);
        heartbeat.told -= INTERVAL;
        assert!(!heartbeat.beat(true));
        assert!(!heartbeat.beat(false));
        assert!(!heartbeat.beat(false));
        assert_eq!(heard(&keeper), [BEAT, REST]);
        assert!(!heartbeat.beat(true));
        keeper.write_all(&[RELIEVING, RELIEVED]).unwrap();
        // What is turned meanwhile does not hide it.
        heartbeat.tell(true);
        assert!(heartbeat.beat(true), "the keeper has put it back");
        assert_eq!(heard(&keeper), [BEAT]);
        assert!(!heartbeat.beat(false));
        assert_eq!(heard(&keeper), [REST]);
    }

    #[test]
    fn whoever_goes_on_waits_until_all_is_back() {
        let (mut keeper, line) = UnixStream::pair().unwrap();
        let mut heartbeat = Heartbeat::new(Arc::new(line));
        keeper.write_all(&[RELIEVING]).unwrap();
        let restoring = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            let last = Instant::now();
            keeper.write_all(&[RELIEVED]).unwrap();
            last
        });
        assert!(heartbeat.beat(true));
        let heard = Instant::now();
        assert!(restoring.join().unwrap() <= heard);
        assert!(!heartbeat.beat(true), "without a keeper nobody restores");
    }

    /// The guard's end once waited for a keeper that was stopped.
    #[test]
    fn a_keeper_that_does_not_listen_holds_nobody_up() {
        let (keeper, line) = UnixStream::pair().unwrap();
        while say(&line, BEAT).is_ok() {}
        let mut heartbeat = Heartbeat::new(Arc::new(line));
        assert!(!heartbeat.beat(true));
        assert_eq!(heartbeat.last, REST, "it is told later");
        // Nor does a guard that hangs for hours, and is told again and again.
        say_to_guard(&heartbeat.line, RELIEVING).unwrap();
        drop(keeper);
        // A command that another test starts has a copy of it until it executes.
        let end = Instant::now() + Duration::from_secs(10);
        while say_to_guard(&heartbeat.line, RELIEVING).is_ok() {
            assert!(Instant::now() < end, "it is gone");
            std::thread::yield_now();
        }
    }

    #[test]
    fn who_hangs_is_relieved_once_and_tried_again_after_a_refusal() {
        let long_ago = || Some(Instant::now() - LIMIT);
        let mut owner = Owner::default();
        assert!(
            !owner.hangs() && owner.patience().is_none(),
            "never heard of"
        );
        owner.on_word(BEAT);
        assert!(!owner.hangs() && owner.patience().is_some());
        owner.heard = long_ago();
        assert!(owner.hangs());
        owner.on_relief(false);
        assert!(!owner.hangs() && owner.patience().is_some(), "not at once");
        owner.heard = long_ago();
        assert!(owner.hangs());
        owner.on_relief(true);
        owner.heard = long_ago();
        assert!(!owner.hangs() && owner.patience().is_none());
        assert!(owner.on_word(BEAT), "it goes on");
        assert!(!owner.on_word(REST), "and is told once");
        assert!(owner.patience().is_none(), "nothing is turned");
    }

    /// Who hangs for hours would else be told of each attempt, and one that is refused anew of none.
    #[test]
    fn a_refusal_is_told_once_until_the_guard_goes_on() {
        let mut owner = Owner::default();
        for _ in 0..2 {
            assert!(!owner.is_refused);
            owner.on_relief(false);
            assert!(owner.is_refused);
            owner.on_word(BEAT);
        }
        owner.on_relief(false);
        owner.on_relief(true);
        assert!(!owner.is_refused, "settings are back");
    }
}
