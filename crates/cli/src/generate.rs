//! `plimsoll generate DIR`: what a package ships beside the program, made from
//! the command line's own definition: man pages, shell completions, and a
//! configuration file that documents every setting.

use std::fs;
use std::path::{Path, PathBuf};

use crate::failure::Context;
use clap::CommandFactory;
use clap_complete::Shell;

use crate::guard;

/// Write man pages, shell completions and a commented configuration file
#[derive(clap::Args, Debug)]
#[command(hide = true)]
pub(crate) struct Args {
    /// Directory for them; made if it is missing
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

pub(crate) fn run(args: &Args) -> crate::Result<()> {
    let within = |name: &str| -> crate::Result<PathBuf> {
        let directory = args.directory.join(name);
        fs::create_dir_all(&directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
        Ok(directory)
    };
    man_pages(&within("man")?)?;
    completions(&within("completions")?)?;
    let file = within("config")?.join("guard.toml");
    fs::write(&file, guard::commented_settings(&mut crate::Cli::command()))
        .with_context(|| format!("cannot write {}", file.display()))
}

/// One page per command, as `plimsoll-guard-check.1`.
fn man_pages(directory: &Path) -> crate::Result<()> {
    clap_mangen::generate_to(crate::Cli::command(), directory).context("cannot write man pages")
}

fn completions(directory: &Path) -> crate::Result<()> {
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut crate::Cli::command(), "plimsoll", directory)
            .with_context(|| format!("cannot write the completion for {shell}"))?;
    }
    Ok(())
}
