//! `check`: whether everything that the pool's servers hold fits together.
//!
//! `ramlace_check` decides what is wrong; here its requests go out through the client, what this machine's
//! mounts have lost goes in, and what it found is printed as sentences or JSON.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::sync::Arc;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use ramlace_base::units::{count, format_bytes};
use ramlace_base::{InodeId, Result, ServerId};
use ramlace_check::{CheckCounts, Checked, FINDINGS_MAX, Finding, LostStores, Repaired, Servers};
use ramlace_client::Pool;
use ramlace_mount::MountPoint;
use ramlace_wire::check::Trouble;
use ramlace_wire::{ClusterMap, Request};
use serde_json::{Value, json};

use crate::failure::{Done, Failure};
use crate::mounting::{Health, LostRun, look_at, lost_bytes, lost_stores, mounted_name, mounts_of};
use crate::output::Output;
use crate::place::connect_options;
use crate::show::{escaped, put_name};

const EXAMPLES: &str = "\
Examples:
  ramlace check                                       the default pool
  ramlace check --json | jq -r '.findings[].text'
  ramlace check --repair                              and mend what can be mended

Reads the names, inodes and lanes of every server, and changes nothing unless told to repair. It finds names that lead nowhere,
inodes that nothing leads to, wrong counts of links, directories outside the tree, memory that belongs to no
file, operations that never end, counters that are not what the kernel counts, and stores that your mounts on this
machine could not write back. What it finds in a pool that
is being used it looks at again, and tells only what stays. Every server must answer.

The exit code is 1 when something is wrong.";

/// Faster checks show no progress.
const DELAY: Duration = Duration::from_secs(1);

/// Arguments of `check`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Give back what is held for operations that nobody knows, and lanes that no file has
    #[arg(long)]
    pub repair: bool,
}

/// Checks the pool and reports what is wrong.
pub fn run(args: &Args, named: Option<&str>, output: &mut Output) -> Done {
    let pool = Pool::connect(&connect_options(named))?;
    let began = Instant::now();
    let mut progress = Progress::new(&pool, output.json)?;
    let lost = lost_stores_of(named)?;
    let asked = Asked(&pool);
    let update = |counts: &CheckCounts| progress.update(counts);
    let Repaired { checked, mended, ended } = if args.repair {
        ramlace_check::check_and_repair(&asked, &lost, update)?
    } else {
        Repaired::nothing(ramlace_check::check_pool(&asked, &lost, update)?)
    };
    drop(progress);
    let seconds = began.elapsed().as_secs_f64();
    if output.json {
        output.json(&as_json(&checked, &mended, seconds))?;
    } else {
        for (server, trouble) in &mended {
            output.line(format_args!("{server}: mended: {}.", trouble.text))?;
        }
        print(&checked, seconds, output)?;
    }
    output.flush()?;
    // What was mended before it is reported all the same: nothing else says which files to look at.
    ended?;
    if checked.is_clean() { Ok(()) } else { Err(Failure::Told) }
}

/// The servers of a pool as this command reaches them.
struct Asked<'pool>(&'pool Pool);

