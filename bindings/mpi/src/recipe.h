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
/* Predefined types have a combiner alone. */
int recipe_read(MPI_Datatype type, struct recipe *recipe);
void recipe_free(struct recipe *recipe);

#endif
