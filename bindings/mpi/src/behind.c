/* What a rank has written and the servers have not: bytes that it keeps, and those that a thread sends while the program goes on.
 *
 * Ranks that wait for each other keep all processors busy: a rank that sleeps until a server has taken its bytes waits for a turn
 * afterwards, some milliseconds each time, and sleeps several times for each MiB. The program does not wait for that; it does
 * only where more is in flight than a few buffers have.
 *
 * Buffers go to the servers in the order in which they were filled, one after the other, by whatever needs it: the thread, or a call
 * that wants to find all of it there and is not served yet. So nobody depends on the thread, which may not even be there. */
#include "mpiio.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

/* Runs that are kept in one buffer: as many as a client asks one server for at once (limits::RUNS_PER_REQUEST_MAX). */
#define KEPT_RUNS_MAX 4096
/* No chunk of a file has fewer bytes, or begins elsewhere than at a multiple of them. */
#define CHUNK_BYTES_MIN (64 << 10)
/* Full buffers of a file that wait for their turn or are being sent; with one more the program waits. */
#define QUEUED_MAX 3
/* Threads of a process that send; for files beyond these, the thread that fills a buffer sends it. Tests set it. */
#ifndef SENDERS_MAX
#define SENDERS_MAX 64
#endif

struct kept {
    int64_t offset, length, at;
};

/* Runs by their offsets, none over another one; their bytes are in the order of the calls. */
struct batch {
    struct batch *next;
    char *bytes;
    struct kept *runs;
    size_t count;
    int64_t used, room;
};

static int senders;

static void batch_free(struct batch *batch)
{
    if (batch != NULL) {
        free(batch->bytes);
        free(batch->runs);
    }
    free(batch);
}

static struct batch *batch_make(int64_t room)
{
    struct batch *batch = calloc(1, sizeof *batch);
    if (batch == NULL)
        return NULL;
    batch->room = room;
    batch->bytes = malloc(room);
    batch->runs = malloc(KEPT_RUNS_MAX * sizeof *batch->runs);
    if (batch->bytes != NULL && batch->runs != NULL)
        return batch;
    batch_free(batch);
    return NULL;
}

/* ---- Sending a buffer ---- */

/* Sends what is kept in one call; false where that does not do, for whatever reason. */
static bool send_together(struct file *file, const struct batch *batch)
{
    struct runs runs = {0};
    int64_t at = 0;
    bool in_order = true;
    for (size_t i = 0; i < batch->count && in_order; at += batch->runs[i++].length)
        in_order = batch->runs[i].at == at;
    char *sorted = in_order ? batch->bytes : malloc(batch->used);
    int error = sorted ? MPI_SUCCESS : MPI_ERR_NO_MEM;
    at = 0;
    for (size_t i = 0; i < batch->count && error == MPI_SUCCESS; i++) {
        struct kept kept = batch->runs[i];
        if (!in_order)
            memcpy(sorted + at, batch->bytes + kept.at, kept.length);
        at += kept.length;
        error = runs_append(&runs, (ramlace_run){kept.offset, kept.length, 0, 1}, BYTES);
    }
    bool sent = error == MPI_SUCCESS && ramlace_pwrite_runs(file->file, sorted, at, runs.items, runs.count) == at;
    runs_free(&runs);
    if (!in_order)
        free(sorted);
    return sent;
}

/* Sends one kept run, chunk by chunk; the first error is reported. False behind a server that says nothing. */
static bool send_run(struct file *file, const struct batch *batch, struct kept kept, int *error)
{
    while (kept.length > 0) {
        int64_t part = CHUNK_BYTES_MIN - kept.offset % CHUNK_BYTES_MIN;
        part = part < kept.length ? part : kept.length;
        ramlace_run run = {kept.offset, part, 0, 1};
        ssize_t done = ramlace_pwrite_runs(file->file, batch->bytes + kept.at, part, &run, 1);
        bool silent = done < 0 && (errno == ETIMEDOUT || errno == EHOSTDOWN);
        if (*error == MPI_SUCCESS && done < part)
            *error = done < 0 ? error_class() : MPI_ERR_NO_SPACE;
        if (silent)
            return false;
        kept = (struct kept){kept.offset + part, kept.length - part, kept.at + part};
    }
    return true;
}

/* Sends a buffer. What cannot go together goes by itself, so that what cannot be written takes nothing else with it; but
 * a server that says nothing is not waited for again and again (`*silent`). What could not be written is given up: a call says so. */
