package bench;

/** Counts of durations in buckets at most 1/64 wide; for one thread at a time. */
final class Histogram {
    private static final int STEPS = 64;
    private static final int UNIT_BITS = 8; // 256 ns
    private final long[] counts = new long[STEPS * 58];

    void record(long nanos) {
        counts[bucket(Math.max(0, nanos) >>> UNIT_BITS)]++;
    }

    void addTo(Histogram sum) {
        for (int k = 0; k < counts.length; k++) {
            sum.counts[k] += counts[k];
        }
    }

    void clear() {
        java.util.Arrays.fill(counts, 0);
    }

    long total() {
        long n = 0;
        for (long count : counts) {
            n += count;
        }
        return n;
    }

    /** The smallest duration, in milliseconds, that at least this share of the recorded ones did not exceed. */
    double quantile(double share) {
        long wanted = (long) Math.ceil(share * total());
        long seen = 0;
        for (int k = 0; k < counts.length; k++) {
            seen += counts[k];
            if (seen >= wanted && seen > 0) {
                return (double) (upper(k) << UNIT_BITS) / 1e6;
            }
        }
        return 0;
    }

    private static int bucket(long units) {
        int shift = Math.max(0, 57 - Long.numberOfLeadingZeros(units));
        return shift * STEPS + (int) (units >>> shift);
    }

    private static long upper(int bucket) {
        int shift = bucket < 2 * STEPS ? 0 : bucket / STEPS - 1;
        return (long) (bucket - shift * STEPS + 1) << shift;
    }
}
