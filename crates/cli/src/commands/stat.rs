//! `stat`: everything about files and directories of the pool.

use std::ffi::OsString;

use ramlace_base::Result;
use ramlace_base::units::{count, format_bytes};
use ramlace_client::Pool;
use ramlace_wire::namespace::InodeInfo;
use ramlace_wire::{Attributes, DeviceNumbers, FileKind, FileRules, Layout, LayoutHints, Mode};
use serde_json::{Value, json};

use crate::failure::{Done, Failure, say};
use crate::output::Output;
use crate::place::{Pools, in_pool};
use crate::show::{device_text, escaped, hex, kind_name, mode_text, put_name, time_text};

const EXAMPLES: &str = "\
Examples:
  ramlace stat /data/x.npy          size, times, layout and the servers that hold it
  ramlace stat --json /data/x.npy | jq .layout.servers

A link at the end of a path is shown itself; with -L, what it leads to.";

/// Arguments of `stat`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// What to look at: /path or ramlace:/path
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<OsString>,

    /// Follow a link at the end of the path
    #[arg(short = 'L', long)]
    pub dereference: bool,
}

/// One path that was examined.
struct Seen {
    path: Vec<u8>,
    info: InodeInfo,
    target: Option<Vec<u8>>,
    /// The servers of the lanes, in the lanes' order.
    servers: Vec<u16>,
}

/// Examines each path; continues after one that fails.
pub fn run(args: &Args, pools: &mut Pools, output: &mut Output) -> Done {
    let mut failed = false;
    let mut values = Vec::new();
    for path in &args.paths {
        match look(path, args.dereference, pools) {
            Ok(seen) if output.json => values.push(seen_json(&seen)),
            Ok(seen) => print(&seen, output)?,
            Err(error) => {
                say(&error, output.json);
                failed = true;
            }
        }
    }
    if output.json && args.paths.len() > 1 {
        output.json(&Value::Array(values))?;
    } else if let Some(value) = values.first() {
        output.json(value)?;
    }
    output.flush()?;
    if failed { Err(Failure::Told) } else { Ok(()) }
}

fn look(path: &OsString, dereference: bool, pools: &mut Pools) -> Result<Seen> {
    let locator = in_pool(path)?;
    let pool = pools.of(&locator)?;
    let info = if dereference { pool.stat(&locator.path)? } else { pool.lstat(&locator.path)? };
    let is_link = info.attributes.kind == FileKind::Symlink;
    let target = if is_link { Some(pool.read_link(&locator.path)?) } else { None };
    let servers = info.layout.map(|layout| lane_servers(&pool, &layout)).transpose()?.unwrap_or_default();
    Ok(Seen { path: locator.path, info, target, servers })
}

/// The server of each lane.
pub fn lane_servers(pool: &Pool, layout: &Layout) -> Result<Vec<u16>> {
    let map = pool.map()?;
    let server = |lane| map.primary(ramlace_layout::lane_slot(layout, lane, map.slots()));
    Ok((0..layout.width).filter_map(server).map(|server| server.0).collect())
}

fn print(seen: &Seen, output: &mut Output) -> Done {
    let attributes = &seen.info.attributes;
    let arrow = seen.target.as_ref().map_or(String::new(), |target| format!(" -> {}", escaped(target)));
    output.line(format_args!("{}{arrow}", escaped(&seen.path)))?;
    let size = match attributes.kind {
        FileKind::Directory => count(attributes.size, "entry"),
        kind if kind.is_device() => format!("device {}", device_text(attributes.device)),
        _ => format!("{} ({})", count(attributes.size, "byte"), format_bytes(attributes.size)),
    };
    let mut rows = vec![
        ("kind", kind_name(attributes.kind).to_owned()),
        ("size", size),
        ("holds", format_bytes(attributes.allocated.unwrap_or(attributes.size))),
        ("mode", format!("{} ({:04o})", mode_text(attributes.kind, attributes.mode), attributes.mode)),
        ("owner", format!("user {}, group {}", attributes.uid, attributes.gid)),
        ("links", attributes.links.to_string()),
        ("inode", format!("{} ({})", attributes.inode, attributes.inode.slot())),
        ("modified", time_text(attributes.modified)),
        ("changed", time_text(attributes.changed)),
        ("read", time_text(attributes.accessed)),
        ("created", time_text(attributes.created)),
    ];
    if let Some(layout) = &seen.info.layout {
        rows.push(("layout", layout_text(layout, seen.info.hints.rules, &seen.servers)));
    }
    if attributes.kind == FileKind::Directory {
        rows.push(("hands down", hints_text(&seen.info.hints)));
    }
    for (name, value) in &seen.info.named {
        rows.push(("named", format!("{} = {}", escaped(name.as_bytes()), escaped(value))));
    }
    rows.into_iter().try_for_each(|(name, value)| output.line(format_args!("  {name:<10} {value}")))
}

