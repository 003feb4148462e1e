/* Rows that are sent behind the program, while servers fail or are slow.
 *
 * usage: behind CASE FILE, one rank, each case as its function says */
#include "between.h"
#include "check.h"

#include <unistd.h>

#define ROW 480
/* Rows that are sent one by one before others are kept; and those of a buffer, of which four are full before a program waits. */
#define FIRST 16
#define BUFFER 640
#define BUFFERS 4

static MPI_File file;

const char *ramlace_error(void)
{
    return failed_here ? "as the test wants it" : "";
}

static int write_value(int row, int value)
{
    unsigned char bytes[ROW];
    memset(bytes, value, ROW);
    return MPI_File_write_at(file, (MPI_Offset)row * ROW, bytes, ROW, MPI_BYTE, MPI_STATUS_IGNORE);
}

static int value_of(int row)
{
    return 1 + row % 200;
}

static void write_rows(int from, int to)
{
    for (int row = from; row < to; row++)
        CALL(write_value(row, value_of(row)));
}

static void check_value(int row, int value)
{
    unsigned char bytes[ROW];
    CALL(MPI_File_read_at(file, (MPI_Offset)row * ROW, bytes, ROW, MPI_BYTE, MPI_STATUS_IGNORE));
    for (int i = 0; i < ROW; i++)
        CHECK(bytes[i] == value);
}

static void check_rows(int from, int to)
{
    for (int row = from; row < to; row++)
        check_value(row, value_of(row));
}

/* The first buffer is in flight, and stays so; others wait for it. */
static int write_behind_a_held_one(void)
{
    int rows = FIRST + (BUFFERS - 1) * BUFFER + BUFFER / 2;
    hold(true);
    write_rows(0, rows);
    wait_until_held();
    return rows;
}

/* The program goes on while its rows are in flight, and finds them. */
static void test_goes_on(void)
{
    int rows = write_behind_a_held_one();
    hold(false);
    /* What would be there last. */
    check_rows(rows - 1, rows);
    check_rows(0, rows);
    CALL(MPI_File_sync(file));
}

static int written;

static void *write_many(void *unused)
{
    for (int row = 0; row < FIRST + 3 * BUFFERS * BUFFER; row++) {
        write_rows(row, row + 1);
        __atomic_add_fetch(&written, 1, __ATOMIC_RELEASE);
    }
    return unused;
}

/* But not for ever: what is kept has a limit. */
static void test_limit(void)
{
    pthread_t thread;
    hold(true);
    CHECK(pthread_create(&thread, NULL, write_many, NULL) == 0);
    wait_until_held();
    while (__atomic_load_n(&written, __ATOMIC_ACQUIRE) < FIRST + (BUFFERS - 1) * BUFFER)
        usleep(1000);
    /* Where there is no limit, it has gone far beyond by then. */
    usleep(200000);
    CHECK(__atomic_load_n(&written, __ATOMIC_ACQUIRE) <= FIRST + BUFFERS * BUFFER);
    hold(false);
    CHECK(pthread_join(thread, NULL) == 0);
    check_rows(0, FIRST + 3 * BUFFERS * BUFFER);
}

/* What is written again while it is in flight is what remains. */
static void test_again(void)
{
    enum { AGAIN = FIRST + BUFFER + 100 };
    hold(true);
    write_rows(0, FIRST + BUFFER + BUFFER / 2);
    wait_until_held();
    for (int row = FIRST; row < AGAIN; row++)
        CALL(write_value(row, 250));
    hold(false);
    CALL(MPI_File_sync(file));
    for (int row = FIRST; row < AGAIN; row++)
        check_value(row, 250);
    check_rows(AGAIN, FIRST + BUFFER + BUFFER / 2);
}

static void fail_at(int row, int number)
{
    fails_from = (int64_t)row * ROW;
    fails_to = fails_from + ROW;
    fails_with = number;
}

/* What is lost behind the program is told once, by the next call that fills a buffer or waits, and takes nothing else with it but
 * the rest of its chunk. That call has written nothing. */
