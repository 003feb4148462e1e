//! Every limit of ramlace, with its unit in its name, in one place.
//!
//! Memory is a function of these numbers: docs/LIMITS.md adds them up.

/// Longest name of an entry.
pub const NAME_BYTES_MAX: usize = 255;
/// Longest path that the client resolves.
pub const PATH_BYTES_MAX: usize = 4096;
/// Names that one request follows.
pub const WALK_NAMES_MAX: usize = 64;
/// Longest target of a symbolic link.
pub const SYMLINK_BYTES_MAX: usize = 4095;
/// Symbolic links followed in one resolution.
pub const SYMLINK_DEPTH_MAX: usize = 40;
/// Largest file: offsets fit a signed 64-bit number with room for alignment.
pub const FILE_BYTES_MAX: u64 = 1 << 62;

/// Smallest stripe unit.
pub const STRIPE_UNIT_BYTES_MIN: u64 = 64 << 10;
/// Largest stripe unit.
pub const STRIPE_UNIT_BYTES_MAX: u64 = 1 << 30;
/// Stripe unit unless another is configured: one huge page.
pub const STRIPE_UNIT_BYTES_DEFAULT: u64 = 2 << 20;
/// Parts of a new file that are wanted on certain machines.
pub const PARTS_MAX: usize = 65_536;
/// Most lanes of one file.
pub const WIDTH_LANES_MAX: u16 = 4096;
/// Pieces from which one mapping is stitched, at most.
pub const MAPPING_PIECES_MAX: u64 = 8192;

/// Largest file whose bytes live with its inode.
pub const INLINE_BYTES_MAX: usize = 4 << 10;
/// Bytes of such files that one server keeps; those of more files go to their lanes.
pub const INLINE_BYTES_PER_SERVER_MAX: u64 = 256 << 20;
/// And no more than this part of its store.
pub const INLINE_STORE_FRACTION: u64 = 16;

/// Slots of a pool unless another number is configured.
pub const SLOTS_DEFAULT: u32 = 4096;
/// Most slots of a pool.
pub const SLOTS_MAX: u32 = 65_536;
/// Fewest slots for each server.
pub const SLOTS_PER_SERVER_MIN: u32 = 16;
/// One slot in so many follows the one before it by machines, not by servers' numbers; each server has at least two such.
pub const SLOTS_BY_MACHINES_DIVISOR: u32 = 8;
/// Most servers of a pool.
pub const SERVERS_MAX: u32 = SLOTS_MAX / SLOTS_PER_SERVER_MIN;
/// Most copies of a chunk.
pub const COPIES_MAX: u8 = 3;
/// Most servers in the chain of a slot: the copies, and room for a hand-over from each to another.
pub const CHAIN_SERVERS_MAX: usize = 2 * COPIES_MAX as usize;

