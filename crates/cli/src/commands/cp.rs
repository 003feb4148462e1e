//! `cp`: copies files into the pool, out of it and within it.

use std::collections::HashMap;
use std::ffi::OsString;

use ramlace_base::units::{format_bytes, parse_bytes};
use ramlace_base::{Error, ErrorKind, Result};
use ramlace_copy::{CopyOptions, Kind, Listener, Mounts, Root, Side, Summary, copy};
use ramlace_wire::LayoutHints;
use serde_json::json;

use super::cp_stream;
use super::mkdir::umask;
use crate::failure::{Done, Failure, say};
use crate::interrupt::Interrupt;
use crate::output::Output;
use crate::place::{Place, Pools, base_name};
use crate::progress::Progress;

const EXAMPLES: &str = "\
Examples:
  ramlace cp big.npy ramlace:/data/                     in
  ramlace cp -r results ramlace:/results                a directory
  ramlace cp ramlace:/data/big.npy .                    out
  ramlace cp --width 1 --stripe-unit 8MiB a ramlace:/b  striped otherwise than usual
  tar c dir | ramlace cp - ramlace:/dir.tar             from standard input
  ramlace cp ramlace:/x - | sha256sum                   to standard output

Paths without ramlace: are files of this machine, unless they lie on a mount of a pool: then the bytes go by the library,
not through the mount. Mode and time of change are kept, holes stay holes, links are copied as links
with -r and followed without. A copy that fails is removed, or named where it overwrote something.";

/// Threads that copy unless another number is given: enough to keep several servers busy.
const JOBS_DEFAULT: u8 = 4;

/// Arguments of `cp`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// What to copy, and where to: into a directory that is there, else under that name; '-' is standard
    /// input or output
    #[arg(required = true, num_args = 2.., value_names = ["SRC", "DST"])]
    pub paths: Vec<OsString>,

    /// Directories too, with all that is in them
    #[arg(short, long, visible_short_alias = 'R')]
    pub recursive: bool,

    /// Copy by N threads at once, parts of big files included
    #[arg(short, long, default_value_t = JOBS_DEFAULT, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    pub jobs: u8,

    /// Bytes of a chunk of new files in the pool: a power of two from 64KiB to 1GiB
    /// [default: what their directory hands down, else 2MiB]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, value_parser = parse_bytes)]
    pub stripe_unit: Option<u64>,

    /// Over how many servers new files in the pool are spread
    /// [default: what their directory hands down, else all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub width: Option<u16>,
}

/// Copies; says what failed.
pub fn run(args: &Args, pools: &mut Pools, output: &mut Output) -> Done {
    let mut options = CopyOptions {
        recursive: args.recursive,
        jobs: args.jobs.into(),
        hints: LayoutHints { stripe_unit: args.stripe_unit, width: args.width, ..LayoutHints::default() },
        umask: umask(),
        mounts: Mounts::default(),
    };
    let places = args.paths.iter().map(|path| Place::parse(path)).collect::<Result<Vec<Place>>>()?;
    let Some((destination, sources)) = places.split_last() else {
        unreachable!("the command line asks for two paths at least");
    };
    check_layout(&options.hints, destination, pools)?;
    if let Some(done) = stream(sources, destination, &options, pools, output) {
        return done;
    }
    let roots = plan(sources, destination, pools)?;
    options.mounts = pools.mounts()?;
    let mut shown = Shown::new(output.json)?;
    let summary = copy(roots, &options, &mut shown);
    let signal = shown.signal;
    drop(shown);
    report(summary, signal, output)
}

/// A copy, shown on standard error while it runs.
struct Shown {
    progress: Progress,
    json: bool,
    /// Until a signal has come: the next one ends the program at once.
    interrupt: Option<Interrupt>,
    signal: Option<i32>,
}

