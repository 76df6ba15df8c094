//! An error of a moment ends nothing: the work is tried again, after ever longer
//! waits, and the operator is told.

use std::fmt;
use std::time::Duration;

/// The first wait after a failure, unless the work is rarer anyway.
const WAIT_MIN: Duration = Duration::from_millis(100);
/// The longest wait between two attempts. An error that lasts is looked at twice a
/// minute; one that ends is over soon.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// One kind of work that is done again and again.
#[derive(Debug)]
pub(super) struct Retry {
    /// As in "cannot …".
    action: &'static str,
    /// What goes on although it failed.
    meanwhile: &'static str,
    /// In a row.
    failures: u32,
}

impl Retry {
    pub(super) const fn new(action: &'static str) -> Self {
        Self {
            action,
            meanwhile: "early discard goes on",
            failures: 0,
        }
    }

    /// The same, where something else goes on meanwhile.
    pub(super) const fn while_it(self, meanwhile: &'static str) -> Self {
        Self { meanwhile, ..self }
    }

    /// Takes how an attempt ended. Returns the time until the next one, `usual` if
    /// all is well, and what to tell. A failure that lasts is told of at its first,
    /// second, fourth, eighth … attempt.
    pub(super) fn on_attempt(
        &mut self,
        failure: Option<&dyn fmt::Display>,
        usual: Duration,
    ) -> (Duration, Option<String>) {
        let action = self.action;
        let Some(failure) = failure else {
            let failures = std::mem::take(&mut self.failures);
            let told = (failures > 0).then(|| match failures {
                1 => format!("can {action} again after one failure"),
                _ => format!("can {action} again after {failures} failures"),
            });
            return (usual, told);
        };
        self.failures = self.failures.saturating_add(1);
        let doublings = (self.failures - 1).min(16);
        let wait = (usual.max(WAIT_MIN) * (1 << doublings)).clamp(usual, WAIT_MAX.max(usual));
        let told = self.failures.is_power_of_two().then(|| {
            let seconds = wait.as_secs_f64();
            let meanwhile = self.meanwhile;
            format!(
                "cannot {action}: {failure}; {meanwhile}, and this is tried again in {seconds:.1} s"
            )
        });
        (wait, told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: Duration = Duration::from_millis(20);

    fn fail(retry: &mut Retry) -> (Duration, Option<String>) {
        retry.on_attempt(Some(&"no"), USUAL)
    }

    #[test]
    fn waits_grow_to_a_bound_and_few_failures_are_told() {
        let mut retry = Retry::new("govern");
        let (first, told) = fail(&mut retry);
        assert_eq!(first, WAIT_MIN);
        let expected = "cannot govern: no; early discard goes on, and this is tried again in 0.1 s";
        assert_eq!(told.unwrap(), expected);
        let (waits, told): (Vec<_>, Vec<_>) = (2..=64).map(|_| fail(&mut retry)).unzip();
        assert!(waits.is_sorted());
        assert_eq!(waits[0], 2 * WAIT_MIN);
        assert_eq!(waits[62], WAIT_MAX);
        assert_eq!(told.into_iter().flatten().count(), 6, "2, 4, 8, 16, 32, 64");
    }

    #[test]
    fn success_is_told_once_and_starts_anew() {
        let mut retry = Retry::new("govern");
        assert_eq!(retry.on_attempt(None, USUAL), (USUAL, None));
        fail(&mut retry);
        fail(&mut retry);
        let told = Some("can govern again after 2 failures".to_owned());
        assert_eq!(retry.on_attempt(None, USUAL), (USUAL, told));
        assert_eq!(retry.on_attempt(None, USUAL), (USUAL, None));
        assert_eq!(fail(&mut retry).0, WAIT_MIN);
    }

    #[test]
    fn rare_work_is_never_done_more_often_for_having_failed() {
        let mut retry = Retry::new("report");
        let usual = Duration::from_secs(60);
        let waits: Vec<_> = (0..40)
            .map(|_| retry.on_attempt(Some(&"no"), usual).0)
            .collect();
        assert!(waits.iter().all(|wait| *wait == usual), "{waits:?}");
    }
}
