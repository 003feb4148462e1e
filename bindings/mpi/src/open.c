/* Opening, closing, views: what all ranks of a file do together. */
#include "mpiio.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

static int check_amode(int amode)
{
    int ways = !!(amode & MPI_MODE_RDONLY) + !!(amode & MPI_MODE_WRONLY) + !!(amode & MPI_MODE_RDWR);
    bool makes = amode & (MPI_MODE_CREATE | MPI_MODE_EXCL);
    if (ways != 1 || ((amode & MPI_MODE_RDONLY) && makes) || ((amode & MPI_MODE_RDWR) && (amode & MPI_MODE_SEQUENTIAL)))
        return MPI_ERR_AMODE;
    return MPI_SUCCESS;
}

static int64_t hash(const void *bytes, size_t length)
{
    uint64_t value = 14695981039346656037u;
    for (const unsigned char *at = bytes; length > 0; at++, length--)
        value = (value ^ *at) * 1099511628211u;
    /* Its negative is a number, too. */
    return (int64_t)(value >> 1);
}

/* What the ranks think of the file. */
struct agreement {
    /* A rank knows it by a locator; all know it as ours; all mean the same file, and in the same way. */
    bool by_locator, all_ours, same;
    /* All run on one machine; the first asks for a new file's bytes to be near the ranks that use them. */
    bool one_machine, near;
    /* The largest class of an error. */
    int error;
};

static struct agreement agree(MPI_Comm comm, const struct name *name, int amode, const struct placing *placing, int error)
{
    bool known = name->path != NULL;
    /* The smallest of a number and of its negative: equal numbers are those whose sum is 0. */
    int64_t pool = known ? hash(name->pool->id, strlen(name->pool->id)) : 0;
    int64_t path = known ? hash(name->path, strlen(name->path)) : 0, machine = hash(placing->own, sizeof placing->own);
    int64_t all[12] = {pool, -pool, path, -path, amode, -amode, -(name->place == PLACE_LOCATOR),
                       name->place != PLACE_FOREIGN, -error, machine, -machine, -placing->near};
    together_reduce(all, 12, MPI_INT64_T, MPI_MIN, comm);
    bool same = all[0] + all[1] == 0 && all[2] + all[3] == 0 && all[4] + all[5] == 0;
    return (struct agreement){all[6] != 0, all[7] != 0, same, all[9] + all[10] == 0, all[11] != 0, (int)-all[8]};
}

static int open_file(struct file *file, bool creating, const struct ramlace_hints *hints)
{
    int flags = file->amode & MPI_MODE_RDONLY ? O_RDONLY : file->amode & MPI_MODE_WRONLY ? O_WRONLY : O_RDWR;
    if (creating && (file->amode & MPI_MODE_CREATE))
        flags |= O_CREAT | (file->amode & MPI_MODE_EXCL ? O_EXCL : 0);
    file->file = ramlace_open_with(file->name.pool->handle, file->name.path, flags, 0666, hints);
    return file->file ? MPI_SUCCESS : error_class();
}

int file_size(struct file *file, int64_t *size)
{
    struct ramlace_stat stat;
    int error = small_flush(file);
    if (error == MPI_SUCCESS && ramlace_fstat(file->file, &stat) != 0)
        error = error_class();
    if (error == MPI_SUCCESS)
        *size = (int64_t)stat.size;
    return error;
}

/* The first rank makes the file, reports how that went, and the others open what is there. */
static int open_together(struct file *file, MPI_Info info, bool one_machine, struct placing *placing)
{
    struct ramlace_hints hints;
    int64_t told[3] = {MPI_SUCCESS, 0, 0};
    if (file->rank == 0) {
        told[0] = placing_hints(placing, one_machine, info, &hints);
        if (told[0] == MPI_SUCCESS)
            told[0] = open_file(file, true, &hints);
        if (getrandom(&told[1], sizeof told[1], 0) != sizeof told[1])
            told[1] = (int64_t)(uintptr_t)file;
        if (told[0] == MPI_SUCCESS && (file->amode & MPI_MODE_APPEND))
            told[0] = file_size(file, &told[2]);
    }
    together_tell(told, 3, 0, file->comm);
    file->shared_id = (uint64_t)told[1];
    file->shared_base = file->position = told[2];
    int mine = (int)told[0];
    if (mine == MPI_SUCCESS && file->rank != 0)
        mine = open_file(file, false, NULL);
    int all = mine;
    if (told[0] == MPI_SUCCESS && file->ranks > 1)
        together_reduce(&all, 1, MPI_INT, MPI_MAX, file->comm);
    return mine ? mine : all;
}

