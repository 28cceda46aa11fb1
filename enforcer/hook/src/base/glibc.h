/* The C library's functions by their first versions. Linked against a new glibc,
 * the hook would ask for versions that an older one lacks, and a program there
 * would not start with it. These functions moved from libdl and libpthread into
 * libc since 2.32. So the hook takes glibc 2.17. The Makefile begins every part of
 * the hook with this file, which therefore includes nothing. */
#ifndef GS_GLIBC_H
#define GS_GLIBC_H

#if defined __aarch64__ /* its glibc begins with 2.17 */
#define GS_SINCE(symbol, version) __asm__(".symver " #symbol "," #symbol "@GLIBC_2.17")
#else
#define GS_SINCE(symbol, version) __asm__(".symver " #symbol "," #symbol "@GLIBC_" version)
#endif
GS_SINCE(dladdr, "2.2.5");
GS_SINCE(dlinfo, "2.3.3");
GS_SINCE(dlopen, "2.2.5");
GS_SINCE(dlvsym, "2.2.5");
GS_SINCE(pthread_attr_setstacksize, "2.2.5");
GS_SINCE(pthread_create, "2.2.5");
GS_SINCE(pthread_key_create, "2.2.5");
GS_SINCE(pthread_mutex_trylock, "2.2.5");
GS_SINCE(pthread_once, "2.2.5");
GS_SINCE(pthread_setspecific, "2.2.5");
GS_SINCE(pthread_sigmask, "2.2.5");

#endif
