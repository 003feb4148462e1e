/* Views in external32: the bytes that MPI's table wants, whatever memory has.
 *
 * usage: external32 FILE */
#include "check.h"

#include <complex.h>
#include <float.h>
#include <stddef.h>
#include <stdint.h>
#include <wchar.h>

static int rank, ranks;
static MPI_File file;

static void view(MPI_Datatype etype, MPI_Datatype filetype, const char *representation)
{
    CALL(MPI_File_set_view(file, 0, etype, filetype, representation, MPI_INFO_NULL));
}

/* Each rank for itself, in a place of its own behind the others'. */
static MPI_Offset own_place(MPI_Offset bytes)
{
    return bytes * rank;
}

/* One element of a type is these bytes in a file, and comes back as it was. */
static void test_bytes(MPI_Datatype type, const void *value, size_t size, const char *wanted, int length)
{
    char raw[32] = "", back[32] = "";
    MPI_Offset at = own_place(1);
    MPI_Status status;
    MPI_Aint extent;
    int count;
    view(type, type, "external32");
    CALL(MPI_File_get_type_extent(file, type, &extent));
    CHECK(extent == length);
    CALL(MPI_File_write_at(file, at, value, 1, type, &status));
    CALL(MPI_Get_count(&status, type, &count));
    CHECK(count == 1);
    CALL(MPI_File_read_at(file, at, back, 1, type, &status));
    CALL(MPI_Get_count(&status, type, &count));
    CHECK(count == 1);
    if (memcmp(back, value, size) != 0)
        FAIL("a value did not come back");
    view(MPI_BYTE, MPI_BYTE, "native");
    CALL(MPI_File_read_at(file, own_place(length), raw, length, MPI_BYTE, &status));
    for (int i = 0; i < length; i++)
        if (raw[i] != wanted[i])
            FAIL("byte %d is %02x, not %02x", i, raw[i] & 255, wanted[i] & 255);
    MPI_Barrier(MPI_COMM_WORLD);
    step++;
}

#define BYTES(type, value, wanted) test_bytes(type, &(value), sizeof(value), wanted, (int)sizeof(wanted) - 1)

static void test_table(void)
{
    char one = 'x';
    short two = -2;
    int four = 0x01020304;
    long small = -2;
    unsigned long positive = 0xfffffffeUL;
    long long eight = -3;
    float real = 1.5f;
    double precise = -0.1;
    double complex pair = 1.0 + 2.0 * I;
    wchar_t letter = 0x263a;
    uint16_t half = 0x1234;
    MPI_Aint address = 5;
    struct {
        short first;
        int second;
    } short_int;
    struct {
        double first;
        int second;
    } double_int;
    memset(&short_int, 0, sizeof short_int);
    memset(&double_int, 0, sizeof double_int);
    short_int.first = 1;
    short_int.second = 2;
    double_int.first = 1.0;
    double_int.second = -1;
    BYTES(MPI_CHAR, one, "x");
    BYTES(MPI_SHORT, two, "\xff\xfe");
    BYTES(MPI_UINT16_T, half, "\x12\x34");
    BYTES(MPI_INT, four, "\1\2\3\4");
    BYTES(MPI_LONG, small, "\xff\xff\xff\xfe");
    BYTES(MPI_UNSIGNED_LONG, positive, "\xff\xff\xff\xfe");
    BYTES(MPI_LONG_LONG, eight, "\xff\xff\xff\xff\xff\xff\xff\xfd");
    BYTES(MPI_AINT, address, "\0\0\0\0\0\0\0\5");
    BYTES(MPI_FLOAT, real, "\x3f\xc0\0\0");
    BYTES(MPI_DOUBLE, precise, "\xbf\xb9\x99\x99\x99\x99\x99\x9a");
    BYTES(MPI_C_DOUBLE_COMPLEX, pair, "\x3f\xf0\0\0\0\0\0\0\x40\0\0\0\0\0\0\0");
    BYTES(MPI_WCHAR, letter, "\x26\x3a");
    BYTES(MPI_SHORT_INT, short_int, "\0\1\0\0\0\2");
    BYTES(MPI_DOUBLE_INT, double_int, "\x3f\xf0\0\0\0\0\0\0\xff\xff\xff\xff");
    char memory[sizeof(long double)] = "";
    long double quad = -1.5L;
    memcpy(memory, &quad, LDBL_MANT_DIG == 64 ? 10 : sizeof quad);
    test_bytes(MPI_LONG_DOUBLE, memory, sizeof memory, "\xbf\xff\x80\0\0\0\0\0\0\0\0\0\0\0\0", 16);
    /* Two elements of Fortran's kinds have the sizes of the table, too. */
    MPI_Datatype digits;
    int32_t whole = 7;
    CALL(MPI_Type_create_f90_integer(9, &digits));
    BYTES(digits, whole, "\0\0\0\7");
    CALL(MPI_Type_create_f90_real(15, 307, &digits));
    BYTES(digits, precise, "\xbf\xb9\x99\x99\x99\x99\x99\x9a");
}

