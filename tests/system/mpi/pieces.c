/* Very many pieces, pieces that overlap, and pairs. The program stands between the MPI-IO library and the C library, as
 * faults.c does.
 *
 * usage: pieces CASE FILE, 2 ranks, each case as its function says */
#define _GNU_SOURCE
#include "two_ranks.h"

#include "../../../crates/capi/include/ramlace.h"

#include <dlfcn.h>
#include <errno.h>

/* The locks that are taken, and that were asked for in vain: so many, behind the first so many. */
static int locks, locks_before, locks_in_vain, unlocks;
static int64_t locked_from, locked_bytes;

int ramlace_lock(struct ramlace_file *of, int64_t offset, int64_t length, int kind, int64_t timeout)
{
    int (*real)(struct ramlace_file *, int64_t, int64_t, int, int64_t) = dlsym(RTLD_NEXT, "ramlace_lock");
    if (locks_before == 0 && locks_in_vain > 0) {
        locks_in_vain--;
        errno = ENOLCK;
        return -1;
    }
    if (locks_before > 0)
        locks_before--;
    locks++;
    locked_from = offset;
    locked_bytes = length;
    return real(of, offset, length, kind, timeout);
}

int ramlace_unlock(struct ramlace_file *of, int64_t offset, int64_t length)
{
    int (*real)(struct ramlace_file *, int64_t, int64_t) = dlsym(RTLD_NEXT, "ramlace_unlock");
    unlocks++;
    return real(of, offset, length);
}

/* ---- Very many pieces ---- */

/* A byte and, behind a gap, an int. */
static MPI_Datatype byte_and_int(void)
{
    MPI_Datatype pieces, type;
    MPI_Datatype types[] = {MPI_BYTE, MPI_INT};
    CALL(MPI_Type_create_struct(2, (int[]){1, 1}, (MPI_Aint[]){0, 4}, types, &pieces));
    CALL(MPI_Type_create_resized(pieces, 0, 12, &type));
    CALL(MPI_Type_commit(&type));
    CALL(MPI_Type_free(&pieces));
    return type;
}

/* Writes and reads more elements of two pieces than a list may have, by one way; what lies between them stays. */
static void many_elements(MPI_File file, int way)
{
    enum { COUNT = 150000 };
    MPI_Datatype type = byte_and_int();
    MPI_Request request;
    MPI_Status status;
    MPI_Offset mine = (MPI_Offset)rank * COUNT * 5;
    int moved;
    char *out = (char *)filled(12 * COUNT), *in = calloc(COUNT, 12);
    if (way == 0) {
        CALL(MPI_File_write_at(file, mine, out, COUNT, type, MPI_STATUS_IGNORE));
        CALL(MPI_File_read_at(file, mine, in, COUNT, type, &status));
    } else if (way == 1) {
        CALL(MPI_File_iwrite_at(file, mine, out, COUNT, type, &request));
        CALL(MPI_Wait(&request, MPI_STATUS_IGNORE));
        CALL(MPI_File_iread_at(file, mine, in, COUNT, type, &request));
        CALL(MPI_Wait(&request, &status));
    } else {
        CALL(MPI_File_write_at_all(file, mine, out, COUNT, type, MPI_STATUS_IGNORE));
        CALL(MPI_File_read_at_all(file, mine, in, COUNT, type, &status));
    }
    CALL(MPI_Get_count(&status, type, &moved));
    CHECK(moved == COUNT);
    for (int i = 0; i < COUNT; i++) {
        CHECK(in[12 * i] == out[12 * i] && memcmp(in + 12 * i + 4, out + 12 * i + 4, 4) == 0);
        CHECK(in[12 * i + 1] == 0 && in[12 * i + 8] == 0);
    }
    /* They lie one behind the other. */
    CALL(MPI_File_read_at(file, mine + 5 * (COUNT - 1), in, 5, MPI_BYTE, MPI_STATUS_IGNORE));
    CHECK(in[0] == out[12 * (COUNT - 1)]);
    free(out);
    free(in);
    CALL(MPI_Type_free(&type));
}

static void test_many(void)
{
    const char *const choices[] = {NULL, NULL, "enable"};
    const char *const representations[] = {"native", "external32"};
    for (int i = 0; i < 6; i++) {
        MPI_File file = open_new(choices[i % 3]);
        CALL(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, representations[i / 3], MPI_INFO_NULL));
        many_elements(file, i % 3);
        CALL(MPI_File_close(&file));
    }
}

