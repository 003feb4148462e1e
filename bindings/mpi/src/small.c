/* Small accesses of one rank, one after the other: rows of an array that a program writes or reads call by call, by itself or
 * together with other ranks. Each would be a message and a wake of a server. So writes are kept and go together, and reads bring
 * what probably comes next.
 *
 * The standard promises that others see a write when its rank has synchronized or closed the file, and that a rank sees
 * others' writes when it has done so behind them; between these calls the bytes may be here. In atomic mode they never are. */
#include "mpiio.h"

#include <stdlib.h>
#include <string.h>

/* An access with more bytes is no small one. */
#define SMALL_BYTES_MAX (16 << 10)
/* Reads that follow each other within this distance may be about to read what lies between, too. */
#define NEAR_BYTES_MAX (128 << 10)
/* What is read first behind a read; twice as much each time, up to the hint, while it is wanted. */
#define AHEAD_BYTES_MIN (32 << 10)
/* It is, where of this many bytes that the reads have passed the program has asked for one: a rank of 16 that share an array asks for
 * one in 16, in rows, and a row by itself costs as much as reading some ten times its bytes. */
#define PASSED_FOR_ONE 20

void small_make(struct small *small)
{
    *small = (struct small){.write_room = SMALL_ROOM_DEFAULT, .read_room = SMALL_ROOM_DEFAULT};
    pthread_mutex_init(&small->lock, NULL);
    behind_make(&small->behind);
}

void small_end(struct file *file)
{
    struct small *small = &file->small;
    behind_end(file);
    free(small->ahead);
    pthread_mutex_destroy(&small->lock);
}

/* Whether a file can have this run: what a program got wrong is reported by its own call, not by that of other writes. */
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

/* By a pointer that all ranks have, others learn of each access. */
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

/* What was read ahead is no more than that: it is asked for again. */
static void forget_ahead(struct small *small)
{
    small->ahead_bytes = small->window = small->asked = 0;
    small->reads_in_a_row = 0;
}

/* ---- Writes ---- */

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
    bool keeps = small->writes_in_a_row > SMALL_IN_A_ROW && !is_early(file, access) &&
                 behind_keep(file, bytes, length, runs, &error);
    if (error == MPI_SUCCESS && !keeps)
        error = behind_flush(file);
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
    int error = behind_flush(file);
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
 * none of the program's, which has not asked for this: from then on it gets what it asks for, up to the next small_flush(). */
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

/* A read that goes on where the last one ended, or near behind. No byte is answered twice by what was read once: a second read of a
 * place asks the servers again. */
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
    int error = behind_flush(file);
    bool may_come_ahead = has_own_place(access) && !small->random && small->read_room >= AHEAD_BYTES_MIN && runs->count > 0 &&
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
static int flush(struct file *file)
{
    struct small *small = &file->small;
    int error = behind_flush(file);
    forget_ahead(small);
    small->writes_in_a_row = 0;
    small->never_ahead = false;
    behind_give_back(&small->behind);
    free(small->ahead);
    small->ahead = NULL;
    return error;
}

int small_flush(struct file *file)
{
    pthread_mutex_lock(&file->small.lock);
    int error = flush(file);
    pthread_mutex_unlock(&file->small.lock);
    return error;
}

int small_resize(struct file *file, int64_t write_room, int64_t read_room)
{
    struct small *small = &file->small;
    pthread_mutex_lock(&small->lock);
    int error = flush(file);
    small->write_room = write_room;
    small->read_room = read_room;
    pthread_mutex_unlock(&small->lock);
    return error;
}
