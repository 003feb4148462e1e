/* Small accesses of one rank, one after the other: rows of an array that a program writes or reads call by call, by itself or
 * together with other ranks. Each would be a message and a wake of a server. So writes are kept and go together, and reads bring
 * what probably comes next.
 *
 * The standard promises that others see a write when its rank has synchronized or closed the file, and that a rank sees
 * others' writes when it has done so behind them; between these calls the bytes may be here. In atomic mode they never are. */
#include "mpiio.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* An access with more bytes or more runs than these is no small one. */
#define SMALL_BYTES_MAX (16 << 10)
#define SMALL_RUNS_MAX 16
/* Runs that are kept: as many as a client asks one server for at once (limits::RUNS_PER_REQUEST_MAX). */
#define KEPT_RUNS_MAX 4096
/* No chunk of a file has fewer bytes, or begins elsewhere than at a multiple of them. */
#define CHUNK_BYTES_MIN (64 << 10)
/* Reads that follow each other within this distance may be about to read what lies between, too. */
#define NEAR_BYTES_MAX (128 << 10)
/* What is read first behind a read; twice as much each time, up to the hint, while it is wanted. */
#define AHEAD_BYTES_MIN (32 << 10)
/* It is, where of this many bytes that the reads have passed the program has asked for one: a rank of 16 that share an array asks for
 * one in 16, in rows, and a row by itself costs as much as reading some ten times its bytes. */
#define PASSED_FOR_ONE 20

struct kept {
    int64_t offset, length, at;
};

void small_make(struct small *small)
{
    *small = (struct small){.write_room = SMALL_ROOM_DEFAULT, .read_room = SMALL_ROOM_DEFAULT};
    pthread_mutex_init(&small->lock, NULL);
}

void small_free(struct small *small)
{
    free(small->bytes);
    free(small->runs);
    free(small->ahead);
    pthread_mutex_destroy(&small->lock);
}

/* Whether a file can have this run: what a program got wrong is told by its own call, not by that of other writes. */
static bool is_in_a_file(ramlace_run run)
{
    int64_t end;
    return run.offset >= 0 && !__builtin_mul_overflow(run.count - 1, run.stride, &end) &&
           !__builtin_add_overflow(end, run.offset, &end) && !__builtin_add_overflow(end, run.length, &end) &&
           end <= FILE_BYTES_MAX;
}

static bool is_small(const struct file *file, int64_t length, const struct runs *runs)
{
    int64_t places = 0;
    for (size_t i = 0; i < runs->count && places <= SMALL_RUNS_MAX; i++) {
        if (!is_in_a_file(runs->items[i]))
            return false;
        places += runs->items[i].count;
    }
    return !file->atomic && length <= SMALL_BYTES_MAX && places <= SMALL_RUNS_MAX;
}

/* By a pointer that all ranks have, others hear of each access. */
static bool has_own_place(const struct access *access)
{
    return access->pointer == AT_OFFSET || access->pointer == AT_POSITION;
}

/* One of the first collective writes since ranks have last met: they do not know that there is something to wait for. */
static bool is_early(const struct file *file, const struct access *access)
{
    return access->together && file->writes_together <= SMALL_IN_A_ROW;
}

/* One more in a row; it is only asked whether there were enough. */
static void count_one(int *in_a_row)
{
    if (*in_a_row <= SMALL_IN_A_ROW)
        ++*in_a_row;
}

/* ---- Writes ---- */

