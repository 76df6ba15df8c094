//! The `plimsoll` command: parses, calls, prints.
//!
//! Each subcommand is one file with its arguments (`Args`) and a `run` that
//! calls the library. This file turns their errors into messages and exit
//! codes: 0 done, 1 failed, 2 used wrongly, 3 this host lacks something.

fn main() {}
