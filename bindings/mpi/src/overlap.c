/* Views of files that are only read may have bytes more than once: a window that slides over a file, a record that each of many
 * elements needs. The C library wants runs that are disjoint, so what several runs have in common is asked for once, and copied
 * to each of them. */
#include "mpiio.h"

#include <stdlib.h>
#include <string.h>

/* Data of one request, which may be runs of a byte each. */
#define PART_BYTES_MAX (1 << 19)

/* Appends the disjoint runs that have all bytes of the runs, which begin in ascending order; adds what they have. */
static int unite(const struct runs *runs, struct runs *all, int64_t *bytes)
{
    int error = MPI_SUCCESS;
    for (size_t i = 0; i < runs->count && error == MPI_SUCCESS; i++) {
        ramlace_run run = runs->items[i];
        for (int64_t number = 0; number < run.count && error == MPI_SUCCESS; number++) {
            ramlace_run *last = all->count > 0 ? &all->items[all->count - 1] : NULL;
            int64_t from = run.offset + number * run.stride, to = from + run.length;
            int64_t have = last == NULL ? from : last->offset + last->length;
            if (last != NULL && from <= have) {
                *bytes += to > have ? to - have : 0;
                last->length += to > have ? to - have : 0;
            } else {
                *bytes += run.length;
                error = runs_push(all, (ramlace_run){from, run.length, 0, 1});
            }
        }
    }
    return error;
}

/* Copies the runs out of what was read of the disjoint ones, `there` bytes, up to the first byte that was not. */
static int64_t spread(const struct runs *runs, const struct runs *all, const char *read, int64_t there, char *bytes)
{
    const ramlace_run *in = all->items;
    int64_t before = 0, done = 0;
    for (size_t i = 0; i < runs->count; i++) {
        ramlace_run run = runs->items[i];
        for (int64_t number = 0; number < run.count; number++) {
            int64_t from = run.offset + number * run.stride;
            for (; from >= in->offset + in->length; in++)
                before += in->length;
            int64_t at = before + from - in->offset, left = there - at < 0 ? 0 : there - at;
            int64_t count = left < run.length ? left : run.length;
            memcpy(bytes + done, read + at, count);
            done += count;
            if (count < run.length)
                return done;
        }
    }
    return done;
}

/* Whether the second run begins before the first one does, which is the rest of a run that a part has begun with. */
static bool goes_back(const struct runs *runs)
{
    ramlace_run first = runs->items[0];
    if (first.count > 1)
        return first.stride < 0;
    return runs->count > 1 && runs->items[1].offset < first.offset;
}

/* Reads up to `*length` bytes of data, and says how many it has tried. */
static int read_part(struct file *file, int64_t from, char *bytes, int64_t *length, int64_t *moved)
{
    struct runs runs = {0}, all = {0};
    int64_t wanted = 0, there = 0;
    int error = tiling_runs(&file->view.tiling, from, *length, &runs);
    if (error == MPI_SUCCESS && goes_back(&runs)) {
        runs.count = 1;
        runs.items[0].count = 1;
        *length = runs.items[0].length;
    }
    if (error == MPI_SUCCESS)
        error = unite(&runs, &all, &wanted);
    char *read = error == MPI_SUCCESS ? malloc(wanted + 1) : NULL;
    if (error == MPI_SUCCESS && read == NULL)
        error = MPI_ERR_NO_MEM;
    if (error == MPI_SUCCESS)
        error = bytes_read(file, read, wanted, &all, &there);
    if (error == MPI_SUCCESS)
        *moved = spread(&runs, &all, read, there, bytes);
    free(read);
    runs_free(&runs);
    runs_free(&all);
    return error;
}

int overlap_read(struct file *file, int64_t from, char *bytes, int64_t length, int64_t *moved)
{
    int error = small_none(file);
    int64_t done = 0, part = 0, part_moved = 0;
    while (done < length && part_moved == part && error == MPI_SUCCESS) {
        part = length - done < PART_BYTES_MAX ? length - done : PART_BYTES_MAX;
        part_moved = 0;
        error = read_part(file, from + done, bytes + done, &part, &part_moved);
        done += part_moved;
    }
    *moved += done;
    return error;
}
