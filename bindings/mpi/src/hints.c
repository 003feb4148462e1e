/* Hints: what programs say of a file beforehand, by the names that they know from other libraries. Those that make no sense
 * are as if they were not there, and MPI_File_get_info returns what is in effect. */
#include "mpiio.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BUFFER_BYTES_MIN (64 << 10)
#define BUFFER_BYTES_MAX (64 << 20)
#define BUFFER_BYTES_DEFAULT (4 << 20)
/* Collective writes go by two phases where runs have fewer bytes than this (and see EXCHANGED_PART_MIN). From 16 bytes on
 * lists of runs are as fast, and for reads always. */
#define EXCHANGED_RUN_BYTES_MAX 16

bool hint_text(MPI_Info info, const char *key, char *text)
{
    int found = 0;
    return info != MPI_INFO_NULL &&
           PMPI_Info_get(info, (char *)key, HINT_BYTES_MAX - 1, text, &found) == MPI_SUCCESS && found;
}

bool hint(MPI_Info info, const char *key, unsigned long long *value)
{
    char text[HINT_BYTES_MAX], *end;
    if (!hint_text(info, key, text))
        return false;
    errno = 0;
    *value = strtoull(text, &end, 10);
    return errno == 0 && end != text && *end == '\0';
}

/* ---- Two phases ---- */

static const char *const CHOICES[] = {[CB_DISABLE] = "disable", [CB_AUTOMATIC] = "automatic", [CB_ENABLE] = "enable"};

static void choice_hint(MPI_Info info, const char *key, int64_t *choice)
{
    char text[HINT_BYTES_MAX];
    if (!hint_text(info, key, text))
        return;
    for (int i = CB_DISABLE; i <= CB_ENABLE; i++)
        if (strcmp(text, CHOICES[i]) == 0)
            *choice = i;
}

static void cb_hints(MPI_Info info, struct hints *hints)
{
    char text[HINT_BYTES_MAX];
    unsigned long long value;
    if (hint_text(info, "collective_buffering", text) && (strcmp(text, "true") == 0 || strcmp(text, "false") == 0))
        hints->cb_read = hints->cb_write = text[0] == 't' ? CB_ENABLE : CB_DISABLE;
    choice_hint(info, "romio_cb_read", &hints->cb_read);
    choice_hint(info, "romio_cb_write", &hints->cb_write);
    if (hint(info, "cb_nodes", &value) && value > 0 && value <= INT32_MAX)
        hints->cb_nodes = (int64_t)value;
    if (hint(info, "cb_buffer_size", &value) && value >= BUFFER_BYTES_MIN && value <= BUFFER_BYTES_MAX)
        hints->cb_buffer_size = (int64_t)value;
}

/* Of the styles of access one changes something: for a program that reads in no order nothing is read ahead. */
static void style_hint(MPI_Info info, struct small *small)
{
    char text[HINT_BYTES_MAX], *rest = NULL;
    if (!hint_text(info, "access_style", text))
        return;
    pthread_mutex_lock(&small->lock);
    small->random = false;
    for (char *word = strtok_r(text, ", ", &rest); word != NULL; word = strtok_r(NULL, ", ", &rest))
        small->random = small->random || strcmp(word, "random") == 0;
    pthread_mutex_unlock(&small->lock);
}

/* Whether this rank's view has many small runs, near each other. */
static bool is_tiny(const struct file *file)
{
    const struct tiling *tiling = &file->view.tiling;
    int64_t runs = 0, extent = tiling->extent;
    for (size_t i = 0; i < tiling->tile.count; i++)
        runs += tiling->tile.items[i].count;
    /* What does not come again may reach farther than it says. */
    if (tiling->once)
        extent = run_end(tiling->tile.items[tiling->tile.count - 1]) - tiling->tile.items[0].offset;
    return !tiling_is_contiguous(tiling) && tiling->tile_bytes / EXCHANGED_RUN_BYTES_MAX < runs &&
           extent / file->ranks / EXCHANGED_PART_MIN <= tiling->tile_bytes;
}

