/* A load generator for the simulated driver and for real ones.
 * It prints, with CLOCK_MONOTONIC ns:
 *   ready RATE                   set-up is done; RATE is iterations per ns
 *   step NS COMPLETED            launches known to have ended, every --report-ms
 *   burst NS LATENCY_US          of each burst, when it ended
 *   alloc BYTES CODE             what could be allocated, and the error that ended it
 *   copied BYTES RATE            with --launch=copy, in all and per second
 *   total NS COMPLETED SECONDS   at the end, also after SIGTERM
 *   fault NS ADDRESS             with --fault, before a kernel writes there,
 *   launched NS ADDRESS          after it,
 *   failed NS CODE               and what the driver says of it
 * A launch is a kernel, a graph, a kernel and an allocation of --alloc-step-mib that
 * is freed at once (no kernel with --kernel-us=0), or a copy of --copy-kib, from the
 * host (up), to it (down) or within the GPU (in), as --copy-way says. Or it is a step
 * of a gang: --kernels kernels, and one that waits until all ranks have come to
 * theirs:
 *   --launch=meet --gang=NUMBER --ranks=N --rank=R
 * At most --ahead steps (4 by default) are out. One rank is one process, on any GPU,
 * and one stream. On a real card all ranks are ready before any begins, by a file in
 * /dev/shm. A rank that ends leaves: the others go on without it.
 * With --then-mib, the program begins again in the end, to take so much memory and
 * hold it; with --then-times=N it does so N times, and all but the last hold it until
 * the next begins. With --then-wait=1 it waits for a line before. With --then=exec that is the same process. With fork, vfork or
 * spawn it is a child, and the parent goes on holding what it has. With left it is the
 * same process, of which a child stays that has all its descriptors.
 * With --sleep-ms=-1, it waits for a line between two bursts.
 * With --sync-first=1, a burst begins with a wait for the work of the one before, which has ended.
 * With --host-us, a host function that sleeps for so long is queued before each launch.
 * With --slice-us, it gives itself such time slices by the driver once it has begun.
 * With --endless-at=N, the launch of this number of each thread does not end.
 * With --cancel-ms, a thread is cancelled in a launch at this interval, and another
 * one takes its place; not with --burst-ms or --ahead.
 * With --resolve=dlvsym it finds the driver's functions by the C library's own dlsym.
 * With the path of a file it loads the driver from there.
 * With --resolve=dlmopen it loads the driver in a namespace of its own, where
 * preloaded libraries are not asked; with --trickle-ms also in the usual way, and it
 * launches a kernel there at this interval.
 * With --fault=beyond, before, freed or wild, a kernel writes there in the end: 512 bytes beyond an
 * allocation of 4 MiB or before it, into a freed one, or where nothing was.
 * With --fault-hold=1, it never waits for that kernel.
 * With --shed=SECONDS it goes on for so long when it is over, as the same process and
 * without what was preloaded. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "load.h"

#define MARKS 4096 /* events that a thread has out */
#define STREAMS 64
#define AHEAD 64
#define ENDLESS (UINT64_MAX / 4) /* iterations */

static struct {
	double kernel_us, graph_us, burst_ms, sleep_ms, seconds, cpu_us, alloc_mib, alloc_step_mib, report_ms, rate,
		copy_kib, cancel_ms, shed, trickle_ms, host_us, slice_us;
	long endless_at, sync_every, sync_first, steps, streams, threads, gpu, gang, ranks, rank, kernels, ahead;
	double then_mib;
	long then_times, then_wait, fault_hold;
	bool graph, copy, meet, memory, wait;
	const char *resolve, *kind, *way, *then, *fault;
} option = {.kernel_us = 100, .graph_us = 2000, .alloc_step_mib = 20, .report_ms = 100, .sync_every = 0, .streams = 1,
	.threads = 1, .kernels = 4, .resolve = "dlsym", .kind = "native", .copy_kib = 1024, .way = "up", .then = "exec",
	.then_times = 1};

/* One thread's launches. The thread puts marks in and the reporter takes them out,
 * so that a launch is counted even while the thread is blocked. */
struct worker {
	pthread_t thread;
	CUstream stream[STREAMS];
	CUevent event[MARKS], out[AHEAD];
	uint64_t counts[MARKS];
	_Atomic uint64_t put, taken;
	_Atomic uint64_t done; /* completed launches */
	uint64_t launched;
	_Atomic bool over;
};

