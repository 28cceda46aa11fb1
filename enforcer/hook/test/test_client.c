/* The beginning of a session, and all that can go wrong with it. */
#include "test_broker.h"

#include "base/entries.h"

/* What the client wrote to standard error since capture_log. */
static int log_file;

static void capture_log(void)
{
	log_file = memfd_create("log", MFD_CLOEXEC);
	CHECK(log_file >= 0 && dup2(log_file, 2) == 2);
	gs_log_begin();
}

static const char *captured(void)
{
	static char text[4096];
	ssize_t n = pread(log_file, text, sizeof(text) - 1, 0);

	text[n > 0 ? n : 0] = 0;
	return text;
}

static int lines(const char *text)
{
	int n = 0;

	for (; *text; text++)
		n += *text == '\n';
	return n;
}

#define CHECK_LOG(x)                                                                              \
	do {                                                                                      \
		if (!(x)) {                                                                       \
			printf("%s:%d: not so: %s: %s\n", __FILE__, __LINE__, #x, captured());    \
			fflush(stdout);                                                           \
			_exit(1);                                                                 \
		}                                                                                 \
	} while (0)

static void hello(void)
{
	struct request r;
	uint64_t epoch = gs_client_epoch();

	broker_listen();
	setenv("GPUSTEWARD_TENANT", "blue", 1);
	setenv("TRACEPARENT", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", 1);
	gs_entry_given("cuMemAlloc_v2");
	gs_entry_given("cuUnheardOf");
	pthread_t t = starting();
	struct peer p = peer_accept();
	r = peer_expect(&p, GS_HELLO);
	clock_pass(GS_CONNECT - 1); /* just in time */
	clock_seen();
	peer_welcome(&p, r.header.seq);
	CHECK(started(t));
	CHECK(r.header.session == 0 && r.header.length == sizeof(r.hello) && r.header.flags == 0);
	CHECK(r.hello.pid == (uint32_t)getpid() && r.hello.gpus == 2 && r.hello.cuda == 13000 && r.hello.unknown == 1);
	CHECK(strcmp(r.hello.tenant, "blue") == 0 && strcmp(r.hello.hook, GS_VERSION) == 0);
	CHECK(r.hello.uuid[0][0] == 'a' && r.hello.uuid[1][15] == 'b' && r.hello.uuid[2][0] == 0);
	CHECK(strcmp((const char *)r.hello.uuid[GS_CALLER_AT], getenv("TRACEPARENT")) == 0);
	CHECK(r.hello.old_session == 0 && r.hello.token == 0 && r.hello.committed[0] == 0);
	CHECK(gs_client_connected() && gs_client_epoch() != epoch && gs_page != &gs_own);
	CHECK(gs_gpu_count() == 2 && gs_gpu_of_device(1) == 1 && gs_gpu_of_device(2) == -1);

	/* It is the broker's page, and must not be written. */
	p.page->slot[1].cap = 4711;
	CHECK(gs_page->slot[1].cap == 4711);
	int null = open("/dev/null", O_WRONLY), zero = open("/dev/zero", O_RDONLY);
	CHECK(read(zero, (void *)gs_page, 1) < 0 && errno == EFAULT);
	close(null);

	/* It is out of the way of select() and of programs that close low descriptors. */
	CHECK(gs_client.link.fd >= 512 && (fcntl(gs_client.link.fd, F_GETFD) & FD_CLOEXEC));

	/* Requests have the session's number. Those for GPUs that are not governed
	 * stay here. */
	gs_client_acquire(2);
	gs_client_acquire(1);
	r = peer_expect(&p, GS_ACQUIRE);
	CHECK(r.header.session == 7 && r.header.length == sizeof(r.acquire) && r.acquire.gpu == 1);
	gs_client_usage(GS_YIELD, &(struct gs_usage){.gpu = 0, .why = GS_IDLE, .turn = 3, .passed = 4, .errors = 5,
						     .uncounted = 6}, 20000);
	r = peer_expect(&p, GS_YIELD);
	CHECK(r.header.length == sizeof(r.usage) && r.header.flags == 20000 && r.usage.why == GS_IDLE && r.usage.turn == 3);
	CHECK(r.usage.passed == 4 && r.usage.errors == 5 && r.usage.uncounted == 6);
}

static void absent(void)
{
	uint64_t reservation;

	capture_log();
	setenv("GPUSTEWARD_MEMORY_LIMIT", "4k", 1);
	clock_stop(); /* nothing is waited for */
	gs_client_start();
	gs_client_start();
	CHECK_LOG(!gs_client_connected() && gs_page == &gs_own && gs_own.slot[0].mode == GS_OPEN && !gs_own.gated);
	CHECK_LOG(gs_own.slot[0].cap == 4096);
	for (int i = 0; i < 3; i++) {
		stopped_at = gs_client.retry_at;
		gs_client_poll();
	}
	CHECK_LOG(lines(captured()) == 1 && strstr(captured(), path));
	CHECK_LOG(gs_client_reserve(0, GS_DEVICE, 4097, &reservation) == GS_DENY);
	CHECK_LOG(gs_client_reserve(0, GS_DEVICE, UINT64_MAX, &reservation) == GS_DENY);
	CHECK_LOG(gs_client_reserve(0, GS_DEVICE, 4096, &reservation) == GS_GRANT);
	gs_client_acquire(0);
}

static void not_asked(void)
{
	capture_log();
	unsetenv("GPUSTEWARD_SOCKET");
	setenv("GPUSTEWARD_FAIL", "open", 1);
	gs_client_start();
	CHECK_LOG(!gs_client_connected() && lines(captured()) == 0);
}

static void off(void)
{
	broker_listen();
	setenv("GPUSTEWARD_OFF", "1", 1);
	gs_client_start();
	gs_client_poll();
	struct pollfd knock = {.fd = listener, .events = POLLIN};
	CHECK(!gs_client_connected() && poll(&knock, 1, 0) == 0 && gs_page == &gs_own);
}

static void no_size(void)
{
	static const char *const sizes[] = {"many", "-1", "12Q", "1G2", "99999999999G", "18446744073709551616"};

	for (unsigned i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		capture_log();
		setenv("GPUSTEWARD_MEMORY_LIMIT", sizes[i], 1);
		gs_settings_read();
		CHECK_LOG(gs_settings.memory == 0 && lines(captured()) == 1 && strstr(captured(), sizes[i]));
	}
	capture_log();
	setenv("GPUSTEWARD_MEMORY_LIMIT", "3G", 1);
	gs_settings_read();
	CHECK_LOG(gs_settings.memory == 3ull << 30 && lines(captured()) == 0);
}

/* A broker that accepts and stays silent costs 250 ms once. The helper then gets
 * the session as soon as possible. */
static void silent(void)
{
	struct request r;

	capture_log();
	broker_listen();
	pthread_t t = starting();
	struct peer first = peer_accept();
	peer_expect(&first, GS_HELLO);
	CHECK_LOG(lines(captured()) == 0);
	clock_pass(GS_CONNECT);
	CHECK_LOG(!started(t) && lines(captured()) == 1);
	CHECK_LOG(!peer_read(&first, &r));
	start_helper();
	peer_welcomed(&r, GS_HELLO);
	AWAIT(gs_client_connected());
	CHECK_LOG(lines(captured()) == 1);
}

/* The broker of a busy host is late with every WELCOME. */
static void late(void)
{
	gs_client_start();
	broker_listen();
	start_helper();
	struct peer p = peer_accept();
	struct request hello = peer_expect(&p, GS_HELLO);
	clock_stop();
	clock_pass(2 * GS_CONNECT);
	clock_seen();
	peer_welcome(&p, hello.header.seq);
	AWAIT(gs_client_connected());
}

/* The socket's queue is full: the client tries again within the 250 ms. */
static void busy(void)
{
	struct request r;
	struct sockaddr_un to = {.sun_family = AF_UNIX};
	int others[64], n = 0;

	broker_listen();
	memcpy(to.sun_path, path, sizeof(path));
	for (; n < 64; n++) {
		others[n] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0);
		if (connect(others[n], (struct sockaddr *)&to, sizeof(to)))
			break;
	}
	CHECK(n < 64 && errno == EAGAIN);
	pthread_t t = starting();
	while (n--)
		close(accept(listener, NULL, NULL));
	peer_welcomed(&r, GS_HELLO);
	CHECK(started(t));
}

/* ---- answers to HELLO that are none ---- */

static void send_raw(const struct peer *p, const void *bytes, size_t n)
{
	CHECK(send(p->fd, bytes, n, MSG_NOSIGNAL) == (ssize_t)n);
}

static void answer_short(const struct peer *p, uint64_t seq) { (void)seq; send_raw(p, "no", 2); }

static void answer_zeros(const struct peer *p, uint64_t seq)
{
	static const char zeros[GS_FRAME_MAX];

	(void)seq;
	send_raw(p, zeros, sizeof(zeros));
}

static void answer_version(const struct peer *p, uint64_t seq)
{
	send_raw(p, &(struct gs_header){.magic = GS_MAGIC, .major = GS_MAJOR + 1, .type = GS_ERR, .seq = seq},
		 sizeof(struct gs_header));
}

static void answer_length(const struct peer *p, uint64_t seq)
{
	peer_send(p, GS_WELCOME, seq, &WELCOME, sizeof(WELCOME) - 8, p->memfd);
}
static void answer_type(const struct peer *p, uint64_t seq) { peer_send(p, GS_PONG, seq, NULL, 0, p->memfd); }

static void answer_error(const struct peer *p, uint64_t seq)
{
	struct gs_err e = {.code = GS_E_TENANT, .type = GS_HELLO, .text = "no such tenant"};

	peer_send(p, GS_ERR, seq, &e, sizeof(e), -1);
}

static void answer_no_page(const struct peer *p, uint64_t seq)
{
	peer_send(p, GS_WELCOME, seq, &WELCOME, sizeof(WELCOME), -1);
}
static void answer_unsealed(const struct peer *p, uint64_t seq)
{
	peer_send(p, GS_WELCOME, seq, &WELCOME, sizeof(WELCOME), p->memfd);
}

static void answer_pipe(const struct peer *p, uint64_t seq)
{
	int ends[2];

	CHECK(pipe2(ends, O_CLOEXEC) == 0);
	peer_send(p, GS_WELCOME, seq, &WELCOME, sizeof(WELCOME), ends[0]);
	close(ends[0]);
	close(ends[1]);
}

static void answer_short_page(const struct peer *p, uint64_t seq)
{
	CHECK(ftruncate(p->memfd, 100) == 0);
	peer_welcome(p, seq);
}

static void answer_other_page(const struct peer *p, uint64_t seq)
{
	p->page->version = 2;
	peer_welcome(p, seq);
}

static void answer_end(const struct peer *p, uint64_t seq)
{
	(void)seq;
	shutdown(p->fd, SHUT_RDWR);
}

static void refuse(void (*answer)(const struct peer *, uint64_t), const char *why)
{
	struct request r;

	capture_log();
	broker_listen();
	int before = open_descriptors();
	pthread_t t = starting();
	struct peer p = peer_accept();
	r = peer_expect(&p, GS_HELLO);
	answer(&p, r.header.seq);
	CHECK_LOG(!started(t) && gs_page == &gs_own);
	CHECK_LOG(lines(captured()) == 1 && strstr(captured(), why));
	CHECK_LOG(open_descriptors() == before + 2); /* the peer's own */
	CHECK_LOG(gs_client.link.fd < 0 && gs_client.retry_at > 0);
}

static void refused_short(void) { refuse(answer_short, "Bad message"); }
static void refused_zeros(void) { refuse(answer_zeros, "Bad message"); }
static void refused_version(void) { refuse(answer_version, "another version"); }
static void refused_length(void) { refuse(answer_length, "Bad message"); }
static void refused_type(void) { refuse(answer_type, "not a WELCOME"); }
static void refused_tenant(void) { refuse(answer_error, "no such tenant"); }
static void refused_no_page(void) { refuse(answer_no_page, "no descriptor"); }
static void refused_unsealed(void) { refuse(answer_unsealed, "shrink"); }
static void refused_pipe(void) { refuse(answer_pipe, "shrink"); }
static void refused_short_page(void) { refuse(answer_short_page, "too short"); }
static void refused_other_page(void) { refuse(answer_other_page, "another kind"); }
static void refused_end(void) { refuse(answer_end, "reset"); }

/* ---- standard error ---- */

/* The program has closed it, and opened a file of its own under its number. */
static void other_file_at_2(void)
{
	struct stat st;

	capture_log();
	int own = memfd_create("own", MFD_CLOEXEC);
	CHECK_LOG(own >= 0 && close(2) == 0 && dup2(own, 2) == 2);
	gs_client_start();
	CHECK_LOG(fstat(own, &st) == 0 && st.st_size == 0 && lines(captured()) == 0);
}

/* A write would end the program by SIGXFSZ. */
static void no_room_for_a_line(void)
{
	capture_log();
	CHECK_LOG(setrlimit(RLIMIT_FSIZE, &(struct rlimit){10, 10}) == 0);
	gs_client_start();
	CHECK_LOG(lines(captured()) == 0);
}

/* ---- no descriptors ---- */

static void limit_descriptors(int free)
{
	int next = dup(0);

	close(next);
	CHECK(setrlimit(RLIMIT_NOFILE, &(struct rlimit){(rlim_t)(next + free), (rlim_t)(next + free)}) == 0);
}

static void exhausted(void)
{
	capture_log();
	broker_listen();
	limit_descriptors(0);
	gs_client_start();
	CHECK_LOG(!gs_client_connected() && strstr(captured(), "Too many open files"));
}

/* The program's next descriptor has the number that it had without us. */
static void few_descriptors(void)
{
	capture_log();
	broker_listen();
	CHECK_LOG(setrlimit(RLIMIT_NOFILE, &(struct rlimit){100, 100}) == 0);
	int before = dup(0);
	CHECK_LOG(close(before) == 0);
	struct peer p = start();
	CHECK_LOG(gs_client.link.fd == 99);
	CHECK_LOG(close(p.fd) == 0 && close(p.memfd) == 0 && dup(0) == before);
}

/* One descriptor is left for the socket, and none for the page. */
static void exhausted_by_one(void)
{
	int ready[2], done = 0;

	capture_log();
	broker_listen();
	CHECK_LOG(pipe2(ready, O_CLOEXEC) == 0);
	pid_t child = fork();
	CHECK_LOG(child >= 0);
	if (child == 0) {
		limit_descriptors(1);
		gs_client_start();
		_exit(!gs_client_connected() && strstr(captured(), "no descriptor") ? 0 : 1);
	}
	struct request r;
	peer_welcomed(&r, GS_HELLO);
	CHECK_LOG(waitpid(child, &done, 0) == child && done == 0);
}

/* Without a broker, a program that asked for it waits. */
static void fail_closed(void)
{
	struct request r;

	setenv("GPUSTEWARD_FAIL", "closed", 1);
	capture_log();
	gs_client_start();
	CHECK_LOG(gs_own.gated && gs_own.slot[0].mode == GS_PAUSE);
	broker_listen();
	start_helper();
	uint32_t bell = gs_own.bell;
	struct peer p = peer_welcomed(&r, GS_HELLO);
	AWAIT(gs_client_connected());
	CHECK_LOG(gs_page->slot[0].mode == GS_OPEN);
	AWAIT(__atomic_load_n(&gs_own.bell, __ATOMIC_ACQUIRE) != bell); /* threads that wait look again */
	close(p.fd);
	AWAIT(!gs_client_connected());
	AWAIT(__atomic_load_n(&gs_own.slot[0].mode, __ATOMIC_ACQUIRE) == GS_PAUSE);
}

/* Nor does it have memory without a broker, unless it has a cap: be that before the first one,
 * after a loss, or when the broker is lost meanwhile. */
static void fail_closed_memory(void)
{
	struct request hello, r;

	setenv("GPUSTEWARD_FAIL", "closed", 1);
	gs_client_start();
	pthread_t asks = reserve_aside(4096);
	broker_listen();
	struct peer p = peer_welcomed(&hello, GS_HELLO);
	r = peer_expect(&p, GS_RESERVE);
	peer_answer(&p, GS_DENY, &r, 0);
	CHECK(reserved(asks) == 0);
	asks = reserve_aside(4096);
	peer_expect(&p, GS_RESERVE);
	close(p.fd);
	p = peer_welcomed(&hello, GS_RESUME);
	r = peer_expect(&p, GS_RESERVE);
	close(p.fd);
	p = peer_welcomed(&hello, GS_RESUME);
	r = peer_expect(&p, GS_RESERVE);
	peer_answer(&p, GS_GRANT, &r, 7);
	CHECK(reserved(asks) != 0);
}

#ifndef __SANITIZE_THREAD__
static _Atomic bool held_up, go_on;

static void hold_up(int unused)
{
	(void)unused;
	atomic_store(&held_up, true);
	AWAIT(atomic_load(&go_on));
}

/* A thread whose broker is lost and back before the thread looks asks again. The memory has this
 * cap in the first session; 0: none. */
static void lost_and_back(uint64_t cap)
{
	struct request hello, r;

	setenv("GPUSTEWARD_FAIL", "closed", 1);
	signal(SIGUSR1, hold_up);
	broker_listen();
	struct peer p = start();
	p.page->slot[0].cap = cap;
	pthread_t reads = reserve_aside(4096);
	peer_expect(&p, GS_RESERVE);
	pthread_t asks = reserve_aside(4096);
	peer_expect(&p, GS_RESERVE);
	pthread_mutex_lock(&gs_client.lock); /* so that the thread does not have it */
	CHECK(pthread_kill(asks, SIGUSR1) == 0);
	AWAIT(atomic_load(&held_up));
	pthread_mutex_unlock(&gs_client.lock);
	clock_stop(); /* the client waits for this broker, however long it takes */
	close(p.fd);
	start_helper();
	while (gs_client_connected()) /* until it reads */
		clock_pass(GS_MS), sched_yield();
	pthread_mutex_lock(&gs_client.lock); /* it knows when it tries again */
	clock_pass(GS_SECOND);
	pthread_mutex_unlock(&gs_client.lock);
	p = peer_welcomed(&hello, GS_RESUME);
	r = peer_expect(&p, GS_RESERVE);
	peer_answer(&p, GS_DENY, &r, 0);
	CHECK(reserved(reads) == 0);
	AWAIT(gs_client_connected());
	atomic_store(&go_on, true);
	r = peer_expect(&p, GS_RESERVE);
	peer_answer(&p, GS_GRANT, &r, 7);
	CHECK(reserved(asks) != 0);
}

static void fail_closed_back(void) { lost_and_back(0); }
static void fail_closed_back_with_cap(void) { lost_and_back(8192); }
#endif

static void fail_closed_own_cap(void)
{
	setenv("GPUSTEWARD_FAIL", "closed", 1);
	setenv("GPUSTEWARD_MEMORY_LIMIT", "4096", 1);
	gs_client_start();
	CHECK(reserved(reserve_aside(4096)) && !reserved(reserve_aside(4096)));
}

/* A WELCOME that governs this many of the two GPUs, from a broker that is closed or not. */
static struct peer governs(uint32_t gpus, uint32_t closed)
{
	struct gs_welcome w = WELCOME;
	struct peer p = peer_accept();
	struct request hello;

	w.gpus = gpus;
	w.fail_closed = closed;
	CHECK_LOG(peer_read(&p, &hello));
	CHECK_LOG(fcntl(p.memfd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
	peer_send(&p, GS_WELCOME, hello.header.seq, &w, sizeof(w), p.memfd);
	return p;
}

/* The program is told once where no quota holds, even without a log. */
static void ungoverned(void)
{

	capture_log();
	broker_listen();
	pthread_t t = starting();
	struct peer p = governs(1, 0);
	CHECK_LOG(started(t));
	const char *line = strstr(captured(), "does not know 1 of 2 GPUs: no quota holds there");
	CHECK_LOG(line);
	start_helper();
	close(p.fd);
	AWAIT(!gs_client_connected());
	p = governs(0, 1);
	AWAIT(gs_client_connected());
	CHECK_LOG(!strstr(strstr(captured(), "does not know") + 1, "does not know"));
}

/* A request for a GPU that a closed broker does not know is sent all the same. */
static void ungoverned_closed(void)
{

	capture_log();
	broker_listen();
	pthread_t t = starting();
	struct peer p = governs(0, 1);
	CHECK_LOG(started(t));
	CHECK_LOG(strstr(captured(), "does not know 2 of 2 GPUs: launches wait there"));
	pthread_t asks = reserve_aside(4096);
	struct request r = peer_expect(&p, GS_RESERVE);
	peer_answer(&p, GS_DENY, &r, 0);
	CHECK_LOG(reserved(asks) == 0);
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		TEST(hello),
		TEST(absent),
		TEST(not_asked),
		TEST(off),
		TEST(no_size),
		TEST(silent),
		TEST(late),
		TEST(busy),
		TEST(refused_short),
		TEST(refused_zeros),
		TEST(refused_version),
		TEST(refused_length),
		TEST(refused_type),
		TEST(refused_tenant),
		TEST(refused_no_page),
		TEST(refused_unsealed),
		TEST(refused_pipe),
		TEST(refused_short_page),
		TEST(refused_other_page),
		TEST(refused_end),
		TEST(other_file_at_2),
		TEST(no_room_for_a_line),
		TEST(exhausted),
		TEST(few_descriptors),
		TEST(exhausted_by_one),
		TEST(fail_closed),
		TEST(fail_closed_memory),
#ifndef __SANITIZE_THREAD__ /* it holds the signal back while the thread waits for the lock */
		TEST(fail_closed_back),
		TEST(fail_closed_back_with_cap),
#endif
		TEST(fail_closed_own_cap),
		TEST(ungoverned),
		TEST(ungoverned_closed),
	};

	return RUN_ALL(tests, argc, argv);
}
