/* A rank of a job dies at the worst moment, and the others, which its launcher lets live, go on with the same open file.
 *
 * usage: dying lock|pointer FILE, rank 1 dies with the locks of an atomic write, or with a place of the shared pointer's; the
 * others print what they have opened */
#define _GNU_SOURCE
#include "check.h"

#include "../../../crates/capi/include/ramlace.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <unistd.h>

enum { BYTES = 100, TIMES = 20 };

static int rank, ranks;
static bool dies_with_lock, dies_with_pointer;

/* The others are notified that it has what it dies with. */
static void die(void)
{
    for (int other = 0; other < ranks; other++)
        if (other != rank)
            MPI_Send(NULL, 0, MPI_BYTE, other, 0, MPI_COMM_WORLD);
    raise(SIGKILL);
}

/* The program stands between the MPI-IO library and the C library. */
int ramlace_unlock(struct ramlace_file *of, int64_t from, int64_t length)
{
    int (*real)(struct ramlace_file *, int64_t, int64_t) = dlsym(RTLD_NEXT, "ramlace_unlock");
    if (dies_with_lock)
        die();
    return real(of, from, length);
}

int ramlace_fetch_add(struct ramlace_file *of, int64_t at, uint64_t add, uint64_t *before)
{
    int (*real)(struct ramlace_file *, int64_t, uint64_t, uint64_t *) = dlsym(RTLD_NEXT, "ramlace_fetch_add");
    int code = real(of, at, add, before);
    if (dies_with_pointer)
        die();
    return code;
}

static void write_all(MPI_File file, bool shared)
{
    char bytes[BYTES];
    memset(bytes, 'a' + rank, BYTES);
    for (int i = 0; i < TIMES; i++)
        CALL(shared ? MPI_File_write_shared(file, bytes, BYTES, MPI_BYTE, MPI_STATUS_IGNORE)
                    : MPI_File_write_at(file, 0, bytes, BYTES, MPI_BYTE, MPI_STATUS_IGNORE));
}

int main(int argc, char **argv)
{
    MPI_File file;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    CHECK(argc == 3 && ranks > 2);
    bool shared = strcmp(argv[1], "pointer") == 0;
    CALL(MPI_File_open(MPI_COMM_WORLD, argv[2], MPI_MODE_RDWR | MPI_MODE_CREATE, MPI_INFO_NULL, &file));
    CALL(MPI_File_set_atomicity(file, !shared));
    dies_with_lock = rank == 1 && !shared;
    dies_with_pointer = rank == 1 && shared;
    if (rank != 1)
        MPI_Recv(NULL, 0, MPI_BYTE, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    write_all(file, shared);
    long (*opens)(void) = dlsym(RTLD_DEFAULT, "ramlace_mpiio_opens");
    printf("rank %d went on, opens %ld\n", rank, opens ? opens() : 0);
    fflush(stdout);
    /* MPI's own end would wait for the one that is dead. */
    _exit(0);
}