static void test_lost(void)
{
    enum { CHUNK = 64 << 10, LOST = FIRST + 200 };
    int rows = write_behind_a_held_one(), all = rows + 2 * BUFFER, told = 0, length;
    char text[MPI_MAX_ERROR_STRING] = "";
    fail_at(LOST, EIO);
    hold(false);
    for (int row = rows; row < all; row++) {
        int code = write_value(row, value_of(row));
        told += code != MPI_SUCCESS;
        if (code == MPI_SUCCESS)
            continue;
        CALL(MPI_Error_string(code, text, &length));
        fails_with = 0;
        REFUSED(code, MPI_ERR_IO);
        CALL(write_value(row, value_of(row)));
    }
    CHECK(told == 1);
    /* MPICH 4.0 shows another string for such codes. */
#ifdef OPEN_MPI
    CHECK(strstr(text, "as the test wants it") != NULL);
#endif
    CALL(MPI_File_sync(file));
    int64_t begin = (int64_t)LOST * ROW / CHUNK * CHUNK;
    for (int row = 0; row < all; row++)
        if ((row + 1) * ROW <= begin || row * ROW >= begin + CHUNK)
            check_rows(row, row + 1);
}

/* A server that says nothing is waited for twice, however much waits for it. */
static void test_silent(void)
{
    write_behind_a_held_one();
    fails_from = 0;
    fails_to = INT64_MAX;
    fails_with = ETIMEDOUT;
    hold(false);
    REFUSED(MPI_File_sync(file), MPI_ERR_IO);
    CHECK(failed == 2);
    fails_with = 0;
    CALL(MPI_File_sync(file));
    write_rows(0, FIRST + BUFFER);
    check_rows(0, FIRST + BUFFER);
}

static int heard;

static void handler(MPI_File *of, int *code, ...)
{
    heard += *of == file && *code != MPI_SUCCESS;
}

/* At the latest by the close. */
static void test_close(void)
{
    MPI_Errhandler own;
    MPI_File same = file;
    CALL(MPI_File_create_errhandler(handler, &own));
    CALL(MPI_File_set_errhandler(file, own));
    write_behind_a_held_one();
    fail_at(FIRST + 200, EIO);
    hold(false);
    REFUSED(MPI_File_close(&same), MPI_ERR_IO);
    CHECK(heard == 1);
    CALL(MPI_Errhandler_free(&own));
}

enum { THREADS = 3, OFTEN = 2000 };

static void *write_in_turns(void *number)
{
    int mine = (int)(intptr_t)number;
    for (int i = 0; i < OFTEN; i++) {
        write_rows(i * THREADS + mine, i * THREADS + mine + 1);
        if (i % 100 == 99)
            check_rows((i - i % 70) * THREADS + mine, (i - i % 70) * THREADS + mine + 1);
    }
    return NULL;
}

/* Threads of one rank that use the same file. */
static void test_threads(void)
{
    pthread_t threads[THREADS];
    MPI_Info info;
    CALL(MPI_Info_create(&info));
    CALL(MPI_Info_set(info, "ind_wr_buffer_size", "5000"));
    CALL(MPI_File_set_info(file, info));
    CALL(MPI_Info_free(&info));
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, write_in_turns, (void *)(intptr_t)i) == 0);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    CALL(MPI_File_sync(file));
    check_rows(0, THREADS * OFTEN);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = {
        {"goes_on", test_goes_on}, {"limit", test_limit}, {"again", test_again}, {"lost", test_lost},
        {"silent", test_silent}, {"close", test_close}, {"threads", test_threads},
    };
    MPI_Info info;
    int level;
    char room[32];
    CHECK(argc == 3);
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    CHECK(level == MPI_THREAD_MULTIPLE);
    snprintf(room, sizeof room, "%d", BUFFER * ROW);
    CALL(MPI_Info_create(&info));
    CALL(MPI_Info_set(info, "ind_wr_buffer_size", room));
    CALL(MPI_File_open(MPI_COMM_SELF, argv[2], MPI_MODE_RDWR | MPI_MODE_CREATE, info, &file));
    CALL(MPI_Info_free(&info));
    size_t chosen = 0, all = sizeof cases / sizeof *cases;
    while (chosen < all && strcmp(argv[1], cases[chosen].name) != 0)
        chosen++;
    CHECK(chosen < all);
    cases[chosen].run();
    if (cases[chosen].run != test_close)
        CALL(MPI_File_close(&file));
    MPI_Finalize();
    return 0;
}
