/* Every routine that moves data, with counts of both sizes; and those of files that the other programs leave out.
 *
 * usage: routines FILE [own]: with the MPI library's own MPI-IO nothing is cancelled (Open MPI's leaves open whether it was) */
#include "check.h"

#include <stdbool.h>

enum { INTS = 60 };

static int rank, ranks;
static bool cancels = true;
static MPI_File file;
static int out[INTS], in[INTS], *whole;
static MPI_Offset at;
static MPI_Status status;
static MPI_Request request;

/* What a rank writes in a step. */
static int value(int of, int i)
{
    return step * 100000 + of * 1000 + i;
}

/* The next step: all ranks have done the one before. */
static void begin(bool filled)
{
    MPI_Barrier(MPI_COMM_WORLD);
    step++;
    for (int i = 0; i < INTS; i++) {
        out[i] = value(rank, i);
        in[i] = 0;
    }
    CALL(MPI_File_set_size(file, 0));
    if (filled)
        CALL(MPI_File_write_at(file, at, out, INTS, MPI_INT, MPI_STATUS_IGNORE));
    CALL(MPI_File_seek(file, at, MPI_SEEK_SET));
    CALL(MPI_File_seek_shared(file, 0, MPI_SEEK_SET));
}

static void check_status(void)
{
    int count;
    CALL(MPI_Get_count(&status, MPI_INT, &count));
    CHECK(count == INTS);
}

/* All ranks' blocks lie in the file, in the order of ranks or each somewhere. */
static void wrote(bool somewhere)
{
    int seen[64] = {0};
    check_status();
    MPI_Barrier(MPI_COMM_WORLD);
    CALL(MPI_File_read_at(file, 0, whole, INTS * ranks, MPI_INT, MPI_STATUS_IGNORE));
    for (int block = 0; block < ranks; block++) {
        int of = somewhere ? whole[block * INTS] % 100000 / 1000 : block;
        CHECK(of >= 0 && of < ranks && seen[of]++ == 0);
        for (int i = 0; i < INTS; i++)
            CHECK(whole[block * INTS + i] == value(of, i));
    }
}

/* This rank's block has come, or somebody's. */
static void brought(bool somewhere)
{
    check_status();
    int of = somewhere ? in[0] % 100000 / 1000 : rank;
    CHECK(of >= 0 && of < ranks);
    for (int i = 0; i < INTS; i++)
        CHECK(in[i] == value(of, i));
}

#define DONE(somewhere, ...)                                                                                           \
    begin(false);                                                                                                      \
    CALL(__VA_ARGS__);                                                                                                 \
    wrote(somewhere)
#define WAITED(somewhere, ...)                                                                                         \
    begin(false);                                                                                                      \
    CALL(__VA_ARGS__);                                                                                                 \
    CALL(MPI_Wait(&request, &status));                                                                                 \
    CHECK(request == MPI_REQUEST_NULL);                                                                                \
    wrote(somewhere)
#define READ(somewhere, ...)                                                                                           \
    begin(true);                                                                                                       \
    MPI_Barrier(MPI_COMM_WORLD);                                                                                       \
    CALL(__VA_ARGS__);                                                                                                 \
    brought(somewhere)
#define READ_WAITED(somewhere, ...)                                                                                    \
    begin(true);                                                                                                       \
    MPI_Barrier(MPI_COMM_WORLD);                                                                                       \
    CALL(__VA_ARGS__);                                                                                                 \
    CALL(MPI_Wait(&request, &status));                                                                                 \
    brought(somewhere)

