//! `status --leases` and `doctor FILE`: which sessions' kernels have which bytes, which wait for which, and
//! where they block each other.

use std::collections::BTreeMap;

use ramlace_base::units::format_bytes;
use ramlace_base::{InodeId, Result, SessionId};
use ramlace_client::{Locator, Pool};
use ramlace_wire::holders::{FoughtPage, HeldPlace, Holder, Holders, PageWait, WaitsTo};
use ramlace_wire::{Layout, ServerEntry};
use serde_json::{Value, json};

use crate::show::{duration_text, escaped, hex, silence};

/// A page that was taken as often, and as often in a second, is fought for.
const FIGHT_CHANGES_MIN: u64 = 10;
const FIGHT_CHANGES_PER_SECOND_MIN: u64 = 1;

/// What all servers know of the bytes in kernels.
pub struct Leases {
    places: Vec<HeldPlace>,
    left_out: u64,
    silent: Vec<(u16, String)>,
    /// Of one file: where its lanes lie in it.
    layout: Option<Layout>,
    names: BTreeMap<SessionId, String>,
}

impl Leases {
    /// Of the pool.
    pub fn ask(pool: &Pool) -> Result<Leases> {
        Ok(Leases::told(pool.holders(None)?, None))
    }

    /// Of one file.
    pub fn of_file(pool: &Pool, locator: &Locator) -> Result<Leases> {
        let info = pool.stat(&locator.path)?;
        Ok(Leases::told(pool.holders(Some(info.attributes.inode))?, info.layout))
    }

    fn told(told: Vec<(ServerEntry, Result<Holders>)>, layout: Option<Layout>) -> Leases {
        let mut leases =
            Leases { places: Vec::new(), left_out: 0, silent: Vec::new(), layout, names: BTreeMap::new() };
        for (entry, holders) in told {
            match holders {
                Ok(holders) => {
                    leases.places.extend(holders.places);
                    leases.left_out += holders.left_out;
                }
                Err(error) => leases.silent.push((entry.server.0, error.message().to_owned())),
            }
        }
        for place in &leases.places {
            let holders = place.holders.iter().map(|holder| (holder.session, &holder.label));
            let waits = place.waits.iter().map(|wait| (wait.session, &wait.label));
            let storers = place.storers.iter().map(|storer| (storer.session, &storer.label));
            for (session, label) in holders.chain(waits).chain(storers) {
                leases.names.entry(session).or_insert_with(|| label.clone());
            }
        }
        leases
    }

    /// Whether every server has answered.
    pub fn is_complete(&self) -> bool {
        self.silent.is_empty()
    }

    /// For people.
    pub fn lines(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.places.iter().flat_map(|place| self.place_lines(place)).collect();
        if self.places.is_empty() {
            lines.push(
                "No kernel has pages of it by a lease, and no program stores into its memory.".to_owned(),
            );
        }
        if self.left_out > 0 {
            lines.push(format!("{} more places about which less happens.", self.left_out));
        }
        lines.extend(self.silent.iter().map(|(server, why)| silence(*server, None, why)));
        lines
    }

    fn place_lines(&self, place: &HeldPlace) -> Vec<String> {
        let mut lines = vec![title(place)];
        lines.extend(self.storers_line(place).map(|line| format!("  {line}")));
        lines.extend(place.holders.iter().map(|holder| format!("  {}", self.holder_line(holder))));
        lines.extend(place.waits.iter().map(|wait| format!("  {}", self.wait_line(place, wait))));
        let fights = place.fought.iter().filter(|page| is_fight(page));
        lines.extend(fights.map(|page| format!("  {}", self.fight_line(place, page))));
        lines
    }

    fn storers_line(&self, place: &HeldPlace) -> Option<String> {
        let programs = place.storers.iter().map(|storer| self.name(storer.session));
        let kernel = place.passed_through.then(|| "a mount with --passthrough".to_owned());
        let who: Vec<String> = programs.chain(kernel).collect();
        let verb = if who.len() > 1 { "store" } else { "stores" };
        (!who.is_empty()).then(|| {
            let who = who.join(" and ");
            format!("{who} {verb} into its memory without asking: kernels keep no pages of it, and read them again")
        })
    }

    fn holder_line(&self, holder: &Holder) -> String {
        let has = match (holder.owned_bytes, holder.shares) {
            (0, true) => "may have pages, as others".to_owned(),
            (0, false) => "has none any more".to_owned(),
            (bytes, _) => format!("alone has {}", format_bytes(bytes)),
        };
        let mut line = format!("{} {has}", self.name(holder.session));
        if holder.fenced {
            line += "; it did not answer, and is waited for no longer";
        } else if holder.recalls > 0 {
            let (count, age) = (holder.recalls, duration_text(holder.millis));
            line += &format!("; it has yet to give up {count} ranges, for {age}");
        }
        line
    }

