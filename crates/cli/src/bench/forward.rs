//! `plimsoll bench forward`.

use plimsoll_bench::forward::{self, Plan, Router};

use super::passing::PassingArgs;
use super::{given_or, named};
use crate::output::{self, Target};

/// Measure how much the router forwards, beside the kernel, a bare XDP program and testpmd.
///
/// The smallest UDP packets, and then mixed ones, cross a host with one CPU, over veth. For
/// each router: the highest rate without loss (MLFRR), what is forwarded at multiples of it,
/// and what a flood leaves to a compute-bound process and to connections. Everything happens
/// between network namespaces made for it, which are removed again.
#[derive(clap::Args, Debug)]
#[command(after_help = HELP)]
pub(super) struct Args {
    /// Measure only these routers
    #[arg(long, value_name = "ROUTER", value_delimiter = ',', value_parser = named(&Router::ALL, Router::name))]
    only: Vec<Router>,
    #[command(flatten)]
    passing: PassingArgs,
}

const HELP: &str = "Routers: kernel, threaded, pass-through, bare, xdp, user, testpmd.\n\
    Needs root, two CPUs, Linux 6.8 or newer with BTF, and iproute2, ethtool and nginx \
    (scripts/setup installs them). testpmd is measured if Debian's dpdk-dev and librte-net-af-xdp* are installed.\n\
    Example: plimsoll bench forward --only kernel,xdp --ip 4";

pub(super) fn run(args: &Args) -> crate::Result<()> {
    let json = Target::open_given(args.passing.json.as_ref())?;
    let plan = Plan {
        effort: args.passing.effort()?,
        routers: given_or(&args.only, Router::ALL.to_vec()),
    };
    let document = forward::run(&plan, output::progress)?;
    output::deliver(json, &document, || document.table())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_lists_the_routers() {
        assert!(HELP.contains(&Router::ALL.map(Router::name).join(", ")));
    }
}
