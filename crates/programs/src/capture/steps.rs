//! The changes of what is kept: the first and the last of them, however long a capture runs.

use std::collections::VecDeque;

use super::Step;

/// So many of the first, and so many of the last.
const STEPS: usize = 1000;

#[derive(Debug, Default)]
pub(super) struct Steps {
    first: Vec<Step>,
    last: VecDeque<Step>,
    left_out: u64,
}

impl Steps {
    pub(super) fn push(&mut self, step: Step) {
        if self.first.len() < STEPS {
            return self.first.push(step);
        }
        if self.last.len() == STEPS {
            self.last.pop_front();
            self.left_out += 1;
        }
        self.last.push_back(step);
    }

    /// All that stayed, and how many between them did not.
    pub(super) fn into_parts(mut self) -> (Vec<Step>, u64) {
        self.first.extend(self.last);
        (self.first, self.left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_and_the_last_stay() {
        for (pushed, left_out) in [(0, 0), (2000, 0), (2001, 1), (5000, 3000)] {
            let mut steps = Steps::default();
            for number in 0..pushed {
                steps.push(Step {
                    seconds: 0.0,
                    keeps: String::new(),
                    why: String::new(),
                    one_in: 1,
                    received: number,
                });
            }
            let (steps, out) = steps.into_parts();
            assert_eq!((steps.len() as u64, out), (pushed - left_out, left_out));
            let ends = [0, 999, 1000].map(|at| steps.get(at).map(|step| step.received));
            let third = (pushed > 0).then_some(1000 + left_out);
            assert_eq!(ends, [third.map(|_| 0), third.map(|_| 999), third]);
            let last = steps.last().map(|step| step.received + 1);
            assert_eq!(last.unwrap_or(0), pushed);
        }
    }
}
