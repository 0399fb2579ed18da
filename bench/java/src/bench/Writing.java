package bench;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.Random;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.apache.bookkeeper.client.AsyncCallback.AddCallback;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.LedgerHandle;

/** As many adds at once as allowed, by one thread, in turns over the ledgers. Nothing is allocated per add on this side. */
final class Writing implements AddCallback {
    private static final long DRAIN_NANOS = 60_000_000_000L;
    private final BookKeeper client;
    private final JsonNode request;
    private final int outstanding;
    private final AtomicLong done = new AtomicLong();
    private final AtomicLong wakeAt = new AtomicLong(Long.MAX_VALUE);
    private final AtomicInteger failed = new AtomicInteger();
    private final Thread producer = Thread.currentThread();
    private volatile boolean counts;

    /** One ledger; its callbacks all come on one thread. `begun` holds when the latest adds were made. */
    private final class Log {
        final LedgerHandle handle;
        final Histogram times = new Histogram();
        final long[] begun;

        Log(LedgerHandle handle, int slots) {
            this.handle = handle;
            this.begun = new long[slots];
        }
    }

    Writing(BookKeeper client, JsonNode request) {
        this.client = client;
        this.request = request;
        this.outstanding = request.path("outstanding").asInt(2500);
    }

    static LedgerHandle create(BookKeeper client, JsonNode request) throws Exception {
        return client.createLedger(
                request.path("e").asInt(3), request.path("qw").asInt(3), request.path("qa").asInt(2), DigestType.CRC32C, Load.PASSWORD);
    }

    static byte[] payload(int size) {
        byte[] body = new byte[size];
        new Random(7).nextBytes(body);
        return body;
    }

    @Override
    public void addComplete(int rc, LedgerHandle handle, long entry, Object context) {
        if (rc != BKException.Code.OK) {
            failed.compareAndSet(0, rc);
        } else if (counts) {
            Log log = (Log) context;
            log.times.record(System.nanoTime() - log.begun[(int) entry & (log.begun.length - 1)]);
        }
        if (done.incrementAndGet() == wakeAt.get()) {
            LockSupport.unpark(producer);
        }
    }

    ObjectNode run() throws Exception {
        int ledgers = request.path("ledgers").asInt(1);
        byte[] body = payload(request.path("size").asInt(1024));
        // Callbacks of a ledger come in order, so at most `outstanding` of its adds wait at a time.
        int slots = Integer.highestOneBit(outstanding) * 2;
        Log[] logs = new Log[ledgers];
        for (int k = 0; k < ledgers; k++) {
            logs[k] = new Log(create(client, request), slots);
        }
        boolean fills = request.path("load").asText().equals("fill"); // so many entries, however long it takes
        long begin = System.nanoTime() + (fills ? 0 : (long) (request.path("warm").asDouble(5) * 1e9));
        long seconds = (long) ((fills ? 3600 : request.path("seconds").asDouble(20)) * 1e9);
        long most = fills ? request.get("entries").asLong() : Long.MAX_VALUE;
        long sent = fill(logs, body, 0, begin, most);
        Load.phase("begin");
        counts = true;
        long before = done.get();
        long from = System.nanoTime();
        sent = fill(logs, body, sent, from + seconds, most);
        long added = done.get() - before;
        long took = System.nanoTime() - from;
        counts = false;
        Load.phase("end");
        drain(sent);
        return result(logs, added, took, sent);
    }

    /** Adds until the time is over or `most` were made in all; how many were made so far. */
    private long fill(Log[] logs, byte[] body, long sent, long until, long most) {
        int at = (int) (sent % logs.length);
        while (failed.get() == 0) {
            long room = outstanding - (sent - done.get());
            for (long k = Math.min(room, most - sent); k > 0; k--) {
                Log log = logs[at];
                long entry = sent / logs.length;
                log.begun[(int) entry & (log.begun.length - 1)] = System.nanoTime();
                log.handle.asyncAddEntry(body, this, log);
                at = at + 1 == logs.length ? 0 : at + 1;
                sent++;
            }
            if (System.nanoTime() >= until || sent >= most) {
                break;
            }
            await(sent - outstanding + Math.max(1, outstanding / 4), until);
        }
        return sent;
    }

    /** Until so many adds are done. */
    private void await(long wanted, long until) {
        wakeAt.set(wanted);
        while (done.get() < wanted && System.nanoTime() < until) {
            LockSupport.parkNanos(1_000_000L);
        }
    }

    private void drain(long sent) throws BKException {
        long limit = System.nanoTime() + DRAIN_NANOS;
        while (done.get() < sent && System.nanoTime() < limit) {
            LockSupport.parkNanos(1_000_000L);
        }
        if (failed.get() != 0) {
            throw BKException.create(failed.get());
        }
    }

    private ObjectNode result(Log[] logs, long added, long took, long sent) throws Exception {
        Histogram all = new Histogram();
        ObjectNode result = Load.JSON.createObjectNode();
        var ids = result.putArray("ledgers");
        for (Log log : logs) {
            log.times.addTo(all);
            log.handle.close();
            ids.add(log.handle.getId());
        }
        result.put("entries", added).put("all_entries", sent).put("seconds", took / 1e9).put("per_s", added * 1e9 / took);
        Load.quantiles(result, all);
        return result;
    }
}
