import hashlib

import numpy as np

random = np.random.Generator(np.random.PCG64(42))
a = random.random(20_000_000)
print(a.shape, a.nbytes, hashlib.sha256(a).hexdigest())
a *= 3.0
a[::512] += 1.0
print(float(a.min()), float(a.max()), hashlib.sha256(a).hexdigest())
a.sort()
assert (a[1:] >= a[:-1]).all()
print(hashlib.sha256(a).hexdigest())
m = a[: 4000 * 4000].reshape(4000, 4000)
print(m[:, 1234].tobytes()[:64].hex(), float(m[17].sum()))
picks = random.integers(0, a.size, 100_000)
print(hashlib.sha256(a[picks]).hexdigest())