static volatile sig_atomic_t stop;
static CUgraphExec exec, endless;
static CUdeviceptr from, to; /* of copies */
static char *host;
static _Atomic uint32_t *words; /* of the gang, on a real card; one each STRIDE bytes */
static uint64_t gang; /* as launch_meet wants it */
static uint64_t iterations, began;
static pthread_mutex_t output = PTHREAD_MUTEX_INITIALIZER;

static void on_term(int signal)
{
	(void)signal;
	stop = 1;
}

/* The driver of the trickle's launches. */
static struct {
	struct calls cu;
	CUcontext context;
	CUfunction kernel;
	pthread_t thread;
} first;

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void rest(double ms)
{
	struct timespec t = {(time_t)(ms / 1000), (long)(ms * 1e6) % 1000000000};

	nanosleep(&t, NULL);
}

static void print(const char *what, uint64_t value)
{
	pthread_mutex_lock(&output);
	printf("%s %llu %llu\n", what, (unsigned long long)now(), (unsigned long long)value);
	fflush(stdout);
	pthread_mutex_unlock(&output);
}

static bool finished(const struct worker *w)
{
	return stop || (option.steps && w->launched >= (uint64_t)option.steps)
		|| (option.seconds > 0 && (double)(now() - began) > option.seconds * 1e9);
}

static size_t copy_bytes(void) { return (size_t)(option.copy_kib * 1024); }

static CUresult copy(CUstream s)
{
	switch (option.way[0]) {
	case 'd': return cu.cuMemcpyDtoHAsync_v2(host, from, copy_bytes(), s);
	case 'i': return cu.cuMemcpyDtoDAsync_v2(to, from, copy_bytes(), s);
	default: return cu.cuMemcpyHtoDAsync_v2(to, host, copy_bytes(), s);
	}
}

/* The gang's words, with this rank's at 0 again. */
static void join_gang(void)
{
	size_t bytes = RANKS * STRIDE;
	char path[64];
	int file;

	gang = (uint64_t)option.gang;
	if (simulated)
		return;
	snprintf(path, sizeof path, "/dev/shm/gpusteward-gang-%ld", option.gang);
	file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
	check(file < 0 || ftruncate(file, (off_t)bytes) ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS, path);
	words = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	check(words == MAP_FAILED ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS, path);
	close(file);
	words[option.rank * STRIDE / 4] = 0;
	gang = share((void *)words, bytes);
}

/* The others need not wait for this rank any more. Its own work has ended. */
static void leave_gang(CUstream s)
{
	char path[64];

	if (simulated) {
		check(launch_meet(gang, UINT64_MAX, (uint64_t)option.rank, (uint64_t)option.ranks, s), "launch");
		check(cu.cuStreamSynchronize(s), "cuStreamSynchronize");
		return;
	}
	words[option.rank * STRIDE / 4] = UINT32_MAX;
	snprintf(path, sizeof path, "/dev/shm/gpusteward-gang-%ld", option.gang);
	unlink(path);
}

static CUresult step(uint64_t number, CUstream s)
{
	CUresult r = CUDA_SUCCESS;

	for (long i = 0; i < option.kernels && !r; i++)
		r = launch_kernel(iterations, s);
	return r ? r : launch_meet(gang, number, (uint64_t)option.rank, (uint64_t)option.ranks, s);
}

static CUresult take_and_free(CUstream s)
{
	CUresult r = option.kernel_us > 0 ? launch_kernel(iterations, s) : CUDA_SUCCESS;
	CUdeviceptr at;

	r = r ? r : cu.cuMemAlloc_v2(&at, (size_t)(option.alloc_step_mib * (1 << 20)));
	return r ? r : cu.cuMemFree_v2(at);
}

static void sleep_on_host(void *unused)
{
	(void)unused;
	rest(option.host_us / 1000);
}

static CUresult launch_on(const struct worker *w, CUstream s)
{
	if (option.meet)
		return step(w->launched + 1, s);
	if (option.copy)
		return copy(s);
	if (option.memory)
		return take_and_free(s);
	if (option.endless_at && w->launched + 1 == (uint64_t)option.endless_at)
		return option.graph ? cu.cuGraphLaunch(endless, s) : launch_kernel(ENDLESS, s);
	return option.graph ? cu.cuGraphLaunch(exec, s) : launch_kernel(iterations, s);
}

