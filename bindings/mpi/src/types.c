/* Datatypes are taken apart by their envelopes and contents, once for each view and for each access with one. */
#include "mpiio.h"

#include <stdlib.h>
#include <string.h>

/* How a datatype was made: its numbers in the order of the constructor's arguments, whatever their C types. */
struct recipe {
    int combiner;
    int64_t *numbers;
    MPI_Datatype *types;
    size_t type_count;
};

static bool is_predefined(int combiner)
{
    return combiner == MPI_COMBINER_NAMED || combiner == MPI_COMBINER_F90_INTEGER ||
           combiner == MPI_COMBINER_F90_REAL || combiner == MPI_COMBINER_F90_COMPLEX;
}

static void recipe_free(struct recipe *recipe)
{
    for (size_t i = 0; i < recipe->type_count; i++)
        type_release(&recipe->types[i]);
    free(recipe->types);
    free(recipe->numbers);
}

/* Copies the arguments of a constructor: ints, then addresses. */
static int recipe_read_small(MPI_Datatype type, int ints, int addresses, int types, struct recipe *recipe)
{
    int *small = malloc((ints + 1) * sizeof *small);
    MPI_Aint *large = malloc((addresses + 1) * sizeof *large);
    recipe->numbers = malloc((ints + addresses + 1) * sizeof *recipe->numbers);
    recipe->types = malloc((types + 1) * sizeof *recipe->types);
    int error = MPI_ERR_NO_MEM;
    if (small && large && recipe->numbers && recipe->types)
        error = PMPI_Type_get_contents(type, ints, addresses, types, small, large, recipe->types);
    if (error == MPI_SUCCESS) {
        recipe->type_count = types;
        for (int i = 0; i < ints; i++)
            recipe->numbers[i] = small[i];
        for (int i = 0; i < addresses; i++)
            recipe->numbers[ints + i] = large[i];
    }
    free(small);
    free(large);
    return error;
}

#if MPI_VERSION >= 4
/* The same of a constructor with large counts. Arrays have counts between their ints: ndims (and before it size and rank
 * of a darray), the counts, the rest. */
static int recipe_read_large(MPI_Datatype type, MPI_Count ints, MPI_Count addresses, MPI_Count counts, MPI_Count types,
                             struct recipe *recipe)
{
    int *small = malloc((ints + 1) * sizeof *small);
    MPI_Aint *unused = malloc((addresses + 1) * sizeof *unused);
    MPI_Count *large = malloc((counts + 1) * sizeof *large);
    recipe->numbers = malloc((ints + counts + 1) * sizeof *recipe->numbers);
    recipe->types = malloc((types + 1) * sizeof *recipe->types);
    int error = MPI_ERR_NO_MEM;
    if (small && unused && large && recipe->numbers && recipe->types)
        error = PMPI_Type_get_contents_c(type, ints, addresses, counts, types, small, unused, large, recipe->types);
    if (error == MPI_SUCCESS) {
        MPI_Count head = recipe->combiner == MPI_COMBINER_SUBARRAY ? 1 : 3;
        head = head < ints ? head : ints;
        recipe->type_count = types;
        for (MPI_Count i = 0; i < head; i++)
            recipe->numbers[i] = small[i];
        for (MPI_Count i = 0; i < counts; i++)
            recipe->numbers[head + i] = large[i];
        for (MPI_Count i = head; i < ints; i++)
            recipe->numbers[counts + i] = small[i];
    }
    free(small);
    free(unused);
    free(large);
    return error;
}
#endif

static int recipe_read(MPI_Datatype type, struct recipe *recipe)
{
#if MPI_VERSION >= 4
    MPI_Count ints, addresses, counts, types;
    int error = PMPI_Type_get_envelope_c(type, &ints, &addresses, &counts, &types, &recipe->combiner);
    if (error != MPI_SUCCESS || is_predefined(recipe->combiner))
        return error;
    if (counts > 0)
        return recipe_read_large(type, ints, addresses, counts, types, recipe);
#else
    int ints, addresses, types;
    int error = PMPI_Type_get_envelope(type, &ints, &addresses, &types, &recipe->combiner);
    if (error != MPI_SUCCESS || is_predefined(recipe->combiner))
        return error;
#endif
    return recipe_read_small(type, ints, addresses, types, recipe);
}

static int64_t extent_of(MPI_Datatype type)
{
    MPI_Count lower, extent;
    return PMPI_Type_get_extent_x(type, &lower, &extent) == MPI_SUCCESS ? extent : 0;
}

