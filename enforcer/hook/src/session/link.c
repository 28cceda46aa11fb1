/* One connection to the broker. */
#define _GNU_SOURCE
#include "session/link.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>

#include "base/clock.h"
#include "base/sys.h"
#include "trace/crash.h"

/* Programs close the low descriptors when they start others, and call select() on
 * them. Ours is above. */
#define GS_FIRST_FD 512

/* A reader looks around at this interval: its session may be gone. */
#define GS_READ_US 50000

/* The broker answers within microseconds. Falling asleep and waking on another core
 * costs more than that. */
#define GS_SPIN 20000 /* ns */

static void move_up(int *fd)
{
	struct rlimit most = {.rlim_cur = 0};
	int high = (int)GS_SYS(SYS_fcntl, *fd, F_DUPFD_CLOEXEC, GS_FIRST_FD);

	if (high < 0) /* Under a lower limit it is the highest free one. */
		GS_SYS(SYS_prlimit64, 0, RLIMIT_NOFILE, NULL, &most);
	for (int from = most.rlim_cur < GS_FIRST_FD ? (int)most.rlim_cur : GS_FIRST_FD; high < 0 && --from > *fd;)
		high = (int)GS_SYS(SYS_fcntl, *fd, F_DUPFD_CLOEXEC, from);
	if (high < 0)
		return;
	GS_SYS(SYS_close, *fd);
	*fd = high;
}

