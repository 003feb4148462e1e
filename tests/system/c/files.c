/* Open files: bytes, positions, sizes. */
#define _GNU_SOURCE
#include "capi_test.h"

#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static void test_flags(void)
{
    char byte = 'x';
    FAILS(ramlace_open(pool, at("flags"), O_RDONLY, 0) == NULL, ENOENT, "flags");
    ramlace_file *file = ramlace_open(pool, at("flags"), O_WRONLY | O_CREAT | O_EXCL, 0640);
    CHECK(file != NULL);
    CHECK(ramlace_write(file, "12345", 5) == 5);
    FAILS(ramlace_pread(file, &byte, 1, 0) == -1, EBADF, "reading");
    CHECK(ramlace_close(file) == 0);
    FAILS(ramlace_open(pool, at("flags"), O_RDWR | O_CREAT | O_EXCL, 0640) == NULL, EEXIST, "flags");
    file = ramlace_open(pool, at("flags"), O_RDONLY | O_CLOEXEC, 0);
    CHECK(file != NULL);
    FAILS(ramlace_write(file, "1", 1) == -1, EBADF, "writing");
    FAILS(ramlace_append(file, "1", 1) == -1, EBADF, "writing");
    FAILS(ramlace_ftruncate(file, 0) == -1, EBADF, "writing");
    CHECK(ramlace_close(file) == 0);
    struct ramlace_stat stat;
    CHECK(ramlace_stat(pool, at("flags"), &stat) == 0);
    CHECK(stat.mode == (S_IFREG | 0640) && stat.size == 5);
    file = ramlace_open(pool, at("flags"), O_WRONLY | O_TRUNC, 0);
    CHECK(file != NULL && ramlace_fstat(file, &stat) == 0);
    CHECK(stat.size == 0);
    CHECK(ramlace_close(file) == 0);
    FAILS(ramlace_open(pool, at("."), O_RDONLY, 0) == NULL, EISDIR, "directory");
}

static void test_append(void)
{
    char back[16] = "";
    ramlace_file *file = ramlace_open(pool, at("log"), O_RDWR | O_CREAT | O_APPEND, 0600);
    CHECK(file != NULL);
    CHECK(ramlace_write(file, "one", 3) == 3);
    CHECK(ramlace_lseek(file, 0, SEEK_SET) == 0);
    CHECK(ramlace_write(file, "two", 3) == 3);
    CHECK(ramlace_lseek(file, 0, SEEK_CUR) == 6);
    CHECK(ramlace_write(file, "", 0) == 0);
    CHECK(ramlace_pwrite(file, "three", 5, 0) == 5);
    CHECK(ramlace_append(file, "4", 1) == 11);
    CHECK(ramlace_pread(file, back, sizeof back, 0) == 12);
    CHECK(memcmp(back, "onetwothree4", 12) == 0);
    CHECK(ramlace_close(file) == 0);
}

static void test_umask(void)
{
    struct ramlace_stat stat;
    mode_t before = umask(027);
    ramlace_file *file = ramlace_open(pool, at("masked"), O_WRONLY | O_CREAT, 0666);
    CHECK(file != NULL && ramlace_close(file) == 0);
    CHECK(ramlace_mkdir(pool, at("masked-dir"), 0777) == 0);
    CHECK(umask(before) == 027);
    CHECK(ramlace_stat(pool, at("masked"), &stat) == 0 && stat.mode == (S_IFREG | 0640));
    CHECK(ramlace_stat(pool, at("masked-dir"), &stat) == 0 && stat.mode == (S_IFDIR | 0750));
}

