/* Collective calls, by two phases or not: ranks far apart, what a round can carry, servers that fail or are slow, ranks that are late.
 * The program stands between the MPI-IO library and the C library, as faults.c does.
 *
 * usage: rounds CASE FILE, 2 ranks, each case as its function says */
#define _GNU_SOURCE
#include "two_ranks.h"

#include "../../../crates/capi/include/ramlace.h"

#include <dlfcn.h>
#include <errno.h>
#include <sys/resource.h>
#include <unistd.h>

/* What touches a byte from here on fails with this error; with 0 nothing does. */
static int64_t fails_from;
static int fails_with;
/* The next write takes a second. */
static bool is_slow;

ssize_t ramlace_pwrite_runs(struct ramlace_file *of, const void *bytes, size_t length, const ramlace_run *runs, size_t count)
{
    ssize_t (*real)(struct ramlace_file *, const void *, size_t, const ramlace_run *, size_t) =
        dlsym(RTLD_NEXT, "ramlace_pwrite_runs");
    for (size_t i = 0; i < count && fails_with != 0; i++)
        if (runs[i].offset + (runs[i].count - 1) * runs[i].stride + runs[i].length > fails_from) {
            errno = fails_with;
            return -1;
        }
    if (is_slow)
        sleep(1);
    is_slow = false;
    return real(of, bytes, length, runs, count);
}

/* ---- Ranks far apart ---- */

/* Tiny pieces of each rank, 2^50 bytes from those of the next: not by two phases, unless a hint says so, and then without
 * the rounds between them. */
static void far_apart(const char *choice)
{
    enum { LENGTH = 64 << 10 };
    unsigned char *bytes = filled(LENGTH);
    MPI_File file = open_new(choice);
    see_piece(file, (MPI_Offset)rank << 50, 8, 32);
    CALL(MPI_File_write_all(file, bytes, LENGTH, MPI_BYTE, MPI_STATUS_IGNORE));
    check_data(file, bytes, LENGTH);
    CALL(MPI_File_close(&file));
    free(bytes);
}

static void test_far(void)
{
    far_apart(NULL);
}

static void test_far_by_two_phases(void)
{
    far_apart("enable");
}

/* A view that is there once says nothing by its extent: these pieces of each rank are a TiB apart. */
static void test_far_once(void)
{
    enum { PIECES = 1000 };
    int lengths[PIECES];
    MPI_Aint places[PIECES];
    unsigned char *bytes = filled(8 * PIECES);
    MPI_File file = open_new(NULL);
    for (int i = 0; i < PIECES; i++) {
        lengths[i] = 8;
        places[i] = rank * 8 + 16 * i + (i < PIECES / 2 ? 0 : (MPI_Aint)1 << 40);
    }
    see(file, 0, PIECES, lengths, places, 1);
    CALL(MPI_File_write_all(file, bytes, 8 * PIECES, MPI_BYTE, MPI_STATUS_IGNORE));
    check_data(file, bytes, 8 * PIECES);
    CALL(MPI_File_close(&file));
    free(bytes);
}

/* ---- What a round can carry (the library is built with small limits) ---- */

static void test_large_rounds(void)
{
    enum { LENGTH = 4 << 20 };
    unsigned char *bytes = filled(LENGTH);
    MPI_File file = open_new("enable");
    /* All of the first round is one rank's, then all bytes are everybody's. */
    see_piece(file, (MPI_Offset)rank * LENGTH, 1, 1);
    CALL(MPI_File_write_all(file, bytes, LENGTH, MPI_BYTE, MPI_STATUS_IGNORE));
    check_data(file, bytes, LENGTH);
    unsigned char *all = malloc(LENGTH);
    see_piece(file, 0, 1, 1);
    CALL(MPI_File_read_at_all(file, 0, all, LENGTH, MPI_BYTE, MPI_STATUS_IGNORE));
    CHECK(rank != 0 || memcmp(all, bytes, LENGTH) == 0);
    free(all);
    free(bytes);
    CALL(MPI_File_close(&file));
}

