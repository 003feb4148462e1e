/* Which files are ours: those with a locator, and those below a mount of a pool that this process reaches itself. */
#include "mpiio.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

static const char SCHEME[] = "ramlace:";
/* As many as a kernel follows. */
#define LINKS_MAX 40

static pthread_mutex_t pools_lock = PTHREAD_MUTEX_INITIALIZER;
static struct pool *pools;

static struct pool *pool_connect(const char *reached)
{
    struct pool *pool = calloc(1, sizeof *pool);
    if (pool == NULL)
        return NULL;
    pool->reached = strdup(reached);
    pool->handle = pool->reached ? ramlace_connect(reached, NULL) : NULL;
    if (pool->handle == NULL || ramlace_pool_id(pool->handle, pool->id, sizeof pool->id) < 0) {
        if (pool->handle != NULL)
            ramlace_disconnect(pool->handle);
        free(pool->reached);
        free(pool);
        return NULL;
    }
    pool->next = pools;
    pools = pool;
    return pool;
}

/* The pool of this name or locator; stays connected until MPI ends. */
static struct pool *pool_find(const char *reached)
{
    pthread_mutex_lock(&pools_lock);
    struct pool *pool = pools;
    while (pool != NULL && strcmp(pool->reached, reached) != 0)
        pool = pool->next;
    if (pool == NULL)
        pool = pool_connect(reached);
    pthread_mutex_unlock(&pools_lock);
    return pool;
}

void pools_disconnect(void)
{
    pthread_mutex_lock(&pools_lock);
    for (struct pool *pool = pools, *next; pool != NULL; pool = next) {
        next = pool->next;
        ramlace_disconnect(pool->handle);
        free(pool->reached);
        free(pool);
    }
    pools = NULL;
    pthread_mutex_unlock(&pools_lock);
}

/* `root` and `rest` as one path from the pool's root, with single slashes. */
static char *path_join(const char *root, const char *rest)
{
    char *path = malloc(strlen(root) + strlen(rest) + 3);
    if (path == NULL)
        return NULL;
    sprintf(path, "/%s/%s", root, rest);
    char *to = path;
    for (const char *from = path; *from; from++)
        if (*from != '/' || to == path || to[-1] != '/')
            *to++ = *from;
    if (to > path + 1 && to[-1] == '/')
        to--;
    *to = '\0';
    return path;
}

static int resolve_locator(const char *filename, struct name *name)
{
    /* The C library reads locators; here only the path is cut off, and what has none is its to refuse. */
    const char *rest = filename + sizeof SCHEME - 1;
    const char *path = strncmp(rest, "//", 2) == 0 ? strchr(rest + 2, '/') : strchr(rest, '/');
    bool odd = path == NULL || (path != rest && strncmp(rest, "//", 2) != 0);
    char *reached = odd ? strdup(filename) : strndup(filename, path - filename);
    if (reached == NULL)
        return MPI_ERR_NO_MEM;
    name->pool = pool_find(reached);
    free(reached);
    if (name->pool == NULL)
        return error_class();
    name->path = path_join("", path ? path : "");
    return name->path ? MPI_SUCCESS : MPI_ERR_NO_MEM;
}

/* The working directory. A kernel that has just dropped the names of a mount's directory, because another client changes
 * it, does not know its path for a moment; the shell's word is taken then where it is the same directory. */
static char *working_directory(void)
{
    struct stat here, told;
    char *path = realpath(".", NULL);
    const char *word = getenv("PWD");
    if (path != NULL || word == NULL || stat(word, &told) != 0 || stat(".", &here) != 0)
        return path;
    return told.st_dev == here.st_dev && told.st_ino == here.st_ino ? realpath(word, NULL) : NULL;
}

/* `name` below a directory; takes the directory over, which may be NULL. */
static char *path_below(char *directory, const char *name)
{
    char *path = directory ? malloc(strlen(directory) + strlen(name) + 2) : NULL;
    if (path != NULL)
        sprintf(path, "%s/%s", directory, name);
    free(directory);
    return path;
}

