package bench;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.apache.bookkeeper.client.AsyncCallback.AddCallback;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerHandle;

/** Adds at a rate to one ledger; latency counts from the moment an add was due, whether or not it could be made then. */
final class Pacing implements AddCallback {
    private static final int SLOTS = 1 << 16; // due times of the latest adds; fewer wait
    private static final int MOST_OUTSTANDING = 20_000;
    private final BookKeeper client;
    private final JsonNode request;
    private final AtomicLong done = new AtomicLong();
    private final AtomicInteger failed = new AtomicInteger();
    private final Histogram times = new Histogram();
    private final long[] due = new long[SLOTS];
    private volatile long first = Long.MAX_VALUE;
    private volatile long last = Long.MAX_VALUE;

    Pacing(BookKeeper client, JsonNode request) {
        this.client = client;
        this.request = request;
    }

    @Override
    public void addComplete(int rc, LedgerHandle handle, long entry, Object context) {
        if (rc != BKException.Code.OK) {
            failed.compareAndSet(0, rc);
        } else if (entry >= first && entry < last) {
            times.record(System.nanoTime() - due[(int) entry & (SLOTS - 1)]);
        }
        done.incrementAndGet();
    }

    ObjectNode run() throws Exception {
        double rate = request.path("rate").asDouble(5000);
        byte[] body = Writing.payload(request.path("size").asInt(1024));
        long warm = (long) (request.path("warm").asDouble(5) * rate);
        long total = warm + (long) (request.path("seconds").asDouble(20) * rate);
        LedgerHandle ledger = Writing.create(client, request);
        first = warm;
        last = total;
        long start = System.nanoTime();
        for (long entry = 0; entry < total && failed.get() == 0; entry++) {
            long when = start + (long) (entry * 1e9 / rate);
            for (long left = when - System.nanoTime(); left > 0; left = when - System.nanoTime()) {
                LockSupport.parkNanos(left);
            }
            if (entry == warm) {
                Load.phase("begin");
            }
            while (entry - done.get() >= MOST_OUTSTANDING) {
                LockSupport.parkNanos(100_000L); // it stays due: the wait counts into its latency
            }
            due[(int) entry & (SLOTS - 1)] = when;
            ledger.asyncAddEntry(body, this, null);
        }
        long limit = System.nanoTime() + 60_000_000_000L;
        while (done.get() < total && failed.get() == 0 && System.nanoTime() < limit) {
            LockSupport.parkNanos(1_000_000L);
        }
        double took = (System.nanoTime() - start) / 1e9 - warm / rate;
        Load.phase("end");
        if (failed.get() != 0) {
            throw BKException.create(failed.get());
        }
        ledger.close();
        ObjectNode result = Load.JSON.createObjectNode();
        result.putArray("ledgers").add(ledger.getId());
        result.put("entries", total - warm).put("all_entries", total).put("seconds", took).put("per_s", (total - warm) / took);
        Load.quantiles(result, times);
        return result;
    }
}
