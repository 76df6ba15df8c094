//! A second try for tests that may have failed for want of the machine's time.

use std::io;

use plimsoll_tries::Taken;

use crate::lanes::{Ended, Lanes};

/// More that fail show a fault.
const FAILED_MAX: usize = 6;

/// Whether all that failed passes alone. Says of each what others had of the machine. `calm`
/// are crates that need no quiet machine.
pub(crate) fn is_excused(lanes: &Lanes, ended: &[Ended<'_>], calm: &[String]) -> io::Result<bool> {
    let failed: Vec<_> = ended.iter().filter(|ended| !ended.succeeded).collect();
    let tests: usize = failed.iter().map(|ended| ended.said.failed.len()).sum();
    let has_no_second = |ended: &&Ended<'_>| {
        let of_calm = |program| calm.iter().any(|name| *name == of_crate(program));
        ended.said.failed.is_empty() || ended.program.is_none_or(of_calm)
    };
    for ended in &failed {
        println!("failed: {ended}");
    }
    if tests > FAILED_MAX || failed.iter().any(has_no_second) {
        return Ok(false);
    }
    let mut verdicts = Vec::new();
    let mut is_excused = true;
    for ended in &failed {
        for name in &ended.said.failed {
            let Some(program) = ended.program else {
                continue;
            };
            let again = lanes.alone(program, name)?;
            let passed = again.succeeded && again.said.passed == 1;
            is_excused &= passed;
            let verdict = if passed {
                "passed alone"
            } else {
                "and alone as well"
            };
            let (first, then) = (part(ended.taken), part(again.taken));
            verdicts.push(format!(
                "failed, {verdict}: plimsoll-{}, {name}: others had up to {first:.1} % of the machine, then up to {then:.1} %",
                program.of_crate(),
            ));
        }
    }
    for verdict in verdicts {
        println!("{verdict}");
    }
    Ok(is_excused)
}

fn of_crate(program: &crate::Program) -> &str {
    program.of_crate()
}

/// In percent.
fn part(taken: Option<Taken>) -> f64 {
    taken.map_or(0.0, |taken| taken.part() * 100.0)
}
