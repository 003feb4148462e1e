/* Collective calls and views at their edges: ranks far apart, mistakes that only a view sees, places that no number can say,
 * servers that fail. The program stands between the MPI-IO library and the C library, as faults.c does.
 *
 * usage: edges CASE FILE, 2 ranks, each case as its function says */
#define _GNU_SOURCE
#include "check.h"

#include "../../../crates/capi/include/ramlace.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/resource.h>
#include <unistd.h>

static int rank, ranks;
static const char *path;

/* ---- Between the two libraries ---- */

/* What touches a byte from here on fails with this error; with 0 nothing does. */
static int64_t fails_from;
static int fails_with, cells_fail_with;
/* The next write takes a second. */
static bool is_slow;
/* What the last open has asked for. */
static uint32_t wished_local;
static uint64_t wished_parts;
/* What the parts of an open are held to; then it goes on without them. */
static void (*look_at_parts)(const struct ramlace_part *parts, uint64_t count);
/* A rank gets no communicator of its own, and no message through to the first. */
static bool no_communicator, no_gather;
/* Ranks seem to be on machines of their own, and so many to be in the world. */
static bool own_machines;
static int seeming_ranks;

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

int ramlace_fetch_add(struct ramlace_file *of, int64_t offset, uint64_t operand, uint64_t *previous)
{
    int (*real)(struct ramlace_file *, int64_t, uint64_t, uint64_t *) = dlsym(RTLD_NEXT, "ramlace_fetch_add");
    if (cells_fail_with == 0)
        return real(of, offset, operand, previous);
    errno = cells_fail_with;
    return -1;
}

struct ramlace_file *ramlace_open_with(struct ramlace_pool *pool, const char *name, int flags, uint32_t mode,
                                       const struct ramlace_hints *hints)
{
    struct ramlace_file *(*real)(struct ramlace_pool *, const char *, int, uint32_t, const struct ramlace_hints *) =
        dlsym(RTLD_NEXT, "ramlace_open_with");
    struct ramlace_hints wished = RAMLACE_HINTS_INIT;
    if (hints != NULL)
        wished = *hints;
    wished_local = wished.local;
    wished_parts = wished.part_count;
    if (look_at_parts != NULL) {
        look_at_parts(wished.parts, wished.part_count);
        wished.parts = NULL;
        wished.part_count = 0;
    }
    return real(pool, name, flags, mode, hints ? &wished : NULL);
}

/* The machine of the rank of this number, where each has its own. */
static void machine_of(int number, unsigned char *machine)
{
    memset(machine, 0, 16);
    memcpy(machine, &number, sizeof number);
    machine[15] = 1;
}

int ramlace_machine(uint8_t *machine, size_t size)
{
    int (*real)(uint8_t *, size_t) = dlsym(RTLD_NEXT, "ramlace_machine");
    if (!own_machines)
        return real(machine, size);
    machine_of(rank, machine);
    return 0;
}

int PMPI_Comm_size(MPI_Comm comm, int *size)
{
    int (*real)(MPI_Comm, int *) = dlsym(RTLD_NEXT, "PMPI_Comm_size");
    int code = real(comm, size);
    if (comm == MPI_COMM_WORLD && seeming_ranks != 0)
        *size = seeming_ranks;
    return code;
}

int PMPI_Gather(const void *from, int count, MPI_Datatype type, void *into, int counts, MPI_Datatype types, int root,
                MPI_Comm comm)
{
    int (*real)(const void *, int, MPI_Datatype, void *, int, MPI_Datatype, int, MPI_Comm) =
        dlsym(RTLD_NEXT, "PMPI_Gather");
    int code = real(from, count, type, into, counts, types, root, comm);
    for (int number = 0; number < seeming_ranks && rank == root && counts == 16; number++)
        machine_of(number, (unsigned char *)into + (size_t)number * 16);
    return no_gather ? MPI_ERR_NO_MEM : code;
}

int PMPI_Comm_idup(MPI_Comm comm, MPI_Comm *copy, MPI_Request *request)
{
    int (*real)(MPI_Comm, MPI_Comm *, MPI_Request *) = dlsym(RTLD_NEXT, "PMPI_Comm_idup");
    int code = real(comm, copy, request);
    if (no_communicator && code == MPI_SUCCESS)
        MPI_Wait(request, MPI_STATUS_IGNORE);
    return no_communicator ? MPI_ERR_NO_MEM : code;
}

