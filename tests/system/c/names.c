/* The namespace by path: names, links, attributes, lists, layouts. */
#define _POSIX_C_SOURCE 200809L
#include "capi_test.h"

#include <sys/xattr.h>
#include <unistd.h>

static void make(const char *path)
{
    ramlace_file *file = ramlace_open(pool, path, O_WRONLY | O_CREAT, 0644);
    CHECK(file != NULL && ramlace_close(file) == 0);
}

static void test_extended_attributes(void)
{
    char value[8], list[16];
    make(at("file"));
    CHECK(ramlace_setxattr(pool, at("file"), "user.a", "one", 3, XATTR_CREATE) == 0);
    FAILS(ramlace_setxattr(pool, at("file"), "user.a", "x", 1, XATTR_CREATE) == -1, EEXIST, "user.a");
    FAILS(ramlace_setxattr(pool, at("file"), "user.b", "x", 1, XATTR_REPLACE) == -1, ENODATA, "user.b");
    FAILS(ramlace_setxattr(pool, at("file"), "user.b", "x", 1, 99) == -1, EINVAL, "flags");
    FAILS(ramlace_setxattr(pool, at("file"), "user.b", NULL, 1, 0) == -1, EFAULT, "null");
    CHECK(ramlace_setxattr(pool, at("file"), "user.b", NULL, 0, 0) == 0);
    CHECK(ramlace_getxattr(pool, at("file"), "user.a", NULL, 0) == 3);
    CHECK(ramlace_getxattr(pool, at("file"), "user.a", value, sizeof value) == 3);
    CHECK(memcmp(value, "one", 3) == 0);
    FAILS(ramlace_getxattr(pool, at("file"), "user.a", value, 2) == -1, ERANGE, "3 bytes");
    FAILS(ramlace_getxattr(pool, at("file"), "system.a", value, 2) == -1, EOPNOTSUPP, "system.a");
    CHECK(ramlace_listxattr(pool, at("file"), NULL, 0) == 14);
    CHECK(ramlace_listxattr(pool, at("file"), list, sizeof list) == 14);
    CHECK(memcmp(list, "user.a\0user.b", 14) == 0);
    CHECK(ramlace_removexattr(pool, at("file"), "user.a") == 0);
    FAILS(ramlace_getxattr(pool, at("file"), "user.a", value, 8) == -1, ENODATA, "user.a");
    CHECK(ramlace_unlink(pool, at("file")) == 0);
}

static void test_attributes(void)
{
    struct ramlace_stat stat;
    make(at("file"));
    CHECK(ramlace_chmod(pool, at("file"), 0400) == 0);
    CHECK(ramlace_chmod(pool, at("file"), 0604) == 0);
    FAILS(ramlace_chmod(pool, at("file"), 0100644) == -1, EINVAL, "mode");
    CHECK(ramlace_chown(pool, at("file"), (uid_t)-1, (gid_t)-1) == 0);
    CHECK(ramlace_chown(pool, at("file"), getuid(), getgid()) == 0);
    ramlace_time times[2] = {{1000000000, 999999999, 0}, {-5, 7, 0}};
    CHECK(ramlace_utimens(pool, at("file"), times) == 0);
    CHECK(ramlace_stat(pool, at("file"), &stat) == 0);
    CHECK(stat.mode == (S_IFREG | 0604) && stat.uid == getuid() && stat.gid == getgid());
    CHECK(stat.accessed.seconds == 1000000000 && stat.accessed.nanoseconds == 999999999);
    CHECK(stat.modified.seconds == -5 && stat.modified.nanoseconds == 7);
    times[0].nanoseconds = RAMLACE_TIME_OMIT;
    times[1].nanoseconds = RAMLACE_TIME_NOW;
    CHECK(ramlace_utimens(pool, at("file"), times) == 0 && ramlace_stat(pool, at("file"), &stat) == 0);
    CHECK(stat.accessed.seconds == 1000000000 && stat.modified.seconds > 1000000000);
    CHECK(ramlace_utimens(pool, at("file"), NULL) == 0 && ramlace_stat(pool, at("file"), &stat) == 0);
    CHECK(stat.accessed.seconds > 1000000000);
    times[0].nanoseconds = 1000000000;
    FAILS(ramlace_utimens(pool, at("file"), times) == -1, EINVAL, "nanoseconds");
    times[0].nanoseconds = 0;
    times[1].reserved = 1;
    FAILS(ramlace_utimens(pool, at("file"), times) == -1, EINVAL, "`reserved` of a struct ramlace_time is 1");
    CHECK(ramlace_truncate(pool, at("file"), 12345) == 0 && ramlace_stat(pool, at("file"), &stat) == 0);
    /* What a truncation adds is a hole. */
    CHECK(stat.size == 12345 && stat.blocks < 8);
    FAILS(ramlace_truncate(pool, at("file"), -1) == -1, EINVAL, "negative");
    FAILS(ramlace_truncate(pool, at("."), 0) == -1, EISDIR, "");
}