/// Reads and writes up to here, within one chunk, are staged and atomic.
pub const STAGED_BYTES_MAX: usize = 64 << 10;
/// Bytes of all runs of one message.
pub const RUNS_BYTES_MAX: u32 = 1 << 20;
/// Runs that one message is about: some 2 ms of a server, whatever their lengths.
pub const RUNS_PER_REQUEST_MAX: u64 = 4096;
/// Bulk bytes behind one message.
pub const DATA_BYTES_MAX: u32 = 8 << 20;
/// Body of one message, in postcard.
pub const BODY_BYTES_MAX: u32 = 1 << 20;
/// Attributes given at creation (shape, type): all names and values of one inode.
pub const ATTRIBUTES_BYTES_MAX: usize = 4096;
/// Longest name of an extended attribute.
pub const XATTR_NAME_BYTES_MAX: usize = 255;
/// Longest value of an extended attribute.
pub const XATTR_VALUE_BYTES_MAX: usize = 64 << 10;
/// Names and values of all extended attributes of one inode.
pub const XATTRS_PER_INODE_BYTES_MAX: usize = 128 << 10;
/// Names of all extended attributes of one inode, each with the byte that ends it in a list: what
/// Linux lists at most.
pub const XATTR_LIST_BYTES_MAX: usize = 64 << 10;
/// Entries of an access control list: what a kernel's FUSE takes and shows, in one page.
pub const ACCESS_LIST_ENTRIES_MAX: usize = 511;
/// Entries in one readdir reply.
pub const READDIR_ENTRIES_MAX: u32 = 1024;
/// Partitions of a directory that is spread over slots; a power of two.
pub const DIRECTORY_PARTITIONS: usize = 16;
/// A directory with so many entries is spread over slots, when the pool has several servers.
pub const DIRECTORY_WHOLE_ENTRIES_MAX: u64 = 8192;
/// Entries that one message moves to another slot when a directory is spread.
pub const DIRECTORY_MOVED_ENTRIES_MAX: usize = 1024;
/// Callers that want one spread directory removed, and that together receive the answer whether it is empty.
pub const DIRECTORY_REMOVERS_MAX: usize = 256;
/// Spread directories whose slots a client remembers.
pub const DIRECTORIES_REMEMBERED_MAX: usize = 1024;
/// Lanes, inodes and entries in one page of what `check` reads: a page keeps a server busy for
/// a few milliseconds.
pub const CHECK_LANES_MAX: usize = 4096;
/// See [`CHECK_LANES_MAX`].
pub const CHECK_INODES_MAX: usize = 4096;
/// See [`CHECK_LANES_MAX`].
pub const CHECK_ENTRIES_MAX: usize = 2048;
/// A page of slots ends when it contains more slots, operations and troubles than this.
pub const CHECK_SLOT_FACTS_MAX: usize = 4096;
/// Troubles that a page lists; further ones are found when these are mended.
pub const CHECK_TROUBLES_MAX: usize = 512;
/// Slots that one step of `check --repair` asks for their operations, one after the other, within a request's time.
pub const MEND_COORDINATORS_MAX: usize = 64;
/// Lanes that one step of it mends.
pub const MEND_LANES_MAX: usize = 64;
/// Text of an error on the wire.
pub const ERROR_TEXT_BYTES_MAX: usize = 1024;