/* ---- Files and views ---- */

/* With `romio_cb_write` and `romio_cb_read`, or as usual where there is no choice. */
static MPI_File open_as(const char *name, int amode, const char *choice, const char *key, const char *value)
{
    MPI_Info info;
    MPI_File file;
    CALL(MPI_Info_create(&info));
    if (choice != NULL) {
        CALL(MPI_Info_set(info, "romio_cb_write", choice));
        CALL(MPI_Info_set(info, "romio_cb_read", choice));
    }
    if (key != NULL)
        CALL(MPI_Info_set(info, key, value));
    CALL(MPI_File_open(MPI_COMM_WORLD, name, amode, info, &file));
    CALL(MPI_Info_free(&info));
    return file;
}

static MPI_File open_new(const char *choice)
{
    MPI_File file = open_as(path, MPI_MODE_RDWR | MPI_MODE_CREATE, choice, NULL, NULL);
    CALL(MPI_File_set_size(file, 0));
    return file;
}

/* A view of pieces of these lengths at these places, again and again after so many bytes. */
static void see(MPI_File file, MPI_Offset displacement, int pieces, const int *lengths, const MPI_Aint *places,
                MPI_Aint extent)
{
    MPI_Datatype piece, type;
    CALL(MPI_Type_create_hindexed(pieces, lengths, places, MPI_BYTE, &piece));
    CALL(MPI_Type_create_resized(piece, 0, extent, &type));
    CALL(MPI_Type_commit(&type));
    CALL(MPI_File_set_view(file, displacement, MPI_BYTE, type, "native", MPI_INFO_NULL));
    CALL(MPI_Type_free(&piece));
    CALL(MPI_Type_free(&type));
}

static void see_piece(MPI_File file, MPI_Offset displacement, int length, MPI_Aint extent)
{
    MPI_Aint at = 0;
    see(file, displacement, 1, &length, &at, extent);
}

/* Two pieces of 8 bytes, at 0 and 24; the next two would begin at 16: so there are these two. */
static void see_once(MPI_File file, MPI_Offset displacement)
{
    see(file, displacement, 2, (int[]){8, 8}, (MPI_Aint[]){0, 24}, 16);
}

static void synchronize(MPI_File file)
{
    CALL(MPI_File_sync(file));
    MPI_Barrier(MPI_COMM_WORLD);
    CALL(MPI_File_sync(file));
}

static int64_t position_of(MPI_File file)
{
    MPI_Offset at;
    CALL(MPI_File_get_position(file, &at));
    return at;
}

static int64_t size_of(MPI_File file)
{
    MPI_Offset bytes;
    CALL(MPI_File_get_size(file, &bytes));
    return bytes;
}

static unsigned char *filled(int64_t length)
{
    unsigned char *bytes = malloc((size_t)length);
    for (int64_t i = 0; i < length; i++)
        bytes[i] = (unsigned char)(1 + (rank * 101 + i * 7 + i / 251) % 255);
    return bytes;
}

/* This rank's data are as they were written, by the view that is set. */
static void check_data(MPI_File file, const unsigned char *bytes, int length)
{
    unsigned char *back = calloc(1, (size_t)length);
    synchronize(file);
    CALL(MPI_File_read_at_all(file, 0, back, length, MPI_BYTE, MPI_STATUS_IGNORE));
    CHECK(memcmp(bytes, back, (size_t)length) == 0);
    free(back);
}

/* ---- Places ---- */