impl Shown {
    fn new(json: bool) -> Result<Shown> {
        let interrupt = Some(Interrupt::catch()?);
        Ok(Shown { progress: Progress::new(json), json, interrupt, signal: None })
    }
}

impl Listener for Shown {
    fn progressed(&mut self, done: u64, found: u64) {
        self.progress.update(done, Some(found));
    }

    fn failed(&mut self, error: &Error) {
        self.progress.pause(|| say(error, self.json));
    }

    fn is_interrupted(&mut self) -> bool {
        if let Some(signal) = self.interrupt.as_ref().and_then(Interrupt::signal) {
            self.signal = Some(signal);
            self.interrupt = None;
        }
        self.signal.is_some()
    }
}

/// Refuses a layout that the files will not have.
fn check_layout(hints: &LayoutHints, destination: &Place, pools: &mut Pools) -> Result<()> {
    if *hints == LayoutHints::default() {
        return Ok(());
    }
    let Place::Pool(locator) = destination else {
        return Err(invalid(
            "--width and --stripe-unit are for copies into a pool: files of this machine have no stripes",
        ));
    };
    if hints.width.is_some() { pools.of(locator)?.check_width(*hints) } else { Ok(()) }
}

/// Copies that go through a pipe or a device; `None` when this is none.
fn stream(
    sources: &[Place],
    destination: &Place,
    options: &CopyOptions,
    pools: &mut Pools,
    output: &mut Output,
) -> Option<Done> {
    let is_stream = |place: &Place| match place {
        Place::Stream => true,
        // A pipe such as <(command), or a device.
        Place::Local(path) => Side::Local(path.clone())
            .look(true)
            .is_ok_and(|found| found.is_some_and(|found| found.kind == Kind::Stream)),
        Place::Pool(_) => false,
    };
    let [first, ..] = sources else { return None };
    let streams = is_stream(destination) || (sources.len() == 1 && is_stream(first));
    if !streams {
        return sources
            .contains(&Place::Stream)
            .then(|| Err(invalid("'-' is copied alone; write one source and one destination").into()));
    }
    Some(match (sources, destination) {
        ([Place::Pool(locator)], to @ (Place::Stream | Place::Local(_))) => pools
            .of(locator)
            .map_err(Failure::from)
            .and_then(|pool| cp_stream::out(&pool, &locator.path, to, output)),
        ([from @ (Place::Stream | Place::Local(_))], Place::Pool(locator)) => pools
            .of(locator)
            .map_err(Failure::from)
            .and_then(|pool| cp_stream::into(from, &pool, &locator.path, options, output)),
        ([_], _) => Err(no_pool().into()),
        _ => Err(invalid("a pipe or a device takes one file; write one source and one destination").into()),
    })
}

/// The full path of each copy.
fn plan(sources: &[Place], destination: &Place, pools: &mut Pools) -> Result<Vec<Root>> {
    if !matches!(destination, Place::Pool(_)) && !sources.iter().any(|place| matches!(place, Place::Pool(_)))
    {
        return Err(no_pool());
    }
    let to = side(destination, pools)?;
    let found = to.look(true)?;
    let is_directory = found.is_some_and(|found| found.kind == Kind::Directory);
    let must_be_directory = sources.len() > 1 || (to.path().ends_with(b"/") && found.is_some());
    if must_be_directory && !is_directory {
        return Err(Error::new(
            ErrorKind::NotDirectory,
            format!("{} is no directory, so several files cannot be copied into it", to.shown()),
        ));
    }
    let inside = if is_directory { to.inside()? } else { to.clone() };
    let root = |place: &Place| {
        let from = side(place, pools)?;
        if !is_directory {
            return Ok(Root { from, to: to.clone() });
        }
        let name = match base_name(from.path()) {
            // The content of '.', '..' or a root goes into the directory itself.
            b"" => return Ok(Root { from, to: to.clone() }),
            name => name.to_vec(),
        };
        Ok(Root { to: inside.entry(&name), from })
    };
    let roots = sources.iter().map(root).collect::<Result<Vec<Root>>>()?;
    check_targets(&roots, &to)?;
    Ok(roots)
}

