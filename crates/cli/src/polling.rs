//! The option of the commands that have the kernel poll in threads: `guard`, `forward`,
//! `screen`.

/// With which drivers threads may be switched on.
#[derive(clap::Args, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DriverArgs {
    /// Let the kernel poll in threads also with a driver that this was not tried with: any
    /// but igb, veth, `virtio_net` and vmxnet3
    ///
    /// Cost: some drivers hang when threads are switched on, and the host's network with them.
    #[arg(long)]
    pub(crate) any_driver: bool,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use plimsoll_kernel::threaded::TRIED;

    use super::*;

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        driver: DriverArgs,
    }

    #[test]
    fn the_help_names_the_drivers_that_were_tried() {
        let help = Command::command().render_long_help().to_string();
        let help = help.replace('`', "");
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        let (last, others) = TRIED.split_last().unwrap();
        assert!(help.contains(&format!("any but {} and {last}", others.join(", "))));
    }
}
