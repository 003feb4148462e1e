/* Locks, barriers, cells, and waiting for a change. */
#include "capi_test.h"

#include <pthread.h>
#include <unistd.h>

/* Ranges may end where no file does; in relaxed mode their bytes are refreshed and published, too. */
static void lock_to_the_end_of_all_offsets(int flags)
{
    static const int64_t ranges[][2] = {{1, INT64_MAX}, {INT64_MAX, 1}, {INT64_MAX, 0}};

    ramlace_file *one = ramlace_open(pool, at("locked"), flags, 0);
    ramlace_file *two = ramlace_open(pool, at("locked"), flags, 0);
    CHECK(one != NULL && two != NULL);
    for (size_t number = 0; number < sizeof ranges / sizeof *ranges; number++) {
        int64_t offset = ranges[number][0], length = ranges[number][1];
        CHECK(ramlace_lock(one, offset, length, RAMLACE_LOCK_EXCLUSIVE, 0) == 0);
        FAILS(ramlace_lock(two, INT64_MAX, 1, RAMLACE_LOCK_SHARED, 0) == -1, EAGAIN, "locked");
        CHECK(ramlace_unlock(one, offset, length) == 0);
        CHECK(ramlace_lock(two, offset, length, RAMLACE_LOCK_EXCLUSIVE, 0) == 0);
        CHECK(ramlace_unlock(two, 0, 0) == 0);
    }
    FAILS(ramlace_lock(one, 2, INT64_MAX, RAMLACE_LOCK_EXCLUSIVE, 0) == -1, EINVAL, "cannot be locked");
    CHECK(ramlace_lock(two, 0, 0, RAMLACE_LOCK_EXCLUSIVE, 0) == 0);
    CHECK(ramlace_close(one) == 0 && ramlace_close(two) == 0);
}

void test_locks(void)
{
    ramlace_file *one = ramlace_open(pool, at("locked"), O_RDWR | O_CREAT, 0644);
    ramlace_file *two = ramlace_open(pool, at("locked"), O_RDWR, 0);
    ramlace_file *reader = ramlace_open(pool, at("locked"), O_RDONLY, 0);
    CHECK(one != NULL && two != NULL && reader != NULL);
    CHECK(ramlace_lock(one, 10, 5, RAMLACE_LOCK_EXCLUSIVE, -1) == 0);
    FAILS(ramlace_lock(two, 14, 1, RAMLACE_LOCK_SHARED, 0) == -1, EAGAIN, "locked");
    FAILS(ramlace_lock(two, 0, 0, RAMLACE_LOCK_SHARED, 20) == -1, ETIMEDOUT, "locked");
    CHECK(ramlace_lock(two, 15, 0, RAMLACE_LOCK_EXCLUSIVE, 0) == 0);
    CHECK(ramlace_lock(reader, 0, 10, RAMLACE_LOCK_SHARED, 0) == 0);
    CHECK(ramlace_lock(two, 0, 10, RAMLACE_LOCK_SHARED, 0) == 0);
    FAILS(ramlace_lock(reader, 0, 10, RAMLACE_LOCK_EXCLUSIVE, 0) == -1, EBADF, "writing");
    FAILS(ramlace_lock(one, 0, 10, 7, 0) == -1, EINVAL, "RAMLACE_LOCK_SHARED");
    FAILS(ramlace_lock(one, -1, 10, RAMLACE_LOCK_SHARED, 0) == -1, EINVAL, "offset");
    CHECK(ramlace_unlock(one, 12, 1) == 0);
    CHECK(ramlace_lock(two, 12, 1, RAMLACE_LOCK_EXCLUSIVE, 0) == 0);
    CHECK(ramlace_unlock(one, 0, 0) == 0);
    CHECK(ramlace_unlock(one, 0, 0) == 0);
    CHECK(ramlace_lock(two, 10, 5, RAMLACE_LOCK_EXCLUSIVE, -1) == 0);
    CHECK(ramlace_close(two) == 0);
    CHECK(ramlace_lock(one, 10, 0, RAMLACE_LOCK_EXCLUSIVE, 0) == 0);
    FAILS(ramlace_unlock(two, 0, 0) == -1, EBADF, "ramlace_file");
    CHECK(ramlace_close(one) == 0 && ramlace_close(reader) == 0);
    lock_to_the_end_of_all_offsets(O_RDWR);
    lock_to_the_end_of_all_offsets(O_RDWR | RAMLACE_O_RELAXED);
}

