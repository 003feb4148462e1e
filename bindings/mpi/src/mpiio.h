/* What the parts of the MPI-IO library share. README.md says how the whole fits together. */
#ifndef RAMLACE_MPIIO_H
#define RAMLACE_MPIIO_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <mpi.h>
#include <pthread.h>
#include <ramlace.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

/* Bytes that pass through our own memory at once, where the program's memory is not in one piece. */
#define STAGE_BYTES_MAX (4 << 20)
/* Bytes of small writes that an open file keeps, and of small reads that it brings ahead, unless hints say otherwise. */
#define SMALL_ROOM_DEFAULT (1 << 20)
#define SMALL_ROOM_MAX (64 << 20)
/* So many small accesses, with nothing else between them, go to the servers one by one, as they come: programs that write a few
 * rows often notify each other by a message or a barrier alone. The standard does not promise that this is enough; here it always
 * was. */
#define SMALL_IN_A_ROW 16
/* Of a hint's text. */
#define HINT_BYTES_MAX 256
/* Of what distinguishes a machine from others. */
#define MACHINE_BYTES 16
/* A file ends here at most: limits::FILE_BYTES_MAX. */
#define FILE_BYTES_MAX ((int64_t)1 << 62)
/* Runs of one flattened datatype; what has more is refused with MPI_ERR_NO_MEM. Tests set it, and what follows. */
#ifndef RUNS_MAX
#define RUNS_MAX ((size_t)1 << 24)
#endif
/* Elements of one message of MPI. */
#ifndef MESSAGE_MAX
#define MESSAGE_MAX INT32_MAX
#endif
/* Locks that one atomic access takes; what touches more places locks all from its first byte to its last. */
#define LOCKS_MAX 64
/* Cells of one file of shared pointers: each change of the view or of the pointer takes a new one. */
#define CELLS_OF_A_FILE 512

/* Two phases are not chosen, unless hints want them, where ranks have less than this part of what lies between their first
 * byte and their last. */
#define EXCHANGED_PART_MIN 8

/* ---- runs.c: lists of runs of bytes, in the order of the data ---- */

/* What a run consists of, where that matters (external32): elements with so many bytes in memory and in a file. These are
 * the same bytes, the same in another order, whole numbers of another size, or 80-bit numbers. */
enum nature { PLAIN, TURNED, SIGNED, UNSIGNED, X87 };
struct element {
    uint8_t nature, here, there;
};
#define BYTES ((struct element){PLAIN, 1, 1})

/* Equal runs at equal distances are one item, as the C library has them. */
struct runs {
    ramlace_run *items;
    struct element *elements;
    size_t count, room;
    /* A list that would get more items fails, unless this is 0. */
    size_t most;
};

/* Appends runs, merging them with the last item where that describes the same bytes. MPI_SUCCESS or MPI_ERR_NO_MEM. */
int runs_append(struct runs *into, ramlace_run more, struct element element);
/* Appends a run as it is. */
int runs_push(struct runs *into, ramlace_run more);
/* Appends `count` copies of `from`, the first shifted by `at`, each `stride` bytes behind the one before. */
int runs_repeat(struct runs *into, const struct runs *from, int64_t at, int64_t count, int64_t stride);
void runs_free(struct runs *runs);
/* Behind the last byte of an item. */
int64_t run_end(ramlace_run run);

/* A tile of runs that repeats for ever: a file view, or a buffer of so many elements of a datatype. */
struct tiling {
    struct runs tile;
    /* Bytes of data before each item, and of the whole tile. */
    int64_t *before;
    int64_t start, extent, tile_bytes;
    /* The next tile would begin before the end of this one, as in PnetCDF's views: there is only one. */
    bool once;
    /* Runs of a tile have bytes in common; or a tile has some in common with the next one. No run begins before an earlier one. */
    bool overlaps, slides;
    /* Of a view: behind the last byte of a tile, where runs may overlap not that of the last run. */
    int64_t end;
};

/* The tiling that begins at `start`; takes the runs over. */
int tiling_make(struct tiling *tiling, struct runs *tile, int64_t start, int64_t extent);
void tiling_free(struct tiling *tiling);
/* Whether there are `length` bytes of data, `from` bytes of data behind the beginning: MPI_ERR_IO where there are not so
 * many, in a tiling that is there once; MPI_ERR_ARG where their places are too large for a number. */
