/* Every routine of MPI-IO, by several ranks on one file.
 *
 * usage: mpiio_test CASE FILE [...], each case as its function says */
#include "check.h"

#include <stdbool.h>
#include <stdint.h>
#include <unistd.h>

static int rank, ranks;

static MPI_File open_new(const char *path)
{
    MPI_File file;
    CALL(MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_RDWR | MPI_MODE_CREATE, MPI_INFO_NULL, &file));
    return file;
}

static int bytes_of(MPI_Status *status)
{
    int bytes;
    CALL(MPI_Get_count(status, MPI_BYTE, &bytes));
    return bytes;
}

/* Blocks of each rank at explicit offsets, by every kind of call; each rank reads what its neighbour wrote. */
static void test_offsets(const char *path)
{
    enum { INTS = 1000 };
    int out[INTS], in[INTS], other = (rank + 1) % ranks;
    MPI_Status status;
    MPI_Request requests[2];
    MPI_File file = open_new(path);
    CALL(MPI_File_set_view(file, 0, MPI_INT, MPI_INT, "native", MPI_INFO_NULL));
    for (int way = 0; way < 4; way++) {
        for (int i = 0; i < INTS; i++)
            out[i] = rank * 100000 + i * 4 + way;
        MPI_Offset mine = (MPI_Offset)rank * INTS, theirs = (MPI_Offset)other * INTS;
        if (way == 0) {
            CALL(MPI_File_write_at(file, mine, out, INTS, MPI_INT, &status));
        } else if (way == 1) {
            CALL(MPI_File_write_at_all(file, mine, out, INTS, MPI_INT, &status));
        } else if (way == 2) {
            CALL(MPI_File_iwrite_at(file, mine, out, INTS / 2, MPI_INT, &requests[0]));
            CALL(MPI_File_iwrite_at(file, mine + INTS / 2, out + INTS / 2, INTS / 2, MPI_INT, &requests[1]));
            MPI_Status both[2];
            CALL(MPI_Waitall(2, requests, both));
            CHECK(bytes_of(&both[0]) == INTS / 2 * 4 && bytes_of(&both[1]) == INTS / 2 * 4);
        } else {
            CALL(MPI_File_write_at_all_begin(file, mine, out, INTS, MPI_INT));
            CALL(MPI_File_write_at_all_end(file, out, &status));
        }
        CHECK(way == 2 || bytes_of(&status) == INTS * 4);
        MPI_Barrier(MPI_COMM_WORLD);
        memset(in, 0, sizeof in);
        if (way == 0) {
            CALL(MPI_File_read_at(file, theirs, in, INTS, MPI_INT, &status));
        } else if (way == 1) {
            CALL(MPI_File_read_at_all(file, theirs, in, INTS, MPI_INT, &status));
        } else if (way == 2) {
            CALL(MPI_File_iread_at_all(file, theirs, in, INTS, MPI_INT, &requests[0]));
            CALL(MPI_Wait(&requests[0], &status));
        } else {
            CALL(MPI_File_read_at_all_begin(file, theirs, in, INTS, MPI_INT));
            CALL(MPI_File_read_at_all_end(file, in, &status));
        }
        CHECK(bytes_of(&status) == INTS * 4);
        for (int i = 0; i < INTS; i++)
            CHECK(in[i] == other * 100000 + i * 4 + way);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    MPI_Offset size;
    CALL(MPI_File_get_size(file, &size));
    CHECK(size == (MPI_Offset)ranks * INTS * 4);
    CALL(MPI_File_close(&file));
    CHECK(file == MPI_FILE_NULL);
}

/* Interleaved rows by individual pointers, with a view for each rank. */
static void test_views(const char *path)
{
    enum { COLUMNS = 8, ROWS = 16 };
    int sizes[2] = {ROWS, COLUMNS * ranks}, subsizes[2] = {ROWS, COLUMNS}, starts[2] = {0, COLUMNS * rank};
    double mine[ROWS][COLUMNS], back[ROWS][COLUMNS];
    MPI_Datatype block, etype, filetype;
    MPI_Offset displacement, at;
    MPI_Status status;
    char representation[MPI_MAX_DATAREP_STRING];
    int combiner, counts[3];
    MPI_File file = open_new(path);
    CALL(MPI_Type_create_subarray(2, sizes, subsizes, starts, MPI_ORDER_C, MPI_DOUBLE, &block));
    CALL(MPI_Type_commit(&block));
    CALL(MPI_File_set_view(file, 24, MPI_DOUBLE, block, "native", MPI_INFO_NULL));
    CALL(MPI_File_get_view(file, &displacement, &etype, &filetype, representation));
    CHECK(displacement == 24 && etype == MPI_DOUBLE && strcmp(representation, "native") == 0);
    CALL(MPI_Type_get_envelope(filetype, &counts[0], &counts[1], &counts[2], &combiner));
    CHECK(combiner != MPI_COMBINER_NAMED);
    CALL(MPI_Type_free(&filetype));
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLUMNS; j++)
            mine[i][j] = rank * 1000 + i * COLUMNS + j;
    CALL(MPI_File_write_all(file, mine, ROWS * COLUMNS / 2, MPI_DOUBLE, &status));
    CALL(MPI_File_get_position(file, &at));
    CHECK(at == ROWS * COLUMNS / 2);
    CALL(MPI_File_write(file, mine[ROWS / 2], ROWS * COLUMNS / 2, MPI_DOUBLE, &status));
    CALL(MPI_File_seek(file, 0, MPI_SEEK_SET));
    CALL(MPI_File_read_all(file, back, ROWS * COLUMNS, MPI_DOUBLE, &status));
    CHECK(bytes_of(&status) == (int)sizeof back && memcmp(mine, back, sizeof back) == 0);
    /* At the end there is nothing: no error, and a status that says so. */
    MPI_Barrier(MPI_COMM_WORLD);
    CALL(MPI_File_read(file, back, 1, MPI_DOUBLE, &status));
    CHECK(bytes_of(&status) == 0);
    CALL(MPI_File_set_view(file, 24, MPI_DOUBLE, MPI_DOUBLE, "native", MPI_INFO_NULL));
    double *whole = malloc(sizeof mine * (size_t)ranks);
    CALL(MPI_File_read_at(file, 0, whole, ROWS * COLUMNS * ranks, MPI_DOUBLE, &status));
    for (int k = 0; k < ROWS * COLUMNS * ranks; k++) {
        int row = k / (COLUMNS * ranks), column = k % (COLUMNS * ranks);
        CHECK(whole[k] == column / COLUMNS * 1000 + row * COLUMNS + column % COLUMNS);
    }
    free(whole);
    CALL(MPI_Type_free(&block));
    CALL(MPI_File_close(&file));
}

