/* Programs that hang for good if a launch waits for work that the same thread
 * launches later, and one that is slow if streams wait for each other. They run on
 * the simulated driver and on real ones.
 *   recipes NAME ROUNDS [--deadline=SECONDS] [--kernel-us=US] [--kernels=N] [--long-us=US]
 *           [--gpu=N] [--rate=ITERATIONS_PER_NS] [--resolve=HOW]
 * A round of
 *   peer       a kernel spins on stream 1 until a kernel that the same thread
 *              launches later on stream 2 has written a word
 *   waitvalue  stream 1 waits for a word that the same thread writes later, by stream 2
 *   hostfunc   stream 1 has a host function that waits for what the same thread
 *              does after further launches on stream 2
 *   cross      two threads, on two GPUs if there are two, launch two
 *              collectives in opposite order, each on a stream of its own
 *   two        stream 1 has a kernel of --long-us, stream 2 gets --kernels short ones
 *   locks      four threads queue a host function and kernels 25 times ahead, each on
 *              a stream of its own, while they hold a lock that the function takes
 * with --kernels kernels of --kernel-us behind what waits and before what it waits
 * for. It prints, with CLOCK_MONOTONIC ns:
 *   ready RATE                       set-up is done; RATE is iterations per ns
 *   round NS NUMBER                  ten times or so
 *   done NAME ROUNDS SECONDS WORST_LAUNCH_US   the worst time that a launch took;
 *                                    two: that one on stream 2 did
 *   hung NAME ROUND                  and exits with 3: a round took longer than --deadline */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "load.h"

static struct {
	double deadline, kernel_us, long_us, rate;
	long gpu, kernels, rounds;
	const char *resolve, *name;
} option = {.deadline = 10, .kernel_us = 200, .long_us = 20000, .kernels = 4, .resolve = "dlsym"};

static _Atomic uint64_t began; /* the round */
static _Atomic uint64_t worst; /* launch, ns */
static _Atomic long number;    /* of the round, from 1 */
static pthread_mutex_t output = PTHREAD_MUTEX_INITIALIZER;
static CUdeviceptr word;
static CUstream one, two;

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void rest(long ns)
{
	nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
}

/* Ends the process if a round takes too long, whatever its threads wait for. */
static void *watch(void *unused)
{
	(void)unused;
	for (;;) {
		rest(10000000);
		if ((double)(int64_t)(now() - began) < option.deadline * 1e9)
			continue;
		pthread_mutex_lock(&output);
		printf("hung %s %ld\n", option.name, (long)number);
		fflush(stdout);
		_exit(3);
	}
	return NULL;
}

/* A launch that counts for the worst. */
#define TIMED(call) do { uint64_t from_ = now(); check(call, #call); took(now() - from_); } while (0)

static void took(uint64_t ns)
{
	uint64_t most = worst;

	while (most < ns && !atomic_compare_exchange_weak(&worst, &most, ns))
		;
}

static uint64_t iterations(double us) { return (uint64_t)(us * 1000 * per_ns); }

static void launches(CUstream s)
{
	for (long i = 0; i < option.kernels; i++)
		TIMED(launch_kernel(iterations(option.kernel_us), s));
}

static void both(void)
{
	check(cu.cuStreamSynchronize(one), "cuStreamSynchronize");
	check(cu.cuStreamSynchronize(two), "cuStreamSynchronize");
}

static void peer(uint32_t round)
{
	TIMED(launch_await(word, round, one));
	launches(one);
	launches(two);
	TIMED(launch_tell(0, word, round, two));
	both();
}

static void waitvalue(uint32_t round)
{
	TIMED(cu.cuStreamWaitValue32_v2(one, word, round, CU_STREAM_WAIT_VALUE_GEQ));
	launches(one);
	launches(two);
	TIMED(cu.cuStreamWriteValue32_v2(two, word, round, 0));
	both();
}

static _Atomic uint32_t flag;

static void until_flag(void *round)
{
	while (flag != (uint32_t)(uintptr_t)round)
		rest(20000);
}

static void hostfunc(uint32_t round)
{
	TIMED(cu.cuLaunchHostFunc(one, until_flag, (void *)(uintptr_t)round));
	launches(one);
	launches(two);
	flag = round;
	both();
}

static void two_streams(uint32_t round)
{
	(void)round;
	check(launch_kernel(iterations(option.long_us), one), "launch");
	launches(two);
	both();
}

#define LOCKERS 4
#define AHEAD 25 /* times in a round */
static struct locker {
	pthread_t thread;
	CUstream stream;
} locker[LOCKERS];
static pthread_mutex_t contended = PTHREAD_MUTEX_INITIALIZER;

