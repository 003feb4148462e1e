/* What a file of floats holds: float number i is an exact function of i. */
#ifndef FLOATS_H
#define FLOATS_H

#include <stdint.h>

/* 780 MB, the file of the article. */
#define FLOATS_DEFAULT 195000000

/* 24 bits of a multiplicative hash (Knuth's 2654435761): a float holds them exactly, and
 * neighbours, chunks and pages differ, so that a byte from the wrong place is noticed. */
static inline float float_at(uint64_t i)
{
    return (float)(((uint32_t)i * 2654435761u) >> 8);
}

#endif
