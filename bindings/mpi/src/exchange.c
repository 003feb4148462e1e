/* Collective calls by two phases: ranks that each have every other handful of bytes give them to each other first, so that
 * those that talk to the servers (aggregators) have them in long runs. For the bytes of one rank alone each run costs a
 * copies in transit and at a server: with runs of 8 bytes that is most of the time, from 16 bytes on it is none worth another
 * message (bench/README.md).
 *
 * The part of the file that all ranks touch together is done in rounds; in each one every aggregator has a piece of it that
 * fits its buffer. The next round begins where somebody has the next byte. A view ascends, so what a rank has in a piece are data that lie one behind the other. What nobody writes
 * is not written, as in every other access. */
#include "mpiio.h"

#include <stdlib.h>
#include <string.h>

/* A gap of fewer bytes is read with what lies around it. */
#define GAP_BYTES_MAX 4096
/* Unless hints want it, what all ranks touch together must reach so far: each round costs five messages and waits for all. */
#define SMALLEST_BYTES (64 << 10)
/* An aggregator has at least so much of a file in a round. */
#define ROOM_BYTES_MIN (4 << 10)

/* Items of a piece that go to the servers in one call: a list of these is a few MiB. */
#define PIECE_ITEMS_MAX ((size_t)1 << 16)

/* What is sent to and comes from each rank in a round. */
struct counts {
    int64_t *sizes;
    int *bytes, *bytes_at, *numbers, *numbers_at;
    int64_t all_bytes, all_numbers;
};

struct exchange {
    struct file *file;
    const struct transfer *transfer;
    /* What all ranks touch, where the next round begins, and where the file ends if a read has found that. */
    int64_t low, high, next, end;
    int aggregators;
    int64_t room;
    struct counts out, in;
    /* This rank's data of a round: from the first one on, so many; and the runs where they lie. */
    int64_t first, length;
    char *data;
    struct runs runs;
    /* An aggregator's: its piece of the file, which bytes of it anybody has, what the ranks have sent or are to get. */
    char *piece, *touched, *theirs;
    int64_t piece_at;
    ramlace_run *described;
};

static int rank_of(const struct exchange *x, int aggregator)
{
    return (int)((int64_t)aggregator * x->file->ranks / x->aggregators);
}

static bool counts_make(struct counts *counts, int ranks)
{
    counts->sizes = calloc((size_t)ranks, 2 * sizeof *counts->sizes);
    counts->bytes = calloc((size_t)ranks, 4 * sizeof *counts->bytes);
    if (counts->sizes == NULL || counts->bytes == NULL)
        return false;
    counts->bytes_at = counts->bytes + ranks;
    counts->numbers = counts->bytes + 2 * ranks;
    counts->numbers_at = counts->bytes + 3 * ranks;
    return true;
}

static void counts_free(struct counts *counts)
{
    free(counts->sizes);
    free(counts->bytes);
}

/* Where each rank's part begins, from the sizes of all; false where a message of MPI cannot be so long. */
static bool counts_add_up(struct counts *counts, int ranks)
{
    counts->all_bytes = counts->all_numbers = 0;
    for (int i = 0; i < ranks; i++) {
        int64_t bytes = counts->sizes[2 * i], numbers = counts->sizes[2 * i + 1] * 4;
        if (counts->all_bytes + bytes > MESSAGE_MAX || counts->all_numbers + numbers > MESSAGE_MAX)
            return false;
        counts->bytes[i] = (int)bytes;
        counts->bytes_at[i] = (int)counts->all_bytes;
        counts->numbers[i] = (int)numbers;
        counts->numbers_at[i] = (int)counts->all_numbers;
        counts->all_bytes += bytes;
        counts->all_numbers += numbers;
    }
    return true;
}

/* Data of this rank's access that lie below an offset of the file. */
static int64_t data_below(const struct exchange *x, int64_t offset)
{
    const struct transfer *transfer = x->transfer;
    int64_t below = transfer->in_file ? tiling_bytes_below(&x->file->view.tiling, offset) - transfer->from : 0;
    return below < 0 ? 0 : below < transfer->in_file ? below : transfer->in_file;
}

/* An offset that is behind another one; the largest, where that is no number. */
static int64_t behind(int64_t offset, int64_t bytes)
{
    int64_t sum;
    return __builtin_add_overflow(offset, bytes, &sum) ? INT64_MAX : sum;
}

/* Where this rank's data lie that no round has had yet; the largest offset where all have been had. */
static int64_t what_is_left(const struct exchange *x)
{
    const struct transfer *transfer = x->transfer;
    int64_t done = x->first + x->length, place = INT64_MAX;
    if (done < transfer->in_file)
        tiling_place(&x->file->view.tiling, transfer->from + done, &place);
    return place;
}