/* A number that four bytes cannot hold is an error, and nothing of it is written. */
static void test_conversion(void)
{
    long large = 1L << 40;
    wchar_t beyond = 0x1f600;
    MPI_Offset size;
    CALL(MPI_File_set_size(file, 0));
    view(MPI_LONG, MPI_LONG, "external32");
    REFUSED(MPI_File_write_at(file, 0, &large, 1, MPI_LONG, MPI_STATUS_IGNORE), MPI_ERR_CONVERSION);
    view(MPI_WCHAR, MPI_WCHAR, "external32");
    REFUSED(MPI_File_write_at(file, 0, &beyond, 1, MPI_WCHAR, MPI_STATUS_IGNORE), MPI_ERR_CONVERSION);
    CALL(MPI_File_get_size(file, &size));
    CHECK(size == 0);
    MPI_Barrier(MPI_COMM_WORLD);
}

/* The columns of a matrix of longs, one of each rank: what the view skips is as wide as in the file. */
static void test_views(void)
{
    enum { ROWS = 300000 };
    MPI_Datatype column, spread;
    MPI_Offset at;
    MPI_Aint extent;
    MPI_Status status;
    long *mine = malloc(2 * ROWS * sizeof *mine);
    unsigned char *raw = malloc((size_t)ROWS * 4 * (size_t)ranks);
    int count;
    CALL(MPI_File_set_size(file, 0));
    CALL(MPI_Type_create_resized(MPI_LONG, 0, 4 * ranks, &column));
    CALL(MPI_Type_commit(&column));
    /* Memory has every other long. */
    CALL(MPI_Type_vector(ROWS, 1, 2, MPI_LONG, &spread));
    CALL(MPI_Type_commit(&spread));
    for (int i = 0; i < 2 * ROWS; i++)
        mine[i] = i % 2 ? -1 : i / 2 * ranks + rank;
    CALL(MPI_File_set_view(file, 4 * rank, MPI_LONG, column, "external32", MPI_INFO_NULL));
    CALL(MPI_File_get_type_extent(file, spread, &extent));
    CHECK(extent == (2 * ROWS - 1) * 4);
    CALL(MPI_File_write_all(file, mine, 1, spread, &status));
    CALL(MPI_Get_count(&status, spread, &count));
    CHECK(count == 1);
    CALL(MPI_File_get_position(file, &at));
    CHECK(at == ROWS);
    CALL(MPI_File_get_byte_offset(file, 3, &at));
    CHECK(at == 4 * rank + 3 * 4 * ranks);
    MPI_Barrier(MPI_COMM_WORLD);
    view(MPI_BYTE, MPI_BYTE, "native");
    CALL(MPI_File_read_at_all(file, 0, raw, ROWS * 4 * ranks, MPI_BYTE, &status));
    for (int i = 0; i < ROWS * ranks; i++)
        CHECK((raw[4 * i] << 24 | raw[4 * i + 1] << 16 | raw[4 * i + 2] << 8 | raw[4 * i + 3]) == i);
    /* All behind the end but two and a half: two come, into the right places. */
    MPI_Barrier(MPI_COMM_WORLD);
    CALL(MPI_File_set_size(file, 10));
    view(MPI_LONG, MPI_LONG, "external32");
    memset(mine, 0xff, 2 * ROWS * sizeof *mine);
    CALL(MPI_File_read(file, mine, 1, spread, &status));
    CALL(MPI_Get_count(&status, MPI_LONG, &count));
    CHECK(count == 2);
    CHECK(mine[0] == 0 && mine[1] == -1 && mine[2] == 1 && mine[3] == -1 && mine[4] == -1);
    MPI_Barrier(MPI_COMM_WORLD);
    CALL(MPI_Type_free(&column));
    CALL(MPI_Type_free(&spread));
    free(mine);
    free(raw);
}

