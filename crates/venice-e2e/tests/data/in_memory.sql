-- A table of about 100 MB, an index over it, and queries that walk both.
CREATE TABLE item (id INTEGER PRIMARY KEY, bucket INTEGER, word TEXT, body TEXT);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 150000)
INSERT INTO item
SELECT i, (i * 7919) % 1000, printf('%08x', (i * 2654435761) % 4294967296),
       printf('%.500c', char(97 + i % 26)) || printf('%016x', i * 1099511628211)
FROM n;
SELECT count(*), sum(bucket), min(word), max(word), sum(length(body)) FROM item;
CREATE INDEX item_word ON item (word);
SELECT id, word FROM item ORDER BY word LIMIT 5 OFFSET 75000;
SELECT bucket, count(*), max(substr(body, 500)) FROM item GROUP BY bucket ORDER BY bucket LIMIT 20;
UPDATE item SET body = upper(body) WHERE bucket < 250;
DELETE FROM item WHERE bucket BETWEEN 500 AND 599;
SELECT count(*), sum(unicode(body)), sum(length(body)) FROM item;
PRAGMA integrity_check;
