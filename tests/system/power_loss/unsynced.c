/* A disk that forgets and fails, between a process and the kernel: LD_PRELOAD=unsynced.so.
 *
 * What is written below one directory reaches its files as always, and is noted down before: what the bytes were, and
 * which names there were. A sync crosses that out, instead of waiting for a disk. When all processes are dead,
 * `power_loss.py` undoes what is still noted. Every process that has the library in it shares the notes, so a file may
 * be written by one and synced by another which got it over a socket.
 *
 * UNSYNCED_ROOT   the directory; UNSYNCED_NOTES: another one on the same file system, which holds
 *   lock          locked while a call is done and noted
 *   data.<inode>  what a file was: struct note, then the old bytes. A sync of the file empties it
 *   lost.<inode>  a sync of this file has failed: later ones cross nothing out, as a kernel that has dropped the pages
 *   names         one line for each change of a directory, and for each sync of one (`name_line`)
 *   kept.<n>      a second link to a file whose name was removed or replaced
 *   control       struct control: what is to fail. Whoever runs the test writes to it at any time
 *
 * What is submitted to io_uring is treated alike.
 *
 * Calls that fail are done in no part, but that a failed sync may have reached the disk or not, as in the world.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <unistd.h>

enum kind { SYNC, WRITE, NAME, KINDS };

struct control {
    struct { int32_t error, after, count, done; } of[KINDS]; /* errno; calls that succeed before; that fail then */
    char path[64];                                           /* only where this is in the path */
};

struct note { uint64_t size, offset, length; }; /* of the file before; of the old bytes that follow */

static char root[PATH_MAX], notes[PATH_MAX - 64];
static size_t root_length;
static int lock_file = -1, names_file = -1, pass_on = 1;
static struct control *control;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

