/* A broker that does exactly what a test says, and the driver's few functions that
 * the client calls. Each test is a process of its own, so that its client has not
 * started. */
#ifndef GPUSTEWARD_TEST_BROKER_H
#define GPUSTEWARD_TEST_BROKER_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "run.h"

#include "base/clock.h"
#include "base/devices.h"
#include "base/driver.h"
#include "ledger/admit.h"
#include "session/client.h"
#include "session/local.h"
#include "session/look.h"
#include "session/request.h"
#include "wrappers/forks.h"

/* ---- the clock ---- */

/* A test may stop it. Then no limit of time ends on a busy machine before the test lets it. */
static _Atomic uint64_t stopped_at, clock_reads;

uint64_t gs_now(void)
{
	uint64_t at = atomic_load(&stopped_at);
	struct timespec t;

	atomic_fetch_add(&clock_reads, 1);
	if (at)
		return at;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * GS_SECOND + (uint64_t)t.tv_nsec;
}

static inline void clock_stop(void) { atomic_store(&stopped_at, gs_now()); }
static inline void clock_pass(uint64_t ns) { atomic_fetch_add(&stopped_at, ns); }

/* Waits until a thread that waits has seen how late it is. A read that began before does not count. */
static inline void clock_seen(void)
{
	uint64_t reads = atomic_load(&clock_reads);

	AWAIT(atomic_load(&clock_reads) >= reads + 2);
}

static inline void clock_go(void) { atomic_store(&stopped_at, 0); }

/* ---- the driver ---- */

static CUresult fake_count(int *n) { *n = 2; return CUDA_SUCCESS; }
static CUresult fake_device(CUdevice *d, int i) { *d = i; return CUDA_SUCCESS; }
static CUresult fake_uuid(CUuuid *u, CUdevice d) { memset(u->bytes, 'a' + d, sizeof(u->bytes)); return CUDA_SUCCESS; }
static CUresult fake_version(int *v) { *v = 13000; return CUDA_SUCCESS; }

struct gs_real gs_real = {.cuDeviceGetCount = fake_count, .cuDeviceGet = fake_device, .cuDeviceGetUuid_v2 = fake_uuid,
			  .cuDriverGetVersion = fake_version};

/* ---- the broker ---- */

static char directory[] = "/tmp/gs-test-XXXXXX";
static char path[64];
static int listener = -1;

static void broker_listen(void)
{
	struct sockaddr_un at = {.sun_family = AF_UNIX};

	memcpy(at.sun_path, path, sizeof(path));
	listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	unlink(path);
	CHECK(bind(listener, (struct sockaddr *)&at, sizeof(at)) == 0 && listen(listener, 8) == 0);
}

/* One connection and its page. */
struct peer {
	int fd, memfd;
	struct gs_page *page;
};

static void peer_send_with(const struct peer *p, enum gs_type type, uint64_t seq, const void *payload, uint32_t length,
			   const int *with, size_t n)
{
	struct gs_header h = {.magic = GS_MAGIC, .major = GS_MAJOR, .type = (uint16_t)type, .length = length,
			      .seq = seq, .session = 7};
	struct iovec parts[2] = {{&h, sizeof(h)}, {(void *)payload, length}};
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(4 * sizeof(int))] = {0};
	struct msghdr m = {.msg_iov = parts, .msg_iovlen = length ? 2 : 1};

	if (n) {
		struct cmsghdr *c = (struct cmsghdr *)control;
		*c = (struct cmsghdr){
			.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(n * sizeof(int))};
		memcpy(CMSG_DATA(c), with, n * sizeof(int));
		m.msg_control = control;
		m.msg_controllen = CMSG_SPACE(n * sizeof(int));
	}
	CHECK(sendmsg(p->fd, &m, MSG_NOSIGNAL) >= 0);
}

static void peer_send(const struct peer *p, enum gs_type type, uint64_t seq, const void *payload, uint32_t length,
		      int with)
{
	peer_send_with(p, type, seq, payload, length, &with, with >= 0);
}

static struct peer peer_accept(void)
{
	struct peer p = {.fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC)};

	CHECK(p.fd >= 0);
	p.memfd = memfd_create("page", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	CHECK(p.memfd >= 0 && ftruncate(p.memfd, sizeof(struct gs_page)) == 0);
	p.page = mmap(NULL, sizeof(struct gs_page), PROT_READ | PROT_WRITE, MAP_SHARED, p.memfd, 0);
	CHECK(p.page != MAP_FAILED);
	/* It beats longer than any test. */
	*p.page = (struct gs_page){
		.magic = GS_MAGIC, .version = 1, .session = 7, .heartbeat_ns = gs_now() + 1000 * GS_SECOND};
	return p;
}

struct request {
	struct gs_header header;
	union {
		struct gs_hello hello;
		struct gs_memory memory;
		struct gs_acquire acquire;
		struct gs_usage usage;
	};
};

static bool peer_read(const struct peer *p, struct request *r)
{
	ssize_t n = recv(p->fd, r, sizeof(*r), 0);

	if (n <= 0)
		return false;
	CHECK((size_t)n == sizeof(r->header) + r->header.length && r->header.magic == GS_MAGIC &&
	      r->header.major == GS_MAJOR);
	return true;
}