static void take_lock(void *unused)
{
	(void)unused;
	pthread_mutex_lock(&contended);
	pthread_mutex_unlock(&contended);
}

static void *queue_locked(void *of)
{
	struct locker *l = of;

	check(cu.cuCtxSetCurrent(context), "cuCtxSetCurrent");
	for (int i = 0; i < AHEAD; i++) {
		pthread_mutex_lock(&contended);
		TIMED(cu.cuLaunchHostFunc(l->stream, take_lock, NULL));
		launches(l->stream);
		pthread_mutex_unlock(&contended);
	}
	check(cu.cuStreamSynchronize(l->stream), "cuStreamSynchronize");
	return NULL;
}

static void locks(uint32_t round)
{
	(void)round;
	for (struct locker *l = locker; l < locker + LOCKERS; l++) {
		if (!l->stream)
			check(cu.cuStreamCreate(&l->stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
		pthread_create(&l->thread, NULL, queue_locked, l);
	}
	for (struct locker *l = locker; l < locker + LOCKERS; l++)
		pthread_join(l->thread, NULL);
}

/* One of the two threads of cross: its GPU, and a stream for each collective. */
static struct side {
	pthread_t thread;
	CUcontext context;
	struct kernels kernels;
	CUstream stream[2];
	uint64_t rank;
} side[2];
static uint64_t where[2]; /* the collectives */
static pthread_barrier_t barrier;

static void collective(struct side *s, unsigned which, uint32_t round)
{
	uint64_t none = 0, number = round, ranks = 2;
	void *params[] = {&none, &where[which], &number, &s->rank, &ranks};

	TIMED(cu.cuLaunchKernel(s->kernels.meet, 1, 1, 1, 1, 1, 1, 0, s->stream[which], params, NULL));
}

/* On the GPU of this thread. */
static void kernels_of(struct side *s, unsigned which)
{
	uint64_t n = iterations(option.kernel_us);
	void *params[] = {&n};

	for (long i = 0; i < option.kernels; i++)
		TIMED(cu.cuLaunchKernel(s->kernels.spin, 1, 1, 1, 1, 1, 1, 0, s->stream[which], params, NULL));
}

/* Neither launches its second one before the other has launched its first. */
static void cross_round(struct side *s, uint32_t round)
{
	unsigned first = (unsigned)s->rank;

	collective(s, first, round);
	kernels_of(s, first);
	pthread_barrier_wait(&barrier);
	kernels_of(s, !first);
	collective(s, !first, round);
	check(cu.cuStreamSynchronize(s->stream[0]), "cuStreamSynchronize");
	check(cu.cuStreamSynchronize(s->stream[1]), "cuStreamSynchronize");
	pthread_barrier_wait(&barrier);
}

static void *cross_thread(void *of)
{
	struct side *s = of;

	check(cu.cuCtxSetCurrent(s->context), "cuCtxSetCurrent");
	for (uint32_t round = 1; round <= (uint32_t)option.rounds; round++)
		cross_round(s, round);
	return NULL;
}

static void cross(uint32_t round)
{
	cross_round(&side[0], round);
}

static void cross_side(struct side *s, int gpu)
{
	CUdevice d;

	check(cu.cuDeviceGet(&d, gpu), "cuDeviceGet");
	check(cu.cuDevicePrimaryCtxRetain(&s->context, d), "cuDevicePrimaryCtxRetain");
	check(cu.cuCtxSetCurrent(s->context), "cuCtxSetCurrent");
	load_kernels(&s->kernels);
	for (unsigned i = 0; i < 2; i++)
		check(cu.cuStreamCreate(&s->stream[i], CU_STREAM_NON_BLOCKING), "cuStreamCreate");
	kernels_of(s, 0);
	check(cu.cuStreamSynchronize(s->stream[0]), "cuStreamSynchronize");
}

/* A kernel's first launch may wait for the whole GPU, so the first one is made
 * while no work waits. */
static void wake_meet(struct side *s)
{
	uint64_t none = 0, ranks = 1;
	void *params[] = {&none, &where[0], &none, &s->rank, &ranks};

	check(cu.cuCtxSetCurrent(s->context), "cuCtxSetCurrent");
	check(cu.cuLaunchKernel(s->kernels.meet, 1, 1, 1, 1, 1, 1, 0, s->stream[0], params, NULL), "launch");
	check(cu.cuStreamSynchronize(s->stream[0]), "cuStreamSynchronize");
}

static void cross_open(void)
{
	char *words = aligned_alloc(4096, 4096);
	int gpus;

	check(words ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY, "words");
	memset(words, 0, 4096);
	check(cu.cuDeviceGetCount(&gpus), "cuDeviceGetCount");
	for (int i = 1; i >= 0; i--) {
		side[i].rank = (uint64_t)i;
		cross_side(&side[i], (int)(option.gpu + i) % gpus);
	}
	where[0] = share(words, 4096);
	where[1] = where[0] + 2048;
	for (unsigned i = 0; i < 2; i++) {
		if (simulated) /* groups belong to the whole host: this one is no other process's */
			where[i] = (uint64_t)getpid() << 32 | (i + 1);
		else
			wake_meet(&side[i]);
	}
	check(cu.cuCtxSetCurrent(side[0].context), "cuCtxSetCurrent");
	pthread_barrier_init(&barrier, NULL, 2);
}

static const struct { const char *name; void (*round)(uint32_t round); } recipes[] = {
	{"peer", peer}, {"waitvalue", waitvalue}, {"hostfunc", hostfunc}, {"cross", cross}, {"two", two_streams},
	{"locks", locks},
};

static bool parse(int argc, char **argv)
{
	static struct { const char *name; double *number; long *integer; const char **text; } known[] = {
		{"deadline", &option.deadline, 0, 0}, {"kernel-us", &option.kernel_us, 0, 0},
		{"long-us", &option.long_us, 0, 0}, {"rate", &option.rate, 0, 0}, {"kernels", 0, &option.kernels, 0},
		{"gpu", 0, &option.gpu, 0}, {"resolve", 0, 0, &option.resolve},
	};

	if (argc < 3)
		return false;
	option.name = argv[1];
	option.rounds = atol(argv[2]);
	for (int i = 3; i < argc; i++) {
		char *value = strchr(argv[i], '=');
		size_t k = 0, n = value ? (size_t)(value - argv[i]) : 0;

		while (n > 2 && k < sizeof known / sizeof *known
			&& (strlen(known[k].name) != n - 2 || strncmp(known[k].name, argv[i] + 2, n - 2)))
			k++;
		if (n <= 2 || strncmp(argv[i], "--", 2) || k == sizeof known / sizeof *known)
			return false;
		if (known[k].number)
			*known[k].number = atof(value + 1);
		else if (known[k].integer)
			*known[k].integer = atol(value + 1);
		else
			*known[k].text = value + 1;
	}
	return option.rounds > 0 && option.deadline > 0 && option.kernels >= 0;
}

static void prepare(bool crosses)
{
	check(cu.cuStreamCreate(&one, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
	check(cu.cuStreamCreate(&two, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
	check(cu.cuMemAlloc_v2(&word, 4096), "cuMemAlloc");
	check(cu.cuMemsetD8_v2(word, 0, 4096), "cuMemsetD8");
	check(launch_tell(0, word, 0, two), "launch");
	check(cu.cuStreamSynchronize(two), "cuStreamSynchronize");
	check(launch_await(word, 0, one), "launch");
	launches(one);
	both();
	if (crosses)
		cross_open();
}

int main(int argc, char **argv)
{
	pthread_t thread;
	uint64_t from;
	size_t i = 0;
	bool crosses;

	program = "recipes";
	if (!parse(argc, argv)) {
		fprintf(stderr, "recipes: see recipes.c for the options\n");
		return 2;
	}
	while (i < sizeof recipes / sizeof *recipes && strcmp(recipes[i].name, option.name))
		i++;
	if (i == sizeof recipes / sizeof *recipes) {
		fprintf(stderr, "recipes: no recipe %s\n", option.name);
		return 2;
	}
	crosses = recipes[i].round == cross;
	resolve(option.resolve);
	open_gpu((int)option.gpu, option.rate);
	began = now();
	pthread_create(&thread, NULL, watch, NULL);
	prepare(crosses);
	printf("ready %.6f\n", per_ns);
	fflush(stdout);
	worst = 0;
	from = began = now();
	if (crosses)
		pthread_create(&side[1].thread, NULL, cross_thread, &side[1]);
	for (long n = 1; n <= option.rounds; n++) {
		number = n;
		began = now();
		recipes[i].round((uint32_t)n);
		if (n % (option.rounds / 10 + 1) == 0) {
			pthread_mutex_lock(&output);
			printf("round %llu %ld\n", (unsigned long long)now(), n);
			fflush(stdout);
			pthread_mutex_unlock(&output);
		}
	}
	if (crosses)
		pthread_join(side[1].thread, NULL);
	pthread_mutex_lock(&output);
	printf("done %s %ld %.6f %.1f\n", option.name, option.rounds, (double)(now() - from) / 1e9,
	       (double)worst / 1e3);
	fflush(stdout);
	_exit(0);
}