/* A view that could not come again, as PnetCDF makes them: what it has of the file is there, and no more. */
static void test_once(const char *path)
{
    enum { ROWS = 10, ROW = 8, HEAD = 16 };
    char out[HEAD + ROWS * ROW + 1], in[HEAD + ROWS * ROW];
    int bytes = (rank == 0 ? HEAD : 0) + ROWS * ROW, lengths[ROWS + 1], count = 0;
    MPI_Aint places[ROWS + 1];
    MPI_Datatype blocks, type;
    MPI_Status status;
    MPI_Offset at;
    MPI_File file = open_new(path);
    if (rank == 0) {
        lengths[count] = HEAD;
        places[count++] = 0;
    }
    for (int row = 0; row < ROWS; row++) {
        lengths[count] = ROW;
        places[count++] = HEAD + ROW * (rank + ranks * row);
    }
    CALL(MPI_Type_create_hindexed(count, lengths, places, MPI_BYTE, &blocks));
    /* As long as the rows alone: the next one would begin in front of their end. */
    CALL(MPI_Type_create_resized(blocks, 0, ROW * ranks * ROWS / 2, &type));
    CALL(MPI_Type_commit(&type));
    CALL(MPI_File_set_view(file, 0, MPI_BYTE, type, "native", MPI_INFO_NULL));
    memset(out, 'a' + rank, sizeof out);
    CALL(MPI_File_write_all(file, out, bytes, MPI_BYTE, &status));
    CHECK(bytes_of(&status) == bytes);
    CALL(MPI_File_get_position(file, &at));
    CHECK(at == bytes);
    CALL(MPI_File_read_at_all(file, 0, in, bytes, MPI_BYTE, &status));
    CHECK(bytes_of(&status) == bytes && memcmp(in, out, (size_t)bytes) == 0);
    REFUSED(MPI_File_write_at(file, 0, out, bytes + 1, MPI_BYTE, &status), MPI_ERR_IO);
    CALL(MPI_File_sync(file));
    MPI_Barrier(MPI_COMM_WORLD);
    CALL(MPI_File_seek(file, 0, MPI_SEEK_END));
    CALL(MPI_File_get_position(file, &at));
    CHECK(at == bytes);
    CALL(MPI_File_get_size(file, &at));
    CHECK(at == HEAD + ROW * ranks * ROWS);
    CALL(MPI_Type_free(&type));
    CALL(MPI_Type_free(&blocks));
    CALL(MPI_File_close(&file));
}