#define ROUTINES(suffix)                                                                                               \
    static void writes##suffix(void)                                                                                   \
    {                                                                                                                  \
        DONE(false, MPI_File_write_at##suffix(file, at, out, INTS, MPI_INT, &status));                                 \
        DONE(false, MPI_File_write_at_all##suffix(file, at, out, INTS, MPI_INT, &status));                             \
        DONE(false, MPI_File_write##suffix(file, out, INTS, MPI_INT, &status));                                        \
        DONE(false, MPI_File_write_all##suffix(file, out, INTS, MPI_INT, &status));                                    \
        DONE(true, MPI_File_write_shared##suffix(file, out, INTS, MPI_INT, &status));                                  \
        DONE(false, MPI_File_write_ordered##suffix(file, out, INTS, MPI_INT, &status));                                \
        WAITED(false, MPI_File_iwrite_at##suffix(file, at, out, INTS, MPI_INT, &request));                             \
        WAITED(false, MPI_File_iwrite_at_all##suffix(file, at, out, INTS, MPI_INT, &request));                         \
        WAITED(false, MPI_File_iwrite##suffix(file, out, INTS, MPI_INT, &request));                                    \
        WAITED(false, MPI_File_iwrite_all##suffix(file, out, INTS, MPI_INT, &request));                                \
        WAITED(true, MPI_File_iwrite_shared##suffix(file, out, INTS, MPI_INT, &request));                              \
        DONE(false, MPI_File_write_at_all_begin##suffix(file, at, out, INTS, MPI_INT) ||                               \
                        MPI_File_write_at_all_end(file, out, &status));                                                \
        DONE(false, MPI_File_write_all_begin##suffix(file, out, INTS, MPI_INT) ||                                      \
                        MPI_File_write_all_end(file, out, &status));                                                   \
        DONE(false, MPI_File_write_ordered_begin##suffix(file, out, INTS, MPI_INT) ||                                  \
                        MPI_File_write_ordered_end(file, out, &status));                                               \
    }                                                                                                                  \
    static void reads##suffix(void)                                                                                    \
    {                                                                                                                  \
        READ(false, MPI_File_read_at##suffix(file, at, in, INTS, MPI_INT, &status));                                   \
        READ(false, MPI_File_read_at_all##suffix(file, at, in, INTS, MPI_INT, &status));                               \
        READ(false, MPI_File_read##suffix(file, in, INTS, MPI_INT, &status));                                          \
        READ(false, MPI_File_read_all##suffix(file, in, INTS, MPI_INT, &status));                                      \
        READ(true, MPI_File_read_shared##suffix(file, in, INTS, MPI_INT, &status));                                    \
        READ(false, MPI_File_read_ordered##suffix(file, in, INTS, MPI_INT, &status));                                  \
        READ_WAITED(false, MPI_File_iread_at##suffix(file, at, in, INTS, MPI_INT, &request));                          \
        READ_WAITED(false, MPI_File_iread_at_all##suffix(file, at, in, INTS, MPI_INT, &request));                      \
        READ_WAITED(false, MPI_File_iread##suffix(file, in, INTS, MPI_INT, &request));                                 \
        READ_WAITED(false, MPI_File_iread_all##suffix(file, in, INTS, MPI_INT, &request));                             \
        READ_WAITED(true, MPI_File_iread_shared##suffix(file, in, INTS, MPI_INT, &request));                           \
        READ(false, MPI_File_read_at_all_begin##suffix(file, at, in, INTS, MPI_INT) ||                                 \
                        MPI_File_read_at_all_end(file, in, &status));                                                  \
        READ(false, MPI_File_read_all_begin##suffix(file, in, INTS, MPI_INT) ||                                        \
                        MPI_File_read_all_end(file, in, &status));                                                     \
        READ(false, MPI_File_read_ordered_begin##suffix(file, in, INTS, MPI_INT) ||                                    \
                        MPI_File_read_ordered_end(file, in, &status));                                                 \
    }

ROUTINES()
#if MPI_VERSION >= 4
ROUTINES(_c)
#endif

static int heard;

static void handler(MPI_File *of, int *code, ...)
{
    heard += *of == file && *code == MPI_ERR_OTHER;
}

static void others(void)
{
    MPI_Errhandler own;
    MPI_Aint extent;
    CALL(MPI_File_create_errhandler(handler, &own));
    CALL(MPI_File_set_errhandler(file, own));
    CALL(MPI_File_call_errhandler(file, MPI_ERR_OTHER));
    CHECK(heard == 1);
    CALL(MPI_File_set_errhandler(file, MPI_ERRORS_RETURN));
    CALL(MPI_Errhandler_free(&own));
    CALL(MPI_File_get_type_extent(file, MPI_LONG, &extent));
    CHECK(extent == sizeof(long));
#if MPI_VERSION >= 4
    MPI_Count large;
    CALL(MPI_File_get_type_extent_c(file, MPI_LONG, &large));
    CHECK(large == sizeof(long));
#endif
#if MPI_VERSION >= 5
    CHECK(MPI_File_fromint(MPI_File_toint(file)) == file);
#endif
}

/* Several requests at once, asked for in every way; and one that somebody wants to take back. */
static void requests(void)
{
    enum { PARTS = 4 };
    MPI_Request all[PARTS];
    MPI_Status each[PARTS];
    int done = 0, count, index;
    begin(false);
    for (int i = 0; i < PARTS; i++)
        CALL(MPI_File_iwrite_at(file, at + i * INTS / PARTS, out + i * INTS / PARTS, INTS / PARTS, MPI_INT, &all[i]));
    while (!done)
        CALL(MPI_Request_get_status(all[0], &done, &status));
    CALL(MPI_Get_count(&status, MPI_INT, &count));
    CHECK(count == INTS / PARTS && all[0] != MPI_REQUEST_NULL);
    CALL(MPI_Waitall(PARTS, all, each));
    for (int i = 0; i < PARTS; i++) {
        CALL(MPI_Get_count(&each[i], MPI_INT, &count));
        CHECK(count == INTS / PARTS && all[i] == MPI_REQUEST_NULL);
        CALL(MPI_File_iread_at(file, at + i * INTS / PARTS, in + i * INTS / PARTS, INTS / PARTS, MPI_INT, &all[i]));
    }
    CALL(MPI_Waitany(PARTS, all, &index, &status));
    CHECK(index >= 0 && index < PARTS);
    for (done = 0; !done;)
        CALL(MPI_Testall(PARTS, all, &done, each));
    for (int i = 0; i < INTS; i++)
        CHECK(in[i] == out[i]);
    CALL(MPI_File_iread_at(file, at, in, INTS, MPI_INT, &request));
    if (cancels)
        CALL(MPI_Cancel(&request));
    for (done = 0; !done;)
        CALL(MPI_Test(&request, &done, &status));
    done = 0;
    if (cancels)
        CALL(MPI_Test_cancelled(&status, &done));
    CHECK(!done);
    check_status();
    /* The memory's datatype may go while the transfer is under way. */
    MPI_Datatype pair;
    CALL(MPI_Type_vector(INTS / 2, 1, 2, MPI_INT, &pair));
    CALL(MPI_Type_commit(&pair));
    CALL(MPI_File_iwrite_at(file, at, out, 1, pair, &request));
    CALL(MPI_Type_free(&pair));
    CALL(MPI_Wait(&request, &status));
    CALL(MPI_Get_count(&status, MPI_INT, &count));
    CHECK(count == INTS / 2);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc != 2 && argc != 3)
        FAIL("usage: %s FILE [own]", argv[0]);
    cancels = argc == 2;
    at = (MPI_Offset)rank * INTS;
    whole = malloc(sizeof out * (size_t)ranks);
    MPI_File_set_errhandler(MPI_FILE_NULL, MPI_ERRORS_RETURN);
    CALL(MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_RDWR | MPI_MODE_CREATE, MPI_INFO_NULL, &file));
    CALL(MPI_File_set_view(file, 0, MPI_INT, MPI_INT, "native", MPI_INFO_NULL));
    writes();
    reads();
#if MPI_VERSION >= 4
    writes_c();
    reads_c();
#endif
    others();
    requests();
    CALL(MPI_File_close(&file));
    free(whole);
    MPI_Finalize();
    return 0;
}