/// `stripe unit 2 MiB, width 4 (servers 0 1 2 3), 1 copy`; and the file's own mode, where it has one.
pub fn layout_text(layout: &Layout, rules: FileRules, servers: &[u16]) -> String {
    let servers: Vec<String> = servers.iter().map(u16::to_string).collect();
    format!(
        "stripe unit {}, width {} (server{} {}), {}{}{}",
        format_bytes(layout.stripe_unit),
        layout.width,
        if servers.len() == 1 { "" } else { "s" },
        servers.join(" "),
        count(layout.copies.into(), "copy"),
        rules.mode.map(|mode| format!(", mode {mode}")).unwrap_or_default(),
        if rules.reserve { ", reserve" } else { "" }
    )
}

/// What a directory hands down to new files.
pub fn hints_text(hints: &LayoutHints) -> String {
    let usual = || "as usual".to_owned();
    format!(
        "stripe unit {}, width {}, copies {}, mode {}{}",
        hints.stripe_unit.map_or_else(usual, format_bytes),
        hints.width.map_or_else(usual, |width| width.to_string()),
        hints.copies.map_or_else(usual, |copies| copies.to_string()),
        hints.rules.mode.map_or_else(usual, |mode| mode.to_string()),
        if hints.rules.reserve { ", reserve" } else { "" }
    )
}

/// Attributes; the inode is text, as not all 64-bit numbers survive JSON readers.
pub fn attributes_json(attributes: &Attributes) -> Value {
    let device = DeviceNumbers::of(attributes.device);
    let seconds = |time: ramlace_base::Timestamp| time.nanos as f64 / 1e9;
    json!({
        "inode": attributes.inode.to_string(), "kind": kind_name(attributes.kind), "mode": attributes.mode,
        "uid": attributes.uid, "gid": attributes.gid, "links": attributes.links, "size": attributes.size,
        "allocated": attributes.allocated,
        "device": [device.major, device.minor],
        "generation": attributes.generation.0, "accessed": seconds(attributes.accessed),
        "modified": seconds(attributes.modified), "modified_ns": attributes.modified.nanos,
        "changed": seconds(attributes.changed), "created": seconds(attributes.created),
    })
}

/// A layout with the servers of its lanes, and the file's own rules; of a mode null is "as each mount has it".
pub fn layout_json(layout: &Layout, rules: FileRules, servers: &[u16]) -> Value {
    json!({
        "stripe_unit": layout.stripe_unit, "width": layout.width, "copies": layout.copies,
        "base_slot": layout.base_slot.0, "stride": layout.stride, "created_epoch": layout.created.0,
        "servers": servers, "mode": rules.mode.map(Mode::name), "reserve": rules.reserve,
    })
}

/// What a directory hands down; null is "as usual".
pub fn hints_json(hints: &LayoutHints) -> Value {
    json!({
        "stripe_unit": hints.stripe_unit, "width": hints.width, "copies": hints.copies,
        "mode": hints.rules.mode.map(Mode::name), "reserve": hints.rules.reserve,
    })
}

fn seen_json(seen: &Seen) -> Value {
    let mut value = attributes_json(&seen.info.attributes);
    put_name(&mut value, "path", &seen.path);
    if let Some(target) = &seen.target {
        put_name(&mut value, "target", target);
    }
    if let Some(layout) = &seen.info.layout {
        value["layout"] = layout_json(layout, seen.info.hints.rules, &seen.servers);
    }
    if seen.info.attributes.kind == FileKind::Directory {
        value["hints"] = hints_json(&seen.info.hints);
    }
    let named = seen.info.named.iter().map(|(name, bytes)| (name.clone(), json!(hex(bytes))));
    value["named_hex"] = Value::Object(named.collect());
    value
}