/* Two ranks write every other byte at the same time: neither brings back what the other has changed. */
static void test_holes(const char *path)
{
    enum { BYTES = 1500 };
    char *mine = malloc(BYTES), *whole = malloc((size_t)BYTES * (size_t)ranks);
    MPI_Datatype every;
    MPI_File file = open_new(path);
    CALL(MPI_Type_create_resized(MPI_BYTE, 0, ranks, &every));
    CALL(MPI_Type_commit(&every));
    CALL(MPI_File_set_view(file, rank, MPI_BYTE, every, "native", MPI_INFO_NULL));
    for (int round = 0; round < 3; round++) {
        memset(mine, 'a' + rank + 4 * round, BYTES);
        CALL(MPI_File_write_at(file, 0, mine, BYTES, MPI_BYTE, MPI_STATUS_IGNORE));
    }
    MPI_Barrier(MPI_COMM_WORLD);
    CALL(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
    CALL(MPI_File_read_at(file, 0, whole, BYTES * ranks, MPI_BYTE, MPI_STATUS_IGNORE));
    for (int i = 0; i < BYTES * ranks; i++)
        CHECK(whole[i] == 'a' + i % ranks + 8);
    CALL(MPI_Type_free(&every));
    CALL(MPI_File_close(&file));
    free(mine);
    free(whole);
}

/* Records of all ranks by the shared pointer: each place is given once. Ordered ones lie in the order of ranks. */
static void test_shared(const char *path)
{
    enum { RECORDS = 40 };
    int record[4], *all = malloc(sizeof record * RECORDS * (size_t)ranks), *seen = calloc(RECORDS * (size_t)ranks, 4);
    MPI_Offset at;
    MPI_Status status;
    MPI_Request request;
    MPI_Datatype four;
    MPI_File file = open_new(path);
    CALL(MPI_File_set_size(file, 0));
    CALL(MPI_Type_contiguous(4, MPI_INT, &four));
    CALL(MPI_Type_commit(&four));
    CALL(MPI_File_set_view(file, 0, four, four, "native", MPI_INFO_NULL));
    for (int i = 0; i < RECORDS; i++) {
        for (int k = 0; k < 4; k++)
            record[k] = rank * RECORDS + i;
        if (i % 2) {
            CALL(MPI_File_write_shared(file, record, 1, four, &status));
        } else {
            CALL(MPI_File_iwrite_shared(file, record, 1, four, &request));
            CALL(MPI_Wait(&request, &status));
        }
        CHECK(bytes_of(&status) == 16);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    CALL(MPI_File_get_position_shared(file, &at));
    CHECK(at == RECORDS * ranks);
    CALL(MPI_File_read_at(file, 0, all, RECORDS * ranks, four, &status));
    for (int i = 0; i < RECORDS * ranks; i++) {
        CHECK(all[4 * i] == all[4 * i + 3]);
        CHECK(seen[all[4 * i]]++ == 0);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    CALL(MPI_File_seek_shared(file, 1, MPI_SEEK_SET));
    for (int round = 0; round < 3; round++) {
        /* Each rank has as many as its number says, so one has none. */
        for (int i = 0; i < rank; i++)
            all[4 * i] = all[4 * i + 1] = all[4 * i + 2] = all[4 * i + 3] = -(rank * 10 + i);
        if (round == 1) {
            CALL(MPI_File_write_ordered_begin(file, all, rank, four));
            CALL(MPI_File_write_ordered_end(file, all, &status));
        } else {
            CALL(MPI_File_write_ordered(file, all, rank, four, &status));
        }
        CHECK(bytes_of(&status) == 16 * rank);
    }
    int per_round = ranks * (ranks - 1) / 2;
    MPI_Barrier(MPI_COMM_WORLD);
    CALL(MPI_File_get_position_shared(file, &at));
    CHECK(at == 1 + 3 * per_round);
    CALL(MPI_File_read_at(file, 1, all, 3 * per_round, four, &status));
    for (int round = 0, k = 0; round < 3; round++)
        for (int other = 0; other < ranks; other++)
            for (int i = 0; i < other; i++, k++)
                CHECK(all[4 * k] == -(other * 10 + i));
    MPI_Barrier(MPI_COMM_WORLD);
    CALL(MPI_File_seek_shared(file, -1, MPI_SEEK_CUR));
    CALL(MPI_File_read_ordered(file, record, 1, four, &status));
    if (rank == 0)
        CHECK(record[0] == -((ranks - 1) * 10 + ranks - 2));
    CALL(MPI_File_seek_shared(file, 0, MPI_SEEK_END));
    CALL(MPI_File_get_position_shared(file, &at));
    CHECK(at == RECORDS * ranks);
    MPI_Barrier(MPI_COMM_WORLD);
    CALL(MPI_File_read_shared(file, record, 1, four, &status));
    CHECK(bytes_of(&status) == 0);
    CALL(MPI_Type_free(&four));
    CALL(MPI_File_close(&file));
    free(all);
    free(seen);
}

/* In atomic mode a strided write of one rank is seen whole or not at all. */
static void test_atomic(const char *path)
{
    enum { PIECES = 100, ROUNDS = 30 };
    char mine[PIECES], all[PIECES];
    MPI_Datatype every;
    int atomic;
    MPI_File file = open_new(path);
    CALL(MPI_Type_vector(PIECES, 1, 1000, MPI_BYTE, &every));
    CALL(MPI_Type_commit(&every));
    CALL(MPI_File_set_view(file, 0, MPI_BYTE, every, "native", MPI_INFO_NULL));
    CALL(MPI_File_set_atomicity(file, 1));
    CALL(MPI_File_get_atomicity(file, &atomic));
    CHECK(atomic);
    memset(mine, 'a' + rank, PIECES);
    if (rank == 0)
        CALL(MPI_File_write_at(file, 0, mine, PIECES, MPI_BYTE, MPI_STATUS_IGNORE));
    MPI_Barrier(MPI_COMM_WORLD);
    for (int round = 0; round < ROUNDS; round++) {
        CALL(MPI_File_write_at(file, 0, mine, PIECES, MPI_BYTE, MPI_STATUS_IGNORE));
        CALL(MPI_File_read_at(file, 0, all, PIECES, MPI_BYTE, MPI_STATUS_IGNORE));
        for (int i = 1; i < PIECES; i++)
            CHECK(all[i] == all[0]);
    }
    CALL(MPI_Type_free(&every));
    CALL(MPI_File_close(&file));
}

/* Hints that programs give to other implementations. */
static const char *const OTHER_HINTS[] = {"start_iodevice", "romio_ds_read", "access_style", "romio_ds_write"};

/* What is told of whichever file: the hints that other implementations know and that have an effect here. */
static const char *const TOLD_HINTS[] = {"striping_factor", "striping_unit", "start_iodevice", "cb_nodes", "cb_buffer_size",
                                         "collective_buffering", "romio_cb_read", "romio_cb_write", "romio_ds_read",
                                         "romio_ds_write", "ind_rd_buffer_size", "ind_wr_buffer_size"};

/* Sizes, groups, modes, hints, delete on close, and a file that another rank has made. */
static void test_wholes(const char *path)
{
    MPI_Offset size;
    MPI_Group group;
    MPI_Info info;
    MPI_File file;
    int members, amode, flag;
    char value[64];
    CALL(MPI_Info_create(&info));
    CALL(MPI_Info_set(info, "striping_unit", "131072"));
    CALL(MPI_Info_set(info, "striping_factor", "2"));
    CALL(MPI_Info_set(info, "nobody_knows_this", "at all"));
    for (size_t i = 0; i < sizeof OTHER_HINTS / sizeof *OTHER_HINTS; i++)
        CALL(MPI_Info_set(info, OTHER_HINTS[i], i % 2 ? "enable" : "17"));
    CALL(MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_WRONLY | MPI_MODE_CREATE | MPI_MODE_EXCL, info, &file));
    CALL(MPI_Info_free(&info));
    CALL(MPI_File_get_info(file, &info));
    CALL(MPI_Info_get(info, "striping_unit", 63, value, &flag));
    CHECK(flag && strcmp(value, "131072") == 0);
    CALL(MPI_Info_get(info, "striping_factor", 63, value, &flag));
    CHECK(flag && strcmp(value, "2") == 0);
    CALL(MPI_Info_get(info, "nobody_knows_this", 63, value, &flag));
    CHECK(!flag);
    /* What has no effect is not told as if it had. */
    for (size_t i = 0; i < sizeof OTHER_HINTS / sizeof *OTHER_HINTS; i++) {
        CALL(MPI_Info_get(info, OTHER_HINTS[i], 63, value, &flag));
        CHECK(!flag || (strcmp(value, "17") != 0 && strcmp(value, "enable") != 0));
    }
    for (size_t i = 0; i < sizeof TOLD_HINTS / sizeof *TOLD_HINTS; i++) {
        CALL(MPI_Info_get(info, TOLD_HINTS[i], 63, value, &flag));
        if (!flag)
            FAIL("%s is not told", TOLD_HINTS[i]);
    }
    CALL(MPI_File_set_info(file, info));
    CALL(MPI_Info_free(&info));
    CALL(MPI_File_get_amode(file, &amode));
    CHECK(amode == (MPI_MODE_WRONLY | MPI_MODE_CREATE | MPI_MODE_EXCL));
    CALL(MPI_File_get_group(file, &group));
    CALL(MPI_Group_size(group, &members));
    CHECK(members == ranks);
    CALL(MPI_Group_free(&group));
    CALL(MPI_File_set_size(file, 5000));
    CALL(MPI_File_preallocate(file, 4000));
    CALL(MPI_File_get_size(file, &size));
    CHECK(size == 5000);
    MPI_Barrier(MPI_COMM_WORLD);
    CALL(MPI_File_preallocate(file, 300000));
    CALL(MPI_File_get_size(file, &size));
    CHECK(size == 300000);
    CALL(MPI_File_sync(file));
#ifndef MPI_H_ABI
    /* The standard ABI's library may come without Fortran. */
    CHECK(MPI_File_f2c(MPI_File_c2f(file)) == file);
#endif
    CALL(MPI_File_close(&file));
    CALL(MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_RDWR | MPI_MODE_APPEND | MPI_MODE_DELETE_ON_CLOSE, MPI_INFO_NULL,
                       &file));
    CALL(MPI_File_get_position(file, &size));
    CHECK(size == 300000);
    CALL(MPI_File_get_position_shared(file, &size));
    CHECK(size == 300000);
    CALL(MPI_File_close(&file));
    REFUSED(MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_RDONLY, MPI_INFO_NULL, &file), MPI_ERR_NO_SUCH_FILE);
    CHECK(file == MPI_FILE_NULL);
    CALL(MPI_File_open(MPI_COMM_SELF, path, MPI_MODE_WRONLY | MPI_MODE_CREATE, MPI_INFO_NULL, &file));
    CALL(MPI_File_close(&file));
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        CALL(MPI_File_delete(path, MPI_INFO_NULL));
        REFUSED(MPI_File_delete(path, MPI_INFO_NULL), MPI_ERR_NO_SUCH_FILE);
    }
}