static void launch(struct worker *w)
{
	CUstream s = w->stream[w->launched % (uint64_t)option.streams];
	uint64_t start = now();

	if (option.ahead && w->launched >= (uint64_t)option.ahead)
		check(cu.cuEventSynchronize(w->out[w->launched % (uint64_t)option.ahead]), "cuEventSynchronize");
	if (option.host_us > 0)
		check(cu.cuLaunchHostFunc(s, sleep_on_host, NULL), "cuLaunchHostFunc");
	check(launch_on(w, s), "launch");
	if (option.ahead)
		check(cu.cuEventRecord(w->out[w->launched % (uint64_t)option.ahead], s), "cuEventRecord");
	w->launched++;
	if (option.cpu_us > 0)
		for (start = now(); (double)(now() - start) < option.cpu_us * 1000;)
			;
}

/* If the ring is full, the launches count with the next mark. */
static void mark(struct worker *w)
{
	uint64_t i = w->put % MARKS;

	if (w->put - w->taken == MARKS)
		return;
	w->counts[i] = w->launched;
	check(cu.cuEventRecord(w->event[i], w->stream[(w->launched - 1) % (uint64_t)option.streams]), "cuEventRecord");
	w->put++;
}

static void synchronise(struct worker *w)
{
	for (long i = 0; i < option.streams; i++)
		check(cu.cuStreamSynchronize(w->stream[i]), "cuStreamSynchronize");
	w->done = w->launched;
}

static double launch_us(void)
{
	if (option.copy)
		return (double)copy_bytes() / 25e3; /* the link's 25 GB/s */
	if (option.meet)
		return option.kernel_us * (double)option.kernels;
	return option.graph ? option.graph_us : option.kernel_us;
}

static void steady(struct worker *w)
{
	double us = launch_us() > option.cpu_us ? launch_us() : option.cpu_us;
	uint64_t every = us >= 500 ? 1 : us <= 8 ? 64 : (uint64_t)(500 / us);

	while (!finished(w)) {
		launch(w);
		if (option.sync_every && w->launched % (uint64_t)option.sync_every == 0)
			synchronise(w);
		else if (!option.sync_every && w->launched % every == 0)
			mark(w);
	}
	synchronise(w);
}

static void bursts(struct worker *w)
{
	long n = (long)(option.burst_ms * 1000 / launch_us() + 0.5);
	char line[16];

	while (!finished(w)) {
		uint64_t start = now();

		if (option.sync_first)
			synchronise(w);
		for (long i = 0; i < (n ? n : 1); i++)
			launch(w);
		synchronise(w);
		print("burst", (now() - start) / 1000);
		if (option.sleep_ms >= 0)
			rest(option.sleep_ms);
		else if (!fgets(line, sizeof line, stdin))
			stop = 1;
	}
}

static void *work(void *of)
{
	struct worker *w = of;

	check(cu.cuCtxSetCurrent(context), "cuCtxSetCurrent");
	if (option.burst_ms > 0)
		bursts(w);
	else
		steady(w);
	if (option.meet)
		leave_gang(w->stream[0]);
	w->over = true;
	return NULL;
}

static CUresult allocate(size_t bytes, CUstream s)
{
	CUmemAllocationProp p = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, (int)option.gpu}};
	CUmemGenericAllocationHandle h;
	CUdeviceptr at;

	switch (option.kind[0]) {
	case 'a': return cu.cuMemAllocAsync(&at, bytes, s);
	case 'v': return cu.cuMemCreate(&h, bytes, &p, 0);
	case 'm': return cu.cuMemAllocManaged(&at, bytes, 1);
	default: return cu.cuMemAlloc_v2(&at, bytes);
	}
}

static void fill(CUstream s)
{
	size_t step = (size_t)(option.alloc_step_mib * (1 << 20)), had = 0;
	CUresult r = CUDA_SUCCESS;

	while (!stop && (double)had < option.alloc_mib * (1 << 20) && !(r = allocate(step, s)))
		had += step;
	printf("alloc %zu %d\n", had, (int)r);
	fflush(stdout);
}

