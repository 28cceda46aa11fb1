/* The entries of the driver that a program got and entries.h does not have: those
 * of a newer CUDA, whose effect this hook does not know. */
#include "base/entries.h"

#include <stdlib.h>
#include <string.h>

#include "base/settings.h"

static const char *const entries[] = { /* sorted */
#define GS_ENTRY(name, ...) #name,
#include "base/entries.h"
};

/* The hashes of their names. The count stops at this number. */
static _Atomic uint32_t unknown[64];
#define MOST (sizeof unknown / sizeof *unknown)

/* The length of the name that stands for all versions of the entry. */
static size_t base(const char *name)
{
	size_t n = strlen(name), digits = n;

	if (n > 5 && (!strcmp(name + n - 5, "_ptsz") || !strcmp(name + n - 5, "_ptds")))
		digits = n -= 5;
	while (digits && name[digits - 1] >= '0' && name[digits - 1] <= '9')
		digits--;
	return digits < n && digits > 2 && name[digits - 1] == 'v' && name[digits - 2] == '_' ? digits - 2 : n;
}

static int order(const void *name, const void *entry)
{
	const char *known = *(const char *const *)entry;
	size_t n = base(name);
	int before = strncmp(name, known, n);

	return before ? before : -(known[n] != 0);
}

bool gs_entry_known(const char *name)
{
	return bsearch(name, entries, sizeof entries / sizeof *entries, sizeof *entries, order) != NULL;
}

void gs_entry_given(const char *name)
{
	uint32_t hash = 2166136261u;

	if (gs_entry_known(name))
		return;
	for (const char *p = name, *end = name + base(name); p < end; p++)
		hash = (hash ^ (unsigned char)*p) * 16777619u;
	for (size_t i = 0; i < MOST; i++) {
		uint32_t was = 0;
		if (atomic_compare_exchange_strong(&unknown[i], &was, hash | 1)) {
			const char *log = getenv("GPUSTEWARD_LOG"); /* the settings may not be read yet */
			if (log && !strcmp(log, "1"))
				gs_log("%s is newer than this hook: the audit alone governs what the program does with it",
				       name);
			return;
		}
		if (was == (hash | 1))
			return;
	}
}

uint32_t gs_entries_unknown(void)
{
	uint32_t n = 0;

	while (n < MOST && atomic_load(&unknown[n]))
		n++;
	return n;
}