/* A place that no number can say is refused; it is not the beginning of the file. */
static void test_overflow(void)
{
    unsigned char bytes[4] = "abc";
    MPI_Offset far = (MPI_Offset)1 << 62, at;
    MPI_File file = open_new(NULL);
    see_piece(file, 0, 1, 4);
    REFUSED(MPI_File_write_at(file, far, bytes, 1, MPI_BYTE, MPI_STATUS_IGNORE), MPI_ERR_ARG);
    REFUSED(MPI_File_read_at(file, far, bytes, 1, MPI_BYTE, MPI_STATUS_IGNORE), MPI_ERR_ARG);
    REFUSED(MPI_File_write_at_all(file, far, bytes, 1, MPI_BYTE, MPI_STATUS_IGNORE), MPI_ERR_ARG);
    REFUSED(MPI_File_get_byte_offset(file, far, &at), MPI_ERR_ARG);
    CALL(MPI_File_seek(file, far, MPI_SEEK_SET));
    REFUSED(MPI_File_write(file, bytes, 1, MPI_BYTE, MPI_STATUS_IGNORE), MPI_ERR_ARG);
    CHECK(position_of(file) == far);
    /* Also where only the last of them are. */
    REFUSED(MPI_File_write_at(file, INT64_MAX / 4 - 1, bytes, 4, MPI_BYTE, MPI_STATUS_IGNORE), MPI_ERR_ARG);
    see_piece(file, 0, 3, 3);
    CALL(MPI_File_seek(file, INT64_MAX - 1, MPI_SEEK_SET));
    REFUSED(MPI_File_write(file, bytes, 3, MPI_BYTE, MPI_STATUS_IGNORE), MPI_ERR_ARG);
    CHECK(position_of(file) == INT64_MAX - 1);
    see_once(file, 0);
    REFUSED(MPI_File_write_at(file, INT64_MAX - 1, bytes, 3, MPI_BYTE, MPI_STATUS_IGNORE), MPI_ERR_IO);
    CHECK(size_of(file) == 0);
    CALL(MPI_File_close(&file));
}

/* The current place of a sequential file at the end of a view that is there once, and where the pointer cannot be asked. */
static void test_current(void)
{
    enum { END = 32 };
    const int ends[] = {MPI_ERR_IO, MPI_SUCCESS};
    char letter = (char)('a' + rank), letters[8], all[END + 8];
    MPI_Offset at;
    MPI_File file = open_as(path, MPI_MODE_WRONLY | MPI_MODE_CREATE | MPI_MODE_SEQUENTIAL, NULL, NULL, NULL);
    see_once(file, 0);
    memset(letters, letter, sizeof letters);
    CALL(MPI_File_write_ordered(file, letters, 8, MPI_BYTE, MPI_STATUS_IGNORE));
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        cells_fail_with = ends[i] == MPI_SUCCESS ? 0 : ETIMEDOUT;
        int code = MPI_File_set_view(file, MPI_DISPLACEMENT_CURRENT, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL);
        REFUSED(code, ends[i]);
    }
    CALL(MPI_File_write_ordered(file, &letter, 1, MPI_BYTE, MPI_STATUS_IGNORE));
    CALL(MPI_File_close(&file));
    file = open_as(path, MPI_MODE_RDONLY, NULL, NULL, NULL);
    CHECK(size_of(file) == END + ranks);
    CALL(MPI_File_read_at(file, 0, all, END + ranks, MPI_BYTE, MPI_STATUS_IGNORE));
    for (int i = 0; i < 8; i++)
        CHECK(all[i] == 'a' && all[24 + i] == 'b');
    CHECK(all[END] == 'a' && all[END + 1] == 'b');
    see_once(file, 5);
    CALL(MPI_File_get_byte_offset(file, 15, &at));
    CHECK(at == 5 + END - 1);
    CALL(MPI_File_get_byte_offset(file, 16, &at));
    CHECK(at == 5 + END);
    REFUSED(MPI_File_get_byte_offset(file, 17, &at), MPI_ERR_IO);
    CALL(MPI_File_close(&file));
}

/* ---- Mistakes of one rank ---- */