/* In atomic mode an access of more places than a list may have locks all from its first byte to its last. */
static void test_atomic(void)
{
    enum { LENGTH = 8 * 50000 };
    unsigned char *out = filled(LENGTH), *in = calloc(1, LENGTH);
    MPI_File file = open_new(NULL);
    see(file, 3 + 8 * rank, 2, (int[]){5, 3}, (MPI_Aint[]){0, 16}, 32);
    CALL(MPI_File_set_atomicity(file, 1));
    CALL(MPI_File_write_at(file, 9, out, LENGTH, MPI_BYTE, MPI_STATUS_IGNORE));
    CHECK(locks == 1 && unlocks == 1);
    /* From the second byte of the second tile to the first byte of the last. */
    CHECK(locked_from == 3 + 8 * rank + 33 && locked_from + locked_bytes == 3 + 8 * rank + 32 * (LENGTH / 8 + 1) + 1);
    CALL(MPI_File_read_at(file, 9, in, LENGTH, MPI_BYTE, MPI_STATUS_IGNORE));
    CHECK(memcmp(in, out, LENGTH) == 0);
    CALL(MPI_File_close(&file));
    free(out);
    free(in);
}

/* ---- Too many locks ---- */

enum { PLACES = 20 };

static MPI_File open_atomic(void)
{
    MPI_File file = open_as(path, MPI_MODE_RDWR | MPI_MODE_CREATE, NULL, NULL, NULL);
    see_piece(file, 4 * rank, 4, 8);
    CALL(MPI_File_set_atomicity(file, 1));
    return file;
}

static void check_places(MPI_File file, const unsigned char *out)
{
    unsigned char in[4 * PLACES];
    CALL(MPI_File_read_at(file, 0, in, 4 * PLACES, MPI_BYTE, MPI_STATUS_IGNORE));
    CHECK(memcmp(in, out, sizeof in) == 0);
}

/* An access that gets one lock of many no more gives the others back, and waits for one of all. */
static void test_no_locks(void)
{
    unsigned char *out = filled(4 * PLACES);
    MPI_File file = open_atomic();
    locks_before = 5;
    /* The sixth, and then that of all, twice. */
    locks_in_vain = 3;
    CALL(MPI_File_write_at(file, 0, out, 4 * PLACES, MPI_BYTE, MPI_STATUS_IGNORE));
    CHECK(locks == 6 && unlocks == 2 && locks_in_vain == 0);
    CHECK(locked_from == 4 * rank && locked_bytes == 8 * (PLACES - 1) + 4);
    /* Others may go on, and so may this one. */
    MPI_Barrier(MPI_COMM_WORLD);
    check_places(file, out);
    CHECK(locks == 6 + PLACES && unlocks == 3);
    CALL(MPI_File_close(&file));
    free(out);
}

/* The same where somebody else has nearly as many locks as a file may have. */
static void test_few_locks(void)
{
    unsigned char *out = filled(4 * PLACES);
    MPI_File file = open_atomic();
    for (int i = 0; i < 10; i++) {
        CALL(MPI_File_write_at(file, 0, out, 4 * PLACES, MPI_BYTE, MPI_STATUS_IGNORE));
        check_places(file, out);
    }
    CHECK(locked_bytes == 8 * (PLACES - 1) + 4);
    CALL(MPI_File_close(&file));
    free(out);
}

/* ---- Pieces that overlap ---- */

enum { ALL = 2000003 };

static unsigned char byte_at(int64_t place)
{
    return (unsigned char)(1 + (place * 7 + place / 251) % 255);
}

/* What a view has again and again. */
struct shape {
    int pieces, lengths[4];
    MPI_Aint places[4], extent;
};

static const struct shape SHAPES[] = {
    /* Pieces that overlap, one within another, one twice. */
    {4, {100, 10, 150, 150}, {0, 50, 50, 50}, 300},
    /* The last one ends before the first does; the file ends between. */
    {3, {100, 10, 20}, {0, 50, 60}, 101},
    /* A window that slides, and one whose pieces slide through each other. */
    {1, {100}, {5}, 30},
    {2, {40, 40}, {0, 30}, 35},
    /* Windows larger than what is read at once. */
    {1, {900000}, {0}, 200000},
    {2, {700000, 600001}, {1, 100000}, 350000},
};

/* Where a byte of the view's data lies. */
static int64_t place_of(const struct shape *shape, int64_t at)
{
    int64_t bytes = 0;
    for (int i = 0; i < shape->pieces; i++)
        bytes += shape->lengths[i];
    int64_t place = at / bytes * shape->extent;
    at %= bytes;
    int i = 0;
    for (; at >= shape->lengths[i]; i++)
        at -= shape->lengths[i];
    return 11 + place + shape->places[i] + at;
}

/* Bytes of data before the first one that is not in the file. */
static int64_t bytes_there(const struct shape *shape)
{
    int64_t at = 0;
    while (place_of(shape, at) < ALL)
        at++;
    return at;
}

