//! `find`: the names below a path, chosen by what they are.

use std::ffi::OsString;
use std::io::IsTerminal;

use ramlace_base::{Error, Result, Timestamp};
use ramlace_client::Pool;
use ramlace_wire::FileKind;
use serde_json::Value;

use super::find_tests::{SizeTest, Tests, TimeTest, parse_kind};
use super::stat::attributes_json;
use crate::date;
use crate::failure::{Done, Failure, say};
use crate::glob::Glob;
use crate::json_list::JsonList;
use crate::output::Output;
use crate::place::{Pools, in_pool};
use crate::show::{escaped, put_name};
use crate::tally::Tally;
use crate::tree::{Node, Root, Visitor};

const EXAMPLES: &str = "\
Examples:
  ramlace find /data --name '*.npy'            the names of all arrays below /data
  ramlace find / --type f --size +1G           files larger than 1 GiB
  ramlace find / -type d -maxdepth 2           a single dash does as well, as for find
  ramlace find /tmp --mtime +7 --print0 | xargs -0 ramlace rm
  ramlace find / --json --newer /data/done | jq -r '.[].path'

All tests must hold. Patterns are those of the shell: * ? [a-z] [!a-z] [[:digit:]] \\; they are matched byte by
byte where a name is no text. Such names are printed escaped, and as they are with --print0. Links are not
followed.";

/// Arguments of `find`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Where to begin: /path or ramlace:/path
    #[arg(default_value = "/", value_name = "PATH")]
    pub paths: Vec<OsString>,

    /// The last name matches the pattern
    #[arg(long, value_name = "GLOB", allow_hyphen_values = true)]
    pub name: Option<OsString>,

    /// The same, capitals and small letters alike
    #[arg(long, value_name = "GLOB", allow_hyphen_values = true)]
    pub iname: Option<OsString>,

    /// The whole path, as it would be printed, matches the pattern; * takes slashes too
    #[arg(long, value_name = "GLOB", allow_hyphen_values = true)]
    pub path: Option<OsString>,

    /// f files, d directories, l links; several with commas
    #[arg(long = "type", value_name = "f|d|l", value_parser = parse_kind, value_delimiter = ',')]
    pub kinds: Vec<FileKind>,

    /// Size in units of 512 bytes, or c (bytes), k, M, G, T, rounded up: +N larger, -N smaller, N exactly.
    /// Directories have none
    #[arg(long, value_name = "[+-]N[ckMGT]", value_parser = SizeTest::parse, allow_hyphen_values = true)]
    pub size: Option<SizeTest>,

    /// Written N whole days ago: +N longer ago, -N less long
    #[arg(long, value_name = "[+-]N", value_parser = TimeTest::days, allow_hyphen_values = true)]
    pub mtime: Option<TimeTest>,

    /// The same in minutes
    #[arg(long, value_name = "[+-]N", value_parser = TimeTest::minutes, allow_hyphen_values = true)]
    pub mmin: Option<TimeTest>,

    /// Written after this file or directory of the pool was
    #[arg(long, value_name = "PATH")]
    pub newer: Option<OsString>,

    /// Written after this date, such as 2026-01-31, '2026-01-31 17:05' (local time), @SECONDS, yesterday
    #[arg(long, value_name = "DATE")]
    pub newermt: Option<String>,

    /// Go down at most N levels; 0 is what is named alone
    #[arg(long, value_name = "N")]
    pub maxdepth: Option<usize>,

    /// Leave out the first N levels
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub mindepth: usize,

    /// Print exact bytes, with a NUL behind each path instead of a new line
    #[arg(short = '0', long, conflicts_with = "json")]
    pub print0: bool,
}

/// Searches each path; continues after one that fails.
pub fn run(args: &Args, pools: &mut Pools, output: &mut Output) -> Done {
    let tests = tests(args, pools)?;
    let tally = Tally::new(output.json, true);
    let mut finding = Finding {
        args,
        tests,
        tally,
        list: JsonList::default(),
        output,
        pool: None,
        found: 0,
        failed: false,
    };
    for path in &args.paths {
        match Root::find(path, false, pools) {
            Ok(root) => finding.look_through(&root)?,
            Err(error) => finding.failed(error),
        }
    }
    let Finding { list, output, failed, .. } = finding;
    if output.json {
        list.end(output)?;
    }
    output.flush()?;
    if failed { Err(Failure::Told) } else { Ok(()) }
}

/// What is asked for, ready to be asked of each name.
fn tests(args: &Args, pools: &mut Pools) -> Result<Tests> {
    use std::os::unix::ffi::OsStrExt;
    let now = date::now();
    let glob = |pattern: &Option<OsString>, ignore_case| {
        pattern.as_ref().map(|pattern| Glob::new(pattern.as_bytes(), ignore_case))
    };
    let mut newer: Vec<Timestamp> = Vec::new();
    if let Some(text) = &args.newermt {
        newer.push(date::parse(text, now)?);
    }
    if let Some(path) = &args.newer {
        let locator = in_pool(path)?;
        newer.push(pools.of(&locator)?.lstat(&locator.path)?.attributes.modified);
    }
    Ok(Tests {
        names: [glob(&args.name, false), glob(&args.iname, true)].into_iter().flatten().collect(),
        path: glob(&args.path, false),
        kinds: args.kinds.clone(),
        size: args.size,
        ages: args.mtime.into_iter().chain(args.mmin).collect(),
        newer_than: newer.into_iter().max(),
        now,
    })
}

struct Finding<'a> {
    args: &'a Args,
    tests: Tests,
    tally: Tally,
    list: JsonList,
    output: &'a mut Output,
    /// The pool that is searched.
    pool: Option<Pool>,
    found: u64,
    failed: bool,
}

impl Finding<'_> {
    fn look_through(&mut self, root: &Root) -> Done {
        self.pool = Some(root.pool.clone());
        let in_full = self.output.json || self.tests.need_attributes();
        root.walk(in_full, self)
    }

    fn print(&mut self, node: &Node<'_>) -> Done {
        if self.output.json {
            let value = self.node_json(node);
            return self.list.push(&value, self.output);
        }
        if self.args.print0 {
            self.output.bytes(node.path)?;
            self.output.bytes(b"\0")?;
        } else {
            self.output.line(escaped(node.path))?;
        }
        // On a terminal the user sees it when it is found.
        if std::io::stdout().is_terminal() { self.output.flush() } else { Ok(()) }
    }

    fn node_json(&mut self, node: &Node<'_>) -> Value {
        let mut value = attributes_json(node.attributes());
        put_name(&mut value, "path", node.path);
        if let (FileKind::Symlink, Some(pool)) = (node.kind, &self.pool) {
            match pool.raw().read_link(node.inode) {
                Ok(target) => put_name(&mut value, "target", &target),
                Err(error) => self.failed(error.context(escaped(node.path))),
            }
        }
        value
    }
}

impl Visitor for Finding<'_> {
    fn enter(&mut self, node: &Node<'_>) -> Done<bool> {
        if node.depth >= self.args.mindepth && self.tests.hold(node) {
            self.found += 1;
            self.print(node)?;
        }
        let found = self.found;
        self.tally.add(|| format!("{found} found"));
        Ok(self.args.maxdepth.is_none_or(|depth| node.depth < depth))
    }

    fn failed(&mut self, error: Error) {
        self.failed = true;
        let json = self.output.json;
        self.tally.pause(|| say(&error, json));
    }
}
