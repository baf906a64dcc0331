/* file.c: files as readable ranges.  Every call of the operating system goes through hl_io, so that tests can let it fail.
 *
 * Only regular files are opened: a FIFO or a device could block or never end.
 */
#include "base.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static int posix_open(void *user, const char *path, int flags, int mode) { (void)user; return open(path, flags, mode); }
static int64_t posix_pread(void *user, int fd, void *buf, size_t n, uint64_t at) { (void)user; return pread(fd, buf, n, (off_t)at); }
static int64_t posix_write(void *user, int fd, const void *buf, size_t n) { (void)user; return write(fd, buf, n); }
static int posix_fsync(void *user, int fd) { (void)user; return fsync(fd); }
static int posix_close(void *user, int fd) { (void)user; return close(fd); }
static int posix_rename(void *user, const char *from, const char *to) { (void)user; return rename(from, to); }
static int posix_unlink(void *user, const char *path) { (void)user; return unlink(path); }

/* By way of /proc: with AT_EMPTY_PATH most kernels want a capability. */
static int posix_link(void *user, int fd, const char *path)
{
    char self[32];
    (void)user;
    snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
    return linkat(AT_FDCWD, self, AT_FDCWD, path, AT_SYMLINK_FOLLOW);
}

const hl_io hl_io_posix = { NULL, posix_open, posix_pread, posix_write, posix_fsync, posix_close, posix_rename, posix_unlink, posix_link };

static const hl_io *io_of(const hl_env *env) { return env->io ? env->io : &hl_io_posix; }

/* strerror is not thread-safe and speaks the host's language; strerrorname_np would name EIO and no more. */
const char *hl_errno_text(int e)
{
    switch (e) {
    case ENOENT: return "no such file";
    case EACCES: case EPERM: return "permission denied";
    case EISDIR: return "is a directory";
    case ELOOP: return "too many symbolic links";
    case ENAMETOOLONG: return "the name is too long";
    case ENOTDIR: return "a part of the path is not a directory";
    case EMFILE: case ENFILE: return "too many open files";
    case ENOSPC: return "no space left on the device";
    case EROFS: return "the file system is read-only";
    case EIO: return "input/output error";
    case EFBIG: return "the file would be too large";
    case EEXIST: return "it exists already";
    case ENOMEM: return "out of memory";
    case EBADF: return "bad file descriptor";
    case ENXIO: return "a socket or a device without driver";
    default: return "system error";
    }
}

static hl_status fail_errno(hl_error *err, hl_status code, const char *path, const char *what, int e)
{
    return hl_fail(err, code, "%s: %s: %s (errno %d)", path, what, hl_errno_text(e), e);
}

static hl_status check_regular(hl_error *err, int fd, const char *path, uint64_t *bytes)
{
    struct stat st;
    if (fstat(fd, &st) != 0) return fail_errno(err, HLLM_E_IO, path, "cannot be examined", errno);
    if (S_ISDIR(st.st_mode)) return hl_fail(err, HLLM_E_IO, "%s: is a directory, not a file", path);
    if (!S_ISREG(st.st_mode)) return hl_fail(err, HLLM_E_IO, "%s: not a regular file (a pipe, socket or device)", path);
    *bytes = (uint64_t)st.st_size;
    return HLLM_OK;
}

hl_status hl_file_open(const hl_env *env, hl_error *err, const char *path, hl_file *out)
{
    const hl_io *io = io_of(env);
    hl_status rc = HLLM_OK;
    int fd = -1;
    memset(out, 0, sizeof *out);
    out->fd = -1;
    if (!path[0]) return hl_fail(err, HLLM_E_ARG, "the path is empty");
    /* O_NONBLOCK: opening a FIFO must not wait for its writer. */
    do fd = io->open(io->user, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0);
    while (fd < 0 && errno == EINTR);                  /* network file systems */
    if (fd < 0) {
        int e = errno;
        return fail_errno(err, e == ENOENT ? HLLM_E_NOT_FOUND : HLLM_E_IO, path, "cannot be opened", e);
    }
    HL_TRY(check_regular(err, fd, path, &out->bytes));
    HL_NEED(out->path = hl_strndup(env->mem, path, strlen(path)));
    out->fd = fd; fd = -1;
done:
    if (fd >= 0) io->close(io->user, fd);
    if (rc != HLLM_OK) { memset(out, 0, sizeof *out); out->fd = -1; }
    return rc;
}