/* Reads of this view bring what its type map says, up to the first byte that is not there. */
static void look_at(MPI_File file, const struct shape *shape, bool together)
{
    int64_t there = bytes_there(shape);
    MPI_Status status;
    MPI_Offset at, end;
    see(file, 11, shape->pieces, shape->lengths, shape->places, shape->extent);
    for (int i = 0; i < 9; i++) {
        /* From the beginning, also a few bytes of one window, within, and over the end. */
        int64_t from = i < 3 ? i * 1237 : i < 6 ? there / 2 + i * 701 : there - 300 * i;
        int length = i == 0 ? (int)there + 50 : i == 1 ? 30 : i == 4 ? 1000000 : 2000, moved;
        int64_t wanted = from + length < there ? length : there - from;
        unsigned char *bytes = calloc(1, (size_t)length);
        if (together)
            CALL(MPI_File_read_at_all(file, from, bytes, length, MPI_BYTE, &status));
        else
            CALL(MPI_File_read_at(file, from, bytes, length, MPI_BYTE, &status));
        CALL(MPI_Get_count(&status, MPI_BYTE, &moved));
        CHECK(moved == wanted);
        for (step = 0; step < length; step++)
            CHECK(bytes[step] == (step < wanted ? byte_at(place_of(shape, from + step)) : 0));
        free(bytes);
    }
    CALL(MPI_File_seek(file, 0, MPI_SEEK_END));
    CHECK(position_of(file) == there);
    CALL(MPI_File_get_byte_offset(file, there / 2, &at));
    CALL(MPI_File_get_byte_offset(file, there, &end));
    CHECK(at == place_of(shape, there / 2) && end == place_of(shape, there));
}

static void test_overlaps(void)
{
    unsigned char *all = malloc(ALL);
    MPI_Datatype slide, same, back;
    int ints[12];
    for (int64_t i = 0; i < ALL; i++)
        all[i] = byte_at(i);
    MPI_File file = open_new(NULL);
    if (rank == 0)
        CALL(MPI_File_write_at(file, 0, all, ALL, MPI_BYTE, MPI_STATUS_IGNORE));
    synchronize(file);
    CALL(MPI_Type_vector(4, 2, 1, MPI_INT, &slide));
    CALL(MPI_Type_commit(&slide));
    /* What is written has one place. */
    REFUSED(MPI_File_set_view(file, 0, MPI_INT, slide, "native", MPI_INFO_NULL), MPI_ERR_IO);
    CALL(MPI_File_close(&file));
    for (int i = 0; i < 2; i++) {
        file = open_as(path, MPI_MODE_RDONLY, i == 0 ? NULL : "enable", NULL, NULL);
        for (size_t k = 0; k < sizeof SHAPES / sizeof *SHAPES; k++)
            look_at(file, &SHAPES[k], i == 1);
        CALL(MPI_File_close(&file));
    }
    file = open_as(path, MPI_MODE_RDONLY, NULL, NULL, NULL);
    CALL(MPI_File_set_view(file, 0, MPI_INT, slide, "native", MPI_INFO_NULL));
    CALL(MPI_File_read_at(file, 0, ints, 8, MPI_INT, MPI_STATUS_IGNORE));
    for (int i = 0; i < 8; i++)
        CHECK(memcmp(&ints[i], all + 4 * (i / 2 + i % 2), 4) == 0);
    /* The same element for each. */
    CALL(MPI_Type_vector(12, 1, 0, MPI_INT, &same));
    CALL(MPI_Type_commit(&same));
    CALL(MPI_File_set_view(file, 8, MPI_INT, same, "native", MPI_INFO_NULL));
    CALL(MPI_File_set_atomicity(file, 1));
    CALL(MPI_File_read_at(file, 0, ints, 12, MPI_INT, MPI_STATUS_IGNORE));
    for (int i = 0; i < 12; i++)
        CHECK(memcmp(&ints[i], all + 8, 4) == 0);
    /* What goes back is refused for reading, too. */
    CALL(MPI_Type_vector(2, 1, -1, MPI_INT, &back));
    CALL(MPI_Type_commit(&back));
    REFUSED(MPI_File_set_view(file, 8, MPI_INT, back, "native", MPI_INFO_NULL), MPI_ERR_IO);
    CALL(MPI_File_close(&file));
    CALL(MPI_Type_free(&slide));
    CALL(MPI_Type_free(&same));
    CALL(MPI_Type_free(&back));
    free(all);
}

/* ---- Pairs ---- */

#if MPI_VERSION > 4 || (MPI_VERSION == 4 && MPI_SUBVERSION >= 1)
/* A structure that says to be a pair without a name, which MPICH has none of: what MPI_Type_get_value_index() returns is nobody's
 * to copy or to free. */
static MPI_Datatype pair = MPI_DATATYPE_NULL;