/* Sends what is kept in one call; false where that does not do, for whatever reason. */
static bool send_together(struct file *file)
{
    struct small *small = &file->small;
    struct runs runs = {0};
    int64_t at = 0;
    bool in_order = true;
    for (size_t i = 0; i < small->count && in_order; at += small->runs[i++].length)
        in_order = small->runs[i].at == at;
    char *sorted = in_order ? small->bytes : malloc(small->used);
    int error = sorted ? MPI_SUCCESS : MPI_ERR_NO_MEM;
    at = 0;
    for (size_t i = 0; i < small->count && error == MPI_SUCCESS; i++) {
        struct kept kept = small->runs[i];
        if (!in_order)
            memcpy(sorted + at, small->bytes + kept.at, kept.length);
        at += kept.length;
        error = runs_append(&runs, (ramlace_run){kept.offset, kept.length, 0, 1}, BYTES);
    }
    bool sent = error == MPI_SUCCESS && ramlace_pwrite_runs(file->file, sorted, at, runs.items, runs.count) == at;
    runs_free(&runs);
    if (!in_order)
        free(sorted);
    return sent;
}

/* Sends one kept run, chunk by chunk; the first error is told. False behind a server that says nothing. */
static bool send_run(struct file *file, struct kept kept, int *error)
{
    while (kept.length > 0) {
        int64_t part = CHUNK_BYTES_MIN - kept.offset % CHUNK_BYTES_MIN;
        part = part < kept.length ? part : kept.length;
        ramlace_run run = {kept.offset, part, 0, 1};
        ssize_t done = ramlace_pwrite_runs(file->file, file->small.bytes + kept.at, part, &run, 1);
        bool silent = done < 0 && (errno == ETIMEDOUT || errno == EHOSTDOWN);
        if (*error == MPI_SUCCESS && done < part)
            *error = done < 0 ? error_class() : MPI_ERR_NO_SPACE;
        if (silent)
            return false;
        kept = (struct kept){kept.offset + part, kept.length - part, kept.at + part};
    }
    return true;
}

/* Sends what is kept. What cannot go together goes by itself, so that what cannot be written takes nothing else with it; but
 * a server that says nothing is not waited for again and again. What could not be written is given up: a call says so. */
static int send_kept(struct file *file)
{
    struct small *small = &file->small;
    int error = MPI_SUCCESS;
    bool on = small->count > 0 && !send_together(file);
    for (size_t i = 0; i < small->count && on; i++)
        on = send_run(file, small->runs[i], &error);
    small->count = 0;
    small->used = 0;
    return error;
}