#define REAL(result, name, ...) \
    static result (*real_##name)(__VA_ARGS__); \
    if (!real_##name) real_##name = dlsym(RTLD_NEXT, #name)

static int real_open(const char *path, int flags, mode_t mode)
{
    REAL(int, open64, const char *, int, ...);
    return real_open64(path, flags, mode);
}

static ssize_t real_pwrite(int file, const void *content, size_t length, off_t offset)
{
    REAL(ssize_t, pwrite64, int, const void *, size_t, off_t);
    return real_pwrite64(file, content, length, offset);
}

static ssize_t real_write(int file, const void *content, size_t length)
{
    REAL(ssize_t, write, int, const void *, size_t);
    return real_write(file, content, length);
}

static int real_truncate(int file, off_t size)
{
    REAL(int, ftruncate64, int, off_t);
    return real_ftruncate64(file, size);
}

static int real_link(const char *from, const char *to)
{
    REAL(int, link, const char *, const char *);
    return real_link(from, to);
}

static int real_unlink(const char *path)
{
    REAL(int, unlink, const char *);
    return real_unlink(path);
}

static void in_notes(char *path, const char *kind, unsigned long number)
{
    snprintf(path, PATH_MAX, "%s/%s.%lu", notes, kind, number);
}

static int open_note(const char *name, int flags)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", notes, name);
    int file = real_open(path, flags | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0) {
        perror(path);
        abort();
    }
    /* Out of the way: what the program opens gets the numbers that it would get. */
    int high = fcntl(file, F_DUPFD_CLOEXEC, 900);
    if (high < 0)
        return file;
    close(file);
    return high;
}

__attribute__((constructor)) static void begin(void)
{
    const char *named_root = getenv("UNSYNCED_ROOT"), *named_notes = getenv("UNSYNCED_NOTES");
    if (!named_root || !named_notes)
        return;
    snprintf(root, sizeof root, "%s", named_root);
    snprintf(notes, sizeof notes, "%s", named_notes);
    root_length = strlen(root);
    lock_file = open_note("lock", O_RDWR);
    names_file = open_note("names", O_WRONLY | O_APPEND);
    int file = open_note("control", O_RDWR);
    if (real_truncate(file, sizeof *control) < 0)
        abort();
    control = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (control == MAP_FAILED)
        abort();
    pass_on = 0;
}

static void take(void)
{
    pthread_mutex_lock(&mutex);
    while (flock(lock_file, LOCK_EX) < 0 && errno == EINTR)
        ;
}

static void give(void)
{
    int error = errno;
    flock(lock_file, LOCK_UN);
    pthread_mutex_unlock(&mutex);
    errno = error;
}

/* Whether a call of this kind is to fail now: then errno is set. Under the lock. */
static int fails(enum kind kind, const char *path)
{
    if (!control->of[kind].error || (control->path[0] && !strstr(path, control->path)))
        return 0;
    if (control->of[kind].after > 0) {
        control->of[kind].after--;
        return 0;
    }
    if (!control->of[kind].count)
        return 0;
    if (control->of[kind].count > 0)
        control->of[kind].count--;
    control->of[kind].done++;
    errno = control->of[kind].error;
    return 1;
}

static int is_below(const char *path)
{
    return !strncmp(path, root, root_length) && (path[root_length] == '/' || !path[root_length]);
}

/* The path of an open file below the root; 0 if it is elsewhere. */
static int path_of(int file, char *path)
{
    char link[64];
    if (pass_on)
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    int error = errno;
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    errno = error;
    if (length < 0)
        return 0;
    path[length] = 0;
    return is_below(path);
}

/* A path as it is named, made absolute; its links are not followed. 0 if it is elsewhere. */
static int absolute(int directory, const char *named, char *path)
{
    char base[PATH_MAX] = "";
    if (pass_on)
        return 0;
    if (named[0] != '/') {
        char link[64];
        if (directory == AT_FDCWD)
            snprintf(link, sizeof link, "/proc/self/cwd");
        else
            snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
        ssize_t length = readlink(link, base, sizeof base - 2);
        if (length < 0)
            return 0;
        base[length] = '/';
        base[length + 1] = 0;
    }
    if (strlen(base) + strlen(named) >= PATH_MAX)
        return 0;
    strcpy(path, base);
    strcat(path, named);
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/')
        path[--end] = 0;
    return is_below(path);
}

/* ---- what is in files ---- */

/* Note what `length` bytes at `offset` were, and how long the file was. Under the lock. */
static void note_data(int file, const struct stat *status, uint64_t offset, uint64_t length)
{
    char path[PATH_MAX], buffer[65536];
    struct note note = {status->st_size, offset, 0};
    if (offset < note.size)
        note.length = length < note.size - offset ? length : note.size - offset;
    in_notes(path, "data", status->st_ino);
    int to = real_open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    /* Whoever writes may have opened the file for writing only. */
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    int from = real_open(link, O_RDONLY | O_CLOEXEC, 0);
    if (to < 0 || from < 0 || real_write(to, &note, sizeof note) != sizeof note)
        abort();
    for (uint64_t done = 0; done < note.length;) {
        size_t part = note.length - done < sizeof buffer ? note.length - done : sizeof buffer;
        ssize_t got = pread(from, buffer, part, offset + done);
        if (got <= 0 || real_write(to, buffer, got) != got)
            abort();
        done += got;
    }
    close(from);
    close(to);
}

static void forget_data(unsigned long inode)
{
    char path[PATH_MAX];
    in_notes(path, "data", inode);
    real_unlink(path);
    in_notes(path, "lost", inode);
    real_unlink(path);
}

#define IN_FILE(file, kind, status, note, failure, call) \
    do { \
        char path_[PATH_MAX]; \
        struct stat status; \
        if (!path_of(file, path_) || fstat(file, &status) < 0 || !S_ISREG(status.st_mode)) \
            return call; \
        take(); \
        if (fails(kind, path_)) { \
            give(); \
            return failure; \
        } \
        fstat(file, &status); \
        note; \
        __auto_type result_ = call; \
        give(); \
        return result_; \
    } while (0)

ssize_t pwrite64(int file, const void *content, size_t length, off_t offset)
{
    IN_FILE(file, WRITE, now, note_data(file, &now, offset, length), -1, real_pwrite(file, content, length, offset));
}

ssize_t pwrite(int file, const void *content, size_t length, off_t offset)
{
    return pwrite64(file, content, length, offset);
}

static uint64_t position(int file, const struct stat *status)
{
    return fcntl(file, F_GETFL) & O_APPEND ? status->st_size : lseek(file, 0, SEEK_CUR);
}

ssize_t write(int file, const void *content, size_t length)
{
    IN_FILE(file, WRITE, now, note_data(file, &now, position(file, &now), length), -1, real_write(file, content, length));
}

static size_t total(const struct iovec *parts, int count)
{
    size_t sum = 0;
    for (int at = 0; at < count; at++)
        sum += parts[at].iov_len;
    return sum;
}

ssize_t writev(int file, const struct iovec *parts, int count)
{
    REAL(ssize_t, writev, int, const struct iovec *, int);
    IN_FILE(file, WRITE, now, note_data(file, &now, position(file, &now), total(parts, count)), -1,
            real_writev(file, parts, count));
}

ssize_t pwritev64(int file, const struct iovec *parts, int count, off_t offset)
{
    REAL(ssize_t, pwritev64, int, const struct iovec *, int, off_t);
    IN_FILE(file, WRITE, now, note_data(file, &now, offset, total(parts, count)), -1,
            real_pwritev64(file, parts, count, offset));
}

ssize_t pwritev(int file, const struct iovec *parts, int count, off_t offset)
{
    return pwritev64(file, parts, count, offset);
}

ssize_t pwritev64v2(int file, const struct iovec *parts, int count, off_t offset, int flags)
{
    REAL(ssize_t, pwritev64v2, int, const struct iovec *, int, off_t, int);
    IN_FILE(file, WRITE, now, note_data(file, &now, offset, total(parts, count)), -1,
            real_pwritev64v2(file, parts, count, offset, flags));
}

ssize_t pwritev2(int file, const struct iovec *parts, int count, off_t offset, int flags)
{
    return pwritev64v2(file, parts, count, offset, flags);
}

int ftruncate64(int file, off_t size)
{
    IN_FILE(file, WRITE, now, note_data(file, &now, size, UINT64_MAX - size), -1, real_truncate(file, size));
}

int ftruncate(int file, off_t size)
{
    return ftruncate64(file, size);
}

int truncate64(const char *named, off_t size)
{
    int file = open(named, O_WRONLY | O_CLOEXEC);
    if (file < 0)
        return -1;
    int result = ftruncate64(file, size), error = errno;
    close(file);
    errno = error;
    return result;
}

int truncate(const char *path, off_t size)
{
    return truncate64(path, size);
}

int fallocate64(int file, int mode, off_t offset, off_t length)
{
    REAL(int, fallocate64, int, int, off_t, off_t);
    IN_FILE(file, WRITE, now, note_data(file, &now, offset, length), -1, real_fallocate64(file, mode, offset, length));
}

int fallocate(int file, int mode, off_t offset, off_t length)
{
    return fallocate64(file, mode, offset, length);
}

int posix_fallocate64(int file, off_t offset, off_t length)
{
    REAL(int, posix_fallocate64, int, off_t, off_t);
    IN_FILE(file, WRITE, now, note_data(file, &now, now.st_size, 0), errno, real_posix_fallocate64(file, offset, length));
}

int posix_fallocate(int file, off_t offset, off_t length)
{
    return posix_fallocate64(file, offset, length);
}

/* ---- syncs ---- */

/* A line about a directory, which is told by its inode. Under the lock.
 *
 *   A dir name               a name came
 *   D dir name n             a file's name went: the file is kept.<n>
 *   R dir name dir           a directory went
 *   M dir name dir name n    a name moved; what it replaced is kept.<n>; 0: nothing
 *   S dir                    the directory was synced
 */
static void name_line(const char *format, ...)
{
    char line[3 * PATH_MAX];
    va_list values;
    va_start(values, format);
    int length = vsnprintf(line, sizeof line, format, values);
    va_end(values);
    if (real_write(names_file, line, length) != length)
        abort();
}

static int sync_one(int file)
{
    char path[PATH_MAX], note[PATH_MAX];
    struct stat status;
    if (!path_of(file, path) || fstat(file, &status) < 0)
        return -2;
    take();
    in_notes(note, "lost", status.st_ino);
    int result = 0;
    if (fails(SYNC, path)) {
        result = -1;
        if (S_ISREG(status.st_mode)) {
            int error = errno;
            close(real_open(note, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
            errno = error;
        }
    } else if (S_ISDIR(status.st_mode)) {
        name_line("S %lu\n", (unsigned long)status.st_ino);
    } else if (access(note, F_OK) < 0) {
        forget_data(status.st_ino);
    }
    give();
    return result;
}

int fdatasync(int file)
{
    REAL(int, fdatasync, int);
    int result = sync_one(file);
    return result == -2 ? real_fdatasync(file) : result;
}

int fsync(int file)
{
    REAL(int, fsync, int);
    int result = sync_one(file);
    return result == -2 ? real_fsync(file) : result;
}

int syncfs(int file)
{
    char path[PATH_MAX];
    REAL(int, syncfs, int);
    if (!path_of(file, path))
        return real_syncfs(file);
    errno = EOPNOTSUPP; /* whoever calls it syncs file by file then, and those calls are seen */
    return -1;
}

/* ---- names ---- */

/* The inode of a path's directory, and the path's last part. */
static unsigned long directory_of(const char *path, const char **name)
{
    char directory[PATH_MAX];
    struct stat status;
    const char *slash = strrchr(path, '/');
    snprintf(directory, sizeof directory, "%.*s", (int)(slash - path), path);
    *name = slash + 1;
    return stat(directory, &status) < 0 ? 0 : status.st_ino;
}

static unsigned long keep(const char *path)
{
    static unsigned long last;
    char kept[PATH_MAX];
    do {
        last++;
        snprintf(kept, sizeof kept, "%s/kept.%d%06lu", notes, getpid(), last);
    } while (access(kept, F_OK) == 0);
    return real_link(path, kept) < 0 ? 0 : strtoul(strrchr(kept, '.') + 1, NULL, 10);
}

static int added(const char *path)
{
    const char *name;
    unsigned long directory = directory_of(path, &name);
    name_line("A %lu %s\n", directory, name);
    return 0;
}

static int open_at(int directory, const char *named, int flags, mode_t mode)
{
    char path[PATH_MAX];
    struct stat status;
    REAL(int, openat64, int, const char *, int, ...);
    int writes = flags & (O_CREAT | O_TRUNC) && (flags & O_TMPFILE) != O_TMPFILE;
    if (!writes || !absolute(directory, named, path))
        return real_openat64(directory, named, flags, mode);
    take();
    int was = lstat(path, &status) == 0;
    if (fails(NAME, path)) {
        give();
        return -1;
    }
    if (was && flags & O_TRUNC && !(flags & O_EXCL) && S_ISREG(status.st_mode) && status.st_size) {
        int old = real_open(path, O_RDONLY | O_CLOEXEC, 0);
        if (old >= 0) {
            note_data(old, &status, 0, status.st_size);
            close(old);
        }
    }
    int file = real_openat64(directory, named, flags, mode);
    if (file >= 0 && !was && fstat(file, &status) == 0) {
        forget_data(status.st_ino); /* of a file that had this number before */
        added(path);
    }
    give();
    return file;
}

#define OPEN_MODE(flags) \
    mode_t mode = 0; \
    if (flags & (O_CREAT | O_TMPFILE)) { \
        va_list rest; \
        va_start(rest, flags); \
        mode = va_arg(rest, mode_t); \
        va_end(rest); \
    }

int open(const char *path, int flags, ...)
{
    OPEN_MODE(flags);
    return open_at(AT_FDCWD, path, flags, mode);
}

int open64(const char *path, int flags, ...)
{
    OPEN_MODE(flags);
    return open_at(AT_FDCWD, path, flags, mode);
}

int openat(int directory, const char *path, int flags, ...)
{
    OPEN_MODE(flags);
    return open_at(directory, path, flags, mode);
}

int openat64(int directory, const char *path, int flags, ...)
{
    OPEN_MODE(flags);
    return open_at(directory, path, flags, mode);
}

int mkdirat(int directory, const char *named, mode_t mode)
{
    char path[PATH_MAX];
    REAL(int, mkdirat, int, const char *, mode_t);
    if (!absolute(directory, named, path))
        return real_mkdirat(directory, named, mode);
    take();
    int result = fails(NAME, path) ? -1 : real_mkdirat(directory, named, mode);
    if (result == 0)
        added(path);
    give();
    return result;
}

int mkdir(const char *path, mode_t mode)
{
    return mkdirat(AT_FDCWD, path, mode);
}

int link(const char *from, const char *to)
{
    char path[PATH_MAX];
    if (!absolute(AT_FDCWD, to, path))
        return real_link(from, to);
    take();
    int result = fails(NAME, path) ? -1 : real_link(from, to);
    if (result == 0)
        added(path);
    give();
    return result;
}

int unlinkat(int directory, const char *named, int flags)
{
    char path[PATH_MAX];
    const char *name;
    struct stat status;
    REAL(int, unlinkat, int, const char *, int);
    if (!absolute(directory, named, path))
        return real_unlinkat(directory, named, flags);
    take();
    int is_directory = flags & AT_REMOVEDIR;
    unsigned long above = directory_of(path, &name), kept = is_directory ? 0 : keep(path);
    if (lstat(path, &status) < 0)
        status.st_ino = 0;
    int result = fails(NAME, path) ? -1 : real_unlinkat(directory, named, flags);
    if (result == 0)
        name_line("%c %lu %s %lu\n", is_directory ? 'R' : 'D', above, name, is_directory ? status.st_ino : kept);
    give();
    return result;
}

int unlink(const char *path)
{
    return pass_on ? real_unlink(path) : unlinkat(AT_FDCWD, path, 0);
}

int rmdir(const char *path)
{
    return unlinkat(AT_FDCWD, path, AT_REMOVEDIR);
}

int remove(const char *path)
{
    struct stat status;
    return lstat(path, &status) == 0 && S_ISDIR(status.st_mode) ? rmdir(path) : unlink(path);
}

int renameat(int from_directory, const char *from, int to_directory, const char *to)
{
    char old[PATH_MAX], new[PATH_MAX];
    const char *old_name, *new_name;
    struct stat status;
    REAL(int, renameat, int, const char *, int, const char *);
    if (!absolute(from_directory, from, old) || !absolute(to_directory, to, new))
        return real_renameat(from_directory, from, to_directory, to);
    take();
    unsigned long above_old = directory_of(old, &old_name), above_new = directory_of(new, &new_name), kept = 0;
    if (lstat(new, &status) == 0 && !S_ISDIR(status.st_mode))
        kept = keep(new);
    int result = fails(NAME, new) ? -1 : real_renameat(from_directory, from, to_directory, to);
    if (result == 0)
        name_line("M %lu %s %lu %s %lu\n", above_old, old_name, above_new, new_name, kept);
    give();
    return result;
}

int rename(const char *from, const char *to)
{
    return renameat(AT_FDCWD, from, AT_FDCWD, to);
}

/* ---- io_uring ----
 *
 * Writes and syncs that are submitted to it are done here, like all others, before the kernel gets them. It gets
 * requests that do nothing but have the same results, from Linux 6.11 on; older ones have no io_uring here.
 */

#define RINGS 1024

static struct ring {
    unsigned *tail, mask, *order;
    struct io_uring_sqe *requests;
} rings[RINGS]; /* by descriptor */

static long real_syscall6(long number, long a, long b, long c, long d, long e, long f)
{
    REAL(long, syscall, long, ...);
    return real_syscall(number, a, b, c, d, e, f);
}

static long has_set_up(long entries, struct io_uring_params *parameters)
{
    struct utsname system;
    int major = 0, minor = 0;
    if (uname(&system) < 0 || sscanf(system.release, "%d.%d", &major, &minor) != 2 || major * 100 + minor < 611) {
        errno = ENOSYS;
        return -1;
    }
    long file = real_syscall6(SYS_io_uring_setup, entries, (long)parameters, 0, 0, 0, 0);
    if (file < 0)
        return file;
    if (file >= RINGS)
        abort();
    rings[file].requests = NULL;
    if (parameters->flags != IORING_SETUP_CQSIZE)
        return file; /* it is not the store's: that of the event loop's library has no files in it */
    size_t size = parameters->sq_off.array + parameters->sq_entries * sizeof(unsigned);
    char *queue = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, IORING_OFF_SQ_RING);
    struct io_uring_sqe *requests = mmap(NULL, parameters->sq_entries * sizeof *requests, PROT_READ | PROT_WRITE,
                                         MAP_SHARED, file, IORING_OFF_SQES);
    if (queue == MAP_FAILED || requests == MAP_FAILED)
        abort();
    rings[file] = (struct ring){(unsigned *)(queue + parameters->sq_off.tail), parameters->sq_entries - 1,
                                (unsigned *)(queue + parameters->sq_off.array), requests};
    return file;
}

static int is_done_here(const struct io_uring_sqe *request)
{
    return request->opcode == IORING_OP_WRITE || request->opcode == IORING_OP_WRITEV || request->opcode == IORING_OP_FSYNC;
}

static long do_here(const struct io_uring_sqe *request)
{
    long done;
    if (request->opcode == IORING_OP_WRITE)
        done = pwrite64(request->fd, (void *)request->addr, request->len, request->off);
    else if (request->opcode == IORING_OP_WRITEV)
        done = pwritev64(request->fd, (void *)request->addr, request->len, request->off);
    else
        done = fdatasync(request->fd);
    if (done > 0 && request->opcode != IORING_OP_FSYNC && request->rw_flags & RWF_DSYNC && fdatasync(request->fd) < 0)
        done = -1; /* as the kernel answers: not with what was written */
    return done < 0 ? -errno : done;
}

static void will_submit(const struct ring *ring, unsigned count)
{
    int is_severed = 0; /* a write of the chain has failed */
    for (unsigned at = *ring->tail - count; at != *ring->tail; at++) {
        struct io_uring_sqe *request = &ring->requests[ring->order[at & ring->mask]];
        if (!is_done_here(request))
            continue;
        int is_linked = request->flags & IOSQE_IO_LINK, flags = request->flags & ~IOSQE_IO_LINK;
        long result = 0;
        if (is_severed) {
            flags |= IOSQE_CQE_SKIP_SUCCESS;
        } else {
            result = do_here(request);
            size_t wanted = request->opcode == IORING_OP_WRITE ? request->len : 0;
            if (request->opcode == IORING_OP_WRITEV)
                wanted = total((void *)request->addr, request->len);
            if (result != (long)wanted) {
                flags &= ~IOSQE_CQE_SKIP_SUCCESS;
                is_severed = request->opcode != IORING_OP_FSYNC;
            }
        }
        is_severed = is_severed && is_linked;
        uint64_t tag = request->user_data;
        memset(request, 0, sizeof *request);
        request->opcode = IORING_OP_NOP;
        request->flags = flags;
        request->fd = -1;
        request->rw_flags = 1; /* IORING_NOP_INJECT_RESULT */
        request->len = result;
        request->user_data = tag;
    }
}

long syscall(long number, ...)
{
    va_list more;
    long a[6];
    va_start(more, number);
    for (int at = 0; at < 6; at++)
        a[at] = va_arg(more, long);
    va_end(more);
    if (number == SYS_io_uring_setup)
        return has_set_up(a[0], (struct io_uring_params *)a[1]);
    if (number == SYS_io_uring_enter && a[0] >= 0 && a[0] < RINGS && rings[a[0]].requests)
        will_submit(&rings[a[0]], a[1]);
    return real_syscall6(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
