/* How the driver's calls come to us: by our exported names, by dlsym, and by
 * cuGetProcAddress, which the CUDA runtime uses for nearly all.
 *
 * The driver is asked first, so that its own rules of versions and variants hold.
 * If its answer is the driver's entry of a call in calls.h, our wrapper takes its
 * place. Every other address and name stays as it is; names that entries.h does not
 * have are counted. In a program that never uses CUDA only a comparison of names runs. */
#define _GNU_SOURCE

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#include "base/driver.h"
#include "base/entries.h"
#include "gate/nccl.h"
#include "wrappers/nvml.h"
#include "wrappers/wrapped.h"

/* In the order of gs_real's members. */
static const struct call {
	const char *name;
	void *wrapper; /* NULL: only called */
} calls[] = {
#define GS_CALL(name, ...) {#name, NULL},
#define GS_WRAP(name, ...) {#name, (void *)name},
#include "base/calls.h"
#undef GS_CALL
};
#define CALLS (sizeof calls / sizeof *calls)
_Static_assert(CALLS == sizeof gs_real / sizeof(void *), "a call has another place in gs_real");

static void *real_of(const struct call *c) { return ((void **)&gs_real)[c - calls]; }

/* Two indices of the wrapped calls: by name and by the driver's address. Both are
 * filled once and only read after that. */
#define PLACES 2048
_Static_assert(4 * CALLS < PLACES, "the indices are too full");
static const struct call *by_name[PLACES];
static struct { void *real, *wrapper; } by_address[PLACES];

static _Atomic bool ready; /* by_address is filled */

static size_t place_of_name(const char *name)
{
	uint32_t hash = 2166136261u;

	for (; *name; name++)
		hash = (hash ^ (unsigned char)*name) * 16777619u;
	return (hash ^ hash >> 16) % PLACES;
}

static size_t place_of_address(const void *address)
{
	return (uint32_t)((uintptr_t)address >> 4) * 2654435769u % PLACES;
}

static void index_names(void)
{
	for (const struct call *c = calls; c < calls + CALLS; c++) {
		if (!c->wrapper)
			continue;
		size_t at = place_of_name(c->name);
		while (by_name[at])
			at = (at + 1) % PLACES;
		by_name[at] = c;
	}
}

static const struct call *wrapped(const char *name)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, index_names);
	for (size_t at = place_of_name(name); by_name[at]; at = (at + 1) % PLACES)
		if (!strcmp(by_name[at]->name, name))
			return by_name[at];
	return NULL;
}

static void *substitute(void *address)
{
	for (size_t at = place_of_address(address); by_address[at].real; at = (at + 1) % PLACES)
		if (by_address[at].real == address)
			return by_address[at].wrapper;
	return address;
}

static void add_address(void *real, void *wrapper)
{
	size_t at = place_of_address(real);

	if (!real || real == wrapper || substitute(real) != real)
		return;
	while (by_address[at].real)
		at = (at + 1) % PLACES;
	by_address[at].real = real;
	by_address[at].wrapper = wrapper;
}

/* The newest version of the interface whose calls are all in calls.h. */
#define KNOWN 13000

/* For a wrapped name without its suffix cuGetProcAddress returns one of the
 * exported entries on all drivers so far. If it should return another entry for the
 * same call, that is the newest variant that is known here, which is the last in
 * calls.h. */