void test_files(void)
{
    umask(022);
    static unsigned char bytes[5 * UNIT + 7], back[5 * UNIT + 20];
    ramlace_hints hints = RAMLACE_HINTS_INIT;
    hints.stripe_unit = UNIT;
    ramlace_file *file = ramlace_open_with(pool, at("file"), O_RDWR | O_CREAT, 0644, &hints);
    CHECK(file != NULL);
    fill(bytes, 1, sizeof bytes);
    CHECK(ramlace_pwrite(file, bytes, sizeof bytes, 0) == (ssize_t)sizeof bytes);
    CHECK(ramlace_lseek(file, 0, SEEK_CUR) == 0);
    CHECK(ramlace_pread(file, back, sizeof back, 0) == (ssize_t)sizeof bytes);
    CHECK(memcmp(back, bytes, sizeof bytes) == 0);
    CHECK(ramlace_pread(file, back, 10, sizeof bytes) == 0);
    CHECK(ramlace_pread(file, back, 10, INT64_MAX) == 0);
    CHECK(ramlace_pread(file, back, 10, UNIT - 5) == 10);
    CHECK(memcmp(back, bytes + UNIT - 5, 10) == 0);

    CHECK(ramlace_read(file, back, 100) == 100 && ramlace_read(file, back + 100, UNIT) == UNIT);
    CHECK(memcmp(back, bytes, 100 + UNIT) == 0);
    CHECK(ramlace_lseek(file, -50, SEEK_CUR) == 50 + UNIT);
    CHECK(ramlace_read(file, back, 50) == 50 && memcmp(back, bytes + 50 + UNIT, 50) == 0);
    CHECK(ramlace_lseek(file, -7, SEEK_END) == 5 * UNIT);
    CHECK(ramlace_read(file, back, 100) == 7 && ramlace_read(file, back, 100) == 0);
    FAILS(ramlace_lseek(file, -1, SEEK_SET) == -1, EINVAL, "position");
    FAILS(ramlace_lseek(file, INT64_MAX, SEEK_CUR) == -1, EINVAL, "position");
    FAILS(ramlace_lseek(file, 0, 99) == -1, EINVAL, "SEEK_SET");
    CHECK(ramlace_lseek(file, 5, SEEK_DATA) == 5 && ramlace_lseek(file, 0, SEEK_CUR) == 5);
    CHECK(ramlace_lseek(file, 5, SEEK_HOLE) == (int64_t)sizeof bytes);
    FAILS(ramlace_lseek(file, sizeof bytes, SEEK_DATA) == -1, ENXIO, "nothing is left");
    FAILS(ramlace_lseek(file, -1, SEEK_HOLE) == -1, EINVAL, "negative");
    CHECK(ramlace_lseek(file, 0, SEEK_CUR) == (int64_t)sizeof bytes);

    CHECK(ramlace_lseek(file, 3, SEEK_END) == (int64_t)sizeof bytes + 3);
    CHECK(ramlace_write(file, "end", 3) == 3);
    CHECK(ramlace_pread(file, back, 10, sizeof bytes) == 6 && memcmp(back, "\0\0\0end", 6) == 0);
    FAILS(ramlace_pwrite(file, "x", 1, INT64_MAX) == -1, EFBIG, "largest file");
    CHECK(ramlace_ftruncate(file, 10) == 0 && ramlace_ftruncate(file, 20) == 0);
    CHECK(ramlace_pread(file, back, 100, 0) == 20);
    CHECK(memcmp(back, bytes, 10) == 0 && memcmp(back + 10, "\0\0\0\0\0\0\0\0\0", 10) == 0);
    FAILS(ramlace_ftruncate(file, -1) == -1, EINVAL, "negative");

    struct ramlace_stat stat, again;
    CHECK(ramlace_fsync(file) == 0 && ramlace_fstat(file, &stat) == 0);
    CHECK(ramlace_stat(pool, at("file"), &again) == 0);
    CHECK(memcmp(&stat, &again, sizeof stat) == 0);
    CHECK(S_ISREG(stat.mode) && (stat.mode & 07777) == 0644 && stat.size == 20);
    /* Its bytes, or the page of a lane that holds them. */
    CHECK(stat.blocks >= 1 && stat.blocks <= 8);
    CHECK(stat.links == 1 && stat.uid == getuid() && stat.gid == getgid() && stat.inode != 0);
    CHECK(stat.stripe_unit == UNIT && stat.width >= 1 && stat.copies == 1 && stat.generation > 0);
    int64_t now = (int64_t)time(NULL);
    CHECK(stat.modified.seconds > now - 100 && stat.modified.seconds <= now + 1);
    CHECK(stat.modified.nanoseconds < 1000000000 && stat.created.seconds <= stat.changed.seconds);

    CHECK(ramlace_unlink(pool, at("file")) == 0);
    CHECK(ramlace_pread(file, back, 100, 0) == 20);
    CHECK(ramlace_close(file) == 0);
    test_flags();
    test_append();
    test_umask();
}

