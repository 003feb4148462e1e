/* external32: numbers in a file as every machine understands them. Big-endian, with the sizes of MPI's table, nothing
 * between them; MPI_Pack_external is the MPI library's own opinion of the same. */
#include "recipe.h"

#include <endian.h>
#include <float.h>
#include <string.h>

#if LDBL_MANT_DIG == 64
/* Ten bytes of an 80-bit number and padding; a file has it as IEEE's binary128. */
#define LONG_DOUBLE X87
#else
#define LONG_DOUBLE TURNED
#endif

/* Named types: so many elements one behind the other, and the bytes of one in a file. */
static const struct named {
    MPI_Datatype type;
    uint8_t nature, there, count;
} NAMED[] = {
    {MPI_BYTE, PLAIN, 1, 1},
    {MPI_PACKED, PLAIN, 1, 1},
    {MPI_CHAR, PLAIN, 1, 1},
    {MPI_SIGNED_CHAR, PLAIN, 1, 1},
    {MPI_UNSIGNED_CHAR, PLAIN, 1, 1},
    {MPI_CHARACTER, PLAIN, 1, 1},
    {MPI_INT8_T, PLAIN, 1, 1},
    {MPI_UINT8_T, PLAIN, 1, 1},
    {MPI_C_BOOL, PLAIN, 1, 1},
    {MPI_CXX_BOOL, PLAIN, 1, 1},
    {MPI_WCHAR, UNSIGNED, 2, 1},
    {MPI_SHORT, SIGNED, 2, 1},
    {MPI_UNSIGNED_SHORT, UNSIGNED, 2, 1},
    {MPI_INT16_T, SIGNED, 2, 1},
    {MPI_UINT16_T, UNSIGNED, 2, 1},
    {MPI_INT, SIGNED, 4, 1},
    {MPI_UNSIGNED, UNSIGNED, 4, 1},
    {MPI_LONG, SIGNED, 4, 1},
    {MPI_UNSIGNED_LONG, UNSIGNED, 4, 1},
    {MPI_INT32_T, SIGNED, 4, 1},
    {MPI_UINT32_T, UNSIGNED, 4, 1},
    {MPI_INTEGER, SIGNED, 4, 1},
    {MPI_2INT, SIGNED, 4, 2},
    {MPI_2INTEGER, SIGNED, 4, 2},
    {MPI_LOGICAL, UNSIGNED, 4, 1},
    {MPI_LONG_LONG, SIGNED, 8, 1},
    {MPI_UNSIGNED_LONG_LONG, UNSIGNED, 8, 1},
    {MPI_INT64_T, SIGNED, 8, 1},
    {MPI_UINT64_T, UNSIGNED, 8, 1},
    {MPI_AINT, SIGNED, 8, 1},
    {MPI_COUNT, SIGNED, 8, 1},
    {MPI_OFFSET, SIGNED, 8, 1},
    {MPI_FLOAT, TURNED, 4, 1},
    {MPI_REAL, TURNED, 4, 1},
    {MPI_2REAL, TURNED, 4, 2},
    {MPI_C_FLOAT_COMPLEX, TURNED, 4, 2},
    {MPI_CXX_FLOAT_COMPLEX, TURNED, 4, 2},
    {MPI_COMPLEX, TURNED, 4, 2},
    {MPI_DOUBLE, TURNED, 8, 1},
    {MPI_DOUBLE_PRECISION, TURNED, 8, 1},
    {MPI_2DOUBLE_PRECISION, TURNED, 8, 2},
    {MPI_C_DOUBLE_COMPLEX, TURNED, 8, 2},
    {MPI_CXX_DOUBLE_COMPLEX, TURNED, 8, 2},
    {MPI_DOUBLE_COMPLEX, TURNED, 8, 2},
    {MPI_LONG_DOUBLE, LONG_DOUBLE, 16, 1},
    {MPI_C_LONG_DOUBLE_COMPLEX, LONG_DOUBLE, 16, 2},
    {MPI_CXX_LONG_DOUBLE_COMPLEX, LONG_DOUBLE, 16, 2},
    {MPI_INTEGER1, PLAIN, 1, 1},
    {MPI_INTEGER2, SIGNED, 2, 1},
    {MPI_INTEGER4, SIGNED, 4, 1},
    {MPI_INTEGER8, SIGNED, 8, 1},
    {MPI_REAL4, TURNED, 4, 1},
    {MPI_REAL8, TURNED, 8, 1},
    {MPI_REAL16, TURNED, 16, 1},
    {MPI_COMPLEX8, TURNED, 4, 2},
    {MPI_COMPLEX16, TURNED, 8, 2},
    {MPI_COMPLEX32, TURNED, 16, 2},
};

