//! `plimsoll serve`: a UDP server to be put under load.

use std::io::{self, Write};

use plimsoll_testbed::server::{self, Config};

/// Serve UDP with a known amount of work per packet.
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