static int handled, last_class;

static void handler(MPI_File *file, int *code, ...)
{
    (void)file;
    handled++;
    MPI_Error_class(*code, &last_class);
}

/* Each mistake is the class that the standard names, and the file's own handler is called with it. */
static void test_errors(const char *path)
{
    char bytes[16] = "", text[MPI_MAX_ERROR_STRING];
    int length, code, class;
    MPI_File file, other;
    MPI_Errhandler own, got;
    MPI_Datatype back, negative;
    MPI_Request request;
    file = open_new(path);
    REFUSED(MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_RDWR | MPI_MODE_WRONLY, MPI_INFO_NULL, &other), MPI_ERR_AMODE);
    REFUSED(MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_RDONLY | MPI_MODE_CREATE, MPI_INFO_NULL, &other), MPI_ERR_AMODE);
    REFUSED(MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_RDWR | MPI_MODE_CREATE | MPI_MODE_EXCL, MPI_INFO_NULL, &other),
            MPI_ERR_FILE_EXISTS);
    code = MPI_File_open(MPI_COMM_WORLD, "ramlace:/no/such/file", MPI_MODE_RDONLY, MPI_INFO_NULL, &other);
    CALL(MPI_Error_class(code, &class));
    CHECK(class == MPI_ERR_NO_SUCH_FILE);
    CALL(MPI_Error_string(code, text, &length));
