/*
 * A small libnvidia-ml.so.1 for tests: two dozen functions, far fewer than any
 * real driver has. Files in the directory that FAKE_DRIVER names say what it
 * does; they are read at every call, so that a driver changes under whoever
 * uses it. <i> is the index of a GPU, <function> a name as below.
 *
 *	gpus               how many there are when NVML is opened: 1 if not given
 *	uuid.<i>           another UUID than GPU-fake or GPU-fake-<i>
 *	hang, hang.<i>     for as long as it is there, the function that it names,
 *	                   nvmlDeviceGetTemperature if none, does not return
 *	lost.<i>           every call returns GPU_IS_LOST
 *	reset.<i>          every call but those for identity returns RESET_REQUIRED
 *	nodes              every call of a GPU returns UNKNOWN
 *	slow               microseconds that every call takes
 *	garbage            readings that cannot be
 *	return.<function>  what it returns, if not 0
 *	kernel             version of the kernel module: the library's if not given
 *	unloaded           there is no kernel module
 *	loaded             nvmlInit no longer fails with INIT
 *	processes.<i>      lines of: pid bytes [mps|graphics]
 *	utilization.<i>    lines of: pid sm memory encoder decoder (percent)
 *	memory.<i>         bytes in all and in use: 80000 and 30000 if not given
 *	energy.<i>         millijoules
 *	replays.<i>        PCIe replays
 *	limits             memory limits of a cgroup: name, soft and hard limit in bytes
 *	deaf               a memory limit is not set
 *
 * It writes sessions, how many are open, stuck, how many calls hang, limits, and sets, a line
 * for each memory limit that was set.
 *
 * -DINIT=N has nvmlInit_v2 fail with N; -DVERSION="\"999.2\"" is another build;
 * -DFIELDS adds nvmlDeviceGetFieldValues, -DTOPOLOGY the paths between GPUs, -DLIMITS the
 * memory limits of cgroups.
 */
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifndef INIT
#define INIT 0
#endif
#ifndef VERSION
#define VERSION "999.1"
#endif

enum {
	SUCCESS = 0,
	UNINITIALIZED = 1,
	INVALID_ARGUMENT = 2,
	NOT_SUPPORTED = 3,
	NOT_FOUND = 6,
	INSUFFICIENT_SIZE = 7,
	DRIVER_NOT_LOADED = 9,
	GPU_IS_LOST = 15,
	RESET_REQUIRED = 16,
	LIB_RM_VERSION_MISMATCH = 18,
	UNKNOWN = 999,
};

typedef int result;
typedef struct gpu { int unused; } *device;
typedef struct {
	char legacy[16];
	unsigned domain, bus, device, id, subsystem;
	char bus_id[32];
} pci;
typedef struct { unsigned long long total, free, used; } memory;
typedef struct { unsigned gpu, memory; } utilization;
typedef struct {
	unsigned pid;
	unsigned long long bytes;
	unsigned gpu_instance, compute_instance;
} process;
typedef struct {
	unsigned pid;
	unsigned long long microseconds;
	unsigned sm, memory, encoder, decoder;
} sample;
typedef struct {
	unsigned id, scope;
	long long timestamp, latency;
	int type, ret;
	union { double d; unsigned long long ull; } value;
} field;

#define MOST 16
#define LINES 256

static struct gpu devices[MOST];
static atomic_int gpus, sessions, stuck;

/* content reads a file, without its last newline; false where there is none. */
__attribute__((format(printf, 3, 4)))
static int content(char *to, size_t size, const char *name, ...)
{
	char path[4096];
	const char *dir = getenv("FAKE_DRIVER");
	va_list args;
	FILE *f;
	int n;

	if (!dir)
		return 0;
	n = snprintf(path, sizeof path, "%s/", dir);
	va_start(args, name);
	vsnprintf(path + n, sizeof path - n, name, args);
	va_end(args);
	if (!(f = fopen(path, "re")))
		return 0;
	n = fread(to, 1, size - 1, f);
	fclose(f);
	to[n] = 0;
	if (n > 0 && to[n - 1] == '\n')
		to[n - 1] = 0;
	return 1;
}

static int there(const char *name)
{
	char some[2];
	return content(some, sizeof some, "%s", name);
}

static int is(const char *state, int gpu)
{
	char some[2];
	return content(some, sizeof some, "%s.%d", state, gpu);
}