static void test_many_names(void)
{
    enum { COUNT = 300 };
    static char paths[COUNT][1024];
    const char *given[COUNT];
    int errors[COUNT];
    CHECK(ramlace_mkdir(pool, at("many"), 0755) == 0 && ramlace_mkdir(pool, at("many/dir"), 0755) == 0);
    for (int i = 0; i < COUNT; i++) {
        char name[32];
        snprintf(name, sizeof name, "many/%d", i);
        make(at(name));
        snprintf(paths[i], sizeof paths[i], "%s", at(name));
        given[i] = paths[i];
        errors[i] = -1;
    }
    CHECK(ramlace_unlink_many(pool, given, errors, COUNT) == 0);
    for (int i = 0; i < COUNT; i++)
        CHECK(errors[i] == 0);
    snprintf(paths[1], sizeof paths[1], "%s", at("many/dir"));
    given[2] = NULL;
    FAILS(ramlace_unlink_many(pool, given, errors, 3) == 3, ENOENT, "many/0");
    CHECK(errors[0] == ENOENT && errors[1] == EISDIR && errors[2] == EFAULT);
    make(at("many/0"));
    FAILS(ramlace_unlink_many(pool, given, NULL, 2) == 1, EISDIR, "many/dir");
    CHECK(ramlace_unlink_many(pool, NULL, NULL, 0) == 0);
    FAILS(ramlace_unlink_many(pool, NULL, errors, 1) == -1, EFAULT, "null");
    FAILS(ramlace_unlink_many(pool, given, errors, -1) == -1, EINVAL, "paths");
    CHECK(ramlace_rmdir(pool, at("many/dir")) == 0 && ramlace_rmdir(pool, at("many")) == 0);
}

void test_names(void)
{
    char target[32];
    struct ramlace_stat stat;
    umask(022);
    test_extended_attributes();
    test_attributes();
    test_many_names();
    CHECK(ramlace_mkdir(pool, at("dir"), 0750) == 0);
    FAILS(ramlace_mkdir(pool, at("dir"), 0750) == -1, EEXIST, "dir");
    FAILS(ramlace_mkdir(pool, at("none/dir"), 0750) == -1, ENOENT, "none");
    FAILS(ramlace_mkdir(pool, at("file/dir"), 0750) == -1, ENOTDIR, "file");
    CHECK(ramlace_stat(pool, at("dir"), &stat) == 0);
    CHECK(stat.mode == (S_IFDIR | 0750) && stat.links == 2 && stat.blocks == 0);
    make(at("dir/in"));
    FAILS(ramlace_rmdir(pool, at("dir")) == -1, ENOTEMPTY, "dir");
    FAILS(ramlace_rmdir(pool, at("file")) == -1, ENOTDIR, "file");
    FAILS(ramlace_unlink(pool, at("dir")) == -1, EISDIR, "dir");
    CHECK(ramlace_symlink(pool, "dir/in", at("link")) == 0);
    FAILS(ramlace_symlink(pool, "other", at("link")) == -1, EEXIST, "link");
    CHECK(ramlace_lstat(pool, at("link"), &stat) == 0 && S_ISLNK(stat.mode) && stat.size == 6);
    CHECK(stat.stripe_unit == 0 && stat.width == 0);
    CHECK(ramlace_stat(pool, at("link"), &stat) == 0 && S_ISREG(stat.mode));
    memset(target, '!', sizeof target);
    CHECK(ramlace_readlink(pool, at("link"), target, sizeof target) == 6);
    CHECK(memcmp(target, "dir/in!", 7) == 0);
    CHECK(ramlace_readlink(pool, at("link"), target, 3) == 3);
    FAILS(ramlace_readlink(pool, at("file"), target, 3) == -1, EINVAL, "link");
    CHECK(ramlace_symlink(pool, "loop", at("loop")) == 0);
    FAILS(ramlace_stat(pool, at("loop"), &stat) == -1, ELOOP, "links");
    CHECK(ramlace_error_code() == RAMLACE_ERROR_LOOP);
    CHECK(ramlace_unlink(pool, at("link")) == 0 && ramlace_unlink(pool, at("loop")) == 0);
    CHECK(ramlace_unlink(pool, at("dir/in")) == 0 && ramlace_rmdir(pool, at("dir")) == 0);
    FAILS(ramlace_lstat(pool, at("dir"), &stat) == -1, ENOENT, "dir");
    FAILS(ramlace_stat(pool, "", &stat) == -1, ENOENT, "empty");
    char name[300];
    memset(name, 'n', sizeof name);
    name[256] = '\0';
    FAILS(ramlace_mkdir(pool, at(name), 0755) == -1, ENAMETOOLONG, "255");
    name[255] = '\0';
    CHECK(ramlace_mkdir(pool, at(name), 0755) == 0 && ramlace_rmdir(pool, at(name)) == 0);
}

