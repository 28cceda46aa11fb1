/* One rank of a job that trains in parallel, on the simulated driver and NCCL.
 *   ranks --gang=NUMBER --ranks=N --rank=R [--gpu=G] [--step-ms=50] [--steps=N | --seconds=S] [--wait-start]
 * A step of the default options is 30 % work of the host, which sleeps for it, 20 %
 * forward and 40 % backward kernels, 5 % an optimizer's, and a wait for the loss.
 * After each part of the backward kernels the gradients of a bucket are summed on a
 * second stream, beside the next part.
 *   --buckets=4 --mib=25     bucket B has mib + B MiB
 *   --kernels=2              of a part; the forward kernels are as many as the backward ones
 *   --host=30 --gpu-part=65  percent of the step
 *   --jitter=2               percent by which the host's work and the kernels vary
 * The seconds are converted to steps, so that all ranks do the same number. NUMBER is
 * one that no other job on these GPUs has.
 * Faults and interruptions at step --at (20; the first is 1):
 *   --skip            the rank leaves one collective out
 *   --mismatch        it calls one with another size
 *   --endless[=B]     a kernel does not end, before bucket B (1, the first)
 *   --cross=R         for all ranks: rank R - 1 first calls a collective of another communicator of all
 *   --loader          its data never come: it sleeps before the step
 *   --stop            it stops itself (SIGSTOP) before the step
 *   --die             it kills itself (SIGKILL) before the step
 *   --slow=PERCENT    more work of the host, from that step on
 *   --slow-gpu=PERCENT  longer kernels, from that step on
 *   --checkpoint=MS   the rank pauses before the step; others wait in their next collective
 *   --evaluate=STEPS  so many forward passes before the step, without collectives
 *   --every=N         the last two again every N steps
 *   --compile=MS      the host needs so much longer for the first step
 * It prints, with CLOCK_MONOTONIC ns:
 *   ready                     all ranks have joined
 *   step NS NUMBER            when the step ended
 *   total NS STEPS SECONDS    at the end */
#define _GNU_SOURCE
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "load.h"

#define BUCKETS 64
#define FLOAT 7 /* ncclFloat32 */
#define SUM 0
#define ENDLESS (UINT64_MAX / 4) /* ns */

struct id { char bytes[128]; };
extern int ncclCommInitRank(void **comm, int ranks, struct id id, int rank);
extern int ncclCommDestroy(void *comm);
extern int ncclAllReduce(const void *from, void *to, size_t n, int type, int how, void *comm, CUstream s);

static struct {
	double gang, ranks, rank, gpu, step_ms, steps, seconds, wait;
	double buckets, mib, kernels, host, gpu_part, jitter;
	double at, cross, skip, mismatch, endless, loader, stop, die, slow, slow_gpu, checkpoint, evaluate, every, compile;
} option = {.ranks = 1, .step_ms = 50, .buckets = 4, .mib = 25, .kernels = 2, .host = 30, .gpu_part = 65, .at = 20};

static const struct { const char *name; double *value; } options[] = {
#define OPTION(name, field) {name, &option.field}
	OPTION("gang", gang), OPTION("ranks", ranks), OPTION("rank", rank), OPTION("gpu", gpu),
	OPTION("step-ms", step_ms), OPTION("steps", steps), OPTION("seconds", seconds), OPTION("wait-start", wait),
	OPTION("buckets", buckets), OPTION("mib", mib), OPTION("kernels", kernels), OPTION("host", host),
	OPTION("gpu-part", gpu_part), OPTION("jitter", jitter), OPTION("at", at), OPTION("cross", cross), OPTION("skip", skip),
	OPTION("mismatch", mismatch), OPTION("endless", endless), OPTION("loader", loader), OPTION("stop", stop),
	OPTION("die", die), OPTION("slow", slow), OPTION("slow-gpu", slow_gpu), OPTION("checkpoint", checkpoint),
	OPTION("evaluate", evaluate), OPTION("every", every), OPTION("compile", compile),
};

static void *comm, *other;
static CUstream compute, communicate;
static CUevent computed[BUCKETS], communicated;
static CUdeviceptr loss;

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void rest(double ms)
{
	struct timespec t = {(time_t)(ms / 1000), (long)(fmod(ms, 1000) * 1e6)};

	nanosleep(&t, NULL);
}

static void checked(int result, const char *what)
{
	check(result ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS, what);
}

/* The value, give or take the jitter. */
static double about(double value)
{
	return value * (1 + option.jitter / 100 * (2 * drand48() - 1));
}

static bool due(long step) { return step == (long)option.at; }

static bool due_again(long step)
{
	long since = step - (long)option.at;

	return since == 0 || (since > 0 && option.every > 0 && since % (long)option.every == 0);
}

static double slower(double percent, long step)
{
	return step >= (long)option.at ? 1 + percent / 100 : 1;
}

/* Kernels that take this percentage of a step together. */
static void launch(long kernels, double percent, long step)
{
	double ms = option.step_ms * percent / 100 * slower(option.slow_gpu, step) / (double)kernels;

	for (long i = 0; i < kernels; i++)
		check(launch_kernel((uint64_t)(about(ms) * 1e6), compute), "launch");
}

