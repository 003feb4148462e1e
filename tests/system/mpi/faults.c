/* Small accesses whose servers fail or are slow, at the call that the test says.
 *
 * usage: faults CASE FILE, one rank, each case as its function says */
#include "between.h"
#include "check.h"

#define ROW 480
/* More than are sent at once before others are kept, and before what follows is read. */
#define ROWS 60

static MPI_File file;

/* What touches row `row` fails from now on. */
static void fail_at_row(int row, int number)
{
    fails_from = (int64_t)row * ROW;
    fails_to = fails_from + ROW;
    fails_with = number;
    failed = 0;
}

/* ---- Rows ---- */

static void write_row(int row)
{
    unsigned char bytes[ROW];
    memset(bytes, 1 + row % 255, ROW);
    CALL(MPI_File_write_at(file, (MPI_Offset)row * ROW, bytes, ROW, MPI_BYTE, MPI_STATUS_IGNORE));
}

static void write_rows(void)
{
    for (int row = 0; row < ROWS; row++)
        write_row(row);
}

/* With a gap behind each. */
static void write_every_other_row(void)
{
    for (int row = 0; row < 2 * ROWS; row += 2)
        write_row(row);
}

static int read_at(MPI_Offset offset, unsigned char *bytes, int length)
{
    MPI_Status status;
    int count;
    CALL(MPI_File_read_at(file, offset, bytes, length, MPI_BYTE, &status));
    CALL(MPI_Get_count(&status, MPI_BYTE, &count));
    return count;
}

static void check_row(int row)
{
    unsigned char bytes[ROW];
    CHECK(read_at((MPI_Offset)row * ROW, bytes, ROW) == ROW);
    for (int i = 0; i < ROW; i++)
        CHECK(bytes[i] == 1 + row % 255);
}

/* A file of so many bytes of this value, in whole; nothing is kept of it. */
static void fill(MPI_Offset from, int length, int value)
{
    unsigned char *bytes = malloc(length);
    memset(bytes, value, length);
    CALL(MPI_File_write_at(file, from, bytes, length, MPI_BYTE, MPI_STATUS_IGNORE));
    free(bytes);
}

/* ---- Reading ahead ---- */

enum { PAGE = 4096, BORDER = 1 << 20, LARGE = 512 << 10 };

/* Reads up to the border, so often that what lies behind it is read ahead. */
static void read_up_to_border(void)
{
    unsigned char bytes[PAGE];
    for (int page = 20; page > 0; page--) {
        CHECK(read_at(BORDER - page * PAGE, bytes, PAGE) == PAGE);
        CHECK(bytes[0] == 1 && bytes[PAGE - 1] == 1);
    }
}

/* What is read ahead while a write is under way is not what a read behind the write finds. */
static void test_write_under_way(void)
{
    unsigned char *new = malloc(LARGE), bytes[PAGE];
    MPI_Request request;
    memset(new, 2, LARGE);
    fill(0, BORDER, 1);
    fill(BORDER, LARGE / 2 - 1, 1);
    hold(true);
    CALL(MPI_File_iwrite_at(file, BORDER, new, LARGE, MPI_BYTE, &request));
    wait_until_held();
    read_up_to_border();
    hold(false);
    CALL(MPI_Wait(&request, MPI_STATUS_IGNORE));
    for (int page = 0; page < 10; page++) {
        CHECK(read_at(BORDER + page * PAGE, bytes, PAGE) == PAGE);
        CHECK(bytes[0] == 2 && bytes[PAGE - 1] == 2);
    }
    free(new);
}

static void *write_together(void *new)
{
    CALL(MPI_File_write_at_all(file, BORDER, new, LARGE, MPI_BYTE, MPI_STATUS_IGNORE));
    return NULL;
}

/* The same for a collective write, by two phases: others write for this rank. */
static void test_phases_under_way(void)
{
    unsigned char *new = malloc(LARGE), got;
    MPI_Info info;
    pthread_t thread;
    CALL(MPI_Info_create(&info));
    CALL(MPI_Info_set(info, "romio_cb_write", "enable"));
    CALL(MPI_File_set_info(file, info));
    CALL(MPI_Info_free(&info));
    memset(new, 2, LARGE);
    fill(0, BORDER, 1);
    fill(BORDER, LARGE / 2 - 1, 1);
    hold(true);
    CHECK(pthread_create(&thread, NULL, write_together, new) == 0);
    wait_until_held();
    read_up_to_border();
    hold(false);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(read_at(BORDER, &got, 1) == 1);
    CHECK(got == 2);
    free(new);
}