/* Who asks for what its view has not hears of it, and all others have what they asked for. */
static void mistake_of_the_view(const char *choice)
{
    unsigned char *bytes = filled(100), back[100] = {0};
    MPI_Request request;
    MPI_File file = open_new(choice);
    see_once(file, rank * 1000);
    if (rank == 0) {
        REFUSED(MPI_File_write_at_all(file, 0, bytes, 17, MPI_BYTE, MPI_STATUS_IGNORE), MPI_ERR_IO);
        REFUSED(MPI_File_write_all(file, bytes, 17, MPI_BYTE, MPI_STATUS_IGNORE), MPI_ERR_IO);
        CHECK(position_of(file) == 0);
        REFUSED(MPI_File_write_at_all_begin(file, 10, bytes, 7, MPI_BYTE), MPI_ERR_IO);
        REFUSED(MPI_File_write_ordered(file, bytes, 17, MPI_BYTE, MPI_STATUS_IGNORE), MPI_ERR_IO);
        REFUSED(MPI_File_iwrite_at(file, 16, bytes, 1, MPI_BYTE, &request), MPI_ERR_IO);
        REFUSED(MPI_File_read_at_all(file, 8, back, 9, MPI_BYTE, MPI_STATUS_IGNORE), MPI_ERR_IO);
    } else {
        CALL(MPI_File_write_at_all(file, 0, bytes, 16, MPI_BYTE, MPI_STATUS_IGNORE));
        CALL(MPI_File_write_all(file, bytes, 16, MPI_BYTE, MPI_STATUS_IGNORE));
        CHECK(position_of(file) == 16);
        CALL(MPI_File_write_at_all_begin(file, 0, bytes, 16, MPI_BYTE));
        CALL(MPI_File_write_at_all_end(file, bytes, MPI_STATUS_IGNORE));
        CALL(MPI_File_write_ordered(file, bytes, 0, MPI_BYTE, MPI_STATUS_IGNORE));
        CALL(MPI_File_read_at_all(file, 0, back, 16, MPI_BYTE, MPI_STATUS_IGNORE));
        CHECK(memcmp(back, bytes, 16) == 0);
    }
    synchronize(file);
    CHECK(size_of(file) == 1000 + 32);
    /* Nor does a place beyond any file keep the others from theirs. */
    see_piece(file, 0, 3, 3);
    MPI_Offset at = rank == 0 ? (MPI_Offset)1 << 62 : 2000;
    int code = MPI_File_write_at_all(file, at, bytes, 100, MPI_BYTE, MPI_STATUS_IGNORE);
    CHECK((code != MPI_SUCCESS) == (rank == 0));
    synchronize(file);
    CHECK(size_of(file) == 2100);
    CALL(MPI_File_close(&file));
    free(bytes);
}

static void test_mistakes(void)
{
    mistake_of_the_view("disable");
    mistake_of_the_view("enable");
    mistake_of_the_view(NULL);
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

/* ---- Opening ---- */

/* Ranks of two groups cannot have a file together. */
static void test_two_groups(void)
{
    MPI_Comm own, both;
    MPI_File file = open_new(NULL), refused;
    CALL(MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &own));
    CALL(MPI_Intercomm_create(own, 0, MPI_COMM_WORLD, 1 - rank % 2, 1, &both));
    REFUSED(MPI_File_open(both, path, MPI_MODE_RDWR | MPI_MODE_CREATE, MPI_INFO_NULL, &refused), MPI_ERR_COMM);
    CALL(MPI_Comm_free(&both));
    CALL(MPI_Comm_free(&own));
    CALL(MPI_File_close(&file));
}

/* Where one rank has no descriptor for a file, all hear of it, and nobody has made one. */
static void test_no_descriptor(void)
{
    char name[1024];
    struct rlimit usual, none;
    MPI_File file = open_new(NULL), refused;
    snprintf(name, sizeof name, "%s-refused", path);
    CHECK(getrlimit(RLIMIT_NOFILE, &usual) == 0);
    int next = open("/dev/null", O_RDONLY);
    CHECK(next >= 0 && close(next) == 0);
    none = (struct rlimit){(rlim_t)next, usual.rlim_max};
    CHECK(rank != 1 || setrlimit(RLIMIT_NOFILE, &none) == 0);
    int code = MPI_File_open(MPI_COMM_WORLD, name, MPI_MODE_RDWR | MPI_MODE_CREATE, MPI_INFO_NULL, &refused);
    CHECK(setrlimit(RLIMIT_NOFILE, &usual) == 0);
    CHECK(code != MPI_SUCCESS && refused == MPI_FILE_NULL);
    REFUSED(MPI_File_open(MPI_COMM_WORLD, name, MPI_MODE_RDWR, MPI_INFO_NULL, &refused), MPI_ERR_NO_SUCH_FILE);
    CALL(MPI_File_close(&file));
}

