//! Whether everything in a pool fits together: reads what each server holds, page by page, and
//! hands it to [`ramlace_namespace::Check`]. Changes nothing.

use std::collections::BTreeSet;
use std::time::Duration;

use ramlace_base::{Error, ErrorKind, InodeId, Result, ServerId};
use ramlace_namespace::{Check, CheckCounts, Checked};
use ramlace_wire::check::{CheckEntries, CheckInodes, CheckLanes, CheckSlots, CheckStore};
use ramlace_wire::{ClusterMap, Request};

use crate::pool::Pool;

/// Looks at a pool that has something wrong: what was only under way is over by then.
const LOOKS_MAX: u32 = 4;
/// Between two looks: an errand takes milliseconds, and half a second where its server was away.
const PAUSE_BETWEEN_LOOKS: Duration = Duration::from_millis(1_500);

impl Pool {
    /// Reads what all servers hold and tells what does not fit together. While something is found it
    /// looks again, up to four times, and tells what every look has found: a pool may be checked
    /// while it is used. `progress` is told how far it has come, after each page. Takes some 150
    /// bytes of this process's memory for each inode.
    ///
    /// Errors: `HostDown` when a server does not answer: a part of a pool cannot be checked.
    pub fn check(&self, mut progress: impl FnMut(&CheckCounts)) -> Result<Checked> {
        let mut checked = self.look(BTreeSet::new(), &mut progress)?;
        for _ in 1..LOOKS_MAX {
            if checked.findings.is_empty() {
                break;
            }
            std::thread::sleep(PAUSE_BETWEEN_LOOKS);
            let mut newer = self.look(checked.suspects(), &mut progress)?;
            newer.keep_found_by(&checked);
            checked = newer;
        }
        Ok(checked)
    }

    fn look(&self, suspects: BTreeSet<InodeId>, progress: &mut impl FnMut(&CheckCounts)) -> Result<Checked> {
        let map = self.refresh_map()?;
        let servers: Vec<ServerId> =
            map.servers.iter().filter(|entry| !entry.forgotten).map(|entry| entry.server).collect();
        let mut check = Check::new(&map, suspects);
        for server in &servers {
            self.read_slots(*server, &mut check, progress)?;
            self.read_inodes(*server, &mut check, progress)?;
        }
        for server in &servers {
            self.read_entries(*server, &mut check, progress)?;
            self.read_lanes(*server, &mut check, progress)?;
            check.store(&self.page(*server, &CheckStore {})?);
        }
        if self.refresh_map()?.epoch != map.epoch {
            return Err(changed(&map));
        }
        Ok(check.finish())
    }

    fn read_slots(
        &self,
        server: ServerId,
        check: &mut Check<'_>,
        progress: &mut impl FnMut(&CheckCounts),
    ) -> Result<()> {
        let mut after = None;
        loop {
            let page = self.page(server, &CheckSlots { after })?;
            page.slots.iter().for_each(|facts| check.slot(server, facts));
            progress(check.counts());
            match page.slots.last() {
                Some(last) if !page.end => after = Some(last.slot),
                _ => return Ok(()),
            }
        }
    }

    fn read_inodes(
        &self,
        server: ServerId,
        check: &mut Check<'_>,
        progress: &mut impl FnMut(&CheckCounts),
    ) -> Result<()> {
        let mut after = InodeId(0);
        loop {
            let page = self.page(server, &CheckInodes { after })?;
            page.inodes.iter().for_each(|facts| check.inode(server, facts));
            page.troubles.iter().for_each(|trouble| check.trouble(server, trouble));
            progress(check.counts());
            match page.inodes.last() {
                Some(last) if !page.end => after = last.inode,
                _ => return Ok(()),
            }
        }
    }

    fn read_entries(
        &self,
        server: ServerId,
        check: &mut Check<'_>,
        progress: &mut impl FnMut(&CheckCounts),
    ) -> Result<()> {
        let mut after = None;
        loop {
            let page = self.page(server, &CheckEntries { after })?;
            page.entries.iter().for_each(|facts| check.entry(server, facts));
            progress(check.counts());
            after = page.next;
            if after.is_none() {
                return Ok(());
            }
        }
    }

    fn read_lanes(
        &self,
        server: ServerId,
        check: &mut Check<'_>,
        progress: &mut impl FnMut(&CheckCounts),
    ) -> Result<()> {
        let mut after = None;
        loop {
            let page = self.page(server, &CheckLanes { after })?;
            page.lanes.iter().for_each(|facts| check.lane(server, facts));
            progress(check.counts());
            match page.lanes.last() {
                Some(last) if !page.end => after = Some(last.lane),
                _ => return Ok(()),
            }
        }
    }

    fn page<R: Request>(&self, server: ServerId, request: &R) -> Result<R::Reply> {
        let session = self.session()?;
        session.ask_server(server, request, session.deadline())
    }
}

fn changed(map: &ClusterMap) -> Error {
    let text =
        format!("the servers' slots changed hands during the check (after {}); check again", map.epoch);
    Error::new(ErrorKind::Retry, text)
}
