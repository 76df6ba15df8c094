//! The `plimsoll` command: parses, calls, prints.

fn main() {}