#ifdef OPEN_MPI
    CHECK(rank != 0 || strstr(text, "/no/such/file") != NULL);
#endif
    REFUSED(MPI_File_open(MPI_COMM_WORLD, rank ? "ramlace:/one" : "ramlace:/another", MPI_MODE_RDWR | MPI_MODE_CREATE,
                          MPI_INFO_NULL, &other), ranks > 1 ? MPI_ERR_NOT_SAME : MPI_SUCCESS);
    REFUSED(MPI_File_open(MPI_COMM_WORLD, path, rank ? MPI_MODE_RDWR : MPI_MODE_RDONLY, MPI_INFO_NULL, &other),
            MPI_ERR_NOT_SAME);
    REFUSED(MPI_File_open(MPI_COMM_WORLD, rank ? path : "ramlace://nosuchpool/x", MPI_MODE_RDWR, MPI_INFO_NULL, &other),
            MPI_ERR_NO_SUCH_FILE);
    REFUSED(MPI_File_write_at(file, -1, bytes, 1, MPI_BYTE, MPI_STATUS_IGNORE), MPI_ERR_ARG);
    REFUSED(MPI_File_write_at(file, 0, bytes, -1, MPI_BYTE, MPI_STATUS_IGNORE), MPI_ERR_COUNT);
    REFUSED(MPI_File_seek(file, -1, MPI_SEEK_SET), MPI_ERR_ARG);
    REFUSED(MPI_File_seek(file, 0, 12345), MPI_ERR_ARG);
    REFUSED(MPI_File_set_size(file, -1), MPI_ERR_ARG);
    REFUSED(MPI_File_set_size(file, rank), ranks > 1 && rank > 0 ? MPI_ERR_NOT_SAME : MPI_SUCCESS);
    REFUSED(MPI_File_preallocate(file, -1), MPI_ERR_ARG);
    REFUSED(MPI_File_seek_shared(file, -1, MPI_SEEK_SET), MPI_ERR_ARG);
    REFUSED(MPI_File_get_byte_offset(file, -1, &(MPI_Offset){0}), MPI_ERR_ARG);
    REFUSED(MPI_File_iread_at(file, -1, bytes, 1, MPI_BYTE, &request), MPI_ERR_ARG);
    CHECK(request == MPI_REQUEST_NULL);
    REFUSED(MPI_File_read_at(file, 0, bytes, 1, MPI_DATATYPE_NULL, MPI_STATUS_IGNORE), MPI_ERR_TYPE);
    REFUSED(MPI_File_write_ordered(file, bytes, rank ? 1 : -1, MPI_BYTE, MPI_STATUS_IGNORE),
            rank ? MPI_SUCCESS : MPI_ERR_COUNT);
    REFUSED(MPI_File_set_view(file, 0, MPI_DATATYPE_NULL, MPI_BYTE, "native", MPI_INFO_NULL), MPI_ERR_TYPE);
    REFUSED(MPI_File_get_type_extent(file, MPI_DATATYPE_NULL, &(MPI_Aint){0}), MPI_ERR_TYPE);
    REFUSED(MPI_File_read_all_end(file, bytes, MPI_STATUS_IGNORE), MPI_ERR_IO);
    REFUSED(MPI_File_open(MPI_COMM_WORLD, "ramlace:/", MPI_MODE_RDONLY, MPI_INFO_NULL, &other), MPI_ERR_BAD_FILE);
    REFUSED(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "strange", MPI_INFO_NULL), MPI_ERR_UNSUPPORTED_DATAREP);
    REFUSED(MPI_File_set_view(file, -8, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL), MPI_ERR_ARG);
    int ones[2] = {1, 1}, places[2] = {4, 0};
    CALL(MPI_Type_indexed(2, ones, places, MPI_INT, &back));
    CALL(MPI_Type_commit(&back));
    REFUSED(MPI_File_set_view(file, 0, MPI_INT, back, "native", MPI_INFO_NULL), MPI_ERR_IO);
    MPI_Aint before = -4;
    CALL(MPI_Type_create_hindexed(1, ones, &before, MPI_INT, &negative));
    CALL(MPI_Type_commit(&negative));
    REFUSED(MPI_File_set_view(file, 0, MPI_INT, negative, "native", MPI_INFO_NULL), MPI_ERR_IO);
    CALL(MPI_File_set_view(file, 0, MPI_INT, MPI_INT, "internal", MPI_INFO_NULL));
    REFUSED(MPI_File_write_at(file, 0, bytes, 3, MPI_BYTE, MPI_STATUS_IGNORE), MPI_ERR_IO);
    CALL(MPI_File_read_all_begin(file, bytes, 1, MPI_INT));
    REFUSED(MPI_File_read_all_begin(file, bytes, 1, MPI_INT), MPI_ERR_IO);
    REFUSED(MPI_File_write_all_end(file, bytes, MPI_STATUS_IGNORE), MPI_ERR_IO);
    CALL(MPI_File_read_all_end(file, bytes, MPI_STATUS_IGNORE));
    CALL(MPI_File_create_errhandler(handler, &own));
    CALL(MPI_File_set_errhandler(file, own));
    CALL(MPI_File_get_errhandler(file, &got));
    CHECK(got == own);
    REFUSED(MPI_File_read_at(file, -1, bytes, 1, MPI_INT, MPI_STATUS_IGNORE), MPI_ERR_ARG);
    CHECK(handled == 1 && last_class == MPI_ERR_ARG);
    CALL(MPI_Errhandler_free(&own));
    CALL(MPI_Type_free(&back));
    CALL(MPI_Type_free(&negative));
    CALL(MPI_File_close(&file));
    CALL(MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_RDONLY, MPI_INFO_NULL, &file));
    REFUSED(MPI_File_write(file, bytes, 1, MPI_BYTE, MPI_STATUS_IGNORE), MPI_ERR_READ_ONLY);
    REFUSED(MPI_File_set_size(file, 1), MPI_ERR_READ_ONLY);
    CHECK(handled == 1);
    CALL(MPI_File_close(&file));
    CALL(MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_WRONLY | MPI_MODE_SEQUENTIAL, MPI_INFO_NULL, &file));
    REFUSED(MPI_File_read_shared(file, bytes, 1, MPI_BYTE, MPI_STATUS_IGNORE), MPI_ERR_ACCESS);
    REFUSED(MPI_File_write(file, bytes, 1, MPI_BYTE, MPI_STATUS_IGNORE), MPI_ERR_UNSUPPORTED_OPERATION);
    CALL(MPI_File_write_ordered(file, bytes, 2, MPI_BYTE, MPI_STATUS_IGNORE));
    CALL(MPI_File_set_view(file, MPI_DISPLACEMENT_CURRENT, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
    MPI_Offset displacement;
    MPI_Datatype etype, filetype;
    CALL(MPI_File_get_view(file, &displacement, &etype, &filetype, text));
    CHECK(displacement == 2 * ranks);
    CALL(MPI_File_close(&file));
}

/* Types by the constructors with large counts, where the MPI has them, and an access with one. */
static void test_large_counts(const char *path)
{
#if MPI_VERSION >= 4
    MPI_File file = open_new(path);
    int out[24], in[24];
    MPI_Count sizes[2] = {6, 8}, subsizes[2] = {3, 4}, starts[2] = {1, 2}, lengths[2] = {1, 2}, places[2] = {1, 4};
    MPI_Count bytes[2] = {4, 16};
    MPI_Datatype types[9], ints[2] = {MPI_INT, MPI_INT};
    int split[2] = {MPI_DISTRIBUTE_BLOCK, MPI_DISTRIBUTE_CYCLIC}, none[2] = {MPI_DISTRIBUTE_DFLT_DARG, 2}, grid[2] = {2, 2};
    CALL(MPI_Type_contiguous_c(3, MPI_INT, &types[0]));
    CALL(MPI_Type_vector_c(3, 1, 2, MPI_INT, &types[1]));
    CALL(MPI_Type_create_hvector_c(3, 1, 12, MPI_INT, &types[2]));
    CALL(MPI_Type_indexed_c(2, lengths, places, MPI_INT, &types[3]));
    CALL(MPI_Type_create_hindexed_c(2, lengths, bytes, MPI_INT, &types[4]));
    CALL(MPI_Type_create_struct_c(2, lengths, bytes, ints, &types[5]));
    CALL(MPI_Type_create_subarray_c(2, sizes, subsizes, starts, MPI_ORDER_C, MPI_INT, &types[6]));
    CALL(MPI_Type_create_darray_c(4, 1, 2, sizes, split, none, grid, MPI_ORDER_C, MPI_INT, &types[7]));
    CALL(MPI_Type_create_resized_c(MPI_INT, 0, 12, &types[8]));
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        char *image = calloc(1, 4096), *packed = calloc(1, 4096);
        int size, at = 0, tiles = 2;
        step = (int)i;
        CALL(MPI_Type_commit(&types[i]));
        MPI_Type_size(types[i], &size);
        for (int k = 0; k < 24; k++)
            out[k] = k + 1000 * (int)i;
        CALL(MPI_File_set_size(file, 0));
        CALL(MPI_File_set_view(file, 0, MPI_INT, types[i], "native", MPI_INFO_NULL));
        CALL(MPI_File_write_at_all_c(file, 0, out, tiles * size / 4, MPI_INT, MPI_STATUS_IGNORE));
        CALL(MPI_File_read_at_c(file, 0, in, tiles * size / 4, MPI_INT, MPI_STATUS_IGNORE));
        CHECK(memcmp(in, out, (size_t)(tiles * size)) == 0);
        CALL(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
        CALL(MPI_File_read_at(file, 0, image, 4096, MPI_BYTE, MPI_STATUS_IGNORE));
        CALL(MPI_Pack(image, tiles, types[i], packed, tiles * size, &at, MPI_COMM_SELF));
        CHECK(memcmp(packed, out, (size_t)(tiles * size)) == 0);
        CALL(MPI_Type_free(&types[i]));
        free(image);
        free(packed);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    CALL(MPI_File_close(&file));
#else
    MPI_File file = open_new(path);
    CALL(MPI_File_close(&file));
#endif
}

/* Files are made and closed again and again, several open at once: nothing runs out. */
static void test_many(const char *path)
{
    MPI_File files[5];
    char name[1024];
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < 5; i++) {
            snprintf(name, sizeof name, "%s-%d", path, i);
            files[i] = open_new(name);
            CALL(MPI_File_write_ordered(files[i], &i, 1, MPI_INT, MPI_STATUS_IGNORE));
        }
        for (int i = 0; i < 5; i++)
            CALL(MPI_File_close(&files[i]));
    }
}