#define MEMBERS 4
#define ROUNDS 20
#define ADDS 200

static char barrier[1024];
static ramlace_file *counter;

static void *meet(void *argument)
{
    uint32_t member = (uint32_t)(size_t)argument;
    for (int64_t round = 1; round <= ROUNDS; round++) {
        for (int i = 0; i < ADDS / ROUNDS; i++)
            CHECK(ramlace_fetch_add(counter, 8, 1, NULL) == 0);
        CHECK(ramlace_barrier(pool, barrier, MEMBERS, member, -1) == round);
    }
    return NULL;
}

static void *write_later(void *argument)
{
    CHECK(ramlace_pwrite(argument, "x", 1, 3) == 1);
    return NULL;
}

void test_coordination(void)
{
    uint64_t before;
    strcpy(barrier, at("a barrier"));
    counter = ramlace_open(pool, at("cells"), O_RDWR | O_CREAT, 0644);
    CHECK(counter != NULL && ramlace_ftruncate(counter, 64) == 0);

    FAILS(ramlace_barrier(pool, barrier, 2, 1, 0) == -1, ETIMEDOUT, "member 0 (never came)");
    FAILS(ramlace_barrier(pool, barrier, 2, 2, 0) == -1, EINVAL, "members of 2 parties");
    FAILS(ramlace_barrier(pool, NULL, 2, 1, 0) == -1, EFAULT, "name");
    pthread_t threads[MEMBERS];
    for (size_t member = 0; member < MEMBERS; member++)
        CHECK(pthread_create(&threads[member], NULL, meet, (void *)member) == 0);
    for (size_t member = 0; member < MEMBERS; member++)
        CHECK(pthread_join(threads[member], NULL) == 0);

    CHECK(ramlace_fetch_add(counter, 8, (uint64_t)-1, &before) == 0 && before == MEMBERS * ADDS);
    CHECK(ramlace_compare_swap(counter, 8, 7, 9, &before) == 0 && before == MEMBERS * ADDS - 1);
    CHECK(ramlace_compare_swap(counter, 8, before, 9, NULL) == 1);
    CHECK(ramlace_compare_swap(counter, 8, 9, 10, &before) == 1 && before == 9);
    unsigned char cell[8];
    CHECK(ramlace_pread(counter, cell, 8, 8) == 8 && cell[0] == 10 && cell[7] == 0);
    FAILS(ramlace_fetch_add(counter, 64, 1, &before) == -1, EINVAL, "not within");
    FAILS(ramlace_fetch_add(counter, 4, 1, &before) == -1, EINVAL, "multiple of 8");
    FAILS(ramlace_fetch_add(counter, -8, 1, &before) == -1, EINVAL, "offset");

    struct ramlace_version version, same;
    ramlace_file *writer = ramlace_open(pool, at("cells"), O_RDWR, 0);
    CHECK(writer != NULL);
    CHECK(ramlace_change_version(counter, 0, 8, &version) == 0);
    same = version;
    FAILS(ramlace_wait_change(counter, &version, 0) == -1, ETIMEDOUT, "nothing has changed");
    CHECK(memcmp(&same, &version, sizeof same) == 0);
    CHECK(pthread_create(&threads[0], NULL, write_later, writer) == 0);
    CHECK(ramlace_wait_change(counter, &version, -1) == 0);
    CHECK(pthread_join(threads[0], NULL) == 0);
    FAILS(ramlace_wait_change(counter, &version, 0) == -1, ETIMEDOUT, "nothing has changed");
    CHECK(ramlace_wait_change(counter, &same, 0) == 0);
    FAILS(ramlace_wait_change(counter, NULL, 0) == -1, EFAULT, "ramlace_version");
    memset(&same, 0xff, sizeof same);
    FAILS(ramlace_wait_change(counter, &same, 0) == -1, EINVAL, "ramlace_change_version");
    CHECK(ramlace_close(writer) == 0 && ramlace_close(counter) == 0);
}