/* Where one rank has no communicator for a file, no other waits in the one that it has got. */
static void test_no_communicator(void)
{
    char name[1024];
    MPI_File refused, file = open_new(NULL);
    /* Its handle is used again: the next one needs nothing of the MPI library's own. */
    CALL(MPI_File_close(&file));
    snprintf(name, sizeof name, "%s-refused", path);
    no_communicator = rank == 1;
    int code = MPI_File_open(MPI_COMM_WORLD, name, MPI_MODE_RDWR | MPI_MODE_CREATE, MPI_INFO_NULL, &refused);
    no_communicator = false;
    CHECK(refused == MPI_FILE_NULL);
    REFUSED(code, MPI_ERR_NO_MEM);
    REFUSED(MPI_File_open(MPI_COMM_WORLD, name, MPI_MODE_RDWR, MPI_INFO_NULL, &refused), MPI_ERR_NO_SUCH_FILE);
    file = open_new(NULL);
    CALL(MPI_File_close(&file));
}

/* A new file begins on the server that its hint names, and says so. */
static void test_first_server(void)
{
    const char *const wishes[] = {"0", "1", "2", "0"};
    char text[64];
    int found;
    MPI_Info info;
    for (size_t i = 0; i < sizeof wishes / sizeof *wishes; i++) {
        if (rank == 0 && i > 0)
            CALL(MPI_File_delete(path, MPI_INFO_NULL));
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_File file = open_as(path, MPI_MODE_RDWR | MPI_MODE_CREATE, NULL, "start_iodevice", wishes[i]);
        CALL(MPI_File_get_info(file, &info));
        CALL(MPI_Info_get(info, "start_iodevice", 63, text, &found));
        CHECK(found && strcmp(text, wishes[i]) == 0);
        CALL(MPI_Info_free(&info));
        CALL(MPI_File_close(&file));
    }
    /* What makes no sense is no wish. */
    MPI_File file = open_as(path, MPI_MODE_RDWR, NULL, "start_iodevice", "first");
    CALL(MPI_File_close(&file));
}

/* What is asked for where a file's bytes are to lie is the first rank's, and is told by nobody. */
static void test_placement(void)
{
    const struct {
        const char *choice[2];
        uint32_t wished;
    } cases[] = {{{"local", "local"}, 1}, {{"local", "usual"}, 1}, {{"usual", "local"}, 0}, {{"usual", "usual"}, 0}};
    char text[64];
    int found;
    MPI_Info info;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (rank == 0 && i > 0)
            CALL(MPI_File_delete(path, MPI_INFO_NULL));
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_File file = open_as(path, MPI_MODE_RDWR | MPI_MODE_CREATE, NULL, "placement", cases[i].choice[rank != 0]);
        CHECK(rank != 0 || wished_local == cases[i].wished);
        CALL(MPI_File_get_info(file, &info));
        CALL(MPI_Info_get(info, "placement", 63, text, &found));
        CHECK(!found);
        CALL(MPI_Info_free(&info));
        CALL(MPI_File_close(&file));
    }
}

/* An array's blocks, wanted near the ranks that have them. */
static MPI_File open_near(const char *name, const char *array, const char *block)
{
    MPI_Info info;
    MPI_File file;
    CALL(MPI_Info_create(&info));
    CALL(MPI_Info_set(info, "placement", "local"));
    CALL(MPI_Info_set(info, "chunked", array));
    CALL(MPI_Info_set(info, "chunked_size", block));
    CALL(MPI_File_open(MPI_COMM_WORLD, name, MPI_MODE_RDWR | MPI_MODE_CREATE, info, &file));
    CALL(MPI_Info_free(&info));
    return file;
}

/* A rank that cannot say where it runs, or cannot hear of it, costs a wish and no file: nobody waits for it. */
static void test_no_gather(void)
{
    char name[1024];
    own_machines = true;
    /* None fails, the last one does, the first one does, which alone wishes. */
    for (int failing = 2; failing >= 0; failing--) {
        snprintf(name, sizeof name, "%s-%d", path, failing);
        no_gather = rank == failing;
        MPI_File file = open_near(name, "2097152,1", "1048576,1");
        CHECK(rank != 0 || wished_parts == (failing == 0 ? 0 : 2));
        CALL(MPI_File_close(&file));
    }
}

