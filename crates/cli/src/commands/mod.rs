//! One file for each command: its arguments and what it does.

pub mod cat;
pub mod check;
pub mod chmod;
pub mod chown;
pub mod completions;
pub mod cp;
mod cp_stream;
pub mod df;
pub mod doctor;
mod doctor_checks;
mod doctor_mpi;
mod doctor_processes;
pub mod down;
pub mod down_hosts;
pub mod du;
pub mod find;
mod find_tests;
pub mod find_words;
pub mod forget;
mod holders;
pub mod host_agent;
pub mod host_key;
pub mod layout;
pub mod ln;
pub mod ls;
pub mod mkdir;
pub mod mount;
pub mod mpirun;
pub mod mv;
pub mod pools;
pub mod publish;
pub mod rm;
pub mod secret;
pub mod serve;
pub mod stat;
pub mod status;
mod status_messages;
pub mod top;
pub mod touch;
pub mod unmount;
pub mod up;
pub mod up_report;
pub mod warm;
pub mod xattr;

use ramlace_client::{POOL_VARIABLE, PoolName};

use crate::args::{Cli, Command};
use crate::failure::Done;
use crate::output::Output;
use crate::place::Pools;

/// The pool that is named, in its shortest form: its name, or `host:port`. What is no name is left to the
/// command that uses it.
fn named(cli: &Cli) -> Option<String> {
    let variable = || std::env::var(POOL_VARIABLE).ok().filter(|name| !name.is_empty());
    let text = cli.pool.clone().or_else(variable)?;
    Some(PoolName::meant(Some(&text)).map_or(text, |name| name.to_string()))
}

/// Runs the command that was asked for.
pub fn run(cli: &Cli, output: &mut Output) -> Done {
    let named = named(cli);
    let named = named.as_deref();
    let mut pools = Pools::new(named);
    match &cli.command {
        Command::Up(args) => up::run(args, named, output),
        Command::Down(args) => down::run(args, named, output),
        Command::Pools(args) => pools::run(args, output),
        Command::Status(args) => status::run(args, named, output),
        Command::Check(args) => check::run(args, named, output),
        Command::Top(args) => top::run(args, named, output),
        Command::Doctor(args) => doctor::run(args, &mut pools, output),
        Command::Mount(args) => mount::run(args, named, output),
        Command::Mpirun(args) => mpirun::run(args, named),
        Command::Unmount(args) => unmount::run(args, output),
        Command::Publish(args) => publish::publish(args, named, output),
        Command::Refresh(args) => publish::refresh(args, named, output),
        Command::Warm(args) => warm::run(args, named, output),
        Command::Ls(args) => ls::run(args, &mut pools, output),
        Command::Stat(args) => stat::run(args, &mut pools, output),
        Command::Cp(args) => cp::run(args, &mut pools, output),
        Command::Cat(args) => cat::run(args, &mut pools, cli.json),
        Command::Rm(args) => rm::run(args, &mut pools, output),
        Command::Mkdir(args) => mkdir::run(args, &mut pools, output),
        Command::Ln(args) => ln::run(args, &mut pools, output),
        Command::Find(args) => find::run(args, &mut pools, output),
        Command::Du(args) => du::run(args, &mut pools, output),
        Command::Chmod(args) => chmod::run(args, &mut pools, output),
        Command::Chown(args) => chown::run(args, &mut pools, output),
        Command::Touch(args) => touch::run(args, &mut pools, output),
        Command::Mv(args) => mv::run(args, &mut pools, output),
        Command::Df(args) => df::run(args, &mut pools, output),
        Command::Forget(args) => forget::run(args, named, output),
        Command::HostKey(args) => host_key::run(args, named, output),
        Command::Secret(args) => secret::run(args, named, output),
        Command::Layout(args) => layout::run(args, &mut pools, output),
        Command::Xattr(args) => xattr::run(args, &mut pools, output),
        Command::Serve(args) => serve::run(args, named),
        Command::ServeChild(args) => serve::run_child(args),
        Command::MountPorter(args) => mount::run_porter(args, named),
        Command::MountGuard(args) => mount::run_guard(args),
        Command::HostAgent => host_agent::run(output),
        Command::Completions(args) => completions::run(args, output),
    }
}