/* file opens a file to write; a driver without a directory has none. */
__attribute__((unused))
static FILE *file(const char *name, const char *mode)
{
	char path[4096];
	const char *dir = getenv("FAKE_DRIVER");

	snprintf(path, sizeof path, "%s/%s", dir ? dir : "/none", name);
	return fopen(path, mode);
}

/* note changes a count and writes it to the file of its name. */
static void note(const char *name, atomic_int *count, int by)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	char path[4096], next[4096 + 4];
	const char *dir = getenv("FAKE_DRIVER");
	FILE *f;

	pthread_mutex_lock(&lock);
	*count += by;
	if (dir) {
		snprintf(path, sizeof path, "%s/%s", dir, name);
		snprintf(next, sizeof next, "%s.new", path);
		if ((f = fopen(next, "we"))) {
			fprintf(f, "%d\n", *count);
			fclose(f);
			rename(next, path);
		}
	}
	pthread_mutex_unlock(&lock);
}

static int hangs(const char *function, int gpu)
{
	static const char usual[] = "nvmlDeviceGetTemperature";
	char name[64];

	if (content(name, sizeof name, "hang") && !strcmp(*name ? name : usual, function))
		return 1;
	return gpu >= 0 && content(name, sizeof name, "hang.%d", gpu) && !strcmp(*name ? name : usual, function);
}

/* begin is the first thing in every call. */
static result begin(const char *function, int gpu)
{
	char text[64];

	if (content(text, sizeof text, "slow"))
		usleep(atoi(text));
	if (hangs(function, gpu)) {
		note("stuck", &stuck, 1);
		while (hangs(function, gpu))
			usleep(5000);
		note("stuck", &stuck, -1);
	}
	return content(text, sizeof text, "return.%s", function) ? atoi(text) : SUCCESS;
}

static int mismatch(void)
{
	char kernel[64];
	return content(kernel, sizeof kernel, "kernel") && strcmp(kernel, VERSION);
}

/* session is what follows where NVML must be open. */
static result session(const char *function, int gpu)
{
	result r = begin(function, gpu);
	if (!sessions || there("unloaded"))
		return UNINITIALIZED;
	return mismatch() ? LIB_RM_VERSION_MISMATCH : r;
}

static int identity(const char *function)
{
	return strstr(function, "HandleByIndex") || strstr(function, "UUID") || strstr(function, "Name") ||
	       strstr(function, "PciInfo") || strstr(function, "MinorNumber");
}

static result of(const char *function, int gpu)
{
	result r = session(function, gpu);
	if (r != SUCCESS)
		return r;
	if (gpu < 0 || gpu >= gpus)
		return INVALID_ARGUMENT;
	if (there("nodes"))
		return UNKNOWN;
	if (is("lost", gpu))
		return GPU_IS_LOST;
	if (is("reset", gpu) && !identity(function))
		return RESET_REQUIRED;
	return SUCCESS;
}

/* A handle points into devices; another one belongs to no GPU. */
static int index_of(device d)
{
	return d >= devices && d < devices + MOST ? (int)(d - devices) : -1;
}

#define CALL() \
	do { \
		result failed = session(__func__, -1); \
		if (failed) \
			return failed; \
	} while (0)
#define GPU(d) \
	const int gpu = index_of(d); \
	do { \
		result failed = of(__func__, gpu); \
		if (failed) \
			return failed; \
	} while (0)

static result text(char *to, unsigned size, const char *s)
{
	if (strlen(s) >= size)
		return INSUFFICIENT_SIZE;
	strcpy(to, s);
	return SUCCESS;
}

/* count is a number from a file; a GPU without one does not count that. */
static result count(unsigned long long *n, const char *name, int gpu)
{
	char s[64];
	if (!content(s, sizeof s, "%s.%d", name, gpu))
		return NOT_SUPPORTED;
	*n = strtoull(s, NULL, 10);
	return SUCCESS;
}

static unsigned long long now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	return t.tv_sec * 1000000ull + t.tv_nsec / 1000;
}

result nvmlInit_v2(void)
{
	char s[16];
	result r = begin(__func__, -1);

	if (r != SUCCESS)
		return r;
	if (INIT != SUCCESS && !there("loaded"))
		return INIT;
	if (there("unloaded"))
		return DRIVER_NOT_LOADED;
	if (mismatch())
		return LIB_RM_VERSION_MISMATCH;
	if (!sessions) {
		gpus = content(s, sizeof s, "gpus") ? atoi(s) : 1;
		if (gpus > MOST)
			gpus = MOST;
	}
	note("sessions", &sessions, 1);
	return SUCCESS;
}