enum { SEEMING = 1024, ACROSS = 1023, ROWS = 65536 };
static uint64_t parts_seen;

/* Of a row's blocks no machine has more than another: the first one's it is. */
static void look_at_many(const struct ramlace_part *parts, uint64_t count)
{
    unsigned char machine[16];
    for (uint64_t i = 0; i < count; i++) {
        machine_of((int)(i * ACROSS % SEEMING), machine);
        CHECK(memcmp(parts[i].machine, machine, sizeof machine) == 0);
    }
    parts_seen += count;
}

/* As many machines and rows as there may be: the others wait for the first rank's answer. */
static void test_many_machines(void)
{
    own_machines = true;
    seeming_ranks = rank == 0 ? SEEMING : 0;
    look_at_parts = look_at_many;
    MPI_File file = open_near(path, "1048576,1047552", "16,1024");
    look_at_parts = NULL;
    CHECK(rank != 0 || parts_seen == ROWS);
    CALL(MPI_File_close(&file));
}

/* Whether a file tells on which server it begins. */
static bool tells_first_server(MPI_File file, const char *server)
{
    char text[64];
    int found;
    MPI_Info info;
    CALL(MPI_File_get_info(file, &info));
    CALL(MPI_Info_get(info, "start_iodevice", 63, text, &found));
    CALL(MPI_Info_free(&info));
    return found && strcmp(text, server) == 0;
}

/* A file whose name is another's by now tells nothing of that one. */
static void test_named_anew(void)
{
    const int amode = MPI_MODE_RDWR | MPI_MODE_CREATE;
    MPI_File old = open_as(path, amode, NULL, "start_iodevice", "1");
    CHECK(tells_first_server(old, "1"));
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        CALL(MPI_File_delete(path, MPI_INFO_NULL));
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_File new = open_as(path, amode, NULL, "start_iodevice", "0");
    CHECK(tells_first_server(new, "0") && !tells_first_server(old, "0") && !tells_first_server(old, "1"));
    CALL(MPI_File_close(&new));
    CALL(MPI_File_close(&old));
}

/* ---- Views whose pieces come again and again ---- */

/* Where byte `number` of such a view lies: two pieces and two rows in each tile. */
static int64_t place_in_tiles(int64_t number)
{
    static const int places[] = {0, 1, 2, 3, 4, 11, 12, 13, 40, 41, 44, 45};
    return 7 + number / 12 * 61 + places[number % 12];
}

/* A write that begins and ends within tiles, the same read back, and a read that meets the end of the file; by each rank
 * in a file of its own. Other bytes stay. */