/// Refuses sources of one name: what would become one file would be copied into it at once. Those whose content goes into the
/// destination itself may be several.
fn check_targets(roots: &[Root], destination: &Side) -> Result<()> {
    let mut by_target: HashMap<&[u8], &Root> = HashMap::new();
    for root in roots.iter().filter(|root| root.to.path() != destination.path()) {
        if let Some(other) = by_target.insert(root.to.path(), root) {
            let text = format!(
                "{} and {} would both become {}; copy one of them alone, under another name",
                other.from.shown(),
                root.from.shown(),
                root.to.shown()
            );
            return Err(invalid(&text));
        }
    }
    Ok(())
}

fn side(place: &Place, pools: &mut Pools) -> Result<Side> {
    match place {
        Place::Local(path) => Ok(Side::Local(path.clone())),
        Place::Pool(locator) => Ok(Side::Pool(pools.of(locator)?, locator.path.clone())),
        Place::Stream => unreachable!("streams were dealt with before"),
    }
}

/// `signal`: what has interrupted it.
fn report(summary: Summary, signal: Option<i32>, output: &mut Output) -> Done {
    let Summary { files, bytes, errors, aborted, interrupted, took } = summary;
    if output.json {
        output.json(&json!({
            "files": files, "bytes": bytes, "errors": errors, "given_up": aborted, "seconds": took.as_secs_f64(),
        }))?;
        output.flush()?;
    }
    if let Some(signal) = signal {
        if interrupted {
            output.note(format_args!(
                "interrupted: {files} copied ({}), {errors} failed; the rest was not begun",
                format_bytes(bytes)
            ));
        }
        return Err(Failure::Signal(signal));
    }
    if errors == 0 {
        return Ok(());
    }
    if files > 0 || errors > 1 {
        let rest = if aborted { "; the rest was not begun, as there is no room" } else { "" };
        output.note(format_args!("{files} copied ({}), {errors} failed{rest}", format_bytes(bytes)));
    }
    Err(Failure::Told)
}

fn no_pool() -> Error {
    invalid("neither side is in a pool; write ramlace:/path for what is, or use cp(1)")
}

fn invalid(text: &str) -> Error {
    Error::new(ErrorKind::Invalid, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    // SEMANTICS 111.3
    #[test]
    fn sources_that_would_become_one_file_are_refused() {
        let root = |from: &str, to: &str| Root { from: Side::Local(from.into()), to: Side::Local(to.into()) };
        let into = Side::Local("d".into());
        check_targets(&[root("a/x", "d/x"), root("b/y", "d/y")], &into).unwrap();
        check_targets(&[root("a/.", "d"), root("b/.", "d"), root("c", "d/c")], &into).unwrap();
        let same = [root("a/x", "d/x"), root("b/y", "d/y"), root("b/x", "d/x")];
        let error = check_targets(&same, &into).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.message().starts_with("a/x and b/x would both become d/x"), "{error}");
    }

    // SEMANTICS 111.5
    #[test]
    fn an_interrupted_copy_ends_as_a_shell_expects() {
        let code = |summary, signal| match report(summary, signal, &mut Output::new(false)) {
            Ok(()) => 0,
            Err(failure) => failure.report(false),
        };
        let interrupted = Summary { interrupted: true, aborted: true, ..Summary::default() };
        assert_eq!(code(interrupted, Some(libc::SIGINT)), 130);
        assert_eq!(code(interrupted, Some(libc::SIGTERM)), 143);
        assert_eq!(code(Summary::default(), None), 0);
        assert_eq!(code(Summary { errors: 1, ..Summary::default() }, None), 1);
        // It came when all was done.
        assert_eq!(code(Summary::default(), Some(libc::SIGINT)), 130);
    }
}
