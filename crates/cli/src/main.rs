//! The `plimsoll` command; see the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    plimsoll_cli::main()
}