/* Pairs with an int behind the first, where an int may lie. */
static const struct {
    MPI_Datatype pair, first;
} PAIRS[] = {
    {MPI_SHORT_INT, MPI_SHORT},   {MPI_LONG_INT, MPI_LONG},     {MPI_FLOAT_INT, MPI_FLOAT},
    {MPI_DOUBLE_INT, MPI_DOUBLE}, {MPI_LONG_DOUBLE_INT, MPI_LONG_DOUBLE},
};

/* What a predefined type is: one or two sorts of elements, in the order of memory. */
struct basics {
    struct element elements[2];
    int64_t counts[2], places[2];
    int sorts;
};

static int64_t size_of(MPI_Datatype type)
{
    MPI_Count bytes = 0;
    return PMPI_Type_size_x(type, &bytes) == MPI_SUCCESS ? bytes : 0;
}

/* Types of Fortran's kinds: the smallest that MPI's table has for so many digits and such exponents. */
static bool of_kind(MPI_Datatype type, int combiner, struct named *found)
{
    int numbers[2] = {0, 0}, ints = combiner == MPI_COMBINER_F90_INTEGER ? 1 : 2;
    if (PMPI_Type_get_contents(type, ints, 0, 0, numbers, NULL, NULL) != MPI_SUCCESS)
        return false;
    int digits = numbers[0], range = numbers[1];
    /* What the program did not ask for is no small number in every MPI. */
    digits = digits == MPI_UNDEFINED ? 0 : digits;
    range = range == MPI_UNDEFINED ? 0 : range;
    *found = (struct named){type, TURNED, 4, combiner == MPI_COMBINER_F90_COMPLEX ? 2 : 1};
    if (combiner == MPI_COMBINER_F90_INTEGER) {
        found->nature = SIGNED;
        found->there = digits > 18 ? 16 : digits > 9 ? 8 : digits > 4 ? 4 : digits > 2 ? 2 : 1;
    } else if (digits > 15 || range > 307) {
        found->there = 16;
        /* The compiler's kind of 10 bytes has 18 digits; what has more is binary128 here, too. */
        found->nature = digits <= 18 ? LONG_DOUBLE : TURNED;
    } else if (digits > 6 || range > 37) {
        found->there = 8;
    }
    return true;
}

static bool named_of(MPI_Datatype type, struct named *found)
{
    int ints, addresses, types, combiner;
    for (size_t i = 0; i < sizeof NAMED / sizeof *NAMED; i++)
        if (NAMED[i].type == type) {
            *found = NAMED[i];
            return true;
        }
    if (PMPI_Type_get_envelope(type, &ints, &addresses, &types, &combiner) != MPI_SUCCESS)
        return false;
    return combiner != MPI_COMBINER_NAMED && is_predefined(combiner) && of_kind(type, combiner, found);
}