static uint64_t completed(struct worker *w)
{
	while (w->taken != w->put) {
		CUresult r = cu.cuEventQuery(w->event[w->taken % MARKS]);

		if (r == CUDA_ERROR_NOT_READY)
			break;
		check(r, "cuEventQuery");
		if (w->done < w->counts[w->taken % MARKS])
			w->done = w->counts[w->taken % MARKS];
		w->taken++;
	}
	return w->done;
}

static bool report(struct worker *w, bool speak)
{
	uint64_t sum = 0;
	bool over = true;

	for (long i = 0; i < option.threads; i++) {
		over &= w[i].over;
		sum += completed(&w[i]);
	}
	if (speak)
		print("step", sum);
	return over;
}

/* If a thread is cancelled, another one goes on. */
static void replace(struct worker *w)
{
	pthread_cancel(w->thread);
	pthread_join(w->thread, NULL);
	pthread_create(&w->thread, NULL, work, w);
}

/* What a process holds goes with its program. */
static void begin_anew(char *self)
{
	char most[64], step[64], then[64], times[64], wait[64], line[16];
	char *last[] = {self, most, step, "--wait-start", "--burst-ms=0.1", "--sleep-ms=600000", NULL};
	char *next[] = {self, most, step, "--kernel-us=100", "--steps=1", then, times, wait, NULL};
	char **argv = option.then_times > 1 ? next : last;
	const char *how = option.then;
	pid_t child = 0;

	snprintf(most, sizeof most, "--alloc-mib=%g", option.then_mib);
	snprintf(step, sizeof step, "--alloc-step-mib=%g", option.alloc_step_mib);
	snprintf(then, sizeof then, "--then-mib=%g", option.then_mib);
	snprintf(times, sizeof times, "--then-times=%ld", option.then_times - 1);
	snprintf(wait, sizeof wait, "--then-wait=%ld", option.then_wait);
	if (option.then_wait && !fgets(line, sizeof line, stdin))
		return;
	if (!strcmp(how, "spawn"))
		check(posix_spawn(&child, "/proc/self/exe", NULL, NULL, argv, environ) ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS,
		      how);
	else if (!strcmp(how, "vfork"))
		child = vfork();
	else if (strcmp(how, "exec"))
		child = fork();
	if (!strcmp(how, "left") && !child)
		pause();
	if (strcmp(how, "left") && child)
		waitpid(child, NULL, 0);
	else
		execv("/proc/self/exe", argv);
}

static struct worker *prepare(void)
{
	struct worker *w = calloc((size_t)option.threads, sizeof *w);

	for (long i = 0; w && i < option.threads; i++) {
		for (long s = 0; s < option.streams; s++)
			check(cu.cuStreamCreate(&w[i].stream[s], CU_STREAM_NON_BLOCKING), "cuStreamCreate");
		for (long e = 0; e < MARKS && !option.sync_every && option.burst_ms <= 0; e++)
			check(cu.cuEventCreate(&w[i].event[e], CU_EVENT_DISABLE_TIMING), "cuEventCreate");
		for (long e = 0; e < option.ahead; e++)
			check(cu.cuEventCreate(&w[i].out[e], CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING),
			      "cuEventCreate");
	}
	check(w ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY, "threads");
	iterations = (uint64_t)(option.kernel_us * 1000 * per_ns);
	if (option.copy) {
		host = calloc(1, copy_bytes());
		check(host ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY, "copies");
		check(cu.cuMemAlloc_v2(&from, copy_bytes()), "cuMemAlloc");
		check(cu.cuMemAlloc_v2(&to, copy_bytes()), "cuMemAlloc");
	}
	if (option.meet)
		join_gang();
	if (option.graph)
		exec = graph_of(iterations,
				option.graph_us > option.kernel_us ? (int)(option.graph_us / option.kernel_us + 0.5) : 1);
	if (option.graph && option.endless_at)
		endless = graph_of(ENDLESS, 1);
	return w;
}