/* Between this rank's memory and its data of the round. */
static int move_own(struct exchange *x, int64_t length, bool gather)
{
    const struct tiling *memory = &x->transfer->memory;
    int error = tiling_check(memory, x->first, length);
    if (error == MPI_SUCCESS)
        tiling_copy(memory, x->first, length, x->transfer->access.buffer, x->data, gather);
    return error;
}

/* What this rank has in each piece of the round that begins at `base`. */
static int describe(struct exchange *x, int64_t base)
{
    int error = MPI_SUCCESS;
    memset(x->out.sizes, 0, 2 * sizeof *x->out.sizes * (size_t)x->file->ranks);
    x->runs.count = 0;
    x->first = data_below(x, base);
    int64_t from = x->first;
    for (int i = 0; i < x->aggregators && error == MPI_SUCCESS; i++) {
        int64_t to = data_below(x, behind(base, (i + 1) * x->room));
        struct runs runs = {0};
        error = tiling_runs(&x->file->view.tiling, x->transfer->from + from, to - from, &runs);
        int64_t *sizes = &x->out.sizes[2 * rank_of(x, i)];
        sizes[0] = to - from;
        sizes[1] = (int64_t)runs.count;
        /* Appended as they are: runs of two pieces stay two. */
        for (size_t k = 0; k < runs.count && error == MPI_SUCCESS; k++)
            error = runs_push(&x->runs, runs.items[k]);
        runs_free(&runs);
        from = to;
    }
    x->length = from - x->first;
    free(x->data);
    x->data = malloc((size_t)x->length + 1);
    if (error == MPI_SUCCESS && x->data == NULL)
        error = MPI_ERR_NO_MEM;
    if (error == MPI_SUCCESS && x->transfer->access.write)
        error = move_own(x, x->length, true);
    return error;
}

/* Sends all ranks what comes and where it goes on, and takes the memory for it; the same on all ranks. */
static int prepare(struct exchange *x, int error)
{
    int ranks = x->file->ranks;
    if (error != MPI_SUCCESS)
        memset(x->out.sizes, 0, 2 * sizeof *x->out.sizes * (size_t)ranks);
    together_swap_equal(x->out.sizes, x->in.sizes, 2, x->file->comm);
    if (!counts_add_up(&x->out, ranks) || !counts_add_up(&x->in, ranks))
        error = error ? error : MPI_ERR_COUNT;
    free(x->theirs);
    free(x->described);
    x->theirs = malloc((size_t)x->in.all_bytes + 1);
    x->described = malloc((size_t)x->in.all_numbers * sizeof(int64_t) + 1);
    if (error == MPI_SUCCESS && (x->theirs == NULL || x->described == NULL))
        error = MPI_ERR_NO_MEM;
    int64_t all[2] = {-error, what_is_left(x)};
    together_reduce(all, 2, MPI_INT64_T, MPI_MIN, x->file->comm);
    x->next = all[1];
    return (int)-all[0];
}

/* Copies what ranks have sent into the piece or out of it, and marks the bytes that a rank has. */
enum purpose { MARK, PUT, GET };

static void walk_theirs(struct exchange *x, enum purpose purpose)
{
    for (int i = 0; i < x->file->ranks; i++) {
        char *data = x->theirs + x->in.bytes_at[i];
        const ramlace_run *runs = x->described + x->in.numbers_at[i] / 4;
        for (int k = 0; k < x->in.numbers[i] / 4; k++) {
            int64_t at = runs[k].offset - x->piece_at, length = runs[k].length;
            for (int64_t number = 0; number < runs[k].count; number++, at += runs[k].stride, data += length) {
                if (purpose == GET)
                    memcpy(data, x->piece + at, length);
                else
                    memset(x->touched + at, 1, length);
                if (purpose == PUT)
                    memcpy(x->piece + at, data, length);
            }
        }
    }
}

/* The runs of the piece that somebody has, from `*at` on, over gaps of up to so many bytes, as many as go in one call; what is
 * to be written is put together where runs are equal. */
static int touched_runs(const struct exchange *x, int64_t gap_max, int64_t *at, struct runs *runs)
{
    int error = MPI_SUCCESS;
    runs->count = 0;
    while (error == MPI_SUCCESS && *at < x->room && runs->count < PIECE_ITEMS_MAX) {
        const char *first = memchr(x->touched + *at, 1, x->room - *at);
        if (first == NULL) {
            *at = x->room;
            break;
        }
        int64_t begin = first - x->touched, end = begin;
        for (;;) {
            const char *gap = memchr(x->touched + end, 0, x->room - end);
            end = gap ? gap - x->touched : x->room;
            int64_t look = x->room - end < gap_max ? x->room - end : gap_max;
            const char *more = look > 0 ? memchr(x->touched + end, 1, look) : NULL;
            if (more == NULL)
                break;
            end = more - x->touched;
        }
        ramlace_run run = {x->piece_at + begin, end - begin, 0, 1};
        error = x->transfer->access.write ? runs_append(runs, run, BYTES) : runs_push(runs, run);
        *at = end;
    }
    return error;
}

