import duckdb, sys
c = duckdb.connect(':memory:', config={'threads': 2, 'memory_limit': '500MB'})
c.execute("create table t as select i, hash(i) % 100000 k, md5(i::varchar) s from range(600000) r(i)")
print(c.execute("select count(*), sum(k), min(s), max(s) from t").fetchall())
print(c.execute("select k % 10 g, count(*), count(distinct s) from t group by g order by g").fetchall())
print(c.execute("select count(*) from t a join t b on a.k = b.k and a.i < 100000 and b.i < 100000").fetchall())
print(c.execute("select sum(i * r) from (select i, row_number() over (order by s) r from t)").fetchall())
