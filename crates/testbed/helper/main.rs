//! Processes that the tests start, to be signalled and killed.

use std::io::Write;
use std::time::Duration;

use clap::Parser;
use plimsoll_testbed::{Config, Error, Testbed, interrupt, server};

#[derive(Parser)]
enum Helper {
    /// Makes a testbed with a process in it, says so, and waits for a signal.
    Hold,
    /// As `plimsoll serve`.
    Serve(server::Config),
}

fn main() -> Result<(), Error> {
    match Helper::parse() {
        Helper::Hold => hold(),
        Helper::Serve(config) => server::serve(&config).map(drop),
    }
}

fn hold() -> Result<(), Error> {
    let testbed = Testbed::create(Config::default())?;
    let sleeper = testbed.test().command("sleep").arg("1000").spawn()?;
    println!(
        "{} {} {}",
        testbed.load().name(),
        testbed.test().name(),
        sleeper.pid()
    );
    std::io::stdout().flush().expect("the test reads it");
    interrupt::sleep(Duration::from_secs(600))
}