/* Where the first of these runs lies in the piece: there they are one behind the other when they go to or come from servers. */
static char *front_of(const struct exchange *x, const struct runs *runs)
{
    return x->piece + (runs->items[0].offset - x->piece_at);
}

/* Writes runs of the piece, which are moved to the front first. */
static int write_piece(struct exchange *x, const struct runs *runs)
{
    char *front = front_of(x, runs), *to = front;
    int64_t moved = 0;
    for (size_t i = 0; i < runs->count; i++) {
        ramlace_run run = runs->items[i];
        for (int64_t number = 0; number < run.count; number++, to += run.length)
            memmove(to, x->piece + (run.offset + number * run.stride - x->piece_at), run.length);
    }
    return bytes_write(x->file, front, to - front, runs, &moved);
}

/* Reads runs, each an item of its own, and moves them from the front to their places, the last one first. */
static int read_piece(struct exchange *x, const struct runs *runs)
{
    char *front = front_of(x, runs);
    int64_t at = 0, moved = 0;
    for (size_t i = 0; i < runs->count; i++)
        at += runs->items[i].length;
    int error = bytes_read(x->file, front, at, runs, &moved);
    for (size_t i = runs->count; i-- > 0;) {
        ramlace_run run = runs->items[i];
        at -= run.length;
        int64_t there = moved < at ? 0 : moved - at < run.length ? moved - at : run.length;
        memmove(x->piece + (run.offset - x->piece_at), front + at, there);
        if (there < run.length && x->end > run.offset + there)
            x->end = run.offset + there;
    }
    return error;
}

/* An aggregator's part of a round. */
static int move_piece(struct exchange *x)
{
    struct runs runs = {0};
    bool write = x->transfer->access.write;
    int64_t at = 0;
    int error = MPI_SUCCESS;
    if (x->in.all_bytes == 0)
        return MPI_SUCCESS;
    memset(x->touched, 0, x->room);
    walk_theirs(x, write ? PUT : MARK);
    while (error == MPI_SUCCESS && at < x->room) {
        error = touched_runs(x, write ? 0 : GAP_BYTES_MAX, &at, &runs);
        if (error == MPI_SUCCESS && runs.count > 0)
            error = write ? write_piece(x, &runs) : read_piece(x, &runs);
    }
    if (error == MPI_SUCCESS && !write)
        walk_theirs(x, GET);
    runs_free(&runs);
    return error;
}

static void send_data(struct exchange *x, bool back)
{
    struct counts *from = back ? &x->in : &x->out, *to = back ? &x->out : &x->in;
    together_swap(back ? x->theirs : x->data, from->bytes, from->bytes_at, back ? x->data : x->theirs, to->bytes, to->bytes_at,
                  MPI_BYTE, x->file->comm);
}

/* One round; what is returned is known to this rank alone, but for `*stop`. */
static int do_round(struct exchange *x, int64_t base, bool *stop)
{
    bool write = x->transfer->access.write;
    int error = prepare(x, describe(x, base));
    *stop = error != MPI_SUCCESS;
    if (*stop)
        return error;
    together_swap(x->runs.items, x->out.numbers, x->out.numbers_at, x->described, x->in.numbers, x->in.numbers_at, MPI_INT64_T,
                  x->file->comm);
    for (int i = 0; i < x->aggregators; i++)
        if (rank_of(x, i) == x->file->rank)
            x->piece_at = behind(base, i * x->room);
    if (write) {
        send_data(x, false);
        return move_piece(x);
    }
    error = move_piece(x);
    send_data(x, true);
    /* Behind the file's end there is nothing to be put into anybody's memory. */
    together_reduce(&x->end, 1, MPI_INT64_T, MPI_MIN, x->file->comm);
    int64_t there = data_below(x, x->end) - x->first;
    int own = error || there <= 0 ? MPI_SUCCESS : move_own(x, there < x->length ? there : x->length, false);
    return error ? error : own;
}

/* Where this rank's access, which has bytes, begins and ends in the file; its view was asked before. */
static void hull(const struct file *file, const struct transfer *transfer, int64_t *low, int64_t *end)
{
    tiling_place(&file->view.tiling, transfer->from, low);
    tiling_place(&file->view.tiling, transfer->from + transfer->in_file - 1, end);
    ++*end;
}