static void test_tiles(void)
{
    enum { FROM = 17, LENGTH = 30007, ALL = 200000 };
    unsigned char *bytes = filled(LENGTH), *back = calloc(1, ALL), *wanted = malloc(ALL);
    MPI_Datatype rows, pieces, view;
    MPI_Aint places[] = {0, 11, 40};
    MPI_Status status;
    MPI_File file;
    char name[1024];
    int moved, lengths[] = {5, 3, 1};
    memset(wanted, 'x', ALL);
    snprintf(name, sizeof name, "%s-%d", path, rank);
    CALL(MPI_File_open(MPI_COMM_SELF, name, MPI_MODE_RDWR | MPI_MODE_CREATE, MPI_INFO_NULL, &file));
    CALL(MPI_File_write_at(file, 0, wanted, ALL, MPI_BYTE, MPI_STATUS_IGNORE));
    CALL(MPI_Type_create_hvector(2, 2, 4, MPI_BYTE, &rows));
    MPI_Datatype types[] = {MPI_BYTE, MPI_BYTE, rows};
    CALL(MPI_Type_create_struct(3, lengths, places, types, &pieces));
    CALL(MPI_Type_create_resized(pieces, 0, 61, &view));
    CALL(MPI_Type_commit(&view));
    CALL(MPI_File_set_view(file, 7, MPI_BYTE, view, "native", MPI_INFO_NULL));
    CALL(MPI_File_write_at(file, FROM, bytes, LENGTH, MPI_BYTE, MPI_STATUS_IGNORE));
    CALL(MPI_File_read_at(file, FROM, back, LENGTH, MPI_BYTE, MPI_STATUS_IGNORE));
    CHECK(memcmp(back, bytes, LENGTH) == 0);
    for (int i = 0; i < LENGTH; i++)
        wanted[place_in_tiles(FROM + i)] = bytes[i];
    int there = 0;
    while (place_in_tiles(there) < ALL)
        there++;
    CALL(MPI_File_read_at(file, 0, back, there + 1000, MPI_BYTE, &status));
    CALL(MPI_Get_count(&status, MPI_BYTE, &moved));
    CHECK(moved == there);
    for (int i = 0; i < there; i++)
        CHECK(back[i] == wanted[place_in_tiles(i)]);
    CALL(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
    CALL(MPI_File_read_at(file, 0, back, ALL, MPI_BYTE, MPI_STATUS_IGNORE));
    CHECK(memcmp(back, wanted, ALL) == 0);
    CALL(MPI_File_close(&file));
    MPI_Type_free(&rows);
    MPI_Type_free(&pieces);
    MPI_Type_free(&view);
    free(bytes);
    free(back);
    free(wanted);
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
    CHECK(rank == 0 || after.ru_nvcsw - before.ru_nvcsw >= 10 * SLEEPS_MIN);
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

/* The same path in two pools (FILE is both names, with a space between): no file that ranks have together. */
static void test_two_pools(void)
{
    char *names = strdup(path), *other = strchr(names, ' ');
    MPI_File file;
    CHECK(other != NULL);
    *other++ = '\0';
    int amode = MPI_MODE_RDWR | MPI_MODE_CREATE;
    REFUSED(MPI_File_open(MPI_COMM_WORLD, rank == 0 ? names : other, amode, MPI_INFO_NULL, &file), MPI_ERR_NOT_SAME);
    /* Nobody has made it; and each pool is one for all. */
    REFUSED(MPI_File_open(MPI_COMM_WORLD, names, MPI_MODE_RDONLY, MPI_INFO_NULL, &file), MPI_ERR_NO_SUCH_FILE);
    REFUSED(MPI_File_open(MPI_COMM_WORLD, other, MPI_MODE_RDONLY, MPI_INFO_NULL, &file), MPI_ERR_NO_SUCH_FILE);
    CALL(MPI_File_open(MPI_COMM_WORLD, other, amode, MPI_INFO_NULL, &file));
    CALL(MPI_File_close(&file));
    free(names);
}

static const struct {
    const char *name;
    void (*run)(void);
} CASES[] = {
    {"overflow", test_overflow},
    {"current", test_current},
    {"mistakes", test_mistakes},
    {"far", test_far},
    {"far_by_two_phases", test_far_by_two_phases},
    {"far_once", test_far_once},
    {"large_rounds", test_large_rounds},
    {"every_other_byte", test_every_other_byte},
    {"lost_server", test_lost_server},
    {"lost_rows", test_lost_rows},
    {"two_pools", test_two_pools},
    {"two_groups", test_two_groups},
    {"no_descriptor", test_no_descriptor},
    {"no_communicator", test_no_communicator},
    {"first_server", test_first_server},
    {"placement", test_placement},
    {"no_gather", test_no_gather},
    {"many_machines", test_many_machines},
    {"named_anew", test_named_anew},
    {"kinds", test_kinds},
    {"late", test_late},
    {"slow_round", test_slow_round},
    {"tiles", test_tiles},
};

int main(int argc, char **argv)
{
    size_t chosen = 0, all = sizeof CASES / sizeof *CASES;
    MPI_Init(&argc, &argv);
    CHECK(argc == 3);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    CHECK(ranks == 2);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    path = argv[2];
    while (chosen < all && strcmp(argv[1], CASES[chosen].name) != 0)
        chosen++;
    CHECK(chosen < all);
    CASES[chosen].run();
    MPI_Finalize();
    return 0;
}
