//! `plimsoll guard restore`: puts back what a killed guard left turned.

use plimsoll_kernel::knobs;

use crate::output;

/// Put the settings back that a killed guard left turned
///
/// A guard that ends by itself restores them; the next start does, too. Interfaces that a
/// killed `plimsoll screen` left closed are given back to the kernel.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Interface, in this network namespace; all of them if none is named
    #[arg(value_name = "IFACE")]
    interface: Option<String>,
}

pub(crate) fn run(args: &Args) -> crate::Result<()> {
    let (restored, done) = knobs::restore(args.interface.as_deref());
    let text = if restored.is_empty() && done.is_ok() {
        "nothing to restore\n".to_owned()
    } else {
        restored
            .iter()
            .map(|interface| format!("{interface}: restored\n"))
            .collect()
    };
    // What was restored is told also where something else was refused.
    output::print(&text)?;
    Ok(done?)
}