/// Connections of one process to one server, besides the control connection.
pub const CONNECTIONS_PER_SERVER_MAX: usize = 8;
/// Connections of one session to one server: those, and the few that only wait.
pub const CONNECTIONS_PER_SESSION_MAX: usize = 64;
/// Connections that one server holds, of all clients.
pub const CONNECTIONS_MAX: usize = 4096;
/// Connections that have not yet proved a key; and, counted separately, connections whose first message was
/// valid and whose second is still missing.
pub const CONNECTIONS_UNPROVEN_MAX: usize = 64;
/// Connections to a server's `--metrics` address at a time; further ones wait.
pub const METRICS_CONNECTIONS_MAX: usize = 16;
/// A request there.
pub const METRICS_REQUEST_BYTES_MAX: usize = 8 << 10;
/// The time that one may take.
pub const METRICS_MILLIS_MAX: u64 = 5000;
/// What is kept of the name that a session calls itself by.
pub const LABEL_BYTES_MAX: usize = 64;
/// Sessions that one server holds.
pub const SESSIONS_MAX: usize = 4096;
/// Of these, those of hosts: the pool's owner always gets one.
pub const SESSIONS_OF_HOSTS_MAX: usize = SESSIONS_MAX - 256;
/// Names that the keys of a pool's hosts may have.
pub const HOST_KEYS_MAX: usize = 1024;
/// Inodes that one session may hold open at one server.
pub const OPEN_INODES_PER_SESSION_MAX: usize = 65_536;
/// Of these, those that no program has open any more, and that a mount closes later.
pub const CLOSES_DEFERRED_PER_SESSION_MAX: usize = 16_384;
/// How long after its last close by a program a mount closes a file at its home, if it was only read.
pub const CLOSE_DEFERRED_MILLIS: u64 = 10_000;
/// Replies of one session kept in one slot.
pub const REPLIES_PER_SESSION_MAX: usize = 1024;
/// Changes of bytes in lanes that are remembered of one session in one slot.
pub const LANE_WRITES_PER_SESSION_MAX: usize = 4096;
/// Mutations of programs that a session begins in one slot before the oldest of them is answered. What is left of the
/// two limits above is for what kernels write back, which waits for no program's call.
pub const PROGRAM_MUTATIONS_PER_SLOT_MAX: usize = 768;
/// Bytes of kept replies of one session, over all slots of a server.
pub const KEPT_REPLIES_PER_SESSION_BYTES_MAX: usize = 32 << 20;
/// Bytes of kept replies of all sessions of a server.
pub const KEPT_REPLIES_PER_SERVER_BYTES_MAX: usize = 256 << 20;
/// A session that holds no more than these continues beyond that.
pub const KEPT_REPLIES_ALWAYS_BYTES: usize = 64 << 10;
/// Append reservations of one file that are not finished yet.
pub const APPEND_RESERVATIONS_MAX: usize = 1024;
/// Entries that lead to one file.
pub const LINKS_PER_FILE_MAX: u32 = 65_000;
/// Supplementary groups of a user: every request made for the user names them.
pub const GROUPS_MAX: usize = 256;
/// Operations across two slots that one slot coordinates and that are not finished yet.
pub const INTENTS_PER_SLOT_MAX: usize = 4096;
/// Pending messages of one slot to others, before it refuses operations that would add more.
pub const DELIVERIES_PER_SLOT_MAX: usize = 65_536;
/// Truncations of one file that some lane has not received yet.
pub const TRUNCATIONS_UNRECEIVED_MAX: usize = 1024;
/// Locks held on one file, each a range of one owner and kind.
pub const LOCKS_PER_INODE_MAX: usize = 4096;
/// Locks that one session holds or waits for in one slot.
pub const LOCKS_PER_SESSION_MAX: u64 = 65_536;
/// Requests that wait for locks of one file.
pub const LOCK_WAITERS_PER_INODE_MAX: usize = 1024;
/// Locks for which one session waits in one slot.
pub const LOCK_WAITS_PER_SESSION_MAX: u64 = 4096;
/// Locks for which one process waits: those of all its files.
pub const LOCK_WAITS_PER_PROCESS_MAX: usize = 16_384;
/// Files of a directory that begin with its server, where nothing else is asked for.
pub const FILES_BEGIN_AT_HOME_MAX: u64 = 128;
/// Changes of one slot in one message.
pub const CHANGES_PER_MESSAGE_MAX: usize = 512;
/// Bytes of their bodies together.
pub const CHANGES_BYTES_PER_MESSAGE_MAX: usize = 256 << 10;
/// How old a change may be that was promised under a delegation and not sent.
pub const BEHIND_MILLIS_MAX: u64 = 100;
/// How long a caller that needs a delegated slot waits for the session to which it is delegated.
pub const DELEGATION_RECALL_MILLIS_MAX: u64 = 2_500;
/// Holders are notified again after this time, while a caller waits.
pub const DELEGATION_NOTIFIED_AGAIN_MILLIS: u64 = 300;
/// After another caller has asked for a slot, the slot is not delegated for this time.
pub const DELEGATION_REST_MILLIS: u64 = 1_000;
/// A delegation under which nothing was promised for this time is given back.
pub const DELEGATION_IDLE_MILLIS: u64 = 2_000;
/// Delegations of one server.
pub const DELEGATIONS_PER_SERVER_MAX: usize = 256;
/// Memory that a server withholds from lanes for what is promised under one delegation.
pub const DELEGATION_BYTES_WITHHELD: u64 = 1 << 20;
/// Of a store, and of the inodes that there may be, at most this part is withheld for delegations.
pub const DELEGATIONS_FRACTION: u64 = 16;
/// A directory with so many entries is not delegated: it may be spread soon.
pub const DELEGATED_ENTRIES_MAX: u64 = 4_096;
/// Events in one answer.
pub const EVENTS_PER_ANSWER_MAX: usize = 1024;
/// How long a server that has no news leaves a session's long poll unanswered: the next one shows that the
/// session lives.
pub const LISTEN_MILLIS_MAX: u64 = HEARTBEAT_MILLIS;
/// Name of a barrier.
pub const BARRIER_NAME_BYTES_MAX: usize = 255;
/// Members of one barrier.
pub const BARRIER_PARTIES_MAX: u32 = 4096;
/// A machine's name, as a barrier remembers it of each member.
pub const BARRIER_HOST_BYTES_MAX: usize = 64;
/// Members that one answer names as missing.
pub const BARRIER_MISSING_MAX: usize = 64;
/// Members of barriers that one server remembers.
pub const BARRIER_MEMBERS_PER_SERVER_MAX: u64 = 65_536;
/// Waits of one process at barriers and for changes.
pub const PARKED_PER_PROCESS_MAX: usize = 4096;
/// Lanes for which one wait can be notified of a change.
pub const WATCH_LANES_MAX: usize = 64;
/// Lanes and inodes whose changes one server remembers for clients that ask.
pub const WATCHES_PER_SERVER_MAX: usize = 4096;
/// Latest changes remembered of each.
pub const WATCH_CHANGES_MAX: usize = 64;
/// Mappings of lanes for stores, of all sessions in one slot; one more is refused (`TooMany`).
pub const MAPPINGS_PER_SLOT_MAX: usize = 65_536;
/// Waits for a change at one server, of all sessions.
pub const WATCH_WAITS_PER_SERVER_MAX: usize = 65_536;
/// How long a lease lasts, from before the request for it leaves.
pub const LEASE_MILLIS: u64 = 500;
/// What a server waits beyond that for a holder that says nothing: clocks run at different rates, and a kernel
/// may take in an answer a little after it was written.
pub const LEASE_MARGIN_MILLIS: u64 = 250;
/// A recalled lease is not given again for this time, so that frequent changes do not wait for holders each
/// time.
pub const LEASE_REST_MILLIS: u64 = 500;
/// Recalls of names and attributes that a session has not acknowledged; with so many it gets no leases and renews none.
pub const RECALLS_UNACKNOWLEDGED_PER_SESSION_MAX: usize = 4_096;
/// Leases that one server has given; one more is not given.
pub const LEASES_PER_SERVER_MAX: usize = 65_536;
/// Entries of a directory that one answer leases beside the one that was asked for.
pub const NEIGHBOURS_LEASED_MAX: u16 = 128;
/// Leases by which one mount lets its kernel cache something.
pub const LEASES_PER_MOUNT_MAX: usize = 65_536;
/// Names of which one mount remembers where they lead, or that they are not there, and the directories that they are in.
pub const NAMES_KEPT_PER_MOUNT_MAX: usize = 131_072;