void test_vectors(void)
{
    static unsigned char bytes[3 * UNIT], back[3 * UNIT + 10];
    ramlace_hints hints = RAMLACE_HINTS_INIT;
    hints.stripe_unit = UNIT;
    ramlace_file *file = ramlace_open_with(pool, at("vectors"), O_RDWR | O_CREAT, 0644, &hints);
    CHECK(file != NULL);
    fill(bytes, 2, sizeof bytes);
    struct iovec parts[4] = {{bytes, 5}, {NULL, 0}, {bytes + 5, UNIT}, {bytes + 5 + UNIT, 2 * UNIT - 5}};
    CHECK(ramlace_pwritev(file, parts, 4, 3) == 3 * UNIT);
    struct iovec places[3] = {{back, UNIT + 1}, {back + UNIT + 1, 9}, {back + UNIT + 10, 2 * UNIT}};
    CHECK(ramlace_preadv(file, places, 3, 0) == 3 * UNIT + 3);
    CHECK(memcmp(back, "\0\0\0", 3) == 0 && memcmp(back + 3, bytes, 3 * UNIT) == 0);
    CHECK(ramlace_preadv(file, places, 0, 0) == 0 && ramlace_preadv(file, NULL, 0, 0) == 0);
    FAILS(ramlace_preadv(file, NULL, 1, 0) == -1, EFAULT, "null");
    FAILS(ramlace_preadv(file, places, -1, 0) == -1, EINVAL, "buffers");
    FAILS(ramlace_pwritev(file, parts, 1025, 0) == -1, EINVAL, "1024");
    FAILS(ramlace_pwritev(file, parts, 4, -1) == -1, EINVAL, "negative");
    struct iovec too_long[2] = {{back, (size_t)1 << 62}, {back, (size_t)1 << 62}};
    FAILS(ramlace_preadv(file, too_long, 2, 0) == -1, EINVAL, "SSIZE_MAX");
    struct iovec overflows[2] = {{back, SIZE_MAX}, {back, 2}};
    FAILS(ramlace_preadv(file, overflows, 2, 0) == -1, EINVAL, "SSIZE_MAX");
    struct iovec null[1] = {{NULL, 1}};
    FAILS(ramlace_preadv(file, null, 1, 0) == -1, EFAULT, "null");
    CHECK(ramlace_close(file) == 0);
}

