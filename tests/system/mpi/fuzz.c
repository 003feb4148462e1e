/* Random views, datatypes and calls on a file, and on an image of it in memory to which MPI_Pack and MPI_Unpack give the
 * MPI library's own opinion of each datatype. Bytes, statuses, pointers and the size must agree after each call.
 *
 * The image, and not the MPI library's own files, because these are no oracle: ROMIO takes resized types inside others for
 * contiguous, and its strided reads say at the end of a file that they brought everything; OMPIO seeks to wrong ends.
 *
 * usage: fuzz FILE SEED ROUNDS */
#include "random.h"

/* What a view with one etype in each extent reaches. */
#define IMAGE_BYTES ((size_t)(OFFSET_MAX + COUNT_MAX * BYTES_MAX / 4 + 300) * BYTES_MAX)

/* The file as it should be, and how the calls see it. */
static char *image;
static int64_t image_size, tile_bytes, tile_extent, displacement, position, shared_position;
static bool external32;
static MPI_Datatype filetype;
static MPI_File file;
static char memory[COUNT_MAX * BYTES_MAX], expected[COUNT_MAX * BYTES_MAX];

/* Moves the first `bytes` bytes of the view between the image and `data`, by the MPI library's hand; whole tiles of it. */
static void view_move(char *data, int64_t bytes, bool into_image)
{
    int tiles = (int)((bytes + tile_bytes - 1) / tile_bytes), at = 0, length = tiles * (int)tile_bytes;
    CHECK(displacement + tiles * tile_extent <= (int64_t)IMAGE_BYTES);
    if (into_image)
        CALL(MPI_Unpack(data, length, &at, image + displacement, tiles, filetype, MPI_COMM_SELF));
    else
        CALL(MPI_Pack(image + displacement, tiles, filetype, data, length, &at, MPI_COMM_SELF));
    CHECK(at == length);
}

/* In external32 each element of 4 bytes lies the other way round in a file. */
static void turn(char *data, int64_t bytes)
{
    for (int64_t i = 0; external32 && i + 4 <= bytes; i += 4) {
        char kept[4] = {data[i + 3], data[i + 2], data[i + 1], data[i]};
        memcpy(data + i, kept, 4);
    }
}

/* Where byte `at` of the view's data lies: the image's only byte that is not 0. */
static int64_t place_of(int64_t at)
{
    char *kept = image, *data = calloc(1, (size_t)(at + 1 + tile_bytes));
    image = calloc(1, IMAGE_BYTES);
    data[at] = 1;
    view_move(data, at + 1, true);
    int64_t place = (char *)memchr(image, 1, IMAGE_BYTES) - image;
    free(image);
    free(data);
    image = kept;
    return place;
}

