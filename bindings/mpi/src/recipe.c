/* How datatypes were made: their envelopes and contents, which the MPI library returns. */
#include "recipe.h"

#include <stdlib.h>

bool is_predefined(int combiner)
{
    return combiner == MPI_COMBINER_NAMED || combiner == MPI_COMBINER_F90_INTEGER ||
           combiner == MPI_COMBINER_F90_REAL || combiner == MPI_COMBINER_F90_COMPLEX;
}

bool is_pair(int combiner)
{
    /* Its name may be a macro or a constant, and MPI's version says whether it is there. */
#if MPI_VERSION > 4 || (MPI_VERSION == 4 && MPI_SUBVERSION >= 1)
    return combiner == MPI_COMBINER_VALUE_INDEX;
#else
    (void)combiner;
    return false;
#endif
}

void recipe_free(struct recipe *recipe)
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

int recipe_read(MPI_Datatype type, struct recipe *recipe)
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
