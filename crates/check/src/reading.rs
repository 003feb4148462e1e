//! One scan: reads what each server holds, page by page, and gives it to [`Check`].

use std::collections::BTreeSet;

use ramlace_base::{Error, ErrorKind, InodeId, Result, ServerId};
use ramlace_wire::ClusterMap;
use ramlace_wire::check::{CheckEntries, CheckInodes, CheckLanes, CheckSlots, CheckStore, TroubleKind};
use ramlace_wire::mend::Mend;

use crate::check::Check;
use crate::findings::{CheckCounts, Checked};
use crate::servers::{LostStores, Servers, pages, serving};

/// Scans all servers once. For `suspects`, paths are reported; `progress` is called with how far it has
/// come, after each page.
///
/// Errors: `Retry` when slots changed hands meanwhile; what [`Servers::ask`] says.
pub(crate) fn scan(
    servers: &impl Servers,
    suspects: BTreeSet<InodeId>,
    lost: &[LostStores],
    progress: &mut impl FnMut(&CheckCounts),
) -> Result<Checked> {
    let map = servers.map()?;
    let asked = serving(&map);
    let mut check = Check::new(&map, suspects);
    for server in &asked {
        read_slots(servers, *server, &mut check, progress)?;
        read_inodes(servers, *server, &mut check, progress)?;
    }
    lost.iter().for_each(|(inode, text)| check.lost_stores(*inode, text));
    for server in &asked {
        read_entries(servers, *server, &mut check, progress)?;
        read_lanes(servers, *server, &mut check, progress)?;
        check.store(&servers.ask(*server, &CheckStore {})?);
        read_numbers_ahead(servers, *server, &mut check, progress)?;
    }
    if servers.map()?.epoch != map.epoch {
        return Err(changed(&map));
    }
    Ok(check.finish())
}

fn read_slots(
    servers: &impl Servers,
    server: ServerId,
    check: &mut Check<'_>,
    progress: &mut impl FnMut(&CheckCounts),
) -> Result<()> {
    pages(servers, server, CheckSlots { after: None }, |page| {
        page.slots.iter().for_each(|facts| check.slot(server, facts));
        progress(check.counts());
        let last = page.slots.last().filter(|_| !page.end)?;
        Some(CheckSlots { after: Some(last.slot) })
    })
}

fn read_inodes(
    servers: &impl Servers,
    server: ServerId,
    check: &mut Check<'_>,
    progress: &mut impl FnMut(&CheckCounts),
) -> Result<()> {
    pages(servers, server, CheckInodes { after: InodeId(0) }, |page| {
        page.inodes.iter().for_each(|facts| check.inode(server, facts));
        page.troubles.iter().for_each(|trouble| check.trouble(server, trouble));
        progress(check.counts());
        let last = page.inodes.last().filter(|_| !page.end)?;
        Some(CheckInodes { after: last.inode })
    })
}

fn read_entries(
    servers: &impl Servers,
    server: ServerId,
    check: &mut Check<'_>,
    progress: &mut impl FnMut(&CheckCounts),
) -> Result<()> {
    pages(servers, server, CheckEntries { after: None }, |page| {
        page.entries.iter().for_each(|facts| check.entry(server, facts));
        progress(check.counts());
        page.next.map(|next| CheckEntries { after: Some(next) })
    })
}

fn read_lanes(
    servers: &impl Servers,
    server: ServerId,
    check: &mut Check<'_>,
    progress: &mut impl FnMut(&CheckCounts),
) -> Result<()> {
    pages(servers, server, CheckLanes { after: None }, |page| {
        page.lanes.iter().for_each(|facts| check.lane(server, facts));
        progress(check.counts());
        let last = page.lanes.last().filter(|_| !page.end)?;
        Some(CheckLanes { after: Some(last.lane) })
    })
}

/// What a server's slots take for finished too early. What is held for an operation that does not exist, the
/// slots themselves have reported.
fn read_numbers_ahead(
    servers: &impl Servers,
    server: ServerId,
    check: &mut Check<'_>,
    progress: &mut impl FnMut(&CheckCounts),
) -> Result<()> {
    pages(servers, server, Mend { repair: false, after: None }, |page| {
        let ahead = page.found.iter().filter(|trouble| trouble.kind == TroubleKind::NumbersAhead);
        ahead.for_each(|trouble| check.trouble(server, trouble));
        progress(check.counts());
        page.next.map(|next| Mend { repair: false, after: Some(next) })
    })
}

fn changed(map: &ClusterMap) -> Error {
    let text =
        format!("the servers' slots changed hands during the check (after {}); check again", map.epoch);
    Error::new(ErrorKind::Retry, text)
}
