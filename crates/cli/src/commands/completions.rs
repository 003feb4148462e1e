//! `completions`: scripts that teach a shell the command line.

use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::Cli;
use crate::failure::Done;
use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  ramlace completions bash > ~/.local/share/bash-completion/completions/ramlace
  ramlace completions zsh > \"${fpath[1]}/_ramlace\"
  ramlace completions fish > ~/.config/fish/completions/ramlace.fish";

/// Arguments of `completions`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The shell
    pub shell: Shell,
}

/// Prints the script.
pub fn run(args: &Args, output: &mut Output) -> Done {
    // Into memory first: the generator panics when its output closes early.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "ramlace", &mut script);
    output.bytes(&script)
}
