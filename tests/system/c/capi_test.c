/*
 * Exercises every function of ramlace.h against a running pool; see test_c_library.py.
 *
 *     capi_test NAME LOCATOR DIRECTORY [MORE...]
 *
 * Exits with 0 when everything was as it should be.
 */
#include "capi_test.h"

ramlace_pool *pool;
static const char *directory;

const char *at(const char *name)
{
    static char paths[3][1024];
    static int next;
    char *path = paths[next++ % 3];
    CHECK(snprintf(path, sizeof paths[0], "%s/%s", directory, name) < (int)sizeof paths[0]);
    return path;
}

static const struct {
    const char *name;
    void (*run)(void);
} tests[] = {
    {"files", test_files},     {"vectors", test_vectors}, {"runs", test_runs}, {"space", test_space},
    {"names", test_names},     {"lists", test_lists},     {"layouts", test_layouts}, {"placing", test_placing},
    {"strange_names", test_strange_names},                {"maps", test_maps},
    {"views", test_views},
    {"beside", test_beside},
    {"sharing", test_sharing},
    {"wrong", test_wrong},     {"threads", test_threads}, {"forks", test_forks},
    {"locks", test_locks},     {"coordination", test_coordination},
    {"full", test_full},       {"gone", test_gone},
};

int main(int argc, char **argv)
{
    CHECK(argc >= 4);
    CHECK(strcmp(ramlace_version(), RAMLACE_VERSION) == 0);
    CHECK(ramlace_abi_version() == RAMLACE_ABI_VERSION);
    CHECK(strcmp(ramlace_error(), "") == 0 && ramlace_error_code() == RAMLACE_ERROR_NONE);
    ramlace_options options = RAMLACE_OPTIONS_INIT;
    options.label = "capi_test";
    pool = ramlace_connect(argv[2], &options);
    CHECK(pool != NULL);
    directory = argv[3];
    int found = strcmp(argv[1], "locators") == 0;
    if (found)
        test_locators(argc - 4, argv + 4);
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++) {
        if (strcmp(argv[1], tests[i].name) == 0) {
            tests[i].run();
            found = 1;
        }
    }
    CHECK(found);
    CHECK(ramlace_disconnect(pool) == 0);
    FAILS(ramlace_disconnect(pool) == -1, EBADF, "ramlace_pool");
    return 0;
}