/* Three planes of four rows and a piece, across borders of chunks; then a tile that comes once. */
static void test_tiles(void)
{
    enum { PLANE = UNIT - 1000, ROWS = 4, EACH = 4 * 16 + 5, ALL = 3 * EACH + 7 };
    static unsigned char bytes[4 * UNIT], back[4 * UNIT], some[ALL];
    ramlace_hints hints = RAMLACE_HINTS_INIT;
    hints.stripe_unit = UNIT;
    ramlace_file *file = ramlace_open_with(pool, at("tiles"), O_RDWR | O_CREAT, 0644, &hints);
    CHECK(file != NULL);
    fill(bytes, 5, sizeof bytes);
    fill(some, 6, sizeof some);
    CHECK(ramlace_pwrite(file, bytes, sizeof bytes, 0) == (ssize_t)sizeof bytes);
    ramlace_run plane[2] = {{20, 16, 50, ROWS}, {300, 5, -1, 1}}, end[1] = {{0, 7, 0, 1}};
    ramlace_tile tiles[2] = {{100, plane, 2, PLANE, 3}, {4 * UNIT - 7, end, 1, -1, 1}};
    CHECK(ramlace_pwrite_tiles(file, some, ALL, tiles, 2) == ALL);
    for (int i = 0; i < 3; i++) {
        for (int row = 0; row < ROWS; row++)
            memcpy(bytes + 120 + i * PLANE + 50 * row, some + i * EACH + 16 * row, 16);
        memcpy(bytes + 400 + i * PLANE, some + i * EACH + 4 * 16, 5);
    }
    memcpy(bytes + sizeof bytes - 7, some + 3 * EACH, 7);
    CHECK(ramlace_pread(file, back, sizeof back, 0) == (ssize_t)sizeof back && memcmp(back, bytes, sizeof back) == 0);
    memset(back, 0, ALL);
    CHECK(ramlace_pread_tiles(file, back, ALL, tiles, 2) == ALL && memcmp(back, some, ALL) == 0);
    /* The file ends within the last tile. */
    tiles[1].offset += 3;
    CHECK(ramlace_pread_tiles(file, back, ALL, tiles, 2) == ALL - 3);
    CHECK(ramlace_pread_tiles(file, NULL, 0, NULL, 0) == 0);
    FAILS(ramlace_pread_tiles(file, back, ALL - 1, tiles, 2) == -1, EINVAL, "the buffer");
    FAILS(ramlace_pread_tiles(file, back, 1, NULL, 1) == -1, EFAULT, "null");
    FAILS(ramlace_pwrite_tiles(file, NULL, ALL, tiles, 2) == -1, EFAULT, "null");
    tiles[0].stride = 284;
    FAILS(ramlace_pwrite_tiles(file, some, ALL, tiles, 2) == -1, EINVAL, "overlaps");
    tiles[0].stride = -PLANE;
    FAILS(ramlace_pwrite_tiles(file, some, ALL, tiles, 2) == -1, EINVAL, "stride of a tile");
    tiles[0] = (ramlace_tile){-1, plane, 2, PLANE, 3};
    FAILS(ramlace_pwrite_tiles(file, some, ALL, tiles, 2) == -1, EINVAL, "offset of a tile");
    tiles[0] = (ramlace_tile){100, plane, 0, PLANE, 3};
    FAILS(ramlace_pwrite_tiles(file, some, ALL, tiles, 2) == -1, EINVAL, "empty");
    tiles[0] = (ramlace_tile){INT64_MAX, plane, 2, PLANE, 3};
    FAILS(ramlace_pwrite_tiles(file, some, ALL, tiles, 2) == -1, EINVAL, "beyond");
    tiles[0] = (ramlace_tile){100, NULL, 2, PLANE, 3};
    FAILS(ramlace_pwrite_tiles(file, some, ALL, tiles, 2) == -1, EFAULT, "null");
    CHECK(ramlace_close(file) == 0);
}

/* What is opened for appending is never overwritten: runs have places of their own. */
static void append_runs(void)
{
    char back[16];
    ramlace_run runs[2] = {{0, 2, 0, 1}, {4, 2, 0, 1}};
    ramlace_tile tile = {0, runs, 2, 0, 1};
    ramlace_file *file = ramlace_open(pool, at("appended"), O_RDWR | O_CREAT | O_APPEND, 0644);
    CHECK(file != NULL && ramlace_pwrite(file, "0123456789", 10, 0) == 10);
    FAILS(ramlace_pwrite_runs(file, "abcd", 4, runs, 2) == -1, EINVAL, "appending");
    FAILS(ramlace_pwrite_runs(file, "ab", 2, runs, 1) == -1, EINVAL, "appending");
    FAILS(ramlace_pwrite_tiles(file, "abcd", 4, &tile, 1) == -1, EINVAL, "appending");
    CHECK(ramlace_pread(file, back, sizeof back, 0) == 10 && memcmp(back, "0123456789", 10) == 0);
    CHECK(ramlace_pread_runs(file, back, 4, runs, 2) == 4 && memcmp(back, "0145", 4) == 0);
    CHECK(ramlace_close(file) == 0);
}

