/* Random datatypes, and calls by their number: what the programs share that compare files with something else. */
#ifndef RANDOM_H
#define RANDOM_H

#include "check.h"

#include <stdbool.h>
#include <stdint.h>

/* Bytes of a datatype's extent, elements of one call, etypes before it. */
#define BYTES_MAX 1024
#define COUNT_MAX 4
#define OFFSET_MAX 200

static uint64_t state;

static unsigned below(unsigned limit)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (unsigned)((state >> 11) % limit);
}

static void free_type(MPI_Datatype *type)
{
    int ints, addresses, types, combiner;
    MPI_Type_get_envelope(*type, &ints, &addresses, &types, &combiner);
    if (combiner != MPI_COMBINER_NAMED)
        MPI_Type_free(type);
}

/* Makes a committed type; `etypes` of 4 bytes only, and displacements that do not go back. */
static MPI_Datatype random_type(int depth)
{
    MPI_Datatype inner, type;
    if (depth == 0) {
        static MPI_Datatype const basic[] = {MPI_INT, MPI_FLOAT, MPI_INT32_T, MPI_UNSIGNED};
        return basic[below(4)];
    }
    inner = random_type(depth - 1);
    MPI_Aint lower, extent;
    MPI_Type_get_extent(inner, &lower, &extent);
    int count = 1 + (int)below(3), lengths[4], places[4], at = 0;
    MPI_Aint bytes[4];
    MPI_Datatype types[4];
    for (int i = 0; i < count; i++) {
        lengths[i] = 1 + (int)below(3);
        places[i] = at + (int)below(2);
        bytes[i] = places[i] * extent;
        types[i] = inner;
        at = places[i] + lengths[i] + (int)below(2);
    }
    int sizes[3], subsizes[3], starts[3], distributions[3], arguments[3], grid[3] = {2, 1, 2};
    for (int i = 0; i < 3; i++) {
        sizes[i] = 2 + (int)below(3);
        subsizes[i] = 1 + (int)below(sizes[i]);
        starts[i] = (int)below(sizes[i] - subsizes[i] + 1);
        distributions[i] = below(2) ? MPI_DISTRIBUTE_BLOCK : MPI_DISTRIBUTE_CYCLIC;
        arguments[i] = MPI_DISTRIBUTE_DFLT_DARG;
    }
    if (below(2))
        distributions[1] = MPI_DISTRIBUTE_NONE;
    int order = below(2) ? MPI_ORDER_C : MPI_ORDER_FORTRAN;
    switch (below(11)) {
    case 0:
        CALL(MPI_Type_contiguous(count, inner, &type));
        break;
    case 1:
        CALL(MPI_Type_vector(count, lengths[0], lengths[0] + (int)below(3), inner, &type));
        break;
    case 2:
        CALL(MPI_Type_create_hvector(count, lengths[0], (lengths[0] + (int)below(3)) * extent, inner, &type));
        break;
    case 3:
        CALL(MPI_Type_indexed(count, lengths, places, inner, &type));
        break;
    case 4:
        CALL(MPI_Type_create_hindexed(count, lengths, bytes, inner, &type));
        break;
    case 5:
        for (int i = 0; i < count; i++)
            places[i] = i * (lengths[0] + 1);
        CALL(MPI_Type_create_indexed_block(count, lengths[0], places, inner, &type));
        break;
    case 6:
        CALL(MPI_Type_create_struct(count, lengths, bytes, types, &type));
        break;
    case 7:
        CALL(MPI_Type_create_subarray(3, sizes, subsizes, starts, order, inner, &type));
        break;
    case 8:
        CALL(MPI_Type_create_darray(4, (int)below(4), 3, sizes, distributions, arguments, grid, order, inner, &type));
        break;
    case 9:
        CALL(MPI_Type_create_resized(inner, 0, extent + 4 * (int)below(3), &type));
        break;
    default:
        CALL(MPI_Type_dup(inner, &type));
    }
    /* The new type keeps what it needs of it. */
    free_type(&inner);
    return type;
}

static MPI_Datatype committed_type(int depth_max)
{
    for (;;) {
        MPI_Datatype type = random_type((int)below(depth_max + 1));
        MPI_Aint lower, extent, true_lower, true_extent;
        int size;
        MPI_Type_size(type, &size);
        MPI_Type_get_extent(type, &lower, &extent);
        MPI_Type_get_true_extent(type, &true_lower, &true_extent);
        if (size > 0 && size <= BYTES_MAX && true_lower + true_extent <= BYTES_MAX && extent <= BYTES_MAX &&
            lower == 0 && true_lower + true_extent <= extent) {
            CALL(MPI_Type_commit(&type));
            return type;
        }
        free_type(&type);
    }
}

/* ---- Calls ---- */

#define CALLS 20

/* Reads have even numbers, writes odd ones. */
static void call(MPI_File file, unsigned kind, MPI_Offset offset, void *memory, int count, MPI_Datatype type,
                 MPI_Status *status)
{
    MPI_Request request;
    switch (kind) {
    case 0: CALL(MPI_File_read_at(file, offset, memory, count, type, status)); break;
    case 1: CALL(MPI_File_write_at(file, offset, memory, count, type, status)); break;
    case 2: CALL(MPI_File_read(file, memory, count, type, status)); break;
    case 3: CALL(MPI_File_write(file, memory, count, type, status)); break;
    case 4:
        CALL(MPI_File_iread_at(file, offset, memory, count, type, &request));
        CALL(MPI_Wait(&request, status));
        break;
    case 5:
        CALL(MPI_File_iwrite_at(file, offset, memory, count, type, &request));
        CALL(MPI_Wait(&request, status));
        break;
    case 6: CALL(MPI_File_read_at_all(file, offset, memory, count, type, status)); break;
    case 7: CALL(MPI_File_write_at_all(file, offset, memory, count, type, status)); break;
    case 8: CALL(MPI_File_read_all(file, memory, count, type, status)); break;
    case 9: CALL(MPI_File_write_all(file, memory, count, type, status)); break;
    case 10:
        CALL(MPI_File_read_all_begin(file, memory, count, type));
        CALL(MPI_File_read_all_end(file, memory, status));
        break;
    case 11:
        CALL(MPI_File_write_at_all_begin(file, offset, memory, count, type));
        CALL(MPI_File_write_at_all_end(file, memory, status));
        break;
    case 12: CALL(MPI_File_read_shared(file, memory, count, type, status)); break;
    case 13: CALL(MPI_File_write_shared(file, memory, count, type, status)); break;
    case 14: CALL(MPI_File_read_ordered(file, memory, count, type, status)); break;
    case 15: CALL(MPI_File_write_ordered(file, memory, count, type, status)); break;
    case 16:
        CALL(MPI_File_iread_shared(file, memory, count, type, &request));
        CALL(MPI_Wait(&request, status));
        break;
    case 17:
        CALL(MPI_File_iwrite_shared(file, memory, count, type, &request));
        CALL(MPI_Wait(&request, status));
        break;
    case 18:
        CALL(MPI_File_iread(file, memory, count, type, &request));
        CALL(MPI_Wait(&request, status));
        break;
    default:
        CALL(MPI_File_iwrite_all(file, memory, count, type, &request));
        CALL(MPI_Wait(&request, status));
    }
}

#endif