/* Returns the next request, which must be of this type. PINGs may come before it. */
static struct request peer_expect(const struct peer *p, enum gs_type type)
{
	struct request r;

	do
		CHECK(peer_read(p, &r));
	while (r.header.type == GS_PING && type != GS_PING);
	if (r.header.type != type)
		dprintf(2, "got type %d, not %d\n", r.header.type, type);
	CHECK(r.header.type == type);
	return r;
}

static const struct gs_welcome WELCOME = {.token = 99, .gpus = 2, .heartbeat_ms = 1000,
					  .page_bytes = sizeof(struct gs_page)};

static void peer_welcome(const struct peer *p, uint64_t seq)
{
	CHECK(fcntl(p->memfd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
	peer_send(p, GS_WELCOME, seq, &WELCOME, sizeof(WELCOME), p->memfd);
}

static struct peer peer_welcomed(struct request *hello, enum gs_type type)
{
	struct peer p = peer_accept();

	*hello = peer_expect(&p, type);
	peer_welcome(&p, hello->header.seq);
	return p;
}

static inline void peer_answer(const struct peer *p, enum gs_type type, const struct request *r, uint64_t reservation)
{
	struct gs_memory m = {.gpu = r->memory.gpu, .reservation = reservation, .bytes = r->memory.bytes};

	peer_send(p, type, r->header.seq, &m, sizeof(m), -1);
}

/* Room is being made: the request is to be made again. */
static inline void peer_puts_off(const struct peer *p, const struct request *r, uint32_t ms)
{
	struct gs_memory m = {.gpu = r->memory.gpu, .wait = ms};

	peer_send(p, GS_DENY, r->header.seq, &m, sizeof(m), -1);
}

/* ---- the process under test ---- */

static void *run_start(void *unused)
{
	gs_client_start();
	return unused;
}

/* The client starts while the clock stands, so that it waits for the broker's answer. */
static inline pthread_t starting(void)
{
	pthread_t t;

	clock_stop();
	CHECK(pthread_create(&t, NULL, run_start, NULL) == 0);
	return t;
}

/* Returns whether it is connected. */
static inline bool started(pthread_t t)
{
	CHECK(pthread_join(t, NULL) == 0);
	clock_go();
	return gs_client_connected();
}

/* Begins a session with the start of this process. */
static inline struct peer start(void)
{
	struct request hello;
	pthread_t t = starting();
	struct peer p = peer_welcomed(&hello, GS_HELLO);

	CHECK(started(t));
	return p;
}

static void *run_helper(void *unused)
{
	for (;;) {
		uint64_t next = gs_client_poll(), now = gs_now(), wait = next > now ? next - now : 0;
		poll(NULL, 0, wait < 5 * GS_MS ? (int)(wait / GS_MS) : 5);
	}
	return unused;
}

static inline void start_helper(void)
{
	pthread_t t;

	CHECK(pthread_create(&t, NULL, run_helper, NULL) == 0);
}

static inline void *reserve_thread(void *bytes)
{
	uint64_t reservation;
	enum gs_type answer = gs_client_reserve(0, GS_DEVICE, (uint64_t)(uintptr_t)bytes, &reservation);

	return (void *)(uintptr_t)(answer == GS_GRANT ? reservation : 0);
}

static inline pthread_t reserve_aside(uint64_t bytes)
{
	pthread_t t;

	CHECK(pthread_create(&t, NULL, reserve_thread, (void *)(uintptr_t)bytes) == 0);
	return t;
}

/* The reservation; 0: denied. */
static inline uint64_t reserved(pthread_t t)
{
	void *reservation;

	CHECK(pthread_join(t, &reservation) == 0);
	return (uint64_t)(uintptr_t)reservation;
}

static inline uint64_t grant(const struct peer *p, uint64_t bytes, uint64_t number)
{
	pthread_t t = reserve_aside(bytes);
	struct request r = peer_expect(p, GS_RESERVE);

	CHECK(r.memory.bytes == bytes && r.memory.gpu == 0 && r.memory.kind == GS_DEVICE);
	peer_answer(p, GS_GRANT, &r, number);
	uint64_t reservation = reserved(t);
	CHECK(reservation);
	return reservation;
}

static inline int open_descriptors(void)
{
	int n = 0;
	DIR *d = opendir("/proc/self/fd");

	CHECK(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

static inline void begin_test(void)
{
	run_keeps();
	snprintf(path, sizeof(path), "%s/%d", directory, (int)getpid());
	setenv("GPUSTEWARD_SOCKET", path, 1);
	gs_forks_watch(); /* as the wrappers do */
	gs_log_begin();
}

/* The sockets are in a directory that no other run has. */
static inline int run_all(const struct test *tests, size_t n, const char *only)
{
	CHECK(mkdtemp(directory));
	int status = run_tests(tests, n, only, begin_test);
	DIR *d = opendir(directory);
	for (struct dirent *e; d && (e = readdir(d));)
		unlinkat(dirfd(d), e->d_name, 0);
	closedir(d);
	rmdir(directory);
	return status;
}
#define RUN_ALL(tests, argc, argv) run_all(tests, sizeof(tests) / sizeof *(tests), (argc) > 1 ? (argv)[1] : NULL)

#endif