int PMPI_Type_get_envelope_c(MPI_Datatype type, MPI_Count *ints, MPI_Count *addresses, MPI_Count *counts, MPI_Count *types,
                             int *combiner)
{
    int (*real)(MPI_Datatype, MPI_Count *, MPI_Count *, MPI_Count *, MPI_Count *, int *) =
        dlsym(RTLD_NEXT, "PMPI_Type_get_envelope_c");
    if (type != pair)
        return real(type, ints, addresses, counts, types, combiner);
    *ints = *addresses = *counts = 0;
    *types = 2;
    *combiner = MPI_COMBINER_VALUE_INDEX;
    return MPI_SUCCESS;
}

int PMPI_Type_get_contents(MPI_Datatype type, int ints, int addresses, int types, int *numbers, MPI_Aint *places,
                           MPI_Datatype *within)
{
    int (*real)(MPI_Datatype, int, int, int, int *, MPI_Aint *, MPI_Datatype *) = dlsym(RTLD_NEXT, "PMPI_Type_get_contents");
    if (type != pair)
        return real(type, ints, addresses, types, numbers, places, within);
    CHECK(ints == 0 && addresses == 0 && types == 2);
    within[0] = MPI_SHORT;
    within[1] = MPI_INT64_T;
    return MPI_SUCCESS;
}

int PMPI_Type_dup(MPI_Datatype type, MPI_Datatype *copy)
{
    int (*real)(MPI_Datatype, MPI_Datatype *) = dlsym(RTLD_NEXT, "PMPI_Type_dup");
    CHECK(type != pair);
    return real(type, copy);
}

int PMPI_Type_free(MPI_Datatype *type)
{
    int (*real)(MPI_Datatype *) = dlsym(RTLD_NEXT, "PMPI_Type_free");
    CHECK(*type != pair);
    return real(type);
}

/* Pairs are moved as a C structure lies in memory, and without its padding in external32. */
static void test_pairs(void)
{
    enum { COUNT = 100 };
    struct { short value; int64_t index; } out[COUNT], in[COUNT];
    MPI_Aint extent;
    unsigned char bytes[10];
    memset(out, 0, sizeof out);
    memset(in, 0, sizeof in);
    for (int i = 0; i < COUNT; i++) {
        out[i].value = (short)(rank * 1000 + i);
        out[i].index = -i;
    }
    MPI_Datatype types[] = {MPI_SHORT, MPI_INT64_T};
    CALL(MPI_Type_create_struct(2, (int[]){1, 1}, (MPI_Aint[]){0, 8}, types, &pair));
    CALL(MPI_Type_commit(&pair));
    MPI_File file = open_new(NULL);
    for (int i = 0; i < 2; i++) {
        CALL(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, i == 0 ? "native" : "external32", MPI_INFO_NULL));
        CALL(MPI_File_write_at(file, rank * COUNT * 10, out, COUNT, pair, MPI_STATUS_IGNORE));
        CALL(MPI_File_read_at(file, rank * COUNT * 10, in, COUNT, pair, MPI_STATUS_IGNORE));
        CHECK(memcmp(in, out, sizeof in) == 0);
        CALL(MPI_File_read_at(file, (rank * COUNT + 7) * 10, bytes, 10, MPI_BYTE, MPI_STATUS_IGNORE));
        CHECK(memcmp(bytes + 2, i == 0 ? "\371\377\377\377\377\377\377\377" : "\377\377\377\377\377\377\377\371", 8) == 0);
    }
    CALL(MPI_File_get_type_extent(file, pair, &extent));
    CHECK(extent == 10);
    for (int i = 0; i < 2; i++) {
        CALL(MPI_File_set_view(file, 0, pair, pair, i == 0 ? "external32" : "native", MPI_INFO_NULL));
        memset(in, 0, sizeof in);
        CALL(MPI_File_write_at(file, rank * COUNT, out, COUNT, pair, MPI_STATUS_IGNORE));
        CALL(MPI_File_read_at(file, rank * COUNT, in, COUNT, pair, MPI_STATUS_IGNORE));
        CHECK(memcmp(in, out, sizeof in) == 0);
    }
    synchronize(file);
    CHECK(size_of(file) == ranks * COUNT * (MPI_Offset)sizeof *out);
    CALL(MPI_File_close(&file));
}
#else
static void test_pairs(void)
{
    MPI_File file = open_new(NULL);
    CALL(MPI_File_close(&file));
    puts("no pairs");
}
#endif

int main(int argc, char **argv)
{
    static const struct one_case cases[] = {
        {"many", test_many},           {"atomic", test_atomic},     {"no_locks", test_no_locks},
        {"few_locks", test_few_locks}, {"overlaps", test_overlaps}, {"pairs", test_pairs},
        {NULL, NULL},
    };
    return run_case(argc, argv, cases);
}