/* How many kept runs begin at or before this offset. */
static size_t kept_up_to(const struct small *small, int64_t offset)
{
    size_t low = 0, high = small->count;
    /* Mostly behind the last one. */
    if (high > 0 && small->runs[high - 1].offset <= offset)
        return high;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (small->runs[middle].offset <= offset)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Keeps one run, which there is room for. */
static int keep(struct file *file, int64_t offset, int64_t length, const char *bytes)
{
    struct small *small = &file->small;
    size_t place = kept_up_to(small, offset);
    struct kept *before = place > 0 ? &small->runs[place - 1] : NULL;
    int64_t end_before = before ? before->offset + before->length : 0;
    if (before && offset + length <= end_before) {
        memcpy(small->bytes + before->at + (offset - before->offset), bytes, length);
        return MPI_SUCCESS;
    }
    bool overlaps = (before && offset < end_before) ||
                    (place < small->count && small->runs[place].offset < offset + length);
    if (overlaps) {
        int error = send_kept(file);
        if (error != MPI_SUCCESS)
            return error;
        before = NULL;
        place = 0;
    }
    memcpy(small->bytes + small->used, bytes, length);
    if (before && offset == end_before && before->at + before->length == small->used) {
        before->length += length;
    } else {
        memmove(&small->runs[place + 1], &small->runs[place], (small->count - place) * sizeof *small->runs);
        small->runs[place] = (struct kept){offset, length, small->used};
        small->count++;
    }
    small->used += length;
    return MPI_SUCCESS;
}

/* Room for a small write; without it the write is sent as it is. */
static bool make_room(struct file *file, int64_t length, int *error)
{
    struct small *small = &file->small;
    if (small->bytes == NULL)
        small->bytes = malloc(small->write_room);
    if (small->runs == NULL)
        small->runs = malloc(KEPT_RUNS_MAX * sizeof *small->runs);
    if (small->bytes == NULL || small->runs == NULL || length > small->write_room)
        return false;
    if (small->used + length > small->write_room || small->count + SMALL_RUNS_MAX > KEPT_RUNS_MAX)
        *error = send_kept(file);
    return true;
}

static int keep_all(struct file *file, const char *bytes, const struct runs *runs)
{
    int error = MPI_SUCCESS;
    __atomic_fetch_add(&counters.kept, 1, __ATOMIC_RELAXED);
    for (size_t i = 0; i < runs->count; i++) {
        ramlace_run run = runs->items[i];
        for (int64_t number = 0; number < run.count && error == MPI_SUCCESS; number++, bytes += run.length)
            error = keep(file, run.offset + number * run.stride, run.length, bytes);
    }
    return error;
}

/* What was read ahead is no more than that: it is asked for again. */
static void forget_ahead(struct small *small)
{
    small->ahead_bytes = small->window = small->asked = 0;
    small->reads_in_a_row = 0;
}

int small_write(struct file *file, const struct access *access, const char *bytes, int64_t length, const struct runs *runs,
                int64_t *moved)
{
    struct small *small = &file->small;
    int error = MPI_SUCCESS;
    pthread_mutex_lock(&small->lock);
    forget_ahead(small);
    bool may_wait = has_own_place(access) && small->write_room > 0 && is_small(file, length, runs);
    if (may_wait)
        count_one(&small->writes_in_a_row);
    else
        small->writes_in_a_row = 0;
    bool keeps = small->writes_in_a_row > SMALL_IN_A_ROW && !is_early(file, access) && make_room(file, length, &error);
    if (error == MPI_SUCCESS)
        error = keeps ? keep_all(file, bytes, runs) : send_kept(file);
    pthread_mutex_unlock(&small->lock);
    if (error != MPI_SUCCESS)
        return error;
    if (keeps) {
        *moved += length;
        return MPI_SUCCESS;
    }
    error = bytes_write(file, bytes, length, runs, moved);
    small_changed(file);
    return error;
}

int small_none(struct file *file)
{
    struct small *small = &file->small;
    pthread_mutex_lock(&small->lock);
    forget_ahead(small);
    small->writes_in_a_row = 0;
    int error = send_kept(file);
    pthread_mutex_unlock(&small->lock);
    return error;
}

void small_changed(struct file *file)
{
    pthread_mutex_lock(&file->small.lock);
    forget_ahead(&file->small);
    pthread_mutex_unlock(&file->small.lock);
}

/* ---- Reads ---- */

/* Where an access ends; its runs ascend. */
static int64_t end_of_all(const struct runs *runs)
{
    return run_end(runs->items[runs->count - 1]);
}

/* Copies runs out of what was read ahead, where all of them are there. */
static bool take(const struct small *small, char *bytes, const struct runs *runs)
{
    if (runs->items[0].offset < small->ahead_from || end_of_all(runs) > small->ahead_from + small->ahead_bytes)
        return false;
    for (size_t i = 0; i < runs->count; i++) {
        ramlace_run run = runs->items[i];
        for (int64_t number = 0; number < run.count; number++, bytes += run.length)
            memcpy(bytes, small->ahead + (run.offset + number * run.stride - small->ahead_from), run.length);
    }
    return true;
}

/* How much is worth being read from this offset on, for an access that reaches so far; 0 for nothing. It grows while the
 * program asks for a good part of what it passes, and shrinks when it does not. */
static int64_t next_window(const struct small *small, int64_t offset, int64_t reach)
{
    bool wanted = small->asked >= (offset - small->asked_from) / PASSED_FOR_ONE;
    int64_t window = wanted ? 2 * small->window : small->window / 2;
    if (wanted && window < AHEAD_BYTES_MIN)
        window = AHEAD_BYTES_MIN;
    if (wanted && window < 2 * reach)
        window = 2 * reach;
    if (window > small->read_room)
        window = small->read_room;
    return window < AHEAD_BYTES_MIN || window < 2 * reach ? 0 : window;
}

/* Reads what the next reads may want; false where nothing is worth it, or there is nothing, or no memory for it. An error is
 * none of the program's, which has not asked for this: from then on it gets what it asks for, up to the next small_settle(). */
static bool read_ahead(struct file *file, const struct runs *runs)
{
    struct small *small = &file->small;
    int64_t offset = runs->items[0].offset, window = next_window(small, offset, end_of_all(runs) - offset);
    forget_ahead(small);
    small->asked_from = offset;
    if (small->ahead == NULL && window > 0)
        small->ahead = malloc(small->read_room);
    if (window == 0 || small->ahead == NULL)
        return false;
    ramlace_run run = {offset, window, 0, 1};
    ssize_t brought = ramlace_pread_runs(file->file, small->ahead, window, &run, 1);
    if (brought < 0) {
        small->never_ahead = true;
        return false;
    }
    small->ahead_from = offset;
    small->ahead_bytes = brought;
    small->window = window;
    small->reads_in_a_row = SMALL_IN_A_ROW + 1;
    return true;
}

/* A read that goes on where the last one ended, or near behind. No byte is answered twice by what was read once: who reads a
 * place again asks the servers again. */
static bool goes_on(struct small *small, const struct runs *runs)
{
    int64_t first = runs->items[0].offset;
    bool near = first >= small->read_end && first - small->read_end <= NEAR_BYTES_MAX;
    small->read_end = end_of_all(runs);
    return near;
}

/* Answers a read by what was read ahead; false where the servers are to be asked. */
static bool is_answered(struct file *file, char *bytes, int64_t length, const struct runs *runs)
{
    struct small *small = &file->small;
    if (!goes_on(small, runs)) {
        forget_ahead(small);
        small->asked_from = runs->items[0].offset;
    }
    count_one(&small->reads_in_a_row);
    bool found = take(small, bytes, runs);
    if (!found && small->reads_in_a_row > SMALL_IN_A_ROW && !small->never_ahead && read_ahead(file, runs))
        found = take(small, bytes, runs);
    small->asked += length;
    return found;
}

int small_read(struct file *file, const struct access *access, char *bytes, int64_t length, const struct runs *runs,
               int64_t *moved)
{
    struct small *small = &file->small;
    bool found = false;
    pthread_mutex_lock(&small->lock);
    small->writes_in_a_row = 0;
    int error = send_kept(file);
    bool may_come_ahead = has_own_place(access) && small->read_room >= AHEAD_BYTES_MIN && runs->count > 0 &&
                          is_small(file, length, runs);
    if (error == MPI_SUCCESS && may_come_ahead)
        found = is_answered(file, bytes, length, runs);
    else
        forget_ahead(small);
    pthread_mutex_unlock(&small->lock);
    if (error != MPI_SUCCESS)
        return error;
    if (!found)
        return bytes_read(file, bytes, length, runs, moved);
    __atomic_fetch_add(&counters.ahead, 1, __ATOMIC_RELAXED);
    *moved += length;
    return MPI_SUCCESS;
}

/* ---- What ends both ---- */

/* Under the lock. Files that are open for long and seldom used hold no memory for it. */
static int settle(struct file *file)
{
    struct small *small = &file->small;
    int error = send_kept(file);
    forget_ahead(small);
    small->writes_in_a_row = 0;
    small->never_ahead = false;
    free(small->bytes);
    free(small->runs);
    free(small->ahead);
    small->bytes = small->ahead = NULL;
    small->runs = NULL;
    return error;
}

int small_settle(struct file *file)
{
    pthread_mutex_lock(&file->small.lock);
    int error = settle(file);
    pthread_mutex_unlock(&file->small.lock);
    return error;
}

int small_resize(struct file *file, int64_t write_room, int64_t read_room)
{
    struct small *small = &file->small;
    pthread_mutex_lock(&small->lock);
    int error = settle(file);
    small->write_room = write_room;
    small->read_room = read_room;
    pthread_mutex_unlock(&small->lock);
    return error;
}
