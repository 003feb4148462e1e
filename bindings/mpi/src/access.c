/* Reading and writing: the bytes of the view that an access means, and the bytes of memory they come from or go to. */
#include "mpiio.h"

#include <stdlib.h>

int bytes_write(struct file *file, const char *bytes, int64_t length, const struct runs *runs, int64_t *moved)
{
    ssize_t done = ramlace_pwrite_runs(file->file, bytes, (size_t)length, runs->items, runs->count);
    if (done < 0)
        return error_class();
    *moved += done;
    /* It is short where the pool has filled up. */
    return done < length ? MPI_ERR_NO_SPACE : MPI_SUCCESS;
}

int bytes_read(struct file *file, char *bytes, int64_t length, const struct runs *runs, int64_t *moved)
{
    ssize_t done = ramlace_pread_runs(file->file, bytes, (size_t)length, runs->items, runs->count);
    if (done < 0)
        return error_class();
    *moved += done;
    return MPI_SUCCESS;
}

/* Moves bytes of a view whose tiles repeat: described, not listed. */
static int move_tiles(struct file *file, bool write, int64_t from, char *bytes, int64_t length, int64_t *moved)
{
    struct tiles tiles;
    ssize_t done = 0;
    int error = tiling_tiles(&file->view.tiling, from, length, &tiles);
    if (error == MPI_SUCCESS)
        error = small_none(file);
    if (error == MPI_SUCCESS) {
        __atomic_fetch_add(&counters.tiled, 1, __ATOMIC_RELAXED);
        done = write ? ramlace_pwrite_tiles(file->file, bytes, (size_t)length, tiles.items, tiles.count)
                     : ramlace_pread_tiles(file->file, bytes, (size_t)length, tiles.items, tiles.count);
        error = done < 0 ? error_class() : write && done < length ? MPI_ERR_NO_SPACE : MPI_SUCCESS;
    }
    if (write)
        small_changed(file);
    *moved += done > 0 ? done : 0;
    tiles_free(&tiles);
    return error;
}

/* Moves `length` bytes of the view's data from `from` on, straight from or to memory in one piece. */
static int move_plain(struct file *file, const struct access *access, int64_t from, char *bytes, int64_t length,
                      int64_t *moved)
{
    struct runs runs = {0};
    if (tiling_overlaps(&file->view.tiling, from, length))
        return overlap_read(file, from, bytes, length, moved);
    if (tiling_repeats(&file->view.tiling, from, length))
        return move_tiles(file, access->write, from, bytes, length, moved);
    int error = tiling_runs(&file->view.tiling, from, length, &runs);
    if (error == MPI_SUCCESS)
        error = access->write ? small_write(file, access, bytes, length, &runs, moved)
                              : small_read(file, access, bytes, length, &runs, moved);
    runs_free(&runs);
    return error;
}

/* The same for memory in pieces: through a buffer, a part after the other. */
static int move_staged(struct file *file, const struct access *access, int64_t from, char *base,
                       const struct tiling *memory, int64_t length, int64_t *moved)
{
    int64_t room = length < STAGE_BYTES_MAX ? length : STAGE_BYTES_MAX;
    char *stage = malloc(room ? room : 1);
    int error = stage ? MPI_SUCCESS : MPI_ERR_NO_MEM;
    for (int64_t done = 0; done < length && error == MPI_SUCCESS; done += room) {
        int64_t part = length - done < room ? length - done : room, part_moved = 0;
        if (access->write)
            tiling_copy(memory, done, part, base, stage, true);
        error = move_plain(file, access, from + done, stage, part, &part_moved);
        if (!access->write)
            tiling_copy(memory, done, part_moved, base, stage, false);
        *moved += part_moved;
        if (part_moved < part)
            break;
    }
    free(stage);
    return error;
}

/* The same for a view in external32: through a buffer with whole elements as a file has them. */
static int move_converted(struct file *file, const struct access *access, int64_t from, char *base, struct walk walk,
                          int64_t length, struct moved *moved)
{
    int64_t room = length < STAGE_BYTES_MAX ? length : STAGE_BYTES_MAX;
    char *stage = malloc(room ? room : 1);
    int error = stage ? MPI_SUCCESS : MPI_ERR_NO_MEM;
    while (moved->in_file < length && error == MPI_SUCCESS) {
        struct walk behind = walk;
        int64_t part = 0, here = 0, done = 0, there = 0;
        error = external32_walk(&behind, access->write ? TO_FILE : MEASURE, base, stage, room, &part, &here);
        if (error == MPI_SUCCESS)
            error = move_plain(file, access, from + moved->in_file, stage, part, &done);
        here = 0;
        external32_walk(&walk, access->write ? MEASURE : FROM_FILE, base, stage, done, &there, &here);
        moved->in_file += done;
        moved->in_memory += here;
        if (done < part)
            break;
    }
    free(stage);
    return error;
}

