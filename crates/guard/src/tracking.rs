//! Whether the program can ask the kernel's connection tracking.
//!
//! The kernel binds a program to connection tracking's functions when it is loaded. Where that is a
//! module, it comes with the first rule that wants it: that of a container engine, say, which starts
//! after the guard. Nor is the program bound where the module does not describe its types, or its
//! loader may not read them (it takes `CAP_SYS_ADMIN`). Then the program asks nobody, until the next
//! start. The program itself tells: what files of the host promise is not what it got. A packet that is
//! translated looks like one for a socket of this host that has its port. So no socket is guarded then.

/// What is known of that.
#[derive(Debug)]
pub(crate) struct Tracking {
    is_asked: bool,
    is_missed: bool,
}

impl Tracking {
    /// Of a loaded program, which asks or not.
    pub(crate) const fn of(is_asked: bool) -> Self {
        Self {
            is_asked,
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
        let mut late = Tracking::of(false);
        let seen = [false, true, false].map(|translates| late.is_missed(|| translates));
        assert_eq!(seen, [false, true, true]);
        let mut there = Tracking::of(true);
        assert!(!there.is_missed(|| unreachable!("it is not asked for any more")));
    }
}
