/* Large nonblocking transfers, in a program whose threads may all call MPI: they go on behind it.
 *
 * usage: background FILE */
#include "check.h"

enum { PARTS = 5, INTS = 300000 };

static int rank, ranks, heard, heard_class;
static MPI_File file;

static int *numbers(int seed)
{
    int *all = malloc((size_t)PARTS * INTS * sizeof *all);
    for (int i = 0; i < PARTS * INTS; i++)
        all[i] = seed * (rank * 7 + 3) + i;
    return all;
}

static int ints_of(MPI_Status *status)
{
    int count;
    CALL(MPI_Get_count(status, MPI_INT, &count));
    return count;
}

/* Parts at explicit offsets, all under way at once, from memory whose datatype is gone. */
static void test_offsets(void)
{
    int *out = numbers(11), *in = calloc(PARTS * INTS, sizeof *in);
    MPI_Request requests[PARTS];
    MPI_Status statuses[PARTS];
    MPI_Offset mine = (MPI_Offset)rank * PARTS * INTS;
    MPI_Datatype many;
    for (int i = 0; i < PARTS; i++) {
        CALL(MPI_Type_contiguous(INTS, MPI_INT, &many));
        CALL(MPI_Type_commit(&many));
        CALL(MPI_File_iwrite_at(file, mine + (MPI_Offset)i * INTS, out + i * INTS, 1, many, &requests[i]));
        CALL(MPI_Type_free(&many));
    }
    CALL(MPI_Waitall(PARTS, requests, statuses));
    for (int i = 0; i < PARTS; i++)
        CHECK(ints_of(&statuses[i]) == INTS && requests[i] == MPI_REQUEST_NULL);
    for (int i = 0; i < PARTS; i++)
        CALL(MPI_File_iread_at(file, mine + (MPI_Offset)i * INTS, in + i * INTS, INTS, MPI_INT, &requests[i]));
    for (int i = 0, index; i < PARTS; i++) {
        CALL(MPI_Waitany(PARTS, requests, &index, &statuses[0]));
        CHECK(ints_of(&statuses[0]) == INTS);
    }
    CHECK(memcmp(out, in, (size_t)PARTS * INTS * sizeof *in) == 0);
    free(out);
    free(in);
}

/* The pointer is where the next call begins, whatever is still under way; what is behind the end does not count. */
static void test_pointer(void)
{
    int *out = numbers(5), *in = calloc(2 * INTS, sizeof *in), done = 0;
    MPI_Request first, second;
    MPI_Status status;
    MPI_Offset at;
    MPI_Barrier(MPI_COMM_WORLD);
    CALL(MPI_File_set_size(file, 0));
    CALL(MPI_File_seek(file, 0, MPI_SEEK_SET));
    if (rank == 0) {
        CALL(MPI_File_iwrite(file, out, INTS, MPI_INT, &first));
        CALL(MPI_File_get_position(file, &at));
        CHECK(at == INTS);
        CALL(MPI_File_iwrite(file, out + INTS, INTS / 2, MPI_INT, &second));
        CALL(MPI_Wait(&second, &status));
        CALL(MPI_Wait(&first, &status));
        CALL(MPI_File_sync(file));
    }
    MPI_Barrier(MPI_COMM_WORLD);
    CALL(MPI_File_seek(file, 0, MPI_SEEK_SET));
    CALL(MPI_File_iread(file, in, INTS, MPI_INT, &first));
    CALL(MPI_File_iread(file, in + INTS, INTS, MPI_INT, &second));
    CALL(MPI_File_get_position(file, &at));
    CHECK(at == INTS + INTS / 2);
    while (!done)
        CALL(MPI_Test(&second, &done, &status));
    CHECK(ints_of(&status) == INTS / 2);
    CALL(MPI_Wait(&first, &status));
    CHECK(ints_of(&status) == INTS);
    /* All have what the first rank has written. */
    CHECK(in[1] - in[0] == 1 && in[INTS + INTS / 2 - 1] - in[0] == INTS + INTS / 2 - 1 && in[2 * INTS - 1] == 0);
    free(out);
    free(in);
}

static void handler(MPI_File *of, int *code, ...)
{
    heard += *of == file;
    MPI_Error_class(*code, &heard_class);
}

/* What goes wrong behind the program is told when it waits: to the file's handler, and by the call that waits. */
static void test_error(void)
{
    long *large = malloc(INTS * sizeof *large);
    MPI_Request request;
    MPI_Errhandler own;
    for (int i = 0; i < INTS; i++)
        large[i] = 1L << 40;
    MPI_Barrier(MPI_COMM_WORLD);
    CALL(MPI_File_set_view(file, 0, MPI_LONG, MPI_LONG, "external32", MPI_INFO_NULL));
    CALL(MPI_File_create_errhandler(handler, &own));
    CALL(MPI_File_set_errhandler(file, own));
    CALL(MPI_File_iwrite_at(file, 0, large, INTS, MPI_LONG, &request));
    REFUSED(MPI_Wait(&request, MPI_STATUS_IGNORE), MPI_ERR_CONVERSION);
    CHECK(heard == 1 && heard_class == MPI_ERR_CONVERSION);
    CALL(MPI_Errhandler_free(&own));
    free(large);
}

int main(int argc, char **argv)
{
    int level;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    CHECK(level == MPI_THREAD_MULTIPLE);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc != 2)
        FAIL("usage: %s FILE", argv[0]);
    MPI_File_set_errhandler(MPI_FILE_NULL, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    CALL(MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_RDWR | MPI_MODE_CREATE, MPI_INFO_NULL, &file));
    CALL(MPI_File_set_view(file, 0, MPI_INT, MPI_INT, "native", MPI_INFO_NULL));
    test_offsets();
    test_pointer();
    test_error();
    CALL(MPI_File_close(&file));
    MPI_Finalize();
    return 0;
}