/* Elements one behind the other, or of one run each, are one item however many there are; the runs of others are not listed for
 * each. */
static int move_elements(struct file *file, const struct transfer *transfer, int64_t from, struct moved *moved)
{
    const struct tiling *memory = &transfer->memory;
    struct walk walk = {.runs = &memory->tile, .extent = memory->extent, .times = transfer->access.count};
    struct runs one = {0};
    int error = MPI_SUCCESS;
    if (tiling_is_run(memory)) {
        error = tiling_runs(memory, 0, transfer->in_memory, &one);
        walk = (struct walk){.runs = &one, .times = 1};
    }
    if (error == MPI_SUCCESS)
        error = move_converted(file, &transfer->access, from, transfer->access.buffer, walk, transfer->in_file, moved);
    runs_free(&one);
    return error;
}

static int move_memory(struct file *file, const struct transfer *transfer, int64_t from, struct moved *moved)
{
    const struct tiling *memory = &transfer->memory;
    char *base = transfer->access.buffer;
    int error = tiling_check(memory, 0, transfer->in_memory);
    if (error != MPI_SUCCESS)
        return error;
    if (file->view.external32)
        return move_elements(file, transfer, from, moved);
    bool plain = tiling_is_contiguous(memory) || (tiling_is_run(memory) && transfer->in_memory <= memory->tile_bytes);
    error = plain ? move_plain(file, &transfer->access, from, base + memory->tile.items[0].offset, transfer->in_file,
                               &moved->in_file)
                  : move_staged(file, &transfer->access, from, base, memory, transfer->in_file, &moved->in_file);
    moved->in_memory = moved->in_file;
    return error;
}

static int move_atomically(struct file *file, const struct transfer *transfer, int64_t from, struct moved *moved)
{
    pthread_mutex_lock(&file->lock);
    int error = access_lock(file, transfer->access.write, from, transfer->in_file);
    if (error == MPI_SUCCESS) {
        error = move_memory(file, transfer, from, moved);
        if (ramlace_unlock(file->file, 0, 0) != 0 && error == MPI_SUCCESS)
            error = error_class();
    }
    pthread_mutex_unlock(&file->lock);
    return error;
}

/* Where the access begins, in bytes of the view's data. Individual pointers move on. */
static int place(struct file *file, const struct access *access, int64_t length, int64_t *from)
{
    int64_t etypes = length / file->view.etype_bytes, at = access->offset;
    int error = MPI_SUCCESS;
    switch (access->pointer) {
    case AT_OFFSET:
        break;
    case AT_POSITION:
        pthread_mutex_lock(&file->lock);
        *from = file->position;
        if (__builtin_add_overflow(*from, length, &at))
            error = MPI_ERR_ARG;
        else
            file->position = at;
        pthread_mutex_unlock(&file->lock);
        return error;
    case AT_SHARED:
        pthread_mutex_lock(&file->lock);
        error = shared_add(file, etypes, &at);
        pthread_mutex_unlock(&file->lock);
        break;
    case AT_ORDERED:
        error = shared_add_ordered(file, etypes, &at);
        break;
    }
    if (__builtin_mul_overflow(at, file->view.etype_bytes, from))
        error = error ? error : MPI_ERR_ARG;
    return error;
}

static int check(const struct file *file, const struct access *access)
{
    bool sequential = file->amode & MPI_MODE_SEQUENTIAL;
    if (access->write && (file->amode & MPI_MODE_RDONLY))
        return MPI_ERR_READ_ONLY;
    if (!access->write && (file->amode & MPI_MODE_WRONLY))
        return MPI_ERR_ACCESS;
    if (sequential && (access->pointer == AT_OFFSET || access->pointer == AT_POSITION))
        return MPI_ERR_UNSUPPORTED_OPERATION;
    if (access->count < 0)
        return MPI_ERR_COUNT;
    if (access->type == MPI_DATATYPE_NULL)
        return MPI_ERR_TYPE;
    if (access->pointer == AT_OFFSET && access->offset < 0)
        return MPI_ERR_ARG;
    return MPI_SUCCESS;
}

