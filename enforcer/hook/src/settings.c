#define _GNU_SOURCE
#include "settings.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GS_DEFAULT_SOCKET "/run/gpusteward/broker/broker.sock"

struct gs_settings gs_settings;

/* Nobody may read the line: it is left out if it would wait for a reader, or SIGPIPE would
 * end the program. */
void gs_log(const char *format, ...)
{
	struct pollfd to = {.fd = STDERR_FILENO, .events = POLLOUT};
	char line[320];
	va_list args;
	int n = snprintf(line, sizeof(line), "gpusteward: ");
	int saved = errno;

	va_start(args, format);
	int m = vsnprintf(line + n, sizeof(line) - (size_t)n - 1, format, args);
	va_end(args);
	if (m < 0)
		return;
	n += m < (int)sizeof(line) - n - 1 ? m : (int)sizeof(line) - n - 2;
	line[n++] = '\n';
	if (poll(&to, 1, 0) == 1 && to.revents == POLLOUT && write(to.fd, line, (size_t)n) < 0) {
		/* Nothing is left to do. */
	}
	errno = saved;
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
	if (*memory && !parse_size(memory, &s.memory))
		gs_log("GPUSTEWARD_MEMORY_LIMIT=%s is no size (bytes, or with K, M or G): no limit", memory);
	gs_settings = s;
}