static void add_proc_address(const struct call *c, int version)
{
	char name[64];
	bool per_thread = false;
	size_t length = strlen(c->name);
	void *at = NULL;

	if (length >= sizeof name || !strcmp(c->name, "cuGraphInstantiate"))
		return; /* the newest version of that has another name */
	memcpy(name, c->name, length + 1);
	if (length > 5 && (!strcmp(name + length - 5, "_ptsz") || !strcmp(name + length - 5, "_ptds"))) {
		name[length -= 5] = 0;
		per_thread = true;
	}
	if (length > 3 && name[length - 3] == '_' && name[length - 2] == 'v')
		name[length - 3] = 0;
	uint64_t flags = per_thread ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : CU_GET_PROC_ADDRESS_LEGACY_STREAM;
	int status;
	CUresult r = gs_real.cuGetProcAddress_v2 ? gs_real.cuGetProcAddress_v2(name, &at, version, flags, &status)
	           : gs_real.cuGetProcAddress    ? gs_real.cuGetProcAddress(name, &at, version, flags)
	                                         : CUDA_ERROR_NOT_FOUND;
	if (r == CUDA_SUCCESS)
		add_address(at, c->wrapper);
}

static void index_addresses(void)
{
	int version = KNOWN;

	for (const struct call *c = calls; c < calls + CALLS; c++)
		if (c->wrapper)
			add_address(real_of(c), c->wrapper);
	if (gs_real.cuDriverGetVersion && gs_real.cuDriverGetVersion(&version) == CUDA_SUCCESS && version > KNOWN)
		version = KNOWN;
	for (const struct call *c = calls + CALLS; c-- > calls;)
		if (c->wrapper)
			add_proc_address(c, version);
	atomic_store_explicit(&ready, true, memory_order_release);
}

/* Fills by_address once the driver is in the process. */
static bool indexed(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	if (atomic_load_explicit(&ready, memory_order_acquire))
		return true;
	GS_ERRNO;
	if (!gs_driver_load(false))
		return false;
	pthread_once(&once, index_addresses);
	return true;
}

/* ---- cuGetProcAddress ---- */

static void give(const char *name, void **address)
{
	GS_ERRNO;

	if (!*address || gs_intercept_off())
		return;
	gs_entry_given(name);
	if (indexed())
		*address = substitute(*address);
}

CUresult cuGetProcAddress(const char *name, void **address, int version, uint64_t flags)
{
	GS_NEED(cuGetProcAddress);
	CUresult r = gs_real.cuGetProcAddress(name, address, version, flags);
	if (r == CUDA_SUCCESS && address)
		give(name, address);
	return r;
}

CUresult cuGetProcAddress_v2(const char *name, void **address, int version, uint64_t flags, int *status)
{
	GS_NEED(cuGetProcAddress_v2);
	CUresult r = gs_real.cuGetProcAddress_v2(name, address, version, flags, status);
	if (r == CUDA_SUCCESS && address)
		give(name, address);
	return r;
}

/* ---- dlsym ---- */

#define PASS ((void *)-1)

/* Our dlsym, whatever the loader takes that name for. A program that asks for
 * libc's gets this one: it passes calls on with the caller's return address. */
__attribute__((visibility("hidden"))) extern char gs_own_dlsym[];

/* Returns the answer of dlsym if it is ours to give, NULL and libc's error if there
 * is no such name, and PASS if it is not our affair. */
