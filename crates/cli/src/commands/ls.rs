//! `ls`: lists directories of the pool.

use std::ffi::OsString;

use ramlace_base::Result;
use ramlace_base::units::format_bytes;
use ramlace_client::Pool;
use ramlace_wire::xattrs::XattrClass;
use ramlace_wire::{Attributes, FileKind};
use serde_json::{Value, json};

use super::stat::attributes_json;
use crate::failure::{Done, Failure, say};
use crate::output::Output;
use crate::place::{Pools, in_pool, join};
use crate::show::{device_text, escaped, kind_name, mode_text, put_name, table, time_text};

const EXAMPLES: &str = "\
Examples:
  ramlace ls                            the pool's root
  ramlace ls -l /data                   with mode (+: an access list), owner, size and time (UTC)
  ramlace ls ramlace://node0:7000/data  a pool that lives elsewhere
  ramlace ls --json / | jq -r '.[].name'

No name is hidden. Bytes that are no text are shown escaped; --json gives them in hex as well.";

/// Arguments of `ls`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Directories or files: /path or ramlace:/path
    #[arg(default_value = "/", value_name = "PATH")]
    pub paths: Vec<OsString>,

    /// One line for each entry with its attributes
    #[arg(short)]
    pub long: bool,

    /// With -l: sizes such as 1.5 GiB
    #[arg(short = 'H', long = "human-readable", visible_alias = "human")]
    pub human: bool,

    /// Accepted, as every name is shown anyway.
    #[arg(short, hide = true)]
    pub all: bool,
}

/// An entry as it is printed.
struct Entry {
    name: Vec<u8>,
    kind: FileKind,
    inode: u64,
    /// With `-l` and `--json`.
    attributes: Option<Attributes>,
    target: Option<Vec<u8>>,
    /// With `-l`: it has an access control list.
    listed: bool,
}

/// Lists each path; continues after one that fails.
pub fn run(args: &Args, pools: &mut Pools, output: &mut Output) -> Done {
    let mut failed = false;
    let mut listed = Vec::new();
    for (index, path) in args.paths.iter().enumerate() {
        match list(path, args.long || output.json, pools) {
            Ok(entries) if output.json => listed.extend(entries.iter().map(entry_json)),
            Ok(entries) => {
                if args.paths.len() > 1 {
                    let blank = if index > 0 { "\n" } else { "" };
                    output.line(format_args!("{blank}{}:", path.to_string_lossy().escape_debug()))?;
                }
                print(&entries, args, output)?;
            }
            Err(error) => {
                say(&error, output.json);
                failed = true;
            }
        }
    }
    if output.json {
        output.json(&Value::Array(listed))?;
    }
    output.flush()?;
    if failed { Err(Failure::Told) } else { Ok(()) }
}

/// The entries of a directory by name, or the one thing that the path names.
fn list(path: &OsString, in_full: bool, pools: &mut Pools) -> Result<Vec<Entry>> {
    let locator = in_pool(path)?;
    let pool = pools.of(&locator)?;
    let path = &locator.path;
    // A slash at the end asks for what a link leads to.
    let info = pool.lstat(path)?;
    if info.attributes.kind != FileKind::Directory {
        let leads_to_directory = info.attributes.kind == FileKind::Symlink
            && !in_full
            && pool.stat(path).is_ok_and(|info| info.attributes.kind == FileKind::Directory);
        if !leads_to_directory {
            let entry = Entry {
                name: path.clone(),
                kind: info.attributes.kind,
                inode: info.attributes.inode.0,
                attributes: Some(info.attributes),
                target: None,
                listed: false,
            };
            return complete(&pool, path, entry, in_full).map(|entry| entry.into_iter().collect());
        }
    }
    let mut entries = Vec::new();
    for entry in if in_full { pool.read_dir_plus(path)? } else { pool.read_dir(path)? } {
        let entry = entry?;
        let name = entry.name.as_bytes().to_vec();
        let full = join(path, &name);
        let entry = Entry {
            name,
            kind: entry.kind,
            inode: entry.inode.0,
            attributes: entry.attributes,
            target: None,
            listed: false,
        };
        entries.extend(complete(&pool, &full, entry, in_full)?);
    }
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(entries)
}

/// Asks for what the entry did not bring along; `None` when it is gone by now.
fn complete(pool: &Pool, path: &[u8], mut entry: Entry, in_full: bool) -> Result<Option<Entry>> {
    if !in_full {
        return Ok(Some(entry));
    }
    let gone = |error: &ramlace_base::Error| error.kind() == ramlace_base::ErrorKind::NotFound;
    if entry.attributes.is_none() {
        match pool.lstat(path) {
            Err(error) if gone(&error) => return Ok(None),
            info => entry.attributes = Some(info?.attributes),
        }
    }
    if entry.attributes.as_ref().is_some_and(|attributes| attributes.xattrs) {
        match pool.list_xattrs(path, false) {
            Err(error) if gone(&error) => return Ok(None),
            names => entry.listed = names?.iter().any(|name| name.class() == XattrClass::AccessList),
        }
    }
    if entry.kind == FileKind::Symlink {
        match pool.read_link(path) {
            Err(error) if gone(&error) => return Ok(None),
            target => entry.target = Some(target?),
        }
    }
    Ok(Some(entry))
}

fn print(entries: &[Entry], args: &Args, output: &mut Output) -> Done {
    if !args.long {
        return entries.iter().try_for_each(|entry| output.line(escaped(&entry.name)));
    }
    let rows: Vec<Vec<String>> = entries.iter().map(|entry| long_row(entry, args.human)).collect();
    table(&rows, &[1, 4]).into_iter().try_for_each(|line| output.line(line))
}

fn long_row(entry: &Entry, human: bool) -> Vec<String> {
    let shown = match &entry.target {
        Some(target) => format!("{} -> {}", escaped(&entry.name), escaped(target)),
        None => escaped(&entry.name),
    };
    let Some(attributes) = &entry.attributes else { return vec![shown] };
    vec![
        format!("{}{}", mode_text(entry.kind, attributes.mode), if entry.listed { "+" } else { "" }),
        attributes.links.to_string(),
        attributes.uid.to_string(),
        attributes.gid.to_string(),
        size_text(attributes, human),
        time_text(attributes.modified),
        shown,
    ]
}

/// Bytes; as `ls` has it, a device shows its numbers instead.
fn size_text(attributes: &Attributes, human: bool) -> String {
    match attributes.kind {
        kind if kind.is_device() => device_text(attributes.device),
        _ if human => format_bytes(attributes.size),
        _ => attributes.size.to_string(),
    }
}

fn entry_json(entry: &Entry) -> Value {
    let mut value = match &entry.attributes {
        Some(attributes) => attributes_json(attributes),
        None => json!({"inode": entry.inode.to_string(), "kind": kind_name(entry.kind)}),
    };
    put_name(&mut value, "name", &entry.name);
    if let Some(target) = &entry.target {
        put_name(&mut value, "target", target);
    }
    value
}