int tiling_check(const struct tiling *tiling, int64_t from, int64_t length);
/* Copies these bytes, which are checked, between memory that lies like this from `base` on and bytes that lie one behind the
 * other. Nothing is listed. */
void tiling_copy(const struct tiling *tiling, int64_t from, int64_t length, char *base, char *bytes, bool gather);
/* Appends the runs of these bytes, which are checked. */
int tiling_runs(const struct tiling *tiling, int64_t from, int64_t length, struct runs *out);
/* These bytes as a tile that repeats, with the runs before and behind it. */
struct tiles {
    struct runs before, behind;
    ramlace_tile items[3];
    size_t count;
};
/* Whether a list of the runs of these bytes would be long, and of tiles is short. */
bool tiling_repeats(const struct tiling *tiling, int64_t from, int64_t length);
/* The tiles of these bytes, which are checked and repeat; they are valid as long as the tiling. */
int tiling_tiles(const struct tiling *tiling, int64_t from, int64_t length, struct tiles *out);
void tiles_free(struct tiles *tiles);
/* Where the byte of data `from` lies; behind the last byte, in a tiling that is there once and has just so many; at the
 * beginning, in one that has none. It is checked, too. */
int tiling_place(const struct tiling *tiling, int64_t from, int64_t *place);
/* Whether a tile is one run. */
bool tiling_is_run(const struct tiling *tiling);
/* Whether all data lie one behind the other. */
bool tiling_is_contiguous(const struct tiling *tiling);
/* Whether no byte of a tile lies before an earlier one, or, where runs may overlap, no run begins before an earlier one; then
 * `once` says whether it repeats. */
bool tiling_is_ascending(struct tiling *tiling, bool may_overlap);
/* Whether runs of these bytes may have bytes in common. */
bool tiling_overlaps(const struct tiling *tiling, int64_t from, int64_t length);
/* Bytes of data before the first one that does not lie before this offset; the tiling is ascending. */
int64_t tiling_bytes_below(const struct tiling *tiling, int64_t offset);

/* ---- types.c: datatypes ---- */

/* How a datatype is measured: as memory has it; as a file in external32 has it; as memory has it, with the elements that
 * are converted between the two. */
enum measure { IN_MEMORY, IN_EXTERNAL32, AS_ELEMENTS };

/* The runs of one element of a datatype, in the order of its type map. An MPI error class. */
int type_flatten(MPI_Datatype type, enum measure measure, struct runs *out);
/* The tiling of a datatype's elements from `start` on. */
int type_tiling(MPI_Datatype type, enum measure measure, int64_t start, struct tiling *out);
/* How far apart elements of this type lie; 0 for one that cannot be flattened. */
int64_t type_extent(MPI_Datatype type, enum measure measure);
/* A type of our own that means the same; predefined ones are themselves. */
int type_keep(MPI_Datatype type, MPI_Datatype *kept);
void type_release(MPI_Datatype *kept);

/* ---- external32.c: numbers as every machine understands them ---- */

/* The runs of a predefined datatype, in either of the measures that know its elements. */
int external32_flatten(MPI_Datatype type, enum measure measure, struct runs *out);
/* How far a datatype reaches in a file: MPI's lower and upper bound, by the sizes there and without padding. */
int external32_bounds(MPI_Datatype type, int64_t *lower, int64_t *upper);
/* Bytes in a file of what these runs of elements are. */
int64_t external32_bytes(const struct runs *runs);

/* A walk through the elements of runs in memory, which come again after so many bytes, so many times in all. */
struct walk {
    const struct runs *runs;
    int64_t extent, times;
    int64_t time;
    size_t item;
    int64_t number, done;
};
enum direction { MEASURE, TO_FILE, FROM_FILE };
/* Goes on by all elements that fit into `room` bytes of a file, and converts them between the memory at `base` and these
 * bytes; adds what they are there and here. MPI_ERR_CONVERSION where a number does not fit. */
int external32_walk(struct walk *walk, enum direction direction, char *base, char *bytes, int64_t room, int64_t *there,
                    int64_t *here);

/* ---- names.c: which files are ours ---- */

struct pool {
    struct pool *next;
    ramlace_pool *handle;
    /* How it was connected to. */
    char *reached;
    char id[64];
};

enum place { PLACE_FOREIGN, PLACE_MOUNTED, PLACE_LOCATOR };

struct name {
    enum place place;
    struct pool *pool;
    /* From the pool's root. */
    char *path;
};

