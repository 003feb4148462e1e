/*
 * ramlace.h: the C library of ramlace, which laces the memory of many machines into one pool.
 *
 *     cc program.c $(pkg-config --cflags --libs ramlace)
 *
 * Written by cbindgen from crates/capi/src: change it there.
 *
 * What holds for every function:
 *
 * Errors. A function that fails returns -1, or NULL where it returns a pointer, and sets errno.
 * ramlace_error() has a sentence about it, ramlace_error_code() a finer number. Besides what
 * stands at a function, every one may fail with EBADF (the handle is closed, of another kind, or
 * never was one), EFAULT (a pointer that must not be NULL is), EHOSTDOWN and ETIMEDOUT (a server
 * does not answer within the deadline of struct ramlace_options), ESTALE (the session has ended:
 * connect again), ENOSPC (the pool is full) and EIO (bytes were lost, or a bug).
 *
 * Pointers. Texts end with a NUL. Pointers that are not NULL must lead to what the function says.
 * Nothing is kept after a function has returned, and nothing it returns is to be freed.
 *
 * Handles (struct ramlace_pool, ramlace_file, ramlace_directory, ramlace_request) are numbers and lead to no memory
 * of the program; they are not used again after they were closed.
 *
 * Threads. Any number may call any function at once, on the same handle too.
 *
 * Fork. The child may use the parent's pools and files: it gets a session of its own when it
 * first does. A process that closes a handle closes it for itself alone. A mapping stays valid in the child as
 * long as the parent keeps it; a fetched view is a copy of its own there, which nothing keeps in step.
 *
 * Signals. None is handled, blocked or awaited; a call that a signal interrupts goes on.
 *
 * Paths are bytes. They begin at the pool's root, with a slash or without: "/data/x" and "data/x".
 * Locators are paths as well where they mean the pool that is connected: "ramlace:/data/x",
 * "ramlace://host:port/data/x", "ramlace://name/data/x"; that of another pool is EINVAL. A name has
 * at most 255 bytes, a path 4096. Sizes, offsets and lengths are in bytes.
 */

#ifndef RAMLACE_H
#define RAMLACE_H


#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

typedef struct ramlace_pool ramlace_pool;
typedef struct ramlace_file ramlace_file;
typedef struct ramlace_directory ramlace_directory;
typedef struct ramlace_request ramlace_request;
typedef struct ramlace_options ramlace_options;
typedef struct ramlace_hints ramlace_hints;
typedef struct ramlace_entry ramlace_entry;
typedef struct ramlace_time ramlace_time;
typedef struct ramlace_run ramlace_run;
typedef struct ramlace_tile ramlace_tile;
typedef struct ramlace_part ramlace_part;

/** The version of this header; ramlace_version() is that of the library. */
#define RAMLACE_VERSION "0.1.0"
#define RAMLACE_VERSION_MAJOR 0
#define RAMLACE_VERSION_MINOR 1
#define RAMLACE_VERSION_PATCH 0

/** First values: ramlace_options options = RAMLACE_OPTIONS_INIT; */
#define RAMLACE_OPTIONS_INIT { sizeof(struct ramlace_options), 0, 0, NULL, NULL, 0 }
#define RAMLACE_HINTS_INIT { sizeof(struct ramlace_hints), 0, 0, 0, 0, 0, NULL, 0, 0, 0 }

/**
 * For descriptors of files on a mount: ioctl(fd, RAMLACE_IOC_PUBLISH, &range) and RAMLACE_IOC_REFRESH do for the program's
 * mappings of these bytes what ramlace_publish and ramlace_refresh do for the library's memory; no library is
 * needed. Offset and length are in bytes, length 0 is for all that follow. They return 0, or -1 and set errno: ENOTTY for
 * a file that is on no mount, EFAULT, EINVAL for bytes beyond any file (2^63), EIO and others for what could not
 * be written back. The numbers are _IOW(0xE6, 1, struct ramlace_range) and _IOW(0xE6, 2, struct ramlace_range).
 */
struct ramlace_range {
    uint64_t offset;
    uint64_t length;
};
#define RAMLACE_IOC_PUBLISH 0x4010E601UL
#define RAMLACE_IOC_REFRESH 0x4010E602UL

/**
 * The version of the ABI that this header describes: the number in the library's soname.
 */
#define RAMLACE_ABI_VERSION 0

/**
 * A flag of ramlace_open: this open file sees what others change after ramlace_refresh, or when it takes a lock of these bytes.
 * What it has read in small pieces it reads again without a message from what the program keeps (cache_bytes of struct
 * ramlace_options; without that nothing is kept). Nobody waits for it, and it sees its own changes at once. A lock also refreshes its
 * copies, and ramlace_unlock publishes what was stored into memory of the locked bytes.
 */
#define RAMLACE_O_RELAXED (1 << 28)

/**
 * A flag of ramlace_open: each read of this open file asks, also where the program keeps what it reads; ramlace_map and
 * ramlace_view are EOPNOTSUPP, for others would see a store later.
 */
#define RAMLACE_O_STRICT (1 << 29)

/**
 * For ramlace_lock: others may hold shared locks of the same bytes.
 */
#define RAMLACE_LOCK_SHARED 1

/**
 * For ramlace_lock: nobody else holds a lock of the same bytes.
 */
#define RAMLACE_LOCK_EXCLUSIVE 2

/**
 * Lanes that a struct ramlace_version has room for.
 */
#define RAMLACE_VERSION_LANES 64

/**
 * In the nanoseconds of a struct ramlace_time: the present moment. The same as UTIME_NOW.
 */
#define RAMLACE_TIME_NOW 1073741823

/**
 * In the nanoseconds of a struct ramlace_time: leave this time as it is. The same as UTIME_OMIT.
 */
#define RAMLACE_TIME_OMIT 1073741822

/**
 * Modes of files: when other machines see what programs store into a file that is mapped through a mount. When it is published:
 * by msync, fsync or close.
 */
#define RAMLACE_MODE_COHERENT 1