/* The bytes 0, 1, 2, ... of a file, for a program that looks by another door. */
static void test_count(const char *path)
{
    unsigned char mine[256];
    for (int i = 0; i < 256; i++)
        mine[i] = (unsigned char)i;
    MPI_File file = open_new(path);
    CALL(MPI_File_write_at_all(file, 256 * rank, mine, 256, MPI_BYTE, MPI_STATUS_IGNORE));
    CALL(MPI_File_close(&file));
}

/* The last rank dies while it holds locks of an atomic access, and the shared pointer is in use: the others go on. */
static void test_killed(const char *path)
{
    enum { BYTES = 100 };
    char bytes[BYTES];
    MPI_File file;
    CALL(MPI_File_open(MPI_COMM_SELF, path, MPI_MODE_RDWR | MPI_MODE_CREATE, MPI_INFO_NULL, &file));
    CALL(MPI_File_set_atomicity(file, 1));
    for (int i = 0;; i++) {
        memset(bytes, 'a' + i % 26, BYTES);
        CALL(MPI_File_write_at(file, 0, bytes, BYTES, MPI_BYTE, MPI_STATUS_IGNORE));
        CALL(MPI_File_write_shared(file, bytes, 1, MPI_BYTE, MPI_STATUS_IGNORE));
        if (i == 0) {
            puts("writing");
            fflush(stdout);
        }
    }
}

static const struct {
    const char *name;
    void (*run)(const char *);
} CASES[] = {
    {"offsets", test_offsets}, {"views", test_views},   {"once", test_once}, {"holes", test_holes},
    {"shared", test_shared},   {"atomic", test_atomic}, {"wholes", test_wholes},
    {"errors", test_errors},   {"many", test_many},     {"large_counts", test_large_counts},
    {"count", test_count},     {"killed", test_killed},
};

int main(int argc, char **argv)
{
    int level;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_SINGLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_File_set_errhandler(MPI_FILE_NULL, MPI_ERRORS_RETURN);
    bool known = false;
    for (size_t i = 0; argc == 3 && i < sizeof CASES / sizeof *CASES; i++)
        if (strcmp(argv[1], CASES[i].name) == 0) {
            known = true;
            CASES[i].run(argv[2]);
        }
    if (!known)
        FAIL("usage: %s CASE FILE", argv[0]);
    MPI_Finalize();
    return 0;
}
