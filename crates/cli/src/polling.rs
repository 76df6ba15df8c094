//! Options about the kernel's polling in threads that `guard`, `forward` and `screen` share.

use std::fs;
use std::path::Path;

/// With which drivers threads may be switched on.
#[derive(clap::Args, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DriverArgs {
    /// Let the kernel poll in threads also with a driver that this was not tried with: any
    /// but igb, veth, virtio_net and vmxnet3
    ///
    /// Cost: some drivers hang when threads are switched on, and the host's network with them.
    #[arg(long)]
    pub(crate) any_driver: bool,
}

/// A CPU that this host has.
pub(crate) fn parse_cpu(text: &str) -> Result<usize, String> {
    let cpu: usize = text
        .parse()
        .map_err(|_| "is no number of a CPU".to_owned())?;
    let cpus = Path::new("/sys/devices/system/cpu");
    if cpus.join(format!("cpu{cpu}")).exists() {
        return Ok(cpu);
    }
    let present = fs::read_to_string(cpus.join("present")).unwrap_or_default();
    Err(format!(
        "this host has no such CPU, only {}: `lscpu -e` lists them",
        present.trim()
    ))
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};
    use plimsoll_kernel::threaded::TRIED;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        driver: DriverArgs,
    }

    #[test]
    fn the_help_names_the_drivers_that_were_tried() {
        let help = Command::command().render_long_help().to_string();
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        let (last, others) = TRIED.split_last().unwrap();
        assert!(help.contains(&format!("any but {} and {last}", others.join(", "))));
    }

    #[test]
    fn a_cpu_that_this_host_lacks_is_refused_with_those_it_has() {
        for command in [
            "guard eth0 --strategy thread --poll-cpu",
            "forward a b --path user --cpu",
        ] {
            let command = format!("plimsoll {command}");
            let parsed = |cpu: &'static str| {
                let words = command.split(' ').chain([cpu]);
                crate::Cli::try_parse_from(words).map_err(|error| error.to_string())
            };
            parsed("0").unwrap();
            for (wrong, why) in [("4096", "no such CPU, only 0"), ("x", "no number of a CPU")] {
                let said = parsed(wrong).unwrap_err();
                assert!(said.contains(why), "{command} {wrong}: {said}");
            }
        }
    }
}
