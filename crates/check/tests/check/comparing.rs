//! `check` finds each kind of damage in facts that were good before, and nothing in good ones.

use ramlace_base::{Epoch, Generation, ServerId};
use ramlace_check::{Check, FindingKind};
use ramlace_wire::check::{Trouble, TroubleKind};
use ramlace_wire::{Chain, FileKind};

use crate::facts::{Facts, PAGE, ROOT, UNIT, directory, entry, good, id, lane, scan, server_of};

/// What is found when the good state is damaged so.
fn found(damage: impl FnOnce(&mut Facts)) -> Vec<FindingKind> {
    let mut facts = good();
    damage(&mut facts);
    let mut kinds: Vec<FindingKind> = scan(&facts).findings.iter().map(|finding| finding.kind).collect();
    kinds.sort();
    kinds
}

#[test]
fn a_good_pool_is_clean_and_is_counted() {
    let checked = scan(&good());
    assert_eq!(checked.findings, []);
    let counts = checked.counts;
    assert_eq!((counts.servers, counts.slots, counts.inodes, counts.entries, counts.lanes), (2, 4, 6, 5, 3));
    assert_eq!((counts.open_without_name, counts.operations), (1, 1));
    assert_eq!(counts.lane_bytes, UNIT + 2 * PAGE);
}

#[test]
fn entries_are_checked() {
    use FindingKind::*;
    // The directory above counts as many directories as lead somewhere.
    assert_eq!(found(|facts| _ = facts.inodes.remove(1)), [EntryLeadsNowhere]);
    assert_eq!(found(|facts| facts.entries[0].misplaced = true), [EntryMisplaced]);
    assert_eq!(found(|facts| facts.entries[1].kind = FileKind::File), [KindsDiffer]);
    let twice = |facts: &mut Facts| {
        let mut again = facts.entries[1].clone();
        again.cookie += 1;
        facts.entries.insert(2, again);
    };
    assert_eq!(found(twice), [NameTwice, LinksMiscounted]);
    let lost_directory = |facts: &mut Facts| {
        facts.entries.push(entry(id(3, 9), 1, "x", id(0, 1), FileKind::Symlink));
        facts.inodes[1].links = 2;
    };
    assert_eq!(found(lost_directory), [EntryOfNoDirectory]);
}

#[test]
fn counts_of_links_are_checked() {
    use FindingKind::*;
    assert_eq!(found(|facts| facts.inodes[3].links = 3), [LinksMiscounted]);
    assert_eq!(found(|facts| facts.inodes[0].links = 4), [LinksMiscounted]);
    assert_eq!(found(|facts| _ = facts.entries.remove(2)), [LinksMiscounted]);
    assert_eq!(found(|facts| _ = facts.entries.remove(1)), [InodeWithoutName]);
    assert_eq!(found(|facts| facts.inodes[5].opens = 0), [InodeLeaked]);
    assert_eq!(found(|facts| facts.inodes.push(directory(id(3, 3), ROOT, 0))), [InodeLeaked]);
    assert_eq!(found(|facts| facts.inodes.push(directory(id(3, 3), ROOT, 2))), [InodeWithoutName]);
    // What is just being made or removed is not counted yet.
    assert_eq!(found(|facts| (facts.inodes[3].links, facts.inodes[3].held) = (3, true)), []);
}

#[test]
fn what_is_made_and_removed_all_the_time_is_no_damage() {
    use FindingKind::LinksMiscounted;
    let scan_with = |directories: u32, entries: u32| {
        let mut facts = good();
        (facts.inodes[0].links, facts.inodes[3].links) = (directories, entries);
        scan(&facts)
    };
    let first = scan_with(4, 3);
    for (directories, entries, found) in
        [(5, 4, &[][..]), (4, 4, &[LinksMiscounted]), (5, 3, &[LinksMiscounted])]
    {
        let mut second = scan_with(directories, entries);
        second.keep_found_by(&first);
        let kinds: Vec<FindingKind> = second.findings.iter().map(|finding| finding.kind).collect();
        assert_eq!(kinds, found, "{directories} {entries}");
    }
}

