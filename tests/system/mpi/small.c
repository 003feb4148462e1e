/* Small accesses, one after the other: what is put together must look as if it had not been.
 *
 * usage: small CASE FILE [NUMBER], each case as its function says */
#include "check.h"

#include <stdbool.h>
#include <stdint.h>
#include <unistd.h>

/* More than are sent at once before others are kept. */
#define MANY 2000
#define ROW 480

static int rank, ranks;
/* Rows are written and read by collective calls. */
static bool together;

static MPI_File open_with(const char *path, int amode, const char *key, const char *value)
{
    MPI_Info info;
    MPI_File file;
    CALL(MPI_Info_create(&info));
    if (key != NULL)
        CALL(MPI_Info_set(info, key, value));
    CALL(MPI_File_open(MPI_COMM_WORLD, path, amode, info, &file));
    CALL(MPI_Info_free(&info));
    return file;
}

static MPI_File open_new(const char *path)
{
    return open_with(path, MPI_MODE_RDWR | MPI_MODE_CREATE, NULL, NULL);
}

static unsigned char byte_of(int owner, int row, int at)
{
    return (unsigned char)(1 + (owner * 31 + row * 7 + at) % 255);
}

/* Row `row` of `owner`: the rows of the ranks take turns. */
static void write_row(MPI_File file, int row)
{
    unsigned char bytes[ROW];
    MPI_Status status;
    int count;
    for (int i = 0; i < ROW; i++)
        bytes[i] = byte_of(rank, row, i);
    MPI_Offset at = ((MPI_Offset)row * ranks + rank) * ROW;
    CALL(together ? MPI_File_write_at_all(file, at, bytes, ROW, MPI_BYTE, &status)
                  : MPI_File_write_at(file, at, bytes, ROW, MPI_BYTE, &status));
    CALL(MPI_Get_count(&status, MPI_BYTE, &count));
    CHECK(count == ROW);
}

static void read_row(MPI_File file, int owner, int row)
{
    unsigned char bytes[ROW];
    MPI_Status status;
    int count;
    MPI_Offset at = ((MPI_Offset)row * ranks + owner) * ROW;
    CALL(together ? MPI_File_read_at_all(file, at, bytes, ROW, MPI_BYTE, &status)
                  : MPI_File_read_at(file, at, bytes, ROW, MPI_BYTE, &status));
    CALL(MPI_Get_count(&status, MPI_BYTE, &count));
    CHECK(count == ROW);
    for (int i = 0; i < ROW; i++)
        CHECK(bytes[i] == byte_of(owner, row, i));
}

static MPI_Offset size_of(MPI_File file)
{
    MPI_Offset size;
    CALL(MPI_File_get_size(file, &size));
    return size;
}

static void sync_all(MPI_File file)
{
    CALL(MPI_File_sync(file));
    MPI_Barrier(MPI_COMM_WORLD);
    CALL(MPI_File_sync(file));
}

/* Rows, row by row, and back by the neighbour; with a hint of NUMBER bytes for both. The test counts messages. */
static void test_rows(const char *path, const char *number)
{
    MPI_Info info;
    MPI_File file;
    char value[32];
    int found;
    CALL(MPI_Info_create(&info));
    CALL(MPI_Info_set(info, "ind_wr_buffer_size", number));
    CALL(MPI_Info_set(info, "ind_rd_buffer_size", number));
    CALL(MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_RDWR | MPI_MODE_CREATE, info, &file));
    CALL(MPI_Info_free(&info));
    CALL(MPI_File_get_info(file, &info));
    CALL(MPI_Info_get(info, "ind_wr_buffer_size", sizeof value - 1, value, &found));
    CHECK(found && strcmp(value, number) == 0);
    CALL(MPI_Info_get(info, "ind_rd_buffer_size", sizeof value - 1, value, &found));
    CHECK(found && strcmp(value, number) == 0);
    CALL(MPI_Info_free(&info));
    for (int row = 0; row < MANY; row++)
        write_row(file, row);
    sync_all(file);
    CHECK(size_of(file) == (MPI_Offset)MANY * ranks * ROW);
    for (int row = 0; row < MANY; row++)
        read_row(file, (rank + 1) % ranks, row);
    CALL(MPI_File_close(&file));
}

