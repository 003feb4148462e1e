//! Lanes: whether each belongs to a file, lies where the file's layout says, is as old as the file, and takes what it needs.
//!
//! They come when all inodes are known. Lanes that should be there and are not are reported when the scan ends.

use ramlace_base::{LaneId, ServerId, limits};
use ramlace_layout::{lane_length, lane_slot};
use ramlace_wire::check::{FileFacts, LaneFacts};

use crate::check::Check;
use crate::check::losses::mark_lost;
use crate::kinds::FindingKind;

impl Check<'_> {
    /// A lane that a server holds.
    pub fn lane(&mut self, server: ServerId, facts: &LaneFacts) {
        let counts = &mut self.checked.counts;
        counts.lanes += 1;
        counts.lane_bytes = counts.lane_bytes.saturating_add(facts.allocated_bytes);
        let LaneId { inode, lane } = facts.lane;
        let bytes = facts.allocated_bytes;
        let Some(known) = self.inodes.get(&inode) else {
            let text = format!("lane {lane} of file {inode} takes {bytes} bytes; the file is gone");
            let lost = self.is_lost(inode);
            let finding = self.find_lane(FindingKind::LaneLeaked, server, facts.lane, text);
            return mark_lost(finding, lost);
        };
        let Some(file) = known.file.filter(|file| lane < file.layout.width) else {
            let text = format!("lane {lane} takes {bytes} bytes; inode {inode} has no such lane");
            self.find_lane(FindingKind::LaneMisplaced, server, facts.lane, text);
            return;
        };
        let open = known.open;
        let slot = lane_slot(&file.layout, lane, self.map.slots());
        if self.map.primary(slot) != Some(server) {
            let text = format!("lane {lane} of file {inode} lies in {slot}, which is not with {server}");
            self.find_lane(FindingKind::LaneMisplaced, server, facts.lane, text);
            return;
        }
        if self.began(slot) > file.layout.created {
            self.lanes_in_new_slots.insert(facts.lane);
        }
        if lane >= file.lanes_begun {
            let text = format!(
                "lane {lane} of file {inode} takes {bytes} bytes; the file knows of {} lanes",
                file.lanes_begun
            );
            self.find_lane(FindingKind::LaneUnexpected, server, facts.lane, text);
        }
        self.check_lane_generation(server, facts, &file);
        if facts.lost_below > 0 {
            let text = format!("bytes of lane {lane} of file {inode} were lost with a server");
            let finding = self.find_lane(FindingKind::BytesLost, server, facts.lane, text);
            mark_lost(finding, true);
        }
        if !open && !facts.writing {
            self.check_lane_memory(server, facts, &file);
        }
    }

    fn check_lane_generation(&mut self, server: ServerId, facts: &LaneFacts, file: &FileFacts) {
        let LaneId { inode, lane } = facts.lane;
        let Some(generation) = facts.generation else {
            let text = format!("lane {lane} of file {inode} is in the store and not in the server's table");
            self.find_lane(FindingKind::LaneUnknown, server, facts.lane, text);
            return;
        };
        let wrong = match generation.cmp(&file.generation) {
            std::cmp::Ordering::Less => !file.cutting,
            std::cmp::Ordering::Equal => false,
            std::cmp::Ordering::Greater => true,
        };
        if wrong {
            let text =
                format!("lane {lane} of file {inode} has {generation}; the file has {}", file.generation);
            self.find_lane(FindingKind::GenerationsDiffer, server, facts.lane, text);
        }
    }

    /// No session has the file open: the lane has what it needs and no more.
    fn check_lane_memory(&mut self, server: ServerId, facts: &LaneFacts, file: &FileFacts) {
        let LaneId { inode, lane } = facts.lane;
        let Some(length) = facts.length else { return };
        let wanted = lane_length(&file.layout, lane, file.extent);
        if length > wanted {
            let counts = &mut self.checked.counts;
            counts.lanes_beyond_end += 1;
            // Clients choose how far behind the end they write, each up to 2^62 bytes.
            counts.bytes_beyond_end = counts.bytes_beyond_end.saturating_add(length - wanted);
        }
        let pages = length.checked_next_multiple_of(limits::PAGE_BYTES).unwrap_or(u64::MAX);
        if facts.allocated_bytes > pages && !file.untrimmed && length == wanted {
            let text = format!(
                "lane {lane} of file {inode} has {length} bytes and takes {}, though nobody has it open",
                facts.allocated_bytes
            );
            self.find_lane(FindingKind::LaneUntrimmed, server, facts.lane, text);
        }
    }

    /// Lanes that should have bytes and lie in slots that were lost since.
    pub(super) fn check_absent_lanes(&mut self) {
        if !self.has_lost_servers() {
            return;
        }
        let mut lost = Vec::new();
        for (id, known) in &self.inodes {
            let Some(file) = &known.file else { continue };
            for lane in 0..file.layout.width {
                let slot = lane_slot(&file.layout, lane, self.map.slots());
                let lane = LaneId { inode: *id, lane };
                if self.began(slot) > file.layout.created
                    && lane_length(&file.layout, lane.lane, file.extent) > 0
                    && !self.lanes_in_new_slots.contains(&lane)
                {
                    lost.push((self.map.primary(slot).unwrap_or(known.server), lane));
                }
            }
        }
        for (server, lane) in lost {
            let text = format!("lane {} of file {} was lost with a server", lane.lane, lane.inode);
            let finding = self.find_lane(FindingKind::BytesLost, server, lane, text);
            mark_lost(finding, true);
        }
    }
}
