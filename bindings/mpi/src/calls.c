/* The routines of MPI-IO, under both their names: ours for our files, the MPI library's own for all others.
 *
 * Both names are defined because Fortran layers call the PMPI ones. The MPI library's are found behind us, by the PMPI
 * names, so that none is found twice. */
#include "mpiio.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BOTH_NAMES(name)                                                                                               \
    EXPORT extern __typeof__(MPI_##name) P##MPI_##name __attribute__((alias("MPI_" #name)))

static void *behind_us(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);
    if (found == NULL) {
        fprintf(stderr, "ramlace: no %s behind this library: is MPI linked statically, or another one than it was built for?\n", name);
        abort();
    }
    return found;
}

#define REAL(name)                                                                                                     \
    ({                                                                                                                 \
        static __typeof__(MPI_##name) *real;                                                                           \
        if (real == NULL)                                                                                              \
            real = (__typeof__(MPI_##name) *)behind_us("PMPI_" #name);                                                 \
        real;                                                                                                          \
    })

/* ---- Files as a whole ---- */

EXPORT int MPI_File_open(MPI_Comm comm, const char *filename, int amode, MPI_Info info, MPI_File *fh)
{
    bool ours = false;
    int error = MPI_SUCCESS;
    int groups = 0;
    if (comm != MPI_COMM_NULL && filename != NULL && fh != NULL)
        PMPI_Comm_test_inter(comm, &groups);
    /* Ranks of two groups have no file together: the MPI library says so. */
    if (comm != MPI_COMM_NULL && filename != NULL && fh != NULL && !groups)
        error = file_open(comm, filename, amode, info, fh, &ours);
    if (ours && error != MPI_SUCCESS)
        *fh = MPI_FILE_NULL;
    return ours ? error_raise(NULL, error) : REAL(File_open)(comm, filename, amode, info, fh);
}
BOTH_NAMES(File_open);

EXPORT int MPI_File_close(MPI_File *fh)
{
    struct file *file = fh ? file_find(*fh) : NULL;
    if (file == NULL)
        return REAL(File_close)(fh);
    *fh = MPI_FILE_NULL;
    return file_close(file);
}
BOTH_NAMES(File_close);

EXPORT int MPI_File_delete(const char *filename, MPI_Info info)
{
    bool ours = false;
    int error = filename ? file_delete(filename, &ours) : MPI_SUCCESS;
    return ours ? error_raise(NULL, error) : REAL(File_delete)(filename, info);
}
BOTH_NAMES(File_delete);

/* Does something on the first rank, when all have sent what they wrote before, and sends all how it went. What was lost of
 * what a rank has kept is reported first, here and below: nobody reports it again. */
static int set_size(struct file *file, MPI_Offset size, int (*change)(ramlace_file *, int64_t))
{
    int64_t told[2] = {MPI_SUCCESS, size};
    if (file->amode & MPI_MODE_SEQUENTIAL)
        return MPI_ERR_UNSUPPORTED_OPERATION;
    int error = small_flush(file);
    together_come(file->comm);
    if (file->rank == 0) {
        told[0] = size < 0 ? MPI_ERR_ARG : file->amode & MPI_MODE_RDONLY ? MPI_ERR_READ_ONLY : MPI_SUCCESS;
        if (told[0] == MPI_SUCCESS && change(file->file, size) != 0)
            told[0] = error_class();
    }
    together_tell(told, 2, 0, file->comm);
    small_changed(file);
    if (told[0] == MPI_SUCCESS && told[1] != size)
        told[0] = MPI_ERR_NOT_SAME;
    return error ? error : (int)told[0];
}

EXPORT int MPI_File_set_size(MPI_File fh, MPI_Offset size)
{
    struct file *file = file_find(fh);
    return file ? error_raise(file, set_size(file, size, ramlace_ftruncate)) : REAL(File_set_size)(fh, size);
}
BOTH_NAMES(File_set_size);

EXPORT int MPI_File_preallocate(MPI_File fh, MPI_Offset size)
{
    struct file *file = file_find(fh);
    return file ? error_raise(file, set_size(file, size, ramlace_allocate)) : REAL(File_preallocate)(fh, size);
}
BOTH_NAMES(File_preallocate);

EXPORT int MPI_File_get_size(MPI_File fh, MPI_Offset *size)
{
    struct file *file = file_find(fh);
    if (file == NULL)
        return REAL(File_get_size)(fh, size);
    int64_t bytes = 0;
    int error = file_size(file, &bytes);
    *size = bytes;
    return error_raise(file, error);
}
BOTH_NAMES(File_get_size);

EXPORT int MPI_File_get_group(MPI_File fh, MPI_Group *group)
{
    struct file *file = file_find(fh);
    return file ? error_raise(file, PMPI_Comm_group(file->comm, group)) : REAL(File_get_group)(fh, group);
}
BOTH_NAMES(File_get_group);

EXPORT int MPI_File_get_amode(MPI_File fh, int *amode)
{
    struct file *file = file_find(fh);
    if (file == NULL)
        return REAL(File_get_amode)(fh, amode);
    *amode = file->amode;
    return MPI_SUCCESS;
}
BOTH_NAMES(File_get_amode);

EXPORT int MPI_File_set_info(MPI_File fh, MPI_Info info)
{
    struct file *file = file_find(fh);
    return file ? error_raise(file, file_hints(file, info)) : REAL(File_set_info)(fh, info);
}
BOTH_NAMES(File_set_info);

EXPORT int MPI_File_get_info(MPI_File fh, MPI_Info *info)
{
    struct file *file = file_find(fh);
    return file ? error_raise(file, file_get_info(file, info)) : REAL(File_get_info)(fh, info);
}
BOTH_NAMES(File_get_info);

EXPORT int MPI_File_set_atomicity(MPI_File fh, int flag)
{
    struct file *file = file_find(fh);
    if (file == NULL)
        return REAL(File_set_atomicity)(fh, flag);
    requests_wait(file);
    int error = small_flush(file);
    file->atomic = flag != 0;
    /* Nobody goes on under the old mode once a rank has the new one. */
    together_come(file->comm);
    return error_raise(file, error);
}
BOTH_NAMES(File_set_atomicity);

EXPORT int MPI_File_get_atomicity(MPI_File fh, int *flag)
{
    struct file *file = file_find(fh);
    if (file == NULL)
        return REAL(File_get_atomicity)(fh, flag);
    *flag = file->atomic;
    return MPI_SUCCESS;
}
BOTH_NAMES(File_get_atomicity);

EXPORT int MPI_File_sync(MPI_File fh)
{
    struct file *file = file_find(fh);
    if (file == NULL)
        return REAL(File_sync)(fh);
    int error = small_flush(file), synced = ramlace_fsync(file->file) == 0 ? MPI_SUCCESS : error_class();
    return error_raise(file, error ? error : synced);
}
BOTH_NAMES(File_sync);

/* ---- Views and pointers ---- */

/* Where an etype of the view begins in the file. */
static int place_of(const struct file *file, int64_t etypes, int64_t *place)
{
    int64_t from;
    if (etypes < 0 || __builtin_mul_overflow(etypes, file->view.etype_bytes, &from))
        return MPI_ERR_ARG;
    return tiling_place(&file->view.tiling, from, place);
}

/* Where the shared pointer is in the file when the last rank has come, as the first one sees it; the same on all ranks. */
static int current_place(struct file *file, MPI_Offset *place)
{
    int64_t told[2] = {MPI_SUCCESS, 0}, etypes = 0;
    together_come(file->comm);
    if (file->rank == 0) {
        told[0] = shared_get(file, &etypes);
        if (told[0] == MPI_SUCCESS)
            told[0] = place_of(file, etypes, &told[1]);
    }
    together_tell(told, 2, 0, file->comm);
    *place = told[1];
    return (int)told[0];
}

EXPORT int MPI_File_set_view(MPI_File fh, MPI_Offset disp, MPI_Datatype etype, MPI_Datatype filetype,
                             const char *datarep, MPI_Info info)
{
    struct file *file = file_find(fh);
    if (file == NULL)
        return REAL(File_set_view)(fh, disp, etype, filetype, datarep, info);
    int error = MPI_SUCCESS;
    if ((file->amode & MPI_MODE_SEQUENTIAL) && disp == MPI_DISPLACEMENT_CURRENT)
        error = current_place(file, &disp);
    /* Nobody has a view from a place that is not known. */
    if (error != MPI_SUCCESS)
        return error_raise(file, error);
    error = file_set_view(file, disp, etype, filetype, datarep);
    int hinted = file_hints(file, info);
    return error_raise(file, hinted ? hinted : error);
}
BOTH_NAMES(File_set_view);

EXPORT int MPI_File_get_view(MPI_File fh, MPI_Offset *disp, MPI_Datatype *etype, MPI_Datatype *filetype, char *datarep)
{
    struct file *file = file_find(fh);
    if (file == NULL)
        return REAL(File_get_view)(fh, disp, etype, filetype, datarep);
    *disp = file->view.tiling.start;
    strcpy(datarep, file->view.representation);
    int error = type_keep(file->view.etype, etype);
    return error_raise(file, error ? error : type_keep(file->view.filetype, filetype));
}
BOTH_NAMES(File_get_view);

EXPORT int MPI_File_get_byte_offset(MPI_File fh, MPI_Offset offset, MPI_Offset *disp)
{
    struct file *file = file_find(fh);
    if (file == NULL)
        return REAL(File_get_byte_offset)(fh, offset, disp);
    int64_t place;
    int error = place_of(file, offset, &place);
    if (error == MPI_SUCCESS)
        *disp = place;
    return error_raise(file, error);
}
BOTH_NAMES(File_get_byte_offset);

static int extent_in_file(const struct file *file, MPI_Datatype type, MPI_Count *extent)
{
    int64_t first, last;
    MPI_Count lower;
    /* The MPI library would tell MPI_COMM_WORLD's handler. */
    if (type == MPI_DATATYPE_NULL)
        return MPI_ERR_TYPE;
    if (!file->view.external32)
        return PMPI_Type_get_extent_x(type, &lower, extent);
    int error = external32_bounds(type, &first, &last);
    if (error == MPI_SUCCESS)
        *extent = last - first;
    return error;
}

EXPORT int MPI_File_get_type_extent(MPI_File fh, MPI_Datatype datatype, MPI_Aint *extent)
{
    struct file *file = file_find(fh);
    MPI_Count large = 0;
    if (file == NULL)
        return REAL(File_get_type_extent)(fh, datatype, extent);
    int error = extent_in_file(file, datatype, &large);
    *extent = (MPI_Aint)large;
    return error_raise(file, error);
}
BOTH_NAMES(File_get_type_extent);

/* The end of the file in bytes of the view's data, up to the next etype. */
static int end_of_view(struct file *file, int64_t *end)
{
    int64_t size = 0, unit = file->view.etype_bytes;
    int error = file_size(file, &size);
    *end = (tiling_bytes_below(&file->view.tiling, size) + unit - 1) / unit * unit;
    return error;
}

/* The place that a seek means, in bytes of the view's data. */
static int seek_place(struct file *file, MPI_Offset offset, int whence, int64_t current, int64_t *place)
{
    int64_t from = 0, bytes;
    int error = MPI_SUCCESS;
    if (file->amode & MPI_MODE_SEQUENTIAL)
        return MPI_ERR_UNSUPPORTED_OPERATION;
    if (whence == MPI_SEEK_CUR)
        from = current;
    else if (whence == MPI_SEEK_END)
        error = end_of_view(file, &from);
    else if (whence != MPI_SEEK_SET)
        error = MPI_ERR_ARG;
    if (error != MPI_SUCCESS)
        return error;
    if (__builtin_mul_overflow(offset, file->view.etype_bytes, &bytes) || __builtin_add_overflow(from, bytes, place) ||
        *place < 0)
        return MPI_ERR_ARG;
    return MPI_SUCCESS;
}

EXPORT int MPI_File_seek(MPI_File fh, MPI_Offset offset, int whence)
{
    struct file *file = file_find(fh);
    if (file == NULL)
        return REAL(File_seek)(fh, offset, whence);
    int64_t place;
    pthread_mutex_lock(&file->lock);
    int error = seek_place(file, offset, whence, file->position, &place);
    if (error == MPI_SUCCESS)
        file->position = place;
    pthread_mutex_unlock(&file->lock);
    return error_raise(file, error);
}
BOTH_NAMES(File_seek);

EXPORT int MPI_File_get_position(MPI_File fh, MPI_Offset *offset)
{
    struct file *file = file_find(fh);
    if (file == NULL)
        return REAL(File_get_position)(fh, offset);
    if (file->amode & MPI_MODE_SEQUENTIAL)
        return error_raise(file, MPI_ERR_UNSUPPORTED_OPERATION);
    *offset = file->position / file->view.etype_bytes;
    return MPI_SUCCESS;
}
BOTH_NAMES(File_get_position);

EXPORT int MPI_File_seek_shared(MPI_File fh, MPI_Offset offset, int whence)
{
    struct file *file = file_find(fh);
    if (file == NULL)
        return REAL(File_seek_shared)(fh, offset, whence);
    /* When all have come, nobody moves the pointer, and the file's end is behind all that was written; the first rank says
     * where it goes. */
    int64_t told[2] = {MPI_SUCCESS, 0}, current = 0, bytes = 0;
    int error = small_flush(file);
    together_come(file->comm);
    if (file->rank == 0) {
        if (whence == MPI_SEEK_CUR)
            told[0] = shared_get(file, &current);
        if (told[0] == MPI_SUCCESS)
            told[0] = seek_place(file, offset, whence, current * file->view.etype_bytes, &bytes);
        told[1] = bytes / file->view.etype_bytes;
    }
    together_tell(told, 2, 0, file->comm);
    if (told[0] == MPI_SUCCESS)
        shared_set(file, told[1]);
    return error_raise(file, error ? error : (int)told[0]);
}
BOTH_NAMES(File_seek_shared);

EXPORT int MPI_File_get_position_shared(MPI_File fh, MPI_Offset *offset)
{
    struct file *file = file_find(fh);
    if (file == NULL)
        return REAL(File_get_position_shared)(fh, offset);
    int64_t etypes = 0;
    pthread_mutex_lock(&file->lock);
    int error = shared_get(file, &etypes);
    pthread_mutex_unlock(&file->lock);
    *offset = etypes;
    return error_raise(file, error);
}
BOTH_NAMES(File_get_position_shared);

/* ---- Data ---- */

void status_fill(MPI_Status *status, int64_t bytes)
{
    if (status == MPI_STATUS_IGNORE)
        return;
    PMPI_Status_set_elements_x(status, MPI_BYTE, bytes);
    PMPI_Status_set_cancelled(status, 0);
}

static int data_now(struct file *file, struct access access, MPI_Status *status)
{
    int64_t moved;
    int error = file_access(file, &access, &moved);
    status_fill(status, moved);
    return error_raise(file, error);
}

static int data_request(struct file *file, struct access access, MPI_Request *request)
{
    return error_raise(file, request_start(file, &access, request));
}

/* At most one split collective call of a file is open; its end must be of the same kind. */
static int split_begin(struct file *file, struct access access, const char *kind)
{
    if (file->split != NULL)
        return error_raise(file, MPI_ERR_IO);
    int error = file_access(file, &access, &file->split_bytes);
    if (error == MPI_SUCCESS)
        file->split = kind;
    return error_raise(file, error);
}

static int split_end(struct file *file, MPI_Status *status, const char *kind)
{
    if (file->split == NULL || strcmp(file->split, kind) != 0)
        return error_raise(file, MPI_ERR_IO);
    file->split = NULL;
    status_fill(status, file->split_bytes);
    return MPI_SUCCESS;
}

/* The offset of a routine that has none. */
#define NO_OFFSET 0

/* Whether a routine is collective. */
#define ALONE false
#define TOGETHER true

#define ACCESS(write, together, pointer, offset)                                                                       \
    ((struct access){write, together, pointer, offset, (void *)buf, count, datatype})

#define EXPLICIT(name, write, together, memory, number)                                                                \
    EXPORT int MPI_File_##name(MPI_File fh, MPI_Offset offset, memory buf, number count, MPI_Datatype datatype,        \
                               MPI_Status *status)                                                                     \
    {                                                                                                                  \
        struct file *file = file_find(fh);                                                                             \
        return file ? data_now(file, ACCESS(write, together, AT_OFFSET, offset), status)                               \
                    : REAL(File_##name)(fh, offset, buf, count, datatype, status);                                     \
    }                                                                                                                  \
    BOTH_NAMES(File_##name);

#define EXPLICIT_REQUEST(name, write, together, memory, number)                                                        \
    EXPORT int MPI_File_##name(MPI_File fh, MPI_Offset offset, memory buf, number count, MPI_Datatype datatype,        \
                               MPI_Request *request)                                                                   \
    {                                                                                                                  \
        struct file *file = file_find(fh);                                                                             \
        return file ? data_request(file, ACCESS(write, together, AT_OFFSET, offset), request)                          \
                    : REAL(File_##name)(fh, offset, buf, count, datatype, request);                                    \
    }                                                                                                                  \
    BOTH_NAMES(File_##name);

#define EXPLICIT_BEGIN(name, write, memory, number)                                                                    \
    EXPORT int MPI_File_##name(MPI_File fh, MPI_Offset offset, memory buf, number count, MPI_Datatype datatype)        \
    {                                                                                                                  \
        struct file *file = file_find(fh);                                                                             \
        return file ? split_begin(file, ACCESS(write, TOGETHER, AT_OFFSET, offset), write ? "write_at" : "read_at")    \
                    : REAL(File_##name)(fh, offset, buf, count, datatype);                                             \
    }                                                                                                                  \
    BOTH_NAMES(File_##name);

#define POINTER(name, write, together, memory, number, pointer)                                                        \
    EXPORT int MPI_File_##name(MPI_File fh, memory buf, number count, MPI_Datatype datatype, MPI_Status *status)       \
    {                                                                                                                  \
        struct file *file = file_find(fh);                                                                             \
        return file ? data_now(file, ACCESS(write, together, pointer, NO_OFFSET), status)                              \
                    : REAL(File_##name)(fh, buf, count, datatype, status);                                             \
    }                                                                                                                  \
    BOTH_NAMES(File_##name);

#define POINTER_REQUEST(name, write, together, memory, number, pointer)                                                \
    EXPORT int MPI_File_##name(MPI_File fh, memory buf, number count, MPI_Datatype datatype, MPI_Request *request)     \
    {                                                                                                                  \
        struct file *file = file_find(fh);                                                                             \
        return file ? data_request(file, ACCESS(write, together, pointer, NO_OFFSET), request)                         \
                    : REAL(File_##name)(fh, buf, count, datatype, request);                                            \
    }                                                                                                                  \
    BOTH_NAMES(File_##name);

#define POINTER_BEGIN(name, write, memory, number, pointer, kind)                                                      \
    EXPORT int MPI_File_##name(MPI_File fh, memory buf, number count, MPI_Datatype datatype)                           \
    {                                                                                                                  \
        struct file *file = file_find(fh);                                                                             \
        return file ? split_begin(file, ACCESS(write, TOGETHER, pointer, NO_OFFSET), kind)                             \
                    : REAL(File_##name)(fh, buf, count, datatype);                                                     \
    }                                                                                                                  \
    BOTH_NAMES(File_##name);

#define SPLIT_END(name, memory, kind)                                                                                  \
    EXPORT int MPI_File_##name(MPI_File fh, memory buf, MPI_Status *status)                                            \
    {                                                                                                                  \
        struct file *file = file_find(fh);                                                                             \
        return file ? split_end(file, status, kind) : REAL(File_##name)(fh, buf, status);                              \
    }                                                                                                                  \
    BOTH_NAMES(File_##name);

/* Every data routine, with its number of elements as the suffix has it: none for int, _c for MPI_Count. */
#define READS(suffix, number)                                                                                          \
    EXPLICIT(read_at##suffix, false, ALONE, void *, number)                                                            \
    EXPLICIT(read_at_all##suffix, false, TOGETHER, void *, number)                                                     \
    EXPLICIT_REQUEST(iread_at##suffix, false, ALONE, void *, number)                                                   \
    EXPLICIT_REQUEST(iread_at_all##suffix, false, TOGETHER, void *, number)                                            \
    EXPLICIT_BEGIN(read_at_all_begin##suffix, false, void *, number)                                                   \
    POINTER(read##suffix, false, ALONE, void *, number, AT_POSITION)                                                   \
    POINTER(read_all##suffix, false, TOGETHER, void *, number, AT_POSITION)                                            \
    POINTER(read_shared##suffix, false, ALONE, void *, number, AT_SHARED)                                              \
    POINTER(read_ordered##suffix, false, TOGETHER, void *, number, AT_ORDERED)                                         \
    POINTER_REQUEST(iread##suffix, false, ALONE, void *, number, AT_POSITION)                                          \
    POINTER_REQUEST(iread_all##suffix, false, TOGETHER, void *, number, AT_POSITION)                                   \
    POINTER_REQUEST(iread_shared##suffix, false, ALONE, void *, number, AT_SHARED)                                     \
    POINTER_BEGIN(read_all_begin##suffix, false, void *, number, AT_POSITION, "read_all")                              \
    POINTER_BEGIN(read_ordered_begin##suffix, false, void *, number, AT_ORDERED, "read_ordered")

#define WRITES(suffix, number)                                                                                         \
    EXPLICIT(write_at##suffix, true, ALONE, const void *, number)                                                      \
    EXPLICIT(write_at_all##suffix, true, TOGETHER, const void *, number)                                               \
    EXPLICIT_REQUEST(iwrite_at##suffix, true, ALONE, const void *, number)                                             \
    EXPLICIT_REQUEST(iwrite_at_all##suffix, true, TOGETHER, const void *, number)                                      \
    EXPLICIT_BEGIN(write_at_all_begin##suffix, true, const void *, number)                                             \
    POINTER(write##suffix, true, ALONE, const void *, number, AT_POSITION)                                             \
    POINTER(write_all##suffix, true, TOGETHER, const void *, number, AT_POSITION)                                      \
    POINTER(write_shared##suffix, true, ALONE, const void *, number, AT_SHARED)                                        \
    POINTER(write_ordered##suffix, true, TOGETHER, const void *, number, AT_ORDERED)                                   \
    POINTER_REQUEST(iwrite##suffix, true, ALONE, const void *, number, AT_POSITION)                                    \
    POINTER_REQUEST(iwrite_all##suffix, true, TOGETHER, const void *, number, AT_POSITION)                             \
    POINTER_REQUEST(iwrite_shared##suffix, true, ALONE, const void *, number, AT_SHARED)                               \
    POINTER_BEGIN(write_all_begin##suffix, true, const void *, number, AT_POSITION, "write_all")                       \
    POINTER_BEGIN(write_ordered_begin##suffix, true, const void *, number, AT_ORDERED, "write_ordered")

READS(, int)
WRITES(, int)

SPLIT_END(read_at_all_end, void *, "read_at")
SPLIT_END(read_all_end, void *, "read_all")
SPLIT_END(read_ordered_end, void *, "read_ordered")
SPLIT_END(write_at_all_end, const void *, "write_at")
SPLIT_END(write_all_end, const void *, "write_all")
SPLIT_END(write_ordered_end, const void *, "write_ordered")

#if MPI_VERSION >= 4
READS(_c, MPI_Count)
WRITES(_c, MPI_Count)

EXPORT int MPI_File_get_type_extent_c(MPI_File fh, MPI_Datatype datatype, MPI_Count *extent)
{
    struct file *file = file_find(fh);
    if (file == NULL)
        return REAL(File_get_type_extent_c)(fh, datatype, extent);
    return error_raise(file, extent_in_file(file, datatype, extent));
}
BOTH_NAMES(File_get_type_extent_c);
#endif