static void forward(long step)
{
	launch((long)(option.kernels * option.buckets), option.gpu_part * 4 / 13, step);
}

static void sum(int bucket, long step)
{
	bool faulty = due(step) && bucket == 1;
	size_t bytes = (size_t)((option.mib + bucket) * (1 << 20));

	check(cu.cuEventRecord(computed[bucket], compute), "cuEventRecord");
	check(cu.cuStreamWaitEvent(communicate, computed[bucket], 0), "cuStreamWaitEvent");
	if (!(faulty && option.skip > 0))
		checked(ncclAllReduce(NULL, NULL, bytes / (faulty && option.mismatch > 0 ? 8 : 4), FLOAT, SUM, comm,
				      communicate), "ncclAllReduce");
}

static void backward(long step)
{
	for (int b = 0; b < (int)option.buckets; b++) {
		if (due(step) && (int)option.endless == b + 1)
			check(launch_kernel(ENDLESS, compute), "launch");
		if (due(step) && !b && option.cross == option.rank + 1)
			checked(ncclAllReduce(NULL, NULL, 1, FLOAT, SUM, other, communicate), "ncclAllReduce");
		launch((long)option.kernels, option.gpu_part * 8 / 13 / option.buckets, step);
		sum(b, step);
	}
	check(cu.cuEventRecord(communicated, communicate), "cuEventRecord");
	check(cu.cuStreamWaitEvent(compute, communicated, 0), "cuStreamWaitEvent");
}

/* As loss.item() does. */
static void await_loss(void)
{
	float value;

	check(cu.cuMemcpyDtoHAsync_v2(&value, loss, sizeof value, compute), "cuMemcpyDtoHAsync");
	check(cu.cuStreamSynchronize(compute), "cuStreamSynchronize");
}

static void evaluate(long step)
{
	for (long i = 0; i < (long)option.evaluate; i++) {
		rest(about(option.step_ms * option.host / 100));
		forward(step);
		await_loss();
	}
}

static void before(long step)
{
	if (due(step) && option.stop > 0)
		raise(SIGSTOP);
	if (due(step) && option.die > 0)
		raise(SIGKILL);
	while (due(step) && option.loader > 0)
		pause();
	if (due_again(step)) {
		rest(option.checkpoint);
		evaluate(step);
	}
	if (step == 1)
		rest(option.compile);
}

static void train(long step)
{
	before(step);
	rest(about(option.step_ms * option.host / 100 * slower(option.slow, step)));
	forward(step);
	backward(step);
	launch(1, option.gpu_part / 13, step);
	await_loss();
	printf("step %llu %ld\n", (unsigned long long)now(), step);
	fflush(stdout);
}

static void prepare(void)
{
	struct id id = {0};

	snprintf(id.bytes, sizeof id.bytes, "gang %ld", (long)option.gang);
	srand48((long)option.rank);
	resolve("dlsym");
	open_gpu((int)option.gpu, 1);
	check(cu.cuStreamCreate(&compute, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
	check(cu.cuStreamCreate(&communicate, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
	for (int b = 0; b < (int)option.buckets; b++)
		check(cu.cuEventCreate(&computed[b], CU_EVENT_DISABLE_TIMING), "cuEventCreate");
	check(cu.cuEventCreate(&communicated, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
	check(cu.cuMemAlloc_v2(&loss, 4), "cuMemAlloc");
	checked(ncclCommInitRank(&comm, (int)option.ranks, id, (int)option.rank), "ncclCommInitRank");
	strcat(id.bytes, " other");
	if (option.cross > 0)
		checked(ncclCommInitRank(&other, (int)option.ranks, id, (int)option.rank), "ncclCommInitRank");
}

static bool parse(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		size_t k = 0, n = strcspn(argv[i], "=");

		if (n < 3 || strncmp(argv[i], "--", 2))
			return false;
		while (k < sizeof options / sizeof *options &&
		       (strlen(options[k].name) != n - 2 || strncmp(options[k].name, argv[i] + 2, n - 2)))
			k++;
		if (k == sizeof options / sizeof *options)
			return false;
		*options[k].value = argv[i][n] ? atof(argv[i] + n + 1) : 1;
	}
	if (option.seconds > 0)
		option.steps = ceil(option.seconds * 1000 / option.step_ms);
	return option.ranks >= 1 && option.buckets >= 1 && option.buckets <= BUCKETS && option.step_ms > 0 &&
		option.kernels >= 1;
}

int main(int argc, char **argv)
{
	char line[16];
	uint64_t began;
	long step = 0;

	program = "ranks";
	if (!parse(argc, argv)) {
		fprintf(stderr, "ranks: see ranks.c for the options\n");
		return 2;
	}
	prepare();
	printf("ready\n");
	fflush(stdout);
	if (option.wait > 0 && !fgets(line, sizeof line, stdin))
		return 1;
	began = now();
	while (option.steps <= 0 || step < (long)option.steps)
		train(++step);
	printf("total %llu %ld %.6f\n", (unsigned long long)now(), step, (double)(now() - began) / 1e9);
	checked(ncclCommDestroy(comm), "ncclCommDestroy");
	return 0;
}
