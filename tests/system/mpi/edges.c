/* Views at their edges: places that no number can say, mistakes that only a view sees, pieces that come again and again. The
 * program stands between the MPI-IO library and the C library, as faults.c does.
 *
 * usage: edges CASE FILE, 2 ranks, each case as its function says */
#define _GNU_SOURCE
#include "two_ranks.h"

#include "../../../crates/capi/include/ramlace.h"

#include <dlfcn.h>
#include <errno.h>

/* Cells are asked for in vain, with this error; with 0 they are not. */
static int cells_fail_with;

int ramlace_fetch_add(struct ramlace_file *of, int64_t offset, uint64_t operand, uint64_t *previous)
{
    int (*real)(struct ramlace_file *, int64_t, uint64_t, uint64_t *) = dlsym(RTLD_NEXT, "ramlace_fetch_add");
    if (cells_fail_with == 0)
        return real(of, offset, operand, previous);
    errno = cells_fail_with;
    return -1;
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

/* A rank that asks for what its view has not gets an error, and all others have what they asked for. */
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

int main(int argc, char **argv)
{
    static const struct one_case cases[] = {
        {"overflow", test_overflow},
        {"current", test_current},
        {"mistakes", test_mistakes},
        {"tiles", test_tiles},
        {NULL, NULL},
    };
    return run_case(argc, argv, cases);
}
