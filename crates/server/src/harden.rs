//! What a server's process gives up before it listens to anybody: nothing that it does needs these.

use rustix::process::{Resource, Rlimit, setrlimit};

/// Variables that mean something to a server and its supervisor, beside those of ramlace itself; they get no others.
const KEPT_VARIABLES: [&str; 8] =
    ["PATH", "HOME", "USER", "TMPDIR", "XDG_RUNTIME_DIR", "TZ", "RUST_BACKTRACE", "RUST_LIB_BACKTRACE"];
const OWN_VARIABLES: &str = "RAMLACE_";

/// Leaves a process that is about to be started only those variables that it needs: what else stands in the environment
/// of whoever starts it, such as other programs' passwords, is none of its business.
pub fn clean_environment(command: &mut std::process::Command) {
    command.env_clear();
    let is_kept = |name: &std::ffi::OsStr| {
        name.to_str().is_some_and(|name| KEPT_VARIABLES.contains(&name) || name.starts_with(OWN_VARIABLES))
    };
    command.envs(std::env::vars_os().filter(|(name, _)| is_kept(name)));
}

/// No core dumps, whose file would hold the pool's secret and other users' bytes. One byte, and not none: that alone is
/// obeyed where the machine pipes dumps into a program (core(5)).
pub fn no_core_dumps() {
    let one = Some(1);
    // A limit that is lower already stays.
    let _ = setrlimit(Resource::Core, Rlimit { current: one, maximum: one });
}

/// The same, and no other process but root's looks into this one's memory or takes its descriptors, also none of the same user.
pub fn hide() {
    no_core_dumps();
    // What the kernel has told this process of itself is read once, from a file that belongs to root afterwards.
    let _ = rustix::param::page_size();
    // SAFETY: the call changes a flag of this process alone and takes no pointers.
    unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) };
}

/// The same, and no program that this process might start would have more rights than it has.
pub fn harden() {
    hide();
    // SAFETY: as above.
    unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
}