static bool add_basic(MPI_Datatype type, int64_t place, struct basics *basics)
{
    struct named named;
    int64_t bytes = size_of(type);
    if (!named_of(type, &named) || bytes <= 0 || bytes / named.count > 16)
        return false;
    uint8_t here = (uint8_t)(bytes / named.count), nature = named.nature;
    /* Elements of one size that are not of ten bytes differ in the order of their bytes alone. */
    if (nature != PLAIN && nature != X87 && here == named.there)
        nature = TURNED;
    if (nature == TURNED && here != named.there)
        return false;
    basics->elements[basics->sorts] = (struct element){nature, here, named.there};
    basics->counts[basics->sorts] = named.count;
    basics->places[basics->sorts++] = place;
    return true;
}

static int basics_of(MPI_Datatype type, struct basics *basics)
{
    *basics = (struct basics){0};
    for (size_t i = 0; i < sizeof PAIRS / sizeof *PAIRS; i++) {
        int64_t first = size_of(PAIRS[i].first), unit = sizeof(int);
        if (PAIRS[i].pair == type)
            return add_basic(PAIRS[i].first, 0, basics) &&
                           add_basic(MPI_INT, (first + unit - 1) / unit * unit, basics)
                       ? MPI_SUCCESS
                       : MPI_ERR_TYPE;
    }
    return add_basic(type, 0, basics) ? MPI_SUCCESS : MPI_ERR_TYPE;
}

int external32_flatten(MPI_Datatype type, enum measure measure, struct runs *out)
{
    struct basics basics;
    int64_t there = 0;
    int error = size_of(type) == 0 ? MPI_SUCCESS : basics_of(type, &basics);
    for (int i = 0; error == MPI_SUCCESS && size_of(type) > 0 && i < basics.sorts; i++) {
        struct element element = basics.elements[i];
        int64_t bytes = basics.counts[i] * element.there;
        error = measure == AS_ELEMENTS
                    ? runs_append(out, (ramlace_run){basics.places[i], basics.counts[i] * element.here, 0, 1}, element)
                    : runs_append(out, (ramlace_run){there, bytes, 0, 1}, BYTES);
        there += bytes;
    }
    return error;
}

/* ---- Bounds ---- */

struct bounds {
    int64_t lower, upper;
    bool any;
};

/* `count` elements from `place` on. */
static void cover(struct bounds *bounds, int64_t lower, int64_t upper, int64_t place, int64_t count)
{
    if (count <= 0)
        return;
    int64_t last = place + (count - 1) * (upper - lower);
    int64_t first = place < last ? place : last;
    last = place < last ? last : place;
    bounds->lower = bounds->any && bounds->lower < first + lower ? bounds->lower : first + lower;
    bounds->upper = bounds->any && bounds->upper > last + upper ? bounds->upper : last + upper;
    bounds->any = true;
}

static void cover_vector(struct bounds *bounds, int64_t lower, int64_t upper, const int64_t *n, int64_t unit)
{
    if (n[0] <= 0)
        return;
    cover(bounds, lower, upper, 0, n[1]);
    cover(bounds, lower, upper, (n[0] - 1) * n[2] * unit, n[1]);
}

/* Blocks of the lengths that an array has, or all of one length. */
static void cover_blocks(struct bounds *bounds, int64_t lower, int64_t upper, int64_t count, const int64_t *lengths,
                         int64_t length, const int64_t *places, int64_t unit)
{
    for (int64_t i = 0; i < count; i++)
        cover(bounds, lower, upper, places[i] * unit, lengths ? lengths[i] : length);
}

static int cover_struct(const struct recipe *recipe, struct bounds *bounds)
{
    const int64_t *lengths = recipe->numbers + 1, *places = lengths + recipe->numbers[0];
    int error = MPI_SUCCESS;
    for (int64_t i = 0; i < recipe->numbers[0] && error == MPI_SUCCESS; i++) {
        int64_t lower, upper;
        error = external32_bounds(recipe->types[i], &lower, &upper);
        if (error == MPI_SUCCESS)
            cover(bounds, lower, upper, places[i], lengths[i]);
    }
    return error;
}

