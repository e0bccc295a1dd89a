# A pool of forked processes sums what their parent made; reading it writes reference counts.
import multiprocessing

numbers = [n * n % 1000003 for n in range(600000)]


def part(at):
    return sum(numbers[at : at + 10000])


if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(4) as pool:
        for _ in range(3):
            print(sum(pool.map(part, range(0, len(numbers), 10000))))
    print(sum(numbers))