/* Whose file this is, or with `follow` false whose name this is, which may be a link. A locator that leads nowhere is an MPI
 * error class; below a mount that cannot be reached otherwise, the file is foreign: the mount serves it. */
int name_resolve(const char *filename, bool for_writing, bool follow, struct name *name);
/* The name that goes when a file is deleted: of a link the link's own, as with every MPI library. A foreign one has no pool,
 * and its path is this machine's; no path, where its directory is not there. */
int name_to_delete(const char *filename, struct name *name);
/* Deletes it. An MPI error class. */
int name_delete(const struct name *name);
void name_free(struct name *name);
void pools_disconnect(void);

/* ---- handles.c: open files ---- */

struct view {
    MPI_Datatype etype, filetype;
    int64_t etype_bytes;
    struct tiling tiling;
    bool external32;
    char representation[MPI_MAX_DATAREP_STRING + 1];
};

/* What error_class() has returned in one thread, for another one to report. */
struct failure {
    int class;
    char sentence[MPI_MAX_ERROR_STRING];
};

/* Writes that are not at the servers yet, guarded by the lock of the small accesses: see behind.c. */
struct behind {
    /* The buffer that is filled; those that wait for their turn, of which the first may be in flight; and empty ones. */
    struct batch *filling, *first, **last, *spare;
    /* How many buffers were ever queued for sending, and how many were sent. */
    uint64_t queued, sent;
    pthread_cond_t changed;
    pthread_t thread;
    bool running, ending, sending;
    /* What went wrong and no call has reported yet; and that it was a server which says nothing. */
    struct failure lost;
    bool silent;
};

/* Small accesses that are put together: see small.c. */
struct small {
    pthread_mutex_t lock;
    /* Bytes that are kept of writes, and that are read ahead, at most; 0 for none. */
    int64_t write_room, read_room;
    /* Small ones since something else was done. */
    int writes_in_a_row, reads_in_a_row;
    struct behind behind;
    /* What was read ahead and how much that should have been; and where the last small read ended. */
    char *ahead;
    int64_t ahead_from, ahead_bytes, window, read_end;
    /* Bytes that small reads have asked for since this place. */
    int64_t asked, asked_from;
    /* Reading ahead has failed; and the program says that it reads in no order. */
    bool never_ahead, random;
};

/* What programs say of collective calls, and what all ranks have agreed on: see hints.c. */
enum choice { CB_DISABLE, CB_AUTOMATIC, CB_ENABLE };
struct hints {
    int64_t cb_read, cb_write, cb_nodes, cb_buffer_size;
};

struct file {
    struct file *next;
    MPI_File handle;
    MPI_Comm comm;
    int rank, ranks, amode;
    /* And what goes with DELETE_ON_CLOSE. */
    struct name name, on_close;
    ramlace_file *file;
    /* Guards what follows; an atomic access holds it from its locks to their end, for they are the file's. */
    pthread_mutex_t lock;
    struct view view;
    /* The individual pointer, in bytes of the view's data. */
    int64_t position;
    bool atomic;
    struct small small;
    struct hints hints;
    /* Whether collective reads and writes of this view go by two phases: never, where they are large enough, always. */
    int phases[2];
    /* Collective writes since the last collective read, the same number on all ranks; it is only asked whether there were more
     * than SMALL_IN_A_ROW. */
    int writes_together;
    /* The split collective call that has begun: its name, and what it moved. */
    const char *split;
    int64_t split_bytes;
    /* Shared pointers: see shared.c. */
    uint64_t shared_id, shared_epoch;
    int64_t shared_base;
    /* The one in use, and how many this rank has used. */
    ramlace_file *shared_file;
    uint64_t shared_files;
    /* Transfers that have begun and go on behind the program; requests.c guards it. */
    int pending;
};

/* The state behind a handle, or NULL when it is none of ours. */
struct file *file_find(MPI_File handle);
void file_insert(struct file *file);
void file_remove(struct file *file);
/* Sends what open files have kept: MPI is about to end, and some were not closed. */
void files_flush(void);
/* A handle of the MPI library's own, as a place for its error handler and as a number for Fortran. */
int handle_take(MPI_File *handle);
void handle_give_back(MPI_File handle);

/* ---- errors.c ---- */