/**
 * At once: mapped files are one memory (Linux 6.6).
 */
#define RAMLACE_MODE_STRICT 2

/**
 * When it is published, and the other program refreshes or takes a lock: nobody waits for what a mount still shows.
 */
#define RAMLACE_MODE_RELAXED 3

/**
 * What went wrong, as a number that never changes its meaning: finer than errno, where several
 * kinds are one number. Later versions may know more kinds.
 */
enum ramlace_error_kind {
    /**
     * Nothing has failed in this thread.
     */
    RAMLACE_ERROR_NONE = 0,
    /**
     * EAGAIN: The state is in motion; the same request may be sent again after a short pause.
     */
    RAMLACE_ERROR_RETRY = 1,
    /**
     * ENOSPC: The pool, or the server that holds these bytes, is full.
     */
    RAMLACE_ERROR_NO_SPACE = 3,
    /**
     * EACCES: The caller lacks the right.
     */
    RAMLACE_ERROR_DENIED = 4,
    /**
     * ESTALE: The session, the handle or the inode is gone.
     */
    RAMLACE_ERROR_STALE = 5,
    /**
     * EIO: The bytes were on a server that lost them.
     */
    RAMLACE_ERROR_LOST = 6,
    /**
     * EIO: Bytes that should make sense do not.
     */
    RAMLACE_ERROR_CORRUPT = 7,
    /**
     * EIO: A bug, or a machine that fails underneath.
     */
    RAMLACE_ERROR_FATAL = 8,
    /**
     * ENOENT: No such file or directory.
     */
    RAMLACE_ERROR_NOT_FOUND = 9,
    /**
     * EEXIST: The name is taken.
     */
    RAMLACE_ERROR_EXISTS = 10,
    /**
     * ENOTDIR: A directory was needed.
     */
    RAMLACE_ERROR_NOT_DIRECTORY = 11,
    /**
     * EISDIR: A directory was not allowed.
     */
    RAMLACE_ERROR_IS_DIRECTORY = 12,
    /**
     * ENOTEMPTY: The directory still has entries.
     */
    RAMLACE_ERROR_NOT_EMPTY = 13,
    /**
     * EINVAL: An argument makes no sense.
     */
    RAMLACE_ERROR_INVALID = 14,
    /**
     * ENAMETOOLONG: A name or a path has too many bytes.
     */
    RAMLACE_ERROR_NAME_TOO_LONG = 15,
    /**
     * EFBIG: An offset or a size is beyond the largest file.
     */
    RAMLACE_ERROR_TOO_BIG = 16,
    /**
     * ELOOP: Too many symbolic links on the way.
     */
    RAMLACE_ERROR_LOOP = 17,
    /**
     * EHOSTDOWN: The server does not answer; its bytes are out of reach until it returns.
     */
    RAMLACE_ERROR_HOST_DOWN = 18,
    /**
     * ETIMEDOUT: The deadline passed.
     */
    RAMLACE_ERROR_TIMED_OUT = 19,
    /**
     * ENFILE: A limit on the number of things was reached.
     */
    RAMLACE_ERROR_TOO_MANY = 20,
    /**
     * EOPNOTSUPP: This build or this pool does not do that.
     */
    RAMLACE_ERROR_UNSUPPORTED = 21,
    /**
     * EPERM: The operation itself is not allowed, to any user.
     */
    RAMLACE_ERROR_NOT_PERMITTED = 22,
    /**
     * EBUSY: Something is in use.
     */
    RAMLACE_ERROR_BUSY = 23,
    /**
     * EFAULT: The memory behind a mapping or a buffer is gone.
     */
    RAMLACE_ERROR_FAULT = 24,
    /**
     * EPROTO: The other side speaks another version or another protocol.
     */
    RAMLACE_ERROR_PROTOCOL = 25,
    /**
     * EMSGSIZE: A message is larger than the limit for its kind.
     */
    RAMLACE_ERROR_TOO_LARGE = 26,
    /**
     * EBADF: The handle was not opened for this.
     */
    RAMLACE_ERROR_BAD_HANDLE = 27,
    /**
     * EMLINK: The file has as many names as it can have.
     */
    RAMLACE_ERROR_TOO_MANY_LINKS = 28,
    /**
     * ENODATA: The inode has no such extended attribute.
     */
    RAMLACE_ERROR_NO_DATA = 30,
    /**
     * ERANGE: A name is too long, or the memory for a value too small.
     */
    RAMLACE_ERROR_OUT_OF_RANGE = 31,
    /**
     * E2BIG: The value of an extended attribute has too many bytes.
     */
    RAMLACE_ERROR_VALUE_TOO_BIG = 32,
    /**
     * ENOLCK: There are as many locks as there may be.
     */
    RAMLACE_ERROR_TOO_MANY_LOCKS = 33,
    /**
     * EDEADLK: Waiting for this lock would close a cycle of programs that wait for each other.
     */
    RAMLACE_ERROR_DEADLOCK = 34,
    /**
     * ENXIO: No data, or no hole, is left in the file from there on.
     */
    RAMLACE_ERROR_NOTHING_THERE = 37,
};

/**
 * A directory being listed. Threads that share one get different entries.
 */
struct ramlace_directory;

/**
 * An open file. Any number of threads may use one at once; they share its position.
 */
struct ramlace_file;

/**
 * A connected pool. Any number of threads may use one at once.
 */
struct ramlace_pool;

/**
 * A publish or a refresh that goes on beside the program. One thread waits for it.
 */
struct ramlace_request;

/**
 * How to connect. Set all with RAMLACE_OPTIONS_INIT, then what shall differ: what is 0 or NULL
 * is as usual, and a program stays right when later versions add fields.
 */