static bool parse(int argc, char **argv)
{
	static struct { const char *name; double *number; long *integer; const char **text; } known[] = {
		{"kernel-us", &option.kernel_us, 0, 0}, {"graph-us", &option.graph_us, 0, 0},
		{"burst-ms", &option.burst_ms, 0, 0}, {"sleep-ms", &option.sleep_ms, 0, 0},
		{"seconds", &option.seconds, 0, 0}, {"cpu-us", &option.cpu_us, 0, 0},
		{"alloc-mib", &option.alloc_mib, 0, 0}, {"alloc-step-mib", &option.alloc_step_mib, 0, 0},
		{"report-ms", &option.report_ms, 0, 0}, {"rate", &option.rate, 0, 0},
		{"copy-kib", &option.copy_kib, 0, 0},
		{"cancel-ms", &option.cancel_ms, 0, 0}, {"shed", &option.shed, 0, 0},
		{"slice-us", &option.slice_us, 0, 0}, {"host-us", &option.host_us, 0, 0}, {"trickle-ms", &option.trickle_ms, 0, 0}, {"then-mib", &option.then_mib, 0, 0},
		{"then-times", 0, &option.then_times, 0}, {"then-wait", 0, &option.then_wait, 0}, {"then", 0, 0, &option.then},
		{"endless-at", 0, &option.endless_at, 0}, {"sync-every", 0, &option.sync_every, 0}, {"sync-first", 0, &option.sync_first, 0}, {"steps", 0, &option.steps, 0},
		{"streams", 0, &option.streams, 0}, {"threads", 0, &option.threads, 0}, {"gpu", 0, &option.gpu, 0},
		{"gang", 0, &option.gang, 0}, {"ranks", 0, &option.ranks, 0}, {"rank", 0, &option.rank, 0},
		{"kernels", 0, &option.kernels, 0}, {"ahead", 0, &option.ahead, 0},
		{"resolve", 0, 0, &option.resolve}, {"alloc-kind", 0, 0, &option.kind},
		{"copy-way", 0, 0, &option.way}, {"fault", 0, 0, &option.fault},
		{"fault-hold", 0, &option.fault_hold, 0},
	};
	const char *how = "kernel";

	for (int i = 1; i < argc; i++) {
		char *value = strchr(argv[i], '=');
		size_t n = value ? (size_t)(value - argv[i]) : strlen(argv[i]), k = 0;

		if (!strcmp(argv[i], "--wait-start")) {
			option.wait = true;
			continue;
		}
		if (strncmp(argv[i], "--", 2) || (!value && i + 1 == argc))
			return false;
		value = value ? value + 1 : argv[i + 1];
		if (n == 8 && !strncmp(argv[i], "--launch", 8)) {
			how = value;
		} else {
			while (k < sizeof known / sizeof *known
				&& (strlen(known[k].name) != n - 2 || strncmp(known[k].name, argv[i] + 2, n - 2)))
				k++;
			if (k == sizeof known / sizeof *known)
				return false;
			if (known[k].number)
				*known[k].number = atof(value);
			else if (known[k].integer)
				*known[k].integer = atol(value);
			else
				*known[k].text = value;
		}
		if (!strchr(argv[i], '='))
			i++;
	}
	option.graph = !strcmp(how, "graph");
	option.copy = !strcmp(how, "copy");
	option.meet = !strcmp(how, "meet");
	option.memory = !strcmp(how, "alloc");
	if (option.meet && !option.ahead)
		option.ahead = 4;
	if (option.meet && (option.gang < 1 || option.ranks < 1 || option.ranks > RANKS || option.rank < 0
		|| option.rank >= option.ranks || option.threads != 1 || option.streams != 1))
		return false;
	if (option.ahead < 0 || option.ahead > AHEAD || (option.cancel_ms > 0 && (option.burst_ms > 0 || option.ahead)))
		return false;
	return option.streams > 0 && option.streams <= STREAMS && option.threads > 0 && option.kernel_us >= 0
		&& option.copy_kib >= 1 / 1024. &&
		(option.graph || option.copy || option.meet || option.memory || !strcmp(how, "kernel"));
}

static void *trickle(void *none)
{
	uint64_t n = (uint64_t)(option.kernel_us * 1000 * per_ns);
	void *params[] = {&n};

	check(first.cu.cuCtxSetCurrent(first.context), "cuCtxSetCurrent");
	while (!stop) {
		check(first.cu.cuLaunchKernel(first.kernel, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL), "launch");
		check(first.cu.cuStreamSynchronize(NULL), "cuStreamSynchronize");
		rest(option.trickle_ms);
	}
	return none;
}