/* The path of a name itself: its directory's real path and the name, which may be a link, or not be there. NULL when the
 * directory is not there. */
static char *path_of_name(char *path)
{
    char *name = strrchr(path, '/') + 1, first = *name;
    /* These are no names, but directories that are known by others. */
    if (*name == '\0' || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return realpath(path, NULL);
    /* Cut off behind the slash, for as long as the directory is looked up. */
    *name = '\0';
    char *above = realpath(path, NULL);
    *name = first;
    if (above != NULL && strcmp(above, "/") == 0)
        *above = '\0';
    return path_below(above, name);
}

/* Where a link leads, or NULL for what is none. */
static char *link_target(const char *path)
{
    char target[PATH_MAX], *directory = strdup(path);
    ssize_t length = readlink(path, target, sizeof target - 1);
    if (directory == NULL || length < 0) {
        free(directory);
        return NULL;
    }
    target[length] = '\0';
    if (target[0] == '/') {
        free(directory);
        return strdup(target);
    }
    *strrchr(directory, '/') = '\0';
    return path_below(directory, target);
}

/* The file's real path, or with `follow` false that of the name itself. One that is not there is found by its directory, also
 * behind links: they lead where this machine has them lead, and not where a pool would. NULL when that is not there. */
static char *real_path(const char *filename, bool follow)
{
    char *path = filename[0] == '/' ? strdup(filename) : path_below(working_directory(), filename);
    for (int links = 0; path != NULL && links < LINKS_MAX; links++) {
        char *whole = follow ? realpath(path, NULL) : NULL, *target = NULL;
        bool by_name = whole == NULL && (!follow || errno == ENOENT);
        if (by_name)
            whole = path_of_name(path);
        if (by_name && follow && whole != NULL)
            target = link_target(whole);
        free(path);
        if (target == NULL)
            return whole;
        free(whole);
        path = target;
    }
    free(path);
    return NULL;
}

/* A mount as /proc/self/mountinfo has it. */
struct mount {
    char *root, *directory, *kind, *source;
    bool read_only;
};

/* Takes \040 and its like out, where they are. */
static void unescape(char *text)
{
    char *to = text;
    for (; *text; text++) {
        if (text[0] == '\\' && text[1] && text[2] && text[3]) {
            *to++ = (char)((text[1] - '0') << 6 | (text[2] - '0') << 3 | (text[3] - '0'));
            text += 3;
        } else {
            *to++ = *text;
        }
    }
    *to = '\0';
}

static bool mount_parse(char *line, struct mount *mount)
{
    char *fields[6], *rest = NULL, *word = strtok_r(line, " \n", &rest);
    for (int i = 0; i < 6; i++, word = strtok_r(NULL, " \n", &rest)) {
        if (word == NULL)
            return false;
        fields[i] = word;
    }
    while (word != NULL && strcmp(word, "-") != 0)
        word = strtok_r(NULL, " \n", &rest);
    mount->root = fields[3];
    mount->directory = fields[4];
    mount->kind = strtok_r(NULL, " \n", &rest);
    mount->source = strtok_r(NULL, " \n", &rest);
    mount->read_only = strncmp(fields[5], "ro", 2) == 0 && (fields[5][2] == ',' || fields[5][2] == '\0');
    if (mount->source == NULL)
        return false;
    unescape(mount->root);
    unescape(mount->directory);
    unescape(mount->source);
    return true;
}

static bool lies_below(const char *path, const char *directory)
{
    size_t length = strlen(directory);
    if (strcmp(directory, "/") == 0)
        return true;
    return strncmp(path, directory, length) == 0 && (path[length] == '/' || path[length] == '\0');
}

/* The mount that a path lies on, in memory of its own: the last of those with the longest directory. */
static bool mount_of(const char *path, struct mount *found, char **memory)
{
    FILE *list = fopen("/proc/self/mountinfo", "re");
    char *line = NULL;
    size_t room = 0;
    *memory = NULL;
    if (list == NULL)
        return false;
    while (getline(&line, &room, list) > 0) {
        struct mount mount;
        if (!mount_parse(line, &mount) || !lies_below(path, mount.directory))
            continue;
        if (*memory == NULL || strlen(mount.directory) >= strlen(found->directory)) {
            free(*memory);
            *memory = line;
            *found = mount;
            line = NULL;
            room = 0;
        }
    }
    free(line);
    fclose(list);
    return *memory != NULL;
}

/* Whether the directory that the mount shows is that of this pool: another user's pool may have the same name. */
static bool is_same_directory(const char *local, struct pool *pool, const char *path)
{
    struct statx there;
    struct ramlace_stat here;
    if (statx(AT_FDCWD, local, AT_STATX_SYNC_AS_STAT, STATX_INO | STATX_BTIME | STATX_CTIME, &there) != 0 ||
        ramlace_stat(pool->handle, path, &here) != 0 || there.stx_ino != here.inode)
        return false;
    bool by_birth = there.stx_mask & STATX_BTIME;
    const struct statx_timestamp *local_time = by_birth ? &there.stx_btime : &there.stx_ctime;
    const struct ramlace_time *pool_time = by_birth ? &here.created : &here.changed;
    return local_time->tv_sec == pool_time->seconds && local_time->tv_nsec == pool_time->nanoseconds;
}

/* The file is reached by its mount, as without this library: slower, and not silently. */
static void tell_once(const char *filename)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    if (!atomic_flag_test_and_set(&told))
        fprintf(stderr, "ramlace: %s: MPI-IO goes by way of the mount: %s\n", filename, ramlace_error());
}