struct ramlace_options {
    /**
     * sizeof(struct ramlace_options): which fields the program knows.
     */
    size_t size;
    /**
     * Milliseconds that one operation may take before it fails; 0: 4000; at most 600000. A large
     * transfer takes as long as it moves: its deadline counts from its last progress.
     */
    uint32_t deadline_millis;
    /**
     * Unix sockets and shared memory with servers on this machine: 1 on, -1 off, 0 as usual (on,
     * unless the environment says RAMLACE_LOCAL=off).
     */
    int32_t local;
    /**
     * Path of the file with the pool's secret; NULL: what the environment's RAMLACE_SECRET_FILE
     * names, else the one in the pool's own directory.
     */
    const char *secret_file;
    /**
     * What this client is called, for people: shown by `ramlace status`; NULL: the program's name.
     */
    const char *label;
    /**
     * Bytes that are read in small pieces and may be kept for the next reads, as long as their file is open; 0: none, else at
     * least 65,536. A call that changes them, by this program too, returns when they are dropped. Stores into mapped
     * memory are seen when they are published. Bytes of a server that the pool forgets may be read for four seconds more, and
     * while a write is under way one read may bring its bytes and the next those of before.
     */
    uint64_t cache_bytes;
};

/**
 * What a pool holds, over the servers that answered.
 */
struct ramlace_statfs {
    /**
     * Bytes lent.
     */
    uint64_t total_bytes;
    /**
     * Bytes taken by files and names.
     */
    uint64_t used_bytes;
    /**
     * Bytes not taken.
     */
    uint64_t free_bytes;
    /**
     * Inodes.
     */
    uint64_t inodes;
    /**
     * Servers that did not answer; what they hold is not in these sums.
     */
    uint32_t silent_servers;
    /**
     * Bytes of the longest name.
     */
    uint32_t name_bytes_max;
    /**
     * Inodes that there may be.
     */
    uint64_t inodes_max;
    /**
     * Bytes that one more file can have whose lanes lie on all servers, as usual: the one with the
     * least room counts for each, and what is kept for the servers' logs is not in it.
     */
    uint64_t file_bytes;
    /**
     * Files that one more directory can have at the least.
     */
    uint64_t directory_inodes;
    /**
     * 0; room for what comes.
     */
    uint64_t reserved;
};

/**
 * Bytes of a new file, from where the part before ends, and which machine uses them.
 */
struct ramlace_part {
    /**
     * How many.
     */
    uint64_t bytes;
    /**
     * The machine, as ramlace_machine() returns it there.
     */
    uint8_t machine[16];
};

/**
 * Where the bytes of new files shall lie. Set all with RAMLACE_HINTS_INIT, then what shall
 * differ: what is 0 is taken from the directory, else as usual.
 */
struct ramlace_hints {
    /**
     * sizeof(struct ramlace_hints): which fields the program knows.
     */
    size_t size;
    /**
     * Bytes of a chunk: a power of two, 65536 to 2^30; usually 2 MiB.
     */
    uint64_t stripe_unit;
    /**
     * Number of lanes, which lie on different servers; narrowed when there are fewer; usually
     * one for each server.
     */
    uint32_t width;
    /**
     * Copies of each chunk.
     */
    uint32_t copies;
    /**
     * Not 0: all bytes of a new file lie on servers of this machine, where it has any that answer;
     * those of a file of at most 4 KiB are where its inode is. Directories hand nothing of this, nor of
     * what follows, down; and no two of these three go together.
     */
    uint32_t local;
    /**
     * Not 0: one more than the number of the server that has the first chunk, where there is one
     * and it answers.
     */
    uint32_t first_server;
    /**
     * Parts of a new file, from its beginning, and the machines that they shall lie on: each on one
     * server of its machine, as far as that can be. Without a stripe_unit, it is what holds the
     * largest part.
     */
    const struct ramlace_part *parts;
    /**
     * How many, at most 65536.
     */
    size_t part_count;
    /**
     * A RAMLACE_MODE: the file's own mode, on every mount; 0: what the directory hands down, else as
     * each mount has it.
     */
    uint32_t mode;
    /**
     * 1: what makes the file longer takes the memory of all that is new, or is ENOSPC, by every door; 0: what the
     * directory hands down.
     */
    uint32_t reserve;
};

/**
 * A moment, since 1970-01-01 UTC.
 */
struct ramlace_time {
    /**
     * Whole seconds, rounded down; negative before 1970.
     */
    int64_t seconds;
    /**
     * Nanoseconds within the second, 0 to 999999999.
     */
    uint32_t nanoseconds;
    /**
     * 0; a call refuses anything else.
     */
    uint32_t reserved;
};

/**
 * What an inode is and has.
 */
struct ramlace_stat {
    /**
     * Bytes of a file or of a link's target; entries of a directory.
     */
    uint64_t size;
    /**
     * Number of the inode; unique in its pool, never used again.
     */
    uint64_t inode;
    /**
     * Units of 512 bytes of memory that a file holds: less than its size where it has holes. While a
     * server of it does not answer, its part counts as if it had none.
     */
    uint64_t blocks;
    /**
     * Bytes of a chunk; of a directory what its new files inherit, 0: as usual; of a link 0.
     */
    uint64_t stripe_unit;
    /**
     * Raised by every truncation of the file.
     */
    uint64_t generation;
    /**
     * Type and permissions as in <sys/stat.h>: S_ISREG(mode), S_ISDIR(mode), S_ISLNK(mode).
     */
    uint32_t mode;
    /**
     * Entries that lead to it; of a directory 2 and one for each subdirectory.
     */
    uint32_t links;
    /**
     * Owner.
     */
    uint32_t uid;
    /**
     * Group.
     */
    uint32_t gid;
    /**
     * Number of lanes; of a directory what its new files inherit, 0: as usual; of a link 0.
     */
    uint32_t width;
    /**
     * Copies of each chunk; of a directory what its new files inherit, 0: as usual; of a link 0.
     */
    uint32_t copies;
    /**
     * Last read. Reads are not counted: when it was created, or set.
     */
    struct ramlace_time accessed;
    /**
     * Last change of content.
     */
    struct ramlace_time modified;
    /**
     * Last change of content or attributes.
     */
    struct ramlace_time changed;
    /**
     * Creation.
     */
    struct ramlace_time created;
    /**
     * Major number of a device; 0 for others.
     */
    uint32_t device_major;
    /**
     * Minor number of a device; 0 for others.
     */
    uint32_t device_minor;
    /**
     * 0; room for what comes.
     */
    uint64_t reserved[3];
};

