/* The locks of atomic mode: of each place that an access touches, so that ranks that write next to each other do not wait for
 * each other; of all from its first byte to its last where these would be too many. */
#include "mpiio.h"

#include <errno.h>
#include <unistd.h>

/* How long a rank pauses whose lock finds no place; twice as long each time, up to the second of these. */
#define PAUSE_MICROSECONDS_MIN 1000
#define PAUSE_MICROSECONDS_MAX 128000

static int lock(struct file *file, bool write, int64_t offset, int64_t length)
{
    return ramlace_lock(file->file, offset, length, write ? RAMLACE_LOCK_EXCLUSIVE : RAMLACE_LOCK_SHARED, -1);
}

/* From the first byte to the last; where runs overlap, the end of the last tile is behind all of them. */
static int hull_of(const struct tiling *tiling, int64_t from, int64_t length, int64_t *begin, int64_t *end)
{
    int64_t last = from + length - 1, place;
    int error = tiling_place(tiling, from, begin);
    if (error == MPI_SUCCESS)
        error = tiling_place(tiling, last, &place);
    if (error == MPI_SUCCESS)
        *end = place + 1;
    if (error == MPI_SUCCESS && tiling_overlaps(tiling, from, length))
        *end = tiling->start + last / tiling->tile_bytes * tiling->extent + tiling->end;
    return error;
}

/* One lock of all; nothing is held before. A file has so many locks, and so many that wait for one, and no more: then this rank
 * asks again, for ever, as it would wait for ever for the lock. */
static int lock_hull(struct file *file, bool write, int64_t from, int64_t length)
{
    int64_t begin, end, pause = PAUSE_MICROSECONDS_MIN;
    int error = hull_of(&file->view.tiling, from, length, &begin, &end);
    if (error != MPI_SUCCESS)
        return error;
    while (lock(file, write, begin, end - begin) != 0) {
        if (errno != ENOLCK)
            return error_class();
        usleep((useconds_t)pause);
        pause = 2 * pause < PAUSE_MICROSECONDS_MAX ? 2 * pause : PAUSE_MICROSECONDS_MAX;
    }
    return MPI_SUCCESS;
}

/* In the order of the file: nobody holds a later place while it waits for an earlier one, so no two wait for each other. The
 * error of the C library is in errno. */
static bool lock_places(struct file *file, bool write, const struct runs *runs)
{
    for (size_t i = 0; i < runs->count; i++) {
        ramlace_run run = runs->items[i];
        for (int64_t number = 0; number < run.count; number++)
            if (lock(file, write, run.offset + number * run.stride, run.length) != 0)
                return false;
    }
    return true;
}

/* Whether an access touches few places; these. */
static bool is_few(const struct tiling *tiling, int64_t from, int64_t length, struct runs *runs)
{
    int64_t places = 0;
    if (tiling_overlaps(tiling, from, length) || tiling_runs(tiling, from, length, runs) != MPI_SUCCESS)
        return false;
    for (size_t i = 0; i < runs->count && places <= LOCKS_MAX; i++)
        places += runs->items[i].count;
    return places <= LOCKS_MAX;
}

int access_lock(struct file *file, bool write, int64_t from, int64_t length)
{
    /* A list that gets longer is given up: an access may have thousands of millions of places. */
    struct runs runs = {.most = LOCKS_MAX};
    int error = MPI_SUCCESS;
    bool few = is_few(&file->view.tiling, from, length, &runs), locked = few && lock_places(file, write, &runs);
    bool too_many = !few;
    if (few && !locked) {
        too_many = errno == ENOLCK;
        error = too_many ? MPI_SUCCESS : error_class();
        /* Who waits for the whole must hold no part of it: somebody else may wait for that. */
        if (ramlace_unlock(file->file, 0, 0) != 0 && error == MPI_SUCCESS)
            error = error_class();
    }
    runs_free(&runs);
    return error == MPI_SUCCESS && too_many ? lock_hull(file, write, from, length) : error;
}