#[test]
fn directories_are_checked() {
    use FindingKind::*;
    assert_eq!(found(|facts| facts.inodes[4].parent = Some(ROOT)), [ParentDiffers]);
    let second_parent = |facts: &mut Facts| {
        facts.entries.push(entry(ROOT, 9, "b", id(2, 0), FileKind::Directory));
        facts.inodes[0].links = 4;
    };
    let found_so = found(second_parent);
    assert!(found_so.contains(&DirectoryTwice), "{found_so:?}");
    // a in b and b in a.
    let cycle = |facts: &mut Facts| {
        facts.entries[0].directory = id(2, 0);
        facts.inodes[2].parent = Some(id(2, 0));
        (facts.inodes[0].links, facts.inodes[4].links) = (2, 3);
    };
    assert_eq!(found(cycle), [DirectoryCycle]);
}

#[test]
fn lanes_are_checked() {
    use FindingKind::*;
    let leaked = lane(id(2, 77), 0, 10);
    assert_eq!(found(|facts| facts.lanes.push((ServerId(0), leaked))), [LaneLeaked]);
    assert_eq!(found(|facts| facts.lanes[0].0 = ServerId(1)), [LaneMisplaced]);
    assert_eq!(found(|facts| facts.lanes[1].1.lane.lane = 2), [LaneMisplaced]);
    assert_eq!(found(|facts| facts.lanes[1].1.lane.inode = id(1, 0)), [LaneMisplaced]);
    assert_eq!(found(|facts| facts.lanes[0].1.generation = None), [LaneUnknown]);
    assert_eq!(found(|facts| facts.lanes[0].1.generation = Some(Generation(4))), [GenerationsDiffer]);
    assert_eq!(found(|facts| facts.lanes[0].1.generation = Some(Generation(2))), [GenerationsDiffer]);
    let unexpected = |facts: &mut Facts| facts.inodes[3].file.as_mut().unwrap().lanes_begun = 1;
    assert_eq!(found(unexpected), [LaneUnexpected]);
    let cutting = |facts: &mut Facts| {
        facts.lanes[0].1.generation = Some(Generation(2));
        facts.inodes[3].file.as_mut().unwrap().cutting = true;
    };
    assert_eq!(found(cutting), []);
    assert_eq!(found(|facts| facts.lanes[1].1.allocated_bytes = 2 * PAGE), [LaneUntrimmed]);
    let open = |facts: &mut Facts| {
        facts.lanes[1].1.allocated_bytes = 2 * PAGE;
        facts.inodes[3].opens = 1;
    };
    assert_eq!(found(open), []);
    assert_eq!(found(|facts| facts.lanes[0].1.lost_below = 1), [BytesLost]);
}

#[test]
fn stores_that_a_mount_has_lost_are_told_with_their_path_and_those_of_files_that_are_gone_are_not() {
    let facts = good();
    let file = facts.inodes[3].inode;
    let mut check = Check::new(&facts.map, [file].into());
    facts.slots.iter().for_each(|slot| check.slot(server_of(slot.slot.0), slot));
    facts.inodes.iter().for_each(|inode| check.inode(server_of(inode.inode.slot().0), inode));
    check.lost_stores(file, "some bytes");
    check.lost_stores(id(2, 77), "bytes of nobody");
    facts.entries.iter().for_each(|entry| check.entry(server_of(entry.directory.slot().0), entry));
    facts.lanes.iter().for_each(|(server, lane)| check.lane(*server, lane));
    facts.stores.iter().for_each(|store| check.store(store));
    let findings = check.finish().findings;
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert_eq!((findings[0].kind, findings[0].inode), (FindingKind::StoresLost, Some(file)));
    assert!(findings[0].path.is_some() && findings[0].text == "some bytes");
}

#[test]
fn bytes_of_writes_that_were_never_completed_are_counted_and_no_damage() {
    let mut facts = good();
    facts.lanes[1].1 = lane(id(1, 1), 1, 5 * PAGE);
    let checked = scan(&facts);
    assert_eq!(checked.findings, []);
    assert_eq!((checked.counts.lanes_beyond_end, checked.counts.bytes_beyond_end), (1, 5 * PAGE - 100));
}