void test_strange_names(void)
{
    static const char *const strange[] = {"\xff\xfe not utf-8 \x80", "new\nline", "ramlace:", " ",
                                          "\x1b[31mred", "gr\xc3\xbcn", "..."};
    enum { COUNT = sizeof strange / sizeof strange[0] };
    int seen[COUNT] = {0};
    ramlace_entry entry;
    struct ramlace_stat stat;
    for (int i = 0; i < COUNT; i++) {
        make(at(strange[i]));
        CHECK(ramlace_stat(pool, at(strange[i]), &stat) == 0);
    }
    ramlace_directory *directory = ramlace_opendir(pool, at("."));
    CHECK(directory != NULL);
    int more;
    while ((more = ramlace_readdir(directory, &entry)) == 1) {
        CHECK(strlen(entry.name) == entry.name_length);
        int which = 0;
        while (which < COUNT && strcmp(strange[which], entry.name) != 0)
            which++;
        CHECK(which < COUNT && seen[which]++ == 0);
    }
    CHECK(more == 0 && ramlace_closedir(directory) == 0);
    for (int i = 0; i < COUNT; i++)
        CHECK(seen[i] == 1 && ramlace_unlink(pool, at(strange[i])) == 0);
    FAILS(ramlace_unlink(pool, at("caf\xe9")) == -1, ENOENT, "caf\\xe9");
}

void test_lists(void)
{
    enum { COUNT = 2500 };
    static char seen[COUNT];
    ramlace_entry entry;
    CHECK(ramlace_mkdir(pool, at("many"), 0755) == 0);
    ramlace_directory *directory = ramlace_opendir(pool, at("many"));
    CHECK(directory != NULL && ramlace_readdir(directory, &entry) == 0);
    CHECK(ramlace_readdir(directory, &entry) == 0 && ramlace_closedir(directory) == 0);
    FAILS(ramlace_readdir(directory, &entry) == -1, EBADF, "ramlace_directory");
    FAILS(ramlace_closedir(directory) == -1, EBADF, "ramlace_directory");
    for (int i = 0; i < COUNT; i++) {
        char name[32];
        snprintf(name, sizeof name, "many/%d", i);
        if (i % 100 == 0)
            CHECK(ramlace_mkdir(pool, at(name), 0755) == 0);
        else if (i % 100 == 1)
            CHECK(ramlace_symlink(pool, "x", at(name)) == 0);
        else
            make(at(name));
    }
    directory = ramlace_opendir(pool, at("many"));
    CHECK(directory != NULL);
    FAILS(ramlace_readdir(directory, NULL) == -1, EFAULT, "null");
    while (ramlace_readdir(directory, &entry) == 1) {
        int i = atoi(entry.name);
        CHECK(i >= 0 && i < COUNT && seen[i]++ == 0 && entry.inode != 0);
        CHECK(entry.type_bits == (i % 100 == 0 ? S_IFDIR : i % 100 == 1 ? S_IFLNK : S_IFREG));
    }
    for (int i = 0; i < COUNT; i++)
        CHECK(seen[i] == 1);
    CHECK(ramlace_closedir(directory) == 0);
    make(at("file"));
    FAILS(ramlace_opendir(pool, at("file")) == NULL, ENOTDIR, "file");
    FAILS(ramlace_opendir(pool, at("none")) == NULL, ENOENT, "none");
}

