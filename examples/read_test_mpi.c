/*
 * read_test by MPI-IO: the ranks share the reads, and add up together what they have read.
 *
 *     mpicc -O2 read_test_mpi.c -o read_test_mpi
 *     ramlace mpirun -np 2 ./read_test_mpi --sum ramlace:/floats
 *
 * It knows nothing of pools: without the library it reads any file that MPI-IO reads.
 */
#define _POSIX_C_SOURCE 200809L

#include <mpi.h>

#include "read_test.h"

/* Floats of one call, whose count is an int. */
#define CALL_FLOATS_MAX ((uint64_t)1 << 28)

static MPI_File input;

/* Ends the program when a call has failed. */
static void checked(int code, const char *doing)
{
    char text[MPI_MAX_ERROR_STRING];
    int length;
    if (code == MPI_SUCCESS)
        return;
    MPI_Error_string(code, text, &length);
    fprintf(stderr, "read_test_mpi: %s: %s\n", doing, text);
    MPI_Abort(MPI_COMM_WORLD, 1);
    exit(1);
}

static uint64_t input_open(const char *path)
{
    MPI_Offset bytes;
    checked(MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_RDONLY, MPI_INFO_NULL, &input), path);
    checked(MPI_File_set_view(input, 0, MPI_FLOAT, MPI_FLOAT, "native", MPI_INFO_NULL), path);
    checked(MPI_File_get_size(input, &bytes), path);
    return (uint64_t)bytes;
}

static void input_seek(uint64_t offset)
{
    checked(MPI_File_seek(input, (MPI_Offset)(offset / sizeof(float)), MPI_SEEK_SET), "seeking");
}

static void input_read(void *buffer, size_t bytes)
{
    float *at = buffer;
    for (uint64_t left = bytes / sizeof(float); left > 0;) {
        MPI_Status status;
        int count = (int)(left < CALL_FLOATS_MAX ? left : CALL_FLOATS_MAX), came = 0;
        checked(MPI_File_read(input, at, count, MPI_FLOAT, &status), "reading");
        checked(MPI_Get_count(&status, MPI_FLOAT, &came), "reading");
        if (came != count) {
            fprintf(stderr, "read_test_mpi: the file has become shorter\n");
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
        at += count;
        left -= (uint64_t)count;
    }
}

static void input_close(void)
{
    checked(MPI_File_close(&input), "closing");
}

static uint64_t input_sum(uint64_t own)
{
    uint64_t all;
    checked(MPI_Allreduce(&own, &all, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD), "adding up");
    return all;
}

int main(int argc, char **argv)
{
    checked(MPI_Init(&argc, &argv), "beginning");
    MPI_Comm_rank(MPI_COMM_WORLD, &read_test_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &read_test_ranks);
    int code = read_test(argc, argv);
    MPI_Finalize();
    return code;
}