/**
 * Equal runs of a file's bytes at equal distances: a column of a matrix, a tile's rows.
 */
struct ramlace_run {
    /**
     * Where the first one begins, in bytes.
     */
    int64_t offset;
    /**
     * Bytes of each.
     */
    int64_t length;
    /**
     * From one's beginning to the next one's, in bytes; not looked at when there is one.
     */
    int64_t stride;
    /**
     * How many.
     */
    int64_t count;
};

/**
 * A pattern of runs that comes again and again at equal distances: the planes of a block of an array of
 * three dimensions.
 */
struct ramlace_tile {
    /**
     * Where the first one begins, in bytes.
     */
    int64_t offset;
    /**
     * The runs of each, whose offsets count from its beginning.
     */
    const struct ramlace_run *runs;
    /**
     * How many descriptions.
     */
    size_t run_count;
    /**
     * From one's beginning to the next one's, in bytes; not looked at when there is one.
     */
    int64_t stride;
    /**
     * How many.
     */
    int64_t count;
};

/**
 * Stands for some bytes of a file at one moment: ramlace_change_version fills it, and what is in it
 * is the library's own. It may be copied, and used by other threads and processes that have the same
 * file open.
 */
struct ramlace_version {
    /**
     * The first byte.
     */
    uint64_t start;
    /**
     * Behind the last one.
     */
    uint64_t end;
    /**
     * How many of lanes are used.
     */
    uint32_t count;
    /**
     * Whether home is used.
     */
    uint32_t has_home;
    /**
     * The file's own number.
     */
    uint64_t home;
    /**
     * One number for each lane.
     */
    uint64_t lanes[RAMLACE_VERSION_LANES];
};

/**
 * An entry of a directory.
 */
struct ramlace_entry {
    /**
     * Number of the inode it leads to.
     */
    uint64_t inode;
    /**
     * What that is: S_IFREG, S_IFDIR, S_IFLNK, S_IFIFO, S_IFSOCK, S_IFCHR or S_IFBLK of <sys/stat.h>.
     */
    uint32_t type_bits;
    /**
     * Bytes of the name, 1 to 255, without its NUL.
     */
    uint32_t name_length;
    /**
     * The name: any bytes but '/' and NUL, in no known encoding; a NUL follows.
     */
    char name[256];
    /**
     * 0; room for what comes.
     */
    uint64_t reserved[2];
};

/**
 * Where the bytes of a file lie, or of the files that are made in a directory.
 */