/* Makes a file with these hints; what has become of them. */
static struct ramlace_layout placed(const char *path, const ramlace_hints *hints)
{
    struct ramlace_layout layout;
    ramlace_file *file = ramlace_open_with(pool, path, O_RDWR | O_CREAT | O_EXCL, 0644, hints);
    CHECK(file != NULL && ramlace_close(file) == 0);
    CHECK(ramlace_layout_get(pool, path, &layout) == 0 && layout.fixed == 1);
    CHECK(ramlace_unlink(pool, path) == 0);
    return layout;
}

/* The pool has three servers, all on this machine. */
void test_placing(void)
{
    struct ramlace_layout layout;
    struct ramlace_part parts[2] = {{3 * UNIT, {0}}, {3 * UNIT, {0}}};
    ramlace_hints hints = RAMLACE_HINTS_INIT, none = RAMLACE_HINTS_INIT;
    uint32_t seen = 0;
    CHECK(ramlace_mkdir(pool, at("dir"), 0755) == 0 && ramlace_layout_get(pool, at("dir"), &layout) == 0);
    CHECK(layout.first_server == 0);
    hints.local = 1;
    layout = placed(at("local"), &hints);
    CHECK(layout.width == 3 && layout.first_server >= 1 && layout.first_server <= 3);
    hints.local = 2;
    CHECK(placed(at("local"), &hints).width == 3);
    hints.local = 0;
    for (hints.first_server = 1; hints.first_server <= 3; hints.first_server++) {
        layout = placed(at("first"), &hints);
        CHECK(layout.first_server == hints.first_server && layout.width == 3);
        seen |= 1u << layout.first_server;
    }
    CHECK(seen == 14);
    /* There is no such server: as usual. */
    hints.first_server = 60000;
    CHECK(placed(at("first"), &hints).width == 3);
    hints.first_server = 70000;
    FAILS(ramlace_open_with(pool, at("new"), O_WRONLY | O_CREAT, 0644, &hints) == NULL, EINVAL, "69999");
    hints.first_server = 1;
    hints.local = 1;
    FAILS(ramlace_open_with(pool, at("new"), O_WRONLY | O_CREAT, 0644, &hints) == NULL, EINVAL, "only one");
    FAILS(ramlace_machine(NULL, 16) == -1, EFAULT, "null");
    FAILS(ramlace_machine(parts[0].machine, 15) == -1, ERANGE, "15");
    hints = none;
    hints.parts = parts;
    hints.part_count = 2;
    /* Nobody knows these machines: as usual. */
    layout = placed(at("parts"), &hints);
    CHECK(layout.width == 3 && layout.stripe_unit == 2 << 20);
    CHECK(ramlace_machine(parts[0].machine, 16) == 0 && ramlace_machine(parts[1].machine, 16) == 0);
    layout = placed(at("parts"), &hints);
    CHECK(layout.width == 2 && layout.stripe_unit == 4 * UNIT);
    hints.stripe_unit = UNIT;
    layout = placed(at("parts"), &hints);
    CHECK(layout.width == 3 && layout.stripe_unit == UNIT);
    hints.parts = NULL;
    FAILS(ramlace_open_with(pool, at("new"), O_WRONLY | O_CREAT, 0644, &hints) == NULL, EFAULT, "parts");
    hints.parts = parts;
    hints.part_count = 65537;
    FAILS(ramlace_open_with(pool, at("new"), O_WRONLY | O_CREAT, 0644, &hints) == NULL, EINVAL, "65537");
    hints.part_count = 2;
    parts[0].bytes = parts[1].bytes = UINT64_MAX;
    FAILS(ramlace_open_with(pool, at("new"), O_WRONLY | O_CREAT, 0644, &hints) == NULL, EINVAL, "end beyond");
    CHECK(ramlace_rmdir(pool, at("dir")) == 0);
}

