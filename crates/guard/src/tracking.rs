//! Whether the program can ask the kernel's connection tracking.
//!
//! The kernel binds a program to connection tracking's functions when it is loaded. Where that is a
//! module, it comes with the first rule that wants it: that of a container engine, say, which starts
//! after the guard. Then the program asks nobody, until the next start. A packet that is translated
//! looks like one for a socket of this host that has its port. So no socket is guarded then.

/// What is known of that.
#[derive(Debug)]
pub(crate) struct Tracking {
    is_asked: bool,
    is_missed: bool,
}

impl Tracking {
    /// Of a program that is loaded now, with or without connection tracking in the kernel.
    pub(crate) const fn at_load(is_there: bool) -> Self {
        Self {
            is_asked: is_there,
            is_missed: false,
        }
    }

    /// Whether packets may be translated of which the program cannot ask. Once it is so, it stays so:
    /// connections may come back that nobody has heard of for a while.
    pub(crate) fn is_missed(&mut self, translates: impl FnOnce() -> bool) -> bool {
        self.is_missed |= !self.is_asked && translates();
        self.is_missed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_translates_and_was_not_there_is_missed_from_then_on() {
        let mut late = Tracking::at_load(false);
        let seen = [false, true, false].map(|translates| late.is_missed(|| translates));
        assert_eq!(seen, [false, true, true]);
        let mut there = Tracking::at_load(true);
        assert!(!there.is_missed(|| unreachable!("it is not asked for any more")));
    }
}