/* Each call that promises something about bytes finds those that were kept. */
static void test_promises(const char *path)
{
    MPI_File file = open_new(path), other;
    MPI_Offset end = (MPI_Offset)MANY * ranks * ROW, at;
    int next = (rank + 1) % ranks;
    /* A few writes and a barrier. */
    for (int row = 0; row < 8; row++)
        write_row(file, row);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int row = 0; row < 8; row++)
        read_row(file, next, row);
    MPI_Barrier(MPI_COMM_WORLD);
    /* Its own reads, and the size. */
    for (int row = 0; row < MANY; row++)
        write_row(file, row);
    read_row(file, rank, MANY - 1);
    read_row(file, rank, 0);
    for (int row = 0; row < MANY; row++)
        write_row(file, row);
    CHECK(size_of(file) > end - ranks * ROW);
    for (int row = 0; row < MANY; row++)
        write_row(file, row);
    CALL(MPI_File_seek(file, 0, MPI_SEEK_END));
    CALL(MPI_File_get_position(file, &at));
    CHECK(at > end - ranks * ROW);
    /* A cut comes behind what all have written before. */
    for (int row = 0; row < MANY; row++)
        write_row(file, row);
    CALL(MPI_File_set_size(file, 100));
    CHECK(size_of(file) == 100);
    MPI_Barrier(MPI_COMM_WORLD);
    /* Atomic mode: at once. */
    for (int row = 0; row < 100; row++)
        write_row(file, row);
    CALL(MPI_File_set_atomicity(file, 1));
    for (int row = 0; row < 100; row++)
        read_row(file, next, row);
    for (int row = 100; row < 200; row++)
        write_row(file, row);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int row = 100; row < 200; row++)
        read_row(file, next, row);
    CALL(MPI_File_set_atomicity(file, 0));
    /* A close, for those that open it again. */
    for (int row = 200; row < MANY; row++)
        write_row(file, row);
    CALL(MPI_File_close(&file));
    other = open_with(path, MPI_MODE_RDONLY, NULL, NULL);
    for (int row = 0; row < MANY; row++)
        read_row(other, next, row);
    CALL(MPI_File_close(&other));
}