hl_status hl_file_open_fd(const hl_env *env, hl_error *err, int fd, uint64_t offset, uint64_t length, hl_file *out)
{
    const hl_io *io = io_of(env);
    hl_status rc = HLLM_OK;
    char name[32];
    uint64_t bytes = 0;
    int own = -1;
    memset(out, 0, sizeof *out);
    out->fd = -1;
    snprintf(name, sizeof name, "fd %d", fd);
    if (fd < 0) return hl_fail(err, HLLM_E_ARG, "%s: not a file descriptor", name);
    own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (own < 0) return fail_errno(err, HLLM_E_IO, name, "cannot be duplicated", errno);
    HL_TRY(check_regular(err, own, name, &bytes));
    if (offset > bytes || length > bytes - offset) {
        rc = hl_fail(err, HLLM_E_TRUNCATED, "%s: offset %llu + length %llu is beyond the file's %llu bytes", name,
                     (unsigned long long)offset, (unsigned long long)length, (unsigned long long)bytes);
        goto done;
    }
    HL_NEED(out->path = hl_strndup(env->mem, name, strlen(name)));
    out->base = offset;
    out->bytes = length ? length : bytes - offset;
    out->fd = own; own = -1;
done:
    if (own >= 0) io->close(io->user, own);
    if (rc != HLLM_OK) { memset(out, 0, sizeof *out); out->fd = -1; }
    return rc;
}

void hl_file_close(const hl_env *env, hl_file *f)
{
    if (!f->path) return;
    const hl_io *io = io_of(env);
    if (f->fd >= 0) io->close(io->user, f->fd);
    hl_free(env->mem, f->path);
    memset(f, 0, sizeof *f);
    f->fd = -1;
}

hl_status hl_file_read(const hl_env *env, hl_error *err, const hl_file *f, uint64_t offset, void *buf, size_t n)
{
    const hl_io *io = io_of(env);
    char *p = buf;
    uint64_t end;
    if (hl_add_u64(offset, n, &end) != HLLM_OK || end > f->bytes)
        return hl_fail(err, HLLM_E_TRUNCATED, "%s: %zu bytes at %llu are beyond its %llu bytes", f->path, n,
                       (unsigned long long)offset, (unsigned long long)f->bytes);
    while (n) {
        size_t want = n < (1u << 30) ? n : 1u << 30;
        int64_t got = io->pread(io->user, f->fd, p, want, f->base + offset);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return fail_errno(err, HLLM_E_IO, f->path, "cannot be read", errno);
        if (got == 0) return hl_fail(err, HLLM_E_TRUNCATED, "%s: ends at %llu although it had %llu bytes when opened", f->path,
                                     (unsigned long long)offset, (unsigned long long)f->bytes);
        p += got; offset += (uint64_t)got; n -= (size_t)got;
    }
    return HLLM_OK;
}

hl_status hl_file_map(const hl_env *env, hl_error *err, const hl_file *f, const uint8_t **data, void **map_base, size_t *map_bytes)
{
    (void)env;
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), front = f->base % page, n;
    *data = NULL; *map_base = NULL; *map_bytes = 0;
    if (f->bytes == 0) return hl_fail(err, HLLM_E_TRUNCATED, "%s: is empty", f->path);
    if (hl_add_u64(f->bytes, front, &n) != HLLM_OK || n > SIZE_MAX / 2)
        return hl_fail(err, HLLM_E_LIMIT, "%s: %llu bytes are too many to map", f->path, (unsigned long long)f->bytes);
    void *p = mmap(NULL, (size_t)n, PROT_READ, MAP_SHARED, f->fd, (off_t)(f->base - front));
    if (p == MAP_FAILED) return fail_errno(err, errno == ENOMEM ? HLLM_E_NOMEM : HLLM_E_IO, f->path, "cannot be mapped", errno);
    *map_base = p;
    *map_bytes = (size_t)n;
    *data = (const uint8_t *)p + front;
    return HLLM_OK;
}

void hl_file_unmap(void *map_base, size_t map_bytes)
{
    if (map_base) munmap(map_base, map_bytes);
}
