/*
 * A small libnvidia-ml.so.1 for tests: one GPU and fifteen functions, far
 * fewer than any real driver has. -DINIT=N has nvmlInit_v2 return N until
 * there is a file "loaded" in the directory that FAKE_DRIVER names; a file
 * "hang" there has nvmlDeviceGetTemperature never return.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef INIT
#define INIT 0
#endif
#define SUCCESS 0
#define UNINITIALIZED 1
#define INVALID_ARGUMENT 2
#define INSUFFICIENT_SIZE 7

typedef int result;
typedef struct { int index; } *device;
typedef struct {
	char legacy[16];
	unsigned domain, bus, device, id, subsystem;
	char bus_id[32];
} pci;
typedef struct { unsigned long long total, free, used; } memory;
typedef struct { unsigned gpu, memory; } utilization;

static int one, open_count;

static int there(const char *name)
{
	char path[4096];
	const char *dir = getenv("FAKE_DRIVER");
	if (!dir)
		return 0;
	snprintf(path, sizeof path, "%s/%s", dir, name);
	return access(path, F_OK) == 0;
}

static result text(char *to, unsigned size, const char *s)
{
	if (strlen(s) >= size)
		return INSUFFICIENT_SIZE;
	strcpy(to, s);
	return SUCCESS;
}

#define GUARD(d) \
	do { \
		if (!open_count) \
			return UNINITIALIZED; \
		if ((void *)(d) != (void *)&one) \
			return INVALID_ARGUMENT; \
	} while (0)

result nvmlInit_v2(void)
{
	if (INIT != SUCCESS && !there("loaded"))
		return INIT;
	open_count++;
	return SUCCESS;
}

/* A real one ends the process here after a failed nvmlInit. */
result nvmlShutdown(void)
{
	if (!open_count)
		abort();
	open_count--;
	return SUCCESS;
}

const char *nvmlErrorString(result r) { (void)r; return "an error of the fake driver"; }
result nvmlSystemGetDriverVersion(char *s, unsigned n) { return text(s, n, "999.1"); }
result nvmlSystemGetNVMLVersion(char *s, unsigned n) { return text(s, n, "13.999.1"); }
result nvmlDeviceGetCount_v2(unsigned *n) { *n = 1; return open_count ? SUCCESS : UNINITIALIZED; }

result nvmlDeviceGetHandleByIndex_v2(unsigned i, device *d)
{
	if (i != 0)
		return INVALID_ARGUMENT;
	*d = (device)&one;
	return open_count ? SUCCESS : UNINITIALIZED;
}

result nvmlDeviceGetUUID(device d, char *s, unsigned n) { GUARD(d); return text(s, n, "GPU-fake"); }
result nvmlDeviceGetName(device d, char *s, unsigned n) { GUARD(d); return text(s, n, "Fake GPU"); }
result nvmlDeviceGetMinorNumber(device d, unsigned *n) { GUARD(d); *n = 3; return SUCCESS; }
result nvmlDeviceGetPowerUsage(device d, unsigned *mw) { GUARD(d); *mw = 123456; return SUCCESS; }

result nvmlDeviceGetPciInfo_v3(device d, pci *p)
{
	GUARD(d);
	memset(p, 0, sizeof *p);
	p->bus = 0x9b;
	return text(p->bus_id, sizeof p->bus_id, "00000000:9B:00.0");
}

result nvmlDeviceGetTemperature(device d, int sensor, unsigned *celsius)
{
	GUARD(d);
	if (sensor != 0)
		return INVALID_ARGUMENT;
	while (there("hang"))
		pause();
	*celsius = 42;
	return SUCCESS;
}

result nvmlDeviceGetMemoryInfo(device d, memory *m)
{
	GUARD(d);
	m->total = 80000;
	m->used = 30000;
	m->free = 50000;
	return SUCCESS;
}

result nvmlDeviceGetUtilizationRates(device d, utilization *u)
{
	GUARD(d);
	u->gpu = 50;
	u->memory = 25;
	return SUCCESS;
}