static void test_every_other_byte(void)
{
    enum { LENGTH = 300 << 10 };
    unsigned char *bytes = filled(LENGTH);
    MPI_File file = open_new("enable");
    see_piece(file, 2 * rank, 1, 4);
    CALL(MPI_File_write_all(file, bytes, LENGTH, MPI_BYTE, MPI_STATUS_IGNORE));
    check_data(file, bytes, LENGTH);
    /* At distances that differ there is nothing that could be one item. */
    see(file, rank, 3, (int[]){1, 1, 1}, (MPI_Aint[]){0, 4, 10}, 18);
    CALL(MPI_File_write_at_all(file, 0, bytes, LENGTH, MPI_BYTE, MPI_STATUS_IGNORE));
    check_data(file, bytes, LENGTH);
    CALL(MPI_File_close(&file));
    free(bytes);
}

/* ---- Servers that fail ---- */

/* A server that fails one rank, which writes for others, is an error of all. */
static void test_lost_server(void)
{
    enum { LENGTH = 256 << 10 };
    unsigned char *bytes = filled(LENGTH);
    MPI_File file = open_new("enable");
    see_piece(file, 8 * rank, 8, 8 * ranks);
    fails_with = rank == 0 ? EIO : 0;
    REFUSED(MPI_File_write_all(file, bytes, LENGTH, MPI_BYTE, MPI_STATUS_IGNORE), MPI_ERR_IO);
    CHECK(position_of(file) == 0);
    fails_with = 0;
    CALL(MPI_File_write_all(file, bytes, LENGTH, MPI_BYTE, MPI_STATUS_IGNORE));
    CHECK(position_of(file) == LENGTH);
    check_data(file, bytes, LENGTH);
    CALL(MPI_File_close(&file));
    free(bytes);
}

/* Rows that a rank has kept, and that are lost when a collective write sends them: it writes nothing, its pointer stays, and
 * others have what they wrote. That is so however far the call reaches. */
static void lost_rows(const char *choice, int length)
{
    unsigned char *bytes = filled(length), *back = calloc(1, (size_t)length);
    MPI_File file = open_new(choice);
    see_piece(file, 8 * rank, 8, 8 * ranks);
    fails_from = 4 << 20;
    for (int row = 0; row < 40 && rank == 0; row++)
        CALL(MPI_File_write_at(file, (4 << 20) + 8 * row, bytes, 8, MPI_BYTE, MPI_STATUS_IGNORE));
    fails_with = EIO;
    if (rank == 0)
        REFUSED(MPI_File_write_all(file, bytes, length, MPI_BYTE, MPI_STATUS_IGNORE), MPI_ERR_IO);
    else
        CALL(MPI_File_write_all(file, bytes, length, MPI_BYTE, MPI_STATUS_IGNORE));
    CHECK(position_of(file) == (rank == 0 ? 0 : length));
    fails_with = 0;
    fails_from = 0;
    synchronize(file);
    CALL(MPI_File_read_at_all(file, 0, back, length, MPI_BYTE, MPI_STATUS_IGNORE));
    for (int i = 0; i < length; i++)
        CHECK(back[i] == (rank == 0 ? 0 : bytes[i]));
    CALL(MPI_File_close(&file));
    free(bytes);
    free(back);
}

static void test_lost_rows(void)
{
    lost_rows("disable", 800);
    lost_rows("enable", 800);
    lost_rows(NULL, 800);
    lost_rows(NULL, 256 << 10);
}

/* ---- Waiting ---- */

/* More than the calls of servers that one of these takes. */
enum { SLEEPS_MIN = 20 };

/* The first rank comes late to a call of all; the other one sleeps meanwhile. */
static void wait_for_the_first(void (*call)(MPI_File *, int), MPI_File *file, int number)
{
    struct rusage before, after;
    MPI_Barrier(MPI_COMM_WORLD);
    CHECK(getrusage(RUSAGE_THREAD, &before) == 0);
    if (rank == 0)
        sleep(1);
    call(file, number);
    CHECK(getrusage(RUSAGE_THREAD, &after) == 0);
    CHECK(rank == 0 || after.ru_nvcsw - before.ru_nvcsw >= SLEEPS_MIN);
}

static void open_late(MPI_File *file, int number)
{
    (void)number;
    CALL(MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_RDWR | MPI_MODE_CREATE, MPI_INFO_NULL, file));
}

static void resize_late(MPI_File *file, int number)
{
    CALL(MPI_File_set_size(*file, number));
}

