//! What a server's process drops before it accepts requests, because its work does not need it.

use rustix::process::{Resource, Rlimit, setrlimit};

/// Environment variables that a server and its supervisor need, besides those of ramlace; all others are
/// removed.
const KEPT_VARIABLES: [&str; 8] =
    ["PATH", "HOME", "USER", "TMPDIR", "XDG_RUNTIME_DIR", "TZ", "RUST_BACKTRACE", "RUST_LIB_BACKTRACE"];
const OWN_VARIABLES: &str = "RAMLACE_";

/// Leaves a process that is about to be started only the environment variables that it needs: others, such as
/// another program's passwords, must not reach it.
pub fn clean_environment(command: &mut std::process::Command) {
    command.env_clear();
    let is_kept = |name: &std::ffi::OsStr| {
        name.to_str().is_some_and(|name| KEPT_VARIABLES.contains(&name) || name.starts_with(OWN_VARIABLES))
    };
    command.envs(std::env::vars_os().filter(|(name, _)| is_kept(name)));
}

/// Disables core dumps, whose file would hold the pool's secret and other users' bytes. The limit is one
/// byte, not zero: only that is obeyed where the machine pipes dumps into a program (core(5)).
pub fn no_core_dumps() {
    let one = Some(1);
    // A limit that is lower already stays.
    let _ = setrlimit(Resource::Core, Rlimit { current: one, maximum: one });
}

/// The same; and no other process, except root's, can read this one's memory or take its descriptors, not
/// even one of the same user.
pub fn hide() {
    no_core_dumps();
    // The kernel's auxiliary vector is read once now: afterwards its file belongs to root.
    let _ = rustix::param::page_size();
    // SAFETY: the call changes a flag of this process alone and takes no pointers.
    unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) };
}

/// The same; and a program that this process might start gets no more rights than it has.
pub fn harden() {
    hide();
    // SAFETY: as above.
    unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
}
