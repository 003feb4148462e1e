/* How a datatype was made, for those that take it apart. */
#ifndef RAMLACE_RECIPE_H
#define RAMLACE_RECIPE_H

#include "mpiio.h"

/* A constructor's numbers in the order of its arguments, whatever their C types, and its datatypes. */
struct recipe {
    int combiner;
    int64_t *numbers;
    MPI_Datatype *types;
    size_t type_count;
};

/* Whether such a type is nobody's to free, and has no contents that matter: named ones, and those of Fortran's kinds. */
bool is_predefined(int combiner);
/* A value and an index, as MPI_Type_get_value_index() returns them: nobody's to free, and its contents are two datatypes. */
bool is_pair(int combiner);
/* Where the index lies behind the value: in memory as in a C structure, in external32 without padding. */
int64_t pair_index_place(const struct recipe *recipe, enum measure measure);
/* Predefined types have a combiner alone. */
int recipe_read(MPI_Datatype type, struct recipe *recipe);
void recipe_free(struct recipe *recipe);

#endif
