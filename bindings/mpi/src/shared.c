/* Shared file pointers: a cell of 8 bytes at a server, which ranks change by fetch-and-add.
 *
 * The cells of an open file lie in a hidden file beside it, which the first rank that needs one makes and the close takes
 * away. A pointer is a base, which all ranks know, and a cell that began at 0. Whatever sets the pointer (a view, a seek)
 * is collective: all ranks go on to the next cell, so that no message is needed and nobody overtakes anybody. */
#include "mpiio.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *cells_path(const struct file *file, uint64_t number)
{
    const char *path = file->name.path, *base = strrchr(path, '/') + 1;
    char *cells = NULL;
    if (asprintf(&cells, "%.*s.%.128s.shared-%016llx-%llu", (int)(base - path), path, base,
                 (unsigned long long)file->shared_id, (unsigned long long)number) < 0)
        return NULL;
    return cells;
}

/* Opens the file of the cell in use; it is as long as it ever gets. */
static int cells_open(struct file *file)
{
    uint64_t number = file->shared_epoch / CELLS_OF_A_FILE;
    if (file->shared_file != NULL && file->shared_files == number + 1)
        return MPI_SUCCESS;
    if (file->shared_file != NULL)
        ramlace_close(file->shared_file);
    char *path = cells_path(file, number);
    file->shared_file = path ? ramlace_open(file->name.pool->handle, path, O_RDWR | O_CREAT, 0600) : NULL;
    free(path);
    if (file->shared_file == NULL)
        return path ? error_class() : MPI_ERR_NO_MEM;
    file->shared_files = number + 1;
    return ramlace_ftruncate(file->shared_file, 8 * CELLS_OF_A_FILE) == 0 ? MPI_SUCCESS : error_class();
}

int shared_add(struct file *file, int64_t etypes, int64_t *before)
{
    uint64_t was;
    int error = cells_open(file);
    if (error != MPI_SUCCESS)
        return error;
    int64_t cell = 8 * (int64_t)(file->shared_epoch % CELLS_OF_A_FILE);
    if (ramlace_fetch_add(file->shared_file, cell, (uint64_t)etypes, &was) != 0)
        return error_class();
    *before = file->shared_base + (int64_t)was;
    return MPI_SUCCESS;
}

int shared_get(struct file *file, int64_t *etypes)
{
    return shared_add(file, 0, etypes);
}

int shared_add_ordered(struct file *file, int64_t etypes, int64_t *before)
{
    int64_t mine = together_sum_up_to(etypes, file->comm), told[2] = {0, 0};
    /* The last rank knows the sum. */
    int last = file->ranks - 1;
    if (file->rank == last)
        told[0] = shared_add(file, mine, &told[1]);
    together_tell(told, 2, last, file->comm);
    *before = told[1] + mine - etypes;
    return (int)told[0];
}

void shared_set(struct file *file, int64_t etypes)
{
    file->shared_epoch++;
    file->shared_base = etypes;
}

void shared_end(struct file *file, uint64_t files)
{
    if (file->shared_file != NULL)
        ramlace_close(file->shared_file);
    file->shared_file = NULL;
    for (uint64_t number = 0; file->rank == 0 && number < files; number++) {
        char *path = cells_path(file, number);
        /* One that nobody has used was never made. */
        if (path != NULL)
            ramlace_unlink(file->name.pool->handle, path);
        free(path);
    }
}
