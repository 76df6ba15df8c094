//! `plimsoll serve`: a UDP sink and echo, HTTP and DNS, on any of the devices.

use std::io::{self, Write};

use plimsoll_testbed::server::{self, Config};

/// Serve UDP, HTTP or DNS, on the kernel's sockets or Plimsoll's own stack.
///
/// Runs until Ctrl-C or SIGTERM, then prints what it counted as one line of
/// JSON.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    config: Config,
}

pub(crate) fn run(args: &Args) -> crate::Result<()> {
    let counts = server::serve(&args.config)?;
    writeln!(io::stdout(), "{}", serde_json::to_string(&counts)?)?;
    Ok(())
}