static void file_forget(struct file *file)
{
    if (file->handle != MPI_FILE_NULL)
        handle_give_back(file->handle);
    small_end(file);
    if (file->file != NULL)
        ramlace_close(file->file);
    tiling_free(&file->view.tiling);
    type_release(&file->view.etype);
    type_release(&file->view.filetype);
    name_free(&file->name);
    name_free(&file->on_close);
    if (file->comm != MPI_COMM_NULL)
        PMPI_Comm_free(&file->comm);
    pthread_mutex_destroy(&file->lock);
    free(file);
}

/* What a rank can make by itself, and may fail to: memory and a handle. The name goes over to the file. */
static int file_prepare(const char *filename, struct name *name, int amode, struct file **made)
{
    struct file *file = *made = calloc(1, sizeof *file);
    if (file == NULL)
        return MPI_ERR_NO_MEM;
    pthread_mutex_init(&file->lock, NULL);
    small_make(&file->small);
    file->name = *name;
    *name = (struct name){PLACE_FOREIGN, NULL, NULL};
    file->handle = MPI_FILE_NULL;
    file->comm = MPI_COMM_NULL;
    file->view.etype = file->view.filetype = MPI_DATATYPE_NULL;
    file->amode = amode;
    /* Now: the working directory may be another one then. */
    int error = amode & MPI_MODE_DELETE_ON_CLOSE ? name_to_delete(filename, &file->on_close) : MPI_SUCCESS;
    if (error == MPI_SUCCESS)
        error = handle_take(&file->handle);
    return error ? error : file_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native");
}

/* A communicator of the file's own, or an error of all ranks: ranks that have one do not wait in it for a rank that has none. */
static int comm_make(struct file *file, MPI_Comm comm)
{
    int mine = MPI_SUCCESS, code = together_copy(comm, &file->comm);
    if (code != MPI_SUCCESS) {
        PMPI_Error_class(code, &mine);
        file->comm = MPI_COMM_NULL;
    }
    int all = mine;
    together_reduce(&all, 1, MPI_INT, MPI_MAX, comm);
    return mine ? mine : all;
}

/* What ranks do together; an error is one of them all. */
static int file_make(struct file *file, MPI_Comm comm, MPI_Info info, const struct agreement *all, struct placing *placing)
{
    int error = comm_make(file, comm);
    if (error != MPI_SUCCESS)
        return error;
    PMPI_Comm_rank(file->comm, &file->rank);
    PMPI_Comm_size(file->comm, &file->ranks);
    hints_make(file);
    if (all->near && !all->one_machine)
        placing_gather(placing, file->comm);
    error = open_together(file, info, all->one_machine, placing);
    return error ? error : file_hints(file, info);
}

int file_open(MPI_Comm comm, const char *filename, int amode, MPI_Info info, MPI_File *handle, bool *ours)
{
    struct name name;
    struct placing placing;
    struct file *file = NULL;
    /* A name that is to be new is no link to anything. */
    bool follow = !(amode & MPI_MODE_CREATE) || !(amode & MPI_MODE_EXCL);
    int error = name_resolve(filename, !(amode & MPI_MODE_RDONLY), follow, &name);
    if (error == MPI_SUCCESS && name.place != PLACE_FOREIGN)
        error = check_amode(amode);
    if (error == MPI_SUCCESS && name.place != PLACE_FOREIGN)
        error = file_prepare(filename, &name, amode, &file);
    int placed = placing_make(&placing, comm, amode, info);
    error = error ? error : placed;
    struct agreement all = agree(comm, file ? &file->name : &name, amode, &placing, error);
    /* Where a rank does not see the mount, or not its pool, the MPI library's own way is the same for all. */
    *ours = all.all_ours || all.by_locator;
    if (error == MPI_SUCCESS && *ours && all.error != MPI_SUCCESS)
        error = all.error;
    if (error == MPI_SUCCESS && *ours && !(all.all_ours && all.same))
        error = MPI_ERR_NOT_SAME;
    if (*ours && error == MPI_SUCCESS)
        error = file_make(file, comm, info, &all, &placing);
    placing_free(&placing);
    name_free(&name);
    if (*ours && error == MPI_SUCCESS) {
        *handle = file->handle;
        file_insert(file);
        __atomic_fetch_add(&counters.opens, 1, __ATOMIC_RELAXED);
    } else if (file != NULL) {
        file_forget(file);
    }
    return *ours ? error : MPI_SUCCESS;
}