    fn wait_line(&self, place: &HeldPlace, wait: &PageWait) -> String {
        let blockers: Vec<String> = wait.blockers.iter().map(|session| self.name(*session)).collect();
        let (what, at) = (word(wait.to), self.offset(place, wait.start));
        let length = format_bytes(wait.end - wait.start);
        format!(
            "{} waits to {what} {length} at {at}, for {}",
            self.name(wait.session),
            blockers.join(" and ")
        )
    }

    fn fight_line(&self, place: &HeldPlace, page: &FoughtPage) -> String {
        let sides: Vec<String> = page.sides.iter().map(|session| self.name(*session)).collect();
        format!(
            "the page at {} changed sides {} times in {}, last {} ago, between {}: data of each on pages of its own, \
             or longer turns, would help",
            self.offset(place, page.offset),
            page.changes,
            duration_text(page.millis),
            duration_text(page.since_millis),
            sides.join(" and ")
        )
    }

    /// Within the file, where that is known.
    fn offset(&self, place: &HeldPlace, offset: u64) -> u64 {
        match (self.layout, place.lane) {
            (Some(layout), Some(lane)) => ramlace_layout::file_offset(&layout, lane, offset),
            _ => offset,
        }
    }

    /// Two processes on different machines may have one number: the session distinguishes them.
    fn name(&self, session: SessionId) -> String {
        let short = &hex(&session.0)[..8];
        match self.names.get(&session) {
            Some(label) => format!("{} [{short}]", escaped(label.as_bytes())),
            None => format!("[{short}]"),
        }
    }

    /// For programs. Offsets are within the file where one was asked about, else within the lane.
    pub fn json(&self) -> Value {
        let places: Vec<Value> = self.places.iter().map(|place| self.place_json(place)).collect();
        let silent: Vec<Value> =
            self.silent.iter().map(|(server, why)| json!({"server": server, "why": why})).collect();
        json!({"places": places, "left_out": self.left_out, "silent": silent})
    }

    fn place_json(&self, place: &HeldPlace) -> Value {
        let name = |session: &SessionId| self.name(*session);
        let holders = place.holders.iter().map(|holder| {
            json!({
                "who": name(&holder.session), "shares": holder.shares, "owned_bytes": holder.owned_bytes,
                "recalls": holder.recalls, "oldest_recall_millis": holder.millis, "fenced": holder.fenced,
            })
        });
        let waits = place.waits.iter().map(|wait| {
            json!({
                "who": name(&wait.session), "to": word(wait.to), "offset": self.offset(place, wait.start),
                "bytes": wait.end - wait.start, "for": wait.blockers.iter().map(name).collect::<Vec<_>>(),
            })
        });
        let fought = place.fought.iter().map(|page| {
            json!({
                "offset": self.offset(place, page.offset), "changes": page.changes, "millis": page.millis,
                "since_millis": page.since_millis, "between": page.sides.iter().map(name).collect::<Vec<_>>(),
                "fight": is_fight(page),
            })
        });
        json!({
            "inode": inode_text(place.inode), "lane": place.lane, "holders": holders.collect::<Vec<_>>(),
            "waits": waits.collect::<Vec<_>>(), "pages": fought.collect::<Vec<_>>(),
            "storers": place.storers.iter().map(|storer| name(&storer.session)).collect::<Vec<_>>(),
            "passed_through": place.passed_through,
        })
    }
}

fn title(place: &HeldPlace) -> String {
    match place.lane {
        Some(lane) => format!("Inode {}, lane {lane}:", inode_text(place.inode)),
        None => format!("Inode {}, its own bytes:", inode_text(place.inode)),
    }
}

fn inode_text(inode: InodeId) -> String {
    format!("{:016x}", inode.0)
}

fn word(to: WaitsTo) -> &'static str {
    match to {
        WaitsTo::Look => "look at",
        WaitsTo::Share => "share",
        WaitsTo::Read => "read",
        WaitsTo::Own => "own",
        WaitsTo::Write => "write",
    }
}

fn is_fight(page: &FoughtPage) -> bool {
    let often = page.changes >= FIGHT_CHANGES_MIN && page.sides.len() > 1;
    often && page.changes.saturating_mul(1_000) >= page.millis.saturating_mul(FIGHT_CHANGES_PER_SECOND_MIN)
}