/* The whole array: sizes as passed. */
static void cover_array(struct bounds *bounds, int64_t extent, const int64_t *sizes, int64_t dims)
{
    for (int64_t dim = 0; dim < dims; dim++)
        extent *= sizes[dim];
    *bounds = (struct bounds){0, extent, true};
}

static int cover_recipe(const struct recipe *recipe, struct bounds *bounds)
{
    const int64_t *n = recipe->numbers;
    int64_t lower, upper;
    if (recipe->combiner == MPI_COMBINER_STRUCT)
        return cover_struct(recipe, bounds);
    int error = external32_bounds(recipe->types[0], &lower, &upper);
    if (error != MPI_SUCCESS)
        return error;
    int64_t extent = upper - lower;
    if (is_pair(recipe->combiner)) {
        *bounds = (struct bounds){0, extent + type_extent(recipe->types[1], IN_EXTERNAL32), true};
        return MPI_SUCCESS;
    }
    switch (recipe->combiner) {
    case MPI_COMBINER_DUP:
        cover(bounds, lower, upper, 0, 1);
        break;
    case MPI_COMBINER_RESIZED:
        *bounds = (struct bounds){n[0], n[0] + n[1], true};
        break;
    case MPI_COMBINER_CONTIGUOUS:
        cover(bounds, lower, upper, 0, n[0]);
        break;
    case MPI_COMBINER_VECTOR:
        cover_vector(bounds, lower, upper, n, extent);
        break;
    case MPI_COMBINER_HVECTOR:
        cover_vector(bounds, lower, upper, n, 1);
        break;
    case MPI_COMBINER_INDEXED:
        cover_blocks(bounds, lower, upper, n[0], n + 1, 0, n + 1 + n[0], extent);
        break;
    case MPI_COMBINER_HINDEXED:
        cover_blocks(bounds, lower, upper, n[0], n + 1, 0, n + 1 + n[0], 1);
        break;
    case MPI_COMBINER_INDEXED_BLOCK:
        cover_blocks(bounds, lower, upper, n[0], NULL, n[1], n + 2, extent);
        break;
    case MPI_COMBINER_HINDEXED_BLOCK:
        cover_blocks(bounds, lower, upper, n[0], NULL, n[1], n + 2, 1);
        break;
    case MPI_COMBINER_SUBARRAY:
        cover_array(bounds, extent, n + 1, n[0]);
        break;
    case MPI_COMBINER_DARRAY:
        cover_array(bounds, extent, n + 3, n[2]);
        break;
    default:
        return MPI_ERR_TYPE;
    }
    return MPI_SUCCESS;
}

int external32_bounds(MPI_Datatype type, int64_t *lower, int64_t *upper)
{
    struct recipe recipe = {0};
    struct bounds bounds = {0};
    struct runs runs = {0};
    int error = recipe_read(type, &recipe);
    if (error == MPI_SUCCESS && is_predefined(recipe.combiner)) {
        error = external32_flatten(type, IN_EXTERNAL32, &runs);
        bounds.upper = external32_bytes(&runs);
    } else if (error == MPI_SUCCESS && recipe.type_count > 0) {
        error = cover_recipe(&recipe, &bounds);
    }
    runs_free(&runs);
    recipe_free(&recipe);
    *lower = bounds.lower;
    *upper = bounds.upper;
    return error;
}

int64_t external32_bytes(const struct runs *runs)
{
    int64_t bytes = 0;
    for (size_t i = 0; i < runs->count; i++)
        bytes += runs->items[i].length / runs->elements[i].here * runs->elements[i].there * runs->items[i].count;
    return bytes;
}

/* ---- Numbers ---- */

/* The same bytes in the order of a file, or back. */
static void turn(const char *from, char *to, int bytes)
{
#if __BYTE_ORDER == __LITTLE_ENDIAN
    for (int i = 0; i < bytes; i++)
        to[i] = from[bytes - 1 - i];
#else
    memcpy(to, from, bytes);
#endif
}

