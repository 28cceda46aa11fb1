#define _GNU_SOURCE
#include "base/settings.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/sys.h"

#define GS_DEFAULT_SOCKET "/run/gpusteward/broker/broker.sock"

struct gs_settings gs_settings;

/* What descriptor 2 was when the program started. A program may close it, and open
 * something of its own under the same number. Nothing of ours may get there. */
static struct {
	bool looked, open;
	dev_t dev;
	ino_t ino;
} was;

void gs_log_begin(void)
{
	struct stat st;

	was.looked = true;
	was.open = !GS_SYS(SYS_fstat, STDERR_FILENO, &st);
	was.dev = st.st_dev;
	was.ino = st.st_ino;
}

/* A constructor of another library may come before it, and begin with CUDA. */
__attribute__((constructor)) static void begin(void) { gs_log_begin(); }

/* A file may have no room for the line under a limit of the program's, and the signal
 * SIGXFSZ would end it. */
static bool fits(const struct stat *st, size_t bytes)
{
	struct rlimit most;

	return !S_ISREG(st->st_mode) || (!GS_SYS(SYS_prlimit64, 0, RLIMIT_FSIZE, NULL, &most) &&
					 (rlim_t)st->st_size + bytes <= most.rlim_cur);
}

/* Nobody may read the line: it is left out if it would wait for a reader, or a signal would
 * end the program. */
void gs_log(const char *format, ...)
{
	struct pollfd to = {.fd = STDERR_FILENO, .events = POLLOUT};
	char line[320];
	struct stat st;
	va_list args;
	GS_ERRNO;
	int n = snprintf(line, sizeof(line), "gpusteward: ");

	va_start(args, format);
	int m = vsnprintf(line + n, sizeof(line) - (size_t)n - 1, format, args);
	va_end(args);
	if (m < 0)
		return;
	n += m < (int)sizeof(line) - n - 1 ? m : (int)sizeof(line) - n - 2;
	line[n++] = '\n';
	if (!was.looked)
		gs_log_begin();
	if (was.open && !GS_SYS(SYS_fstat, to.fd, &st) && st.st_dev == was.dev && st.st_ino == was.ino &&
	    fits(&st, (size_t)n) && gs_sys_poll(&to, 0) == 1 && to.revents == POLLOUT)
		GS_SYS(SYS_write, to.fd, line, n);
}

static bool parse_size(const char *text, uint64_t *bytes)
{
	static const char units[] = "KMG";
	char *end;

	errno = 0;
	unsigned long long n = strtoull(text, &end, 10);
	if (end == text || errno || *text == '-')
		return false;
	const char *unit = *end ? strchr(units, *end & ~0x20) : NULL;
	unsigned shift = unit ? 10 * (unsigned)(unit - units + 1) : 0;
	if (unit)
		end++;
	if (*end || n > UINT64_MAX >> shift)
		return false;
	*bytes = (uint64_t)n << shift;
	return true;
}

static const char *setting(const char *name)
{
	const char *value = getenv(name);
	return value ? value : "";
}

void gs_settings_read(void)
{
	const char *path = setting("GPUSTEWARD_SOCKET"), *tenant = setting("GPUSTEWARD_TENANT");
	const char *memory = setting("GPUSTEWARD_MEMORY_LIMIT");
	struct gs_settings s = {.asked = *path || *tenant};

	s.off = strcmp(setting("GPUSTEWARD_OFF"), "1") == 0;
	s.log = strcmp(setting("GPUSTEWARD_LOG"), "1") == 0;
	s.closed = strcmp(setting("GPUSTEWARD_FAIL"), "closed") == 0;
	snprintf(s.socket, sizeof(s.socket), "%s", *path ? path : GS_DEFAULT_SOCKET);
	snprintf(s.tenant, sizeof(s.tenant), "%s", tenant);
	snprintf(s.caller, sizeof(s.caller), "%s", setting("TRACEPARENT"));
	if (*memory && !parse_size(memory, &s.memory))
		gs_log("GPUSTEWARD_MEMORY_LIMIT=%s is no size (bytes, or with K, M or G): no limit", memory);
	gs_settings = s;
}