/* Collective reads find what was written by collective calls before, without a sync. */
static void test_meets(const char *path)
{
    enum { ROWS = 100 };
    MPI_File file = open_new(path);
    unsigned char row[ROW], got;
    int last = ranks - 1;
    together = true;
    for (int turn = 0; turn < 3; turn++) {
        for (int i = 0; i < ROWS; i++)
            write_row(file, i + turn);
        for (int i = 0; i < ROWS; i++)
            read_row(file, (rank + 1) % ranks, i + turn);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    /* Rows of the last rank, in calls in which the others write nothing, and have the next rows read ahead. */
    for (int turn = 0; turn < 4; turn++) {
        for (int i = 0; i < ROWS / 2; i++)
            CALL(MPI_File_read_at_all(file, (MPI_Offset)i * ROW, row, ROW, MPI_BYTE, MPI_STATUS_IGNORE));
        memset(row, 200 + turn, ROW);
        for (int i = 0; i < (turn % 2 ? 3 : ROWS); i++) {
            MPI_Offset at = (MPI_Offset)(ROWS / 2 + i) * ROW;
            int count = rank == last ? ROW : 0;
            CALL(MPI_File_write_at_all(file, at, row, count, MPI_BYTE, MPI_STATUS_IGNORE));
        }
        MPI_Barrier(MPI_COMM_WORLD);
        for (int i = 0; i < 3; i++) {
            CALL(MPI_File_read_at_all(file, (MPI_Offset)(ROWS / 2 + i) * ROW, &got, 1, MPI_BYTE, MPI_STATUS_IGNORE));
            CHECK(got == 200 + turn);
        }
        MPI_Barrier(MPI_COMM_WORLD);
    }
    /* With a split call and a pointer, and where a rank's arguments are wrong. */
    for (int i = 0; i < ROWS; i++)
        write_row(file, i);
    if (rank == last)
        CHECK(MPI_File_read_at_all(file, -1, row, ROW, MPI_BYTE, MPI_STATUS_IGNORE) != MPI_SUCCESS);
    else
        read_row(file, last, ROWS - 1);
    for (int i = 0; i < ROWS; i++)
        write_row(file, i + 1);
    CALL(MPI_File_seek(file, ((MPI_Offset)ROWS * ranks + (rank + 1) % ranks) * ROW, MPI_SEEK_SET));
    CALL(MPI_File_read_all_begin(file, row, ROW, MPI_BYTE));
    CALL(MPI_File_read_all_end(file, row, MPI_STATUS_IGNORE));
    for (int i = 0; i < ROW; i++)
        CHECK(row[i] == byte_of((rank + 1) % ranks, ROWS, i));
    CALL(MPI_File_close(&file));
}

/* A rank that reads a place again sees what others have written there meanwhile, and behind a sync all of it. */
static void test_fresh(const char *path)
{
    MPI_File file = open_new(path);
    unsigned char got;
    for (int turn = 0; turn < 3; turn++) {
        unsigned char one = (unsigned char)(100 + turn);
        unsigned char *whole = malloc(MANY);
        memset(whole, one, MANY);
        if (rank == 0)
            CALL(MPI_File_write_at(file, 0, whole, MANY, MPI_BYTE, MPI_STATUS_IGNORE));
        MPI_Barrier(MPI_COMM_WORLD);
        for (int i = 0; i < MANY; i++) {
            CALL(MPI_File_read_at(file, i, &got, 1, MPI_BYTE, MPI_STATUS_IGNORE));
            CHECK(got == one);
        }
        MPI_Barrier(MPI_COMM_WORLD);
        /* In the middle of reading on. */
        for (int i = 0; i < MANY / 2; i++)
            CALL(MPI_File_read_at(file, i, &got, 1, MPI_BYTE, MPI_STATUS_IGNORE));
        MPI_Barrier(MPI_COMM_WORLD);
        memset(whole, 200, MANY);
        if (rank == 0)
            CALL(MPI_File_write_at(file, 0, whole, MANY, MPI_BYTE, MPI_STATUS_IGNORE));
        sync_all(file);
        for (int i = MANY / 2; i < MANY; i++) {
            CALL(MPI_File_read_at(file, i, &got, 1, MPI_BYTE, MPI_STATUS_IGNORE));
            CHECK(got == 200);
        }
        MPI_Barrier(MPI_COMM_WORLD);
        free(whole);
    }
    CALL(MPI_File_close(&file));
}

/* Whether the file tells that it is read in no order. */
static bool tells_random(MPI_File file)
{
    char style[32] = "";
    MPI_Info info;
    int found;
    CALL(MPI_File_get_info(file, &info));
    CALL(MPI_Info_get(info, "access_style", sizeof style - 1, style, &found));
    CALL(MPI_Info_free(&info));
    CHECK(!found || strcmp(style, "random") == 0);
    return found;
}

/* Rows are read in their order, while a hint says that they are not, and then that they are. The test counts those ahead. */
static void test_style(const char *path)
{
    static const char *const styles[] = {"read_once, random", "sequential"};
    MPI_Info info;
    MPI_File file = open_with(path, MPI_MODE_RDWR | MPI_MODE_CREATE, "access_style", styles[0]);
    for (int row = 0; row < 100; row++)
        write_row(file, row);
    for (int i = 0; i < 2; i++) {
        CALL(MPI_Info_create(&info));
        CALL(MPI_Info_set(info, "access_style", styles[i]));
        CALL(MPI_File_set_info(file, info));
        CALL(MPI_Info_free(&info));
        CHECK(tells_random(file) == (i == 0));
        CALL(MPI_File_sync(file));
        for (int row = 0; row < 100; row++)
            read_row(file, rank, row);
    }
    CALL(MPI_File_close(&file));
}

static uint64_t state;

static unsigned below(unsigned limit)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (unsigned)((state >> 11) % limit);
}

