/* Open files by their handles. A handle is a genuine one of the MPI library, opened by this process alone on a file that
 * nobody uses: so its error handler, its Fortran number and its comparison are the MPI library's own business. */
#include "mpiio.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#define BUCKETS 256

static pthread_mutex_t files_lock = PTHREAD_MUTEX_INITIALIZER;
static struct file *files[BUCKETS];

static pthread_mutex_t spare_lock = PTHREAD_MUTEX_INITIALIZER;
static MPI_File *spare;
static size_t spare_count, spare_room;
static bool ends_with_mpi;

static size_t bucket_of(MPI_File handle)
{
    return ((uintptr_t)handle >> 4) % BUCKETS;
}

struct file *file_find(MPI_File handle)
{
    pthread_mutex_lock(&files_lock);
    struct file *file = files[bucket_of(handle)];
    while (file != NULL && file->handle != handle)
        file = file->next;
    pthread_mutex_unlock(&files_lock);
    return file;
}

void file_insert(struct file *file)
{
    pthread_mutex_lock(&files_lock);
    struct file **bucket = &files[bucket_of(file->handle)];
    file->next = *bucket;
    *bucket = file;
    pthread_mutex_unlock(&files_lock);
}

void file_remove(struct file *file)
{
    pthread_mutex_lock(&files_lock);
    struct file **place = &files[bucket_of(file->handle)];
    while (*place != file)
        place = &(*place)->next;
    *place = file->next;
    pthread_mutex_unlock(&files_lock);
}

static void flush_at_end(struct file *file)
{
    char text[MPI_MAX_ERROR_STRING];
    int error = small_flush(file);
    if (error != MPI_SUCCESS)
        fprintf(stderr, "ramlace: %s: what was written last is lost (%s): MPI_File_close would have told the program\n",
                file->name.path, error_text(error, text));
}

void files_flush(void)
{
    pthread_mutex_lock(&files_lock);
    for (size_t bucket = 0; bucket < BUCKETS; bucket++)
        for (struct file *file = files[bucket]; file != NULL; file = file->next)
            flush_at_end(file);
    pthread_mutex_unlock(&files_lock);
}

/* MPI is about to end: MPI_COMM_SELF loses its attributes first. */
static int end_with_mpi(MPI_Comm comm, int key, void *value, void *extra)
{
    (void)comm, (void)key, (void)value, (void)extra;
    requests_end();
    files_flush();
    int (*close)(MPI_File *) = (int (*)(MPI_File *))dlsym(RTLD_NEXT, "PMPI_File_close");
    pthread_mutex_lock(&spare_lock);
    while (spare_count > 0)
        close(&spare[--spare_count]);
    free(spare);
    spare = NULL;
    spare_room = 0;
    pthread_mutex_unlock(&spare_lock);
    pools_disconnect();
    counters_report();
    return MPI_SUCCESS;
}

/* After the first file: the MPI library's own attribute is there by then, and the last one goes first. */
static int watch_the_end(void)
{
    int key, error = MPI_SUCCESS;
    pthread_mutex_lock(&spare_lock);
    if (!ends_with_mpi) {
        error = PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, end_with_mpi, &key, NULL);
        if (error == MPI_SUCCESS)
            error = PMPI_Comm_set_attr(MPI_COMM_SELF, key, NULL);
        ends_with_mpi = error == MPI_SUCCESS;
    }
    pthread_mutex_unlock(&spare_lock);
    return error;
}

/* A handle is set where it was opened, and only there: by the standard's binary interface a failure leaves no MPI_FILE_NULL. */
static int handle_open(MPI_File *handle)
{
    int (*open)(MPI_Comm, const char *, int, MPI_Info, MPI_File *) =
        (int (*)(MPI_Comm, const char *, int, MPI_Info, MPI_File *))dlsym(RTLD_NEXT, "PMPI_File_open");
    MPI_File opened;
    int error = open(MPI_COMM_SELF, "/dev/null", MPI_MODE_RDWR, MPI_INFO_NULL, &opened);
    if (error != MPI_SUCCESS)
        return error;
    *handle = opened;
    return watch_the_end();
}

int handle_take(MPI_File *handle)
{
    pthread_mutex_lock(&spare_lock);
    bool found = spare_count > 0;
    if (found)
        *handle = spare[--spare_count];
    pthread_mutex_unlock(&spare_lock);
    MPI_Errhandler usual;
    int error = MPI_SUCCESS;
    if (!found)
        error = handle_open(handle);
    /* It begins as every file does: with the error handler of MPI_FILE_NULL. */
    if (error == MPI_SUCCESS)
        error = PMPI_File_get_errhandler(MPI_FILE_NULL, &usual);
    if (error == MPI_SUCCESS) {
        error = PMPI_File_set_errhandler(*handle, usual);
        PMPI_Errhandler_free(&usual);
    }
    return error;
}

void handle_give_back(MPI_File handle)
{
    pthread_mutex_lock(&spare_lock);
    if (spare_count == spare_room) {
        size_t room = spare_room ? 2 * spare_room : 8;
        MPI_File *more = realloc(spare, room * sizeof *more);
        if (more != NULL) {
            spare = more;
            spare_room = room;
        }
    }
    /* Without memory for it, one handle is lost until MPI ends. */
    if (spare_count < spare_room)
        spare[spare_count++] = handle;
    pthread_mutex_unlock(&spare_lock);
}
