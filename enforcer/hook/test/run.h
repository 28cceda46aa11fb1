/* Runs tests, each in a process of its own and several at a time: most of the time they wait.
 * What a test prints is shown if it fails. */
#ifndef GPUSTEWARD_TEST_RUN_H
#define GPUSTEWARD_TEST_RUN_H

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef CHECK
#define CHECK(x) do { if (!(x)) { dprintf(2, "%s:%d: not so: %s\n", __FILE__, __LINE__, #x); _exit(1); } } while (0)
#endif
#define OK(x) do { \
	int ok = (x); \
	if (ok) { dprintf(2, "%s:%d: %s: %d\n", __FILE__, __LINE__, #x, ok); _exit(1); } \
} while (0)
/* Waits until x holds. */
#define AWAIT(x) do { \
	for (time_t gs_until = time(NULL) + RUN_WAIT; !(x);) { \
		if (time(NULL) > gs_until) { \
			dprintf(2, "%s:%d: not so in time: %s\n", __FILE__, __LINE__, #x); \
			_exit(1); \
		} \
		nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL); \
	} \
} while (0)

struct test {
	const char *name;
	void (*run)(void);
};
#define TEST(name) {#name, name}

#define RUN_AT_A_TIME 8
/* Seconds after which something hangs: one wait, and a whole test. */
#define RUN_WAIT 120
#define RUN_SECONDS 300
/* A test that failed is tried again, so often, if it had to wait for a processor for so long in all. */
#define RUN_AGAIN 10
#define RUN_LATE_NS 2000000

/* Simulated GPUs for this process and its children, which end with them. */
static inline void run_gpus(void)
{
	char path[32];
	int fd = memfd_create("gpus", 0);

	CHECK(fd >= 0);
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	setenv("GS_STUB_FILE", path, 1);
}

static void run_leave(void) { _exit(0); }

/* What the test keeps until its end is no leak. */
static inline void run_keeps(void) { atexit(run_leave); }

struct run {
	pid_t pid;
	int said;       /* a file with what it printed */
	unsigned again; /* so often it was tried again */
};

static inline void run_begin(const struct test *test, struct run *run, void (*begin)(void))
{
	run->said = memfd_create(test->name, MFD_CLOEXEC);
	run->pid = fork();
	CHECK(run->said >= 0 && run->pid >= 0);
	if (run->pid)
		return;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	alarm(RUN_SECONDS);
	CHECK(dup2(run->said, 1) == 1 && dup2(run->said, 2) == 2);
	if (begin)
		begin();
	test->run();
	exit(0);
}

/* Whether the main thread of a process that has ended had to wait for a processor. */
static inline bool run_waited(pid_t pid)
{
	char path[32];
	unsigned long long ran, waited = 0;

	snprintf(path, sizeof path, "/proc/%d/schedstat", pid);
	FILE *f = fopen(path, "r");
	if (!f)
		return false;
	if (fscanf(f, "%llu %llu", &ran, &waited) != 2)
		waited = 0;
	fclose(f);
	return waited > RUN_LATE_NS;
}

/* Waits until one of the runs has ended. Returns whether it failed. One that failed on a busy machine begins
 * again. */
static inline bool run_failed(const struct test *tests, struct run *runs, size_t n, void (*begin)(void))
{
	char text[8192];

	for (;;) {
		siginfo_t ended = {0};
		int status;
		size_t i = 0;

		CHECK(!waitid(P_ALL, 0, &ended, WEXITED | WNOWAIT));
		bool late = run_waited(ended.si_pid);
		CHECK(waitpid(ended.si_pid, &status, 0) == ended.si_pid);
		while (i < n && runs[i].pid != ended.si_pid)
			i++;
		CHECK(i < n);
		ssize_t length = pread(runs[i].said, text, sizeof text, 0);
		if (status)
			dprintf(2, "failed: %s (%#x)\n%.*s", tests[i].name, (unsigned)status, length > 0 ? (int)length : 0,
				text);
		close(runs[i].said);
		if (!status || !late || runs[i].again == RUN_AGAIN)
			return status != 0;
		runs[i].again++;
		run_begin(&tests[i], &runs[i], begin);
	}
}

/* Runs the tests, or the one that is named, but for those that GS_WITHOUT names. Each begins with
 * begin, unless that is NULL. Returns the exit status of the program. */
static inline int run_tests(const struct test *tests, size_t n, const char *only, void (*begin)(void))
{
	const char *without = getenv("GS_WITHOUT");
	struct run *runs = calloc(n, sizeof *runs);
	unsigned running = 0, failed = 0;

	for (size_t i = 0; i < n; i++) {
		if (only ? strcmp(only, tests[i].name) : without && strstr(without, tests[i].name))
			continue;
		if (running == RUN_AT_A_TIME) {
			failed += run_failed(tests, runs, n, begin);
			running--;
		}
		run_begin(&tests[i], &runs[i], begin);
		running++;
	}
	for (; running; running--)
		failed += run_failed(tests, runs, n, begin);
	free(runs);
	return failed != 0;
}
#define RUN_TESTS(tests, argc, argv, begin) \
	run_tests(tests, sizeof(tests) / sizeof *(tests), (argc) > 1 ? (argv)[1] : NULL, begin)

#endif