/* A write that a server would refuse, and with it all that the same aggregator has to write. */
static bool is_beyond_files(const struct file *file, const struct transfer *transfer)
{
    int64_t low, end = 0;
    if (transfer->access.write && transfer->in_file > 0)
        hull(file, transfer, &low, &end);
    return end > FILE_BYTES_MAX;
}

/* Buffers, and the hull of what all ranks touch; the same on all ranks. */
static int begin(struct exchange *x)
{
    int64_t low = INT64_MAX, end = INT64_MIN + 1;
    bool made = counts_make(&x->out, x->file->ranks) & counts_make(&x->in, x->file->ranks);
    for (int i = 0; i < x->aggregators && made; i++) {
        if (rank_of(x, i) == x->file->rank) {
            x->piece = malloc(x->room);
            x->touched = malloc(x->room);
            made = x->piece && x->touched;
        }
    }
    if (x->transfer->in_file > 0)
        hull(x->file, x->transfer, &low, &end);
    int64_t all[3] = {low, -end, made ? 0 : -1};
    together_reduce(all, 3, MPI_INT64_T, MPI_MIN, x->file->comm);
    x->low = all[0];
    x->high = -all[1];
    return all[2] == 0 ? MPI_SUCCESS : MPI_ERR_NO_MEM;
}

static void end(struct exchange *x)
{
    counts_free(&x->out);
    counts_free(&x->in);
    runs_free(&x->runs);
    free(x->data);
    free(x->piece);
    free(x->touched);
    free(x->theirs);
    free(x->described);
}

/* Whether all that ranks want, each alone and far from the others, is too little for messages: all come to the same. */
static bool is_too_little(struct exchange *x)
{
    int64_t all = x->transfer->in_file;
    together_reduce(&all, 1, MPI_INT64_T, MPI_SUM, x->file->comm);
    return x->high < x->low || x->high - x->low < SMALLEST_BYTES || (x->high - x->low) / EXCHANGED_PART_MIN > all;
}

/* All rounds. An error of one that was done is this rank's alone, others are everybody's. */
static int do_rounds(struct exchange *x)
{
    int error = MPI_SUCCESS;
    bool stop = false;
    /* Behind the file's end there is nothing to be read. */
    for (int64_t base = x->low; !stop && base < x->high && base < x->end;) {
        int mine = do_round(x, base, &stop);
        if (stop && mine == MPI_ERR_NO_MEM && x->room / 2 >= ROOM_BYTES_MIN) {
            /* Nobody has done anything: a round with less may fit. */
            x->room /= 2;
            stop = false;
            continue;
        }
        error = error ? error : mine;
        base = x->next;
    }
    return error;
}

bool exchange(struct file *file, struct transfer *transfer, int *error)
{
    struct exchange x = {.file = file, .transfer = transfer, .end = INT64_MAX, .room = file->hints.cb_buffer_size};
    x.aggregators = file->hints.cb_nodes > 0 && file->hints.cb_nodes < file->ranks ? (int)file->hints.cb_nodes : file->ranks;
    /* One rank may have all bytes of a round, and all ranks may want the same ones; each may be a run, of four numbers. */
    int64_t most = MESSAGE_MAX / 4 / file->ranks;
    x.room = x.room < most ? x.room : most > ROOM_BYTES_MIN ? most : ROOM_BYTES_MIN;
    if (*error == MPI_SUCCESS && is_beyond_files(file, transfer))
        *error = MPI_ERR_IO;
    /* A rank that has made a mistake, or has lost what it had kept, takes part with nothing. */
    if (*error != MPI_SUCCESS)
        transfer_cancel(file, transfer);
    int all = begin(&x);
    if (all == MPI_SUCCESS && file->phases[transfer->access.write] == CB_AUTOMATIC && is_too_little(&x)) {
        end(&x);
        return false;
    }
    /* Before others have what this rank gives them now. */
    int flushed = small_flush(file);
    if (flushed != MPI_SUCCESS) {
        *error = flushed;
        transfer_cancel(file, transfer);
    }
    if (all == MPI_SUCCESS)
        all = do_rounds(&x);
    /* A server that fails for one aggregator fails for all ranks: it had bytes of each. */
    together_reduce(&all, 1, MPI_INT, MPI_MAX, file->comm);
    if (transfer->access.write)
        small_changed(file);
    if (all == MPI_SUCCESS && *error == MPI_SUCCESS) {
        transfer->moved.in_file = transfer->access.write ? transfer->in_file : data_below(&x, x.end);
        transfer->moved.in_memory = transfer->moved.in_file;
    }
    end(&x);
    __atomic_fetch_add(&counters.exchanges, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(transfer->access.write ? &counters.writes : &counters.reads, 1, __ATOMIC_RELAXED);
    *error = *error ? *error : all;
    return true;
}
