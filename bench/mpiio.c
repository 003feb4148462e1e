/* MPI-IO on a pool, in turns with what it is judged by. Prints the figures' samples as JSON.
 *
 * usage: mpiio FIGURES POOL-FILE LOCAL-FILE ROUNDS MIB [PID...]
 *
 * FIGURES: `library`: each rank's own block, by calls of 1 MiB, rows of 4 KiB that take turns with the other ranks', and 8 MiB
 * at random places (the MPI twin of read_test), beside the same calls of the C library; and tiles of an array, beside themselves without
 * hints of where they lie. `btio`: a cube of 64 cells of 5 numbers, spread over the ranks as NPB's BT does, written and read by one
 * collective call (full) and row by row (simple), beside the MPI library's own files on the local path. `machines`: ranks on several
 * machines, each of which writes and reads its block of a new array, beside the same calls without the hints that put it on its machine.
 * The processes are those of the servers: their CPU time is the pool's part of it. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <mpi.h>
#include <ramlace.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#define CALL_BYTES (1 << 20)
#define LARGE_BYTES (8 << 20)
#define ROW_BYTES 4096
/* NPB's class A, where the compiler is told nothing else, and the times that it is written. */
#ifndef CUBE
#define CUBE 64
#endif
#define NUMBERS 5
#define STEPS 5
#define ROUNDS_MAX 64

static int rank, ranks, server_count;
static clockid_t servers[1024];
static const char *pool_file, *local_file;
static int rounds;
static int64_t block_bytes;
static char *memory;
static bool first_figure = true;

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "mpiio: %s: %s\n", what, why);
    MPI_Abort(MPI_COMM_WORLD, 1);
    exit(1);
}

static void check(int code, const char *what)
{
    char text[MPI_MAX_ERROR_STRING];
    int length;
    if (code == MPI_SUCCESS)
        return;
    MPI_Error_string(code, text, &length);
    fail(what, text);
}

static double clock_seconds(clockid_t clock)
{
    struct timespec now;
    return clock_gettime(clock, &now) == 0 ? (double)now.tv_sec + 1e-9 * (double)now.tv_nsec : 0;
}