/// Clients choose where they write: a sum over what they chose has no end, and `check` once fell over it.
#[test]
fn bytes_far_behind_the_end_are_counted_as_far_as_numbers_go() {
    let mut facts = good();
    let far = lane(id(1, 1), 1, 1 << 62);
    let server = facts.lanes[1].0;
    facts.lanes.extend((0..8).map(|_| (server, far)));
    let checked = scan(&facts);
    assert_eq!((checked.counts.lanes_beyond_end, checked.counts.bytes_beyond_end), (8, u64::MAX));
}

#[test]
fn books_slots_and_operations_are_checked() {
    use FindingKind::*;
    assert_eq!(found(|facts| facts.stores[0].summed_bytes = 4), [CounterDiffers]);
    assert_eq!(found(|facts| facts.stores[1].kernel_bytes = Some(8)), [KernelDiffers]);
    assert_eq!(found(|facts| facts.stores[1].kernel_bytes = None), []);
    assert_eq!(
        found(|facts| facts.map.chains[3].servers = vec![ServerId(0)]),
        [SlotMisplaced, LaneMisplaced]
    );
    assert_eq!(found(|facts| facts.slots[1].asked.clear()), [HeldByNobody]);
    assert_eq!(found(|facts| facts.slots[1].asked[0].1 = 8), [HeldByNobody]);
    let trouble = Trouble { kind: TroubleKind::SessionGone, inode: None, text: "x".into() };
    assert_eq!(found(|facts| facts.slots[1].troubles.push(trouble)), [SessionGone]);
}

#[test]
fn what_was_lost_with_a_server_is_told_as_such() {
    let mut facts = good();
    facts.map.servers[1].forgotten = true;
    // Slot 3, in which lane 1 lies, has begun anew; so has slot 1 with /a.
    for slot in [1, 3] {
        facts.map.chains[slot] = Chain { servers: vec![ServerId(0)], complete_since: Epoch(2) };
    }
    facts.slots.retain(|slot| slot.slot.0 % 2 == 0);
    facts.slots[1].held.clear();
    facts.inodes.retain(|inode| inode.inode.slot().0 % 2 == 0);
    facts.entries.retain(|entry| entry.directory == ROOT);
    facts.lanes.retain(|(server, _)| *server == ServerId(0));
    facts.stores.truncate(1);
    let checked = scan(&facts);
    let kinds: Vec<FindingKind> = checked.findings.iter().map(|finding| finding.kind).collect();
    assert!(kinds.contains(&FindingKind::EntryLeadsNowhere) && kinds.contains(&FindingKind::LaneLeaked));
    assert!(checked.findings.iter().all(|finding| finding.lost_with_server), "{:?}", checked.findings);

    // A file whose home is left has lost the bytes that lay elsewhere.
    let mut facts = good();
    facts.map.servers[1].forgotten = true;
    facts.map.chains[3] = Chain { servers: vec![ServerId(0)], complete_since: Epoch(2) };
    facts.slots.remove(3);
    facts.lanes.remove(1);
    let checked = scan(&facts);
    assert_eq!(checked.findings.len(), 1, "{:?}", checked.findings);
    assert_eq!(checked.findings[0].kind, FindingKind::BytesLost);
    assert!(checked.findings[0].lost_with_server);
}

#[test]
fn findings_have_paths_and_two_scans_keep_what_both_have_found() {
    let mut facts = good();
    facts.lanes[1].1.generation = None;
    let first = scan(&facts);
    assert_eq!(first.findings[0].path.as_deref(), Some(&b"/a/f"[..]));
    assert_eq!(first.findings[0].server, ServerId(1));
    facts.lanes[0].1.generation = None;
    let mut second = scan(&facts);
    assert_eq!(second.findings.len(), 2);
    second.keep_found_by(&first);
    assert_eq!(second.findings, first.findings);
    second.keep_found_by(&scan(&good()));
    assert_eq!(second.findings, []);
}