/* The class of what the C library said last. */
int error_class(void);
/* The class of what this machine's own call said last; there is no sentence. */
int error_of_machine(void);
/* What error_class() has returned of this class in this thread; and reports it in another one. */
struct failure error_keep(int class);
int error_retell(const struct failure *failure);
/* What is known of an error of this class that was reported last in this thread. */
const char *error_text(int class, char text[MPI_MAX_ERROR_STRING]);
/* The code for the program; a class that has a sentence by ramlace_error() brings it in its error string. */
int error_code(int class);
/* Calls the file's error handler, or the default one where `file` is NULL; returns the code for the program. */
int error_raise(struct file *file, int class);

/* ---- open.c ---- */

int file_open(MPI_Comm comm, const char *filename, int amode, MPI_Info info, MPI_File *handle, bool *ours);
/* The code for the program; the file's error handler was called with it. */
int file_close(struct file *file);
int file_delete(const char *filename, bool *ours);
int file_set_view(struct file *file, MPI_Offset displacement, MPI_Datatype etype, MPI_Datatype filetype,
                  const char *representation);
/* Behind what this rank has kept, which is sent first. An MPI error class. */
int file_size(struct file *file, int64_t *size);

/* ---- placing.c ---- */

/* Where ranks run; on the first rank, if it wants a new file's bytes near the ranks that use them, where all do. */
struct placing {
    bool near;
    int ranks;
    unsigned char own[MACHINE_BYTES];
    unsigned char *machines;
    struct ramlace_part *parts;
};

/* What a rank knows by itself. MPI_SUCCESS or MPI_ERR_NO_MEM. */
int placing_make(struct placing *placing, MPI_Comm comm, int amode, MPI_Info info);
/* Sends the first rank where all run; by all together. */
void placing_gather(struct placing *placing, MPI_Comm comm);
/* On the first rank, what is wished of a new file's layout; valid until placing_free(). */
int placing_hints(struct placing *placing, bool one_machine, MPI_Info info, struct ramlace_hints *hints);
void placing_free(struct placing *placing);

/* ---- hints.c ---- */


/* The text of a hint, or its number; false where there is none. */
bool hint_text(MPI_Info info, const char *key, char *text);
bool hint(MPI_Info info, const char *key, unsigned long long *value);
void hints_make(struct file *file);
/* Takes over the hints that may change while a file is open, and what follows from a new view; on all ranks together. */
int file_hints(struct file *file, MPI_Info info);
int file_get_info(struct file *file, MPI_Info *info);

/* ---- access.c ---- */

enum pointer { AT_OFFSET, AT_POSITION, AT_SHARED, AT_ORDERED };

struct access {
    /* All ranks do it together. */
    bool write, together;
    enum pointer pointer;
    MPI_Offset offset;
    void *buffer;
    MPI_Count count;
    MPI_Datatype type;
};

/* An access that knows its place, and what came of it. */
struct transfer {
    struct access access;
    struct tiling memory;
    /* Bytes of memory and of the view's data; they differ in external32. */
    int64_t in_memory, in_file, from;
    struct moved {
        int64_t in_memory, in_file;
    } moved;
};

/* Checks an access and gives it its place; from then on no call of MPI is needed. Where it is refused it has no bytes, and
 * the individual pointer is where it was. */
int transfer_begin(struct file *file, const struct access *access, struct transfer *transfer);
/* Cancels an access that was not refused: it moves nothing, and its place is given back. */
void transfer_cancel(struct file *file, struct transfer *transfer);
/* Moves the bytes. */
int transfer_do(struct file *file, struct transfer *transfer);
void transfer_end(struct transfer *transfer);

/* Counts a collective write, which also ends what a rank has read ahead that writes nothing. */
void note_together(struct file *file, const struct access *access);

/* Does what a data access routine says; `moved` are bytes of memory. An MPI error class. */
int file_access(struct file *file, const struct access *access, int64_t *moved);

/* Moves bytes that lie one behind the other to or from runs of the file, in one call; a read stops at the file's end. */
int bytes_write(struct file *file, const char *bytes, int64_t length, const struct runs *runs, int64_t *moved);
int bytes_read(struct file *file, char *bytes, int64_t length, const struct runs *runs, int64_t *moved);

/* ---- locks.c ---- */

/* Locks what an atomic access touches. An MPI error class; then nothing is locked. */
int access_lock(struct file *file, bool write, int64_t from, int64_t length);

/* ---- overlap.c ---- */