static void shed(int argc, char **argv)
{
	char **again = calloc((size_t)argc + 3, sizeof *again), seconds[32];

	snprintf(seconds, sizeof seconds, "--seconds=%g", option.shed);
	check(again ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY, "shed");
	memcpy(again, argv, (size_t)argc * sizeof *again);
	again[argc] = seconds;
	again[argc + 1] = "--shed=0";
	unsetenv("LD_PRELOAD");
	execv("/proc/self/exe", again);
	check(CUDA_ERROR_UNKNOWN, "/proc/self/exe");
}

static void fault(void)
{
	const size_t bytes = 4 << 20;
	CUdeviceptr kept, gone, at;
	CUstream s;

	check(cu.cuStreamCreate(&s, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
	check(cu.cuMemAlloc_v2(&kept, bytes), "cuMemAlloc");
	check(cu.cuMemAlloc_v2(&gone, bytes), "cuMemAlloc");
	check(cu.cuMemFree_v2(gone), "cuMemFree");
	switch (option.fault[0]) {
	case 'f': at = gone + bytes / 2; break;
	case 'w': at = 1ull << 40; break;
	default: at = !strcmp(option.fault, "beyond") ? kept + bytes + 512 : kept - 512;
	}
	print("fault", at);
	check(launch_fault(iterations, at, s), "cuLaunchKernel");
	print("launched", at);
	while (option.fault_hold)
		pause();
	print("failed", cu.cuStreamSynchronize(s));
}

int main(int argc, char **argv)
{
	struct worker *w;
	char line[16];
	uint64_t spoken, cancelled;
	long next = 0;

	if (!parse(argc, argv)) {
		fprintf(stderr, "load: see load.c for the options\n");
		return 2;
	}
	sigaction(SIGTERM, &(struct sigaction){.sa_handler = on_term}, NULL);
	if (option.trickle_ms > 0) {
		resolve("dlsym");
		open_gpu((int)option.gpu, option.rate);
		first.cu = cu;
		first.context = context;
		first.kernel = kernels.spin;
		pthread_create(&first.thread, NULL, trickle, NULL);
	}
	resolve(option.resolve);
	open_gpu((int)option.gpu, option.rate);
	w = prepare();
	printf("ready %.6f\n", per_ns);
	fflush(stdout);
	if (option.wait && !fgets(line, sizeof line, stdin))
		return stop ? 0 : 1;
	began = spoken = cancelled = now();
	if (option.alloc_mib > 0)
		fill(w[0].stream[0]);
	if (option.slice_us > 0) {
		void (*take)(uint64_t) = (void (*)(uint64_t))dlsym(dlopen("libcuda.so.1", RTLD_NOW), "gs_stub_slice");
		take((uint64_t)option.slice_us);
	}
	for (long i = 0; i < option.threads; i++)
		pthread_create(&w[i].thread, NULL, work, &w[i]);
	for (bool over = false; !over;) {
		double left = option.report_ms - (double)(int64_t)(now() - spoken) / 1e6;
		bool speak = left <= 0.05;

		if (!speak)
			rest(left < 5 ? left : 5);
		if (option.cancel_ms > 0 && (double)(now() - cancelled) >= option.cancel_ms * 1e6) {
			replace(&w[next++ % option.threads]);
			cancelled = now();
		}
		over = report(w, speak);
		if (speak)
			spoken += (uint64_t)(option.report_ms * 1e6);
	}
	for (long i = 0; i < option.threads; i++)
		pthread_join(w[i].thread, NULL);
	report(w, true);
	if (option.trickle_ms > 0) {
		stop = 1;
		pthread_join(first.thread, NULL);
	}
	pthread_mutex_lock(&output);
	{
		uint64_t sum = 0;
		double seconds = (double)(now() - began) / 1e9;

		for (long i = 0; i < option.threads; i++)
			sum += completed(&w[i]);
		if (option.copy)
			printf("copied %llu %.0f\n", (unsigned long long)(sum * copy_bytes()),
			       (double)(sum * copy_bytes()) / seconds);
		printf("total %llu %llu %.6f\n", (unsigned long long)now(), (unsigned long long)sum, seconds);
	}
	fflush(stdout);
	if (option.then_mib > 0)
		begin_anew(argv[0]);
	pthread_mutex_unlock(&output);
	if (option.fault)
		fault();
	if (option.shed > 0)
		shed(argc, argv);
	return 0;
}