void test_runs(void)
{
    static unsigned char bytes[3 * UNIT], back[3 * UNIT], some[1000];
    ramlace_hints hints = RAMLACE_HINTS_INIT;
    hints.stripe_unit = UNIT;
    ramlace_file *file = ramlace_open_with(pool, at("runs"), O_RDWR | O_CREAT, 0644, &hints);
    CHECK(file != NULL);
    fill(bytes, 3, sizeof bytes);
    CHECK(ramlace_pwrite(file, bytes, sizeof bytes, 0) == (ssize_t)sizeof bytes);
    /* Across a border of chunks; then one more behind the end. */
    ramlace_run runs[2] = {{UNIT - 100, 10, 30, 20}, {3 * UNIT + 50, 8, 0, 1}};
    fill(some, 4, 208);
    CHECK(ramlace_pwrite_runs(file, some, 208, runs, 2) == 208);
    for (int i = 0; i < 20; i++)
        memcpy(bytes + UNIT - 100 + 30 * i, some + 10 * i, 10);
    CHECK(ramlace_pread(file, back, sizeof back, 0) == (ssize_t)sizeof back && memcmp(back, bytes, sizeof back) == 0);
    memset(back, 0, 208);
    CHECK(ramlace_pread_runs(file, back, 208, runs, 2) == 208 && memcmp(back, some, 208) == 0);
    runs[1].length = 9;
    CHECK(ramlace_pread_runs(file, back, 209, runs, 2) == 208);
    CHECK(ramlace_pread_runs(file, NULL, 0, NULL, 0) == 0);
    FAILS(ramlace_pread_runs(file, back, 208, runs, 2) == -1, EINVAL, "209 bytes");
    FAILS(ramlace_pread_runs(file, back, 8, NULL, 1) == -1, EFAULT, "null");
    FAILS(ramlace_pwrite_runs(file, NULL, 209, runs, 2) == -1, EFAULT, "null");
    runs[0].stride = 9;
    FAILS(ramlace_pwrite_runs(file, some, 209, runs, 2) == -1, EINVAL, "overlaps");
    CHECK(ramlace_close(file) == 0);
    append_runs();
    test_tiles();
}

void test_space(void)
{
    unsigned char back[16];
    struct ramlace_stat stat;
    struct ramlace_statfs before, after;
    ramlace_file *file = ramlace_open(pool, at("space"), O_RDWR | O_CREAT, 0644);
    CHECK(file != NULL && ramlace_statfs(pool, &before) == 0);
    CHECK(before.total_bytes > 0 && before.silent_servers == 0 && before.name_bytes_max == 255);
    CHECK(before.used_bytes + before.free_bytes == before.total_bytes && before.inodes > 0);
    CHECK(ramlace_allocate(file, 8 << 20) == 0);
    CHECK(ramlace_statfs(pool, &after) == 0);
    CHECK(after.used_bytes >= before.used_bytes + (8 << 20));
    CHECK(ramlace_fstat(file, &stat) == 0 && stat.size == 8 << 20);
    FAILS(ramlace_allocate(file, (int64_t)1 << 40) == -1, ENOSPC, "full");
    FAILS(ramlace_allocate(file, -1) == -1, EINVAL, "negative");
    CHECK(ramlace_pwrite(file, "0123456789", 10, 1000) == 10);
    CHECK(ramlace_punch(file, 1002, 3) == 0);
    CHECK(ramlace_pread(file, back, 10, 1000) == 10 && memcmp(back, "01\0\0\0" "56789", 10) == 0);
    CHECK(ramlace_punch(file, 0, 0) == 0);
    FAILS(ramlace_punch(file, 0, -1) == -1, EINVAL, "negative");
    FAILS(ramlace_punch(file, INT64_MAX, INT64_MAX) == -1, EFBIG, "largest file");
    CHECK(ramlace_close(file) == 0);
}