/* The bytes of a view that lie before the end of the file. */
static int64_t bytes_below_end(int64_t from, int64_t bytes)
{
    int64_t low = 0, high = bytes;
    while (low < high) {
        int64_t middle = (low + high + 1) / 2;
        if (place_of(from + middle - 1) < image_size)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* The same call on the image; returns the bytes it moves, and says how far it gets in the file. */
static int64_t model(bool write, int64_t from, MPI_Datatype type, int count, int64_t *reached)
{
    int bytes, at = 0;
    MPI_Type_size(type, &bytes);
    bytes *= count;
    char *data = calloc(1, (size_t)(from + bytes + 2 * tile_bytes)), *packed = malloc((size_t)bytes + 1);
    view_move(data, from + bytes, false);
    int64_t moved = *reached = write ? bytes : bytes_below_end(from, bytes);
    /* Half a number cannot be converted. */
    if (external32)
        moved -= moved % 4;
    if (write) {
        CALL(MPI_Pack(expected, count, type, packed, bytes, &at, MPI_COMM_SELF));
        turn(packed, bytes);
        memcpy(data + from, packed, (size_t)bytes);
        view_move(data, from + bytes, true);
        int64_t end = place_of(from + bytes - 1) + 1;
        image_size = end > image_size ? end : image_size;
    } else {
        /* What lies behind the end leaves the memory as it was. */
        CALL(MPI_Pack(expected, count, type, packed, bytes, &at, MPI_COMM_SELF));
        memcpy(packed, data + from, (size_t)moved);
        turn(packed, moved);
        at = 0;
        CALL(MPI_Unpack(packed, bytes, &at, expected, count, type, MPI_COMM_SELF));
    }
    free(data);
    free(packed);
    return moved;
}

static void access_both(unsigned kind, MPI_Offset offset, int count, MPI_Datatype type)
{
    MPI_Status status;
    MPI_Offset where;
    int bytes;
    for (size_t i = 0; i < sizeof memory; i++)
        memory[i] = expected[i] = (char)below(256);
    bool by_pointer = kind == 2 || kind == 3 || (kind >= 8 && kind <= 10) || kind >= 18, by_shared = kind >= 12 && kind <= 17;
    int64_t from = by_pointer ? position : by_shared ? shared_position : offset * 4, reached;
    int64_t moved = model(kind % 2 == 1, from, type, count, &reached);
    if (by_pointer)
        position += reached;
    /* The shared pointer has moved before anybody knows how much there is. */
    MPI_Type_size(type, &bytes);
    if (by_shared)
        shared_position += (int64_t)bytes * count;
    call(file, kind, offset, memory, count, type, &status);
    CALL(MPI_Get_count(&status, MPI_BYTE, &bytes));
    if (bytes != moved)
        FAIL("call %u moved %d bytes instead of %lld", kind, bytes, (long long)moved);
    if (memcmp(memory, expected, sizeof memory) != 0)
        FAIL("call %u left other bytes in memory", kind);
    CALL(MPI_File_get_position(file, &where));
    if (where != position / 4)
        FAIL("the pointer is at %lld after call %u, not at %lld", (long long)where, kind, (long long)position / 4);
    CALL(MPI_File_get_position_shared(file, &where));
    if (where != shared_position / 4)
        FAIL("the shared pointer is at %lld after call %u", (long long)where, kind);
}

static void seek_both(MPI_Offset offset, int whence)
{
    MPI_Offset where;
    CALL(MPI_File_seek(file, offset, whence));
    if (whence == MPI_SEEK_END)
        position = (bytes_below_end(0, OFFSET_MAX * 4) + 3) / 4 * 4 + offset * 4;
    else
        position = offset * 4 + (whence == MPI_SEEK_CUR ? position : 0);
    CALL(MPI_File_get_position(file, &where));
    if (where != position / 4)
        FAIL("a seek by %d led to %lld, not to %lld", whence, (long long)where, (long long)position / 4);
}

/* The size, and all bytes, in a view of bytes. */
static void compare_file(void)
{
    MPI_Offset size;
    char *whole = malloc(IMAGE_BYTES);
    CALL(MPI_File_get_size(file, &size));
    if (size != image_size)
        FAIL("the file has %lld bytes instead of %lld", (long long)size, (long long)image_size);
    CALL(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
    CALL(MPI_File_read_at(file, 0, whole, (int)size, MPI_BYTE, MPI_STATUS_IGNORE));
    for (int64_t i = 0; i < size; i++)
        if (whole[i] != image[i])
            FAIL("byte %lld of the file is %d instead of %d", (long long)i, whole[i], image[i]);
    free(whole);
}

/* One view, and some calls with it. */
static void round_of_calls(void)
{
    MPI_Aint lower, extent;
    int size;
    filetype = committed_type(3);
    MPI_Type_size(filetype, &size);
    MPI_Type_get_extent(filetype, &lower, &extent);
    tile_bytes = size;
    tile_extent = extent;
    displacement = below(200);
    position = shared_position = 0;
    external32 = below(3) == 0;
    const char *representation = external32 ? "external32" : below(2) ? "internal" : "native";
    CALL(MPI_File_set_view(file, displacement, MPI_INT, filetype, representation, MPI_INFO_NULL));
    for (unsigned i = 0; i < 6; i++) {
        MPI_Datatype type = committed_type(2);
        MPI_Type_get_extent(type, &lower, &extent);
        int count = 1 + (int)below(COUNT_MAX);
        if (position > OFFSET_MAX * 4 || below(3) == 0)
            seek_both(below(OFFSET_MAX), MPI_SEEK_SET);
        if (shared_position > OFFSET_MAX * 4) {
            shared_position = below(OFFSET_MAX) * 4;
            CALL(MPI_File_seek_shared(file, shared_position / 4, MPI_SEEK_SET));
        }
        access_both(below(CALLS), below(OFFSET_MAX), count, type);
        MPI_Offset offset = below(OFFSET_MAX), place;
        CALL(MPI_File_get_byte_offset(file, offset, &place));
        if (place != place_of(offset * 4))
            FAIL("etype %lld lies at %lld", (long long)offset, (long long)place);
        free_type(&type);
    }
    if (place_of(OFFSET_MAX * 4) >= image_size)
        seek_both(below(30), MPI_SEEK_END);
    seek_both(below(30), MPI_SEEK_CUR);
    compare_file();
    free_type(&filetype);
    if (below(4) == 0) {
        MPI_Offset bytes = below((unsigned)image_size + 1000);
        CALL(MPI_File_set_size(file, bytes));
        if (bytes < image_size)
            memset(image + bytes, 0, (size_t)(image_size - bytes));
        image_size = bytes;
    }
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    if (argc != 4)
        FAIL("usage: %s FILE SEED ROUNDS", argv[0]);
    MPI_File_set_errhandler(MPI_FILE_NULL, MPI_ERRORS_RETURN);
    state = 88172645463325252ull + strtoull(argv[2], NULL, 10) * 7919;
    image = calloc(1, IMAGE_BYTES);
    int amode = MPI_MODE_RDWR | MPI_MODE_CREATE;
    MPI_Info info;
    CALL(MPI_Info_create(&info));
    /* Collective calls by two phases, every other time. */
    CALL(MPI_Info_set(info, "collective_buffering", atoi(argv[2]) % 2 ? "true" : "false"));
    CALL(MPI_File_open(MPI_COMM_SELF, argv[1], amode, info, &file));
    CALL(MPI_Info_free(&info));
    for (int rounds = atoi(argv[3]); step < rounds; step++)
        round_of_calls();
    CALL(MPI_File_close(&file));
    free(image);
    MPI_Finalize();
    return 0;
}
