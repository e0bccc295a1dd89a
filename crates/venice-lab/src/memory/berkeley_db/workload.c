/* Random reads and updates of records in Berkeley DB, four to one (Venice paper, section 4.1), in memory:
 * a B-tree in a private environment whose cache holds all of it, no file behind it.
 *
 *   workload SIZE_BYTES ROUNDS --json REPORT
 *
 * Every record that is read is checked; the report is that of `venice bench work`, as JSON. */
#include <db.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { WORDS = 13, OPERATIONS = 50000, PAGE_BYTES = 4096 };

/* Its version, and what follows from key and version. */
typedef struct {
	uint64_t words[WORDS];
} record;

#define fail(what, code) (fprintf(stderr, "berkeley-db: %s: %s\n", what, db_strerror(code)), exit(1))

static void check(const char *what, int code)
{
	if (code != 0)
		fail(what, code);
}

static uint64_t scramble(uint64_t x)
{
	x += 0x9e3779b97f4a7c15u;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

static uint64_t state = 0x6264622d357633u;

static uint64_t below(uint64_t bound)
{
	state += 0x9e3779b97f4a7c15u;
	return (uint64_t)(((unsigned __int128)scramble(state) * bound) >> 64);
}

static record record_of(uint64_t key, uint64_t version)
{
	record made = { { version } };
	for (uint64_t place = 1; place < WORDS; place++)
		made.words[place] = scramble((key ^ version << 40) * 31 + place);
	return made;
}

/* Keys compare as bytes. */
static uint64_t in_order(uint64_t key)
{
	return __builtin_bswap64(key);
}

static double now_s(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static uint64_t resident_bytes(void)
{
	char line[256];
	uint64_t kib = 0;
	FILE *status = fopen("/proc/self/status", "r");
	while (status && fgets(line, sizeof line, status))
		if (sscanf(line, "RssAnon: %" SCNu64, &kib) == 1)
			break;
	if (status)
		fclose(status);
	return kib << 10;
}

static DB_ENV *environment(uint64_t cache_bytes)
{
	DB_ENV *env;
	check("environment", db_env_create(&env, 0));
	env->set_errfile(env, stderr);
	uint32_t gib = (uint32_t)(cache_bytes >> 30), rest = (uint32_t)(cache_bytes & ((1u << 30) - 1));
	check("cache", env->set_cachesize(env, gib, rest, 1));
	check("open environment", env->open(env, NULL, DB_CREATE | DB_INIT_MPOOL | DB_PRIVATE, 0));
	return env;
}

/* With a name and no file it stays in the cache, and fails rather than go elsewhere. */
static DB *database(DB_ENV *env)
{
	DB *db;
	check("database", db_create(&db, env, 0));
	check("page size", db->set_pagesize(db, PAGE_BYTES));
	check("open database", db->open(db, NULL, NULL, "records", DB_BTREE, DB_CREATE, 0));
	return db;
}

static void put(DB *db, uint64_t key, record *value)
{
	uint64_t bytes = in_order(key);
	DBT k = { .data = &bytes, .size = sizeof bytes }, v = { .data = value, .size = sizeof *value };
	check("put", db->put(db, NULL, &k, &v, 0));
}

static int get(DB *db, uint64_t key, record *value)
{
	uint64_t bytes = in_order(key);
	DBT k = { .data = &bytes, .size = sizeof bytes };
	DBT v = { .data = value, .ulen = sizeof *value, .flags = DB_DBT_USERMEM };
	int code = db->get(db, NULL, &k, &v, 0);
	if (code != 0 && code != DB_NOTFOUND)
		fail("get", code);
	return code == 0 && v.size == sizeof *value;
}

/* How many operations met a record that was not what had been stored. */
static uint64_t work(DB *db, uint64_t count, uint64_t operations)
{
	uint64_t wrong = 0;
	for (uint64_t i = 0; i < operations; i++) {
		uint64_t key = below(count), update = below(5) == 0;
		record found, expected;
		if (!get(db, key, &found)) {
			wrong++;
			continue;
		}
		expected = record_of(key, found.words[0]);
		wrong += memcmp(&found, &expected, sizeof found) != 0;
		if (update) {
			found = record_of(key, found.words[0] + 1);
			put(db, key, &found);
		}
	}
	return wrong;
}

/* Of all keys, and of all that is stored under them, in order. */
static void digests(DB *db, uint64_t out[2])
{
	DBC *cursor;
	check("cursor", db->cursor(db, NULL, &cursor, 0));
	DBT k = { 0 }, v = { 0 };
	int code;
	out[0] = out[1] = 1;
	while ((code = cursor->get(cursor, &k, &v, DB_NEXT)) == 0) {
		uint64_t key = 0;
		record value = { { 0 } };
		memcpy(&key, k.data, k.size < sizeof key ? k.size : sizeof key);
		memcpy(&value, v.data, v.size < sizeof value ? v.size : sizeof value);
		out[0] = scramble(out[0] ^ key ^ k.size);
		for (int i = 0; i < WORDS; i++)
			out[1] = scramble(out[1] ^ value.words[i] ^ v.size);
	}
	if (code != DB_NOTFOUND)
		fail("next", code);
	check("close cursor", cursor->close(cursor));
}

int main(int argc, char **argv)
{
	if (argc != 5 || strcmp(argv[3], "--json") != 0)
		return 2;
	uint64_t size_bytes = strtoull(argv[1], NULL, 10), rounds = strtoull(argv[2], NULL, 10);
	uint64_t count = size_bytes / (sizeof(record) + sizeof(uint64_t));
	count = count < 16 ? 16 : count;
	/* Room for what pages leave free and the cache needs beside them. */
	DB *db = database(environment(size_bytes * 2 + (16u << 20)));

	double start_s = now_s();
	for (uint64_t key = 0; key < count; key++) {
		record value = record_of(key, 0);
		put(db, key, &value);
	}
	double build_s = now_s() - start_s;

	uint64_t before_bytes = resident_bytes();
	start_s = now_s();
	uint64_t wrong = work(db, count, rounds * OPERATIONS);
	double run_s = now_s() - start_s;
	uint64_t after_bytes = resident_bytes(), digest[2];
	digests(db, digest);

	FILE *report = fopen(argv[4], "w");
	if (!report)
		return perror(argv[4]), 1;
	fprintf(report,
		"{\"build_s\": %.9f, \"run_s\": %.9f, \"operations\": %" PRIu64 ", \"wrong\": %" PRIu64
		", \"digests\": [%" PRIu64 ", %" PRIu64 "], \"resident_bytes\": %" PRIu64 "}\n",
		build_s, run_s, rounds * OPERATIONS, wrong, digest[0], digest[1],
		before_bytes > after_bytes ? before_bytes : after_bytes);
	return fclose(report) == 0 ? 0 : 1;
}
