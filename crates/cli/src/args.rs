//! The command line: what is common to all commands, and the list of them.

use clap::{Parser, Subcommand};

use crate::commands::{
    cat, check, chmod, chown, completions, cp, df, doctor, down, du, find, forget, host_key, layout, ln, ls,
    mkdir, mount, mpirun, mv, pools, publish, rm, secret, serve, stat, status, top, touch, unmount, up, warm,
    xattr,
};

/// One pool of memory, laced from many machines.
#[derive(Parser, Debug)]
#[command(
    name = "ramlace",
    version,
    about = "Lace the memory of many machines into one pool",
    long_about = "ramlace laces the memory of many machines into one pool of files and arrays.\n\n\
                  A pool is a set of servers that lend memory.",
    after_help = "Examples:\n  \
                  ramlace up --servers 4 --memory 4GiB      start a pool on this machine\n  \
                  ramlace cp big.npy ramlace:/big.npy       copy a file into it, striped over the servers\n  \
                  ramlace ls -l /                           look at it\n  \
                  ramlace cp ramlace:/big.npy - | sha256sum copy it out\n  \
                  ramlace down                              stop the pool; what it holds is gone\n\n\
                  Names, the same for every command:\n  \
                  ramlace:/path             in the pool that --pool or RAMLACE_POOL names, else 'default'\n  \
                  ramlace://POOL/path       in your pool of that name\n  \
                  ramlace://host:port/path  in the pool of which one server listens there\n  \
                  pool/x, /mnt/pool/x       on a mount of a pool: that place in the pool\n  \
                  /path                     otherwise from the pool's root; for cp and mv a file of this machine\n\n\
                  A pool is named by its name, by host:port, or by any locator: for --pool, for RAMLACE_POOL, and for \
                  the libraries' connect. docs/ENVIRONMENT.md lists all environment variables.\n\n\
                  Exit codes: 0 done, 1 failed, 2 wrong usage.",
    disable_help_subcommand = true,
    arg_required_else_help = true
)]
pub struct Cli {
    /// The pool: the name of one on this machine, host:port of one elsewhere, or a locator
    /// [default: RAMLACE_POOL, else 'default']
    #[arg(long, global = true, value_name = "NAME")]
    pub pool: Option<String>,

    /// Print results as JSON on standard output, and a failure as {"error": {"kind", "errno", "message"}}
    /// on standard error
    #[arg(long, global = true)]
    pub json: bool,

    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Every command.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Start a pool on this machine, or on several
    Up(up::Args),
    /// Stop a pool; what it holds is gone
    Down(down::Args),
    /// Your pools that this machine knows
    Pools(pools::Args),
    /// What is running: servers, their fill and how they are
    Status(status::Args),
    /// Whether names, inodes and memory of all servers fit together
    Check(check::Args),
    /// Look on: fill, rates and sessions of every server, each second
    Top(top::Args),
    /// What this machine offers to ramlace
    Doctor(doctor::Args),
    /// Mount a pool on a directory: any program can use what is in it
    Mount(mount::Args),
    /// Run an MPI program whose MPI-IO reaches the pool itself
    Mpirun(mpirun::Args),
    /// Take a pool's mount away
    Unmount(unmount::Args),
    /// Make what programs have stored into a file's mappings visible to other machines
    Publish(publish::PublishArgs),
    /// Make what others have published visible in live mappings
    Refresh(publish::RefreshArgs),
    /// Read files of a mount once, so that they are in this machine's memory
    Warm(warm::Args),
    /// List a directory of the pool
    Ls(ls::Args),
    /// Everything about files and directories of the pool
    Stat(stat::Args),
    /// Copy files into the pool, out of it and within it
    Cp(cp::Args),
    /// Print files of the pool
    Cat(cat::Args),
    /// Remove files and directories of the pool
    Rm(rm::Args),
    /// Make directories in the pool
    Mkdir(mkdir::Args),
    /// Make one more name for a file of the pool, or a symbolic link
    Ln(ln::Args),
    /// Find names in the pool by what they are
    Find(find::Args),
    /// How big files and directories of the pool are
    Du(du::Args),
    /// Change permission bits in the pool
    Chmod(chmod::Args),
    /// Change owner and group in the pool
    Chown(chown::Args),
    /// Set times in the pool, or make empty files
    Touch(touch::Args),
    /// Rename files and directories of the pool
    Mv(mv::Args),
    /// How much room the pool has
    Df(df::Args),
    /// Look at, or set, how files are striped over the servers
    Layout(layout::Args),
    /// Look at, or set, extended attributes of files and directories of the pool
    Xattr(xattr::Args),
    /// Give a dead server's slots to the others; what it held is lost
    Forget(forget::Args),
    /// Keys of single machines that mount for their users: make, list, revoke
    HostKey(host_key::Args),
    /// Change the pool's secret while it runs
    Secret(secret::Args),
    /// Run one server in the foreground
    Serve(serve::Args),
    /// The process that a server's supervisor starts.
    #[command(name = "serve-child", hide = true)]
    ServeChild(serve::ChildArgs),
    /// The process that does what the daemon of a mount cannot any more.
    #[command(name = "mount-porter", hide = true)]
    MountPorter(mount::Args),
    /// The process that has the kernel drop pages for the daemon of a mount.
    #[command(name = "mount-guard", hide = true)]
    MountGuard(mount::GuardArgs),
    /// What `up --hosts` and `down` run on other machines.
    #[command(name = ramlace_launch::AGENT_COMMAND, hide = true)]
    HostAgent,
    /// Print the completion script for a shell
    Completions(completions::Args),
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn h_is_help_everywhere() {
        let mut command = Cli::command();
        command.build();
        for found in command.get_subcommands() {
            let h = found.get_arguments().find(|argument| argument.get_short() == Some('h'));
            let name = h.map(|argument| argument.get_id().as_str());
            // What follows `mpirun` is the launcher's: its `-h` begins `-host`.
            let launches = found.get_name() == "mpirun" && name.is_none();
            assert!(launches || name == Some("help"), "-h of {} is {name:?}", found.get_name());
        }
    }

    #[test]
    fn every_command_explains_itself() {
        for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
            assert!(command.get_about().is_some(), "{} has no description", command.get_name());
            assert!(command.get_after_help().is_some(), "{} has no example", command.get_name());
        }
    }
}