/// Bytes of writes of more than [`STAGED_BYTES_MAX`] that a server keeps while they wait for other machines; what comes on top waits in
/// its connection.
pub const STAGED_BYTES_PER_SERVER_MAX: usize = 256 << 20;
/// The same of one session: one that sends them slowly leaves room to others.
pub const STAGED_BYTES_PER_SESSION_MAX: usize = 64 << 20;

/// Bytes that a server copies because they change while it sends them to kernels; what comes on top is read again.
pub const SENT_COPIES_BYTES_MAX: usize = 64 << 20;

/// Leases on bytes that a server gives, one for each session and lane. For another the oldest place's is recalled.
pub const DATA_LEASES_PER_SERVER_MAX: usize = 65_536;
/// Sessions that have yet to drop pages of a file while its bytes move to its lanes, as many as one answer names: the one
/// whose write makes it grow, and those that are blocked.
pub const KEPT_BY_SESSIONS_MAX: usize = 1_024;
/// Ranges of a lane that one lease does not cover.
pub const DATA_LEASE_HOLES_MAX: usize = 256;
/// How long a holder that says nothing is waited for before its lease is taken.
pub const DATA_RECALL_MILLIS: u64 = 5_000;
/// A holder that has not dropped bytes after this time, and waits for some of them itself, gets a new recall of
/// the others.
pub const DATA_RECALL_STUCK_MILLIS: u64 = 500;
/// How long a kernel may use what it gets of memory into which others store without asking, unless somebody waits for
/// its drop: without it, it would drop what it has read ahead before anybody reads it.
pub const DATA_RECALL_HELD_MILLIS: u64 = 5;
/// How long it is waited for while it writes pages back.
pub const DATA_RECALL_WRITING_MILLIS: u64 = 30_000;
/// A recall that follows others names bytes ahead, at most so many: a writer that streams waits less often.
pub const DATA_RECALL_AHEAD_BYTES_MAX: u64 = 64 << 20;
/// The same of pages that lie in one kernel alone: a machine that goes through what another one has stored waits less often.
pub const STRICT_RECALL_AHEAD_BYTES_MAX: u64 = 1 << 20;
/// Parts of one lane that one machine owns; with one more it releases some.
pub const STRICT_RUNS_MAX: usize = 32_768;
/// Copies of pages that a server keeps until the sessions that have older ones have dropped them.
pub const DATA_BASE_BYTES_MAX: usize = 64 << 20;
/// Those, with what kernels write back meanwhile, which never waits; for one more copy, the holder that was
/// asked longest ago counts as one that has not answered in time.
pub const DATA_BASE_BYTES_HARD_MAX: usize = 128 << 20;
/// What a copy of a page takes for each session that has this version of the page.
pub const DATA_BASE_HOLDER_BYTES: usize = 100;
/// Data recalls that one session has yet to acknowledge; with one more it has not answered in time.
pub const DATA_RECALLS_PER_SESSION_MAX: usize = 16_384;
/// Data recalls of pages from before a server's restart for which a session may miss its time, before no
/// caller waits for that session any more; one is enough where the session has sent nothing meanwhile.
pub const DATA_RECALLS_OF_BEFORE_LATE_MAX: usize = 4;
/// Data recalls by which one change asks a holder for pages that lie apart.
pub const DATA_RECALLS_PER_CHANGE_MAX: usize = 64;
/// Places whose holders one answer lists.
pub const HELD_PLACES_LISTED_MAX: usize = 256;
/// Holders, waits, blockers of a wait, and pages that change owners, which it lists for each place.
pub const HOLDERS_LISTED_MAX: usize = 64;
/// Places of which a server counts how often pages change sides.
pub const FOUGHT_PLACES_MAX: usize = 256;
/// Such pages of each place.
pub const FOUGHT_PAGES_PER_PLACE_MAX: usize = 64;
/// Data recalls that one message acknowledges.
pub const DATA_RECALLS_PER_MESSAGE_MAX: usize = 1_024;
/// Smaller files are not passed through to a kernel: two requests more for an open cost more than its pages.
pub const PASSTHROUGH_BYTES_MIN: u64 = 1 << 20;
/// Files that one mount passes through to its kernel; one more goes through the kernel's pages.
pub const PASSTHROUGH_FILES_PER_MOUNT_MAX: usize = 1_024;
/// Files of a mount whose stores were lost, which it reports; for one more, the first is no longer reported.
pub const LOST_STORES_FILES_MAX: usize = 1_024;
/// Runs of lost bytes that are remembered of each; more are joined.
pub const LOST_STORES_RUNS_MAX: usize = 1_024;
/// Owners about whose waits one request asks a server.
pub const DEADLOCK_OWNERS_MAX: usize = 32;
/// Waits that one answer lists, and likewise the blockers of each wait.
pub const DEADLOCK_WAITS_MAX: usize = 64;
/// See [`DEADLOCK_WAITS_MAX`].
pub const DEADLOCK_BLOCKERS_MAX: usize = 256;
/// Owners of which the server that searches for cycles knows where they wait.
pub const DEADLOCK_OWNERS_KNOWN_MAX: usize = 65_536;
/// Owners that are visited in the search for one cycle.
pub const DEADLOCK_SEARCH_OWNERS_MAX: usize = 4096;

