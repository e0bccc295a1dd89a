/* Random queries of a Berkeley DB B-tree, for record.sh: berkeleydb FILE RECORDS BYTES TRANSACTIONS
 *
 * Without transactions it fills the file. Else it reads all of it into a cache of its own heap, and
 * then serves transactions of five queries of a random key, four gets and a put (Venice paper, section
 * 4.2.1; 80-20 as in section 4.1), which are marked for the recorder.
 */
#include <db.h>
#include <string.h>
#include "recorded.h"

static void check(int error, const char *what) {
    if (error) {
        fprintf(stderr, "%s: %s\n", what, db_strerror(error));
        exit(1);
    }
}

static uint64_t swapped(uint64_t n) { return __builtin_bswap64(n); }

int main(int argc, char **argv) {
    if (argc != 5) {
        fprintf(stderr, "usage: berkeleydb FILE RECORDS BYTES TRANSACTIONS\n");
        return 2;
    }
    uint64_t records = strtoull(argv[2], 0, 10), transactions = strtoull(argv[4], 0, 10);
    uint32_t bytes = strtoul(argv[3], 0, 10);
    volatile uint64_t *marks = map_marks();
    DB_ENV *env;
    DB *db;
    check(db_env_create(&env, 0), "environment");
    check(env->set_cachesize(env, 0, (uint32_t)(records * bytes * 2), 1), "cache size");
    check(env->open(env, NULL, DB_CREATE | DB_PRIVATE | DB_INIT_MPOOL, 0), "environment");
    check(db_create(&db, env, 0), "database");
    check(db->set_pagesize(db, 4096), "page size");
    check(db->open(db, NULL, argv[1], NULL, DB_BTREE, DB_CREATE, 0600), "database");

    char *value = malloc(bytes);
    memset(value, 'v', bytes);
    uint64_t name;
    DBT key, data;
    memset(&key, 0, sizeof key);
    memset(&data, 0, sizeof data);
    key.data = &name;
    key.size = key.ulen = sizeof name;
    data.data = value;
    data.size = data.ulen = bytes;
    key.flags = data.flags = DB_DBT_USERMEM;

    if (transactions == 0) {
        for (uint64_t n = 0; n < records; n++) {
            name = swapped(n);
            check(db->put(db, NULL, &key, &data, 0), "put");
        }
    } else {
        DB_BTREE_STAT *stat;
        check(db->stat(db, NULL, &stat, 0), "stat"); /* reads every page */
        marks[0] = 1;
        for (uint64_t n = 0; n < 5 * transactions; n++) {
            name = swapped(draw() % records);
            if (n % 5 < 4)
                check(db->get(db, NULL, &key, &data, 0), "get");
            else
                check(db->put(db, NULL, &key, &data, 0), "put");
        }
        marks[1] = 1;
        printf("%u records in %u pages of %u bytes, %llu transactions\n", stat->bt_nkeys,
               stat->bt_pagecnt, stat->bt_pagesize, (unsigned long long)transactions);
    }
    check(db->close(db, 0), "database");
    check(env->close(env, 0), "environment");
    return 0;
}