static int flatten_predefined(MPI_Datatype type, struct runs *out)
{
    if (type == MPI_SHORT_INT) {
        /* A named type with a hole. */
        struct pair { short first; int second; };
        int error = runs_append(out, (ramlace_run){0, sizeof(short), 0, 1});
        return error ? error : runs_append(out, (ramlace_run){offsetof(struct pair, second), sizeof(int), 0, 1});
    }
    MPI_Count bytes;
    int error = PMPI_Type_size_x(type, &bytes);
    return error ? error : runs_append(out, (ramlace_run){0, bytes, 0, 1});
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

static int flatten_subarray(const int64_t *numbers, MPI_Datatype element, struct runs *out)
{
    int64_t dims = numbers[0], stride = extent_of(element);
    const int64_t *sizes = numbers + 1, *subsizes = sizes + dims, *starts = subsizes + dims;
    bool c_order = starts[dims] == MPI_ORDER_C;
    int error = type_flatten(element, out);
    for (int64_t i = 0; i < dims && error == MPI_SUCCESS; i++) {
        int64_t dim = c_order ? dims - 1 - i : i;
        struct share share = {starts[dim], subsizes[dim], sizes[dim], sizes[dim]};
        error = wrap(out, share, stride);
        stride *= sizes[dim];
    }
    return error;
}

static int flatten_darray(const int64_t *numbers, MPI_Datatype element, struct runs *out)
{
    int64_t dims = numbers[2], rank = numbers[1], stride = extent_of(element);
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
    int error = type_flatten(element, out);
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
static int flatten_blocks(MPI_Datatype element, int64_t count, const int64_t *lengths, int64_t length,
                          const int64_t *places, int64_t unit, struct runs *out)
{
    struct runs one = {0};
    int64_t extent = extent_of(element);
    int error = type_flatten(element, &one);
    for (int64_t i = 0; i < count && error == MPI_SUCCESS; i++)
        error = runs_repeat(out, &one, places[i] * unit, lengths ? lengths[i] : length, extent);
    runs_free(&one);
    return error;
}

static int flatten_struct(const struct recipe *recipe, struct runs *out)
{
    const int64_t *lengths = recipe->numbers + 1;
    int64_t count = recipe->numbers[0];
    int error = MPI_SUCCESS;
    for (int64_t i = 0; i < count && error == MPI_SUCCESS; i++)
        error = flatten_blocks(recipe->types[i], 1, &lengths[i], 0, &lengths[count + i], 1, out);
    return error;
}

/* `count` blocks of `length` elements, `stride` bytes apart. */
static int flatten_vector(MPI_Datatype element, int64_t count, int64_t length, int64_t stride, struct runs *out)
{
    struct runs one = {0}, block = {0};
    int error = type_flatten(element, &one);
    if (error == MPI_SUCCESS)
        error = runs_repeat(&block, &one, 0, length, extent_of(element));
    if (error == MPI_SUCCESS)
        error = runs_repeat(out, &block, 0, count, stride);
    runs_free(&one);
    runs_free(&block);
    return error;
}

static int flatten_recipe(const struct recipe *recipe, struct runs *out)
{
    const int64_t *n = recipe->numbers;
    /* A structure of nothing. */
    if (recipe->type_count == 0)
        return MPI_SUCCESS;
    MPI_Datatype element = recipe->types[0];
    int64_t extent = extent_of(element);
    switch (recipe->combiner) {
    case MPI_COMBINER_DUP:
    case MPI_COMBINER_RESIZED:
        return type_flatten(element, out);
    case MPI_COMBINER_CONTIGUOUS:
        return flatten_vector(element, 1, n[0], 0, out);
    case MPI_COMBINER_VECTOR:
        return flatten_vector(element, n[0], n[1], n[2] * extent, out);
    case MPI_COMBINER_HVECTOR:
        return flatten_vector(element, n[0], n[1], n[2], out);
    case MPI_COMBINER_INDEXED:
        return flatten_blocks(element, n[0], n + 1, 0, n + 1 + n[0], extent, out);
    case MPI_COMBINER_HINDEXED:
        return flatten_blocks(element, n[0], n + 1, 0, n + 1 + n[0], 1, out);
    case MPI_COMBINER_INDEXED_BLOCK:
        return flatten_blocks(element, n[0], NULL, n[1], n + 2, extent, out);
    case MPI_COMBINER_HINDEXED_BLOCK:
        return flatten_blocks(element, n[0], NULL, n[1], n + 2, 1, out);
    case MPI_COMBINER_STRUCT:
        return flatten_struct(recipe, out);
    case MPI_COMBINER_SUBARRAY:
        return flatten_subarray(n, element, out);
    case MPI_COMBINER_DARRAY:
        return flatten_darray(n, element, out);
    default:
        return MPI_ERR_TYPE;
    }
}

int type_flatten(MPI_Datatype type, struct runs *out)
{
    struct recipe recipe = {0};
    int error = recipe_read(type, &recipe);
    if (error == MPI_SUCCESS)
        error = is_predefined(recipe.combiner) ? flatten_predefined(type, out) : flatten_recipe(&recipe, out);
    recipe_free(&recipe);
    return error;
}

int type_tiling(MPI_Datatype type, int64_t start, struct tiling *out)
{
    struct runs tile = {0};
    int error = type_flatten(type, &tile);
    if (error == MPI_SUCCESS)
        error = tiling_make(out, &tile, start, extent_of(type));
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
    return !is_predefined(combiner);
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
