/* Patterns computed from address and generation, and checks that report the wrong page. */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096ul
#define MIB (1ul << 20)

#define die(...) (fprintf(stderr, __VA_ARGS__), fprintf(stderr, " (%s:%d)\n", __FILE__, __LINE__), _exit(1))
#define must(condition) ((condition) ? (void)0 : die("failed: %s: %s", #condition, strerror(errno)))

static inline uint64_t mix(uint64_t z)
{
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ul;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebul;
	return z ^ (z >> 31);
}

/* Writes page `index` of `base` in its `generation`: every 8th word, first and last included. */
static inline void write_page(void *base, uint64_t index, uint64_t generation)
{
	uint64_t *word = (uint64_t *)((char *)base + index * PAGE);
	for (int i = 0; i < 512; i += 8)
		word[i] = mix(index * 1000003 + generation * 777767 + i);
	word[511] = mix(index * 31 + generation);
}

static inline int page_is(const void *base, uint64_t index, uint64_t generation)
{
	const uint64_t *word = (const uint64_t *)((const char *)base + index * PAGE);
	for (int i = 0; i < 512; i += 8)
		if (word[i] != mix(index * 1000003 + generation * 777767 + i))
			return 0;
	return word[511] == mix(index * 31 + generation);
}

static inline void write_pages(void *base, uint64_t from, uint64_t to, uint64_t generation)
{
	for (uint64_t i = from; i < to; i++)
		write_page(base, i, generation);
}

#define check_pages(base, from, to, generation)                                           \
	do {                                                                              \
		for (uint64_t i_ = (from); i_ < (uint64_t)(to); i_++)                     \
			if (!page_is((base), i_, (generation)))                           \
				die("pid %d: page %lu is not generation %lu", getpid(),   \
				    (unsigned long)i_, (unsigned long)(generation));      \
	} while (0)

#define check_zero(base, len)                                                             \
	do {                                                                              \
		const uint64_t *w_ = (const uint64_t *)(base);                            \
		for (size_t i_ = 0; i_ < (len) / 8; i_++)                                 \
			if (w_[i_])                                                       \
				die("word %zu is not zero: %lx", i_, (unsigned long)w_[i_]); \
	} while (0)

/* A system call past the C library; returns the kernel's result. */
static inline long bare_call(long number, long a, long b, long c, long d, long e, long f)
{
	register long fourth __asm__("r10") = d, fifth __asm__("r8") = e, sixth __asm__("r9") = f;
	long result;
	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth), "r"(fifth), "r"(sixth)
			 : "rcx", "r11", "memory");
	return result;
}

static inline void *map(size_t len)
{
	void *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	must(at != MAP_FAILED);
	return at;
}

/* Writes 48 MiB of its own, so that formerly resident pages are evicted. */
static inline void push_out(void)
{
	size_t len = 48 * MIB;
	void *at = map(len);
	write_pages(at, 0, len / PAGE, 1);
	must(munmap(at, len) == 0);
}

/* Waits for a child and fails unless it ended with 0. */
static inline void join(pid_t child)
{
	int status;
	must(waitpid(child, &status, 0) == child);
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
		die("child %d ended with status %x", child, status);
}

#endif
