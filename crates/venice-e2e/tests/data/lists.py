import hashlib

def numbers(count, state=12345):
    for _ in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) & 0xFFFFFFFFFFFFFFFF
        yield state >> 11

words = [f"{n:016x}" * 24 for n in numbers(90_000)]
words.sort()
print(len(words), hashlib.sha256("".join(words[::97]).encode()).hexdigest())

pairs = [(n % 1000, n) for n in numbers(80_000, 777)]
pairs.sort()
print(pairs[0], pairs[-1], sum(n for _, n in pairs))

by_bucket = {}
for bucket, n in pairs:
    by_bucket.setdefault(bucket, []).append(n)
print(len(by_bucket), max(len(v) for v in by_bucket.values()))

del pairs
words.reverse()
digest = hashlib.sha256()
for word in words:
    digest.update(word.encode())
print(digest.hexdigest())
