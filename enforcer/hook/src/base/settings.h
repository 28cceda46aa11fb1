/* The settings of this process, and its log. */
#ifndef GPUSTEWARD_SETTINGS_H
#define GPUSTEWARD_SETTINGS_H

#include "base/hook.h"

/* The environment, which is read once, under the client's lock. */
struct gs_settings {
	char socket[108];
	char tenant[64];
	char caller[64]; /* TRACEPARENT: the request of somebody else that this program is part of */
	uint64_t memory; /* bytes per GPU; 0 is no limit */
	bool off;
	bool closed; /* GPUSTEWARD_FAIL=closed */
	bool log;
	bool asked; /* the user asked for a broker: its absence is worth a line */
};
extern struct gs_settings gs_settings;
void gs_settings_read(void);

/* Writes one line to standard error, if that is what it was when the program started. */
void gs_log(const char *format, ...) __attribute__((format(printf, 1, 2)));

void gs_log_begin(void); /* it is what it is now */

#endif