static void close_late(MPI_File *file, int number)
{
    (void)number;
    CALL(MPI_File_close(file));
}

static void test_late(void)
{
    void (*const calls[])(MPI_File *, int) = {open_late, resize_late, close_late};
    MPI_File file;
    for (int i = 0; i < (int)(sizeof calls / sizeof *calls); i++)
        wait_for_the_first(calls[i], &file, 100 * i);
}

/* A server is slow for the first rank, in the first of several rounds; the other one sleeps meanwhile. */
static void test_slow_round(void)
{
    enum { LENGTH = 256 << 10 };
    struct rusage before, after;
    unsigned char *bytes = filled(LENGTH);
    MPI_File file = open_as(path, MPI_MODE_RDWR | MPI_MODE_CREATE, "enable", "cb_buffer_size", "65536");
    see_piece(file, 8 * rank, 8, 8 * ranks);
    is_slow = rank == 0;
    CHECK(getrusage(RUSAGE_THREAD, &before) == 0);
    CALL(MPI_File_write_all(file, bytes, LENGTH, MPI_BYTE, MPI_STATUS_IGNORE));
    CHECK(getrusage(RUSAGE_THREAD, &after) == 0);
    CHECK(!is_slow);
    CHECK(rank == 0 || after.ru_nvcsw - before.ru_nvcsw >= 3 * SLEEPS_MIN);
    check_data(file, bytes, LENGTH);
    CALL(MPI_File_close(&file));
    free(bytes);
}

/* ---- Other collective calls by two phases ---- */

/* Ordered and split calls, atomic mode, which never goes by two phases, and hints that ranks do not share: 5 by two phases. */
static void test_kinds(void)
{
    enum { LENGTH = 4096 };
    unsigned char *bytes = filled(LENGTH), *back = calloc(1, LENGTH);
    MPI_Info info;
    MPI_File file = open_new("enable");
    CALL(MPI_File_write_ordered(file, bytes, LENGTH, MPI_BYTE, MPI_STATUS_IGNORE));
    CALL(MPI_File_seek_shared(file, 0, MPI_SEEK_SET));
    CALL(MPI_File_read_ordered_begin(file, back, LENGTH, MPI_BYTE));
    CALL(MPI_File_read_ordered_end(file, back, MPI_STATUS_IGNORE));
    CHECK(memcmp(bytes, back, LENGTH) == 0);
    see_piece(file, 8 * rank, 8, 8 * ranks);
    CALL(MPI_File_write_all_begin(file, bytes, LENGTH, MPI_BYTE));
    CALL(MPI_File_write_all_end(file, bytes, MPI_STATUS_IGNORE));
    check_data(file, bytes, LENGTH);
    /* The same bytes for all. */
    see_piece(file, 0, 8, 8 * ranks);
    CALL(MPI_File_read_at_all(file, 0, back, LENGTH, MPI_BYTE, MPI_STATUS_IGNORE));
    CHECK(rank != 0 || memcmp(bytes, back, LENGTH) == 0);
    see_piece(file, 8 * rank, 8, 8 * ranks);
    CALL(MPI_File_set_atomicity(file, 1));
    CALL(MPI_File_write_at_all(file, 0, bytes, LENGTH, MPI_BYTE, MPI_STATUS_IGNORE));
    CALL(MPI_File_set_atomicity(file, 0));
    CALL(MPI_Info_create(&info));
    CALL(MPI_Info_set(info, "collective_buffering", rank == 0 ? "true" : "false"));
    CALL(MPI_File_set_info(file, info));
    CALL(MPI_Info_free(&info));
    check_data(file, bytes, LENGTH);
    CALL(MPI_File_close(&file));
    free(bytes);
    free(back);
}

int main(int argc, char **argv)
{
    static const struct one_case cases[] = {
        {"far", test_far},
        {"far_by_two_phases", test_far_by_two_phases},
        {"far_once", test_far_once},
        {"large_rounds", test_large_rounds},
        {"every_other_byte", test_every_other_byte},
        {"lost_server", test_lost_server},
        {"lost_rows", test_lost_rows},
        {"late", test_late},
        {"slow_round", test_slow_round},
        {"kinds", test_kinds},
        {NULL, NULL},
    };
    return run_case(argc, argv, cases);
}
