//! Whether the program can ask the kernel's connection tracking.
//!
//! The kernel binds a program to connection tracking's functions when it is loaded. Where that is a
//! module, it comes with the first rule that wants it: that of a container engine, say, which starts
//! after the guard. Then the program asks nobody, until the next start.

/// What is known of that.
#[derive(Debug)]
pub(crate) struct Tracking {
    /// It can be asked, or it was told that it cannot.
    is_settled: bool,
}

impl Tracking {
    /// Of a program that is loaded now, with or without connection tracking in the kernel.
    pub(crate) const fn at_load(is_there: bool) -> Self {
        Self {
            is_settled: is_there,
        }
    }

    /// Whether it `tracks` connections now, and cannot be asked. True once.
    pub(crate) fn is_missed(&mut self, tracks: impl FnOnce() -> bool) -> bool {
        let is_missed = !self.is_settled && tracks();
        self.is_settled |= is_missed;
        is_missed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_tracks_and_was_not_there_is_missed_once() {
        let mut late = Tracking::at_load(false);
        let seen = [false, true, true, false, true].map(|tracks| late.is_missed(|| tracks));
        assert_eq!(seen, [false, true, false, false, false]);
        let mut there = Tracking::at_load(true);
        assert!(!there.is_missed(|| unreachable!("it is not asked for any more")));
    }
}