/* A whole number of 1 to 8 bytes, as this machine or as a file has it. */
static uint64_t load(const char *from, int bytes, bool is_signed, bool from_file)
{
    unsigned char value[8] = {0};
    uint64_t number = 0;
    if (from_file)
        memcpy(value, from, bytes);
    else
        turn(from, (char *)value, bytes);
    if (is_signed && (value[0] & 0x80))
        number = UINT64_MAX;
    for (int i = 0; i < bytes; i++)
        number = number << 8 | value[i];
    return number;
}

static void store(char *to, int bytes, uint64_t number, bool into_file)
{
    char value[8];
    for (int i = bytes; i-- > 0; number >>= 8)
        value[i] = (char)number;
    if (into_file)
        memcpy(to, value, bytes);
    else
        turn(value, to, bytes);
}

/* A whole number of another size; false where it does not fit. */
static bool resize(struct element element, bool to_file, const char *from, char *to)
{
    int from_bytes = to_file ? element.here : element.there, to_bytes = to_file ? element.there : element.here;
    bool is_signed = element.nature == SIGNED;
    uint64_t number = load(from, from_bytes, is_signed, !to_file);
    store(to, to_bytes, number, to_file);
    return load(to, to_bytes, is_signed, to_file) == number;
}

#if LDBL_MANT_DIG == 64
static void through_quad(bool to_file, const char *from, char *to)
{
    long double here = 0;
    __float128 there;
    if (to_file) {
        memcpy(&here, from, sizeof here);
        there = here;
        turn((char *)&there, to, sizeof there);
    } else {
        turn(from, (char *)&there, sizeof there);
        here = (long double)there;
        /* Its padding is nobody's, but the same every time. */
        memset(to, 0, sizeof here);
        memcpy(to, &here, 10);
    }
}
#endif

static int convert(struct element element, bool to_file, const char *from, char *to, int64_t count)
{
    int from_bytes = to_file ? element.here : element.there, to_bytes = to_file ? element.there : element.here;
    bool fits = true;
    if (element.nature == PLAIN)
        memcpy(to, from, count * from_bytes);
    for (int64_t i = 0; i < count && element.nature != PLAIN; i++, from += from_bytes, to += to_bytes) {
        if (element.nature == TURNED)
            turn(from, to, from_bytes);
#if LDBL_MANT_DIG == 64
        else if (element.nature == X87)
            through_quad(to_file, from, to);
#endif
        else
            fits &= resize(element, to_file, from, to);
    }
    return fits ? MPI_SUCCESS : MPI_ERR_CONVERSION;
}

int external32_walk(struct walk *walk, enum direction direction, char *base, char *bytes, int64_t room, int64_t *there,
                    int64_t *here)
{
    int error = MPI_SUCCESS;
    while (walk->time < walk->times && walk->runs->count > 0 && error == MPI_SUCCESS) {
        ramlace_run run = walk->runs->items[walk->item];
        struct element element = walk->runs->elements[walk->item];
        int64_t left = (run.length - walk->done) / element.here, fit = room / element.there;
        int64_t count = left < fit ? left : fit;
        char *place = base + walk->time * walk->extent + run.offset + walk->number * run.stride + walk->done;
        if (count == 0)
            break;
        if (direction != MEASURE)
            error = convert(element, direction == TO_FILE, direction == TO_FILE ? place : bytes,
                            direction == TO_FILE ? bytes : place, count);
        bytes += count * element.there;
        room -= count * element.there;
        *there += count * element.there;
        *here += count * element.here;
        walk->done += count * element.here;
        if (walk->done == run.length) {
            walk->done = 0;
            walk->number++;
        }
        if (walk->number == run.count) {
            walk->number = 0;
            walk->item++;
        }
        if (walk->item == walk->runs->count) {
            walk->item = 0;
            walk->time++;
        }
    }
    return error;
}