static int check_and_measure(const struct file *file, struct transfer *transfer)
{
    const struct access *access = &transfer->access;
    bool converted = file->view.external32;
    int error = check(file, access);
    if (error == MPI_SUCCESS)
        error = type_tiling(access->type, converted ? AS_ELEMENTS : IN_MEMORY, 0, &transfer->memory);
    if (error != MPI_SUCCESS)
        return error;
    int64_t here = transfer->memory.tile_bytes, there = converted ? external32_bytes(&transfer->memory.tile) : here;
    if (__builtin_mul_overflow(access->count, here, &transfer->in_memory) ||
        __builtin_mul_overflow(access->count, there, &transfer->in_file))
        return MPI_ERR_COUNT;
    /* Only whole etypes are moved; a view of nothing has no place for anything. */
    if (transfer->in_file % file->view.etype_bytes != 0 || (transfer->in_file > 0 && file->view.tiling.tile_bytes == 0))
        return MPI_ERR_IO;
    return MPI_SUCCESS;
}

/* What was not moved is taken back from the individual pointer. */
static void take_back(struct file *file, const struct transfer *transfer)
{
    if (transfer->access.pointer == AT_POSITION && transfer->moved.in_file < transfer->in_file) {
        pthread_mutex_lock(&file->lock);
        file->position -= transfer->in_file - transfer->moved.in_file;
        pthread_mutex_unlock(&file->lock);
    }
}

void transfer_cancel(struct file *file, struct transfer *transfer)
{
    take_back(file, transfer);
    transfer->in_file = 0;
}

int transfer_begin(struct file *file, const struct access *access, struct transfer *transfer)
{
    *transfer = (struct transfer){.access = *access};
    int error = check_and_measure(file, transfer);
    if (error == MPI_SUCCESS || access->pointer == AT_ORDERED) {
        /* An ordered call is collective: a rank whose arguments are wrong still takes part, with nothing. */
        int placed = place(file, access, error ? 0 : transfer->in_file, &transfer->from);
        error = error ? error : placed;
        if (error == MPI_SUCCESS) {
            error = tiling_check(&file->view.tiling, transfer->from, transfer->in_file);
            if (error != MPI_SUCCESS)
                take_back(file, transfer);
        }
    }
    if (error != MPI_SUCCESS)
        transfer->in_file = 0;
    return error;
}

int transfer_do(struct file *file, struct transfer *transfer)
{
    struct moved *moved = &transfer->moved;
    if (transfer->in_file == 0)
        return MPI_SUCCESS;
    __atomic_fetch_add(transfer->access.write ? &counters.writes : &counters.reads, 1, __ATOMIC_RELAXED);
    int error = file->atomic ? move_atomically(file, transfer, transfer->from, moved)
                             : move_memory(file, transfer, transfer->from, moved);
    take_back(file, transfer);
    return error;
}

void transfer_end(struct transfer *transfer)
{
    tiling_free(&transfer->memory);
}

void note_together(struct file *file, const struct access *access)
{
    if (!access->together || !access->write)
        return;
    small_changed(file);
    if (file->writes_together <= SMALL_IN_A_ROW)
        file->writes_together++;
}

/* A collective read that follows collective writes of which ranks may have kept some: all send them first. MPI wants a sync
 * of all there; programs that leave it out, and know others' collective calls to be behind them, still find all bytes. */
static int meet(struct file *file, const struct access *access)
{
    int error = MPI_SUCCESS;
    note_together(file, access);
    if (!access->together || access->write)
        return error;
    if (file->writes_together > SMALL_IN_A_ROW && !file->atomic) {
        error = small_flush(file);
        together_come(file->comm);
    }
    file->writes_together = 0;
    return error;
}

int file_access(struct file *file, const struct access *access, int64_t *moved)
{
    struct transfer transfer;
    int flushed = meet(file, access), error = transfer_begin(file, access, &transfer);
    if (flushed != MPI_SUCCESS) {
        error = flushed;
        transfer_cancel(file, &transfer);
    }
    bool together = access->together && !file->atomic && file->phases[access->write] != CB_DISABLE;
    if (together && exchange(file, &transfer, &error))
        take_back(file, &transfer);
    else if (error == MPI_SUCCESS)
        error = transfer_do(file, &transfer);
    *moved = transfer.moved.in_memory;
    transfer_end(&transfer);
    return error;
}