int file_close(struct file *file)
{
    uint64_t files = file->shared_files;
    requests_wait(file);
    /* The file is one, with a handler of its own, until the end. */
    int flushed = error_raise(file, small_flush(file));
    /* Nobody uses the file any more when this has returned. */
    together_reduce(&files, 1, MPI_UINT64_T, MPI_MAX, file->comm);
    shared_end(file, files);
    int error = ramlace_close(file->file) == 0 ? MPI_SUCCESS : error_class();
    file->file = NULL;
    if ((file->amode & MPI_MODE_DELETE_ON_CLOSE) && file->rank == 0) {
        int deleted = name_delete(&file->on_close);
        error = deleted == MPI_SUCCESS || deleted == MPI_ERR_NO_SUCH_FILE ? error : deleted;
    }
    if (file->amode & MPI_MODE_DELETE_ON_CLOSE)
        together_come(file->comm);
    int code = flushed ? flushed : error_raise(file, error);
    file_remove(file);
    file_forget(file);
    return code;
}

int file_delete(const char *filename, bool *ours)
{
    struct name name;
    int error = name_to_delete(filename, &name);
    *ours = name.place != PLACE_FOREIGN;
    if (error == MPI_SUCCESS && *ours)
        error = name_delete(&name);
    name_free(&name);
    return error;
}

/* The view's tiling and types, checked. What is written has one place; what is read may be asked for twice. */
static int view_make(MPI_Offset displacement, MPI_Datatype etype, MPI_Datatype filetype, bool may_overlap, struct view *view)
{
    enum measure measure = view->external32 ? IN_EXTERNAL32 : IN_MEMORY;
    struct tiling one = {0};
    if (etype == MPI_DATATYPE_NULL || filetype == MPI_DATATYPE_NULL)
        return MPI_ERR_TYPE;
    int error = type_tiling(etype, measure, 0, &one);
    view->etype_bytes = one.tile_bytes;
    tiling_free(&one);
    if (error == MPI_SUCCESS && view->etype_bytes <= 0)
        error = MPI_ERR_ARG;
    if (error == MPI_SUCCESS)
        error = type_tiling(filetype, measure, displacement, &view->tiling);
    if (error != MPI_SUCCESS)
        return error;
    if (view->tiling.tile_bytes % view->etype_bytes != 0)
        return MPI_ERR_ARG;
    if (!tiling_is_ascending(&view->tiling, may_overlap) || (view->tiling.tile_bytes > 0 && view->tiling.extent <= 0))
        return MPI_ERR_IO;
    error = type_keep(etype, &view->etype);
    return error ? error : type_keep(filetype, &view->filetype);
}

int file_set_view(struct file *file, MPI_Offset displacement, MPI_Datatype etype, MPI_Datatype filetype,
                  const char *representation)
{
    struct view view = {.etype = MPI_DATATYPE_NULL, .filetype = MPI_DATATYPE_NULL};
    int error = displacement < 0 ? MPI_ERR_ARG : MPI_SUCCESS;
    /* On machines of one kind, which pools have, what programs call internal is as the memory has it. */
    view.external32 = strcmp(representation, "external32") == 0;
    if (!view.external32 && strcmp(representation, "native") != 0 && strcmp(representation, "internal") != 0)
        error = MPI_ERR_UNSUPPORTED_DATAREP;
    if (error == MPI_SUCCESS)
        error = view_make(displacement, etype, filetype, file->amode & MPI_MODE_RDONLY, &view);
    requests_wait(file);
    pthread_mutex_lock(&file->lock);
    struct view *old = &file->view;
    if (error == MPI_SUCCESS) {
        struct view was = *old;
        *old = view;
        view = was;
        strcpy(old->representation, representation);
        file->position = 0;
    }
    /* All ranks go on to the next cell, also one whose view is refused. */
    shared_set(file, 0);
    pthread_mutex_unlock(&file->lock);
    tiling_free(&view.tiling);
    type_release(&view.etype);
    type_release(&view.filetype);
    return error;
}