/* Seconds of all ranks, and on the first one those of the servers. */
static double cpu_seconds(void)
{
    double mine = clock_seconds(CLOCK_PROCESS_CPUTIME_ID), all = 0;
    for (int i = 0; rank == 0 && i < server_count; i++)
        mine += clock_seconds(servers[i]);
    MPI_Allreduce(&mine, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    return all;
}

/* What one side of a figure does; a write comes before the read of the same bytes. Of three steps the one in the middle counts. */
struct work {
    const char *side;
    void (*begin)(bool write, const void *how);
    void (*run)(bool write, const void *how);
    void (*end)(const void *how);
    const void *how;
};

struct samples {
    double seconds[2][ROUNDS_MAX], cpu[2][ROUNDS_MAX];
};

static void measure(const struct work *work, int round, struct samples *samples)
{
    for (int reads = 0; reads < 2; reads++) {
        work->begin(!reads, work->how);
        double cpu = cpu_seconds();
        MPI_Barrier(MPI_COMM_WORLD);
        double begun = MPI_Wtime();
        work->run(!reads, work->how);
        MPI_Barrier(MPI_COMM_WORLD);
        double seconds = MPI_Wtime() - begun;
        cpu = cpu_seconds() - cpu;
        work->end(work->how);
        /* The first one is not counted: memory that is used for the first time. */
        if (round > 0) {
            samples->seconds[reads][round - 1] = seconds;
            samples->cpu[reads][round - 1] = cpu;
        }
    }
}

static void print_list(const char *name, const double *values)
{
    printf("\"%s\": [", name);
    for (int i = 0; i < rounds; i++)
        printf("%s%.9f", i ? ", " : "", values[i]);
    printf("]");
}

/* Two sides in turns; two figures of it, write and read. */
static void figure(const char *name, double bytes, const struct work *sides)
{
    static struct samples samples[2];
    /* Each side begins every other time: what others do on the machine meets both alike. */
    for (int round = 0; round <= rounds; round++)
        for (int turn = 0; turn < 2; turn++) {
            int side = (round + turn) % 2;
            measure(&sides[side], round, &samples[side]);
        }
    for (int reads = 0; rank == 0 && reads < 2; reads++) {
        printf("%s{\"name\": \"%s, %s\", \"unit\": \"bytes\", \"units\": %.1f, \"sides\": [",
               first_figure ? "" : ", ", name, reads ? "read" : "write", bytes);
        first_figure = false;
        for (int side = 0; side < 2; side++) {
            printf("%s{\"side\": \"%s\", ", side ? ", " : "", side ? sides[side].side : "figure");
            print_list("seconds", samples[side].seconds[reads]);
            printf(", ");
            print_list("cpu_seconds", samples[side].cpu[reads]);
            printf("}");
        }
        printf("]}\n");
    }
}

static MPI_File open_file(const char *path, bool write)
{
    MPI_File file;
    int amode = write ? MPI_MODE_CREATE | MPI_MODE_RDWR : MPI_MODE_RDONLY;
    check(MPI_File_open(MPI_COMM_WORLD, path, amode, MPI_INFO_NULL, &file), path);
    return file;
}

/* ---- Beside the library ---- */

struct shape {
    bool strided, random;
    int64_t call_bytes;
};

/* Where a call begins, in the file's bytes: one after the other, or anywhere in the file, at the same places on both sides. */
static int64_t place(const struct shape *shape, bool write, int64_t at)
{
    int64_t all = block_bytes * ranks / shape->call_bytes;
    uint64_t mixed = (uint64_t)(at / shape->call_bytes + 1000 * rank + 1) * 0x9e3779b97f4a7c15u;
    return shape->random && !write ? (int64_t)((mixed >> 33) % (uint64_t)all) * shape->call_bytes : rank * block_bytes + at;
}

static MPI_File shaped;
static ramlace_file *of_library;

static void mpi_begin(bool write, const void *how)
{
    const struct shape *shape = how;
    MPI_Datatype row, rows;
    MPI_Offset start = shape->strided ? (MPI_Offset)rank * ROW_BYTES : 0;
    shaped = open_file(pool_file, write);
    check(MPI_Type_contiguous(shape->strided ? ROW_BYTES : 1, MPI_BYTE, &row), "rows");
    check(MPI_Type_create_resized(row, 0, shape->strided ? (MPI_Aint)ranks * ROW_BYTES : 1, &rows), "rows");
    check(MPI_Type_commit(&rows), "rows");
    check(MPI_File_set_view(shaped, start, MPI_BYTE, rows, "native", MPI_INFO_NULL), "view");
    check(MPI_Type_free(&row), "rows");
    check(MPI_Type_free(&rows), "rows");
}

static void mpi_run(bool write, const void *how)
{
    const struct shape *shape = how;
    int count = (int)shape->call_bytes;
    for (int64_t at = 0; at < block_bytes; at += shape->call_bytes) {
        /* A view of rows has this rank's bytes alone. */
        int64_t from = shape->strided ? at : place(shape, write, at);
        int code = write ? MPI_File_write_at(shaped, from, memory + at, count, MPI_BYTE, MPI_STATUS_IGNORE)
                         : MPI_File_read_at(shaped, from, memory + at, count, MPI_BYTE, MPI_STATUS_IGNORE);
        check(code, pool_file);
    }
}

static void mpi_end(const void *how)
{
    (void)how;
    check(MPI_File_close(&shaped), pool_file);
}

static ramlace_pool *pool(void)
{
    static ramlace_pool *connected;
    if (connected == NULL)
        connected = ramlace_connect(NULL, NULL);
    if (connected == NULL)
        fail("connect", ramlace_error());
    return connected;
}

static void library_begin(bool write, const void *how)
{
    const char *path = strchr(pool_file, ':') + 1;
    (void)how;
    of_library = ramlace_open(pool(), path, write ? O_RDWR | O_CREAT : O_RDONLY, 0600);
    if (of_library == NULL)
        fail(path, ramlace_error());
}

static void library_run(bool write, const void *how)
{
    const struct shape *shape = how;
    int64_t count = shape->call_bytes;
    for (int64_t at = 0; at < block_bytes; at += count) {
        ramlace_run run = {place(shape, write, at), count, 0, 1};
        if (shape->strided)
            run = (ramlace_run){rank * ROW_BYTES + at * ranks, ROW_BYTES, (int64_t)ranks * ROW_BYTES, count / ROW_BYTES};
        ssize_t done = write ? ramlace_pwrite_runs(of_library, memory + at, (size_t)count, &run, 1)
                             : ramlace_pread_runs(of_library, memory + at, (size_t)count, &run, 1);
        if (done != count)
            fail(pool_file, ramlace_error());
    }
}

static void library_end(const void *how)
{
    (void)how;
    if (ramlace_close(of_library) != 0)
        fail(pool_file, ramlace_error());
}

/* What the hints of blocks say of a file, where they are given: bytes of the array in each dimension, those of a block, and on whose
 * machine a block is to lie (NULL: on any). */
struct blocks {
    bool given;
    const char *array, *block, *placement;
};

static void open_in_blocks(const char *path, bool write, struct blocks blocks)
{
    MPI_Info info;
    check(MPI_Info_create(&info), "hints");
    if (blocks.given) {
        check(MPI_Info_set(info, "chunked", blocks.array), "hints");
        check(MPI_Info_set(info, "chunked_item", "1"), "hints");
        check(MPI_Info_set(info, "chunked_size", blocks.block), "hints");
        if (blocks.placement)
            check(MPI_Info_set(info, "placement", blocks.placement), "hints");
    }
    int amode = MPI_MODE_CREATE | MPI_MODE_RDWR | (write ? 0 : MPI_MODE_DELETE_ON_CLOSE);
    check(MPI_File_open(MPI_COMM_WORLD, path, amode, info, &shaped), path);
    check(MPI_Info_free(&info), "hints");
}

/* An array of bytes, of which each rank has a column of tiles: rows of 512 bytes, 32 in a tile. Of the usual layout all servers have
 * rows of each tile; by the hints of blocks a tile is with one. */
enum { TILE_ROWS = 32, TILE_ROW_BYTES = 512, ARRAY_ROW_BYTES = 256 << 10, TILES = 8, TILE_TIMES = 32 };

static void tiles_begin(bool write, const void *how)
{
    const bool *hinted = how;
    char path[4096], rows[64], tile[64];
    MPI_Datatype row, view;
    snprintf(path, sizeof path, "%s-tiles-%d", pool_file, *hinted);
    snprintf(rows, sizeof rows, "%d,%d", TILE_ROWS * TILES, ARRAY_ROW_BYTES);
    snprintf(tile, sizeof tile, "%d,%d", TILE_ROWS, TILE_ROW_BYTES);
    open_in_blocks(path, write, (struct blocks){*hinted, rows, tile, NULL});
    check(MPI_Type_contiguous(TILE_ROW_BYTES, MPI_BYTE, &row), "rows");
    check(MPI_Type_create_resized(row, 0, ARRAY_ROW_BYTES, &view), "rows");
    check(MPI_Type_commit(&view), "rows");
    check(MPI_File_set_view(shaped, (MPI_Offset)rank * TILE_ROW_BYTES, MPI_BYTE, view, "native", MPI_INFO_NULL), "view");
    check(MPI_Type_free(&row), "rows");
    check(MPI_Type_free(&view), "rows");
}

static void tiles_run(bool write, const void *how)
{
    const int bytes = TILE_ROWS * TILE_ROW_BYTES;
    (void)how;
    for (int i = 0; i < TILES * TILE_TIMES; i++) {
        MPI_Offset from = (MPI_Offset)(i % TILES) * bytes;
        int code = write ? MPI_File_write_at(shaped, from, memory, bytes, MPI_BYTE, MPI_STATUS_IGNORE)
                         : MPI_File_read_at(shaped, from, memory, bytes, MPI_BYTE, MPI_STATUS_IGNORE);
        check(code, "tiles");
    }
}

static void tiles_of_an_array(void)
{
    static const bool hinted = true, usual = false;
    struct work sides[] = {{"figure", tiles_begin, tiles_run, mpi_end, &hinted},
                           {"the usual layout", tiles_begin, tiles_run, mpi_end, &usual}};
    figure("tiles of an array, with hints", (double)TILE_ROWS * TILE_ROW_BYTES * TILES * TILE_TIMES * ranks, sides);
}

static void beside_the_library(void)
{
    static const struct shape shapes[] = {{false, false, CALL_BYTES}, {true, false, CALL_BYTES}, {false, true, LARGE_BYTES}};
    static const char *const names[] = {"blocks by 1 MiB", "rows of 4 KiB by 1 MiB", "read_test, 8 MiB at random places"};
    for (int i = 0; i < 3; i++) {
        struct work sides[] = {{"figure", mpi_begin, mpi_run, mpi_end, &shapes[i]},
                               {"the library", library_begin, library_run, library_end, &shapes[i]}};
        figure(names[i], (double)block_bytes * ranks, sides);
    }
    tiles_of_an_array();
}

/* ---- On several machines ---- */

/* Blocks by calls of 1 MiB, and whether hints say whose they are. */
struct segments {
    struct shape shape;
    bool near;
};

static void segments_begin(bool write, const void *how)
{
    const struct segments *segments = how;
    char path[4096], array[64], block[64];
    snprintf(path, sizeof path, "%s-segments-%d", pool_file, segments->near);
    snprintf(array, sizeof array, "%d,%lld", ranks, (long long)block_bytes);
    snprintf(block, sizeof block, "1,%lld", (long long)block_bytes);
    open_in_blocks(path, write, (struct blocks){segments->near, array, block, "local"});
    /* What memory costs that is used for the first time is no matter of where it is. */
    check(write ? MPI_File_preallocate(shaped, block_bytes * ranks) : MPI_SUCCESS, path);
}

static void on_several_machines(void)
{
    static const struct segments near = {{false, false, CALL_BYTES}, true}, usual = {{false, false, CALL_BYTES}, false};
    struct work sides[] = {{"figure", segments_begin, mpi_run, mpi_end, &near},
                           {"the usual layout", segments_begin, mpi_run, mpi_end, &usual}};
    figure("two machines, each rank's block, placement=local", (double)block_bytes * ranks, sides);
}

/* ---- As BTIO ---- */

struct btio {
    const char *path;
    bool simple;
};

static int across;

/* Where cell `number` of this rank begins, in x, y and z, and how long it is: each rank has one in each layer of cells. */
static void cell_of(int number, int start[3], int size[3])
{
    int place[3] = {(rank % across + number) % across, (rank / across + number) % across, number};
    for (int i = 0; i < 3; i++) {
        start[i] = CUBE * place[i] / across;
        size[i] = CUBE * (place[i] + 1) / across - start[i];
    }
}

static void by_rows(MPI_File file, bool write, int step, int number, char **from)
{
    int start[3], size[3];
    cell_of(number, start, size);
    for (int z = start[2]; z < start[2] + size[2]; z++) {
        for (int y = start[1]; y < start[1] + size[1]; y++) {
            MPI_Offset at = NUMBERS * (start[0] + CUBE * (y + CUBE * (z + (MPI_Offset)CUBE * step)));
            int count = NUMBERS * size[0];
            int code = write ? MPI_File_write_at(file, at, *from, count, MPI_DOUBLE, MPI_STATUS_IGNORE)
                             : MPI_File_read_at(file, at, *from, count, MPI_DOUBLE, MPI_STATUS_IGNORE);
            check(code, "row");
            *from += count * (int)sizeof(double);
        }
    }
}

static MPI_Datatype cells(void)
{
    MPI_Datatype number, types[64], all;
    MPI_Aint places[64] = {0};
    int lengths[64], sizes[3] = {CUBE, CUBE, CUBE};
    check(MPI_Type_contiguous(NUMBERS, MPI_DOUBLE, &number), "cell");
    for (int i = 0; i < across; i++) {
        int start[3], size[3];
        cell_of(i, start, size);
        lengths[i] = 1;
        check(MPI_Type_create_subarray(3, sizes, size, start, MPI_ORDER_FORTRAN, number, &types[i]), "cell");
    }
    check(MPI_Type_create_struct(across, lengths, places, types, &all), "cells");
    check(MPI_Type_commit(&all), "cells");
    for (int i = 0; i < across; i++)
        MPI_Type_free(&types[i]);
    MPI_Type_free(&number);
    return all;
}

static void btio_begin(bool write, const void *how)
{
    /* All of it counts: a close sends what was kept. */
    (void)write, (void)how;
}

static void btio_end(const void *how)
{
    (void)how;
}

static void btio_run(bool write, const void *how)
{
    const struct btio *btio = how;
    MPI_File file = open_file(btio->path, write);
    MPI_Datatype view = MPI_DOUBLE;
    int mine = 0;
    for (int i = 0; i < across; i++) {
        int start[3], size[3];
        cell_of(i, start, size);
        mine += NUMBERS * size[0] * size[1] * size[2];
    }
    if (!btio->simple)
        view = cells();
    check(MPI_File_set_view(file, 0, MPI_DOUBLE, view, "native", MPI_INFO_NULL), "view");
    for (int step = 0; step < STEPS; step++) {
        char *from = memory;
        for (int i = 0; btio->simple && i < across; i++)
            by_rows(file, write, step, i, &from);
        if (!btio->simple)
            check(write ? MPI_File_write_at_all(file, (MPI_Offset)step * mine, memory, mine, MPI_DOUBLE, MPI_STATUS_IGNORE)
                        : MPI_File_read_at_all(file, (MPI_Offset)step * mine, memory, mine, MPI_DOUBLE, MPI_STATUS_IGNORE),
                  "cells");
    }
    check(MPI_File_close(&file), btio->path);
    if (!btio->simple)
        MPI_Type_free(&view);
}

static void beside_the_mpi_library(void)
{
    for (across = 1; (across + 1) * (across + 1) <= ranks; across++)
        ;
    if (across * across != ranks || across > 64)
        fail("btio", "the number of ranks is no square");
    for (int simple = 0; simple < 2; simple++) {
        struct btio ours = {pool_file, simple}, theirs = {local_file, simple};
        struct work sides[] = {{"figure", btio_begin, btio_run, btio_end, &ours},
                               {"the MPI library's own on tmpfs", btio_begin, btio_run, btio_end, &theirs}};
        figure(simple ? "BTIO simple" : "BTIO full", (double)CUBE * CUBE * CUBE * NUMBERS * sizeof(double) * STEPS, sides);
    }
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc < 6)
        fail("usage", "mpiio FIGURES POOL-FILE LOCAL-FILE ROUNDS MIB [PID...]");
    pool_file = argv[2];
    local_file = argv[3];
    rounds = atoi(argv[4]);
    block_bytes = (int64_t)atoi(argv[5]) << 20;
    if (rounds < 1 || rounds > ROUNDS_MAX || block_bytes % LARGE_BYTES != 0 || block_bytes == 0)
        fail("usage", "rounds from 1 to 64, a multiple of 8 MiB");
    for (int i = 6; i < argc && server_count < (int)(sizeof servers / sizeof *servers); i++)
        if (clock_getcpuclockid(atoi(argv[i]), &servers[server_count]) == 0)
            server_count++;
    int64_t cube = (int64_t)CUBE * CUBE * CUBE * NUMBERS * (int64_t)sizeof(double), room = block_bytes > cube ? block_bytes : cube;
    memory = malloc((size_t)room);
    if (memory == NULL)
        fail("memory", strerror(errno));
    memset(memory, 'a' + rank % 26, (size_t)room);
    if (rank == 0)
        printf("{\"figures\": [");
    if (strcmp(argv[1], "library") == 0)
        beside_the_library();
    else if (strcmp(argv[1], "machines") == 0)
        on_several_machines();
    else
        beside_the_mpi_library();
    if (rank == 0)
        printf("]}\n");
    free(memory);
    MPI_Finalize();
    return 0;
}