/// How long proving the secret may take.
pub const HANDSHAKE_MILLIS_MAX: u64 = 2_000;
/// Deadline of a request unless another is given; an operation fails before 5 seconds.
pub const DEADLINE_MILLIS_DEFAULT: u32 = 4_000;
/// Longest deadline a request may carry.
pub const DEADLINE_MILLIS_MAX: u32 = 600_000;
/// A connection whose peer reads nothing, or stops inside a frame, for so long is closed.
pub const SEND_STALL_MILLIS_MAX: u64 = 10_000;
/// What one receive may bring of small frames, and a working connection's input buffer.
pub const CONNECTION_INPUT_BYTES: usize = 16 << 10;
/// Queued replies of a connection beyond this leave before its next request is taken.
pub const CONNECTION_OUTPUT_BYTES_MAX: usize = 256 << 10;
/// What a server holds for the connections of all hosts together, beside their buffers: long bodies that are arriving, answers that wait
/// at the gate, and replies beyond [`CONNECTION_OUTPUT_BYTES_MAX`]. Beyond this the key that has most loses the connection that has most.
pub const HELD_FOR_HOSTS_BYTES_MAX: usize = 64 << 20;
/// Answers of a connection that may wait for recalls while it continues with its next requests.
pub const ANSWERS_AT_GATE_PER_CONNECTION_MAX: usize = 64;
/// Time between two heartbeats of a session.
pub const HEARTBEAT_MILLIS: u64 = 2_500;
/// A session from which nothing was received for this time has ended.
pub const SESSION_EXPIRY_MILLIS: u64 = 10_000;