/* All ranks choose the same, or some would wait for others that never come: what the least of them says. */
static void agree_on_phases(struct file *file)
{
    struct hints *hints = &file->hints;
    int64_t all[] = {hints->cb_read, hints->cb_write, hints->cb_nodes, hints->cb_buffer_size,
                     is_tiny(file) && file->ranks > 1,
                     !file->view.external32 && !file->view.tiling.overlaps && !file->view.tiling.slides};
    together_reduce(all, sizeof all / sizeof *all, MPI_INT64_T, MPI_MIN, file->comm);
    *hints = (struct hints){all[0], all[1], all[2], all[3]};
    bool never = !all[5], pays[2] = {false, all[4]};
    for (int write = 0; write < 2; write++)
        file->phases[write] = never || (all[write] == CB_AUTOMATIC && !pays[write]) ? CB_DISABLE : (int)all[write];
}

void hints_make(struct file *file)
{
    file->hints = (struct hints){CB_AUTOMATIC, CB_AUTOMATIC, file->ranks, BUFFER_BYTES_DEFAULT};
}

int file_hints(struct file *file, MPI_Info info)
{
    unsigned long long write = file->small.write_room, read = file->small.read_room;
    bool write_room = hint(info, "ind_wr_buffer_size", &write) && write <= SMALL_ROOM_MAX;
    bool read_room = hint(info, "ind_rd_buffer_size", &read) && read <= SMALL_ROOM_MAX;
    cb_hints(info, &file->hints);
    style_hint(info, &file->small);
    if (file->hints.cb_nodes > file->ranks)
        file->hints.cb_nodes = file->ranks;
    agree_on_phases(file);
    if (!write_room && !read_room)
        return MPI_SUCCESS;
    return small_resize(file, write_room ? (int64_t)write : file->small.write_room,
                        read_room ? (int64_t)read : file->small.read_room);
}

/* ---- What is in effect ---- */

static void tell(MPI_Info info, const char *key, unsigned long long value)
{
    char text[HINT_BYTES_MAX];
    snprintf(text, sizeof text, "%llu", value);
    PMPI_Info_set(info, (char *)key, text);
}

int file_get_info(struct file *file, MPI_Info *info)
{
    const struct hints *hints = &file->hints;
    struct ramlace_stat stat, named;
    struct ramlace_layout layout;
    if (ramlace_fstat(file->file, &stat) != 0)
        return error_class();
    int error = PMPI_Info_create(info);
    if (error != MPI_SUCCESS)
        return error;
    tell(*info, "striping_factor", stat.width);
    tell(*info, "striping_unit", stat.stripe_unit);
    /* Where a file begins is known by its path alone: not where that leads elsewhere, or nowhere, by now. */
    if (ramlace_stat(file->name.pool->handle, file->name.path, &named) == 0 && named.inode == stat.inode &&
        ramlace_layout_get(file->name.pool->handle, file->name.path, &layout) == 0 && layout.first_server > 0)
        tell(*info, "start_iodevice", layout.first_server - 1);
    tell(*info, "ind_wr_buffer_size", file->small.write_room);
    tell(*info, "ind_rd_buffer_size", file->small.read_room);
    if (file->small.random)
        PMPI_Info_set(*info, "access_style", "random");
    tell(*info, "cb_nodes", hints->cb_nodes);
    tell(*info, "cb_buffer_size", hints->cb_buffer_size);
    PMPI_Info_set(*info, "romio_cb_read", CHOICES[hints->cb_read]);
    PMPI_Info_set(*info, "romio_cb_write", CHOICES[hints->cb_write]);
    bool never = hints->cb_read == CB_DISABLE && hints->cb_write == CB_DISABLE;
    PMPI_Info_set(*info, "collective_buffering", never ? "false" : "true");
    /* Holes are never read to be written again. */
    PMPI_Info_set(*info, "romio_ds_read", "automatic");
    PMPI_Info_set(*info, "romio_ds_write", "disable");
    return MPI_SUCCESS;
}