/* The mode of a file: from its directory, from the program that makes it, or set. */
static void layout_modes(void)
{
    struct ramlace_layout layout;
    ramlace_hints hints = RAMLACE_HINTS_INIT;
    hints.mode = RAMLACE_MODE_STRICT;
    CHECK(ramlace_layout_set(pool, at("dir"), &hints) == 0);
    CHECK(ramlace_layout_get(pool, at("dir"), &layout) == 0 && layout.mode == RAMLACE_MODE_STRICT);
    make(at("dir/strict"));
    CHECK(ramlace_layout_get(pool, at("dir/strict"), &layout) == 0 && layout.mode == RAMLACE_MODE_STRICT);
    hints.mode = RAMLACE_MODE_RELAXED;
    CHECK(placed(at("dir/relaxed"), &hints).mode == RAMLACE_MODE_RELAXED);
    CHECK(ramlace_layout_get(pool, at("dir/inherits"), &layout) == 0 && layout.mode == 0);
    hints.mode = RAMLACE_MODE_COHERENT;
    CHECK(ramlace_layout_set(pool, at("dir/strict"), &hints) == 0);
    CHECK(ramlace_layout_get(pool, at("dir/strict"), &layout) == 0 && layout.mode == RAMLACE_MODE_COHERENT);
    ramlace_file *file = ramlace_open(pool, at("dir/strict"), O_RDONLY, 0);
    CHECK(file != NULL);
    FAILS(ramlace_layout_set(pool, at("dir/strict"), NULL) == -1, EBUSY, "open");
    CHECK(ramlace_close(file) == 0 && ramlace_layout_set(pool, at("dir/strict"), NULL) == 0);
    CHECK(ramlace_layout_get(pool, at("dir/strict"), &layout) == 0 && layout.mode == 0 && layout.fixed == 1);
    CHECK(ramlace_layout_set(pool, at("dir"), NULL) == 0);
}

void test_layouts(void)
{
    struct ramlace_layout layout;
    ramlace_hints hints = RAMLACE_HINTS_INIT;
    CHECK(ramlace_mkdir(pool, at("dir"), 0755) == 0 && ramlace_layout_get(pool, at("dir"), &layout) == 0);
    CHECK(layout.stripe_unit == 0 && layout.width == 0 && layout.copies == 0 && layout.fixed == 0);
    hints.stripe_unit = 4 * UNIT;
    hints.width = 1;
    CHECK(ramlace_layout_set(pool, at("dir"), &hints) == 0);
    CHECK(ramlace_layout_get(pool, at("dir"), &layout) == 0);
    CHECK(layout.stripe_unit == 4 * UNIT && layout.width == 1 && layout.copies == 0 && layout.fixed == 0);
    make(at("dir/inherits"));
    CHECK(ramlace_layout_get(pool, at("dir/inherits"), &layout) == 0);
    CHECK(layout.stripe_unit == 4 * UNIT && layout.width == 1 && layout.copies == 1 && layout.fixed == 1);
    FAILS(ramlace_layout_set(pool, at("dir/inherits"), &hints) == -1, ENOTDIR, "fixed");
    CHECK(ramlace_layout_set(pool, at("dir"), NULL) == 0);
    CHECK(ramlace_layout_get(pool, at("dir"), &layout) == 0 && layout.stripe_unit == 0);
    hints.stripe_unit = 3 * UNIT;
    FAILS(ramlace_layout_set(pool, at("dir"), &hints) == -1, EINVAL, "stripe unit");
    FAILS(ramlace_open_with(pool, at("new"), O_WRONLY | O_CREAT, 0644, &hints) == NULL, EINVAL, "stripe unit");
    hints.stripe_unit = 0;
    hints.width = 70000;
    FAILS(ramlace_layout_set(pool, at("dir"), &hints) == -1, EINVAL, "70000");
    hints.width = 0;
    hints.copies = 256;
    FAILS(ramlace_layout_set(pool, at("dir"), &hints) == -1, EINVAL, "256");
    hints.copies = 0;
    hints.local = 1;
    FAILS(ramlace_layout_set(pool, at("dir"), &hints) == -1, EINVAL, "hands");
    hints.local = 0;
    hints.mode = 4;
    FAILS(ramlace_layout_set(pool, at("dir"), &hints) == -1, EINVAL, "4 is no RAMLACE_MODE");
    FAILS(ramlace_open_with(pool, at("new"), O_WRONLY | O_CREAT, 0644, &hints) == NULL, EINVAL, "RAMLACE_MODE");
    hints.mode = 0;
    hints.reserve = 7;
    FAILS(ramlace_layout_set(pool, at("dir"), &hints) == -1, EINVAL, "`reserve` of a struct ramlace_hints is 7");
    FAILS(ramlace_open_with(pool, at("new"), O_WRONLY | O_CREAT, 0644, &hints) == NULL, EINVAL, "reserve");
    hints.reserve = 0;
    hints.size = 0;
    FAILS(ramlace_layout_set(pool, at("dir"), &hints) == -1, EINVAL, "_INIT");
    layout_modes();
}