static void *cut(void *unused)
{
    CALL(MPI_File_set_size(file, BORDER));
    return unused;
}

/* Nor what was cut off meanwhile. */
static void test_cut_under_way(void)
{
    unsigned char bytes[PAGE];
    pthread_t thread;
    fill(0, BORDER, 1);
    fill(BORDER, LARGE / 2 - 1, 1);
    hold(true);
    CHECK(pthread_create(&thread, NULL, cut, NULL) == 0);
    wait_until_held();
    read_up_to_border();
    hold(false);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(read_at(BORDER, bytes, PAGE) == 0);
}

/* A read is answered though what lies behind it cannot be read; and that is asked for once. */
static void test_lost_behind(void)
{
    unsigned char bytes[ROW];
    write_rows();
    CALL(MPI_File_sync(file));
    fail_at_row(50, EIO);
    for (int row = 0; row < 50; row++)
        check_row(row);
    CHECK(failed == 1);
    REFUSED(MPI_File_read_at(file, 50 * ROW, bytes, ROW, MPI_BYTE, MPI_STATUS_IGNORE), MPI_ERR_IO);
    fails_with = 0;
    reads = 0;
    for (int row = 0; row < ROWS; row++)
        check_row(row);
    CHECK(reads == ROWS);
    /* It is tried again behind a sync. */
    CALL(MPI_File_sync(file));
    reads = 0;
    for (int row = 0; row < ROWS; row++)
        check_row(row);
    CHECK(reads < ROWS / 2);
}

/* Reads `often` times `pieces` pieces of `length` bytes, each `every` bytes behind the one before. */
static void read_pieces(int often, int pieces, int length, MPI_Aint every)
{
    MPI_Datatype piece, spread;
    unsigned char *bytes = malloc((size_t)pieces * length);
    CALL(MPI_Type_contiguous(length, MPI_BYTE, &piece));
    CALL(MPI_Type_create_resized(piece, 0, every, &spread));
    CALL(MPI_Type_commit(&spread));
    CALL(MPI_File_set_view(file, 0, MPI_BYTE, spread, "native", MPI_INFO_NULL));
    CALL(MPI_File_sync(file));
    reads = 0;
    wanted = 0;
    for (int i = 0; i < often; i++)
        CHECK(read_at((MPI_Offset)i * pieces * length, bytes, pieces * length) == pieces * length);
    CALL(MPI_Type_free(&piece));
    CALL(MPI_Type_free(&spread));
    free(bytes);
}

/* What is not worth it is not read ahead: then the servers are asked for what the program wants, and for nothing else. */
static void test_nothing_in_vain(void)
{
    enum { KIB = 1024, OFTEN = 200 };
    CALL(MPI_File_set_size(file, (MPI_Offset)OFTEN * 1600 * KIB));
    /* Columns of an array, single numbers, and the rows of one of many ranks. */
    read_pieces(OFTEN, 16, KIB, 100 * KIB);
    CHECK(reads == OFTEN && wanted == OFTEN * 16 * KIB);
    read_pieces(OFTEN, 1, 8, 100 * KIB);
    CHECK(reads == OFTEN && wanted == OFTEN * 8);
    read_pieces(OFTEN, 1, ROW, 64 * ROW);
    CHECK(reads == OFTEN && wanted == OFTEN * ROW);
    /* Every other row, and every other piece of several: that is worth it. */
    read_pieces(OFTEN, 1, ROW, 2 * ROW);
    CHECK(reads < OFTEN / 4 && wanted < 4 * OFTEN * ROW);
    read_pieces(OFTEN, 16, KIB, 2 * KIB);
    CHECK(reads < OFTEN / 4 && wanted < 4 * OFTEN * 16 * KIB);
}

/* ---- Errors of what was kept ---- */

static int heard, heard_class;

static void handler(MPI_File *of, int *code, ...)
{
    heard += *of == file;
    MPI_Error_class(*code, &heard_class);
}

/* The file's handler is called with an error that only the close finds, once. */
static void test_close(void)
{
    MPI_Errhandler own;
    MPI_File same = file;
    CALL(MPI_File_create_errhandler(handler, &own));
    CALL(MPI_File_set_errhandler(file, own));
    write_rows();
    fail_at_row(40, ENOSPC);
    REFUSED(MPI_File_close(&same), MPI_ERR_NO_SPACE);
    CHECK(same == MPI_FILE_NULL);
    CHECK(heard == 1 && heard_class == MPI_ERR_NO_SPACE);
    CALL(MPI_Errhandler_free(&own));
}