struct ramlace_layout {
    /**
     * Bytes of a chunk; 0 (directories only): as usual.
     */
    uint64_t stripe_unit;
    /**
     * Number of lanes; 0 (directories only): as usual.
     */
    uint32_t width;
    /**
     * Copies of each chunk; 0 (directories only): as usual.
     */
    uint32_t copies;
    /**
     * 1: fixed, the layout of a file; 0: what a directory hands down.
     */
    uint32_t fixed;
    /**
     * One more than the number of the server that has the first chunk of a file; of a directory 0.
     */
    uint32_t first_server;
    /**
     * A RAMLACE_MODE: the file's own; 0: as each mount has it.
     */
    uint32_t mode;
    /**
     * 1: what makes the file longer takes the memory of all that is new.
     */
    uint32_t reserve;
    /**
     * 0; room for what comes.
     */
    uint32_t reserved[4];
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * The version of the library that is loaded, such as "0.1.0"; RAMLACE_VERSION is the version of
 * the header. Never fails.
 */
const char *ramlace_version(void);

/**
 * The version of the ABI of the library that is loaded. A program that loads the library by
 * dlopen compares it with RAMLACE_ABI_VERSION; for others the linker has done so by the soname.
 * Never fails.
 */
int ramlace_abi_version(void);

/**
 * The text of this thread's last failed call: one sentence for people that names the file, the
 * server and the next step as far as they are known, in UTF-8, without a newline; "" when
 * nothing has failed. It stays until a call fails in this thread. Never NULL, not to be freed.
 */
const char *ramlace_error(void);

/**
 * The kind of this thread's last failure, one of enum ramlace_error_kind: finer than errno, and
 * not changed by other libraries. RAMLACE_ERROR_NONE when nothing has failed.
 */
int ramlace_error_code(void);

/**
 * Connects to a pool: proves its secret to a server and begins a session, in which everything
 * else happens. The session ends with ramlace_disconnect and the close of the last file.
 *
 * locator: NULL is the pool that the environment's RAMLACE_POOL names, else the user's default
 * pool on this machine; "lab" the user's pool of that name; "host:port" or "ramlace://host:port" the pool of
 * which one server listens there, whose secret is in options, in the environment
 * (RAMLACE_SECRET_FILE) or known on this machine. Any locator of a file in a pool will do as
 * well ("ramlace:/x", "ramlace://lab/x", "ramlace://host:port/x"): its path is not looked at.
 * options: NULL, or how to connect.
 *
 * Returns NULL and sets errno: ENOENT no such pool, EHOSTDOWN no server answers, EACCES the
 * secret is wrong, EINVAL the locator or the options make no sense.
 */
struct ramlace_pool *ramlace_connect(const char *locator,
                                     const struct ramlace_options *options);

/**
 * Ends the connection; the handle is invalid afterwards. Files and directories that are open
 * stay so until they are closed. Returns 0, or -1 with EBADF when this is no connected pool.
 */
int ramlace_disconnect(struct ramlace_pool *pool);

/**
 * What the pool holds, in bytes; asks every server. One that does not answer costs a deadline
 * and is counted in silent_servers.
 */
int ramlace_statfs(struct ramlace_pool *pool, struct ramlace_statfs *out);

/**
 * Puts the number that this pool has and no other into buffer, as a text with its NUL, at most size bytes
 * (64 are enough), and returns its bytes; with size 0 only that. ERANGE when it is longer than size.
 */
ssize_t ramlace_pool_id(struct ramlace_pool *pool,
                        char *buffer,
                        size_t size);

/**
 * Opens a file, or creates it.
 *
 * flags: one of O_RDONLY, O_WRONLY and O_RDWR of <fcntl.h>, with any of O_CREAT, O_EXCL (with
 * O_CREAT), O_TRUNC and O_APPEND; the last two need a file open for writing.
 * O_CLOEXEC, O_NOCTTY, O_LARGEFILE and O_SYNC change nothing; one of RAMLACE_O_RELAXED and RAMLACE_O_STRICT is
 * about this open file alone, and where the file's own mode is stricter, that counts; every other flag is EINVAL.
 * mode: permission bits of a file that is created, of which the process's umask takes some away.
 *
 * Returns NULL and sets errno: ENOENT, EEXIST, EISDIR, ENOTDIR, ELOOP, EACCES, ENAMETOOLONG,
 * ENOSPC, ENFILE (65536 files are open), EINVAL for flags and for a locator of another pool.
 */
struct ramlace_file *ramlace_open(struct ramlace_pool *pool,
                                  const char *path,
                                  int flags,
                                  mode_t mode);

/**
 * Opens a file as ramlace_open does; a file that is created lies as the hints say. A file that
 * is there keeps its layout. hints: NULL is as usual. EINVAL for hints that make no sense.
 */
struct ramlace_file *ramlace_open_with(struct ramlace_pool *pool,
                                       const char *path,
                                       int flags,
                                       mode_t mode,
                                       const struct ramlace_hints *hints);

/**
 * Closes a file; the handle is invalid afterwards, whatever is returned. A file that is
 * unlinked lives until its last close. Calls that other threads have under way on it end as
 * usual, and the last of them closes it. Returns 0, or -1: EBADF when this is no open file, or
 * the error with which notifying the servers failed.
 */
int ramlace_close(struct ramlace_file *file);

/**
 * Reads up to length bytes at offset, in bytes from the beginning, into buffer; the position is
 * neither used nor moved. Returns the bytes read: fewer than length only where the file ends,
 * 0 at its end. Returns -1 and sets errno: EBADF not open, or not for reading; EINVAL a
 * negative offset or a length beyond SSIZE_MAX; EFAULT buffer is NULL; EIO bytes that were
 * lost with their server; EHOSTDOWN or ETIMEDOUT a server does not answer.
 */
ssize_t ramlace_pread(struct ramlace_file *file, void *buffer, size_t length, int64_t offset);

/**
 * Writes length bytes at offset, in bytes from the beginning, extending the file where needed;
 * the position is neither used nor moved. With O_APPEND the bytes go to the end of the file,
 * whatever the offset, as Linux has it. Returns the bytes written: fewer than length only when
 * the pool filled up in the middle. When it returns, the bytes are in the servers' memory and
 * every later read of any client sees them. Returns -1 and sets errno: EBADF not open, or not
 * for writing; ENOSPC nothing could be written; EFBIG beyond 2^62 bytes; and as ramlace_pread.
 */
ssize_t ramlace_pwrite(struct ramlace_file *file,
                       const void *buffer,
                       size_t length,
                       int64_t offset);

/**
 * Reads up to length bytes at the file's position and moves it behind them; otherwise as
 * ramlace_pread. Reads, writes and seeks of one file by several threads happen one after the
 * other, each whole: no byte is read twice. A forked child has a position of its own, which
 * begins where its parent's was.
 */
ssize_t ramlace_read(struct ramlace_file *file, void *buffer, size_t length);

/**
 * Writes length bytes at the file's position, with O_APPEND at its end, and moves the position
 * behind them; otherwise as ramlace_pwrite, one call after the other as ramlace_read.
 */
ssize_t ramlace_write(struct ramlace_file *file, const void *buffer, size_t length);

/**
 * Writes length bytes at the end of the file, all of them or none, whatever the flags it was
 * opened with; the position is neither used nor moved. Bytes of one append are never mixed
 * with another's, from any number of clients. Returns the offset at which they begin, or -1 as
 * ramlace_pwrite; a failed append may leave a hole, which reads as zeros.
 */
int64_t ramlace_append(struct ramlace_file *file, const void *buffer, size_t length);

/**
 * Moves the position: offset is in bytes from the beginning (whence SEEK_SET), from the
 * position (SEEK_CUR) or from the end (SEEK_END); or to the next data (SEEK_DATA) or hole
 * (SEEK_HOLE) at or behind the byte that offset counts from the beginning; the end is a hole, too.
 * A position beyond the end is allowed; a write there leaves a hole. Returns the new position, or
 * -1: EINVAL for another whence or a position before the beginning or beyond 2^62, ENXIO where no
 * data, or no hole, is left before the end.
 */
int64_t ramlace_lseek(struct ramlace_file *file, int64_t offset, int whence);

/**
 * Sets the size in bytes; what is cut off is gone, what is added reads as zeros. The position
 * stays. Returns 0, or -1: EBADF not open for writing, EINVAL negative, EFBIG beyond 2^62.
 */
int ramlace_ftruncate(struct ramlace_file *file, int64_t size);

/**
 * Makes the file's times exact at its home. Bytes need no flushing: they are in the servers'
 * memory when a write returns, and no disk is behind it.
 */
int ramlace_fsync(struct ramlace_file *file);

/**
 * What the file is and has; see ramlace_stat.
 */
int ramlace_fstat(struct ramlace_file *file, struct ramlace_stat *out);

/**
 * Takes the memory of the file's first length bytes and makes the file at least so long: writes
 * there cannot meet a full pool, and ramlace_map can map it. Returns 0, or -1: ENOSPC when not
 * all of it could be taken.
 */
int ramlace_allocate(struct ramlace_file *file, int64_t length);

/**
 * Gives the memory of length bytes at offset back; they read as zeros. The size stays.
 */
int ramlace_punch(struct ramlace_file *file, int64_t offset, int64_t length);

/**
 * Reads at offset into buffer_count buffers (struct iovec of <sys/uio.h>), one after the other;
 * otherwise as ramlace_pread. The buffers do not overlap. EINVAL for more than 1024 buffers, or more than SSIZE_MAX bytes
 * together.
 */
ssize_t ramlace_preadv(struct ramlace_file *file,
                       const struct iovec *buffers,
                       int buffer_count,
                       int64_t offset);

/**
 * Writes buffer_count buffers at offset, one after the other; otherwise as ramlace_pwrite, and
 * the buffers as in ramlace_preadv.
 */
ssize_t ramlace_pwritev(struct ramlace_file *file,
                        const struct iovec *buffers,
                        int buffer_count,
                        int64_t offset);

/**
 * Reads runs into buffer, one behind the other, without touching what lies between them: run_count
 * descriptions of equal runs (see ramlace_run), which ascend and do not overlap. length is what all
 * of them have together. Returns the bytes read: fewer at the end of the file, where it stops.
 * Returns -1 and sets errno: EINVAL for runs that overlap, descend, are empty, or have not length
 * bytes; EBADF not open, or not for reading; and as ramlace_pread.
 */
ssize_t ramlace_pread_runs(struct ramlace_file *file,
                           void *buffer,
                           size_t length,
                           const struct ramlace_run *runs,
                           size_t run_count);

/**
 * Writes runs from buffer, in which they lie one behind the other; otherwise as ramlace_pread_runs and
 * ramlace_pwrite. What lies between the runs stays as it is, also where others change it meanwhile.
 * EINVAL for a file that was opened with O_APPEND, too: runs have places of their own.
 */
ssize_t ramlace_pwrite_runs(struct ramlace_file *file,
                            const void *buffer,
                            size_t length,
                            const struct ramlace_run *runs,
                            size_t run_count);

/**
 * As ramlace_pread_runs, of tiles: tile_count descriptions of patterns that come again and again (see
 * ramlace_tile), which ascend and do not overlap.
 */
ssize_t ramlace_pread_tiles(struct ramlace_file *file,
                            void *buffer,
                            size_t length,
                            const struct ramlace_tile *tiles,
                            size_t tile_count);

/**
 * As ramlace_pwrite_runs, of tiles: see ramlace_pread_tiles.
 */
ssize_t ramlace_pwrite_tiles(struct ramlace_file *file,
                             const void *buffer,
                             size_t length,
                             const struct ramlace_tile *tiles,
                             size_t tile_count);

/**
 * Locks length bytes from offset on, 0 for all that follow, for this open file: against every other
 * open file of any process and machine, and against programs that lock by fcntl on a mount. kind is
 * RAMLACE_LOCK_SHARED or RAMLACE_LOCK_EXCLUSIVE; what this file held of these bytes before is replaced.
 * Waits for timeout_millis at most, for ever when that is negative; callers that wait get it in the order
 * in which they came. A lock ends by ramlace_unlock, with the file, and with the process; a forked child
 * has none. Returns 0, or -1 and sets errno: EAGAIN with a timeout of 0, ETIMEDOUT with another, when
 * others hold them; EBADF for an exclusive lock of a file that was not opened for writing; ENOLCK for
 * too many locks.
 */
int ramlace_lock(struct ramlace_file *file,
                 int64_t offset,
                 int64_t length,
                 int kind,
                 int64_t timeout_millis);

/**
 * Unlocks length bytes from offset on, 0 for all that follow; bytes that are not locked stay so.
 * Returns 0, or -1 and sets errno.
 */
int ramlace_unlock(struct ramlace_file *file, int64_t offset, int64_t length);

/**
 * Comes to the barrier with this name (1 to 255 bytes) as one of parties members, of which member is the
 * number from 0, and waits until all have come: for timeout_millis at most, for ever when that is
 * negative. The barrier needs nothing made beforehand and can be used again at once. Returns the
 * number of the round, from 1, or -1 and sets errno: ETIMEDOUT when not all came in time, and then
 * ramlace_error() names those that are missing and this member counts as if it had not come; EINVAL
 * when others came with another number of parties; EEXIST when this member waits there already.
 */
int64_t ramlace_barrier(struct ramlace_pool *pool,
                        const char *name,
                        uint32_t parties,
                        uint32_t member,
                        int64_t timeout_millis);

/**
 * Adds number to the cell at offset, modulo 2^64, and puts what it held before into *before, unless that is
 * NULL. A cell is 8 bytes at a multiple of 8 within the file, which is open for reading and writing: an
 * unsigned number in little endian, or a signed one as its two's complement. The change is made
 * once and at one moment, whatever else reads and writes; stores into mapped memory of the
 * same cell are no part of that. Returns 0, or -1 and sets errno: EINVAL between cells and behind the
 * end of the file; EIO for bytes that were lost with their server.
 */
int ramlace_fetch_add(struct ramlace_file *file,
                      int64_t offset,
                      uint64_t number,
                      uint64_t *before);

/**
 * Puts new_number into the cell at offset if it holds expected, and puts what it held before into *before,
 * unless that is NULL: expected when it was changed. Otherwise as ramlace_fetch_add. Returns 1 when it was
 * changed, 0 when it held something else, -1 and sets errno.
 */
int ramlace_compare_swap(struct ramlace_file *file,
                         int64_t offset,
                         uint64_t expected,
                         uint64_t new_number,
                         uint64_t *before);

/**
 * Takes the version of length bytes from offset on, 0 for all that follow. Take it before you read the
 * bytes: then ramlace_wait_change misses no change. Returns 0, or -1 and sets errno: EFBIG when the bytes lie on more
 * than RAMLACE_VERSION_LANES lanes.
 */
int ramlace_change_version(struct ramlace_file *file,
                           int64_t offset,
                           int64_t length,
                           struct ramlace_version *version);

/**
 * Waits until bytes of the version's range were written, cut off, or published by anybody since it was taken,
 * and takes the version of now into it: for timeout_millis at most, for ever when that is negative. May also
 * return when nothing has changed: after a server was started again, and after many changes close by. Returns 0, or -1
 * and sets errno: ETIMEDOUT when nothing has changed in time.
 */
int ramlace_wait_change(struct ramlace_file *file,
                        struct ramlace_version *version,
                        int64_t timeout_millis);

/**
 * Maps a whole file into the program's memory, shared with every other program that maps it on
 * this machine: a store is seen by all of them, and by reads, at once. All its servers must run
 * on this machine and every byte must have its memory (ramlace_allocate). The file may be closed
 * and unlinked; the mapping lives until ramlace_unmap. Truncating a mapped file makes loads
 * beyond its end fatal to the program (SIGBUS).
 *
 * protection: PROT_READ, or PROT_READ | PROT_WRITE, of <sys/mman.h>, for which the file must be
 * open. length: where the file's size in bytes goes; NULL is allowed.
 *
 * Returns the first byte, aligned to 2 MiB, or NULL and sets errno: EOPNOTSUPP a server is
 * elsewhere, local shortcuts are off, or bytes have no memory; EBADF not open for that; EINVAL.
 */
void *ramlace_map(struct ramlace_file *file, int protection, size_t *length);

/**
 * Ends a mapping or a view. address: what ramlace_map or ramlace_view returned. Nothing may use it afterwards; what
 * was stored into a copy and not published is gone. Returns 0, or -1 with EINVAL when no mapping begins there.
 */
int ramlace_unmap(void *address);

/**
 * The first length bytes of the file, 0 for all that it has, as memory of the program, which is read and written. Where all servers
 * of the file are on this machine and every byte has its memory it is the file's own memory, as by ramlace_map, and
 * *shared is 1. Elsewhere it is a copy that is fetched now, and *shared is 0: what is stored there others see
 * after ramlace_publish, and what others have published is seen there after ramlace_refresh. Both are given the
 * file that the view was made by, and act as long as that is open. Copies are merged in grains of
 * grain bytes (1 where it is 0), such as an array's elements: of two machines that store into different grains
 * both win. A forked child makes views of its own. The file must be open for reading; without writing what is stored
 * into a copy stays there, and into shared memory it is fatal (SIGSEGV). shared: NULL is allowed.
 *
 * Returns the first byte, aligned to 2 MiB, which ramlace_unmap gives back, or NULL and sets errno: EINVAL for a
 * file that has no, or fewer, bytes; EBADF not open for reading; EOPNOTSUPP opened with RAMLACE_O_STRICT.
 */
void *ramlace_view(struct ramlace_file *file,
                   size_t length,
                   size_t grain,
                   int *shared);

/**
 * Makes what the program has stored into memory of the file visible to others: length bytes from offset on, 0 for all that
 * follow. A copy (ramlace_view) sends the grains of them that were changed; of the file's own memory
 * (ramlace_map), which this machine's programs see at once, others are notified to look again. Written bytes
 * (ramlace_pwrite) are there for all when the call returns and need no publish. For a program's mapping of a file
 * on a mount: msync, or RAMLACE_IOC_PUBLISH.
 *
 * Returns 0, or -1 and sets errno: EINVAL negative, or beyond any file; EBADF where a copy was changed and the file is not
 * open for writing; ENOSPC. What was not sent then counts as changed still.
 */
int ramlace_publish(struct ramlace_file *file,
                    int64_t offset,
                    int64_t length);

/**
 * Makes what others have published visible in the program's memory of the file: length bytes from offset on, 0 for all that
 * follow. What was stored there and not published stays. Of what has not changed no bytes are fetched: that costs a
 * message for each lane. The file's own memory needs no refresh, nor do reads but those of a file that was opened with
 * RAMLACE_O_RELAXED. For a program's mapping of a file on a mount: RAMLACE_IOC_REFRESH.
 *
 * Returns 0, or -1 and sets errno: EINVAL negative, or beyond any file; EIO for bytes that were lost, or
 * for a file that was cut off and has fewer than the copy.
 */
int ramlace_refresh(struct ramlace_file *file,
                    int64_t offset,
                    int64_t length);

/**
 * Begins what ramlace_publish does, and returns at once: what was stored into these bytes before the call is published when
 * ramlace_wait is back, what is stored meanwhile perhaps. The file may be closed then, and its views given back
 * (ramlace_unmap).
 *
 * Returns NULL and sets errno: EAGAIN where 64 requests of the process are under way; EBADF, EINVAL as ramlace_publish.
 */
struct ramlace_request *ramlace_ipublish(struct ramlace_file *file,
                                         int64_t offset,
                                         int64_t length);

/**
 * Begins what ramlace_refresh does, and returns at once: what others had published before the call is there when ramlace_wait is
 * back, and may come piece by piece. What the program stores meanwhile stays. Otherwise as ramlace_ipublish.
 */
struct ramlace_request *ramlace_irefresh(struct ramlace_file *file,
                                         int64_t offset,
                                         int64_t length);

/**
 * Whether a request is over; ramlace_wait then returns at once. *over is set to 1, or to 0. Returns 0, or -1 and sets
 * errno: EBADF no request, or one of the process that this one was forked from.
 */
int ramlace_test(struct ramlace_request *request,
                 int *over);

/**
 * Waits until a request is over, and ends it: the handle is invalid afterwards, whatever is returned. A process that ends
 * waits for none.
 *
 * Returns 0, or -1 and sets errno as ramlace_publish or ramlace_refresh does; EBADF as ramlace_test.
 */
int ramlace_wait(struct ramlace_request *request);

/**
 * What path leads to; a symbolic link at its end is followed. Returns 0, or -1 and sets errno:
 * ENOENT, ENOTDIR, ELOOP, EACCES, ENAMETOOLONG, EFAULT for NULL.
 */
int ramlace_stat(struct ramlace_pool *pool, const char *path, struct ramlace_stat *out);

/**
 * What path names; as ramlace_stat, but a symbolic link at its end is not followed.
 */
int ramlace_lstat(struct ramlace_pool *pool, const char *path, struct ramlace_stat *out);

/**
 * Creates a directory. mode: its permission bits, of which the process's umask takes some away.
 * EEXIST when the name is taken, ENOENT when the directory above is missing.
 */
int ramlace_mkdir(struct ramlace_pool *pool, const char *path, mode_t mode);

/**
 * Removes a directory. ENOTEMPTY when it has entries, ENOTDIR when it is none.
 */
int ramlace_rmdir(struct ramlace_pool *pool, const char *path);

/**
 * Removes a file or a symbolic link. A file that is open lives on, without a name, until its
 * last close. EISDIR for a directory.
 */
int ramlace_unlink(struct ramlace_pool *pool, const char *path);

/**
 * Removes files and symbolic links, in no certain order and many by one message where they lie in
 * one directory; each as ramlace_unlink does, and a path that is given twice once. count: how many
 * paths there are, and places in errors, which gets for each path 0 or its errno; it may be NULL.
 * Returns how many were not removed; errno and ramlace_error() tell of the first of these. -1
 * where none was tried.
 */
int ramlace_unlink_many(struct ramlace_pool *pool,
                        const char *const *paths,
                        int *errors,
                        int count);

/**
 * Creates a symbolic link at path that points to target, which is any text of at most 4095
 * bytes: a path from the pool's root when it begins with a slash, else from the link's directory.
 */
int ramlace_symlink(struct ramlace_pool *pool, const char *target, const char *path);

/**
 * Puts the target of a symbolic link into buffer, at most size bytes, without a NUL. Returns the
 * bytes put; size when there may be more. EINVAL when path names no symbolic link.
 */
ssize_t ramlace_readlink(struct ramlace_pool *pool, const char *path, char *buffer, size_t size);

/**
 * Sets a file's size in bytes by path; see ramlace_ftruncate.
 */
int ramlace_truncate(struct ramlace_pool *pool, const char *path, int64_t size);

/**
 * Sets permission bits, 07777 at most; a symbolic link is followed.
 */
int ramlace_chmod(struct ramlace_pool *pool, const char *path, mode_t mode);

/**
 * Sets owner and group; (uid_t)-1 and (gid_t)-1 leave them as they are. A symbolic link is
 * followed. EPERM where the pool does not allow it to this user.
 */
int ramlace_chown(struct ramlace_pool *pool, const char *path, uid_t uid, gid_t gid);

/**
 * Sets the times of the last read (times[0]) and the last change of content (times[1]); NULL
 * sets both to the present moment. RAMLACE_TIME_NOW and RAMLACE_TIME_OMIT may stand in the
 * nanoseconds. A symbolic link is followed. EINVAL for a moment that is none, or beyond the
 * years 1677 to 2262.
 */
int ramlace_utimens(struct ramlace_pool *pool, const char *path, const struct ramlace_time *times);

/**
 * Puts the value of an extended attribute into value, at most size bytes, and returns its bytes; with
 * size 0 only that. A symbolic link at the end of path is followed. ENODATA when there is none that you
 * may see, ERANGE when it is longer than size, EOPNOTSUPP for names that do not begin with "user.",
 * "trusted." or "security.".
 */
ssize_t ramlace_getxattr(struct ramlace_pool *pool,
                         const char *path,
                         const char *name,
                         void *value,
                         size_t size);

/**
 * Sets an extended attribute to size bytes, at most 64 KiB. flags: 0, XATTR_CREATE (EEXIST when there is
 * one) or XATTR_REPLACE (ENODATA when there is none) of <sys/xattr.h>. A symbolic link at the end of path
 * is followed. E2BIG for a value that is too long, ENOSPC when the file has too many.
 */
int ramlace_setxattr(struct ramlace_pool *pool,
                     const char *path,
                     const char *name,
                     const void *value,
                     size_t size,
                     int flags);

/**
 * Puts the names of the extended attributes that you may see into list, each with a NUL behind it, at most
 * size bytes, and returns their bytes; with size 0 only that. A symbolic link at the end of path is
 * followed. ERANGE when they are longer than size.
 */
ssize_t ramlace_listxattr(struct ramlace_pool *pool,
                          const char *path,
                          char *list,
                          size_t size);

/**
 * Removes an extended attribute. A symbolic link at the end of path is followed. ENODATA when there is none.
 */
int ramlace_removexattr(struct ramlace_pool *pool,
                        const char *path,
                        const char *name);

/**
 * Begins to list the directory at path. Entries "." and ".." are not listed. An entry that is
 * there from the beginning to the end of the listing is listed exactly once; one that comes or
 * goes meanwhile may be listed or not. Returns NULL and sets errno: ENOENT, ENOTDIR, EACCES.
 */
struct ramlace_directory *ramlace_opendir(struct ramlace_pool *pool, const char *path);

/**
 * Puts the next entry into the program's structure. Returns 1, or 0 after the last entry, or -1
 * and sets errno: EBADF when this is no open directory, or was opened before a fork by the
 * parent.
 */
int ramlace_readdir(struct ramlace_directory *directory, struct ramlace_entry *entry);

/**
 * Ends a listing; the handle is invalid afterwards. Returns 0, or -1 with EBADF.
 */
int ramlace_closedir(struct ramlace_directory *directory);

/**
 * How the file at path lies in the pool, or, of a directory, what new files in it inherit.
 */
int ramlace_layout_get(struct ramlace_pool *pool, const char *path, struct ramlace_layout *out);

/**
 * Sets what new files in a directory inherit, or a file's own mode and reserve; hints that are 0, or NULL, are as
 * usual again. ENOTDIR for all else of a file: it was fixed when it was created. EBUSY for a file
 * that somebody has open and that has others. EINVAL for hints that make no sense.
 */
int ramlace_layout_set(struct ramlace_pool *pool,
                       const char *path,
                       const struct ramlace_hints *hints);

/**
 * Writes 16 bytes that are this machine's until it starts anew, and no other's: what `machine` of a
 * struct ramlace_part is to be. ERANGE where size is less.
 */
int ramlace_machine(uint8_t *machine, size_t size);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* RAMLACE_H */