/* One access at an offset or by the pointer, from or to memory in one piece or with every other byte; the bytes it moved. */
static int move(MPI_File file, bool writes, unsigned at, unsigned char *bytes, unsigned length)
{
    static unsigned char spread[2 * 1024];
    bool in_pieces = below(4) == 0;
    MPI_Datatype type;
    MPI_Status status;
    int count;
    CALL(MPI_Type_vector((int)length, 1, in_pieces ? 2 : 1, MPI_BYTE, &type));
    CALL(MPI_Type_commit(&type));
    for (unsigned i = 0; i < length && in_pieces; i++)
        spread[2 * i] = bytes[i];
    void *memory = in_pieces ? spread : bytes;
    if (below(3) == 0) {
        CALL(MPI_File_seek(file, at, MPI_SEEK_SET));
        CALL(writes ? MPI_File_write(file, memory, 1, type, &status) : MPI_File_read(file, memory, 1, type, &status));
    } else {
        CALL(writes ? MPI_File_write_at(file, at, memory, 1, type, &status)
                    : MPI_File_read_at(file, at, memory, 1, type, &status));
    }
    for (unsigned i = 0; i < length && in_pieces; i++)
        bytes[i] = spread[2 * i];
    CALL(MPI_Type_free(&type));
    CALL(MPI_Get_elements(&status, MPI_BYTE, &count));
    return count;
}

/* A view with or without gaps, in either representation: of bytes. */
static void view_somehow(MPI_File file)
{
    static const int gaps[] = {0, 1, 300};
    int length = 1 + (int)below(900), gap = gaps[below(3)];
    MPI_Datatype piece, tile;
    CALL(MPI_Type_contiguous(length, MPI_BYTE, &piece));
    CALL(MPI_Type_create_resized(piece, 0, length + gap, &tile));
    CALL(MPI_Type_commit(&tile));
    CALL(MPI_File_set_view(file, below(100), MPI_BYTE, tile, below(3) ? "native" : "external32", MPI_INFO_NULL));
    CALL(MPI_Type_free(&piece));
    CALL(MPI_Type_free(&tile));
}

/* Random small writes and reads of one rank, many of each in a row, beside an image in memory. NUMBER is the seed. */
static void test_image(const char *path, const char *number)
{
    enum { BYTES = 200000, LENGTH_MAX = 700 };
    static unsigned char image[BYTES], bytes[LENGTH_MAX], expected[LENGTH_MAX];
    static const char *const rooms[] = {"1048576", "0", "5000", "40000", "700"};
    unsigned end = 0;
    MPI_Offset last;
    state = strtoull(number, NULL, 10) * 2654435761u + 1;
    MPI_File file = open_with(path, MPI_MODE_RDWR | MPI_MODE_CREATE, "ind_wr_buffer_size", rooms[below(5)]);
    view_somehow(file);
    for (step = 0; step < 400; step++) {
        bool writes = below(2), walks = below(4) > 0;
        unsigned at = below(BYTES / 2), often = below(60);
        if (below(20) == 0)
            CALL(MPI_File_sync(file));
        for (unsigned i = 0; i < often; i++) {
            unsigned length = 1 + below(LENGTH_MAX);
            if (!walks)
                at = below(BYTES / 2);
            if (writes) {
                for (unsigned k = 0; k < length; k++)
                    image[at + k] = bytes[k] = (unsigned char)below(256);
                end = end > at + length ? end : at + length;
            } else {
                memset(bytes, 0, sizeof bytes);
                memcpy(expected, image + at, length);
            }
            int count = move(file, writes, at, bytes, length);
            unsigned there = writes ? length : at >= end ? 0 : end - at < length ? end - at : length;
            CHECK(count == (int)there);
            CHECK(writes || memcmp(bytes, expected, there) == 0);
            at += length + (below(3) ? 0 : below(900));
        }
    }
    CALL(MPI_File_get_byte_offset(file, end - 1, &last));
    CHECK(size_of(file) == last + 1);
    CALL(MPI_File_close(&file));
}