impl Servers for Asked<'_> {
    fn map(&self) -> Result<Arc<ClusterMap>> {
        self.0.refresh_map()
    }

    fn ask<R: Request>(&self, server: ServerId, request: &R) -> Result<R::Reply> {
        self.0.ask_server(server, request)
    }

    fn wait(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// What this user's mounts of the pool on this machine have lost, file by file.
fn lost_stores_of(named: Option<&str>) -> Result<Vec<LostStores>> {
    let mounts = mounts_of(&mounted_name(named))?;
    let healths = look_at(&mounts);
    let mut told = Vec::new();
    for (mount, _) in mounts.iter().zip(healths).filter(|(_, health)| *health == Health::Serving) {
        let mut files: BTreeMap<u64, Vec<LostRun>> = BTreeMap::new();
        lost_stores(mount).into_iter().for_each(|run| files.entry(run.inode).or_default().push(run));
        told.extend(files.into_iter().map(|(inode, runs)| (InodeId(inode), lost_text(mount, &runs))));
    }
    Ok(told)
}

fn lost_text(mount: &MountPoint, runs: &[LostRun]) -> String {
    let sum = lost_bytes(runs);
    let start = runs.iter().map(|run| run.bytes.0).min().unwrap_or(0);
    let end = runs.iter().map(|run| run.bytes.1).max().unwrap_or(0);
    let why = runs.first().map_or("", |run| run.why.as_str());
    format!(
        "{sum} bytes between {start} and {end} that programs stored by mappings on {} could not be written back ({why})",
        mount.dir.display()
    )
}

fn print(checked: &Checked, seconds: f64, output: &mut Output) -> Done {
    for finding in &checked.findings {
        output.line(sentence(finding))?;
    }
    if !checked.is_conclusive() {
        output.line(format_args!(
            "Each look found more than {FINDINGS_MAX} things, and {} beyond these: what is being changed meanwhile may be among \
             them. Check again when the pool is used less.",
            checked.further_findings
        ))?;
    }
    let counts = &checked.counts;
    output.line(format_args!(
        "{}, {} in use, {}, {} and {} with {} looked at in {seconds:.1} s.",
        count(counts.servers, "server"),
        count(counts.slots, "slot"),
        count(counts.inodes, "inode"),
        count(counts.entries, "entry"),
        count(counts.lanes, "lane"),
        format_bytes(counts.lane_bytes)
    ))?;
    remarks(counts, output)?;
    match checked.findings.len() {
        0 if checked.is_clean() => output.line("Everything fits together."),
        0 => output.line("Nothing was found twice; whether all fits together is not known."),
        1 => output.line("1 thing is wrong."),
        wrong => output.line(format_args!("{wrong} things are wrong.")),
    }
}

/// What is no damage and worth a remark.
fn remarks(counts: &CheckCounts, output: &mut Output) -> Done {
    if counts.open_without_name > 0 {
        output.line(format_args!(
            "{} without a name any more, until the last close.",
            count(counts.open_without_name, "inode")
        ))?;
    }
    if counts.operations + counts.deliveries > 0 {
        output.line(format_args!(
            "Under way between slots: {} and {}.",
            count(counts.operations, "operation"),
            count(counts.deliveries, "message")
        ))?;
    }
    if counts.lanes_beyond_end > 0 {
        output.line(format_args!(
            "Beyond the end of their files: {} in {}, taken ahead or left by writes that were never completed.",
            format_bytes(counts.bytes_beyond_end),
            count(counts.lanes_beyond_end, "lane")
        ))?;
    }
    Ok(())
}

fn sentence(finding: &Finding) -> String {
    let path = finding.path.as_ref().map_or(String::new(), |path| format!("{}: ", escaped(path)));
    let lost = if finding.lost_with_server { " (a server was forgotten)" } else { "" };
    format!("{}: {path}{}{lost}; {}.", finding.server, finding.text, finding.kind.advice())
}

fn mended_json((server, trouble): &(ServerId, Trouble)) -> Value {
    json!({
        "server": server.0,
        "inode": trouble.inode.map(|inode| inode.to_string()),
        "text": trouble.text,
    })
}

fn as_json(checked: &Checked, mended: &[(ServerId, Trouble)], seconds: f64) -> Value {
    let counts = &checked.counts;
    json!({
        "clean": checked.is_clean(),
        "conclusive": checked.is_conclusive(),
        "seconds": seconds,
        "servers": counts.servers,
        "slots": counts.slots,
        "inodes": counts.inodes,
        "entries": counts.entries,
        "lanes": counts.lanes,
        "lane_bytes": counts.lane_bytes,
        "open_without_name": counts.open_without_name,
        "operations": counts.operations,
        "deliveries": counts.deliveries,
        "lanes_beyond_end": counts.lanes_beyond_end,
        "bytes_beyond_end": counts.bytes_beyond_end,
        "mended": mended.iter().map(mended_json).collect::<Vec<_>>(),
        "further_findings": checked.further_findings,
        "findings": checked.findings.iter().map(finding_json).collect::<Vec<_>>(),
    })
}

fn finding_json(finding: &Finding) -> Value {
    let mut value = json!({
        "kind": finding.kind.name(),
        "server": finding.server.0,
        "inode": finding.inode.map(|inode| inode.to_string()),
        "lost_with_server": finding.lost_with_server,
        "text": finding.text,
        "advice": finding.kind.advice(),
    });
    if let Some(path) = &finding.path {
        put_name(&mut value, "path", path);
    }
    value
}

/// How far the check has come: on standard error, after a second, where that is a terminal.
struct Progress {
    began: Instant,
    /// Inodes, as many entries, and lanes; about.
    expected: Option<u64>,
    bar: Option<ProgressBar>,
}

impl Progress {
    fn new(pool: &Pool, json: bool) -> Result<Progress> {
        let wanted = !json && std::io::stderr().is_terminal();
        let expected = if wanted {
            let reports = pool.status()?;
            let answers = reports.iter().filter_map(|report| report.status.as_ref().ok());
            Some(answers.map(|status| 2 * status.inodes + status.lanes).sum())
        } else {
            None
        };
        Ok(Progress { began: Instant::now(), expected, bar: None })
    }

    fn update(&mut self, counts: &CheckCounts) {
        let Some(expected) = self.expected.filter(|_| self.began.elapsed() >= DELAY) else { return };
        let bar = self.bar.get_or_insert_with(|| new_bar(expected));
        bar.set_position((counts.inodes + counts.entries + counts.lanes).min(expected));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn new_bar(expected: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:32} {human_pos} of {human_len} looked at")
        .expect("the template is constant");
    ProgressBar::with_draw_target(Some(expected), ProgressDrawTarget::stderr_with_hz(10)).with_style(style)
}

#[cfg(test)]
mod tests {
    use ramlace_base::{InodeId, ServerId};
    use ramlace_check::FindingKind;

    use super::*;

    #[test]
    fn a_finding_names_path_server_and_what_to_do() {
        let finding = Finding {
            kind: FindingKind::EntryLeadsNowhere,
            server: ServerId(2),
            inode: Some(InodeId(7)),
            lane: None,
            place: String::new(),
            path: Some(b"/a/b".to_vec()),
            lost_with_server: true,
            text: "'b' leads to inode 7, which is gone".into(),
        };
        let text = sentence(&finding);
        for part in ["server 2", "/a/b", "leads to inode 7", "forgotten", "ramlace rm"] {
            assert!(text.contains(part), "{text}");
        }
        let checked = Checked { findings: vec![finding], ..Checked::default() };
        let value = as_json(&checked, &[], 1.0);
        assert_eq!(
            (&value["clean"], &value["findings"][0]["kind"]),
            (&json!(false), &json!("entry-leads-nowhere"))
        );
    }

    #[test]
    fn what_was_found_beyond_the_limit_is_not_clean() {
        let beyond = Checked { further_findings: 1, ..Checked::default() };
        let value = as_json(&beyond, &[], 1.0);
        assert_eq!((&value["clean"], &value["conclusive"]), (&json!(false), &json!(false)));
        let clean = as_json(&Checked::default(), &[], 1.0);
        assert_eq!((&clean["clean"], &clean["conclusive"]), (&json!(true), &json!(true)));
    }
}