int gs_link_open(struct gs_link *l, const char *path)
{
	struct sockaddr_un to = {.sun_family = AF_UNIX};
	struct timeval read = {.tv_usec = GS_READ_US};
	struct stat st;

	if (strlen(path) >= sizeof(to.sun_path))
		return ENAMETOOLONG;
	memcpy(to.sun_path, path, strlen(path));
	int fd = (int)GS_SYS(SYS_socket, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -fd;
	move_up(&fd);
	long r = GS_SYS(SYS_connect, fd, &to, sizeof(to));
	if (!r)
		r = GS_SYS(SYS_fcntl, fd, F_SETFL, 0);
	if (!r)
		r = GS_SYS(SYS_setsockopt, fd, SOL_SOCKET, SO_RCVTIMEO, &read, sizeof(read));
	if (!r)
		r = GS_SYS(SYS_fstat, fd, &st);
	if (r) {
		GS_SYS(SYS_close, fd);
		return (int)-r;
	}
	*l = (struct gs_link){.fd = fd, .dev = st.st_dev, .ino = st.st_ino};
	return 0;
}

/* A program may close every descriptor that it finds, and open its own under the
 * same number. Nothing of ours may reach those. */
static bool ours(const struct gs_link *l)
{
	struct stat st;

	return l->fd >= 0 && GS_SYS(SYS_fstat, l->fd, &st) == 0 && st.st_dev == l->dev && st.st_ino == l->ino;
}

void gs_link_shut(const struct gs_link *l)
{
	if (ours(l))
		GS_SYS(SYS_shutdown, l->fd, SHUT_RDWR);
}

void gs_link_close(struct gs_link *l)
{
	if (ours(l))
		GS_SYS(SYS_close, l->fd);
	l->fd = -1;
}

int gs_link_send(const struct gs_link *l, const struct gs_header *h, const void *payload)
{
	struct iovec parts[2] = {{(void *)h, sizeof(*h)}, {(void *)payload, h->length}};
	struct msghdr m = {.msg_iov = parts, .msg_iovlen = h->length ? 2 : 1};
	uint64_t until = 0;

	for (;;) {
		if (!ours(l))
			return EBADF;
		long r = GS_SYS(SYS_sendmsg, l->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (r >= 0)
			return 0;
		if (r == -EINTR)
			continue;
		uint64_t now = gs_now();
		if (r != -EAGAIN || (until && now >= until))
			return (int)-r;
		if (!until)
			until = now + GS_ANSWER;
		struct pollfd p = {.fd = l->fd, .events = POLLOUT};
		gs_sys_poll(&p, until - now);
	}
}

/* A session's frames are few and small. A longer one is of a type that this hook
 * does not know, and is cut off. */
static int check(const struct gs_frame *f, size_t n)
{
	if (n < sizeof(f->header) || f->header.magic != GS_MAGIC || f->header.length > GS_FRAME_MAX - sizeof(f->header))
		return EBADMSG;
	if (f->header.major != GS_MAJOR)
		return EPROTONOSUPPORT;
	size_t want = 0;
	switch (f->header.type) {
	case GS_WELCOME: want = sizeof(f->welcome); break;
	case GS_GRANT:
	case GS_DENY:
	case GS_LIMITS_CHANGED: want = sizeof(f->memory); break;
	case GS_NOTICE: want = sizeof(f->notice); break;
	case GS_ERR: want = sizeof(f->err); break;
	case GS_PONG:
	case GS_BYE: break;
	default: return 0;
	}
	return f->header.length == want && n == sizeof(f->header) + want ? 0 : EBADMSG;
}

int gs_link_receive(const struct gs_link *l, struct gs_frame *f, bool wait, int fds[GS_FDS])
{
	union {
		struct cmsghdr align;
		char room[CMSG_SPACE(GS_FDS * sizeof(int))];
	} control;
	struct iovec part = {f, sizeof(*f)};
	/* There is room for exactly so many descriptors. The kernel keeps the rest. */
	struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = fds ? &control : NULL,
			   .msg_controllen = fds ? CMSG_LEN(GS_FDS * sizeof(int)) : 0};

	if (!ours(l))
		return EBADF;
	long n;
	uint64_t until = wait ? gs_now() + GS_SPIN : 0;
	do
		n = GS_SYS(SYS_recvmsg, l->fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	while (wait && n == -EAGAIN && gs_now() < until);
	if (wait && n == -EAGAIN)
		n = GS_SYS(SYS_recvmsg, l->fd, &m, MSG_CMSG_CLOEXEC);
	if (n < 0)
		return n == -EINTR ? EAGAIN : (int)-n;
	struct cmsghdr *c = fds ? CMSG_FIRSTHDR(&m) : NULL;
	if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS &&
	    c->cmsg_len <= CMSG_LEN(GS_FDS * sizeof(int)))
		memcpy(fds, CMSG_DATA(c), c->cmsg_len - CMSG_LEN(0));
	if (n == 0)
		return ECONNRESET;
	return check(f, (size_t)n);
}

/* ---- the page ---- */

static const char *unfit(int fd, uint64_t size)
{
	struct stat st;
	int seals = (int)GS_SYS(SYS_fcntl, fd, F_GET_SEALS);

	if (seals < 0 || !(seals & F_SEAL_SHRINK))
		return "its page could shrink under the reader";
	if (GS_SYS(SYS_fstat, fd, &st) || (uint64_t)st.st_size < size)
		return "its page is too short";
	return NULL;
}

struct gs_page *gs_link_map(int fd, const struct gs_welcome *w, struct gs_page *at, const char **why)
{
	size_t size = sizeof(struct gs_page);
	void *p = NULL;

	if (fd < 0) {
		*why = "no descriptor for its page came: are there any left?";
		return NULL;
	}
	*why = w->page_bytes < size ? "its page is too short" : unfit(fd, w->page_bytes);
	if (!*why)
		p = gs_sys_address(GS_SYS(SYS_mmap, NULL, size, PROT_READ, MAP_SHARED, fd, 0));
	GS_SYS(SYS_close, fd);
	if (*why)
		return NULL;
	if (!p) {
		*why = "its page cannot be mapped";
		return NULL;
	}
	const struct gs_page *page = p;
	if (page->magic != GS_MAGIC || page->version != 1)
		*why = "its page is of another kind";
	else if (!at)
		return p;
	else if (gs_sys_address(GS_SYS(SYS_mremap, p, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, at)))
		return at;
	else
		*why = "its page cannot be mapped";
	GS_SYS(SYS_munmap, p, size);
	return NULL;
}

void gs_link_unmap(struct gs_page *p)
{
	if (p)
		GS_SYS(SYS_munmap, p, sizeof(*p));
}

void gs_link_unmap_leases(struct gs_leases *l)
{
	if (l)
		GS_SYS(SYS_munmap, l, sizeof(*l));
}

struct gs_leases *gs_link_map_leases(int fd, struct gs_leases *at)
{
	size_t size = sizeof(struct gs_leases);
	void *l = NULL;

	if (fd >= 0 && !unfit(fd, size))
		l = gs_sys_address(GS_SYS(SYS_mmap, at, size, PROT_READ | PROT_WRITE,
					  MAP_SHARED | (at ? MAP_FIXED : 0), fd, 0));
	if (fd >= 0)
		GS_SYS(SYS_close, fd);
	if (!l)
		gs_link_unmap_leases(at);
	return l;
}

struct gs_trace *gs_link_map_trace(int fd, struct gs_trace *at)
{
	size_t whole = sizeof(struct gs_traced), size = whole;

	if (fd >= 0 && unfit(fd, GS_TRACE_AT + size))
		size = sizeof(struct gs_trace); /* of a broker before 3.11: the rest is the process's own */
	if (fd < 0 || unfit(fd, GS_TRACE_AT + size))
		return NULL;
	if (!at && size < whole)
		at = gs_sys_address(GS_SYS(SYS_mmap, NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	if (!at && size < whole)
		return NULL;
	return gs_sys_address(GS_SYS(SYS_mmap, at, size, PROT_READ | PROT_WRITE, MAP_SHARED | (at ? MAP_FIXED : 0),
				     fd, GS_TRACE_AT));
}