/* Takes over where this machine has the file, which may be NULL. */
static int resolve_mounted(const char *filename, char *local, bool for_writing, struct name *name)
{
    struct mount mount = {0};
    char *memory;
    if (local == NULL)
        return MPI_SUCCESS;
    bool found = mount_of(local, &mount, &memory);
    /* What a mount for reading refuses stays refused. */
    if (found && strncmp(mount.kind, "fuse.ramlace", 12) == 0 && !(mount.read_only && for_writing)) {
        bool by_address = strncmp(mount.source, "ramlace://", 10) == 0;
        struct pool *pool = pool_find(by_address ? mount.source : mount.source + sizeof SCHEME - 1);
        size_t length = strcmp(mount.directory, "/") == 0 ? 0 : strlen(mount.directory);
        if (pool == NULL)
            tell_once(filename);
        if (pool != NULL && is_same_directory(mount.directory, pool, mount.root)) {
            name->place = PLACE_MOUNTED;
            name->pool = pool;
            name->path = path_join(mount.root, local + length);
        }
    }
    free(memory);
    free(local);
    return name->place == PLACE_MOUNTED && name->path == NULL ? MPI_ERR_NO_MEM : MPI_SUCCESS;
}

int name_resolve(const char *filename, bool for_writing, bool follow, struct name *name)
{
    *name = (struct name){PLACE_FOREIGN, NULL, NULL};
    if (strncmp(filename, SCHEME, sizeof SCHEME - 1) == 0) {
        name->place = PLACE_LOCATOR;
        return resolve_locator(filename, name);
    }
    return resolve_mounted(filename, real_path(filename, follow), for_writing, name);
}

int name_to_delete(const char *filename, struct name *name)
{
    int error = name_resolve(filename, true, false, name);
    if (error == MPI_SUCCESS && name->place == PLACE_FOREIGN)
        name->path = real_path(filename, false);
    return error;
}

int name_delete(const struct name *name)
{
    if (name->path == NULL || (name->pool == NULL && unlink(name->path) == 0))
        return MPI_SUCCESS;
    if (name->pool == NULL)
        return error_of_machine();
    return ramlace_unlink(name->pool->handle, name->path) == 0 ? MPI_SUCCESS : error_class();
}

void name_free(struct name *name)
{
    free(name->path);
    *name = (struct name){PLACE_FOREIGN, NULL, NULL};
}
