/* System calls without the C library.
 *
 * A program may export a connect, a poll or a close of its own, and the dynamic
 * linker would give it ours. It may read errno, or be cancelled in a call that waits.
 * These calls are the kernel's: they return its result, which is -E... on failure. */
#ifndef GPUSTEWARD_SYS_H
#define GPUSTEWARD_SYS_H

#include <poll.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>

#define GS_SYS(...) GS_SYS_SIX(__VA_ARGS__, 0, 0, 0, 0, 0, 0, 0)
#define GS_SYS_SIX(n, a, b, c, d, e, f, ...) \
	gs_sys((n), (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))

static inline long gs_sys(long n, long a, long b, long c, long d, long e, long f)
{
#if defined __x86_64__
	register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;

	__asm__ volatile("syscall" : "+a"(n) : "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
	                 : "rcx", "r11", "memory");
	return n;
#elif defined __aarch64__
	register long x8 __asm__("x8") = n, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c,
		      x3 __asm__("x3") = d, x4 __asm__("x4") = e, x5 __asm__("x5") = f;

	__asm__ volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
	return x0;
#else
#error "this architecture has no system calls here"
#endif
}

/* A mapping that failed has no address. */
static inline void *gs_sys_address(long r) { return r < 0 && r > -4096 ? NULL : (void *)r; }

/* Waits for p, or only for ns if p is NULL. */
static inline long gs_sys_poll(struct pollfd *p, uint64_t ns)
{
	struct timespec t = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};

	return GS_SYS(SYS_ppoll, p, p != NULL, &t, NULL, sizeof(uint64_t));
}

#endif
