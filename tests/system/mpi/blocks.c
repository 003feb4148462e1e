/* An array in rows, of which each rank has a block: blocks of 1,024 rows of 1,024 numbers, and their first rows and columns.
 *
 * usage: blocks FILE [rows NUMBER] [columns NUMBER] [KEY VALUE]... with hints for the open; prints what was made of them */
#include "check.h"

#include <stdint.h>

enum { ROWS = 1024, COLUMNS = 1024 };

int main(int argc, char **argv)
{
    int rank, ranks, found, rows = ROWS, columns = 64;
    char unit[64];
    MPI_Info info;
    MPI_File file;
    MPI_Datatype block;
    MPI_Init(&argc, &argv);
    CHECK(argc > 1);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    CALL(MPI_Info_create(&info));
    for (int i = 2; i + 1 < argc; i += 2)
        if (strcmp(argv[i], "columns") == 0)
            columns = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "rows") == 0)
            rows = atoi(argv[i + 1]);
        else
            CALL(MPI_Info_set(info, argv[i], argv[i + 1]));
    CALL(MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_RDWR | MPI_MODE_CREATE, info, &file));
    CALL(MPI_Info_free(&info));
    CALL(MPI_File_get_info(file, &info));
    CALL(MPI_Info_get(info, "striping_unit", 63, unit, &found));
    CHECK(found);
    CALL(MPI_Info_free(&info));
    int sizes[2] = {ROWS * ranks, COLUMNS}, mine[2] = {rows, columns}, starts[2] = {ROWS * rank, 0};
    CALL(MPI_Type_create_subarray(2, sizes, mine, starts, MPI_ORDER_C, MPI_DOUBLE, &block));
    CALL(MPI_Type_commit(&block));
    CALL(MPI_File_set_view(file, 0, MPI_DOUBLE, block, "native", MPI_INFO_NULL));
    double *out = malloc((size_t)rows * columns * sizeof *out), *in = malloc((size_t)rows * columns * sizeof *in);
    for (int i = 0; i < rows * columns; i++)
        out[i] = rank * 1e7 + i;
    CALL(MPI_File_write_all(file, out, rows * columns, MPI_DOUBLE, MPI_STATUS_IGNORE));
    CALL(MPI_File_seek(file, 0, MPI_SEEK_SET));
    CALL(MPI_File_read_all(file, in, rows * columns, MPI_DOUBLE, MPI_STATUS_IGNORE));
    CHECK(memcmp(in, out, (size_t)rows * columns * sizeof *in) == 0);
    CALL(MPI_Type_free(&block));
    CALL(MPI_File_close(&file));
    if (rank == 0)
        printf("unit %s\n", unit);
    free(out);
    free(in);
    MPI_Finalize();
    return 0;
}
