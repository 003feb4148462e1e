//! `xattr get`, `set`, `list` and `remove`: extended attributes.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use ramlace_base::Result;
use ramlace_client::Pool;
use ramlace_wire::AccessList;
use ramlace_wire::xattrs::{XattrMode, XattrName};
use serde_json::{Value, json};

use crate::failure::Done;
use crate::output::Output;
use crate::place::{Pools, in_pool};
use crate::show::{escaped, hex, put_name};

const EXAMPLES: &str = "\
Examples:
  ramlace xattr set /data/x.npy user.origin 'probe 7'   give a file a small value of your own
  ramlace xattr get /data/x.npy user.origin             print it
  ramlace xattr list /data/x.npy                        the names that you may see
  ramlace xattr remove /data/x.npy user.origin

Names begin with user. (files and directories, by their mode), security. (set by the super-user) or trusted. (the super-user's alone).
system.posix_acl_access and system.posix_acl_default are access control lists, shown and set as text with numbers:
  ramlace xattr set /data system.posix_acl_default u::rwx,u:1001:rwx,g::r-x,m::rwx,o::---";

/// Arguments of `xattr`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub action: Action,
}

/// A path, and whether a link at its end is meant itself.
#[derive(clap::Args, Debug)]
pub struct Target {
    /// A file or directory: /path or ramlace:/path
    pub path: OsString,

    /// A symbolic link at the end of the path itself, not what it leads to
    #[arg(long)]
    pub no_dereference: bool,
}

/// What to do with extended attributes.
#[derive(clap::Subcommand, Debug)]
pub enum Action {
    /// Print a value
    Get {
        /// Of what.
        #[command(flatten)]
        target: Target,
        /// The attribute, such as user.origin
        name: OsString,
    },
    /// Set a value
    Set {
        /// Of what.
        #[command(flatten)]
        target: Target,
        /// The attribute, such as user.origin
        name: OsString,
        /// Its value, at most 64 KiB
        value: OsString,
        /// Fail when there is a value already
        #[arg(long, conflicts_with = "replace")]
        create: bool,
        /// Fail when there is no value yet
        #[arg(long)]
        replace: bool,
    },
    /// Print the names
    List {
        /// Of what.
        #[command(flatten)]
        target: Target,
    },
    /// Remove a value
    Remove {
        /// Of what.
        #[command(flatten)]
        target: Target,
        /// The attribute, such as user.origin
        name: OsString,
    },
}

/// Does it.
pub fn run(args: &Args, pools: &mut Pools, output: &mut Output) -> Done {
    match &args.action {
        Action::Get { target, name } => {
            let (pool, path, follow) = place(target, pools)?;
            let value = pool.get_xattr(&path, follow, name.as_bytes())?;
            if output.json {
                output.json(&value_json(&path, name, &value))
            } else {
                output.line(shown(name, &value)?)
            }
        }
        Action::Set { target, name, value, create, replace } => {
            let (pool, path, follow) = place(target, pools)?;
            let mode = match (create, replace) {
                (true, _) => XattrMode::Create,
                (_, true) => XattrMode::Replace,
                _ => XattrMode::Any,
            };
            let value = stored(name, value)?;
            pool.set_xattr(&path, follow, name.as_bytes(), &value, mode)?;
            if output.json { output.json(&value_json(&path, name, &value)) } else { Ok(()) }
        }
        Action::List { target } => {
            let (pool, path, follow) = place(target, pools)?;
            let names = pool.list_xattrs(&path, follow)?;
            if output.json {
                let shown = |name: &XattrName| {
                    let mut value = json!({});
                    put_name(&mut value, "name", name.as_bytes());
                    value
                };
                return output.json(&Value::Array(names.iter().map(shown).collect()));
            }
            names.iter().try_for_each(|name| output.line(escaped(name.as_bytes())))
        }
        Action::Remove { target, name } => {
            let (pool, path, follow) = place(target, pools)?;
            pool.remove_xattr(&path, follow, name.as_bytes())?;
            if output.json { output.json(&named_json(&path, name)) } else { Ok(()) }
        }
    }
}

fn place(target: &Target, pools: &mut Pools) -> Result<(Pool, Vec<u8>, bool)> {
    let locator = in_pool(&target.path)?;
    Ok((pools.of(&locator)?, locator.path, !target.no_dereference))
}

/// A value for people: an access list as text.
fn shown(name: &OsStr, value: &[u8]) -> Result<String> {
    if !is_list(name) {
        return Ok(escaped(value));
    }
    Ok(AccessList::from_attribute(value)?.map(|list| list.to_string()).unwrap_or_default())
}

/// A value as it is kept: an access list may be written as text.
fn stored(name: &OsStr, value: &OsStr) -> Result<Vec<u8>> {
    match value.to_str() {
        Some(text) if is_list(name) => Ok(text.parse::<AccessList>()?.to_attribute()),
        _ => Ok(value.as_bytes().to_vec()),
    }
}

fn is_list(name: &OsStr) -> bool {
    [XattrName::ACCESS_LIST, XattrName::DEFAULT_LIST].contains(&name.as_bytes())
}

fn named_json(path: &[u8], name: &OsStr) -> Value {
    let mut value = json!({});
    put_name(&mut value, "path", path);
    put_name(&mut value, "name", name.as_bytes());
    value
}

fn value_json(path: &[u8], name: &OsStr, bytes: &[u8]) -> Value {
    let mut value = named_json(path, name);
    value["value_hex"] = json!(hex(bytes));
    if is_list(name) {
        value["value"] = json!(shown(name, bytes).ok());
    } else if let Ok(text) = std::str::from_utf8(bytes) {
        value["value"] = json!(text);
    }
    value
}
