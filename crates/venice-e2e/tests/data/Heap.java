import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** Fills most of its heap with objects that live, makes garbage beside them, checks them all. */
public final class Heap {
    private static long mix(long z) {
        z = (z ^ (z >>> 30)) * 0xbf58476d1ce4e5b9L;
        z = (z ^ (z >>> 27)) * 0x94d049bb133111ebL;
        return z ^ (z >>> 31);
    }

    private static byte[] body(long key, int round) {
        byte[] bytes = new byte[512];
        for (int at = 0; at < bytes.length; at += 8) {
            long word = mix(key * 64 + at + round);
            for (int i = 0; i < 8; i++) {
                bytes[at + i] = (byte) (word >>> (8 * i));
            }
        }
        return bytes;
    }

    public static void main(String[] args) throws Exception {
        int count = 200_000;
        Map<Long, byte[]> live = new HashMap<>();
        for (long key = 0; key < count; key++) {
            live.put(key, body(key, 0));
        }
        for (long key = 0; key < count; key += 5) {
            live.put(key, body(key, 1));
        }
        long wrong = 0;
        for (long key = 0; key < count; key++) {
            if (!Arrays.equals(live.get(key), body(key, key % 5 == 0 ? 1 : 0))) {
                wrong++;
            }
        }
        System.out.println("wrong " + wrong + " of " + live.size());

        List<Thread> threads = new ArrayList<>();
        long[] sums = new long[4];
        for (int t = 0; t < sums.length; t++) {
            int me = t;
            Thread thread = new Thread(() -> {
                for (long key = me; key < count; key += sums.length) {
                    sums[me] += Arrays.hashCode(live.get(key));
                }
            });
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) {
            thread.join();
        }
        System.out.println(Arrays.toString(sums));
        System.gc();
        System.out.println(Arrays.hashCode(live.get(4711L)));
        System.exit(wrong == 0 ? 0 : 1);
    }
}