/* A real one ends the process here after a failed nvmlInit. */
result nvmlShutdown(void)
{
	result r = begin(__func__, -1);
	if (!sessions)
		abort();
	if (r == SUCCESS)
		note("sessions", &sessions, -1);
	return r;
}

const char *nvmlErrorString(result r) { (void)r; return "an error of the fake driver"; }
result nvmlSystemGetDriverVersion(char *s, unsigned n) { CALL(); return text(s, n, VERSION); }
result nvmlSystemGetNVMLVersion(char *s, unsigned n) { CALL(); return text(s, n, "13." VERSION); }
result nvmlDeviceGetCount_v2(unsigned *n) { CALL(); *n = gpus; return SUCCESS; }

result nvmlDeviceGetHandleByIndex_v2(unsigned i, device *d)
{
	const int gpu = i < MOST ? (int)i : -1;
	result r = of(__func__, gpu);
	if (r == SUCCESS)
		*d = &devices[gpu];
	return r;
}

static void uuid_of(int gpu, char id[64])
{
	if (!content(id, 64, "uuid.%d", gpu))
		snprintf(id, 64, gpu ? "GPU-fake-%d" : "GPU-fake", gpu);
}

result nvmlDeviceGetUUID(device d, char *s, unsigned n)
{
	char id[64];
	GPU(d);
	uuid_of(gpu, id);
	return text(s, n, id);
}

result nvmlDeviceGetHandleByUUID(const char *uuid, device *d)
{
	char id[64];
	CALL();
	for (int i = 0; i < gpus; i++) {
		uuid_of(i, id);
		if (!strcmp(id, uuid)) {
			*d = &devices[i];
			return SUCCESS;
		}
	}
	return NOT_FOUND;
}

/* fill leaves no room for the end of the string. */
static result fill(char *to, unsigned size)
{
	static const char some[] = "\xff\n\"\\\x01{\xc3";
	for (unsigned i = 0; i < size; i++)
		to[i] = some[i % (sizeof some - 1)];
	return SUCCESS;
}

result nvmlDeviceGetName(device d, char *s, unsigned n)
{
	GPU(d);
	return there("garbage") ? fill(s, n) : text(s, n, "Fake GPU");
}

result nvmlDeviceGetPciInfo_v3(device d, pci *p)
{
	char id[sizeof p->bus_id];
	GPU(d);
	memset(p, 0, sizeof *p);
	p->bus = 0x9b + gpu;
	if (there("garbage"))
		return fill(p->bus_id, sizeof p->bus_id);
	snprintf(id, sizeof id, "00000000:%02X:00.0", p->bus);
	return text(p->bus_id, sizeof p->bus_id, id);
}

result nvmlDeviceGetMinorNumber(device d, unsigned *n) { GPU(d); *n = there("garbage") ? -1u : 3u + gpu; return SUCCESS; }
result nvmlDeviceGetPowerUsage(device d, unsigned *mw) { GPU(d); *mw = there("garbage") ? -1u : 123456; return SUCCESS; }

result nvmlDeviceGetTemperature(device d, int sensor, unsigned *celsius)
{
	GPU(d);
	if (sensor != 0)
		return INVALID_ARGUMENT;
	*celsius = there("garbage") ? -1u : 42;
	return SUCCESS;
}

result nvmlDeviceGetMemoryInfo(device d, memory *m)
{
	char s[64];
	GPU(d);
	m->total = 80000;
	m->used = 30000;
	if (content(s, sizeof s, "memory.%d", gpu))
		sscanf(s, "%llu %llu", &m->total, &m->used);
	if (there("garbage"))
		m->used = -1ull;
	m->free = m->total - m->used;
	return SUCCESS;
}

result nvmlDeviceGetUtilizationRates(device d, utilization *u)
{
	GPU(d);
	u->gpu = there("garbage") ? -1u : 50;
	u->memory = there("garbage") ? -1u : 25;
	return SUCCESS;
}

result nvmlDeviceGetTotalEnergyConsumption(device d, unsigned long long *mj) { GPU(d); return count(mj, "energy", gpu); }

result nvmlDeviceGetPcieReplayCounter(device d, unsigned *n)
{
	unsigned long long replays = 0;
	GPU(d);
	result r = count(&replays, "replays", gpu);
	*n = replays;
	return r;
}