/* Structures lie in the file as the library's own packing has them, where that works: MPICH 4.0 crashes in it. */
static void test_packing(void)
{
    struct item {
        double value;
        short small;
        int whole[2];
    } items[3], back[3];
    int lengths[3] = {1, 1, 2};
    /* In memory, and in a file. */
    MPI_Aint places[3] = {offsetof(struct item, value), offsetof(struct item, small), offsetof(struct item, whole)};
    MPI_Aint places_there[3] = {0, 8, 10}, extent;
    MPI_Datatype parts[3] = {MPI_DOUBLE, MPI_SHORT, MPI_INT}, plain, here, there;
    MPI_Status status;
    MPI_Request request;
    char raw[54];
    CALL(MPI_File_set_size(file, 0));
    CALL(MPI_Type_create_struct(3, lengths, places, parts, &plain));
    CALL(MPI_Type_create_resized(plain, 0, sizeof(struct item), &here));
    CALL(MPI_Type_commit(&here));
    CALL(MPI_Type_create_struct(3, lengths, places_there, parts, &there));
    CALL(MPI_Type_commit(&there));
    memset(items, 0, sizeof items);
    memset(back, 0, sizeof back);
    for (int i = 0; i < 3; i++)
        items[i] = (struct item){rank + i / 8.0, (short)(i - 1), {i, -rank}};
    view(there, there, "external32");
    CALL(MPI_File_get_type_extent(file, there, &extent));
    CHECK(extent == 18);
    CALL(MPI_File_write_ordered(file, items, 3, here, &status));
    CALL(MPI_File_iread_at(file, 3 * rank, back, 3, here, &request));
    CALL(MPI_Wait(&request, &status));
    for (int i = 0; i < 3; i++)
        CHECK(back[i].value == items[i].value && back[i].small == items[i].small && back[i].whole[0] == i &&
              back[i].whole[1] == -rank);
    MPI_Barrier(MPI_COMM_WORLD);
    view(MPI_BYTE, MPI_BYTE, "internal");
    CALL(MPI_File_read_at(file, own_place(sizeof raw), raw, sizeof raw, MPI_BYTE, &status));
    for (int i = 0; i < 3; i++)
        CHECK(raw[18 * i + 9] == (char)(i - 1) && raw[18 * i + 13] == i && raw[18 * i + 17] == (char)-rank);
#ifdef OPEN_MPI
    char packed[sizeof raw];
    MPI_Aint at = 0;
    CALL(MPI_Pack_external("external32", items, 3, here, packed, sizeof packed, &at));
    CHECK(at == sizeof packed);
    CHECK(memcmp(raw, packed, sizeof raw) == 0);
#endif
    CALL(MPI_Type_free(&plain));
    CALL(MPI_Type_free(&here));
    CALL(MPI_Type_free(&there));
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc != 2)
        FAIL("usage: %s FILE", argv[0]);
    MPI_File_set_errhandler(MPI_FILE_NULL, MPI_ERRORS_RETURN);
    CALL(MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_RDWR | MPI_MODE_CREATE, MPI_INFO_NULL, &file));
    test_table();
    test_conversion();
    test_views();
    test_packing();
    CALL(MPI_File_close(&file));
    MPI_Finalize();
    return 0;
}
