/* Lists of runs, and tilings of them. Nothing here knows MPI's objects. */
#include "mpiio.h"

#include <stdlib.h>
#include <string.h>

/* A list of fewer items is as good as tiles. Tests set it. */
#ifndef TILED_ITEMS_MIN
#define TILED_ITEMS_MIN 64
#endif

static int push(struct runs *into, ramlace_run more, struct element element)
{
    if (into->most != 0 && into->count == into->most)
        return MPI_ERR_NO_MEM;
    if (into->count == into->room) {
        size_t room = into->room ? 2 * into->room : 8;
        ramlace_run *items = room <= RUNS_MAX ? realloc(into->items, room * sizeof *items) : NULL;
        if (items == NULL)
            return MPI_ERR_NO_MEM;
        into->items = items;
        struct element *elements = realloc(into->elements, room * sizeof *elements);
        if (elements == NULL)
            return MPI_ERR_NO_MEM;
        into->elements = elements;
        into->room = room;
    }
    into->elements[into->count] = element;
    into->items[into->count++] = more;
    return MPI_SUCCESS;
}

static bool is_same(struct element one, struct element other)
{
    return one.nature == other.nature && one.here == other.here && one.there == other.there;
}

/* Whether `more` goes on where the last item ends; then it has been added to it. */
static bool merge(ramlace_run *last, ramlace_run more)
{
    if (last->count == 1 && more.count == 1 && last->offset + last->length == more.offset) {
        last->length += more.length;
        return true;
    }
    if (last->length != more.length)
        return false;
    int64_t step = more.offset - (last->offset + (last->count - 1) * last->stride);
    if ((last->count > 1 && step != last->stride) || (more.count > 1 && step != more.stride))
        return false;
    last->stride = step;
    last->count += more.count;
    return true;
}

int runs_append(struct runs *into, ramlace_run more, struct element element)
{
    if (more.length == 0 || more.count == 0)
        return MPI_SUCCESS;
    if (more.count == 1 || more.stride == more.length)
        more = (ramlace_run){more.offset, more.length * more.count, 0, 1};
    size_t last = into->count - 1;
    if (into->count > 0 && is_same(into->elements[last], element) && merge(&into->items[last], more))
        return MPI_SUCCESS;
    return push(into, more, element);
}

int runs_push(struct runs *into, ramlace_run more)
{
    return push(into, more, BYTES);
}

int runs_repeat(struct runs *into, const struct runs *from, int64_t at, int64_t count, int64_t stride)
{
    const ramlace_run *one = from->items;
    if (from->count == 1 && one->count == 1)
        return runs_append(into, (ramlace_run){at + one->offset, one->length, stride, count}, *from->elements);
    if (from->count == 1 && stride == one->stride * one->count)
        return runs_append(into, (ramlace_run){at + one->offset, one->length, stride / one->count, one->count * count},
                           *from->elements);
    int error = MPI_SUCCESS;
    for (int64_t copy = 0; copy < count && from->count > 0; copy++) {
        for (size_t i = 0; i < from->count && error == MPI_SUCCESS; i++) {
            ramlace_run item = from->items[i];
            item.offset += at + copy * stride;
            error = runs_append(into, item, from->elements[i]);
        }
        if (error != MPI_SUCCESS)
            break;
    }
    return error;
}

void runs_free(struct runs *runs)
{
    free(runs->items);
    free(runs->elements);
    *runs = (struct runs){0};
}

int tiling_make(struct tiling *tiling, struct runs *tile, int64_t start, int64_t extent)
{
    *tiling = (struct tiling){.tile = *tile, .start = start, .extent = extent};
    *tile = (struct runs){0};
    tiling->before = malloc((tiling->tile.count + 1) * sizeof *tiling->before);
    if (tiling->before == NULL) {
        tiling_free(tiling);
        return MPI_ERR_NO_MEM;
    }
    for (size_t i = 0; i < tiling->tile.count; i++) {
        tiling->before[i] = tiling->tile_bytes;
        tiling->tile_bytes += tiling->tile.items[i].length * tiling->tile.items[i].count;
    }
    tiling->before[tiling->tile.count] = tiling->tile_bytes;
    return MPI_SUCCESS;
}

void tiling_free(struct tiling *tiling)
{
    runs_free(&tiling->tile);
    free(tiling->before);
    *tiling = (struct tiling){0};
}

bool tiling_is_run(const struct tiling *tiling)
{
    return tiling->tile.count == 1 && tiling->tile.items[0].count == 1;
}

bool tiling_is_contiguous(const struct tiling *tiling)
{
    return tiling_is_run(tiling) && tiling->tile.items[0].length == tiling->extent;
}

int64_t run_end(ramlace_run run)
{
    return run.offset + (run.count - 1) * run.stride + run.length;
}