static int send_batch(struct file *file, const struct batch *batch, bool *silent)
{
    int error = MPI_SUCCESS;
    bool on = !send_together(file, batch);
    *silent = false;
    for (size_t i = 0; i < batch->count && on; i++) {
        on = send_run(file, batch, batch->runs[i], &error);
        *silent = !on;
    }
    return error;
}

/* ---- One after the other; all of this under the file's lock, which is not held while bytes are sent ---- */

/* Sends the first buffer that waits. Behind a server that says nothing the next ones are given up, until a call has reported it. */
static void send_first(struct file *file)
{
    struct behind *behind = &file->small.behind;
    struct batch *batch = behind->first;
    struct failure failure = {MPI_SUCCESS, ""};
    bool silent = behind->silent;
    behind->sending = true;
    if (!silent) {
        pthread_mutex_unlock(&file->small.lock);
        int error = send_batch(file, batch, &silent);
        failure = error_keep(error);
        pthread_mutex_lock(&file->small.lock);
    }
    if (behind->lost.class == MPI_SUCCESS)
        behind->lost = failure;
    behind->silent = silent;
    behind->first = batch->next;
    if (behind->first == NULL)
        behind->last = &behind->first;
    batch->count = 0;
    batch->used = 0;
    batch->next = behind->spare;
    behind->spare = batch;
    behind->sent++;
    behind->sending = false;
    pthread_cond_broadcast(&behind->changed);
}

/* Until so many buffers were sent, ever. */
static void send_up_to(struct file *file, uint64_t number)
{
    struct behind *behind = &file->small.behind;
    while (behind->sent < number) {
        if (behind->sending)
            pthread_cond_wait(&behind->changed, &file->small.lock);
        else
            send_first(file);
    }
}

static void *send_on(void *of)
{
    struct file *file = of;
    struct behind *behind = &file->small.behind;
    pthread_mutex_lock(&file->small.lock);
    while (behind->first != NULL || !behind->ending) {
        if (behind->first == NULL || behind->sending) {
            pthread_cond_wait(&behind->changed, &file->small.lock);
        } else {
            __atomic_fetch_add(&counters.behind, 1, __ATOMIC_RELAXED);
            send_first(file);
        }
    }
    pthread_mutex_unlock(&file->small.lock);
    return NULL;
}