GS_EARLY __attribute__((visibility("hidden")))
void *gs_resolve(void *handle, const char *name, void *caller)
{
	Dl_info at;

	gs_find_dlsym();
	if (name && name[0] == 'd' && name[1] == 'l' && name[2] == 's' && name[3] == 'y' && name[4] == 'm' &&
	    !name[5] && !gs_intercept_off()) {
		void *found = gs_real_dlsym(handle, name);
		return (void *)gs_real_dlsym == found ? (void *)gs_own_dlsym : PASS;
	}
	if (name && name[0] == 'n' && name[1] == 'v' && name[2] == 'm' && name[3] == 'l') {
		void *answer;
		return gs_nvml_resolve(handle, name, &answer) ? answer : PASS;
	}
	if (name && name[0] == 'n' && name[1] == 'c' && name[2] == 'c' && name[3] == 'l') {
		void *answer;
		return gs_nccl_resolve(handle, name, &answer) ? answer : PASS;
	}
	if (!name || name[0] != 'c' || name[1] != 'u' || name[2] < 'A' || name[2] > 'Z')
		return PASS;
	const struct call *c = wrapped(name);
	if (gs_intercept_off() || (!c && gs_entry_known(name)))
		return PASS;
	void *base = __atomic_load_n(&gs_driver_base, __ATOMIC_ACQUIRE);
	if (base && dladdr(caller, &at) && at.dli_fbase == base)
		return PASS;
	bool loaded = indexed();
	if (!c) {
		void *given = loaded ? gs_real_dlsym(handle, name) : NULL;
		if (given && given == gs_real_dlsym(gs_driver, name))
			gs_entry_given(name);
		return PASS;
	}
	/* The last call is libc's dlsym, because dlerror reports on that. If the
	 * search began with us, it goes on behind us: a program that only asks
	 * whether there is a driver must not take us for one. */
	void *real = gs_real_dlsym(handle, name);
	if (real == c->wrapper)
		real = gs_real_dlsym(RTLD_NEXT, name);
	if (!real || !loaded)
		return real;
	return real == real_of(c) ? c->wrapper : substitute(real);
}

/* dlsym itself is a few instructions. libc takes RTLD_NEXT and RTLD_DEFAULT from
 * the return address, so we must be gone from the stack when we pass a call on, and
 * no compiler promises that. */
#if defined __x86_64__
__asm__(".text\n"
	".globl dlsym\n"
	".globl gs_own_dlsym\n"
	".hidden gs_own_dlsym\n"
	".type dlsym, @function\n"
	"gs_own_dlsym:\n"
	"dlsym:\n"
	".cfi_startproc\n"
	"	endbr64\n"
	"	push %rdi\n"
	".cfi_adjust_cfa_offset 8\n"
	"	push %rsi\n"
	".cfi_adjust_cfa_offset 8\n"
	"	sub $8, %rsp\n"
	".cfi_adjust_cfa_offset 8\n"
	"	mov 24(%rsp), %rdx\n"
	"	call gs_resolve\n"
	"	add $8, %rsp\n"
	".cfi_adjust_cfa_offset -8\n"
	"	pop %rsi\n"
	".cfi_adjust_cfa_offset -8\n"
	"	pop %rdi\n"
	".cfi_adjust_cfa_offset -8\n"
	"	cmp $-1, %rax\n"
	"	je 1f\n"
	"	ret\n"
	"1:	jmp *gs_real_dlsym(%rip)\n"
	".cfi_endproc\n"
	".size dlsym, .-dlsym\n");
#elif defined __aarch64__
__asm__(".text\n"
	".globl dlsym\n"
	".globl gs_own_dlsym\n"
	".hidden gs_own_dlsym\n"
	".type dlsym, %function\n"
	"gs_own_dlsym:\n"
	"dlsym:\n"
	".cfi_startproc\n"
	"	hint #34\n" /* bti c */
	"	stp x29, x30, [sp, #-32]!\n"
	".cfi_def_cfa_offset 32\n"
	".cfi_offset 29, -32\n"
	".cfi_offset 30, -24\n"
	"	stp x0, x1, [sp, #16]\n"
	"	mov x2, x30\n"
	"	bl gs_resolve\n"
	"	mov x9, x0\n"
	"	ldp x0, x1, [sp, #16]\n"
	"	ldp x29, x30, [sp], #32\n"
	".cfi_restore 30\n"
	".cfi_restore 29\n"
	".cfi_def_cfa_offset 0\n"
	"	cmn x9, #1\n"
	"	b.eq 1f\n"
	"	mov x0, x9\n"
	"	ret\n"
	"1:	adrp x9, gs_real_dlsym\n"
	"	ldr x16, [x9, :lo12:gs_real_dlsym]\n"
	"	br x16\n"
	".cfi_endproc\n"
	".size dlsym, .-dlsym\n");
#else
#error "dlsym is written for x86-64 and aarch64"
#endif
