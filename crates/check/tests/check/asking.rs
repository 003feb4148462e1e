//! Which requests servers get, how often, and what is kept of several scans.

use ramlace_base::{ErrorKind, InodeId, LaneId, ServerId, Slot, limits};
use ramlace_check::{CheckCounts, FindingKind, check_and_repair, check_pool};
use ramlace_wire::Kind;
use ramlace_wire::check::{Trouble, TroubleKind};

use crate::facts::{good, id, lane, scan};
use crate::servers::Fakes;

fn trouble(kind: TroubleKind, text: &str) -> Trouble {
    Trouble { kind, inode: None, text: text.into() }
}

#[test]
fn a_clean_pool_is_read_once_and_to_the_last_page() {
    let servers = Fakes::new(good());
    let mut told: Vec<CheckCounts> = Vec::new();
    let checked = check_pool(&servers, &[], |counts| told.push(*counts)).unwrap();
    assert_eq!(checked.findings, []);
    assert_eq!((servers.waits.get(), servers.maps.get()), (0, 2));
    let whole = scan(&good()).counts;
    // Inodes without a name are counted in the end.
    assert_eq!(checked.counts, whole);
    assert_eq!(told.last().unwrap().lanes, whole.lanes);
    // Four inodes and a page of two lanes at most are with server 0.
    assert_eq!((servers.count(Kind::CheckInodes), servers.count(Kind::CheckLanes)), (3, 2));
    assert_eq!((servers.count(Kind::CheckStore), servers.count(Kind::MendLanes)), (2, 0));
    assert!(told.is_sorted_by_key(|counts| counts.inodes + counts.entries + counts.lanes));
}

#[test]
fn what_only_one_scan_has_found_was_under_way() {
    let mut facts = good();
    facts.lanes[1].1.generation = None;
    let mut servers = Fakes::new(facts);
    servers.later = |facts| facts.lanes[1].1.generation = good().lanes[1].1.generation;
    assert_eq!(check_pool(&servers, &[], |_| {}).unwrap().findings, []);
    assert_eq!(servers.waits.get(), 1);
}

#[test]
fn what_four_scans_have_found_is_told_with_its_path() {
    let mut facts = good();
    facts.lanes[1].1.generation = None;
    let servers = Fakes::new(facts);
    let checked = check_pool(&servers, &[], |_| {}).unwrap();
    assert_eq!((servers.waits.get(), checked.findings.len()), (3, 1));
    assert_eq!(checked.findings[0].kind, FindingKind::LaneUnknown);
    assert_eq!(checked.findings[0].path.as_deref(), Some(&b"/a/f"[..]));
}

#[test]
fn stores_that_mounts_have_lost_need_no_second_scan() {
    let servers = Fakes::new(good());
    let lost = [(id(1, 1), "some bytes".to_owned())];
    let checked = check_pool(&servers, &lost, |_| {}).unwrap();
    assert_eq!((servers.waits.get(), checked.findings.len()), (0, 1));
    assert_eq!(checked.findings[0].kind, FindingKind::StoresLost);
    assert!(checked.findings[0].path.is_some());
}

#[test]
fn a_scan_while_slots_change_hands_is_no_scan() {
    let mut servers = Fakes::new(good());
    servers.restless = true;
    assert_eq!(check_pool(&servers, &[], |_| {}).unwrap_err().kind(), ErrorKind::Retry);
}

#[test]
fn servers_that_were_forgotten_are_not_asked() {
    let mut facts = good();
    facts.map.servers[1].forgotten = true;
    let servers = Fakes::new(facts);
    check_and_repair(&servers, &[], |_| {}).unwrap();
    assert!(servers.asked.borrow().iter().all(|(server, _)| *server == ServerId(0)));
}

#[test]
fn of_what_servers_doubt_only_numbers_ahead_are_told_by_a_check_that_mends_nothing() {
    let servers = Fakes::new(good());
    *servers.doubts.borrow_mut() = vec![
        (ServerId(0), Slot(3), trouble(TroubleKind::HeldByNobody, "held")),
        (ServerId(0), Slot(5), trouble(TroubleKind::NumbersAhead, "ahead")),
    ];
    let findings = check_pool(&servers, &[], |_| {}).unwrap().findings;
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert_eq!((findings[0].kind, &*findings[0].text), (FindingKind::NumbersAhead, "ahead"));
    assert_eq!(servers.doubts.borrow().len(), 2);
}

/// Lanes of no file, more than one request may name.
fn leaked() -> Vec<LaneId> {
    (0..=limits::MEND_LANES_MAX as u64).map(|number| LaneId { inode: id(2, 100 + number), lane: 0 }).collect()
}

#[test]
fn lanes_are_mended_in_pieces_from_where_the_server_has_stopped_and_looked_at_anew() {
    let mut facts = good();
    facts.lanes.extend(leaked().iter().map(|LaneId { inode, .. }| (ServerId(0), lane(*inode, 0, 10))));
    let mut servers = Fakes::new(facts);
    servers.mends_at_once = limits::MEND_LANES_MAX / 2 + 1;
    let repaired = check_and_repair(&servers, &[], |_| {}).unwrap();
    repaired.ended.unwrap();
    let mended: Vec<Option<InodeId>> = repaired.mended.iter().map(|(_, trouble)| trouble.inode).collect();
    assert_eq!(mended, leaked().iter().map(|lane| Some(lane.inode)).collect::<Vec<_>>());
    let asked: Vec<usize> = servers.lanes_asked.borrow().iter().map(Vec::len).collect();
    assert_eq!(asked, [limits::MEND_LANES_MAX, limits::MEND_LANES_MAX / 2]);
    assert_eq!(repaired.checked.findings, [], "of the scan after the repair");
}

#[test]
fn a_repair_that_ends_early_tells_what_it_has_mended_and_what_was_found_before() {
    let mut facts = good();
    facts.lanes.push((ServerId(0), lane(id(2, 77), 0, 10)));
    let mut servers = Fakes::new(facts);
    *servers.doubts.borrow_mut() =
        vec![(ServerId(0), Slot(3), trouble(TroubleKind::HeldByNobody, "held for nobody"))];
    servers.stubborn = Some(ServerId(1));
    let repaired = check_and_repair(&servers, &[], |_| {}).unwrap();
    assert_eq!(repaired.ended.unwrap_err().kind(), ErrorKind::HostDown);
    let told: Vec<&str> = repaired.mended.iter().map(|(_, trouble)| &*trouble.text).collect();
    assert_eq!(told, ["held for nobody", &*LaneId { inode: id(2, 77), lane: 0 }.to_string()]);
    assert_eq!(repaired.checked.findings[0].kind, FindingKind::LaneLeaked);
}

#[test]
fn a_repair_that_mends_nothing_is_followed_by_no_scan() {
    let servers = Fakes::new(good());
    let repaired = check_and_repair(&servers, &[], |_| {}).unwrap();
    repaired.ended.unwrap();
    assert!(repaired.mended.is_empty());
    // Two for the scan, one for the repair.
    assert_eq!(servers.maps.get(), 3);
}