/* A row that cannot be written takes no other with it, in whichever order they were. */
static void test_one_row(void)
{
    for (int backwards = 0; backwards < 2; backwards++) {
        CALL(MPI_File_set_size(file, 0));
        for (int i = 0; i < ROWS; i++)
            write_row(2 * (backwards ? ROWS - 1 - i : i));
        fail_at_row(2 * 30, EIO);
        REFUSED(MPI_File_sync(file), MPI_ERR_IO);
        CALL(MPI_File_sync(file));
        fails_with = 0;
        for (int row = 0; row < ROWS; row++)
            if (row != 30)
                check_row(2 * row);
    }
}

/* Nor do rows without gaps between them that lie in other chunks. */
static void test_one_chunk(void)
{
    enum { CHUNK = 64 << 10, BEGIN = 2 * CHUNK, END = 3 * CHUNK, MANY = 600 };
    for (int row = 0; row < MANY; row++)
        write_row(row);
    fail_at_row(300, EIO);
    CHECK(fails_from > BEGIN && fails_to < END && END < MANY * ROW);
    REFUSED(MPI_File_sync(file), MPI_ERR_IO);
    fails_with = 0;
    for (int row = 0; row < MANY; row++)
        if ((row + 1) * ROW <= BEGIN || row * ROW >= END)
            check_row(row);
}

/* A row that is in no file is refused by its own call. */
static void test_beyond(void)
{
    unsigned char bytes[ROW] = {0};
    MPI_Offset most = (MPI_Offset)1 << 62;
    write_rows();
    CHECK(MPI_File_write_at(file, most, bytes, ROW, MPI_BYTE, MPI_STATUS_IGNORE) != MPI_SUCCESS);
    write_rows();
    CHECK(MPI_File_write_at(file, most - ROW + 1, bytes, ROW, MPI_BYTE, MPI_STATUS_IGNORE) != MPI_SUCCESS);
    write_rows();
    CHECK(MPI_File_write_at(file, INT64_MAX - 1, bytes, ROW, MPI_BYTE, MPI_STATUS_IGNORE) != MPI_SUCCESS);
    CALL(MPI_File_sync(file));
    for (int row = 0; row < ROWS; row++)
        check_row(row);
}

/* A server that says nothing is waited for twice, not once for each row. */
static void test_silent(void)
{
    write_every_other_row();
    fail_at_row(60, ETIMEDOUT);
    fails_to = INT64_MAX;
    REFUSED(MPI_File_sync(file), MPI_ERR_IO);
    CHECK(failed == 2);
    fails_with = 0;
    for (int row = 0; row < 60; row += 2)
        check_row(row);
}

/* Whatever else a call finds wrong, what was kept and is lost is told by it, for nobody tells it again. */
static void test_told(void)
{
    MPI_Info info;
    MPI_Offset size, at;
    unsigned char byte;
    CALL(MPI_Info_create(&info));
    CALL(MPI_Info_set(info, "ind_wr_buffer_size", "65536"));
    fail_at_row(40, EIO);
    write_rows();
    REFUSED(MPI_File_preallocate(file, 1000), MPI_ERR_IO);
    REFUSED(MPI_File_preallocate(file, 1000), MPI_ERR_NO_SPACE);
    write_rows();
    REFUSED(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "nothing", info), MPI_ERR_IO);
    REFUSED(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "nothing", info), MPI_ERR_UNSUPPORTED_DATAREP);
    write_rows();
    REFUSED(MPI_File_set_info(file, info), MPI_ERR_IO);
    CALL(MPI_File_set_info(file, info));
    write_rows();
    REFUSED(MPI_File_read_at(file, 0, &byte, 1, MPI_BYTE, MPI_STATUS_IGNORE), MPI_ERR_IO);
    CALL(MPI_File_read_at(file, 0, &byte, 1, MPI_BYTE, MPI_STATUS_IGNORE));
    write_rows();
    REFUSED(MPI_File_get_size(file, &size), MPI_ERR_IO);
    CALL(MPI_File_get_size(file, &size));
    write_rows();
    REFUSED(MPI_File_seek(file, 0, MPI_SEEK_END), MPI_ERR_IO);
    CALL(MPI_File_get_position(file, &at));
    CHECK(at == 0);
    write_rows();
    REFUSED(MPI_File_seek_shared(file, 0, MPI_SEEK_END), MPI_ERR_IO);
    CALL(MPI_File_seek_shared(file, 0, MPI_SEEK_END));
    write_rows();
    REFUSED(MPI_File_set_atomicity(file, 1), MPI_ERR_IO);
    CALL(MPI_File_set_atomicity(file, 0));
    CALL(MPI_Info_free(&info));
    fails_with = 0;
}

