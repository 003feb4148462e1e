/* Small accesses of one rank, one after the other: rows of an array that a program writes or reads call by call. Each would be
 * a message and a wake of a server. So writes are kept and go together, and reads bring what probably comes next.
 *
 * The standard promises that others see a write when its rank has synchronized or closed the file, and that a rank sees
 * others' writes when it has done so behind them; between these calls the bytes may be here. In atomic mode they never are. */
#include "mpiio.h"

#include <stdlib.h>
#include <string.h>

/* An access with more bytes or more runs than these is no small one. */
#define SMALL_BYTES_MAX (16 << 10)
#define SMALL_RUNS_MAX 16
/* So many small accesses, with nothing else between them, go to the servers at once. A few of them are what programs tell each
 * other about by a message or a barrier alone; the standard does not promise that this is enough, but it always was. */
#define SMALL_IN_A_ROW 16
/* Runs that are kept: as many as a request to one server has. */
#define KEPT_RUNS_MAX 4096
/* Reads that follow each other within this distance may be about to read what lies between, too. */
#define NEAR_BYTES_MAX (128 << 10)
/* What is read first behind a read; twice as much each time, up to the hint. */
#define AHEAD_BYTES_MIN (32 << 10)

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

static bool is_small(const struct file *file, int64_t length, const struct runs *runs)
{
    int64_t places = 0;
    for (size_t i = 0; i < runs->count && places <= SMALL_RUNS_MAX; i++)
        places += runs->items[i].count;
    return !file->atomic && length <= SMALL_BYTES_MAX && places <= SMALL_RUNS_MAX;
}

/* ---- Writes ---- */

/* Sends what is kept. What could not be written is given up, once a call has said so. */
static int send_kept(struct file *file)
{
    struct small *small = &file->small;
    struct runs runs = {0};
    int64_t at = 0, moved = 0;
    int error = MPI_SUCCESS;
    if (small->count == 0)
        return MPI_SUCCESS;
    char *sorted = malloc(small->used);
    if (sorted == NULL)
        error = MPI_ERR_NO_MEM;
    for (size_t i = 0; i < small->count && error == MPI_SUCCESS; i++) {
        struct kept kept = small->runs[i];
        memcpy(sorted + at, small->bytes + kept.at, kept.length);
        at += kept.length;
        error = runs_append(&runs, (ramlace_run){kept.offset, kept.length, 0, 1}, BYTES);
    }
    if (error == MPI_SUCCESS)
        error = bytes_write(file, sorted, at, &runs, &moved);
    small->count = 0;
    small->used = 0;
    runs_free(&runs);
    free(sorted);
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
        for (int64_t number = 0; number < run.count; number++, bytes += run.length) {
            int now = keep(file, run.offset + number * run.stride, run.length, bytes);
            error = error ? error : now;
        }
    }
    return error;
}

int small_write(struct file *file, bool alone, const char *bytes, int64_t length, const struct runs *runs, int64_t *moved)
{
    struct small *small = &file->small;
    int error = MPI_SUCCESS;
    pthread_mutex_lock(&small->lock);
    small->ahead_bytes = 0;
    small->reads_in_a_row = 0;
    bool is = alone && small->write_room > 0 && is_small(file, length, runs);
    small->writes_in_a_row = is ? small->writes_in_a_row + 1 : 0;
    bool keeps = is && small->writes_in_a_row > SMALL_IN_A_ROW && make_room(file, length, &error);
    if (error == MPI_SUCCESS)
        error = keeps ? keep_all(file, bytes, runs) : send_kept(file);
    pthread_mutex_unlock(&small->lock);
    if (error == MPI_SUCCESS && keeps)
        *moved += length;
    else if (error == MPI_SUCCESS)
        error = bytes_write(file, bytes, length, runs, moved);
    return error;
}

/* ---- Reads ---- */