/* A pool that is full: some call up to the close says so, and none says that all is well with what is not there. */
static void test_full(const char *path)
{
    MPI_File file = open_new(path);
    int error = MPI_SUCCESS, class = MPI_SUCCESS;
    unsigned char bytes[ROW] = {1};
    int64_t row = 0;
    for (; row < 400000 && error == MPI_SUCCESS; row++)
        error = MPI_File_write_at(file, row * 2 * ROW, bytes, ROW, MPI_BYTE, MPI_STATUS_IGNORE);
    if (error == MPI_SUCCESS)
        error = MPI_File_sync(file);
    CHECK(error != MPI_SUCCESS);
    MPI_Error_class(error, &class);
    CHECK(class == MPI_ERR_NO_SPACE);
    /* It was said once. */
    CALL(MPI_File_sync(file));
    /* All that was sent before that is there: no more rows are kept than four buffers have. */
    const int64_t kept_max = 4 * 4096;
    CHECK(row > kept_max);
    for (int64_t before = 0; before < row - kept_max; before++) {
        bytes[0] = 0;
        CALL(MPI_File_read_at(file, before * 2 * ROW, bytes, ROW, MPI_BYTE, MPI_STATUS_IGNORE));
        CHECK(bytes[0] == 1);
    }
    CALL(MPI_File_close(&file));
}

/* The end of the file is behind what all ranks have written, also where a rank has kept it. */
static void test_trailer(const char *path)
{
    MPI_File file = open_new(path);
    MPI_Offset at, rows = (MPI_Offset)100 * ROW;
    unsigned char trailer[ROW], got;
    memset(trailer, 255, ROW);
    if (rank == ranks - 1)
        for (int row = 0; row < 100; row++) {
            unsigned char bytes[ROW] = {1};
            CALL(MPI_File_write_at(file, (MPI_Offset)row * ROW, bytes, ROW, MPI_BYTE, MPI_STATUS_IGNORE));
        }
    CALL(MPI_File_seek_shared(file, 0, MPI_SEEK_END));
    CALL(MPI_File_get_position_shared(file, &at));
    CHECK(at == rows);
    CALL(MPI_File_write_ordered(file, trailer, ROW, MPI_BYTE, MPI_STATUS_IGNORE));
    sync_all(file);
    CHECK(size_of(file) == rows + (MPI_Offset)ranks * ROW);
    for (int row = 0; row < 100 + ranks; row++) {
        CALL(MPI_File_read_at(file, (MPI_Offset)row * ROW, &got, 1, MPI_BYTE, MPI_STATUS_IGNORE));
        CHECK(got == (row < 100 ? 1 : 255));
    }
    CALL(MPI_File_close(&file));
}

/* Keeps rows of `value` over this rank's part of the file, and writes one of them again, by a call of every kind: the later
 * write is what remains. Other limits, another view and preallocation in between change nothing. */