/* A full pool is one for the calls, too, that ask for the size; and no sentence about something else is told with it. */
static void test_class(void)
{
    char text[MPI_MAX_ERROR_STRING];
    MPI_Offset size;
    MPI_File none;
    int length, class, code = MPI_File_open(MPI_COMM_SELF, "ramlace:/missing-file", MPI_MODE_RDONLY, MPI_INFO_NULL, &none);
    CHECK(code != MPI_SUCCESS);
    write_rows();
    full = true;
    code = MPI_File_get_size(file, &size);
    CALL(MPI_Error_class(code, &class));
    CALL(MPI_Error_string(code, text, &length));
    CHECK(class == MPI_ERR_NO_SPACE && strstr(text, "missing-file") == NULL);
    full = false;
    write_rows();
    full = true;
    REFUSED(MPI_File_seek(file, 0, MPI_SEEK_END), MPI_ERR_NO_SPACE);
    full = false;
}

/* A read that has not begun, for what was kept could not be written, does not move the pointer. */
static void test_pointer(void)
{
    unsigned char *bytes = malloc(2 * LARGE);
    MPI_Request request;
    MPI_Offset at;
    fill(0, 2 * LARGE, 3);
    CALL(MPI_File_seek(file, 100, MPI_SEEK_SET));
    write_rows();
    fail_at_row(40, EIO);
    REFUSED(MPI_File_iread(file, bytes, LARGE, MPI_BYTE, &request), MPI_ERR_IO);
    fails_with = 0;
    CALL(MPI_File_get_position(file, &at));
    CHECK(at == 100);
    CALL(MPI_File_iread(file, bytes, LARGE, MPI_BYTE, &request));
    CALL(MPI_Wait(&request, MPI_STATUS_IGNORE));
    CALL(MPI_File_get_position(file, &at));
    CHECK(at == 100 + LARGE);
    free(bytes);
}

/* What collective writes have kept and is lost is told by the next collective read, or by a sync; the read has not begun. */
static void test_together(void)
{
    unsigned char bytes[ROW] = {7};
    MPI_Offset at;
    for (int turn = 0; turn < 2; turn++) {
        CALL(MPI_File_seek(file, 0, MPI_SEEK_SET));
        fail_at_row(40, EIO);
        for (int row = 0; row < ROWS; row++)
            CALL(MPI_File_write_all(file, bytes, ROW, MPI_BYTE, MPI_STATUS_IGNORE));
        CHECK(failed == 0);
        if (turn == 0)
            REFUSED(MPI_File_read_all(file, bytes, ROW, MPI_BYTE, MPI_STATUS_IGNORE), MPI_ERR_IO);
        else
            REFUSED(MPI_File_sync(file), MPI_ERR_IO);
        CALL(MPI_File_get_position(file, &at));
        CHECK(at == ROWS * ROW);
        fails_with = 0;
        CALL(MPI_File_seek(file, 39 * ROW, MPI_SEEK_SET));
        CALL(MPI_File_read_all(file, bytes, ROW, MPI_BYTE, MPI_STATUS_IGNORE));
        CHECK(bytes[0] == 7);
        CALL(MPI_File_sync(file));
    }
}

/* MPI ends while the file is open: what can be written is, and the rest is reported on standard error. */
static void test_left_open(void)
{
    write_every_other_row();
    fail_at_row(40, EIO);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = {
        {"write_under_way", test_write_under_way}, {"cut_under_way", test_cut_under_way},
        {"phases_under_way", test_phases_under_way}, {"lost_behind", test_lost_behind},
        {"nothing_in_vain", test_nothing_in_vain}, {"close", test_close}, {"one_row", test_one_row},
        {"one_chunk", test_one_chunk}, {"beyond", test_beyond}, {"silent", test_silent}, {"told", test_told},
        {"class", test_class}, {"pointer", test_pointer}, {"together", test_together},
        {"left_open", test_left_open},
    };
    int level;
    CHECK(argc == 3);
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    CHECK(level == MPI_THREAD_MULTIPLE);
    CALL(MPI_File_open(MPI_COMM_SELF, argv[2], MPI_MODE_RDWR | MPI_MODE_CREATE, MPI_INFO_NULL, &file));
    size_t chosen = 0, all = sizeof cases / sizeof *cases;
    while (chosen < all && strcmp(argv[1], cases[chosen].name) != 0)
        chosen++;
    CHECK(chosen < all);
    cases[chosen].run();
    if (cases[chosen].run != test_close && cases[chosen].run != test_left_open)
        CALL(MPI_File_close(&file));
    MPI_Finalize();
    return 0;
}