/// A page of memory: lanes hold whole ones.
pub const PAGE_BYTES: u64 = 4096;
/// A huge page of x86-64 and of 4 KiB-page arm64.
pub const HUGE_PAGE_BYTES: u64 = 2 << 20;
/// Lanes below this size take exact pages; above it, whole huge pages.
pub const EXACT_PAGES_BYTES_MAX: u64 = 1 << 20;
/// A server may be home to one inode for so many bytes of its store, unless configured otherwise.
pub const STORE_BYTES_PER_INODE: u64 = 1 << 10;
/// Smallest store of a server.
pub const STORE_BYTES_MIN: u64 = 16 << 20;
/// Memory that lanes leave free in a store, so that a full pool can still log its deletes: this part of it.
pub const STORE_HEADROOM_FRACTION: u64 = 64;
/// The same headroom at the least.
pub const STORE_HEADROOM_BYTES_MIN: u64 = 1 << 20;
/// While less than this part of a store is free, pages that may be stored into get memory one by one.
pub const STORES_AHEAD_FRACTION: u64 = 10;
/// Memory of the machine that a store leaves to everything else, beside its own size.
pub const STORE_MARGIN_BYTES: u64 = 64 << 20;
/// Largest record of a server's log. Those of snapshots are pieces.
pub const RECORD_BYTES_MAX: usize = 16 << 20;
/// Of a snapshot so much is written in one step, beside one request; a larger slot is written in one step all the same.
pub const SNAPSHOT_STEP_BYTES: usize = 256 << 10;
/// A slot is written to a snapshot in pieces of so many bytes at most, each when it is made.
pub const SNAPSHOT_PIECE_BYTES_MAX: usize = 256 << 10;
/// Memory reserved in one step of the background reservation; a request that needs its memory waits for one step at
/// most.
pub const RESERVE_STEP_BYTES_MAX: u64 = 4 << 20;
/// Pause between two steps of the reservation at the least.
pub const RESERVE_PAUSE_MICROS: u64 = 500;
/// Descriptors of lane files that one store keeps open.
pub const LANE_DESCRIPTORS_MAX: usize = 512;
/// Bytes of one mapped window of a lane.
pub const WINDOW_BYTES: u64 = 64 << 20;
/// Windows that one store keeps mapped, beside those in use.
pub const WINDOWS_MAX: usize = 256;
/// Publishes and refreshes of one process that go on beside it.
pub const PENDING_CALLS_MAX: usize = 64;