/* Reads `length` bytes of data of a view whose runs overlap. */
int overlap_read(struct file *file, int64_t from, char *bytes, int64_t length, int64_t *moved);

/* ---- together.c: what all ranks do at once, without keeping the processor from those that they wait for ---- */

/* Waits until all have come. */
void together_come(MPI_Comm comm);
/* What ranks have becomes what the operation makes of it. */
void together_reduce(void *all, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm);
/* All get the numbers of one rank. */
void together_tell(int64_t *told, int count, int root, MPI_Comm comm);
/* The sum of what the ranks up to this one have. */
int64_t together_sum_up_to(int64_t mine, MPI_Comm comm);
/* Each rank gives each other so many elements, which begin so many elements behind the first one. */
void together_swap(const void *mine, const int *counts, const int *at, void *theirs, const int *their_counts,
                   const int *their_at, MPI_Datatype type, MPI_Comm comm);
/* The same number to each. */
void together_swap_equal(const int64_t *mine, int64_t *theirs, int count, MPI_Comm comm);
/* A communicator of the same ranks. A code of MPI's. */
int together_copy(MPI_Comm comm, MPI_Comm *copy);

/* ---- exchange.c: collective calls by two phases ---- */

/* Does a transfer on all ranks together, also on one whose arguments are wrong (`*error`); false where it is too small for
 * that, and nothing has been done. */
bool exchange(struct file *file, struct transfer *transfer, int *error);

/* ---- small.c: small accesses, put together ---- */

void small_make(struct small *small);
/* Nothing is kept any more. */
void small_end(struct file *file);
/* As bytes_write() and bytes_read(), for a part of an access; small ones may be kept and read ahead. */
int small_write(struct file *file, const struct access *access, const char *bytes, int64_t length, const struct runs *runs,
                int64_t *moved);
int small_read(struct file *file, const struct access *access, char *bytes, int64_t length, const struct runs *runs,
               int64_t *moved);
/* Sends what is kept, and forgets what was read. */
int small_flush(struct file *file);
/* An access that is no small one is about to begin: sends what is kept, and forgets what was read. */
int small_none(struct file *file);
/* Bytes or the size have changed otherwise: forgets what was read while that was under way. */
void small_changed(struct file *file);
/* The same, with other limits from then on. */
int small_resize(struct file *file, int64_t write_room, int64_t read_room);

/* ---- behind.c: what is kept of small writes, and sent behind the program; the small accesses' lock is held ---- */

/* Runs of an access that may be kept. */
#define SMALL_RUNS_MAX 16

void behind_make(struct behind *behind);
/* Ends the thread; without the lock, when nothing is kept. */
void behind_end(struct file *file);
/* Keeps an access; false where there is no memory for it, or where something that was kept before is lost (`*error`). */
bool behind_keep(struct file *file, const char *bytes, int64_t length, const struct runs *runs, int *error);
/* Sends all that was kept when this began; what is lost of it is the error, once. The lock is given back meanwhile. */
int behind_flush(struct file *file);
/* Gives empty buffers back. */
void behind_give_back(struct behind *behind);

/* ---- calls.c ---- */

/* What a status says of so many bytes. */
void status_fill(MPI_Status *status, int64_t bytes);

/* ---- requests.c ---- */

/* Begins what a nonblocking routine says; an MPI error class where it cannot begin. */
int request_start(struct file *file, const struct access *access, MPI_Request *handle);
/* Waits until nothing goes on behind the program for this file. */
void requests_wait(struct file *file);
/* MPI is about to end. */
void requests_end(void);

/* ---- shared.c ---- */

/* Adds to the shared pointer, in etypes, and returns where it was. */
int shared_add(struct file *file, int64_t etypes, int64_t *before);
/* The same for all ranks together, in their order. */
int shared_add_ordered(struct file *file, int64_t etypes, int64_t *before);
/* Sets it to a place; on all ranks, with the same place. */
void shared_set(struct file *file, int64_t etypes);
/* Where it is now. */
int shared_get(struct file *file, int64_t *etypes);
/* On all ranks, when the file is closed; `files` is the most that a rank has in shared_files. */
void shared_end(struct file *file, uint64_t files);

/* ---- counters.c: what this process did, so that a test knows that it was us ---- */

struct counters {
    long opens, reads, writes, kept, behind, ahead, exchanges, background, tiled;
};
extern struct counters counters;
void counters_report(void);

#endif
