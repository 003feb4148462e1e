/* Datatypes are taken apart by their envelopes and contents, once for each view and for each access with one. */
#include "recipe.h"

#include <stdlib.h>
#include <string.h>

int64_t type_extent(MPI_Datatype type, enum measure measure)
{
    int64_t first, last;
    MPI_Count lower, extent;
    if (measure == IN_EXTERNAL32)
        return external32_bounds(type, &first, &last) == MPI_SUCCESS ? last - first : 0;
    return PMPI_Type_get_extent_x(type, &lower, &extent) == MPI_SUCCESS ? extent : 0;
}

static int flatten_predefined(MPI_Datatype type, struct runs *out)
{
    if (type == MPI_SHORT_INT) {
        /* A named type with a hole. */
        struct pair { short first; int second; };
        int error = runs_append(out, (ramlace_run){0, sizeof(short), 0, 1}, BYTES);
        return error ? error : runs_append(out, (ramlace_run){offsetof(struct pair, second), sizeof(int), 0, 1}, BYTES);
    }
    MPI_Count bytes;
    int error = PMPI_Type_size_x(type, &bytes);
    return error ? error : runs_append(out, (ramlace_run){0, bytes, 0, 1}, BYTES);
}

/* The elements of one dimension that belong to a process: blocks of `block` from `start` on, every `step`, below `size`. */
struct share {
    int64_t start, block, step, size;
};

static int share_of(int distribution, int64_t argument, int64_t size, int64_t processes, int64_t process,
                    struct share *share)
{
    int64_t block = size;
    if (distribution == MPI_DISTRIBUTE_BLOCK)
        block = argument == MPI_DISTRIBUTE_DFLT_DARG ? (size + processes - 1) / processes : argument;
    else if (distribution == MPI_DISTRIBUTE_CYCLIC)
        block = argument == MPI_DISTRIBUTE_DFLT_DARG ? 1 : argument;
    else if (distribution != MPI_DISTRIBUTE_NONE)
        return MPI_ERR_TYPE;
    *share = (struct share){process * block, block, distribution == MPI_DISTRIBUTE_CYCLIC ? processes * block : size, size};
    return MPI_SUCCESS;
}

/* Runs of one dimension more around `inner`, which is used up. */
static int wrap(struct runs *inner, struct share share, int64_t stride)
{
    struct runs outer = {0};
    int error = MPI_SUCCESS;
    for (int64_t at = share.start; at < share.size && error == MPI_SUCCESS; at += share.step) {
        int64_t count = share.size - at < share.block ? share.size - at : share.block;
        error = runs_repeat(&outer, inner, at * stride, count, stride);
    }
    runs_free(inner);
    *inner = outer;
    return error;
}

static int flatten_subarray(const int64_t *numbers, MPI_Datatype element, enum measure measure, struct runs *out)
{
    int64_t dims = numbers[0], stride = type_extent(element, measure);
    const int64_t *sizes = numbers + 1, *subsizes = sizes + dims, *starts = subsizes + dims;
    bool c_order = starts[dims] == MPI_ORDER_C;
    int error = type_flatten(element, measure, out);
    for (int64_t i = 0; i < dims && error == MPI_SUCCESS; i++) {
        int64_t dim = c_order ? dims - 1 - i : i;
        struct share share = {starts[dim], subsizes[dim], sizes[dim], sizes[dim]};
        error = wrap(out, share, stride);
        stride *= sizes[dim];
    }
    return error;
}

static int flatten_darray(const int64_t *numbers, MPI_Datatype element, enum measure measure, struct runs *out)
{
    int64_t dims = numbers[2], rank = numbers[1], stride = type_extent(element, measure);
    const int64_t *sizes = numbers + 3, *distributions = sizes + dims, *arguments = distributions + dims,
                  *processes = arguments + dims;
    bool c_order = processes[dims] == MPI_ORDER_C;
    int64_t *place = malloc(dims * sizeof *place);
    if (place == NULL)
        return MPI_ERR_NO_MEM;
    /* The grid of processes is in C's order whatever that of the array is. */
    for (int64_t dim = dims - 1; dim >= 0; dim--) {
        place[dim] = rank % processes[dim];
        rank /= processes[dim];
    }
    int error = type_flatten(element, measure, out);
    for (int64_t i = 0; i < dims && error == MPI_SUCCESS; i++) {
        int64_t dim = c_order ? dims - 1 - i : i;
        struct share share;
        error = share_of((int)distributions[dim], arguments[dim], sizes[dim], processes[dim], place[dim], &share);
        if (error == MPI_SUCCESS)
            error = wrap(out, share, stride);
        stride *= sizes[dim];
    }
    free(place);
    return error;
}

/* Blocks of one element type: `lengths` of them (or `length` each), `places` in units of `unit`. */
static int flatten_blocks(MPI_Datatype element, enum measure measure, int64_t count, const int64_t *lengths,
                          int64_t length, const int64_t *places, int64_t unit, struct runs *out)
{
    struct runs one = {0};
    int64_t extent = type_extent(element, measure);
    int error = type_flatten(element, measure, &one);
    for (int64_t i = 0; i < count && error == MPI_SUCCESS; i++)
        error = runs_repeat(out, &one, places[i] * unit, lengths ? lengths[i] : length, extent);
    runs_free(&one);
    return error;
}