/* Whether a thread sends what waits. The program's signals are for its own threads. */
static bool has_sender(struct file *file)
{
    struct behind *behind = &file->small.behind;
    sigset_t all, before;
    if (behind->running)
        return true;
    if (__atomic_fetch_add(&senders, 1, __ATOMIC_RELAXED) < SENDERS_MAX) {
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        behind->running = pthread_create(&behind->thread, NULL, send_on, file) == 0;
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    if (!behind->running)
        __atomic_fetch_sub(&senders, 1, __ATOMIC_RELAXED);
    return behind->running;
}

/* The buffer that is filled waits for its turn. */
static void enqueue(struct behind *behind)
{
    if (behind->filling == NULL)
        return;
    *behind->last = behind->filling;
    behind->last = &behind->filling->next;
    behind->filling->next = NULL;
    behind->filling = NULL;
    behind->queued++;
    pthread_cond_broadcast(&behind->changed);
}

int behind_flush(struct file *file)
{
    struct behind *behind = &file->small.behind;
    enqueue(behind);
    send_up_to(file, behind->queued);
    int error = error_retell(&behind->lost);
    behind->lost.class = MPI_SUCCESS;
    behind->silent = false;
    return error;
}

/* Leaves the buffer that is filled to the thread. What was lost is reported when all that is in flight has come to its end, so that
 * it is reported once. */
static int send_behind(struct file *file)
{
    struct behind *behind = &file->small.behind;
    enqueue(behind);
    uint64_t waiting = has_sender(file) ? QUEUED_MAX : 0;
    if (behind->queued > waiting)
        send_up_to(file, behind->queued - waiting);
    return behind->lost.class == MPI_SUCCESS ? MPI_SUCCESS : behind_flush(file);
}

/* ---- Keeping ---- */

/* How many kept runs begin at or before this offset. */
static size_t kept_up_to(const struct batch *batch, int64_t offset)
{
    size_t low = 0, high = batch->count;
    /* Mostly behind the last one. */
    if (high > 0 && batch->runs[high - 1].offset <= offset)
        return high;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (batch->runs[middle].offset <= offset)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static int64_t end_of(const struct kept *kept)
{
    return kept->offset + kept->length;
}

/* Whether a run lies in one that is kept, or touches none: else it belongs into another buffer. */
static bool has_place(const struct batch *batch, int64_t offset, int64_t length)
{
    size_t place = kept_up_to(batch, offset);
    const struct kept *before = place > 0 ? &batch->runs[place - 1] : NULL;
    if (before && offset + length <= end_of(before))
        return true;
    return (!before || offset >= end_of(before)) &&
           (place == batch->count || offset + length <= batch->runs[place].offset);
}

/* Keeps a run that has a place, and room. */
static void keep(struct batch *batch, int64_t offset, int64_t length, const char *bytes)
{
    size_t place = kept_up_to(batch, offset);
    struct kept *before = place > 0 ? &batch->runs[place - 1] : NULL;
    if (before && offset + length <= end_of(before)) {
        memcpy(batch->bytes + before->at + (offset - before->offset), bytes, length);
        return;
    }
    memcpy(batch->bytes + batch->used, bytes, length);
    if (before && offset == end_of(before) && before->at + before->length == batch->used) {
        before->length += length;
    } else {
        memmove(&batch->runs[place + 1], &batch->runs[place], (batch->count - place) * sizeof *batch->runs);
        batch->runs[place] = (struct kept){offset, length, batch->used};
        batch->count++;
    }
    batch->used += length;
}

/* Whether all runs of an access may go into this buffer. */
static bool may_take(const struct batch *batch, int64_t length, const struct runs *runs)
{
    bool may = batch->used + length <= batch->room && batch->count + SMALL_RUNS_MAX <= KEPT_RUNS_MAX;
    for (size_t i = 0; i < runs->count && may; i++) {
        ramlace_run run = runs->items[i];
        for (int64_t number = 0; number < run.count && may; number++)
            may = has_place(batch, run.offset + number * run.stride, run.length);
    }
    return may;
}

/* A buffer to fill; none without memory for it. Those that are there may be from before a hint. */
static struct batch *take_buffer(struct behind *behind, int64_t room)
{
    struct batch *batch;
    while ((batch = behind->spare) != NULL) {
        behind->spare = batch->next;
        if (batch->room == room)
            return batch;
        batch_free(batch);
    }
    return batch_make(room);
}

bool behind_keep(struct file *file, const char *bytes, int64_t length, const struct runs *runs, int *error)
{
    struct behind *behind = &file->small.behind;
    if (length > file->small.write_room)
        return false;
    /* While this call waits, other threads may fill the next buffer. */
    while (*error == MPI_SUCCESS && behind->filling != NULL && !may_take(behind->filling, length, runs))
        *error = send_behind(file);
    if (*error == MPI_SUCCESS && behind->filling == NULL)
        behind->filling = take_buffer(behind, file->small.write_room);
    if (*error != MPI_SUCCESS || behind->filling == NULL)
        return false;
    __atomic_fetch_add(&counters.kept, 1, __ATOMIC_RELAXED);
    for (size_t i = 0; i < runs->count; i++) {
        ramlace_run run = runs->items[i];
        for (int64_t number = 0; number < run.count; number++, bytes += run.length)
            keep(behind->filling, run.offset + number * run.stride, run.length, bytes);
    }
    return true;
}

/* ---- Its life ---- */

void behind_make(struct behind *behind)
{
    *behind = (struct behind){.last = &behind->first};
    pthread_cond_init(&behind->changed, NULL);
}

void behind_give_back(struct behind *behind)
{
    while (behind->spare != NULL) {
        struct batch *batch = behind->spare;
        behind->spare = batch->next;
        batch_free(batch);
    }
}

void behind_end(struct file *file)
{
    struct behind *behind = &file->small.behind;
    pthread_mutex_lock(&file->small.lock);
    behind->ending = true;
    pthread_cond_broadcast(&behind->changed);
    pthread_mutex_unlock(&file->small.lock);
    if (behind->running) {
        pthread_join(behind->thread, NULL);
        __atomic_fetch_sub(&senders, 1, __ATOMIC_RELAXED);
    }
    batch_free(behind->filling);
    behind_give_back(behind);
    pthread_cond_destroy(&behind->changed);
}
