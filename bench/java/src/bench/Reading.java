package bench;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayDeque;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;

/** Reads closed ledgers, digests checked by the client: in order, a few ranges ahead, or single entries at random places. */
final class Reading {
    private final BookKeeper client;
    private final JsonNode request;
    private final LedgerHandle[] ledgers;
    private final int size;

    Reading(BookKeeper client, JsonNode request) throws Exception {
        this.client = client;
        this.request = request;
        this.size = request.path("size").asInt(1024);
        this.ledgers = new LedgerHandle[request.get("ledgers").size()];
        for (int k = 0; k < ledgers.length; k++) {
            ledgers[k] = client.openLedgerNoRecovery(request.get("ledgers").get(k).asLong(), DigestType.CRC32C, Load.PASSWORD);
            if (ledgers[k].getLastAddConfirmed() < 0) {
                throw new IllegalStateException("ledger " + ledgers[k].getId() + " is empty");
            }
        }
    }

    /** The first ledger from end to end, again and again. */
    ObjectNode sequential() throws Exception {
        LedgerHandle ledger = ledgers[0];
        int range = request.path("range").asInt(1000);
        int depth = request.path("depth").asInt(3);
        boolean batch = request.path("batch").asBoolean(true);
        long last = ledger.getLastAddConfirmed();
        long begin = System.nanoTime() + (long) (request.path("warm").asDouble(5) * 1e9);
        long seconds = (long) (request.path("seconds").asDouble(10) * 1e9);
        ArrayDeque<CompletableFuture<LedgerEntries>> asked = new ArrayDeque<>();
        long next = 0;
        long expected = 0;
        long read = 0;
        long from = 0;
        while (true) {
            while (asked.size() < depth) {
                long end = Math.min(last, next + range - 1);
                asked.add(batch ? ledger.batchReadAsync(next, (int) (end - next + 1), 0) : ledger.readAsync(next, end));
                next = end == last ? 0 : end + 1;
            }
            try (LedgerEntries entries = asked.remove().get()) {
                for (LedgerEntry entry : entries) {
                    if (entry.getEntryId() != expected || entry.getLength() != (expected + 1) * size) {
                        throw new IllegalStateException("entry " + entry.getEntryId() + " where " + expected + " was due");
                    }
                    expected = expected == last ? 0 : expected + 1;
                    read++;
                }
            }
            long now = System.nanoTime();
            if (from == 0 && now >= begin) {
                Load.phase("begin");
                from = System.nanoTime();
                read = 0;
            } else if (from != 0 && now - from >= seconds) {
                Load.phase("end");
                break;
            }
        }
        double took = (System.nanoTime() - from) / 1e9;
        for (CompletableFuture<LedgerEntries> left : asked) {
            left.get().close();
        }
        close();
        return Load.JSON.createObjectNode().put("entries", read).put("seconds", took).put("per_s", read / took);
    }

    /** Single entries, `outstanding` at a time. */
    ObjectNode random() throws Exception {
        int outstanding = request.path("outstanding").asInt(64);
        Random random = new Random(request.path("seed").asLong(1));
        Semaphore free = new Semaphore(outstanding);
        AtomicLong done = new AtomicLong();
        AtomicReference<Throwable> failed = new AtomicReference<>();
        long begin = System.nanoTime() + (long) (request.path("warm").asDouble(2) * 1e9);
        long seconds = (long) (request.path("seconds").asDouble(20) * 1e9);
        Histogram times = new Histogram();
        long from = 0;
        long before = 0;
        while (failed.get() == null) {
            free.acquire();
            long now = System.nanoTime();
            if (from == 0 && now >= begin) {
                Load.phase("begin");
                from = System.nanoTime();
                before = done.get();
                synchronized (times) {
                    times.clear();
                }
            } else if (from != 0 && now - from >= seconds) {
                break;
            }
            LedgerHandle ledger = ledgers[random.nextInt(ledgers.length)];
            long entry = (long) (random.nextDouble() * (ledger.getLastAddConfirmed() + 1));
            ledger.readAsync(entry, entry).whenComplete((entries, error) -> {
                if (error != null) {
                    failed.compareAndSet(null, error);
                } else {
                    entries.close();
                    synchronized (times) {
                        times.record(System.nanoTime() - now);
                    }
                }
                done.incrementAndGet();
                free.release();
            });
        }
        long read = done.get() - before;
        double took = (System.nanoTime() - from) / 1e9;
        Load.phase("end");
        free.acquire(outstanding - 1);
        if (failed.get() != null) {
            throw new IllegalStateException(failed.get());
        }
        ObjectNode result = Load.JSON.createObjectNode().put("entries", read).put("seconds", took).put("per_s", read / took);
        Load.quantiles(result, times);
        close();
        return result;
    }

    private void close() throws Exception {
        for (LedgerHandle ledger : ledgers) {
            ledger.close();
        }
    }
}