/* The item in which the byte of data `within` of a tile lies. */
static size_t item_of(const struct tiling *tiling, int64_t within)
{
    size_t low = 0, high = tiling->tile.count;
    while (low + 1 < high) {
        size_t middle = (low + high) / 2;
        if (tiling->before[middle] <= within)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Appends up to `length` bytes of one item, `skip` bytes of data behind its beginning; returns how many were left. */
static int item_part(ramlace_run item, struct element element, int64_t base, int64_t skip, int64_t *length,
                     struct runs *out)
{
    int64_t number = skip / item.length, cut = skip % item.length;
    int error = MPI_SUCCESS;
    item.offset += base;
    if (cut > 0) {
        int64_t take = item.length - cut < *length ? item.length - cut : *length;
        error = runs_append(out, (ramlace_run){item.offset + number * item.stride + cut, take, 0, 1}, element);
        *length -= take;
        number++;
    }
    int64_t whole = *length / item.length;
    if (whole > item.count - number)
        whole = item.count - number;
    if (error == MPI_SUCCESS && whole > 0) {
        error = runs_append(out, (ramlace_run){item.offset + number * item.stride, item.length, item.stride, whole},
                            element);
        *length -= whole * item.length;
        number += whole;
    }
    if (error == MPI_SUCCESS && *length > 0 && number < item.count) {
        error = runs_append(out, (ramlace_run){item.offset + number * item.stride, *length, 0, 1}, element);
        *length = 0;
    }
    return error;
}

int tiling_check(const struct tiling *tiling, int64_t from, int64_t length)
{
    int64_t last, base;
    if (length <= 0 || tiling->tile_bytes == 0)
        return MPI_SUCCESS;
    if (tiling->once && from > tiling->tile_bytes - length)
        return MPI_ERR_IO;
    bool is_number = !__builtin_add_overflow(from, length - 1, &last) &&
                     !__builtin_mul_overflow(last / tiling->tile_bytes, tiling->extent, &base) &&
                     !__builtin_add_overflow(base, tiling->start, &base) &&
                     !__builtin_add_overflow(base, run_end(tiling->tile.items[tiling->tile.count - 1]), &last);
    return is_number ? MPI_SUCCESS : MPI_ERR_ARG;
}

int tiling_runs(const struct tiling *tiling, int64_t from, int64_t length, struct runs *out)
{
    int error = tiling_check(tiling, from, length);
    if (error != MPI_SUCCESS || length <= 0 || tiling->tile_bytes == 0)
        return error;
    if (tiling_is_contiguous(tiling))
        return runs_append(out, (ramlace_run){tiling->start + tiling->tile.items[0].offset + from, length, 0, 1},
                           tiling->tile.elements[0]);
    int64_t tile = from / tiling->tile_bytes, within = from % tiling->tile_bytes;
    if (tiling_is_run(tiling)) {
        /* A run that comes again: it is one item however often. */
        ramlace_run run = tiling->tile.items[0];
        int64_t more = (within + length + run.length - 1) / run.length;
        run = (ramlace_run){tiling->start + tile * tiling->extent + run.offset, run.length, tiling->extent, more};
        return item_part(run, tiling->tile.elements[0], 0, within, &length, out);
    }
    for (; length > 0 && error == MPI_SUCCESS; tile++, within = 0) {
        int64_t base = tiling->start + tile * tiling->extent;
        for (size_t i = item_of(tiling, within); i < tiling->tile.count && length > 0 && error == MPI_SUCCESS; i++) {
            error = item_part(tiling->tile.items[i], tiling->tile.elements[i], base, within - tiling->before[i], &length,
                              out);
            within = tiling->before[i + 1];
        }
    }
    return error;
}

void tiling_copy(const struct tiling *tiling, int64_t from, int64_t length, char *base, char *bytes, bool gather)
{
    int64_t tile = tiling->tile_bytes ? from / tiling->tile_bytes : 0, within = from - tile * tiling->tile_bytes;
    for (; length > 0; tile++, within = 0) {
        char *begin = base + tiling->start + tile * tiling->extent;
        for (size_t i = item_of(tiling, within); i < tiling->tile.count && length > 0; i++) {
            ramlace_run item = tiling->tile.items[i];
            int64_t skip = within - tiling->before[i], cut = skip % item.length;
            for (int64_t number = skip / item.length; number < item.count && length > 0; number++, cut = 0) {
                char *place = begin + item.offset + number * item.stride + cut;
                int64_t count = item.length - cut < length ? item.length - cut : length;
                memcpy(gather ? bytes : place, gather ? place : bytes, count);
                bytes += count;
                length -= count;
            }
            within = tiling->before[i + 1];
        }
    }
}

/* Whole tiles among these bytes, and how many bytes lie before the first one. */
static int64_t whole_tiles(const struct tiling *tiling, int64_t from, int64_t length, int64_t *before)
{
    int64_t within = from % tiling->tile_bytes;
    *before = within ? tiling->tile_bytes - within : 0;
    return length > *before ? (length - *before) / tiling->tile_bytes : 0;
}

bool tiling_repeats(const struct tiling *tiling, int64_t from, int64_t length)
{
    int64_t before, base, items = (int64_t)tiling->tile.count;
    if (tiling->tile_bytes == 0 || tiling_check(tiling, from, length) != MPI_SUCCESS)
        return false;
    int64_t whole = whole_tiles(tiling, from, length, &before);
    base = tiling->start + (from + before) / tiling->tile_bytes * tiling->extent;
    /* A run that comes again is one item by itself. */
    return !tiling_is_run(tiling) && base >= 0 && whole > TILED_ITEMS_MIN / items;
}

int tiling_tiles(const struct tiling *tiling, int64_t from, int64_t length, struct tiles *out)
{
    int64_t before, whole = whole_tiles(tiling, from, length, &before), done = before + whole * tiling->tile_bytes;
    *out = (struct tiles){0};
    int error = tiling_runs(tiling, from, before, &out->before);
    if (error == MPI_SUCCESS)
        error = tiling_runs(tiling, from + done, length - done, &out->behind);
    int64_t base = tiling->start + (from + before) / tiling->tile_bytes * tiling->extent;
    if (out->before.count > 0)
        out->items[out->count++] = (ramlace_tile){0, out->before.items, out->before.count, 0, 1};
    out->items[out->count++] = (ramlace_tile){base, tiling->tile.items, tiling->tile.count, tiling->extent, whole};
    if (out->behind.count > 0)
        out->items[out->count++] = (ramlace_tile){0, out->behind.items, out->behind.count, 0, 1};
    return error;
}

void tiles_free(struct tiles *tiles)
{
    runs_free(&tiles->before);
    runs_free(&tiles->behind);
}

int tiling_place(const struct tiling *tiling, int64_t from, int64_t *place)
{
    bool ends = tiling->once && from == tiling->tile_bytes;
    int error = ends ? MPI_SUCCESS : tiling_check(tiling, from, 1);
    *place = tiling->start;
    if (ends)
        *place += run_end(tiling->tile.items[tiling->tile.count - 1]);
    if (error != MPI_SUCCESS || ends || tiling->tile_bytes == 0)
        return error;
    int64_t within = from % tiling->tile_bytes;
    size_t i = item_of(tiling, within);
    ramlace_run item = tiling->tile.items[i];
    within -= tiling->before[i];
    *place += from / tiling->tile_bytes * tiling->extent + item.offset + within / item.length * item.stride +
              within % item.length;
    return MPI_SUCCESS;
}

bool tiling_is_ascending(struct tiling *tiling, bool may_overlap)
{
    const struct runs *tile = &tiling->tile;
    /* Where the last run begins, and the end of all. */
    int64_t last = -tiling->start, end = last;
    tiling->overlaps = tiling->slides = tiling->once = false;
    for (size_t i = 0; i < tile->count; i++) {
        ramlace_run item = tile->items[i];
        if (item.offset < last || (item.count > 1 && item.stride < 0))
            return false;
        tiling->overlaps = tiling->overlaps || item.offset < end || (item.count > 1 && item.stride < item.length);
        last = item.offset + (item.count - 1) * item.stride;
        end = run_end(item) > end ? run_end(item) : end;
    }
    tiling->end = end;
    if (tile->count == 0)
        return true;
    int64_t next = tiling->extent + tile->items[0].offset;
    tiling->once = next < (may_overlap ? last : end);
    tiling->slides = !tiling->once && next < end;
    return may_overlap || !tiling->overlaps;
}

bool tiling_overlaps(const struct tiling *tiling, int64_t from, int64_t length)
{
    return tiling->overlaps || (tiling->slides && from / tiling->tile_bytes < (from + length - 1) / tiling->tile_bytes);
}

int64_t tiling_bytes_below(const struct tiling *tiling, int64_t offset)
{
    const struct runs *tile = &tiling->tile;
    if (tile->count == 0)
        return 0;
    int64_t below = offset - tiling->start;
    int64_t whole = below >= tiling->end && !tiling->once ? (below - tiling->end) / tiling->extent + 1 : 0;
    int64_t bytes = whole * tiling->tile_bytes;
    below -= whole * tiling->extent;
    for (size_t i = 0; i < tile->count && tile->items[i].offset < below; i++) {
        ramlace_run item = tile->items[i];
        /* Runs before the first one that does not end below it. */
        int64_t number = item.count, left = below - item.offset;
        if (item.count > 1 && item.stride > 0)
            number = left < item.length ? 0 : (left - item.length) / item.stride + 1;
        else if (left < item.length)
            number = 0;
        if (number >= item.count) {
            bytes += item.count * item.length;
            continue;
        }
        left -= number * item.stride;
        return bytes + number * item.length + (left < 0 ? 0 : left < item.length ? left : item.length);
    }
    return bytes;
}