static int flatten_struct(const struct recipe *recipe, enum measure measure, struct runs *out)
{
    const int64_t *lengths = recipe->numbers + 1;
    int64_t count = recipe->numbers[0];
    int error = MPI_SUCCESS;
    for (int64_t i = 0; i < count && error == MPI_SUCCESS; i++)
        error = flatten_blocks(recipe->types[i], measure, 1, &lengths[i], 0, &lengths[count + i], 1, out);
    return error;
}

/* `count` blocks of `length` elements, `stride` bytes apart. */
static int flatten_vector(MPI_Datatype element, enum measure measure, int64_t count, int64_t length, int64_t stride,
                          struct runs *out)
{
    struct runs one = {0}, block = {0};
    int error = type_flatten(element, measure, &one);
    if (error == MPI_SUCCESS)
        error = runs_repeat(&block, &one, 0, length, type_extent(element, measure));
    if (error == MPI_SUCCESS)
        error = runs_repeat(out, &block, 0, count, stride);
    runs_free(&one);
    runs_free(&block);
    return error;
}

int64_t pair_index_place(const struct recipe *recipe, enum measure measure)
{
    int64_t value = type_extent(recipe->types[0], measure), unit = type_extent(recipe->types[1], measure);
    /* Indices are numbers, which lie at multiples of their size. */
    return measure == IN_EXTERNAL32 || unit <= 0 ? value : (value + unit - 1) / unit * unit;
}

static int flatten_pair(const struct recipe *recipe, enum measure measure, struct runs *out)
{
    const int64_t one = 1, first = 0, second = pair_index_place(recipe, measure);
    int error = flatten_blocks(recipe->types[0], measure, 1, &one, 0, &first, 1, out);
    return error ? error : flatten_blocks(recipe->types[1], measure, 1, &one, 0, &second, 1, out);
}

static int flatten_recipe(const struct recipe *recipe, enum measure measure, struct runs *out)
{
    const int64_t *n = recipe->numbers;
    /* A structure of nothing. */
    if (recipe->type_count == 0)
        return MPI_SUCCESS;
    if (is_pair(recipe->combiner))
        return flatten_pair(recipe, measure, out);
    MPI_Datatype element = recipe->types[0];
    int64_t extent = type_extent(element, measure);
    switch (recipe->combiner) {
    case MPI_COMBINER_DUP:
    case MPI_COMBINER_RESIZED:
        return type_flatten(element, measure, out);
    case MPI_COMBINER_CONTIGUOUS:
        return flatten_vector(element, measure, 1, n[0], 0, out);
    case MPI_COMBINER_VECTOR:
        return flatten_vector(element, measure, n[0], n[1], n[2] * extent, out);
    case MPI_COMBINER_HVECTOR:
        return flatten_vector(element, measure, n[0], n[1], n[2], out);
    case MPI_COMBINER_INDEXED:
        return flatten_blocks(element, measure, n[0], n + 1, 0, n + 1 + n[0], extent, out);
    case MPI_COMBINER_HINDEXED:
        return flatten_blocks(element, measure, n[0], n + 1, 0, n + 1 + n[0], 1, out);
    case MPI_COMBINER_INDEXED_BLOCK:
        return flatten_blocks(element, measure, n[0], NULL, n[1], n + 2, extent, out);
    case MPI_COMBINER_HINDEXED_BLOCK:
        return flatten_blocks(element, measure, n[0], NULL, n[1], n + 2, 1, out);
    case MPI_COMBINER_STRUCT:
        return flatten_struct(recipe, measure, out);
    case MPI_COMBINER_SUBARRAY:
        return flatten_subarray(n, element, measure, out);
    case MPI_COMBINER_DARRAY:
        return flatten_darray(n, element, measure, out);
    default:
        return MPI_ERR_TYPE;
    }
}

int type_flatten(MPI_Datatype type, enum measure measure, struct runs *out)
{
    struct recipe recipe = {0};
    int error = recipe_read(type, &recipe);
    if (error == MPI_SUCCESS && !is_predefined(recipe.combiner))
        error = flatten_recipe(&recipe, measure, out);
    else if (error == MPI_SUCCESS)
        error = measure == IN_MEMORY ? flatten_predefined(type, out) : external32_flatten(type, measure, out);
    recipe_free(&recipe);
    return error;
}

int type_tiling(MPI_Datatype type, enum measure measure, int64_t start, struct tiling *out)
{
    struct runs tile = {0};
    int error = type_flatten(type, measure, &tile);
    if (error == MPI_SUCCESS)
        error = tiling_make(out, &tile, start, type_extent(type, measure));
    runs_free(&tile);
    return error;
}

static bool is_ours_to_free(MPI_Datatype type)
{
    int ints, addresses, types, combiner = MPI_COMBINER_NAMED;
    if (type == MPI_DATATYPE_NULL)
        return false;
#if MPI_VERSION >= 4
    MPI_Count large[4];
    (void)ints, (void)addresses, (void)types;
    PMPI_Type_get_envelope_c(type, &large[0], &large[1], &large[2], &large[3], &combiner);
#else
    PMPI_Type_get_envelope(type, &ints, &addresses, &types, &combiner);
#endif
    return !is_predefined(combiner) && !is_pair(combiner);
}

int type_keep(MPI_Datatype type, MPI_Datatype *kept)
{
    *kept = type;
    return is_ours_to_free(type) ? PMPI_Type_dup(type, kept) : MPI_SUCCESS;
}

void type_release(MPI_Datatype *kept)
{
    if (is_ours_to_free(*kept))
        PMPI_Type_free(kept);
    *kept = MPI_DATATYPE_NULL;
}