static void test_over(const char *path)
{
    enum { ROWS = 40, WAYS = 9 };
    static const char *const rooms[] = {"4096", "0", "1048576"};
    MPI_File file = open_new(path);
    MPI_Offset mine = (MPI_Offset)rank * ROWS * ROW;
    unsigned char kept[ROW], later[ROW], got[ROW];
    MPI_Request request;
    MPI_Info info;
    for (int way = 0; way < WAYS; way++) {
        memset(kept, 10 + way, ROW);
        memset(later, 100 + way, ROW);
        /* The shared pointer gives the ranks their places in no order: all write the same there. */
        MPI_Offset again = way == 2 || way == 3 ? 0 : mine + 20 * ROW;
        CALL(MPI_File_seek_shared(file, 0, MPI_SEEK_SET));
        for (int row = 0; row < ROWS; row++)
            CALL(MPI_File_write_at(file, mine + row * ROW, kept, ROW, MPI_BYTE, MPI_STATUS_IGNORE));
        if (way == 2 || way == 3)
            sync_all(file);
        if (way == 2 || way == 3)
            for (int row = ROWS / 2; row < ROWS; row++)
                CALL(MPI_File_write_at(file, mine + row * ROW, kept, ROW, MPI_BYTE, MPI_STATUS_IGNORE));
        if (way == 0) {
            CALL(MPI_File_write_at(file, again, later, ROW, MPI_BYTE, MPI_STATUS_IGNORE));
        } else if (way == 1) {
            CALL(MPI_File_write_at_all(file, again, later, ROW, MPI_BYTE, MPI_STATUS_IGNORE));
        } else if (way == 2) {
            CALL(MPI_File_write_shared(file, later, ROW, MPI_BYTE, MPI_STATUS_IGNORE));
        } else if (way == 3) {
            CALL(MPI_File_write_ordered(file, later, ROW, MPI_BYTE, MPI_STATUS_IGNORE));
        } else if (way == 4) {
            CALL(MPI_File_iwrite_at(file, again, later, ROW, MPI_BYTE, &request));
            CALL(MPI_Wait(&request, MPI_STATUS_IGNORE));
        } else if (way == 5) {
            CALL(MPI_File_preallocate(file, (MPI_Offset)ROWS * ranks * ROW));
            CALL(MPI_File_write_at(file, again, later, ROW, MPI_BYTE, MPI_STATUS_IGNORE));
        } else {
            CALL(MPI_Info_create(&info));
            CALL(MPI_Info_set(info, "ind_wr_buffer_size", rooms[way - 6]));
            if (way == 6)
                CALL(MPI_File_set_info(file, info));
            else
                CALL(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", info));
            CALL(MPI_Info_free(&info));
            CALL(MPI_File_write_at(file, again, later, ROW, MPI_BYTE, MPI_STATUS_IGNORE));
        }
        sync_all(file);
        for (int row = 0; row < ROWS * ranks; row++) {
            int shared = way == 2 || way == 3;
            memset(got, 0, ROW);
            CALL(MPI_File_read_at(file, (MPI_Offset)row * ROW, got, ROW, MPI_BYTE, MPI_STATUS_IGNORE));
            CHECK(got[0] == got[ROW - 1]);
            CHECK(got[0] == ((shared ? row < ranks : row % ROWS == 20) ? 100 + way : 10 + way));
        }
        MPI_Barrier(MPI_COMM_WORLD);
    }
    CALL(MPI_File_close(&file));
}

/* Keeps rows, says so, and is killed. */
static void test_killed(const char *path)
{
    MPI_File file = open_new(path);
    for (int row = 0; row < MANY; row++)
        write_row(file, row);
    puts("kept");
    fflush(stdout);
    pause();
}

/* Two handles of one file in each rank: with a sync of each between them they see each other. */
static void test_two(const char *path)
{
    MPI_File one = open_new(path), other = open_new(path);
    for (int turn = 0; turn < 3; turn++) {
        for (int row = 0; row < 100; row++)
            write_row(turn % 2 ? one : other, row + turn);
        CALL(MPI_File_sync(turn % 2 ? one : other));
        CALL(MPI_File_sync(turn % 2 ? other : one));
        for (int row = 0; row < 100; row++)
            read_row(turn % 2 ? other : one, rank, row + turn);
    }
    CALL(MPI_File_close(&one));
    CALL(MPI_File_close(&other));
}

int main(int argc, char **argv)
{
    CHECK(argc > 2);
    const char *number = argc > 3 ? argv[3] : "0";
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    together = strcmp(argv[1], "rows_together") == 0;
    if (together || strcmp(argv[1], "rows") == 0)
        test_rows(argv[2], number);
    else if (strcmp(argv[1], "meets") == 0)
        test_meets(argv[2]);
    else if (strcmp(argv[1], "promises") == 0)
        test_promises(argv[2]);
    else if (strcmp(argv[1], "fresh") == 0)
        test_fresh(argv[2]);
    else if (strcmp(argv[1], "image") == 0)
        test_image(argv[2], number);
    else if (strcmp(argv[1], "full") == 0)
        test_full(argv[2]);
    else if (strcmp(argv[1], "trailer") == 0)
        test_trailer(argv[2]);
    else if (strcmp(argv[1], "over") == 0)
        test_over(argv[2]);
    else if (strcmp(argv[1], "style") == 0)
        test_style(argv[2]);
    else if (strcmp(argv[1], "killed") == 0)
        test_killed(argv[2]);
    else if (strcmp(argv[1], "two") == 0)
        test_two(argv[2]);
    else
        FAIL("no case %s", argv[1]);
    MPI_Finalize();
    return 0;
}