/* Copies runs out of what was read ahead, where all of them are there. */
static bool take(const struct small *small, char *bytes, const struct runs *runs)
{
    ramlace_run first = runs->items[0], last = runs->items[runs->count - 1];
    int64_t end = last.offset + (last.count - 1) * last.stride + last.length;
    if (first.offset < small->ahead_from || end > small->ahead_from + small->ahead_bytes)
        return false;
    for (size_t i = 0; i < runs->count; i++) {
        ramlace_run run = runs->items[i];
        for (int64_t number = 0; number < run.count; number++, bytes += run.length)
            memcpy(bytes, small->ahead + (run.offset + number * run.stride - small->ahead_from), run.length);
    }
    return true;
}

/* Reads from this offset on what the next reads may want; false where there is nothing, or no memory for it. */
static bool read_ahead(struct file *file, int64_t offset, int *error)
{
    struct small *small = &file->small;
    struct runs runs = {0};
    small->window = small->window ? 2 * small->window : AHEAD_BYTES_MIN;
    if (small->window > small->read_room)
        small->window = small->read_room;
    if (small->ahead == NULL)
        small->ahead = malloc(small->read_room);
    small->ahead_from = offset;
    small->ahead_bytes = 0;
    if (small->ahead == NULL ||
        runs_append(&runs, (ramlace_run){offset, small->window, 0, 1}, BYTES) != MPI_SUCCESS)
        return false;
    *error = bytes_read(file, small->ahead, small->window, &runs, &small->ahead_bytes);
    runs_free(&runs);
    return *error == MPI_SUCCESS;
}

/* A read that goes on where the last one ended, or near behind. No byte is answered twice by what was read once: who reads a
 * place again asks the servers again. */
static bool goes_on(struct small *small, const struct runs *runs)
{
    ramlace_run first = runs->items[0], last = runs->items[runs->count - 1];
    bool near = first.offset >= small->read_end && first.offset - small->read_end <= NEAR_BYTES_MAX;
    small->read_end = last.offset + (last.count - 1) * last.stride + last.length;
    return near;
}

int small_read(struct file *file, bool alone, char *bytes, int64_t length, const struct runs *runs, int64_t *moved)
{
    struct small *small = &file->small;
    bool found = false;
    pthread_mutex_lock(&small->lock);
    small->writes_in_a_row = 0;
    int error = send_kept(file);
    bool is = alone && small->read_room >= AHEAD_BYTES_MIN && runs->count > 0 && is_small(file, length, runs);
    if (error == MPI_SUCCESS && is && goes_on(small, runs)) {
        small->reads_in_a_row++;
        found = take(small, bytes, runs);
        if (!found && small->reads_in_a_row > SMALL_IN_A_ROW && read_ahead(file, runs->items[0].offset, &error))
            found = take(small, bytes, runs);
    } else {
        small->reads_in_a_row = 0;
        small->window = 0;
        small->ahead_bytes = 0;
    }
    pthread_mutex_unlock(&small->lock);
    if (error == MPI_SUCCESS && found) {
        __atomic_fetch_add(&counters.ahead, 1, __ATOMIC_RELAXED);
        *moved += length;
    } else if (error == MPI_SUCCESS) {
        error = bytes_read(file, bytes, length, runs, moved);
    }
    return error;
}

/* ---- What ends both ---- */

int small_settle(struct file *file)
{
    struct small *small = &file->small;
    pthread_mutex_lock(&small->lock);
    int error = send_kept(file);
    small->writes_in_a_row = small->reads_in_a_row = 0;
    small->ahead_bytes = 0;
    pthread_mutex_unlock(&small->lock);
    return error;
}

int small_resize(struct file *file, int64_t write_room, int64_t read_room)
{
    struct small *small = &file->small;
    int error = small_settle(file);
    pthread_mutex_lock(&small->lock);
    free(small->bytes);
    free(small->ahead);
    small->bytes = small->ahead = NULL;
    small->write_room = write_room;
    small->read_room = read_room;
    pthread_mutex_unlock(&small->lock);
    return error;
}
