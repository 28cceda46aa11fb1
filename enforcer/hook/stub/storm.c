// A library that makes a program hostile to who traces it: from SIGUSR2 until the next one, each
// of STORM_THREADS threads sends itself a signal as soon as it has had the one before.
#define _GNU_SOURCE // for signal() without a reset
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

static volatile sig_atomic_t storms;

static void turn(int signal)
{
	(void)signal;
	storms = !storms;
}

static void none(int signal) { (void)signal; }

static void *thread(void *unused)
{
	for (;;)
		if (storms)
			raise(SIGUSR1);
		else
			nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
	return unused;
}

__attribute__((constructor)) static void begin(void)
{
	const char *threads = getenv("STORM_THREADS");
	pthread_attr_t small;
	pthread_t one;
	sigset_t told;

	signal(SIGUSR1, none);
	signal(SIGUSR2, turn);
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 65536);
	for (int i = threads ? atoi(threads) : 0; i > 0; i--)
		if (pthread_create(&one, &small, thread, NULL))
			abort();
	sigemptyset(&told); // the program's own threads notice nothing
	sigaddset(&told, SIGUSR2);
	pthread_sigmask(SIG_BLOCK, &told, NULL);
}