/* processes lists those of one kind; garbage says that there are a million. */
static result processes(int gpu, const char *kind, unsigned *n, process *to)
{
	char lines[64 * LINES], type[16], *rest, *line;
	unsigned room = *n, have = 0;

	if (!content(lines, sizeof lines, "processes.%d", gpu))
		*lines = 0;
	for (line = strtok_r(lines, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
		process p = {.gpu_instance = -1u, .compute_instance = -1u};
		*type = 0;
		if (sscanf(line, "%u %llu %15s", &p.pid, &p.bytes, type) < 2 || strcmp(type, kind))
			continue;
		if (have++ < room && to)
			to[have - 1] = p;
	}
	*n = there("garbage") ? 1000000 : have;
	return have > room ? INSUFFICIENT_SIZE : SUCCESS;
}

result nvmlDeviceGetComputeRunningProcesses_v3(device d, unsigned *n, process *p) { GPU(d); return processes(gpu, "", n, p); }
result nvmlDeviceGetGraphicsRunningProcesses_v3(device d, unsigned *n, process *p) { GPU(d); return processes(gpu, "graphics", n, p); }
result nvmlDeviceGetMPSComputeRunningProcesses_v3(device d, unsigned *n, process *p) { GPU(d); return processes(gpu, "mps", n, p); }

result nvmlDeviceGetProcessUtilization(device d, sample *to, unsigned *n, unsigned long long since)
{
	char lines[64 * LINES], *rest, *line;
	unsigned room = to ? *n : 0, have = 0;

	GPU(d);
	if (since >= now() || !content(lines, sizeof lines, "utilization.%d", gpu))
		return NOT_FOUND;
	for (line = strtok_r(lines, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
		sample s = {.microseconds = now()};
		if (sscanf(line, "%u %u %u %u %u", &s.pid, &s.sm, &s.memory, &s.encoder, &s.decoder) != 5)
			continue;
		if (there("garbage"))
			s.sm = s.memory = s.encoder = s.decoder = -1u;
		if (have++ < room)
			to[have - 1] = s;
	}
	*n = to && there("garbage") ? 1000000 : have;
	return have > room ? INSUFFICIENT_SIZE : have ? SUCCESS : NOT_FOUND;
}

#ifdef FIELDS
/* Energy and replays alone; garbage is NaN. */
result nvmlDeviceGetFieldValues(device d, int n, field *f)
{
	GPU(d);
	for (int i = 0; i < n; i++) {
		f[i].type = 3; /* unsigned long long */
		f[i].ret = f[i].id == 191 && f[i].scope == 0 ? count(&f[i].value.ull, "energy", gpu) :
			   f[i].id == 94 ? count(&f[i].value.ull, "replays", gpu) : NOT_SUPPORTED;
		if (there("garbage")) {
			f[i].type = f[i].ret = 0;
			f[i].value.d = NAN;
		}
	}
	return SUCCESS;
}
#endif

#ifdef TOPOLOGY
result nvmlDeviceGetTopologyCommonAncestor(device d, device peer, int *level)
{
	GPU(d);
	if (index_of(peer) < 0)
		return INVALID_ARGUMENT;
	*level = 50; /* by way of the host */
	return SUCCESS;
}
#endif

#ifdef LIMITS
typedef struct { const char *cgroup; unsigned long long soft, hard, used; } limits;

/* One cgroup's, in a file. The structures are those of the public reference of NVML; the one that
 * is set ends before used. */
result nvmlDeviceSetMemoryLimits_v1(device d, const limits *l)
{
	FILE *f;

	GPU(d);
	(void)gpu;
	if ((f = file("sets", "a"))) {
		fputs("set\n", f);
		fclose(f);
	}
	if (!there("deaf") && (f = file("limits", "w"))) {
		fprintf(f, "%s %llu %llu", l->cgroup, l->soft, l->hard);
		fclose(f);
	}
	return SUCCESS;
}

result nvmlDeviceGetMemoryLimits_v1(device d, limits *l)
{
	char text[4096 + 64], name[4096];

	GPU(d);
	(void)gpu;
	if (!content(text, sizeof text, "limits") || sscanf(text, "%4095s %llu %llu", name, &l->soft, &l->hard) != 3 ||
	    strcmp(name, l->cgroup))
		return NOT_FOUND;
	l->used = 77;
	return SUCCESS;
}
#endif
