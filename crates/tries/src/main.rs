//! Runs the test programs that cargo built, and each test that failed once more, alone.
//!
//! `plimsoll-tries MESSAGES NEEDS LINTS CALM...`: MESSAGES is what `cargo test --no-run
//! --message-format json` wrote, NEEDS says what part of the machine a program needs
//! ([`programs::Needs`]), LINTS is a command of the shell that has to succeed as well, or empty,
//! and CALM are crates whose tests get no second try.
//!
//! Cargo builds one program of most tests of a crate, since each takes its time to link. It runs
//! once for each of its modules ([`programs`]).
//!
//! Programs that only compute, and then the lints, run at the lowest priority, one at a time, beside
//! those that mostly wait, of which two run at a time, and then beside those that need most of the
//! machine. Then follow those that need it for themselves.
//!
//! Tests that make hosts of namespaces need the machine's time. So it is measured what part of it
//! others had meanwhile: all processes but those of this run, and the hypervisor. The last lines
//! say it of each test that failed: one that passes alone and had the machine for itself is
//! seldom wrong, and should be looked at. One that fails alone as well shows a fault, and fails
//! the run. Nobody gets a second try if many tests fail, or if something else goes wrong.

mod lanes;
mod output;
mod programs;
mod second_try;

use std::path::PathBuf;
use std::process::ExitCode;
use std::{env, fs, io};

use lanes::Lanes;
use programs::{Needs, Program};
use second_try::is_excused;

/// What cargo ends with if a test failed.
const FAILED: u8 = 101;

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(FAILED),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(FAILED)
        }
    }
}

/// Whether no test failed but those that passed alone.
fn run() -> io::Result<bool> {
    let mut arguments = env::args_os().skip(1);
    let (Some(messages), Some(needs)) = (arguments.next(), arguments.next()) else {
        return Err(io::Error::other(
            "usage: plimsoll-tries MESSAGES NEEDS LINTS CALM...",
        ));
    };
    let mut names = arguments.filter_map(|name| name.into_string().ok());
    let lints = names.next().unwrap_or_default();
    let calm: Vec<_> = names.collect();
    let needs = Needs::read(&fs::read_to_string(PathBuf::from(needs))?)?;
    let programs = Program::all_built(&fs::read_to_string(PathBuf::from(messages))?, &needs)?;
    let lanes = Lanes::start();
    let ended = lanes.run(&programs, &lints)?;
    let passed: u32 = ended.iter().map(|program| program.said.passed).sum();
    println!("{passed} tests passed in {} programs", programs.len());
    is_excused(&lanes, &ended, &calm)
}
